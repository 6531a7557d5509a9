"""The bounds against dialogues that were really played on a simulated clock, and rates measured in a run."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from mapo import Dialogue, Reply, Rubric, Turn
from mapo.config import dump_config, read_config
from mapo.models.cache import Cache
from mapo.models.chat import Answer, Usage
from mapo.models.ledger import Ledger
from mapo.planning.demand import shape_of
from mapo.planning.measured import measure, merge_over
from mapo.planning.plan import make_plan
from mapo.planning.rates import read_rates
from mapo.sandbox.model_cast import model_cast, policy_system
from mapo.sandbox.rollout import Job, Rules, play_all
from mapo.scenarios.sets import load_scenarios
from mapo.store import JsonlWriter
from mapo.testing.world import ROLES, world
from mapo.types import Ending, Mark, StopReason
from support.command import mapo

RUBRIC = Rubric.load("empathy")
KNOWN = load_scenarios("builtin:all")
UNKNOWN = [replace(scenario, start_levels={}) for scenario in KNOWN]
FREE = 1000

# name: (scenarios, siblings, turns, at once, start form?, {role: (seconds, calls at once)})
SHAPES = {
    "judge-bound": (3, 4, 3, 12, False, {"policy": (0.05, FREE), "judge": (0.15, 2), "user": (0.05, FREE)}),
    "user-bound": (3, 4, 4, 12, False, {"policy": (0.05, FREE), "judge": (0.05, FREE), "user": (0.08, 1)}),
    "latency-bound": (2, 4, 4, 8, False, {"policy": (0.2, FREE), "judge": (0.15, FREE), "user": (0.1, FREE)}),
    "few places": (4, 4, 2, 4, False, {"policy": (0.1, FREE), "judge": (0.1, FREE), "user": (0.1, FREE)}),
    "start forms": (4, 4, 2, 16, True, {"policy": (0.1, 8), "judge": (0.1, 3), "user": (0.1, FREE)}),
}
DIRECTOR = (0.02, FREE)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self._jumped = 0.0
        select = self._selector.select

        def at_once(timeout):
            self._jumped += timeout or 0.0
            return select(0)

        self._selector.select = at_once

    def time(self) -> float:
        return self._jumped

    def run_in_executor(self, _executor, function, *arguments):
        """The clock would jump on while a thread works."""
        done = self.create_future()
        done.set_result(function(*arguments))
        return done


class Slow:
    """A Chat that takes its time, for so many calls at once; with a cache, like an endpoint."""

    def __init__(self, role, seconds, slots, answer, cache) -> None:
        self.name, self.seconds, self.answer, self.cache = role, seconds, answer, cache
        self.gate = asyncio.Semaphore(slots)

    async def reply(self, request):
        found, _ = await self.cache.answer(self.name, request, lambda: self.call(request))
        return found

    async def call(self, request):
        async with self.gate:
            await asyncio.sleep(self.seconds)
        schema = {"json_schema": {"schema": request.schema}} if request.schema else None
        return Answer(Reply(self.answer({"model": self.name, "response_format": schema})))


def jobs_of(scenarios: int, siblings: int, start: bool) -> list[Job]:
    """As a training step has them: siblings side by side."""
    chosen = (UNKNOWN if start else KNOWN)[:scenarios]
    return [Job(s, f"{s.id}_{k}", group=s.id) for s in chosen for k in range(siblings)]


def planned(name: str) -> float:
    scenarios, siblings, turns, at_once, start, given = SHAPES[name]
    speeds = {"director": DIRECTOR, **given}
    call = {role: {"output": 1, "seconds": s} for role, (s, _) in speeds.items()}
    stated = {
        "servers": {role: {"streams": slots} for role, (_, slots) in speeds.items()},
        "calls": {**call, **({"start": call["judge"]} if start else {})},
        "update": {"seconds": 0.0},
    }
    config = read_config(
        {
            "roles": {"agents": "llm", "everyone": {"model": "m"}, "requests": FREE},
            "rollout": {"scenarios": scenarios, "siblings": siblings, "max_turns": turns, "at_once": at_once},
        },
        name,
    )
    return make_plan(shape_of(config), read_rates(stated, name)).rollout_s


async def played(chats, name: str) -> list[Dialogue]:
    scenarios, siblings, turns, at_once, start, _ = SHAPES[name]
    casting = model_cast(chats["user"], chats["director"], chats["judge"], RUBRIC)
    rules = Rules(RUBRIC, max_turns=turns, min_turns=turns, system=policy_system)
    jobs = jobs_of(scenarios, siblings, start)
    found = await play_all(jobs, lambda _: chats["policy"], casting, rules, concurrency=at_once)
    assert all(d.error is None and len(d.turns) == turns for d in found)
    return found


def jumped(name: str, folder) -> float:
    """Seconds on a clock on which nothing takes time but the calls."""
    speeds = {"director": DIRECTOR, **SHAPES[name][-1]}
    cache, answer = Cache(folder / "cache.sqlite"), world()

    async def whole() -> float:
        await played({role: Slow(role, *speeds[role], answer, cache) for role in ROLES}, name)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        took = runner.run(whole())
    cache.close()
    return took


@pytest.mark.parametrize("name", SHAPES)
def test_play_all_takes_no_less_than_the_bound_and_little_more(name, tmp_path):
    assert 1 - 1e-6 <= jumped(name, tmp_path) / planned(name) < 1.35


# ---- rates from a run


def write_run(folder, dialogues, *, ledger=None, metrics=(), label="dialogues/step_00001.jsonl"):
    with JsonlWriter(folder / label) as writer:
        for dialogue in dialogues:
            writer.write_dialogue(dialogue)
    if ledger:
        ledger.flush(folder / "ledger.json")
    if metrics:
        with JsonlWriter(folder / "metrics.jsonl") as writer:
            for line in metrics:
                writer.write(line)


def spoken(id_: str, turns: int, **more) -> Dialogue:
    reply = Reply("four words of it", prompt_ids=(1,) * 30, token_ids=(2,) * 10)
    return Dialogue(
        id=id_,
        scenario="s",
        model="m",
        rubric="empathy",
        profile="published",
        start=(0.0, 0.0, 0.0),
        turns=tuple(Turn("hm", reply) for _ in range(turns)),
        **{"seconds": 2.0 * turns, "start_levels": {}, **more},
    )


CONFIG = read_config(
    {
        "roles": {"agents": "llm", "everyone": {"model": "m", "base_url": "http://a/v1"}, "requests": 20},
        "rollout": {"scenarios": 4, "siblings": 2, "at_once": 6},
    },
    "test",
)


def ledger_of(**roles) -> Ledger:
    ledger = Ledger()
    for role, (calls, seconds) in roles.items():
        used = Usage(prompt=100 * calls, cached=80 * calls, completion=20 * calls)
        ledger.add(role, "m", calls=calls, seconds=seconds, usage=used)
    return ledger


def test_rates_of_a_run_with_a_local_policy(tmp_path):
    asked = {"C.1": Mark(2, reason="as the file says")}
    ended = Ending(StopReason.DIRECTOR)
    talks = [spoken("a", 4, ending=ended), spoken("b", 2, start_levels=asked), spoken("c", 3, error="broke")]
    # 6 turns and one start form, 4 of them gone on from and one ended by the director, the user asked 5 times
    ledger = ledger_of(judge=(7, 3.5), director=(5, 1.0), user=(5, 1.5))
    steps = [{"step": 1, "dialogues": 2, "rollout_s": 7.0, "update_s": 3.0}, {"step": 2}]
    write_run(tmp_path, talks, ledger=ledger, metrics=steps)
    (tmp_path / "dialogues" / "step_00002.jsonl").write_text("{torn")
    found = measure(tmp_path, CONFIG)
    calls = found.rates["calls"]
    policy = calls["policy"]
    # contexts 30, 70, 110, 150: 40 more a turn; of 360 + 100 tokens, 180 were new
    assert (policy["prompt"], policy["growth"], policy["output"]) == (30, 40, 10)
    assert policy["cached"] == pytest.approx(1 - 180 / 460)
    assert policy["seconds"] == pytest.approx((12 - 6.0) / 6)
    assert calls["judge"] == {
        "prompt": 100,
        "cached": 0.8,
        "output": 20,
        "again": 0,
        "seconds": 0.5,
        "server": "everyone",
    }
    assert calls["start"] == calls["judge"]
    assert calls["director"]["again"] == 0 and calls["user"]["again"] == pytest.approx(0.25)
    assert found.rates["servers"] == {"policy": {"streams": 6}, "everyone": {"streams": 20}}
    assert found.rates["dialogues"] == {"turns": [4, 2]}
    assert found.rates["update"]["seconds"] == pytest.approx(8 * 1.5) and found.rollout_s == 7.0
    make_plan(shape_of(CONFIG), read_rates(found.rates, "run"))


def test_roles_at_other_addresses_are_other_servers(tmp_path):
    roles = {
        "agents": "llm",
        "everyone": {"model": "m", "base_url": "http://a/v1"},
        "judge": {"base_url": "http://b/v1"},
    }
    write_run(tmp_path, [spoken("a", 4)], ledger=ledger_of(judge=(4, 1), director=(3, 1), user=(3, 1)))
    calls = measure(tmp_path, read_config({"roles": roles}, "test")).rates["calls"]
    assert {role: call.get("server") for role, call in calls.items()} == {
        "policy": None,
        "judge": "judge",
        "director": "director",
        "user": "director",
    }


def test_a_run_with_few_records(tmp_path):
    bare = Reply("eight le")
    talk = replace(spoken("a", 1, seconds=None), turns=(Turn("hm", bare),))
    write_run(tmp_path, [talk])
    write_run(tmp_path, [replace(spoken("v", 1), turns=(Turn("hm", bare),))], label="eval/before/test.jsonl")
    found = measure(tmp_path, CONFIG)
    # eight characters are two tokens; the second dialogue's 2 s are for two turns
    assert found.rates["calls"] == {
        "policy": {"prompt": 0, "growth": 0, "cached": 0, "output": 2, "seconds": 1.0}
    }
    assert "update" not in found.rates and found.rollout_s is None
    (tmp_path / "eval/before/test.jsonl").unlink()
    silent = measure(tmp_path, CONFIG)
    assert "seconds" not in silent.rates["calls"]["policy"] and "do not record" in silent.notes[-1]
    write_run(tmp_path, [], ledger=ledger_of(policy=(2, 3.0)))
    asked = measure(tmp_path, CONFIG).rates["calls"]["policy"]
    assert asked == {"prompt": 100, "cached": 0.8, "output": 20, "again": 1.0, "seconds": 1.5}


def test_a_template_that_rewrites_has_whole_prompts(tmp_path):
    turns = [Turn("hm", Reply("x", prompt_ids=(1,) * n, token_ids=(2,), whole_prompt=True)) for n in (9, 21)]
    write_run(tmp_path, [replace(spoken("a", 2), turns=tuple(turns))])
    policy = measure(tmp_path, CONFIG).rates["calls"]["policy"]
    assert (policy["prompt"], policy["growth"], policy["cached"]) == (9, 12, 0)


def test_stated_speeds_replace_seconds_under_load():
    call = {"output": 5, "seconds": 2.0, "server": "everyone"}
    measured = {
        "servers": {"policy": {"streams": 6}, "everyone": {"streams": 20}},
        "calls": {"policy": {"output": 5, "seconds": 1.0}, "judge": call, "user": call, "start": call},
        "update": {"seconds": 4.0},
    }
    stated = {
        "servers": {"judge": {"streams": 9, "tokens_per_s": 50}, "everyone": {"replicas": 2}},
        "calls": {"user": {"cached": 0.1}},
        "update": {"tokens_per_s": 100},
    }
    got = merge_over(measured, stated)
    assert got["calls"]["judge"] == {"output": 5, "server": "judge"} == got["calls"]["start"]
    assert got["calls"]["user"] == {**call, "cached": 0.1}
    assert got["servers"]["everyone"] == {"streams": 20, "replicas": 2}
    assert got["update"] == {"tokens_per_s": 100} and got["calls"]["policy"]["seconds"] == 1.0
    assert merge_over(measured, {})["update"] == {"seconds": 4.0}
    assert merge_over(measured, {"servers": 3})["servers"] == 3  # refused later, with its place


def test_plan_from_a_run(tmp_path):
    talks = [spoken(f"d{i}", 4) for i in range(8)]
    ledger = ledger_of(judge=(32, 16.0), director=(24, 2.4), user=(24, 4.8))
    steps = [{"step": 1, "dialogues": 8, "rollout_s": 9.5, "update_s": 3.0}]
    write_run(tmp_path, talks, ledger=ledger, metrics=steps)
    (tmp_path / "config.toml").write_text(dump_config(CONFIG))
    done = mapo("plan", "--from", tmp_path)
    assert done.returncode == 0 and f"Rollouts of {tmp_path} took 9.5 s" in done.stdout
    assert "seconds per call are those under its load" in done.stderr
    got = json.loads(mapo("plan", "--from", tmp_path, "--json", "update.seconds=1").stdout)
    assert got["measured_rollout_s"] == 9.5 and got["update_s"] == 1 and got["shape"]["at_once"] == 6
    # a dialogue takes 8 s on average, and six of the eight run at the same time
    assert got["bounds_s"]["longest dialogue"] == pytest.approx(8)
    assert got["rollout_s"] == pytest.approx(8 * 8 / 6)
