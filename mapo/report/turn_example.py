"""The credit of one training turn, with every number it was computed from, in a few lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mapo.config import Advantage
from mapo.estimators.methods import ESTIMATORS
from mapo.estimators.ragged import Floats
from mapo.measure.rubric import Rubric
from mapo.report.document import numbers
from mapo.runs.contents import number
from mapo.runs.explanation import CreditedBatch, TurnCredit
from mapo.runs.training import TrainingRun
from mapo.show.numbers import num, signed
from mapo.text import clip, plural
from mapo.types import Dialogue, Turn

LEAST = 1e-6
"""Smaller advantages are rounding errors: all siblings did equally well."""
SIBLINGS = 8
"""Siblings whose values are listed."""
TEXT = 240
"""Characters of a message that are shown."""
REASON = 100
"""Characters of a judge's reason that are shown."""


@dataclass(frozen=True, slots=True)
class TurnExample:
    """An explained turn: a title, and lines of a label and a text. Both hold untrusted text."""

    title: str
    lines: Sequence[tuple[str, str]]


def turn_example(run: TrainingRun) -> TurnExample | str:
    """Explain the turn with the largest advantage, positive or negative, of the last step that was read.

    Last turns are chosen only if no other turn has an advantage: nothing followed them, so their return shows
    little. Return the reason if there is no turn. Advantages are computed as in training, with the run's
    settings.
    """
    if not run.played:
        return "no training dialogue was read"
    step = max(run.played)
    if run.advantage is None:
        return run.uncredited
    usable, computed = numbers.step_credit(run.played[step], run.advantage, run.root)
    if isinstance(computed, str):
        return computed
    candidates = [
        (t + 1 < len(d.turns), abs(float(value)), -i, -t)
        for i, d in enumerate(usable)
        for t, value in enumerate(computed.mixed[i])
        if computed.mask[i][t] and d.turns[t].levels is not None and abs(value) >= LEAST
    ]
    if not candidates:
        return f"every turn of step {step} has an advantage of 0"
    i, t = (-index for index in max(candidates)[2:])
    rubric = numbers.rubric_of(usable, run.root)
    groups = [d.group for d in usable]
    batch = CreditedBatch(numbers.rewards_of(usable), groups, computed, run.advantage, usable, rubric)
    credit = batch.turns(i)[t]
    dialogue = usable[i]
    siblings = [k for k, group in enumerate(groups) if group == dialogue.group and k != i]
    earned = _others(siblings, batch.rewards, usable, t, "earned")
    lines = [
        ("person", clip(dialogue.turns[t].user, TEXT)),
        ("reply", clip(dialogue.turns[t].reply.text, TEXT)),
        ("judge", _levels(dialogue.turns[t], rubric)),
        ("movement", _movement(run, dialogue, t)),
        ("reward", f"{signed(dialogue.turns[t].reward)}. {earned}"),
        *_return(run.advantage, credit, siblings, computed.returns, usable, t),
        *_reasons(credit),
        ("effect", _effect(credit)),
    ]
    title = f"turn {t + 1} of {len(dialogue.turns)} in training dialogue {dialogue.id} (step {step})"
    return TurnExample(title, [line for line in lines if line[1]])


def _levels(turn: Turn, rubric: Rubric | None) -> str:
    """Return the levels other than 0 by axis, with the judge's reasons; a judge that is read out has none."""
    titles = {axis.key: f"{axis.title.lower()} ({axis.key})" for axis in rubric.axes} if rubric else {}
    marks = [
        f"{titles.get(key, key)} {mark.level:+d}{f': {clip(mark.reason, REASON)}' if mark.reason else ''}"
        for key, pair in (turn.levels or {}).items()
        for mark in (pair.progress, pair.regression)
        if mark.level
    ]
    return "; ".join(marks) if marks else "level 0 on every axis"


def _movement(run: TrainingRun, dialogue: Dialogue, t: int) -> str:
    """Say how the reply changed the distance to the goal; nothing if that is unknown."""
    results = numbers.recomputed([dialogue], run.root, [])
    if not results or len(results[0].path.states) <= t + 1:
        return ""
    before, after = (state.distance for state in results[0].path.states[t : t + 2])
    change = f"(distance {num(before)} before, {num(after)} after)"
    if before == after:
        return f"This reply did not change the distance to the goal {change}."
    direction = "closer to" if after < before else "away from"
    return f"This reply moved the person {num(abs(before - after))} {direction} the goal {change}."


def _others(
    siblings: Sequence[int],
    values: Sequence[Floats],
    dialogues: Sequence[Dialogue],
    t: int,
    verb: str,
) -> str:
    """List the values of siblings at the same turn. Those that ended before it or are unscored are left
    out."""
    known = [
        signed(float(values[k][t]))
        for k in siblings
        if t < len(dialogues[k].turns) and number(dialogues[k].turns[t].reward) is not None
    ]
    if not known:
        return f"No sibling has a score at turn {t + 1}."
    more = f" and {len(known) - SIBLINGS} others" if len(known) > SIBLINGS else ""
    return f"{plural(len(known), 'sibling')} {verb} {', '.join(known[:SIBLINGS])}{more} at turn {t + 1}."


def _return(
    settings: Advantage,
    credit: TurnCredit,
    siblings: Sequence[int],
    returns: Sequence[Floats],
    dialogues: Sequence[Dialogue],
    t: int,
) -> list[tuple[str, str]]:
    """Return the line of the return, for methods that compare returns of turns."""
    if "G_t" not in ESTIMATORS[settings.method].formula:
        return []
    discount = f", discounted by {num(settings.gamma)} per turn" if settings.gamma < 1 else ""
    text = f"{signed(credit.ret)}: this reward and those that followed{discount}."
    return [("return", f"{text} {_others(siblings, returns, dialogues, t, 'had')}")]


def _reasons(credit: TurnCredit) -> list[tuple[str, str]]:
    """Return the explanation of the advantage, one line per comparison and one for their sum."""
    lines = []
    for reason in credit.why:
        name, colon, text = reason.text.partition(": ")
        if colon:
            label = name.removesuffix(" advantage").lower()
            lines.append((label, f"{text[:1].upper()}{text[1:]} Result: {signed(reason.result)}."))
        else:
            lines.append(("mix", f"{reason.text} {signed(reason.result)}"))
    return lines


def _effect(credit: TurnCredit) -> str:
    likely = "more" if credit.mixed > 0 else "less"
    return f"The advantage is {signed(credit.mixed)}: training makes this reply {likely} likely."
