"""Checks of simulated users, computed from recorded dialogues without a model.

A policy learns the faults of the users it is trained with: users who repeat themselves, speak like an
assistant, change the language, contradict their persona, reveal the story early, or thank the policy for any
reply. Each fault is counted by patterns (`mapo.sandbox.faults`). `findings.py` compares the numbers with
their usual range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mapo.sandbox.faults.manners import script_of, sentences, shingles, speaks_as_assistant, warm
from mapo.sandbox.faults.story import Story
from mapo.scenarios.scenario import Scenario
from mapo.types import Dialogue, Levels, Turn

Mood = Literal["good", "mixed", "nothing", "harm", ""]
"""The effect of a reply according to the judge; "" for an unscored turn."""


@dataclass(frozen=True, slots=True)
class UserLines:
    """The user's lines of one dialogue and the judged effect of each reply (`moods`)."""

    scenario: str
    lines: Sequence[str]
    moods: Sequence[Mood]
    ending: str
    early: int = 0
    """Lines that reveal a later stage, out of `placed` lines for which that is known."""
    placed: int = 0
    contradicted: int = 0
    """Lines that contradict the persona, out of `known` lines for which that is known."""
    known: int = 0
    incomplete: int = 0
    """Turns for which a panel member failed, out of `panelled` turns judged by a panel."""
    panelled: int = 0
    scripted: bool = False
    """Whether the user is scripted."""


@dataclass(frozen=True, slots=True)
class Health:
    """Shares of the user's lines unless stated otherwise; None if there is nothing to count."""

    dialogues: int
    lines: int
    repeated: float | None
    """Sentences that occur earlier in the same dialogue."""
    shared: float | None
    """Five-word sequences that users of other scenarios use too."""
    as_assistant: float | None
    other_language: float | None
    told_early: float | None
    """Lines with a detail of a stage that was not reached yet, in scenarios that list such details."""
    off_persona: float | None
    """Lines that contradict the persona's age, name or relatives."""
    warm_after_miss: float | None
    """Lines that thank, agree or feel better, of those after an unhelpful or harmful reply."""
    warm_after_good: float | None
    misses: int
    """Lines after an unhelpful or harmful reply."""
    unscored: float | None
    """Unscored turns."""
    incomplete: float | None
    """Turns for which at least one panel member failed."""
    endings: dict[str, int] = field(default_factory=dict)
    scripted: bool = False
    """Whether all users are scripted."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def health(dialogues: Iterable[Dialogue], scenarios: Mapping[str, Scenario] | None = None) -> Health:
    """Return the health of the dialogues that did not break. `scenarios` (by id) enables the checks that need
    the story and the persona."""
    usable = [d for d in dialogues if d.usable and d.turns]
    return health_of([_user_lines(d, (scenarios or {}).get(d.scenario)) for d in usable])


def health_of(dialogues: Sequence[UserLines]) -> Health:
    """Return the health of dialogues from any source."""
    lines = [line for d in dialogues for line in d.lines]
    repeats = Counter[str]()
    for d in dialogues:
        repeats.update(_repeats(d.lines))
    after = {mood: [w for d in dialogues for w in _after(d, mood)] for mood in ("harm", "nothing", "good")}
    cold = [*after["harm"], *after["nothing"]]
    moods = [mood for d in dialogues for mood in d.moods]
    return Health(
        dialogues=len(dialogues),
        lines=len(lines),
        repeated=_share(repeats["again"], repeats["all"]),
        shared=_shared(dialogues),
        as_assistant=_share(sum(map(speaks_as_assistant, lines)), len(lines)),
        other_language=_other_language(dialogues),
        told_early=_share(sum(d.early for d in dialogues), sum(d.placed for d in dialogues)),
        off_persona=_share(sum(d.contradicted for d in dialogues), sum(d.known for d in dialogues)),
        warm_after_miss=_share(sum(cold), len(cold)),
        warm_after_good=_share(sum(after["good"]), len(after["good"])),
        misses=len(cold),
        unscored=_share(moods.count(""), len(moods)),
        incomplete=_share(sum(d.incomplete for d in dialogues), sum(d.panelled for d in dialogues)),
        endings=dict(Counter(d.ending for d in dialogues).most_common()),
        scripted=bool(dialogues) and all(d.scripted for d in dialogues),
    )


def _user_lines(d: Dialogue, scenario: Scenario | None) -> UserLines:
    story = Story(scenario) if scenario else None
    early, placed = _early(d.turns, story) if story else (0, 0)
    ending = d.ending.reason.value if d.ending else "unfinished"
    panels = [turn.panel for turn in d.turns if turn.panel]
    return UserLines(
        d.scenario,
        [turn.user for turn in d.turns],
        [mood_of(turn.levels) for turn in d.turns],
        ending,
        early,
        placed,
        contradicted=sum(story.contradicted_by(turn.user) for turn in d.turns) if story else 0,
        known=len(d.turns) if scenario else 0,
        incomplete=sum(not all(panel.values()) for panel in panels),
        panelled=len(panels),
        scripted=d.cast.get("user") == "scripted",
    )


def mood_of(levels: Levels | None) -> Mood:
    """Return the effect of a reply: whether any axis moved forward or back."""
    if levels is None:
        return ""
    up = any(m.progress.level > 0 for m in levels.values())
    down = any(m.regression.level < 0 for m in levels.values())
    return "mixed" if up and down else "good" if up else "harm" if down else "nothing"


def _early(turns: Sequence[Turn], story: Story) -> tuple[int, int]:
    """Count lines with a detail that belongs only to later stages, and lines that could have held one."""
    early = placed = revealed = 0
    for turn in turns:
        revealed += turn.direction is not None and turn.direction.act == "reveal_stage"
        placed += bool(story.later_details(revealed))
        early += story.told_early(turn.user, revealed)
    return early, placed


def _repeats(lines: Sequence[str]) -> dict[str, int]:
    all_sentences = [s for line in lines for s in sentences(line)]
    return {"all": len(all_sentences), "again": len(all_sentences) - len(set(all_sentences))}


def _shared(dialogues: Sequence[UserLines]) -> float | None:
    """Return the mean share of word sequences that also occur in a dialogue of another scenario."""
    sequences = [set().union(*map(shingles, d.lines)) for d in dialogues]
    scenarios: dict[tuple[str, ...], set[str]] = {}
    for d, own_sequences in zip(dialogues, sequences, strict=True):
        for sequence in own_sequences:
            scenarios.setdefault(sequence, set()).add(d.scenario)
    shares = [sum(len(scenarios[s]) > 1 for s in each) / len(each) for each in sequences if each]
    several = len({d.scenario for d in dialogues}) > 1
    return sum(shares) / len(shares) if shares and several else None


def _other_language(dialogues: Sequence[UserLines]) -> float | None:
    """Return the share of lines in another script than the opening line."""
    other = known = 0
    for d in dialogues:
        first = script_of(d.lines[0]) if d.lines else ""
        later = [script for line in d.lines[1:] if first and (script := script_of(line))]
        known += len(later)
        other += sum(script != first for script in later)
    return _share(other, known)


def _after(dialogue: UserLines, mood: Mood) -> list[bool]:
    """Return for each reply with that effect whether the next line is warm."""
    return [warm(line) for m, line in zip(dialogue.moods, dialogue.lines[1:], strict=False) if m == mood]


def _share(part: int, total: int) -> float | None:
    return part / total if total else None
