"""What records alone tell of the judge that made them: no judge is asked.

How many turns it failed on, how its levels change along a dialogue, whether its evidence is in the replies,
and how the scores' variance falls to models, cases and the rest. The judge's noise is somewhere in that rest,
together with the chance of a dialogue: it is a bound from above and no measurement. Where a panel judged, its
members' agreement is in the records too. Reads our own records and EMPA's result files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mapo.errors import InputError, RecordError
from mapo.judges.audit.evidence import quotes
from mapo.judges.audit.report import number, share, spread
from mapo.judges.sample import THIRDS, dialogue_files
from mapo.measure.agreement import pooled_kappa
from mapo.measure.epmq import weigh
from mapo.measure.rubric import Rubric
from mapo.scoring.folders import read_folders
from mapo.show.tables import Table
from mapo.store import BadLine, read_dialogues
from mapo.types import AxisMarks, Levels, Mark


class Judged(NamedTuple):
    """One recorded turn, of `of` in its dialogue; `levels` is None where the judge failed."""

    judge: str
    turn: int
    of: int
    reply: str
    levels: Levels | None
    panel: dict[str, tuple[int, ...]] | None = None


def read_judged(root: Path) -> list[Judged]:
    """All turns of a run, or of a folder of EMPA result files, or of folders of those."""
    own = [turn for file in dialogue_files(root) for turn in _own(file)]
    theirs = [turn for file in sorted(root.rglob("*_result.json")) for turn in _empa(file)] if not own else []
    if not own and not theirs:
        raise InputError("no judged dialogue in it", where=str(root), fix="A run, or EMPA result files")
    return own or theirs


def _own(file: Path) -> Iterator[Judged]:
    for item in read_dialogues(file):
        if not isinstance(item, BadLine) and item.usable:
            judge, n = item.cast.get("judge") or "unknown", len(item.turns)
            for at, turn in enumerate(item.turns, 1):
                yield Judged(judge, at, n, turn.reply.text, turn.levels, turn.panel)


def _empa(file: Path) -> Iterator[Judged]:
    """A failed judgement has no form; a reply is matched to its form by its place."""
    try:
        data = json.loads(file.read_bytes())
        entries = data["epj"]["trajectory"][1:]
        replies = [str(line["content"]) for line in data["history"] if line["role"] == "test_model"]
        judge = str(data.get("judger_model") or "unknown")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"no EMPA result ({error!r})", where=str(file)) from None
    rubric = Rubric.load("empathy")
    for at, (entry, reply) in enumerate(zip(entries, replies, strict=False), 1):
        yield Judged(judge, at, len(entries), reply, _form(entry.get("mdep_analysis"), rubric))


def _form(given: Any, rubric: Rubric) -> Levels | None:
    if not isinstance(given, dict) or not given:
        return None

    def mark(name: str) -> Mark:
        level = given.get(f"{name}_level", 0)
        return Mark(level if type(level) is int else 0, str(given.get(f"{name}_evidence", "")))

    return {key: AxisMarks(mark(f"{key}_Prog"), mark(f"{key}_Neg")) for key in rubric.keys}


# ---- tables


def tables(roots: Sequence[Path]) -> list[Table]:
    found = {str(root): read_judged(root) for root in roots}
    return [_summary(found), _trend(found), _variance(roots), _panels(found)]


def _summary(found: dict[str, list[Judged]]) -> Table:
    rows = []
    for root, turns in found.items():
        lost = sum(turn.levels is None for turn in turns)
        said = quotes((turn.levels, turn.reply) for turn in turns if turn.levels is not None)
        judges = ", ".join(sorted({turn.judge for turn in turns}))
        evidence = spread(said.share, said.interval, ".0%")
        none = number((said.marks - said.given) / said.marks if said.marks else None, ".0%")
        rows.append([root, judges, str(len(turns)), share(lost, len(turns)), str(said.marks), evidence, none])
    head = ["run", "judge", "turns", "unscored", "marks not 0", "evidence in the reply", "without evidence"]
    note = "Evidence is compared without case, punctuation and spacing."
    return Table(head, rows, title="As recorded", note=note, left=2)


def _trend(found: dict[str, list[Judged]]) -> Table:
    """The mean sum of levels in each third of the dialogues."""
    rows = []
    for root, turns in found.items():
        thirds: list[list[int]] = [[], [], []]
        for turn in turns:
            if turn.levels is not None:
                levels = [
                    m.level for sides in turn.levels.values() for m in (sides.progress, sides.regression)
                ]
                thirds[min(2, 3 * (turn.turn - 1) // turn.of)].append(sum(levels))
        rows.append([root, *(number(float(np.mean(own)) if own else None, "+.2f") for own in thirds)])
    note = (
        "Mean sum of a form's levels. A trend is the dialogue's or the judge's: an audit's `position` tells."
    )
    return Table(["run", *THIRDS], rows, title="Along a dialogue", note=note)


def _variance(roots: Sequence[Path]) -> Table:
    """Where the variance of the dialogues' EPM-Q is, of models that met the same cases."""
    scores: dict[tuple[str, str], list[float]] = {}
    for root in roots:
        for folder in read_folders(root):
            for result in folder.results:
                quality = float(weigh(np.array(result.indices))[3])
                scores.setdefault((f"{folder.path}/{result.model}", result.case), []).append(quality)
    models = list(dict.fromkeys(model for model, _ in scores))
    cases = [c for c in dict.fromkeys(case for _, case in scores) if all((m, c) in scores for m in models)]
    if len(models) < 2 or len(cases) < 2:
        return Table([], [], title="Variance of EPM-Q")
    grid = np.array([[float(np.mean(scores[m, c])) for c in cases] for m in models])
    parts = two_way(grid)
    whole = sum(parts.values()) or 1.0
    row = [f"{len(models)} models x {len(cases)} cases", *(f"{part / whole:.0%}" for part in parts.values())]
    note = "The judge's noise is within the rest, with the chance of each dialogue: at most that share."
    return Table(["", *parts], [row], title="Variance of EPM-Q", note=note)


def two_way(grid: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    """Variance components of rows, columns and the rest, one value a cell (method of moments, none below
    0)."""
    n, m = grid.shape
    rest = grid - grid.mean(axis=1, keepdims=True) - grid.mean(axis=0, keepdims=True) + grid.mean()
    residual = float((rest**2).sum()) / ((n - 1) * (m - 1))
    return {
        "models": max(0.0, float(grid.mean(axis=1).var(ddof=1)) - residual / m),
        "cases": max(0.0, float(grid.mean(axis=0).var(ddof=1)) - residual / n),
        "rest": residual,
    }


def _panels(found: dict[str, list[Judged]]) -> Table:
    """The members of a panel, two at a time: kappa of all levels."""
    rows = []
    for root, turns in found.items():
        forms = [turn.panel for turn in turns if turn.panel]
        names = list(dict.fromkeys(name for form in forms for name in form))
        for a, b in combinations(names, 2):
            both = [(form[a], form[b]) for form in forms if form.get(a) and form.get(b)]
            kappa = pooled_kappa(
                np.array([x for x, _ in both]).T.tolist(), np.array([y for _, y in both]).T.tolist()
            )
            rows.append([root, f"{a} / {b}", str(len(both)), number(kappa, ".2f")])
    return Table(["run", "members", "turns", "kappa"], rows, title="Panels", left=2)
