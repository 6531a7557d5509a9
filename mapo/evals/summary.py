"""Means of item scores with bootstrap intervals, and OUT/result.json ("mapo.result/1")."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mapo.measure.stats import Floats, Interval, bootstrap, reportable
from mapo.store import RunDir, write_atomic

RESULT_SCHEMA = "mapo.result/1"


class Scored(NamedTuple):
    """The scores of one item, by name. For intervals, items of one `group` (translations of one text) are
    resampled together, and each `stratum` (a kind of item) keeps its number of items."""

    id: str
    scores: dict[str, float]
    group: str = ""
    stratum: str = ""


def summarise(
    items: Sequence[Scored], means: Mapping[str, Sequence[str]] | None = None
) -> tuple[dict[str, float], dict[str, Interval | None]]:
    """Return the mean of each score over the items that have it, with 95 % bootstrap intervals over items.

    `means` names further scores that are the mean of others ({"Overall": ("EA", "EU")}); they are omitted if
    no item has one of the parts. An interval is None if there are too few items or all are equal.
    """
    names = list(dict.fromkeys(name for item in items for name in item.scores))
    groups = list(dict.fromkeys((item.stratum, item.group or item.id) for item in items))
    table = np.zeros((len(groups), 2, len(names)))  # sum and count of each score per group
    for item in items:
        row = groups.index((item.stratum, item.group or item.id))
        for name, value in item.scores.items():
            table[row, :, names.index(name)] += (value, 1.0)
    further = {name: parts for name, parts in (means or {}).items() if set(parts) <= set(names)}

    def statistic(flat: Floats) -> Floats:
        sums, counts = np.moveaxis(flat.reshape(*flat.shape[:-1], 2, len(names)), -2, 0)
        with np.errstate(invalid="ignore"):  # a resample may hold no item of some score
            means_ = sums / counts
        combined = [
            means_[..., [names.index(part) for part in parts]].mean(axis=-1) for parts in further.values()
        ]
        return np.concatenate([means_, *(column[..., None] for column in combined)], axis=-1)

    if not names:
        return {}, {}
    flat = table.reshape(len(groups), -1)
    scores = dict(zip([*names, *further], map(float, statistic(flat.mean(axis=0))), strict=True))
    ends = bootstrap(flat, statistic, strata=[stratum for stratum, _ in groups])
    rows = {name: int(np.count_nonzero(table[:, 1, at])) for at, name in enumerate(names)}
    intervals: dict[str, Interval | None] = dict.fromkeys(scores)
    for name, pair in zip(scores, () if ends is None else ends, strict=ends is not None):
        if np.isfinite(pair).all():
            intervals[name] = reportable(*pair, rows=min(rows[part] for part in further.get(name, [name])))
    return scores, intervals


def write_result(
    out: Path,
    *,
    benchmark: str,
    model: str,
    settings: Mapping[str, Any],
    of: int,
    items: Sequence[Scored],
    scores: Mapping[str, float],
    intervals: Mapping[str, Interval | None],
    judge: str | None = None,
    known: Mapping[str, Any] | None = None,
    details: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    parts: Mapping[str, int] | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Write OUT/result.json and return its content.

    `of` is the number of items of the benchmark; a result with fewer scored items is incomplete, which its
    first note says. `known` is the result of `identity`, `parts` the number of items behind each of several
    scores. With a `limit` below `of` the result is a trial without scores.
    """
    limit = None if limit is None or limit >= of else limit
    n, expected = len(items), limit or of
    missing = f"incomplete: {expected - n} of {expected} items have no score; reasons: {RunDir.items.name}"
    messages = [missing] if n < expected else []
    if limit is not None:
        scores, intervals = {}, {}
        messages.append(f"partial: only the first {limit} of {of} items were run, so there is no score")
    counts = {name: sum(name in item.scores for item in items) for name in parts or {}}
    result = {
        "schema": RESULT_SCHEMA,
        "benchmark": benchmark,
        "model": model,
        "judge": judge,
        "settings": dict(settings),
        **(known or {}),
        "complete": n == of,
        "n": n,
        "of": of,
        "limit": limit,
        "parts": {name: {"n": counts[name], "of": total} for name, total in (parts or {}).items()},
        "scores": dict(scores),
        "intervals": dict(intervals),
        "items": [{"id": item.id, "scores": item.scores} for item in items],
        "details": dict(details or {}),
        "notes": [*messages, *notes],
    }
    text = json.dumps(result, ensure_ascii=False, allow_nan=False, indent=1)
    write_atomic(RunDir(out).result, text + "\n")
    return result
