"""A comparison as programs read it: CSV, one line a model and score, and JSON, everything ("mapo.compare/1").

Names of models and judges come from files and endpoints: none of them is a formula to a spreadsheet.
"""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from mapo.evals.compare.comparison import Comparison, Difference
from mapo.evals.compare.entries import Entry, count
from mapo.text import printable

_CSV = (
    *("model", "benchmark", "score", "value", "low", "high", "passes", "n", "of", "cases"),
    *("baseline", "common", "missing", "difference", "difference_low", "difference_high", "p", "p_holm"),
    *("judge", "settings", "sampling", "note"),
    *("before", "gain", "gain_low", "gain_high", "gain_p", "gain_p_holm"),
)


def as_csv(found: Comparison) -> str:
    """One line a model and score, behind it its difference from the first model, and as `gain` the one from
    the model it was trained from."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV)
    for column in found.columns:
        for model in found.models:
            e, d = found.cells.get((model, column.label)), found.difference(model, column.label)
            if e is None:
                continue
            own = [e.value, *(e.interval or ("", "")), e.passes, e.n, e.of, count(e.cases)]
            held: list[Any] = [""] * 8
            if d:
                ends = d.interval or ("", "")
                held = [_cell(d.baseline), d.n, d.missing, d.mean, *ends, d.p, d.p_holm]
            named = [_cell(model), column.benchmark, _cell(column.label)]
            gained = _gain(found.difference(model, column.label, e.baseline) if e.baseline else None)
            writer.writerow([*named, *own, *held, *map(_cell, _meant(e)), *gained])
    return out.getvalue()


def _gain(d: Difference | None) -> list[Any]:
    return [""] * 6 if d is None else [_cell(d.baseline), d.mean, *(d.interval or ("", "")), d.p, d.p_holm]


def _meant(e: Entry) -> list[str]:
    """The judge, the other settings, how the model was sampled, and what to know."""
    rest = {key: value for key, value in e.meaning.items() if key != "judge"}
    lacking = f"incomplete: {e.n} of {e.of}" if e.n < e.of else ""
    invalid = f"invalid: {e.invalid}" if e.invalid else ""
    told = [lacking, invalid, *(note for note in e.notes if not note.startswith(("incomplete", "invalid")))]
    listed = ("; ".join(f"{key} {value}" for key, value in part.items()) for part in (rest, e.sampling))
    return [e.meaning.get("judge", ""), *listed, "; ".join(filter(None, told))]


def _cell(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    plain = " ".join(printable(text).split())
    return f"'{plain}" if plain[:1] in ("=", "+", "-", "@") else plain


def as_json(found: Comparison) -> str:
    return json.dumps(plain(found), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def plain(found: Comparison) -> dict[str, Any]:
    """The whole comparison as plain data ("mapo.compare/1")."""
    return {
        "schema": "mapo.compare/1",
        "columns": [
            {"label": c.label, "benchmark": c.benchmark, "name": c.name, "settings": dict(c.meaning)}
            for c in found.columns
        ],
        "models": [
            {
                "model": model,
                "scores": {
                    label: {
                        "value": e.value,
                        "interval": e.interval,
                        "n": e.n,
                        "of": e.of,
                        "cases": count(e.cases),
                        **({"invalid": e.invalid} if e.invalid else {}),
                        **({} if e.passes is None else {"passes": e.passes}),
                        "sampling": dict(e.sampling),
                        "source": e.source,
                    }
                    for (own, label), e in found.cells.items()
                    if own == model
                },
            }
            for model in found.models
        ],
        "differences": [
            {
                "model": d.model,
                "baseline": d.baseline,
                "score": d.column,
                "cases": d.n,
                "missing": d.missing,
                "mean": d.mean,
                "interval": d.interval,
                "p": d.p,
                "p_holm": d.p_holm,
            }
            for d in found.differences
        ],
        "notes": found.notes,
    }
