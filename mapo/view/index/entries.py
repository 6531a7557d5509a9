"""A line of a dialogue file -> what the index holds of it: names, numbers, and words to search by."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from mapo.errors import InputError, RecordError
from mapo.measure.epmq import indices, weigh
from mapo.measure.potential import Trajectory
from mapo.measure.rubric import Rubric
from mapo.records import decode_dialogue
from mapo.runs.contents import number
from mapo.scoring.result import Result, recompute
from mapo.types import Dialogue, Vector

WORDS = 200_000
"""Characters of a dialogue that can be searched."""
_WIDE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
_ONE_WIDE = re.compile(f"([{_WIDE}])")
_HAS_WORD = re.compile(r"\w")

Entry = dict[str, Any]
_BEGAN: dict[tuple[int, Vector, str], Trajectory] = {}
Named = Callable[[str], Rubric | None]
"""A rubric by its name."""


def entry_of(line: bytes | None, rubric: Named, part: str) -> tuple[Entry | str, str]:
    """The row of a dialogue and its words; for a line that is none, what is wrong with it."""
    if line is None:
        return "too long to be read", ""
    try:
        dialogue = decode_dialogue(line)
    except (RecordError, RecursionError) as error:
        return str(error), ""
    return _entry(dialogue, rubric, part), spaced(_said(dialogue))


def _entry(d: Dialogue, rubric: Named, part: str) -> Entry:
    rewards = d.rewards
    scored = [r for r in rewards if r is not None]
    last = next((turn.state for turn in reversed(d.turns) if turn.state), None)
    result = None if part == "train" else _result(d, rubric)
    outcome, efficiency, stability, epm_q = _scores(d, rubric) if part == "train" else _weighed(result)
    earned = number(sum(scored))
    return {
        "id": _kept(d.id),
        "scenario": _kept(d.scenario),
        "grp": _kept(d.group or d.scenario),
        "model": _kept(d.model),
        "step": _small(d.step if d.step is not None else _step_in(part)),
        "ending": d.ending.reason.value if d.ending else "unfinished",
        "reward": earned / len(scored) if scored and earned is not None else None,
        "turns": len(d.turns),
        "unscored": sum(turn.levels is None for turn in d.turns),
        "distance": last.distance if last else None,
        "category": _kept(d.tags.get("category", "")),
        "axis": _kept(result.axis if result else d.tags.get("axis", "")),
        "difficulty": _kept(d.tags.get("difficulty", "")),
        "rewards": json.dumps(rewards),
        "earned": earned,
        "heard": len(scored),
        "outcome": outcome,
        "efficiency": efficiency,
        "stability": stability,
        "epm_q": epm_q,
        "passed": int(result is not None and result.passed),
        "error": int(not d.usable),
    }


Scores = tuple[float | None, float | None, float | None, float | None]
_NONE: Scores = (None, None, None, None)


def _result(d: Dialogue, rubric: Named) -> Result | None:
    """A dialogue of a test, replayed from its levels as `mapo score` does it."""
    known = rubric(d.rubric)
    if not d.usable or known is None:
        return None
    try:
        return recompute(d, Path(), None, known, d.id)
    except (InputError, ArithmeticError, ValueError):
        return None


def _weighed(result: Result | None) -> Scores:
    """EPM-Q and its parts. The composite weighs means linearly, so a set's is the mean of its dialogues'."""
    if result is None:
        return _NONE
    found = weigh(np.asarray(result.indices, dtype=np.float64))
    if not np.isfinite(found).all():
        return _NONE
    outcome, efficiency, stability, epm_q = (float(x) for x in found)
    return outcome, efficiency, stability, epm_q


def _scores(d: Dialogue, rubric: Named) -> Scores:
    """Of a training's many dialogues: from the states as recorded, which costs less than a replay."""
    known = rubric(d.rubric)
    judged = [turn.levels for turn in d.turns if turn.levels is not None]
    if not d.usable or known is None or not judged:
        return _NONE
    try:
        path = copy(_began(known, d.start, d.profile))
        path.states = [*path.states, *(turn.state for turn in d.turns if turn.state is not None)]
        path.forms = judged
        found = weigh(np.asarray(indices(path), dtype=np.float64))
    except (InputError, ArithmeticError, ValueError):
        return _NONE
    if not np.isfinite(found).all():
        return _NONE
    outcome, efficiency, stability, epm_q = (float(x) for x in found)
    return outcome, efficiency, stability, epm_q


def _began(rubric: Rubric, start: Vector, profile: str) -> Trajectory:
    """A dialogue's beginning; siblings have it in common, and it takes as long as the rest."""
    key = (id(rubric), start, profile)
    if (known := _BEGAN.get(key)) is None or known.rubric is not rubric:
        if len(_BEGAN) >= 4096:
            _BEGAN.clear()
        known = _BEGAN[key] = Trajectory(rubric, start, profile)
    return known


def _step_in(part: str) -> int | None:
    name, _, step = part.rpartition("_")
    return int(step) if name == "validation" and step.isdecimal() and len(step) < 15 else None


def _small(step: int | None) -> int | None:
    return step if step is not None and abs(step) < 2**53 else None


def _kept(text: str) -> str:
    return text.encode("utf-8", "replace").decode()[:300]


# ---- words


def _said(d: Dialogue) -> str:
    lines = [d.scenario, d.id, *(text for turn in d.turns for text in (turn.user, turn.reply.text))]
    text = "\n".join(lines)
    return text[:WORDS].encode("utf-8", "replace").decode()


def spaced(text: str) -> str:
    """Chinese, Japanese and Korean signs as words of their own: their texts have no spaces to split at."""
    return _ONE_WIDE.sub(r" \1 ", text)


def query_of(text: str) -> str:
    """What was typed, in the words of the index: every part must occur; the last sign of a word may go on."""
    found = []
    for term in text.replace("\0", "").split()[:20]:
        if _HAS_WORD.search(term):
            quoted = spaced(term).strip().replace('"', '""')
            found.append(f'"{quoted}"' + ("" if _ONE_WIDE.match(term[-1]) else " *"))
    return " ".join(found)
