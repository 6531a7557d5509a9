"""Index entries: the names, numbers and searchable words of one line of a dialogue file."""

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
from mapo.scoring.attribution import failed, role_to_blame, roles_at_fault
from mapo.scoring.result import Result, recompute
from mapo.types import Dialogue, Vector

SEARCHABLE = 200_000
"""Characters of a dialogue that can be searched."""
_WIDE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
_ONE_WIDE = re.compile(f"([{_WIDE}])")
_HAS_WORD = re.compile(r"\w")

Entry = dict[str, Any]
_STARTS: dict[tuple[int, Vector, str], Trajectory] = {}
FindRubric = Callable[[str], Rubric | None]
"""Returns a rubric by its name."""


def entry_of(line: bytes | None, find_rubric: FindRubric, part: str) -> tuple[Entry | str, str]:
    """Return the row of a dialogue and its words. For a line that is not a dialogue, return the problem."""
    if line is None:
        return "The line is too long to be read.", ""
    try:
        dialogue = decode_dialogue(line)
    except (RecordError, RecursionError) as error:
        return str(error), ""
    return _entry(dialogue, find_rubric, part), spaced(_text_of(dialogue))


def _entry(d: Dialogue, find_rubric: FindRubric, part: str) -> Entry:
    rewards = d.rewards
    scored = [r for r in rewards if r is not None]
    last = next((turn.state for turn in reversed(d.turns) if turn.state), None)
    result = None if part == "train" else _replay(d, find_rubric)
    outcome, efficiency, stability, epm_q = (
        _recorded_scores(d, find_rubric) if part == "train" else _result_scores(result)
    )
    reward_sum = number(sum(scored))
    faults = [turn.faults for turn in d.turns]
    return {
        "id": _storable(d.id),
        "scenario": _storable(d.scenario),
        "grp": _storable(d.group or d.scenario),
        "model": _storable(d.model),
        "step": _small_int(d.step if d.step is not None else _step_in(part)),
        "ending": d.ending.reason.value if d.ending else "unfinished",
        "reward": reward_sum / len(scored) if scored and reward_sum is not None else None,
        "turns": len(d.turns),
        "unscored": sum(turn.levels is None for turn in d.turns),
        "distance": last.distance if last else None,
        "category": _storable(d.tags.get("category", "")),
        "axis": _storable(result.axis if result else d.tags.get("axis", "")),
        "difficulty": _storable(d.tags.get("difficulty", "")),
        "domain": _storable(d.rubric),
        "user_player": _storable(d.cast.get("user", "")),
        "director": _storable(d.cast.get("director", "")),
        "judge": _storable(d.cast.get("judge", "")),
        "prompts": _storable(d.prompts),
        "rewards": json.dumps(rewards),
        "reward_sum": reward_sum,
        "scored_turns": len(scored),
        "outcome": outcome,
        "efficiency": efficiency,
        "stability": stability,
        "epm_q": epm_q,
        "passed": int(result is not None and result.passed),
        "error": int(not d.usable),
        "faults": " ".join(roles_at_fault(faults)),
        "blame": role_to_blame(faults) if d.usable and failed(d.ending) else "",
    }


Scores = tuple[float | None, float | None, float | None, float | None]
_NONE: Scores = (None, None, None, None)


def _replay(d: Dialogue, find_rubric: FindRubric) -> Result | None:
    """Return the result of an evaluation dialogue, replayed from its levels as `mapo score` does."""
    rubric = find_rubric(d.rubric)
    if not d.usable or rubric is None:
        return None
    try:
        return recompute(d, Path(), None, rubric, d.id)
    except (InputError, ArithmeticError, ValueError):
        return None


def _result_scores(result: Result | None) -> Scores:
    """Return EPM-Q and its parts. They are linear, so the score of a set is the mean over its dialogues."""
    if result is None:
        return _NONE
    return _finite(weigh(np.asarray(result.indices, dtype=np.float64)))


def _recorded_scores(d: Dialogue, find_rubric: FindRubric) -> Scores:
    """Return the scores of a training dialogue from its recorded states, which is faster than a replay."""
    rubric = find_rubric(d.rubric)
    judged = [turn.levels for turn in d.turns if turn.levels is not None]
    if not d.usable or rubric is None or not judged:
        return _NONE
    try:
        path = copy(_start_of(rubric, d.start, d.profile))
        path.states = [*path.states, *(turn.state for turn in d.turns if turn.state is not None)]
        path.forms = judged
        return _finite(weigh(np.asarray(indices(path), dtype=np.float64)))
    except (InputError, ArithmeticError, ValueError):
        return _NONE


def _finite(scores: np.ndarray[Any, Any]) -> Scores:
    if not np.isfinite(scores).all():
        return _NONE
    outcome, efficiency, stability, epm_q = (float(x) for x in scores)
    return outcome, efficiency, stability, epm_q


def _start_of(rubric: Rubric, start: Vector, profile: str) -> Trajectory:
    """Return the trajectory before the first turn, cached: siblings share it and building it is slow."""
    key = (id(rubric), start, profile)
    if (known := _STARTS.get(key)) is None or known.rubric is not rubric:
        if len(_STARTS) >= 4096:
            _STARTS.clear()
        known = _STARTS[key] = Trajectory(rubric, start, profile)
    return known


def _step_in(part: str) -> int | None:
    name, _, step = part.rpartition("_")
    return int(step) if name == "validation" and step.isdecimal() and len(step) < 15 else None


def _small_int(step: int | None) -> int | None:
    return step if step is not None and abs(step) < 2**53 else None


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()[:300]


# ---- words


def _text_of(d: Dialogue) -> str:
    lines = [d.scenario, d.id, *(text for turn in d.turns for text in (turn.user, turn.reply.text))]
    text = "\n".join(lines)
    return text[:SEARCHABLE].encode("utf-8", "replace").decode()


def spaced(text: str) -> str:
    """Put spaces around Chinese, Japanese and Korean characters, whose texts have no spaces to split at."""
    return _ONE_WIDE.sub(r" \1 ", text)


def query_of(text: str) -> str:
    """Translate a search text into an FTS query: every word must occur, the last one as a prefix."""
    terms = []
    for term in text.replace("\0", "").split()[:20]:
        if _HAS_WORD.search(term):
            quoted = spaced(term).strip().replace('"', '""')
            terms.append(f'"{quoted}"' + ("" if _ONE_WIDE.match(term[-1]) else " *"))
    return " ".join(terms)
