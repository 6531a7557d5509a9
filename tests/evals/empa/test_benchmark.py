"""mapo eval empa: over real HTTP, with faults, killed and resumed, and against published dialogues."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mapo import Rubric, StopReason
from mapo.errors import AnswerError, InputError, JudgeError
from mapo.evals.empa import benchmark as empa
from mapo.measure.epmq import composite
from mapo.models.cache import Cache
from mapo.models.endpoint import Endpoint
from mapo.models.ledger import Ledger
from mapo.runs.claim import claim
from mapo.sandbox.domain import scripted_cast, scripted_policy
from mapo.sandbox.model_cast import model_cast, policy_system
from mapo.sandbox.rollout import Job, Rules, play_all
from mapo.scenarios.scenario import Persona, Scenario
from mapo.scenarios.sets import load_scenarios
from mapo.scoring.folders import read_folders
from mapo.store import RunDir, read_dialogues
from mapo.testing.server import LoopbackServer
from mapo.testing.world import ROLES, world
from support.published import published

RUBRIC = Rubric.load("empathy")


async def no_wait(_: float) -> None:
    await asyncio.sleep(0)


def over_http(url, **kw):
    """Endpoints for all four roles that do not wait between retries."""
    return {role: Endpoint(role, url, role=role, sleep=no_wait, **kw) for role in ROLES}


def run_all(chats, scenarios, rules, **kw):
    casting = model_cast(chats["user"], chats["director"], chats["judge"], RUBRIC)
    jobs = [Job(s, s.id, seed=i) for i, s in enumerate(scenarios)]

    async def go():
        try:
            return await play_all(jobs, lambda *_: chats["policy"], casting, rules, **kw)
        finally:
            for chat in chats.values():
                await chat.aclose()

    return asyncio.run(go())


# ---- published dialogues, played again through the whole loop


class Published:
    """A server's memory of the published dialogues of one model: it says what was said then."""

    def __init__(self, folder: Path) -> None:
        files = [json.loads(f.read_text(encoding="utf-8")) for f in sorted(folder.glob("*_result.json"))]
        self.data = {d["script_id"]: d for d in files}
        self.played: Counter[str] = Counter()

    def scenarios(self) -> list[Scenario]:
        return [
            Scenario(
                case,
                Persona("the person"),
                topic="as published",
                opening=self.lines(case, "actor")[0],
                start_levels={
                    i.key: data["epj"]["iedr_details"]["filled_iedr"][i.key] for i in RUBRIC.indicators
                },
                language="zh",
            )
            for case, data in self.data.items()
        ]

    def lines(self, case: str, role: str) -> list[str]:
        return [m["content"] for m in self.data[case]["history"] if m["role"] == role]

    def answer(self, body):
        role, case = body["model"].split("/")
        if role == "policy":
            self.played[case] += 1
            return self.lines(case, "test_model")[self.played[case] - 1] or "(nothing)"
        turn = self.played[case]
        if role == "user":
            return self.lines(case, "actor")[turn] or "(nothing)"
        if role == "director":
            return json.dumps({"act": "go_on", "item": "", "reason": ""})
        form = self.data[case]["epj"]["trajectory"][turn].get("mdep_analysis") or {}
        return json.dumps(
            {
                key: {
                    name: {
                        "level": form.get(f"{key}_{kind}_level", 0),
                        "evidence": str(form.get(f"{key}_{kind}_evidence", "")),
                        "reason": str(form.get(f"{key}_{kind}_reasoning", "")),
                    }
                    for name, kind in (("progress", "Prog"), ("regression", "Neg"))
                }
                for key in "CAP"
            }
        )


