"""Episode: a dialogue played step by step is the dialogue that play() plays."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from mapo import Reply, Rubric, Rules, StopReason
from mapo.errors import EndpointError, InputError, StoreError
from mapo.sandbox.cast import Cast, Job
from mapo.sandbox.domain import scripted_cast, scripted_policy
from mapo.sandbox.episode import Episode
from mapo.sandbox.rollout import play
from mapo.scenarios.sets import load_scenarios

RULES = Rules(Rubric.load("empathy"), max_turns=14)
SCENARIO = load_scenarios("builtin:test")[0]
JOB = Job(SCENARIO, "one", "one", seed=5)
CASTING = scripted_cast("empathy")


async def played(episode, replies):
    """Play an episode with given replies and return its observations."""
    async with episode:
        seen = [await episode.begin()]
        for reply in replies:
            if seen[-1].done:
                break
            seen.append(await episode.step(reply))
    return seen


@pytest.mark.parametrize("reward", ["idr", "adr", "outcome"])
def test_an_episode_is_the_dialogue_that_play_plays(reward):
    async def both():
        rules = replace(RULES, reward=reward)
        known = await play(JOB, scripted_policy("empathy", "honest")(JOB), CASTING(JOB), rules)
        episode = Episode(JOB, CASTING, rules, model=known.model)
        seen = await played(episode, [turn.reply for turn in known.turns])
        return known, episode.dialogue, seen

    known, mine, seen = asyncio.run(both())
    assert len(known.turns) > 3 and replace(mine, seconds=known.seconds) == known
    assert [observation.done for observation in seen] == [False] * len(known.turns) + [True]
    assert [o.reward for o in seen[1:]] == [turn.reward for turn in known.turns]
    assert [o.turn.levels for o in seen[1:]] == [turn.levels for turn in known.turns]
    assert [o.messages[-1].content for o in seen[:-1]] == [turn.user for turn in known.turns]
    assert seen[0].turn is None and seen[-1].messages == ()


def test_many_episodes_run_side_by_side():
    async def many():
        jobs = [Job(SCENARIO, f"d{k}", seed=k) for k in range(8)]
        return await asyncio.gather(
            *(played(Episode(job, CASTING, RULES), ["What happened then?"] * 20) for job in jobs)
        )

    assert all(seen[-1].done for seen in asyncio.run(many()))


def test_a_reply_that_was_cut_off_is_recorded_as_such():
    async def cut():
        episode = Episode(JOB, CASTING, replace(RULES, max_turns=1, min_turns=1))
        await played(episode, [Reply("I see, and", "length")])
        return episode.dialogue

    assert asyncio.run(cut()).turns[0].reply.finish == "length"


def test_a_policy_without_room_ends_the_dialogue():
    async def cut(replies):
        async with Episode(JOB, CASTING, RULES) as episode:
            await episode.begin()
            for reply in replies:
                await episode.step(reply)
            seen = await episode.cut()
        return seen, episode.dialogue

    seen, dialogue = asyncio.run(cut(["I see.", "And then?"]))
    assert seen.done and dialogue.usable and len(dialogue.turns) == 2
    assert dialogue.ending.reason is StopReason.LENGTH
    assert asyncio.run(cut([]))[1].ending.reason is StopReason.BROKEN


def test_steps_outside_a_dialogue_are_refused():
    async def misuse():
        episode = Episode(JOB, CASTING, replace(RULES, max_turns=1, min_turns=1))
        with pytest.raises(InputError, match="not begun"):
            await episode.step("Hello.")
        await episode.begin()
        with pytest.raises(InputError, match="begun already"):
            await episode.begin()
        await episode.step("Hello.")
        with pytest.raises(InputError, match="has ended"):
            await episode.step("Hello again.")
        await episode.close()

    asyncio.run(misuse())


def test_a_reply_to_an_unseen_message_is_refused():
    """Two steps at once, or a step after one that was cancelled, would give a reply to the wrong message."""

    def slow(job):
        cast = CASTING(job)

        class Slow:
            async def direct(self, turns, trajectory):
                started.set()
                await finish.wait()
                return await cast.director.direct(turns, trajectory)

        return replace(cast, director=Slow())

    async def misuse():
        async with asyncio.timeout(30), Episode(JOB, slow, RULES) as episode:
            await episode.begin()
            step = asyncio.create_task(episode.step("And then?"))
            await started.wait()
            with pytest.raises(InputError, match="the last call has not ended"):
                await episode.step("And then?")
            step.cancel()
            await asyncio.wait((step,))
            finish.set()
            with pytest.raises(InputError, match="or was cancelled"):
                await episode.step("And then?")

    started, finish = asyncio.Event(), asyncio.Event()
    asyncio.run(misuse())


class Judge:
    """A judge that fails in its second judgement."""

    def __init__(self, judge, error):
        self.judge_, self.error, self.calls = judge, error, 0

    async def start(self):
        return await self.judge_.start()

    async def judge(self, turns):
        self.calls += 1
        if self.calls == 2:
            raise self.error
        return await self.judge_.judge(turns)


def failing(error, closed):
    def casting(job):
        cast = CASTING(job)
        return Cast(
            cast.user, cast.director, Judge(cast.judge, error), cast.names, close=lambda: closed.append(1)
        )

    return casting


def test_an_unscored_turn_has_no_reward_and_the_dialogue_goes_on():
    seen = asyncio.run(played(Episode(JOB, failing(EndpointError("down"), []), RULES), ["I see."] * 20))
    assert seen[2].reward is None and seen[2].turn.unscored and seen[3].reward is not None


def test_a_broken_dialogue_ends_with_its_reason(caplog):
    closed = []
    episode = Episode(JOB, failing(RuntimeError("bug"), closed), RULES)
    seen = asyncio.run(played(episode, ["I see."] * 20))
    assert seen[-1].done and seen[-1].turn is None and "bug" in episode.dialogue.error
    assert episode.dialogue.ending.reason is StopReason.BROKEN and closed == [1]


def test_what_must_end_a_run_is_raised():
    with pytest.raises(StoreError, match="full"):
        asyncio.run(played(Episode(JOB, failing(StoreError("disk full"), []), RULES), ["I see."] * 20))


def test_a_dialogue_that_is_given_up_frees_its_roles():
    closed = []

    async def leave():
        async with Episode(JOB, failing(RuntimeError(), closed), RULES) as episode:
            await episode.begin()
        assert episode.dialogue is None and len(asyncio.all_tasks()) == 1

    asyncio.run(leave())
    assert closed == [1]


def test_a_scenario_that_the_cast_rejects_is_reported_at_once():
    def rejects(job):
        raise InputError("no such person", where=job.id)

    with pytest.raises(InputError, match="no such person"):
        asyncio.run(played(Episode(JOB, rejects, RULES), []))
