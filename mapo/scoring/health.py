"""Is the simulated person still one? Numbers of a batch of dialogues, without a model.

A policy is trained and measured against the people it talks with, so their faults become its habits: a person
who repeats themselves, turns into an assistant, answers in another language, forgets who they are, tells what
the story has not reached, or thanks for anything. Each is counted by what the record shows (`manners.py`).
Which number is out of its usual range: `findings.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mapo.scenarios.scenario import Scenario
from mapo.scoring.manners import contradicts, script_of, sentences, shingles, speaks_as_assistant, warm
from mapo.types import Dialogue, Levels, Turn

Mood = Literal["good", "mixed", "nothing", "harm", ""]
"""What the judge made of a reply; "" where it failed."""


@dataclass(frozen=True, slots=True)
class Talk:
    """What is needed of a dialogue: `lines` are the user's, `moods` what the judge made of each reply."""

    scenario: str
    lines: Sequence[str]
    moods: Sequence[Mood]
    ending: str
    early: int = 0
    """Lines that told of a later stage; and of how many that can be known."""
    placed: int = 0
    contradicted: int = 0
    """Lines that contradict the persona; and of how many that can be known."""
    known: int = 0
    incomplete: int = 0
    """Turns for which a member of the panel failed; and those a panel judged."""
    panelled: int = 0
    scripted: bool = False
    """Whether plain code spoke them."""


