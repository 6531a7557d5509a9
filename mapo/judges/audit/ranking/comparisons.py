"""What a ranking judge is asked in an audit: recorded siblings side by side, in several orders and modified.

A comparison is one turn of several dialogues of the same scenario: siblings where the runs have them,
otherwise dialogues of different runs. One of its replies, the target, is modified by probes.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mapo.errors import AnswerError, ContextError, InputError
from mapo.judges.audit.probes import PROBES, unchanged_input
from mapo.judges.sample import RecordedTurn, Recording
from mapo.models.chat import Chat, Sampling
from mapo.sandbox.ranking import MAX_SIBLINGS, ModelRanker, excerpt, shuffled
from mapo.types import Turn

UNCHANGED, AGAIN, BROKEN = "plain", "again", "broken"
"""The replies as recorded, in another order each time; the first order once more; the target's words
shuffled."""
RISES = tuple(probe.name for probe in PROBES.values() if probe.kind == "rise")
"""Probes that add something worthless to the target."""
FEWEST_WORDS = 4


@dataclass(frozen=True, slots=True)
class Comparison:
    """One turn of several dialogues of a scenario; `target` is the index of the one that probes modify."""

    name: str
    turns: tuple[RecordedTurn, ...]
    target: int
    variant: int

    @property
    def group(self) -> str:
        """What comparisons of the same dialogues share, the unit that is resampled."""
        return self.name.rpartition("@")[0]

    @property
    def movements(self) -> list[float | None]:
        """The recorded movement of each reply, None where no levels were recorded."""
        return [
            None if (levels := turn.history[-1].levels) is None else sum(turn.recording.rubric.step(levels))
            for turn in self.turns
        ]


@dataclass(frozen=True, slots=True)
class RankQuestion:
    """The `repeat`-th request to `judge` to rank a comparison, unchanged or with its target modified."""

    judge: str
    comparison: Comparison
    probe: str = UNCHANGED
    repeat: int = 0

    @property
    def id(self) -> str:
        """Unique name; the id of the answer's line in items.jsonl."""
        return f"{self.judge}|{self.comparison.name}|{self.probe}|{self.repeat}"

    @property
    def order(self) -> list[int]:
        """The order in which the replies are shown. Modified ones have the first order of the unmodified."""
        repeat = self.repeat if self.probe == UNCHANGED else 0
        return shuffled(len(self.comparison.turns), f"{self.comparison.name}/{repeat}")

    def histories(self) -> list[Sequence[Turn]] | None:
        """Return the dialogues to show; None if the probe does not apply to the target."""
        histories: list[Sequence[Turn]] = [turn.history for turn in self.comparison.turns]
        at = self.comparison.target
        if self.probe == BROKEN:
            broken = _broken(histories[at], self.comparison.name)
            if broken is None:
                return None
            histories[at] = broken
        elif self.probe in PROBES:
            shown = unchanged_input(self.comparison.turns[at])
            changed = PROBES[self.probe].change(shown, self.comparison.variant)
            if changed is None:
                return None
            histories[at] = changed.turns
        return histories


def _broken(history: Sequence[Turn], seed: str) -> list[Turn] | None:
    """Return the history with the words of its last reply (or characters, without spaces) in random order."""
    *before, last = history
    words, space = last.reply.text.split(), " "
    if len(words) < FEWEST_WORDS:
        words, space = list(last.reply.text), ""
    if len(words) < FEWEST_WORDS:
        return None
    text = space.join(words[at] for at in shuffled(len(words), seed))
    return [*before, replace(last, reply=replace(last.reply, text=text))]


def choose_comparisons(recordings: Sequence[Recording], n: int, seed: int = 0) -> list[Comparison]:
    """Draw `n` comparisons, from as many groups as possible. Raise InputError if no two dialogues can be
    compared."""
    groups = _groups(recordings, lambda recording: recording.group)
    if not groups:
        groups = _groups(recordings, lambda recording: recording.scenario.id)
    if not groups:
        raise InputError(
            "no scenario has two dialogues to compare",
            fix="Give runs with several dialogues per scenario, or several runs of the same scenarios",
        )
    rng = random.Random(f"{seed}/comparisons")  # noqa: S311 (sampling, not security)
    queues = [rng.sample(numbers := _numbers(members), len(numbers)) for members in groups.values()]
    chosen: list[Comparison] = []
    depth = 0
    while len(chosen) < n and any(len(queue) > depth for queue in queues):
        for (name, members), queue in zip(groups.items(), queues, strict=True):
            if depth < len(queue) and len(chosen) < n:
                turns = _distinct(members, queue[depth])
                if len(turns) > 1:
                    at = len(chosen)
                    chosen.append(Comparison(f"{name}@{queue[depth]}", turns, at % len(turns), at))
        depth += 1
    if not chosen:
        raise InputError("all replies that could be compared are equal", fix="Give other runs")
    return chosen


def _groups(recordings: Sequence[Recording], key: Callable[[Recording], str]) -> dict[str, list[Recording]]:
    groups: dict[str, list[Recording]] = {}
    for recording in recordings:
        groups.setdefault(key(recording), []).append(recording)
    return {name: members[:MAX_SIBLINGS] for name, members in groups.items() if len(members) > 1}


def _numbers(members: Sequence[Recording]) -> list[int]:
    """Return the turns that at least two of the dialogues have."""
    lengths = sorted((len(member.dialogue.turns) for member in members), reverse=True)
    return list(range(1, lengths[1] + 1))


def _distinct(members: Sequence[Recording], number: int) -> tuple[RecordedTurn, ...]:
    """Return this turn of the dialogues that have it, each text once."""
    turns = [RecordedTurn(m, number) for m in members if len(m.dialogue.turns) >= number]
    return tuple({excerpt(turn.history, turn.recording.scenario): turn for turn in turns}.values())


def rank_questions(
    judges: Sequence[str], comparisons: Sequence[Comparison], repeats: int
) -> list[RankQuestion]:
    """Return every question of an audit."""
    return [
        question
        for judge in judges
        for each in comparisons
        for question in (
            *(RankQuestion(judge, each, repeat=n) for n in range(repeats)),
            *(RankQuestion(judge, each, probe) for probe in (AGAIN, BROKEN, *RISES)),
        )
    ]


def rank_solver(
    chats: Mapping[str, tuple[Chat, Sampling]],
) -> Callable[[RankQuestion, int], Awaitable[dict[str, Any]]]:
    """Return the function that the item runner calls for each question."""

    async def solve(question: RankQuestion, attempt: int) -> dict[str, Any]:
        histories = question.histories()
        if histories is None:
            return {"skipped": "no variant of this reply"}
        chat, sampling = chats[question.judge]
        recording = question.comparison.turns[0].recording
        ranker = ModelRanker(chat, recording.scenario, recording.rubric, sampling)
        name = f"audit/{question.id}" + (f"/{attempt}" if attempt else "")
        order = question.order
        try:
            scores = await ranker.ordered_scores([histories[at] for at in order], name)
        except (AnswerError, ContextError) as problem:
            return {"unscored": str(problem)}
        by_reply = dict(zip(order, scores, strict=True))
        return {"scores": [by_reply[at] for at in range(len(order))]}

    return solve