@pytest.mark.slow
@pytest.mark.parametrize("model", ["claude-3.5-sonnet", "llama-3.3-70b-instruct"])
def test_published_dialogues_replayed_over_http(two_models, tmp_path, model):
    """Recorded trajectories, endings and EPM-Q come out of the whole loop again."""
    then = Published(two_models / model)
    with LoopbackServer(then.answer) as server:
        made: dict[str, Endpoint] = {}

        def chat(role, scenario):
            name = f"{role}/{scenario.id}"
            return made.setdefault(name, Endpoint(name, server.base_url, role=role, sleep=no_wait))

        def casting(job):
            roles = (chat(role, job.scenario) for role in ("user", "director", "judge"))
            return model_cast(*roles, RUBRIC)(job)

        async def go():
            plan = empa.EmpaPlan(then.scenarios())
            rules = Rules(RUBRIC)
            played = await empa.run(tmp_path, plan, lambda job: chat("policy", job.scenario), casting, rules)
            for endpoint in made.values():
                await endpoint.aclose()
            return played

        played = asyncio.run(go())
    assert server.errors == [] and len(played) == 30
    for dialogue in played:
        record = then.data[dialogue.scenario]["epj"]["trajectory"]
        assert dialogue.error is None
        assert [list(t.state.position) for t in dialogue.turns] == [e["P_t"] for e in record[1:]]
        assert dialogue.ending.reason.value in then.data[dialogue.scenario]["termination_reason"].lower() or (
            "oscillation" in then.data[dialogue.scenario]["termination_reason"].lower()
            and dialogue.ending.reason is StopReason.STAGNATION
        )
        assert [t.state.energy for t in dialogue.turns] == [e["epm"]["E_total"] for e in record[1:]]
        assert [t.reply.text for t in dialogue.turns] == [
            line or "(nothing)" for line in then.lines(dialogue.scenario, "test_model")
        ]
    want = json.loads(published("epmq_expected.json").read_text(encoding="utf-8"))["models"][model]
    # from our records, and from the EMPA files written beside them
    for folder in (tmp_path, tmp_path / "empa"):
        results = [r for part in read_folders(folder) for r in part.results]
        got = composite([r.indices for r in results])
        assert len(results) == 30 and sum(r.passed for r in results) == want["n_success"]
        assert round(got.epm_q, 2) == want["published"]["EPM-Q Score"]
        assert not any(r.differences for r in results)


# ---- faults

FAULTS = ["429", "429-retry-after", "500", "drop", "hang", "empty", "not-json", "cut-json"]
FAULTS += ["wrong-schema", "bad-level", "wrong-tool"]


def test_a_fifth_of_all_calls_fails_and_everything_is_accounted_for(tmp_path):
    rng = random.Random(5)
    scenarios = load_scenarios("builtin:all")[:24]

    def fault(_, body):
        if body["model"] == "judge" and rng.random() < 0.45:
            return rng.choice(FAULTS[-5:-1])  # forms that do not fit, so often that some turns stay unscored
        return rng.choice(FAULTS) if rng.random() < 0.15 else None

    with LoopbackServer(world(), fault=fault, models=ROLES) as server:
        rules = Rules(RUBRIC, max_turns=6, min_turns=6, system=policy_system)
        # Long enough that only the injected hangs time out, even when the other tests take all cores.
        played = run_all(over_http(server.base_url, timeout=3, retries=4), scenarios, rules)
    assert {d.id for d in played} == {s.id for s in scenarios}
    assert set(server.faults) == set(FAULTS) and sum(server.faults.values()) > 0.2 * server.calls
    for dialogue in played:
        assert dialogue.ending is not None
        if dialogue.error is None:
            assert len(dialogue.turns) == 6 and dialogue.ending.reason is StopReason.TIMEOUT
        for turn in dialogue.turns:
            scored = turn.levels is not None
            assert (
                scored
                == (turn.reward is not None)
                == (turn.state.step is not None)
                == (turn.unscored is None)
            )
            # no score was invented: what there is, is what the judge said
            assert not scored or {(m.progress.level, m.regression.level) for m in turn.levels.values()} == {
                (1, 0)
            }
    assert sum(d.error is None for d in played) >= 20
    turns = [turn for d in played for turn in d.turns]
    assert 0 < sum(t.levels is None for t in turns) < len(turns) / 4  # some could not be judged, and are told


def test_a_judge_that_never_answers_in_form_gives_unscored_turns_and_no_score(tmp_path):
    def answer(body):
        return "I would rather not." if body["model"] == "judge" else world()(body)

    with LoopbackServer(answer) as server:
        rules = Rules(RUBRIC, max_turns=3, min_turns=3)
        played = run_all(over_http(server.base_url), load_scenarios("builtin:test")[:2], rules)
    assert all(
        t.levels is None and t.reward is None and "not JSON" in t.unscored for d in played for t in d.turns
    )
    assert all(d.error is None for d in played)


