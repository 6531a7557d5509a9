"""Several judges as one: medians, quorum, whose turn it is, and what the record says of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo.errors import AnswerError, EndpointError, InputError
from mapo.measure.rubric import Rubric
from mapo.models.chat import Sampling
from mapo.players.session import ModelSession
from mapo.players.spec import ModelSpec, PanelSpec
from mapo.records import decode_dialogue, encode_dialogue
from mapo.sandbox.cast import Job
from mapo.sandbox.model_cast import model_cast
from mapo.sandbox.panel import (
    NamedJudge,
    PanelJudge,
    alternating,
    median_mark,
    model_judge,
    panel,
    unique_names,
    with_judges,
)
from mapo.sandbox.rollout import Rules, play
from mapo.testing.server import LoopbackServer
from mapo.types import Mark
from support.roles import Told, boat_shed, start_form, turn_form, turns_of

EMPATHY = Rubric.load("empathy")
SCENARIO = boat_shed()
TURNS = turns_of(("hey", "hello"))


class Fixed:
    """A judge that gives one level everywhere, or fails."""

    def __init__(self, up: int = 0, down: int = 0, fails: Exception | None = None) -> None:
        self.up, self.down, self.fails = up, down, fails

    async def start(self):
        if self.fails:
            raise self.fails
        return {item.key: Mark(self.up, "e", f"by {self.up}") for item in EMPATHY.indicators}

    async def judge(self, turns):
        if self.fails:
            raise self.fails
        form = EMPATHY.levels(**dict.fromkeys(EMPATHY.keys, (self.up, self.down)))
        return {
            key: replace(marks, progress=Mark(self.up, "e", f"by {self.up}")) for key, marks in form.items()
        }


def judged(*members):
    judge = PanelJudge({f"j{n}": member for n, member in enumerate(members)})
    return judge, asyncio.run(judge.judge(TURNS))


@given(st.lists(st.integers(-2, 2), min_size=2, max_size=7))
def test_a_panel_gives_the_median_rounded_towards_nothing(levels):
    found = median_mark([Mark(level, reason=str(level)) for level in levels])
    exact = median(levels)
    assert found.level == int(exact) and abs(found.level) <= abs(exact)
    assert abs(int(found.reason) - found.level) == min(abs(level - found.level) for level in levels)


def test_one_member_who_is_off_moves_nothing():
    judge, levels = judged(Fixed(1), Fixed(1, -1), Fixed(2, -2))
    assert all((m.progress.level, m.regression.level) == (1, -1) for m in levels.values())
    assert levels["C"].progress.reason == "by 1"
    assert list(judge.forms) == ["j0", "j1", "j2"]


def test_the_start_form_is_a_median_too():
    judge = PanelJudge({"a": Fixed(0), "b": Fixed(2), "c": Fixed(3)})
    assert {mark.level for mark in asyncio.run(judge.start()).values()} == {2}


@pytest.mark.parametrize("problem", [AnswerError("no form"), EndpointError("down"), InputError("odd")])
def test_a_member_that_fails_is_left_out_while_more_than_half_answer(problem):
    judge, levels = judged(Fixed(1), Fixed(fails=problem), Fixed(2))
    assert levels["A"].progress.level in (1, 2) and judge.forms["j1"] is None
    with pytest.raises(AnswerError, match=r"1 of 2 judges of the panel answered \(j1: "):
        judged(Fixed(1), Fixed(fails=problem))
    with pytest.raises(AnswerError, match="0 of 2"):
        asyncio.run(PanelJudge({"a": Fixed(fails=problem), "b": Fixed(fails=problem)}).start())


def test_what_no_judge_should_raise_passes_through():
    with pytest.raises(ZeroDivisionError):
        judged(Fixed(1), Fixed(fails=ZeroDivisionError()), Fixed(1))


def test_after_a_failure_nobodys_old_form_is_left():
    first = Fixed(1)
    judge = PanelJudge({"a": first, "b": Fixed(1)})
    asyncio.run(judge.judge(TURNS))
    first.fails = AnswerError("gone")
    with pytest.raises(AnswerError):
        asyncio.run(judge.judge(TURNS))
    assert judge.forms["a"] is None


def test_panels_that_cannot_be_meant_are_refused():
    member = NamedJudge("a", lambda _: Fixed())
    with pytest.raises(InputError, match="fewer than two"):
        PanelJudge({"a": Fixed()})
    with pytest.raises(InputError, match="the same name"):
        panel([member, member])
    for judges, way in (([member], "vote"), ([], "panel")):
        with pytest.raises(InputError, match="judg"):
            with_judges(model_cast(Told(""), Told(""), Told(""), EMPATHY), judges, way)
    assert unique_names(["a", "b", "a", "a"]) == ["a", "b", "a #2", "a #3"]


def play_with(casting, turns=2, **kw):
    job = Job(SCENARIO, "d", **kw)
    rules = Rules(EMPATHY, min_turns=turns, max_turns=turns)
    return asyncio.run(play(job, Told("Mm."), casting(job), rules))


def models(*answers, way="panel", sampling=None):
    chats = [Told(*(answer if isinstance(answer, tuple) else (answer,))) for answer in answers]
    base = model_cast(Told("Well, yes."), Told('{"act": "go_on"}'), chats[0], EMPATHY)
    names = unique_names([f"m{n}" for n in range(len(chats))])
    judges = [model_judge(c, EMPATHY, sampling or Sampling(), n) for c, n in zip(chats, names, strict=True)]
    return chats, with_judges(base, judges, way)


def test_the_record_says_who_judged_each_turn_and_what_each_gave():
    deaf = ("no", "no", "no", turn_form(EMPATHY, 2, -2))
    chats, casting = models(turn_form(EMPATHY, 1), turn_form(EMPATHY, 2), deaf)
    dialogue = play_with(casting)
    assert dialogue.cast["judge"] == "panel of m0, m1, m2"
    first, second = dialogue.turns
    assert first.panel == {"m0": (1, 0) * 3, "m1": (2, 0) * 3, "m2": ()}
    assert second.panel == {"m0": (1, 0) * 3, "m1": (2, 0) * 3, "m2": (2, -2) * 3}
    assert second.levels["C"].progress.level == 2 and second.levels["C"].regression.level == 0
    assert decode_dialogue(encode_dialogue(dialogue)) == dialogue
    assert {r.nonce for r in chats[0].requests} == {"d/0/m0/judge"}


def test_a_panel_without_a_quorum_leaves_the_turn_unscored():
    _, casting = models(turn_form(EMPATHY, 1), EndpointError("down"))
    dialogue = play_with(casting)
    assert all(t.levels is None and "1 of 2 judges" in t.unscored for t in dialogue.turns)
    assert all(t.panel == {"m0": (1, 0) * 3, "m1": ()} for t in dialogue.turns)


@pytest.mark.parametrize(("low", "high"), [(1, 2), (-2, -1)])
def test_a_panel_that_lost_a_member_is_neither_milder_nor_harsher(low, high):
    """Between two levels either is taken as often; always towards 0, failures alone would move the mean."""
    side = "progress" if high > 0 else "regression"
    given = [(low, 0), (high, 0)] if high > 0 else [(0, low), (0, high)]
    found = []
    for n in range(200):
        judge = PanelJudge(
            {"a": Fixed(*given[0]), "b": Fixed(fails=AnswerError("no")), "c": Fixed(*given[1])}
        )
        levels = asyncio.run(judge.judge(turns_of(("hey", f"reply {n}"))))
        assert levels == asyncio.run(judge.judge(turns_of(("hey", f"reply {n}"))))  # and always the same
        found += [getattr(marks, side).level for marks in levels.values()]
    assert set(found) == {low, high} and abs(sum(found) / len(found) - (low + high) / 2) < 0.08


def test_where_siblings_are_compared_all_members_must_answer():
    deaf = Fixed(fails=AnswerError("no form"))
    judge = PanelJudge({"a": Fixed(1), "b": deaf, "c": Fixed(1)}, require_all=True)
    with pytest.raises(AnswerError, match="2 of 3 judges"):
        asyncio.run(judge.judge(TURNS))
    assert judge.forms["b"] is None and judge.forms["a"]
    assert {mark.level for mark in asyncio.run(judge.start()).values()} == {1}
    judges = [
        NamedJudge("a", lambda _: Fixed(1)),
        NamedJudge("b", lambda _: deaf),
        NamedJudge("c", lambda _: Fixed(1)),
    ]
    base = model_cast(Told("Well, yes."), Told('{"act": "go_on"}'), Told(""), EMPATHY)
    for whole in (True, False):
        [turn, *_] = play_with(with_judges(base, judges, require_all=whole)).turns
        assert (turn.levels is None) is whole and turn.panel["b"] == ()


def test_a_single_judge_leaves_no_panel_in_the_record():
    dialogue = play_with(model_cast(Told("x y"), Told("{}"), Told(turn_form(EMPATHY, 1)), EMPATHY))
    assert all(turn.panel is None for turn in dialogue.turns)
    assert b'"panel"' not in encode_dialogue(dialogue)


def test_members_are_sampled_as_told_and_start_forms_are_asked_of_all():
    chats, casting = models(
        (start_form(EMPATHY, 1), turn_form(EMPATHY, 1)),
        (start_form(EMPATHY, 3), turn_form(EMPATHY, 1)),
        sampling=Sampling(0.7),
    )
    scenario = replace(SCENARIO, start_levels={})
    job = Job(scenario, "d")
    rules = Rules(EMPATHY, min_turns=1, max_turns=1)
    dialogue = asyncio.run(play(job, Told("Mm."), casting(job), rules))
    assert {mark.level for mark in dialogue.start_levels.values()} == {2}
    assert {r.temperature for chat in chats for r in chat.requests} == {0.7}


def test_one_model_in_three_seats_is_asked_for_three_start_forms(tmp_path):
    """A cache answers all siblings once, but each member for itself."""
    forms = [start_form(EMPATHY, level) for level in (0, 1, 3)]
    with LoopbackServer(lambda _: forms.pop(0)) as server:

        async def starts():
            async with ModelSession(cache=tmp_path / "cache.sqlite") as session:
                who = ModelSpec("a", server.base_url)
                member = panel(await session.judges(PanelSpec((who,) * 3), EMPATHY))
                jobs = [Job(replace(SCENARIO, start_levels={}), f"d{k}", seed=k) for k in range(2)]
                return [await member.create(job).start() for job in jobs]

        first, sibling = asyncio.run(starts())
    assert {mark.level for mark in first.values()} == {1} and sibling == first
    assert server.calls == 3


def test_siblings_share_their_judge_and_all_judges_get_their_turn():
    judges = [NamedJudge(name, lambda _: Fixed()) for name in "abc"]

    def whose(step, scenario, **kw):
        job = Job(replace(SCENARIO, id=scenario), step=step, **{"id": "x", "group": "g", **kw})
        return alternating(judges, job).name

    assert len({whose(3, "s1", id=f"g_{k}", seed=k, attempt=k) for k in range(8)}) == 1
    drawn = Counter(whose(step, f"s{n}") for step in range(30) for n in range(16))
    assert all(480 / 3 * 0.75 < drawn[name] < 480 / 3 * 1.25 for name in "abc")
    assert len({whose(step, "s1") for step in range(20)}) == 3  # a scenario is not left to one judge


def test_alternating_judges_sit_one_at_a_time():
    chats, casting = models(turn_form(EMPATHY, 1), turn_form(EMPATHY, 2), way="alternate")
    seen = {}
    for step in range(1, 9):
        dialogue = play_with(casting, step=step)
        seen[dialogue.cast["judge"]] = dialogue.turns[0].levels["C"].progress.level
        assert dialogue.turns[0].panel is None
    assert seen == {"m0": 1, "m1": 2}
    assert all(chat.requests for chat in chats)
    _, alone = models(turn_form(EMPATHY, 1))
    assert play_with(alone).cast["judge"] == "m0"
