"""Start forms that the dialogues of a run share."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from mapo.config import load_config
from mapo.errors import AnswerError, StoreError
from mapo.measure.rubric import Rubric
from mapo.players.session import open_cast
from mapo.players.start_forms import StartForms
from mapo.sandbox.cast import Job
from mapo.sandbox.rollout import Rules, play_all
from mapo.scenarios.sets import load_scenarios
from mapo.store import write_once
from mapo.testing.fakes import FakeChat
from mapo.testing.server import LoopbackServer
from mapo.testing.world import world
from mapo.types import Mark

RUBRIC = Rubric.load("empathy")


def form(level=1, evidence=""):
    return {indicator.key: Mark(level, evidence) for indicator in RUBRIC.indicators}


class Asked:
    """A judge that gives another form each time, or fails while `failures` lasts."""

    def __init__(self, failures=0):
        self.calls, self.failures = 0, failures

    async def __call__(self):
        self.calls += 1
        call = self.calls
        await asyncio.sleep(0)
        if call <= self.failures:
            raise AnswerError("no form")
        return form(call % 3, f"line {call}")


def test_siblings_at_the_same_time_share_one_call(tmp_path):
    async def ask():
        forms, judge = StartForms(tmp_path, RUBRIC), Asked()
        return judge, await asyncio.gather(*(forms.get("judge m", "s", judge) for _ in range(4)))

    judge, levels = asyncio.run(ask())
    assert judge.calls == 1
    assert levels == [form(1, "line 1")] * 4


def test_processes_share_the_first_form(tmp_path):
    async def ask():
        one, other = (StartForms(tmp_path, RUBRIC) for _ in range(2))
        # both find no form, and both ask
        together = await asyncio.gather(
            *(f.get("judge m", "s", j) for f, j in ((one, Asked()), (other, late)))
        )
        return *together, await StartForms(tmp_path, RUBRIC).get("judge m", "s", Asked())

    late = Asked()
    late.calls = 1
    first, second, resumed = asyncio.run(ask())
    assert late.calls == 2
    assert first == second == resumed


def test_judges_and_scenarios_have_forms_of_their_own(tmp_path):
    async def ask():
        forms, judge = StartForms(tmp_path, RUBRIC), Asked()
        names = [("judge m", "s"), ("judge m", "t"), ("test judge m", "s")]
        return [await forms.get(*name, judge) for name in names]

    assert [levels["C.1"].level for levels in asyncio.run(ask())] == [1, 2, 0]


def test_a_failure_is_shared_and_not_kept(tmp_path):
    async def ask():
        forms, judge = StartForms(tmp_path, RUBRIC), Asked(failures=1)
        together = [forms.get("judge m", "s", judge) for _ in range(3)]
        failed = await asyncio.gather(*together, return_exceptions=True)
        return failed, await forms.get("judge m", "s", judge), judge.calls

    failed, later, calls = asyncio.run(ask())
    assert [str(error) for error in failed] == ["no form"] * 3
    assert later == form(2, "line 2") and calls == 2


def test_another_dialogue_takes_over_from_one_that_is_stopped(tmp_path):
    async def ask():
        forms, entered = StartForms(tmp_path, RUBRIC), asyncio.Event()

        async def never():
            entered.set()
            await asyncio.Event().wait()

        stopped = asyncio.create_task(forms.get("judge m", "s", never))
        await entered.wait()
        waiting = asyncio.create_task(forms.get("judge m", "s", Asked()))
        await asyncio.sleep(0)
        stopped.cancel()
        return await waiting

    assert asyncio.run(ask()) == form(1, "line 1")


@pytest.mark.parametrize("content", ["{", "[]", '{"levels": {"C.1": 2}}'])
def test_a_damaged_file_stops_the_run(content, tmp_path):
    async def ask():
        await StartForms(tmp_path, RUBRIC).get("judge m", "s", Asked())
        (file,) = tmp_path.iterdir()
        file.write_text(content)
        await StartForms(tmp_path, RUBRIC).get("judge m", "s", Asked())

    with pytest.raises(StoreError, match="the start levels cannot be read"):
        asyncio.run(ask())


def test_what_cannot_be_stored_is_removed_from_the_texts(tmp_path):
    async def odd():
        return form(1, "a\ud800b")

    levels = asyncio.run(StartForms(tmp_path, RUBRIC).get("judge m", "s", odd))
    assert "\ud800" not in levels["C.1"].evidence and levels["C.1"].level == 1


@pytest.mark.parametrize("links", [True, False])
def test_only_the_first_writer_counts(links, tmp_path, monkeypatch):
    if not links:
        monkeypatch.setattr("os.link", refuse)
    write_once(tmp_path / "file", "one")
    write_once(tmp_path / "file", "two")
    assert (tmp_path / "file").read_text() == "one"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def refuse(*_):
    raise PermissionError("no hard links")


def test_the_processes_of_a_run_share_start_levels(tmp_path):
    """With a judge that never gives the same start form twice, each process with a cache of its own."""
    unknown = [replace(s, start_levels={}) for s in load_scenarios("builtin:train")[:2]]

    async def play(url, rank):
        settings = ["roles.agents=llm", f"roles.everyone.base_url={url}"]
        settings += [f"roles.{role}.model={role}" for role in ("user", "director", "judge")]
        rules = Rules(RUBRIC, min_turns=1, max_turns=1)
        jobs = [Job(s, f"{s.id}_{rank}", group=s.id, step=1) for s in unknown]
        async with open_cast(load_config(None, settings), tmp_path, rank, shared_by=2) as (casting, _, _):
            return await play_all(jobs, lambda _: FakeChat(lambda _: "Mm."), casting, rules)

    with LoopbackServer(world(lambda n: n % 3)) as server:
        one, other = (asyncio.run(play(server.base_url, rank)) for rank in (0, 1))
    assert all(dialogue.usable for dialogue in one)
    assert [d.start_levels for d in one] == [d.start_levels for d in other]
    files = [json.loads(file.read_bytes()) for file in (tmp_path / "start_levels").iterdir()]
    assert {file["scenario"] for file in files} == {s.id for s in unknown}


def test_siblings_share_start_levels_though_a_judge_of_the_panel_fails_first(tmp_path):
    """The member cannot be reached for the first sibling, and answers the second, which is played later."""
    [unknown] = [replace(s, start_levels={}) for s in load_scenarios("builtin:train")[:1]]
    failures = iter(["403"])

    def fault(_, body):
        return next(failures, None) if body["model"] == "j3" else None

    def answer(body):
        if body["model"].startswith("j"):
            level = {"j1": 0, "j2": 2, "j3": 2}[body["model"]]  # a median of 1 without the third
            return world(lambda _: level)({**body, "model": "judge"})
        return world()(body)

    async def play(url):
        settings = ["roles.agents=llm", f"roles.everyone.base_url={url}", "roles.everyone.model=user"]
        settings += [
            "roles.director.model=director",
            'roles.judges=[{model="j1"}, {model="j2"}, {model="j3"}]',
        ]
        rules = Rules(RUBRIC, min_turns=1, max_turns=1)
        jobs = [Job(unknown, f"{unknown.id}_{k}", group=unknown.id, step=1) for k in range(4)]
        async with open_cast(load_config(None, settings), tmp_path) as (casting, _, _):
            policy = FakeChat(lambda _: "Mm.")
            return await play_all(jobs, lambda _: policy, casting, rules, concurrency=1)

    with LoopbackServer(answer, fault=fault) as server:
        siblings = asyncio.run(play(server.base_url))
    assert all(dialogue.usable for dialogue in siblings)
    assert all(dialogue.start_levels == siblings[0].start_levels for dialogue in siblings)
