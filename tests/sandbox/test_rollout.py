"""play() and play_all(): turn order, endings, breaks, unscored turns, concurrency."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from mapo import Dialogue, Reply, Rubric, StopReason, Trajectory
from mapo.errors import (
    AnswerError,
    ContextError,
    EndpointError,
    InputError,
    JudgeError,
    ScenarioError,
    StoreError,
)
from mapo.measure.reward import REWARDS, rewards_of
from mapo.models.chat import Answer
from mapo.records import decode_dialogue, encode_dialogue
from mapo.sandbox.cast import Cast
from mapo.sandbox.domain import scripted_cast, scripted_policy
from mapo.sandbox.rollout import Job, Rules, play, play_all
from mapo.scenarios.scenario import Persona, Scenario
from mapo.scenarios.sets import load_scenarios
from mapo.scoring.result import recompute
from mapo.types import Direction, Ending, Mark
from support.builders import marks

RUBRIC = Rubric.load("empathy")
START = {i.key: 2 for i in RUBRIC.indicators}
SCENARIO = Scenario("one", Persona("Ada"), "a topic", "first words", start_levels=START, category="career")


class Roles:
    """All roles in one, and a diary of who was called when."""

    name = "fake"

    def __init__(self, levels=None, acts=(), broken=None):
        self.diary: list[str] = []
        self.requests = []
        self.levels = levels or (lambda n: marks(RUBRIC, 2))
        self.acts = list(acts)
        self.broken = broken

    def cast(self, *_):
        return Cast(self, self, self, {"user": "u", "director": "d", "judge": "j"})

    def note(self, who):
        self.diary.append(who)
        if self.broken and self.broken[0] == who and self.diary.count(who) == self.broken[1]:
            raise self.broken[2]

    async def reply(self, request):
        self.note("policy")
        self.requests.append(request)
        return Answer(Reply(f"reply {len(self.requests)}"))

    async def speak(self, turns, direction):
        self.note("user")
        return f"line {len(turns)} after {direction.act}"

    async def direct(self, turns, path):
        self.note("director")
        return Direction(self.acts.pop(0) if self.acts else "go_on")

    async def start(self):
        self.note("start")
        return {key: Mark(level) for key, level in START.items()}

    async def judge(self, turns):
        self.note("judge")
        assert turns[-1].levels is None and all(t.state for t in turns[:-1])
        return self.levels(len(turns))


def run(roles, scenario=SCENARIO, **rules) -> Dialogue:
    return asyncio.run(play(Job(scenario, "d", seed=3), roles, roles.cast(), Rules(RUBRIC, **rules)))


def test_the_reward_potential_uses_gamma_and_the_record_names_it():
    got = run(Roles(), reward="potential", gamma=0.5, max_turns=1, min_turns=1)
    # (-14, -18, -18) -> +3 on each axis: 0.5 * 10 / (10 + ||P_1||) - 10 / (10 + ||P_0||)
    before, after = (sum(x * x for x in p) ** 0.5 for p in ((14, 18, 18), (11, 15, 15)))
    assert got.turns[0].reward == pytest.approx(0.5 * 10 / (10 + after) - 10 / (10 + before))
    assert got.reward == "potential/zone/0.5"
    recorded = recompute(got, Path(), None, RUBRIC, "here")
    assert recorded.differences == []
    assert recompute(replace(got, reward="potential/zone"), Path(), None, RUBRIC, "here").differences


def test_turn_order_and_record():
    roles = Roles()
    got = run(roles)
    assert got.ending is not None and got.ending.reason is StopReason.SUCCESS and len(got.turns) == 12
    assert roles.diary == ["policy", "judge", "director", "user"] * 11 + ["policy", "judge"]
    assert [t.user for t in got.turns[:2]] == ["first words", "line 1 after go_on"]
    assert got.turns[0].direction is None and got.turns[1].direction == Direction("go_on")
    assert got.cast == roles.cast().names and got.tags == {"category": "career"}
    assert (got.model, got.reward, got.group, got.seed, got.error) == ("fake", "idr/zone", "one", 3, None)
    # idr telescopes over the record: D_0 - D_T, D_0 = ||(13, 17, 17)|| for the start (-14, -18, -18)
    gained = sum(t.reward for t in got.turns)
    assert gained == pytest.approx((13**2 + 17**2 + 17**2) ** 0.5 - got.turns[-1].state.distance)


def test_the_policy_sees_the_whole_talk_and_a_system_prompt():
    roles = Roles()
    run(roles, system=lambda s: f"speak {s.language}", temperature=0.3, max_tokens=7)
    third = roles.requests[2]
    assert [m.role for m in third.messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert third.messages[0].content == "speak en" and third.messages[2].content == "reply 1"
    assert (third.temperature, third.max_tokens, third.session) == (0.3, 7, "d/3/policy")
    assert len({r.nonce for r in roles.requests}) == len(roles.requests)


def test_the_judge_fills_in_the_start_form_only_if_nobody_knows():
    unknown = Scenario("two", Persona("Ada"), "a topic", "first words")
    roles = Roles()
    got = run(roles, unknown)
    assert roles.diary[0] == "start" and got.start == RUBRIC.start(START)
    known = Roles()
    job = Job(unknown, "d", start_levels={**START, "C.1": 0})
    got = asyncio.run(play(job, known, known.cast(), Rules(RUBRIC)))
    assert "start" not in known.diary and got.start_levels["C.1"].level == 0


def test_the_director_may_end_it():
    got = run(Roles(acts=["go_on", "end"]))
    assert got.ending is not None and got.ending.reason is StopReason.DIRECTOR and len(got.turns) == 2


@pytest.mark.parametrize("failure", [AnswerError("no form"), EndpointError("gone")])
def test_a_failed_judgement_is_an_unscored_turn(failure):
    got = run(Roles(broken=("judge", 3, failure)))
    turn = got.turns[2]
    assert turn.levels is None and turn.reward is None and turn.unscored == str(failure)
    assert turn.state.step is None and turn.state.position == got.turns[1].state.position
    assert got.error is None and got.turns[3].levels is not None


def test_a_full_context_ends_a_dialogue_but_breaks_one_that_never_began():
    dialogue = run(Roles(broken=("policy", 4, ContextError("full"))))
    assert dialogue.ending.reason is StopReason.LENGTH and dialogue.error is None and len(dialogue.turns) == 3
    dialogue = run(Roles(broken=("policy", 1, ContextError("full"))))
    assert dialogue.ending.reason is StopReason.BROKEN and "full" in dialogue.error


def test_the_full_context_of_a_user_ends_a_dialogue_and_is_not_the_policys():
    dialogue = run(Roles(broken=("user", 2, ContextError("full"))))
    assert dialogue.ending == Ending(StopReason.LENGTH, ("user",))
    assert dialogue.error is None


@pytest.mark.parametrize("broken", [None, ("judge", 2, RuntimeError("bug")), ("user", 1, StoreError("full"))])
def test_a_policy_that_holds_something_is_told_when_its_dialogue_is_over(broken, caplog):
    roles = Roles(broken=broken)
    roles.end_dialogue = lambda: roles.diary.append("closed")
    with contextlib.suppress(StoreError):
        run(roles)
    assert roles.diary[-1] == "closed" and roles.diary.count("closed") == 1


def test_every_reply_has_a_seed_of_its_own_and_the_same_one_again():
    first, again, other = Roles(), Roles(), Roles()
    run(first)
    run(again)
    asyncio.run(play(Job(SCENARIO, "d", seed=1), other, other.cast(), Rules(RUBRIC)))
    seeds = [r.seed for r in first.requests]
    assert len(set(seeds)) == len(seeds) == len({*seeds, *(r.seed for r in other.requests)}) / 2
    assert seeds == [r.seed for r in again.requests]


def test_the_last_judged_turn_is_rewarded_for_the_outcome_though_an_unjudged_one_ended_the_dialogue():
    """The ending is known only after turn 12, which the judge failed on: turn 11 gets the reward."""
    seen = []
    roles = Roles(broken=("judge", 12, AnswerError("no form")))
    rules = Rules(RUBRIC, reward="outcome", min_turns=12)
    item = asyncio.run(play(Job(SCENARIO, "one"), roles, roles.cast(), rules, seen.append))
    assert item.ending.reason is StopReason.SUCCESS
    assert item.rewards == [0.0] * 10 + [1.0, None]
    assert [turn.reward for turn in seen] == [0.0] * 11 + [None]


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("judge_fails_at", [1, 5, 12, 99])
def test_the_rewards_of_a_dialogue_are_those_of_its_trajectory(name, judge_fails_at):
    roles = Roles(broken=("judge", judge_fails_at, AnswerError("no form")))
    item = run(roles, reward=name)
    path = Trajectory(RUBRIC, item.start)
    for turn in item.turns:
        path.judge(turn.levels)
    assert item.rewards == rewards_of(path, name, ending=item.ending)


def test_a_judge_that_returns_nothing_breaks_the_dialogue(caplog):
    class Forgetful(Roles):
        async def judge(self, turns):
            return None

    item = run(Forgetful())
    assert not item.usable and "returned None" in item.error


def test_levels_out_of_range_are_no_judgement():
    got = run(Roles(levels=lambda n: marks(RUBRIC, 7 if n == 2 else 2)))
    assert got.turns[1].levels is None and "level 7 is out of range" in got.turns[1].unscored


@pytest.mark.parametrize("who", ["policy", "director", "user"])
@pytest.mark.parametrize("failure", [EndpointError("gone"), ZeroDivisionError("bug")])
def test_a_broken_dialogue_is_data(who, failure, caplog):
    got = run(Roles(broken=(who, 2, failure)))
    assert got.ending is not None and got.ending.reason is StopReason.BROKEN
    assert str(failure) in got.error and len(got.turns) == (1 if who == "policy" else 2)
    assert all(t.state and t.reward is not None for t in got.turns)
    # what nobody expected is logged with its traceback as well
    assert bool(caplog.records) == isinstance(failure, ZeroDivisionError)


def test_a_start_form_that_fails_breaks_the_dialogue():
    unknown = Scenario("two", Persona("Ada"), "a topic", "first words")
    got = run(Roles(broken=("start", 1, AnswerError("no form"))), unknown)
    assert got.ending is not None and got.ending.reason is StopReason.BROKEN and got.turns == ()


def test_start_levels_that_do_not_fit_break_the_dialogue_and_can_be_recorded():
    roles = Roles()
    job = Job(SCENARIO, "d", start_levels={"C.1": 99})
    got = asyncio.run(play(job, roles, roles.cast(), Rules(RUBRIC)))
    assert "start form" in got.error and got.start_levels == {}
    assert decode_dialogue(encode_dialogue(got)) == got


def all_of(jobs, roles_of, **kw):
    made = {}

    def policy(job):
        return made.setdefault(job.seed, roles_of(job.seed))

    def casting(job):
        return made.setdefault(job.seed, roles_of(job.seed)).cast()

    return asyncio.run(play_all(jobs, policy, casting, Rules(RUBRIC), **kw)), made


def test_siblings_of_a_broken_dialogue_go_on():
    jobs = [Job(SCENARIO, f"d{n}", seed=n) for n in range(5)]
    seen = []
    got, _ = all_of(
        jobs,
        lambda n: Roles(broken=("user", 2, EndpointError("gone")) if n == 2 else None),
        on_done=lambda d: seen.append(d.id),
    )
    assert [d.id for d in got] == ["d0", "d1", "d2", "d3", "d4"] and sorted(seen) == [d.id for d in got]
    assert [d.error is None for d in got] == [True, True, False, True, True]


def test_there_is_no_barrier_between_turns():
    """A slow dialogue does not hold up a fast one: the fast ends while the slow is at its first turn."""
    ended = asyncio.Event()

    class Slow(Roles):
        async def reply(self, request):
            await ended.wait()
            return await super().reply(request)

    jobs = [Job(SCENARIO, "slow", seed=0), Job(SCENARIO, "fast", seed=1)]
    order = []

    def done(dialogue):
        order.append(dialogue.id)
        ended.set()

    all_of(jobs, lambda n: Slow() if n == 0 else Roles(), on_done=done)
    assert order == ["fast", "slow"]


def test_concurrency_is_bounded():
    now, peak = 0, 0

    class Counting(Roles):
        async def reply(self, request):
            nonlocal now, peak
            now += 1
            peak = max(peak, now)
            await asyncio.sleep(0)
            now -= 1
            return await super().reply(request)

    all_of([Job(SCENARIO, f"d{n}", seed=n) for n in range(20)], lambda n: Counting(), concurrency=3)
    assert peak == 3


def test_a_deaf_judge_stops_the_run_at_once():
    kept = []
    jobs = [Job(SCENARIO, f"d{n}", seed=n) for n in range(50)]

    def deaf(n):
        roles = Roles()

        async def judge(turns):
            raise AnswerError("never in form")

        roles.judge = judge
        return roles

    with pytest.raises(JudgeError, match="failed on 40 of 40 turns.*never in form"):
        all_of(jobs, deaf, concurrency=10, on_done=kept.append)
    assert kept == []  # stopped after 40 turns of all dialogues together, before more was spent


def test_turns_of_an_earlier_part_of_the_run_count_for_a_deaf_judge():
    """A resumed run plays only what is missing: one scenario that is never judged must not stop it."""
    before, _ = all_of([Job(SCENARIO, f"d{n}", seed=n) for n in range(30)], lambda n: Roles())

    def deaf(n):
        roles = Roles()

        async def judge(turns):
            raise AnswerError("never in form")

        roles.judge = judge
        return roles

    missing = [Job(SCENARIO, "missing")]
    with pytest.raises(JudgeError):
        all_of(missing, deaf)
    [dialogue], _ = all_of(missing, deaf, before=before)
    assert not dialogue.judged


def test_a_repaired_judge_may_fail_on_a_turn_after_an_earlier_part_that_was_unjudged():
    def failing(fails):
        roles = Roles()

        async def judge(turns):
            if fails(len(turns)):
                raise AnswerError("not in form")
            return marks(RUBRIC, 2)

        roles.judge = judge
        return roles

    before, _ = all_of([Job(SCENARIO, "dead")], lambda n: failing(lambda turn: True), max_unscored=1)
    assert len(before[0].turns) >= 40
    [got], _ = all_of([Job(SCENARIO, "repaired")], lambda n: failing(lambda turn: turn == 3), before=before)
    assert [number for number, turn in enumerate(got.turns, 1) if turn.levels is None] == [3]


def test_a_full_disk_is_no_broken_dialogue():
    """What the disk refuses ends the run: going on would only spend more."""
    roles = Roles(broken=("policy", 2, StoreError("disk full")))
    with pytest.raises(StoreError, match="disk full"):
        run(roles)


def test_a_scenario_its_cast_refuses_breaks_alone():
    def casting(job):
        if job.id == "d1":
            raise ScenarioError("nothing to say")
        return Roles().cast()

    jobs = [Job(SCENARIO, f"d{n}", seed=n) for n in range(3)]
    got = asyncio.run(play_all(jobs, lambda job: Roles(), casting, Rules(RUBRIC)))
    assert [d.error for d in got] == [None, "nothing to say", None]


def test_sessions_tell_siblings_and_steps_apart():
    jobs = [Job(SCENARIO, "d", seed=1), Job(SCENARIO, "d", seed=2), Job(SCENARIO, "d", seed=1, step=4)]
    assert len({job.session for job in jobs}) == 3


def test_an_error_while_keeping_stops_everything():
    def keep(dialogue):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        all_of([Job(SCENARIO, f"d{n}", seed=n) for n in range(3)], lambda n: Roles(), on_done=keep)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("<think>be kind</think> Hello.", "Hello."),
        ("be kind</think>\nHello.", "Hello."),
        ("<think>never ends", ""),
        ("Hello \ud800.", "Hello \ufffd."),
        ("I think so.", "I think so."),
    ],
)
def test_what_is_said_aloud(raw, said):
    class Thinking(Roles):
        async def reply(self, request):
            return Answer(Reply(raw))

    got = run(Thinking(), max_turns=1, min_turns=1)
    assert got.turns[0].reply.text == said


@pytest.mark.parametrize(
    "kw",
    [
        {"min_turns": 9, "max_turns": 3},
        {"max_turns": 0},
        {"temperature": -1.0},
        {"max_tokens": 0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"reward": "x"},
    ],
)
def test_rules_that_cannot_be_played_by_are_refused(kw):
    with pytest.raises(InputError):
        Rules(RUBRIC, **kw)


def test_jobs_are_checked():
    with pytest.raises(InputError, match="concurrency is 0"):
        all_of([], lambda n: Roles(), concurrency=0)
    with pytest.raises(InputError, match="same id"):
        all_of([Job(SCENARIO, "d")] * 2, lambda n: Roles())


def test_roles_that_never_wait_can_be_cancelled_between_dialogues():
    done, scenarios = [], load_scenarios("builtin:train")[:100]
    jobs = [Job(scenario, scenario.id, seed=0) for scenario in scenarios]
    helper = scripted_policy("empathy", "silent")

    async def cancelled():
        def policy(job):
            if job.id == jobs[5].id:
                asyncio.get_running_loop().call_soon_threadsafe(task.cancel)  # as a signal handler does
            return helper(job)

        task = asyncio.ensure_future(
            play_all(
                jobs, policy, scripted_cast("empathy"), Rules(RUBRIC), concurrency=4, on_done=done.append
            )
        )
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert 0 < len(done) < 20