def test_replay_repeats_a_recorded_run_bit_for_bit_offline(tmp_path):
    scenarios = load_scenarios("builtin:test")[:3]
    rules = Rules(RUBRIC, max_turns=4, min_turns=4, system=policy_system)

    def texts(played):
        return [[(t.user, t.reply.text, t.levels, t.reward) for t in d.turns] for d in played]

    with LoopbackServer(world()) as server:
        cache = Cache(tmp_path / "cache.sqlite")
        ledger = Ledger()
        first = run_all(over_http(server.base_url, cache=cache, ledger=ledger), scenarios, rules)
        cache.close()
        calls = server.calls
    assert calls == 3 * (4 * 4 - 2)
    cache = Cache(tmp_path / "cache.sqlite", "replay")
    again = run_all(over_http("http://127.0.0.1:9/v1", cache=cache), scenarios, rules)
    cache.close()
    assert texts(again) == texts(first) and all(d.error is None for d in again)


# ---- the command, killed and resumed


def command(out, url, *more):
    agents = [f"--{role}-model={role}" for role in ("judge", "user", "director")]
    return [
        *(sys.executable, "-m", "mapo", "eval", "empa", "--model=policy", f"--base-url={url}"),
        *(f"--agents-base-url={url}", *agents, f"--out={out}", "--max-turns=8", "--concurrency=3", *more),
    ]


