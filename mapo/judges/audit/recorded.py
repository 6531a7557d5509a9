"""What records alone show about the judge that made them, without asking any judge.

The share of turns it failed on, how its levels change along a dialogue, whether its evidence is in the
replies, and how the variance of scores divides into models, cases and the rest. The rest contains the judge's
noise together with the randomness of each dialogue, so it is an upper bound. If a panel judged, the agreement
of its members is in the records too. Reads this package's records and EMPA's result files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mapo.errors import InputError, RecordError
from mapo.judges.audit.evidence import count_quotes
from mapo.judges.audit.report import estimate, number, percent
from mapo.judges.sample import THIRDS, dialogue_files
from mapo.measure.agreement import pooled_kappa
from mapo.measure.epmq import weigh
from mapo.measure.rubric import Rubric
from mapo.scoring.folders import read_folders
from mapo.show.tables import Cell, Table
from mapo.store import BadLine, read_dialogues
from mapo.types import AxisMarks, Levels, Mark
from mapo.untrusted import read_file


class JudgedTurn(NamedTuple):
    """One recorded turn, number `turn` of `turns`; `levels` is None if the judge failed."""

    judge: str
    turn: int
    turns: int
    reply: str
    levels: Levels | None
    panel: dict[str, tuple[int, ...]] | None = None


def read_judged(root: Path) -> list[JudgedTurn]:
    """Read all turns of a run, or of a folder (of folders) of EMPA result files."""
    turns = [turn for file in dialogue_files(root) for turn in _mapo_turns(file)]
    if not turns:
        turns = [turn for file in sorted(root.rglob("*_result.json")) for turn in _empa_turns(file)]
    if not turns:
        raise InputError(
            "no judged dialogue found",
            where=str(root),
            fix="Give a run directory or a folder of EMPA results",
        )
    return turns


def _mapo_turns(file: Path) -> Iterator[JudgedTurn]:
    for item in read_dialogues(file):
        if not isinstance(item, BadLine) and item.usable:
            judge, n = item.cast.get("judge") or "unknown", len(item.turns)
            for at, turn in enumerate(item.turns, 1):
                yield JudgedTurn(judge, at, n, turn.reply.text, turn.levels, turn.panel)


def _empa_turns(file: Path) -> Iterator[JudgedTurn]:
    """Yield the turns of an EMPA result file. Replies and forms are matched by position."""
    try:
        data = json.loads(read_file(file))
        entries = data["epj"]["trajectory"][1:]
        replies = [str(line["content"]) for line in data["history"] if line["role"] == "test_model"]
        judge = str(data.get("judger_model") or "unknown")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordError(f"not an EMPA result file ({error!r})", where=str(file)) from None
    rubric = Rubric.load("empathy")
    for at, (entry, reply) in enumerate(zip(entries, replies, strict=False), 1):
        yield JudgedTurn(judge, at, len(entries), reply, _form(entry.get("mdep_analysis"), rubric))


def _form(analysis: Any, rubric: Rubric) -> Levels | None:
    if not isinstance(analysis, dict) or not analysis:
        return None

    def mark(name: str) -> Mark:
        level = analysis.get(f"{name}_level", 0)
        return Mark(level if type(level) is int else 0, str(analysis.get(f"{name}_evidence", "")))

    return {key: AxisMarks(mark(f"{key}_Prog"), mark(f"{key}_Neg")) for key in rubric.keys}


# ---- tables


def tables(roots: Sequence[Path]) -> list[Table]:
    """Return the tables for the terminal."""
    runs = {str(root): read_judged(root) for root in roots}
    return [_summary(runs), _trend(runs), _variance(roots), _panels(runs)]


def _summary(runs: dict[str, list[JudgedTurn]]) -> Table:
    rows: list[list[Cell]] = []
    for root, turns in runs.items():
        unscored = percent(sum(turn.levels is None for turn in turns), len(turns))
        quotes = count_quotes((turn.levels, turn.reply) for turn in turns if turn.levels is not None)
        judges = ", ".join(sorted({turn.judge for turn in turns}))
        in_reply = estimate(quotes.share, quotes.interval, ".0%")
        without = percent(quotes.marks - quotes.given, quotes.marks)
        rows.append([root, judges, str(len(turns)), unscored, str(quotes.marks), in_reply, without])
    columns = ["run", "judge", "turns", "unscored", "nonzero marks", "evidence in reply", "no evidence"]
    note = "Evidence is compared with the reply ignoring case, punctuation and spacing."
    return Table(columns, rows, title="As recorded", note=note, left=2)


def _trend(runs: dict[str, list[JudgedTurn]]) -> Table:
    """Return the mean sum of levels in each third of the dialogues."""
    rows = []
    for root, turns in runs.items():
        thirds: list[list[int]] = [[], [], []]
        for turn in turns:
            if turn.levels is not None:
                levels = [m.level for axis in turn.levels.values() for m in (axis.progress, axis.regression)]
                thirds[min(2, 3 * (turn.turn - 1) // turn.turns)].append(sum(levels))
        rows.append([root, *(number(float(np.mean(sums)) if sums else None, "+.2f") for sums in thirds)])
    note = (
        "Mean sum of the levels of a form. A trend may come from the dialogues or from the judge; the "
        "`position` probe of an audit tells which."
    )
    return Table(["run", *THIRDS], rows, title="Levels along the dialogue", note=note)


def _variance(roots: Sequence[Path]) -> Table:
    """Divide the variance of EPM-Q into models, cases and the rest, over cases that all models played."""
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
    total = sum(parts.values()) or 1.0
    row = [f"{len(models)} models x {len(cases)} cases", *(f"{part / total:.0%}" for part in parts.values())]
    note = "The rest is the judge's noise together with the randomness of each dialogue: an upper bound."
    return Table(["", *parts], [row], title="Variance of EPM-Q", note=note)


def two_way(grid: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    """Return the variance components of rows, columns and the rest, with one value per cell (method of
    moments, clipped at 0)."""
    n, m = grid.shape
    rest = grid - grid.mean(axis=1, keepdims=True) - grid.mean(axis=0, keepdims=True) + grid.mean()
    residual = float((rest**2).sum()) / ((n - 1) * (m - 1))
    return {
        "models": max(0.0, float(grid.mean(axis=1).var(ddof=1)) - residual / m),
        "cases": max(0.0, float(grid.mean(axis=0).var(ddof=1)) - residual / n),
        "rest": residual,
    }


def _panels(runs: dict[str, list[JudgedTurn]]) -> Table:
    """Return the kappa over all levels for each pair of panel members."""
    rows = []
    for root, turns in runs.items():
        forms = [turn.panel for turn in turns if turn.panel]
        names = list(dict.fromkeys(name for form in forms for name in form))
        for a, b in combinations(names, 2):
            pairs = [(form[a], form[b]) for form in forms if form.get(a) and form.get(b)]
            kappa = pooled_kappa(
                np.array([x for x, _ in pairs]).T.tolist(), np.array([y for _, y in pairs]).T.tolist()
            )
            rows.append([root, f"{a} / {b}", str(len(pairs)), number(kappa, ".2f")])
    return Table(["run", "members", "turns", "kappa"], rows, title="Panels", left=2)