@dataclass(frozen=True, slots=True)
class Health:
    """Shares of the user's lines unless said otherwise; None where there is nothing to take a share of."""

    dialogues: int
    lines: int
    repeated: float | None
    """Sentences said before in the same dialogue."""
    shared: float | None
    """Runs of five words that people of other scenarios say too."""
    as_assistant: float | None
    other_language: float | None
    told_early: float | None
    """Lines with a particular of a stage that the story had not reached; of scenarios that name theirs."""
    off_persona: float | None
    """Lines with another age or name than the persona's, or without a relative that they have."""
    warm_after_miss: float | None
    """Of lines after a reply that met nothing or did harm, and no good: those that thank, agree or feel
    better."""
    warm_after_good: float | None
    misses: int
    """Lines after such a reply."""
    unscored: float | None
    """Turns the judge failed on."""
    incomplete: float | None
    """Turns that a panel judged, or could not judge, without one of its members."""
    endings: dict[str, int] = field(default_factory=dict)
    scripted: bool = False
    """Whether all of them were played by plain code."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def health(dialogues: Iterable[Dialogue], scenarios: Mapping[str, Scenario] | None = None) -> Health:
    """Of dialogues that did not break. `scenarios` by id, where they are known, tell what came too early."""
    usable = [d for d in dialogues if d.usable and d.turns]
    return health_of([_talk(d, (scenarios or {}).get(d.scenario)) for d in usable])


def health_of(talks: Sequence[Talk]) -> Health:
    """Of talks, wherever they come from."""
    lines = [line for talk in talks for line in talk.lines]
    said = Counter[str]()
    for talk in talks:
        said.update(_repeats(talk.lines))
    after = {mood: [w for talk in talks for w in _after(talk, mood)] for mood in ("harm", "nothing", "good")}
    cold = [*after["harm"], *after["nothing"]]
    moods = [mood for talk in talks for mood in talk.moods]
    return Health(
        dialogues=len(talks),
        lines=len(lines),
        repeated=_share(said["again"], said["all"]),
        shared=_shared(talks),
        as_assistant=_share(sum(map(speaks_as_assistant, lines)), len(lines)),
        other_language=_other_language(talks),
        told_early=_share(sum(t.early for t in talks), sum(t.placed for t in talks)),
        off_persona=_share(sum(t.contradicted for t in talks), sum(t.known for t in talks)),
        warm_after_miss=_share(sum(cold), len(cold)),
        warm_after_good=_share(sum(after["good"]), len(after["good"])),
        misses=len(cold),
        unscored=_share(moods.count(""), len(moods)),
        incomplete=_share(sum(t.incomplete for t in talks), sum(t.panelled for t in talks)),
        endings=dict(Counter(talk.ending for talk in talks).most_common()),
        scripted=bool(talks) and all(talk.scripted for talk in talks),
    )


def _talk(d: Dialogue, scenario: Scenario | None) -> Talk:
    early, placed = _early(d.turns, scenario) if scenario else (0, 0)
    ending = d.ending.reason.value if d.ending else "unfinished"
    panels = [turn.panel for turn in d.turns if turn.panel]
    return Talk(
        d.scenario,
        [turn.user for turn in d.turns],
        [mood_of(turn.levels) for turn in d.turns],
        ending,
        early,
        placed,
        contradicted=_contradicted(d.turns, scenario) if scenario else 0,
        known=len(d.turns) if scenario else 0,
        incomplete=sum(not all(panel.values()) for panel in panels),
        panelled=len(panels),
        scripted=d.cast.get("user") == "scripted",
    )


def mood_of(levels: Levels | None) -> Mood:
    if levels is None:
        return ""
    up = any(m.progress.level > 0 for m in levels.values())
    down = any(m.regression.level < 0 for m in levels.values())
    return "mixed" if up and down else "good" if up else "harm" if down else "nothing"


def _early(turns: Sequence[Turn], scenario: Scenario) -> tuple[int, int]:
    """Lines with a particular that belongs to later stages alone; and lines that could have held one."""
    about_them = (scenario.topic, scenario.opening, scenario.wants_to_say, scenario.hopes_for)
    any_time = (*scenario.guarded, *scenario.eased, *(x for memory in scenario.memories for x in memory.says))
    known = " ".join([*about_them, scenario.persona.background, *any_time]).casefold()
    early = placed = told = 0
    for turn in turns:
        told += turn.direction is not None and turn.direction.act == "reveal_stage"
        reached = " ".join([known, *(line for s in scenario.stages[:told] for line in s.says)]).casefold()
        later = {about.casefold() for stage in scenario.stages[told:] for about in stage.about}
        later = {about for about in later if about not in reached}
        placed += bool(later)
        early += any(about in turn.user.casefold() for about in later)
    return early, placed


def _contradicted(turns: Sequence[Turn], scenario: Scenario) -> int:
    who = scenario.persona
    beats = [line for beat in scenario.beats for line in beat.says]
    words = "\n".join([scenario.opening, *scenario.guarded, *scenario.eased, *beats])
    return sum(contradicts(turn.user, who.name, who.age, words) for turn in turns)


def _repeats(lines: Sequence[str]) -> dict[str, int]:
    every = [s for line in lines for s in sentences(line)]
    return {"all": len(every), "again": len(every) - len(set(every))}


def _shared(talks: Sequence[Talk]) -> float | None:
    """Of all runs of words of a talk, those that occur in one of another scenario; the mean over talks."""
    own = [set().union(*map(shingles, talk.lines)) for talk in talks]
    people: dict[tuple[str, ...], set[str]] = {}
    for talk, runs in zip(talks, own, strict=True):
        for run in runs:
            people.setdefault(run, set()).add(talk.scenario)
    shares = [sum(len(people[run]) > 1 for run in runs) / len(runs) for runs in own if runs]
    several = len({talk.scenario for talk in talks}) > 1
    return sum(shares) / len(shares) if shares and several else None


def _other_language(talks: Sequence[Talk]) -> float | None:
    """Against the opening line, which is the scenario's."""
    other = known = 0
    for talk in talks:
        first = script_of(talk.lines[0]) if talk.lines else ""
        later = [script for line in talk.lines[1:] if first and (script := script_of(line))]
        known += len(later)
        other += sum(script != first for script in later)
    return _share(other, known)


def _after(talk: Talk, mood: Mood) -> list[bool]:
    """Whether the next line is warm, after each reply of that kind."""
    return [warm(line) for m, line in zip(talk.moods, talk.lines[1:], strict=False) if m == mood]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
