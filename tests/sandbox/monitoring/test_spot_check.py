"""The second judge: which turns it is asked about, and that the dialogue does not notice it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from mapo import Reply, Rubric
from mapo.errors import AnswerError, EndpointError, StoreError
from mapo.models.chat import Answer
from mapo.records import decode_dialogue, encode_dialogue
from mapo.sandbox.cast import Cast, Job
from mapo.sandbox.monitoring.spot_check import SpotCheck, is_checked, with_check
from mapo.sandbox.panel import NamedJudge
from mapo.sandbox.rollout import Rules, play, play_all
from mapo.scenarios.scenario import Persona, Scenario
from mapo.types import Direction, Turn
from support.builders import marks

RUBRIC = Rubric.load("empathy")
SCENARIO = Scenario(
    "one", Persona("Ada"), "a topic", "first words", start_levels={i.key: 2 for i in RUBRIC.indicators}
)
RULES = Rules(RUBRIC, max_turns=4)


class World:
    """All roles but the second judge."""

    name = "fake"

    async def reply(self, request):
        return Answer(Reply(f"reply {request.turn}"))

    async def speak(self, turns, direction):
        return f"line {len(turns)}"

    async def direct(self, turns, path):
        return Direction("go_on")

    async def judge(self, turns):
        return marks(RUBRIC, 1)


class Second:
    """A second judge that answers, fails or waits."""

    def __init__(self, answer=None, wait=None):
        self.answer, self.wait = answer or marks(RUBRIC, 2, -1), wait
        self.asked = 0

    async def judge(self, turns):
        assert turns[-1].levels is None
        self.asked += 1
        if self.wait is not None:
            await self.wait.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def casting(job: Job) -> Cast:
    world = World()
    return Cast(world, world, world, {"user": "u", "director": "d", "judge": "j"})


def checked(second: Second, share: float = 1.0, patience: float = 5.0):
    return with_check(casting, NamedJudge("second", lambda job: second), share, patience)


def played(second: Second, share: float = 1.0, patience: float = 5.0, jobs: int = 1):
    work = [Job(SCENARIO, id=f"d{n}", seed=n) for n in range(jobs)]
    return asyncio.run(play_all(work, lambda job: World(), checked(second, share, patience), RULES))


def without_check(dialogue):
    turns = tuple(replace(turn, check=None, unchecked=None) for turn in dialogue.turns)
    cast = {role: name for role, name in dialogue.cast.items() if role != "check"}
    return replace(dialogue, turns=turns, cast=cast, seconds=None)


def test_the_levels_of_the_second_judge_are_recorded_and_change_nothing_else():
    (dialogue,) = played(Second())
    assert [turn.check for turn in dialogue.turns] == [(2, -1) * 3] * 4
    assert dialogue.cast["check"] == "second"
    (plain,) = asyncio.run(play_all([Job(SCENARIO, id="d0")], lambda job: World(), casting, RULES))
    assert without_check(dialogue) == replace(plain, seconds=None)
    assert decode_dialogue(encode_dialogue(dialogue)) == dialogue
    assert b"check" not in encode_dialogue(plain)


def test_play_collects_the_checks_too():
    job = Job(SCENARIO, id="d")
    dialogue = asyncio.run(play(job, World(), checked(Second())(job), RULES))
    assert all(turn.check for turn in dialogue.turns)


@pytest.mark.parametrize("error", [AnswerError("no form"), EndpointError("gone"), ValueError("no form")])
def test_a_check_that_fails_leaves_its_reason(error):
    (dialogue,) = played(Second(error))
    assert dialogue.usable
    assert [turn.check for turn in dialogue.turns] == [None] * 4
    assert all("no form" in turn.unchecked or "gone" in turn.unchecked for turn in dialogue.turns)


def test_the_share_is_that_of_turns_and_always_the_same_ones():
    chosen = [is_checked(f"t{n}", turn, 0.1) for n in range(2000) for turn in range(1, 11)]
    assert sum(chosen) / len(chosen) == pytest.approx(0.1, abs=0.01)
    dialogues = played(Second(), share=0.25, jobs=40)
    assert [d.turns[t].check is not None for d in dialogues for t in range(4)] == [
        is_checked(f"d{n}/{n}", t + 1, 0.25) for n in range(40) for t in range(4)
    ]


def test_dialogues_go_on_while_the_second_judge_is_silent():
    """With one slot, all dialogues are finished before any check is answered."""

    async def run():
        wait, replies = asyncio.Event(), []
        second = Second(wait=wait)

        class Counting(World):
            async def reply(self, request):
                replies.append(request.session)
                if len(replies) == 12:
                    wait.set()
                return await super().reply(request)

        work = [Job(SCENARIO, id=f"d{n}", seed=n) for n in range(3)]
        return await play_all(work, lambda job: Counting(), checked(second), RULES, concurrency=1)

    dialogues = asyncio.run(run())
    assert all(turn.check is not None for d in dialogues for turn in d.turns)


def test_a_second_judge_that_never_answers_is_not_waited_for_long():
    async def run():
        check = SpotCheck(Second(wait=asyncio.Event()), "s", 1.0, patience=0.01)
        check.begin([Turn("hello", Reply("hi"))])
        return await check.answers()

    assert asyncio.run(run()) == {0: "no answer within 0.01 s of the end of the dialogue"}


def test_an_error_that_ends_the_run_cancels_the_checks():
    async def run():
        second = Second(wait=asyncio.Event())

        class Full(World):
            async def speak(self, turns, direction):
                await asyncio.sleep(0)
                raise StoreError("the disk is full")

        def broken(job):
            return replace(checked(second)(job), user=Full())

        with pytest.raises(StoreError):
            await play_all([Job(SCENARIO, id="d")], lambda job: World(), broken, RULES)
        await asyncio.sleep(0)
        assert second.asked == 1
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert asyncio.run(run()) == []


def test_a_broken_dialogue_keeps_its_checks():
    class Rude(World):
        async def speak(self, turns, direction):
            raise AnswerError("silence")

    def broken(job):
        return replace(checked(Second())(job), user=Rude())

    (dialogue,) = asyncio.run(play_all([Job(SCENARIO, id="d")], lambda job: World(), broken, RULES))
    assert not dialogue.usable
    assert dialogue.turns[0].check is not None