def test_kill_and_resume_pays_for_nothing_twice(tmp_path):
    out = tmp_path / "run"
    env = {**os.environ, "NO_COLOR": "1"}
    with LoopbackServer(world(), latency=0.005, record=True) as server:
        process = subprocess.Popen(command(out, server.base_url), env=env, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 60
        while server.calls < 150 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        before = server.calls
        file = RunDir(out).empa_dialogues
        kept = {d.id: d for d in read_dialogues(file) if not hasattr(d, "torn")}
        assert before >= 150 and 0 < len(kept) < 12
        done = subprocess.run(
            command(out, server.base_url, "--resume"), env=env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        total = server.calls
        bodies = [json.dumps(body, sort_keys=True) for body in server.bodies]
    dialogues = [d for d in read_dialogues(file) if not hasattr(d, "torn")]
    assert len(dialogues) == 12 == len({d.id for d in dialogues})
    assert dialogues[: len(kept)] == list(kept.values())  # finished ones were not played again
    # 12 dialogues of 8 turns need 12 * (4*8 - 2) calls; at most the ones in flight were asked twice
    assert 360 <= total <= 360 + 3 and len(bodies) - len(set(bodies)) <= 3
    ledger = json.loads((out / "ledger.json").read_text())
    assert {row["role"] for row in ledger["rows"]} == set(ROLES)
    assert "EPM-Q" in done.stdout and "calls" in done.stdout
    assert len(list((out / "empa" / "policy").glob("*_result.json"))) == 12


def test_a_dead_endpoint_stops_the_run_before_anything_is_written(tmp_path):
    dead = subprocess.run(
        command(tmp_path / "run", "http://127.0.0.1:9/v1"), capture_output=True, text=True, timeout=60
    )
    assert dead.returncode == 2 and "Traceback" not in dead.stderr
    assert dead.stderr.count("no connection") == 1 and "Is a server running" in dead.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_whose_endpoint_fails_can_be_resumed(tmp_path):
    out = tmp_path / "run"
    args = ["--cases=career-tied-up,living-back-room", "--retries=0"]
    with LoopbackServer(world(), fault=lambda _number, _body: "500") as server:
        failed = subprocess.run(
            command(out, server.base_url, *args), capture_output=True, text=True, timeout=60
        )
    assert failed.returncode == 1 and "broken: 2 dialogues (" in failed.stderr
    with LoopbackServer(world()) as server:
        done = subprocess.run(
            command(out, server.base_url, *args, "--resume"), capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr


# ---- the folder


def test_a_run_is_not_overwritten_nor_resumed_as_another(tmp_path):
    empa.prepare(tmp_path / "run", {"model": "a", "seed": 1}, resume=False)
    assert not (tmp_path / "run").exists()  # nothing is written before the run can start
    claim(tmp_path / "run", {"model": "a", "seed": 1})
    with pytest.raises(InputError, match="holds a run already.*--resume"):
        empa.prepare(tmp_path / "run", {"model": "a", "seed": 1}, resume=False)
    assert empa.prepare(tmp_path / "run", {"model": "a", "seed": 1}, resume=True).finished == []
    with pytest.raises(InputError, match="model: 'a' there, 'b' here"):
        empa.prepare(tmp_path / "run", {"model": "b", "seed": 1}, resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="is not empty and is not a run"):
        empa.prepare(tmp_path / "other", {}, resume=False)
    with pytest.raises(InputError, match="no run to resume"):
        empa.prepare(tmp_path / "other", {}, resume=True)
    with pytest.raises(InputError, match="Give a folder as --out"):
        empa.prepare(tmp_path / "other" / "thesis.txt", {}, resume=False)
    for damage in (b"{", b"[]", b"\xff\xfe"):
        (tmp_path / "run" / "manifest.json").write_bytes(damage)
        with pytest.raises(InputError, match="manifest.json: cannot be read"):
            empa.prepare(tmp_path / "run", {}, resume=True)


def test_the_manifest_knows_what_is_played():
    """Another scenario text, rubric or start level is another run."""
    scenarios = load_scenarios("builtin:test")[:2]
    plan = empa.EmpaPlan(scenarios)
    there = empa.manifest(plan, Rules(RUBRIC), "m", "scripted")
    edited = replace(scenarios[0], opening="Something else entirely.")
    levels = {scenarios[0].id: {i.key: 1 for i in RUBRIC.indicators}}
    for other in (
        empa.manifest(empa.EmpaPlan([edited, scenarios[1]]), Rules(RUBRIC), "m", "scripted"),
        empa.manifest(replace(plan, start_levels=levels), Rules(RUBRIC), "m", "scripted"),
        empa.manifest(plan, Rules(replace(RUBRIC, zone=2.0)), "m", "scripted"),
        empa.manifest(plan, Rules(RUBRIC, reward="adr"), "m", "scripted"),
    ):
        assert other != there


def test_start_levels_are_checked_before_anything_is_played():
    scenarios = load_scenarios("builtin:test")[:2]
    good = {i.key: 1 for i in RUBRIC.indicators}
    assert empa.EmpaPlan(scenarios, start_levels={s.id: good for s in scenarios}).check(RUBRIC) == []
    told = empa.EmpaPlan(scenarios, start_levels={"nobody": good}).check(RUBRIC)
    assert "name none of the chosen scenarios" in told[-1] and len(told) == 3
    with pytest.raises(InputError, match=f"start levels of {scenarios[0].id}"):
        empa.EmpaPlan(scenarios, start_levels={scenarios[0].id: {"C.1": 9}}).check(RUBRIC)


def test_a_dialogue_broken_by_bad_answers_can_be_healed(tmp_path):
    """What a mended model would answer is asked for anew: the recorded bad answers are not used again."""
    bare = replace(load_scenarios("builtin:test")[0], start_levels={})
    plan, rules = empa.EmpaPlan([bare]), Rules(RUBRIC, max_turns=2, min_turns=2)
    broken = True

    def answer(body):
        return "no form" if broken and body["model"] == "judge" else world()(body)

    def attempt(server, resume):
        kept = empa.prepare(tmp_path / "run", {"a": 1}, resume=resume)
        claim(tmp_path / "run", {"a": 1})
        cache = Cache(tmp_path / "run" / "cache.sqlite")
        chats = over_http(server.base_url, cache=cache)
        casting = model_cast(chats["user"], chats["director"], chats["judge"], RUBRIC)

        async def go():
            played = await empa.run(
                tmp_path / "run", plan, lambda job: chats["policy"], casting, rules, previous=kept
            )
            for chat in chats.values():
                await chat.aclose()
            return played

        try:
            return asyncio.run(go())
        finally:
            cache.close()

    with LoopbackServer(answer) as server:
        assert "no usable answer" in attempt(server, False)[0].error
        broken = False
        assert attempt(server, True)[0].error is None
    [found] = read_folders(tmp_path / "run")
    assert len(found.results) == 1 and not found.broken  # the attempt that broke no longer counts


@pytest.mark.parametrize("concurrency", [3, 12])
def test_a_run_stopped_by_its_judge_goes_on_when_the_judge_is_repaired(tmp_path, concurrency):
    """The recorded bad answers in the dialogues that were in play would stop it again."""
    plan, rules = empa.EmpaPlan(load_scenarios("builtin:test")[:12]), Rules(RUBRIC, min_turns=8, max_turns=8)
    broken = True

    def answer(body):
        return "no form" if broken and body["model"] == "judge" else world()(body)

    def attempt(server, at_once):
        cache = Cache(tmp_path / "cache.sqlite")
        chats = over_http(server.base_url, cache=cache)
        casting = model_cast(chats["user"], chats["director"], chats["judge"], RUBRIC)
        kept = empa.read_previous(tmp_path)

        async def go():
            try:
                return await empa.run(
                    tmp_path,
                    plan,
                    lambda job: chats["policy"],
                    casting,
                    rules,
                    previous=kept,
                    concurrency=at_once,
                )
            finally:
                for chat in chats.values():
                    await chat.aclose()

        try:
            return asyncio.run(go())
        finally:
            cache.close()

    with LoopbackServer(answer) as server:
        with pytest.raises(JudgeError):
            attempt(server, concurrency)
        broken = False
        played = attempt(server, 12)
    assert [dialogue.judged for dialogue in played] == [True] * 12


class DeadJudge:
    async def judge(self, turns):
        raise AnswerError("never in form")


def evaluate(out, scenarios, unjudged, **kw):
    """Play the scenarios that `out` lacks, six turns each. The judge is dead in those of `unjudged`."""

    def casting(job):
        cast = scripted_cast("empathy")(job)
        return replace(cast, judge=DeadJudge()) if job.scenario in unjudged else cast

    plan, rules = empa.EmpaPlan(scenarios), Rules(RUBRIC, min_turns=6, max_turns=6)
    policy, previous = scripted_policy("empathy", "honest"), empa.read_previous(out)
    return asyncio.run(empa.run(out, plan, policy, casting, rules, previous=previous, **kw))


def test_unjudged_dialogues_of_an_earlier_call_count_for_a_dead_judge(tmp_path):
    scenarios, turns = load_scenarios("builtin:test")[:12], []
    evaluate(tmp_path, scenarios[:6], scenarios[3:6])  # half of 36 turns: as many as a run may have
    with pytest.raises(JudgeError, match="failed on 22 of 40 turns"):
        evaluate(tmp_path, scenarios, scenarios, on_turn=turns.append)
    assert len(turns) == 4


def test_a_scenario_that_is_never_judged_does_not_stop_the_run_however_often_it_is_resumed(tmp_path):
    scenarios = load_scenarios("builtin:test")[:6]
    for _ in range(10):
        played = evaluate(tmp_path, scenarios, scenarios[:1])
    assert [dialogue.judged for dialogue in played] == [True] * 5 + [False]


def test_a_failed_attempt_no_longer_counts_when_its_dialogue_is_judged(tmp_path):
    scenarios = load_scenarios("builtin:test")[:12]
    evaluate(tmp_path, scenarios[:6], scenarios[3:6])
    evaluate(tmp_path, scenarios[:6], ())
    # 36 judged turns, then 36 unscored ones: half, though 18 more failed before
    assert sum(dialogue.judged for dialogue in evaluate(tmp_path, scenarios, scenarios[6:])) == 6


def test_missing_empa_files_are_made_on_resume(tmp_path):
    plan, rules = empa.EmpaPlan(load_scenarios("builtin:test")[:2]), Rules(RUBRIC)
    policy, casting = scripted_policy("empathy", "honest"), scripted_cast("empathy")
    asyncio.run(empa.run(tmp_path, plan, policy, casting, rules))
    files = sorted((tmp_path / "empa").rglob("*.json"))
    files[0].unlink()
    done = list(read_dialogues(RunDir(tmp_path).empa_dialogues))
    kept = empa.PreviousDialogues(done, [], [])
    asyncio.run(empa.run(tmp_path, plan, policy, casting, rules, previous=kept))
    assert sorted((tmp_path / "empa").rglob("*.json")) == files


def test_repeats_are_siblings_with_seeds_of_their_own():
    jobs = empa.EmpaPlan(load_scenarios("builtin:test")[:2], repeats=2, seed=7).jobs()
    assert len({j.id for j in jobs}) == 4 and len({j.seed for j in jobs}) == 2
    assert [j.group for j in jobs] == [j.scenario.id for j in jobs]
