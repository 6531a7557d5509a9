"""EPM-Q: the published figures, and each formula by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mapo import Rubric, Trajectory
from mapo.measure.epmq import INDICES, composite, indices, tortuosity
from support.builders import form, marks
from support.published import published

PARTS = {
    "outcome": "Outcome Quality",
    "efficiency": "Process Efficiency",
    "stability": "Process Stability",
    "epm_q": "EPM-Q Score",
}


def test_ten_published_models(replay, empathy):
    table = json.loads(published("epmq_expected.json").read_text(encoding="utf-8"))["models"]
    rows: dict[str, list] = {}
    for record in replay:
        path = Trajectory(empathy, empathy.start(record["iedr_levels"]))
        forms = [form(t["levels"]) for t in record["turns"]]
        for item in forms:
            path.judge(item)
        got = indices(path)
        want = [record["expected"]["epmq"][f"Idx_{k}"] for k in INDICES]
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-9)
        rows.setdefault(record["model"], []).append(got)
    assert len(table) == 10 and rows.keys() == table.keys()
    for model, values in rows.items():
        got, want = composite(values), table[model]["published"]
        for key in INDICES:
            assert round(got.indices[key], 2) == want[f"Idx_{key}"], (model, key)
        for part, name in PARTS.items():
            assert round(getattr(got, part), 2) == want[name], (model, part)


def test_each_index_by_hand(empathy):
    # P_0 = (-4, 0, 0), one step (+3, 0, 0): v* = (1, 0, 0), D: 3 -> 0, dE = 3, alignment 1
    path = Trajectory(empathy, (-4.0, 0.0, 0.0))
    forms = [empathy.levels(C=(2, 0), A=(0, 0), P=(0, 0))]
    path.judge(forms[0])
    got = dict(zip(INDICES, indices(path), strict=True))
    assert got["RDI"] == 100.0  # rate 100 -> (100 + 100)/2
    assert got["Etot"] == pytest.approx(100 * 3 / (1.2 * 3))
    assert got["Snet"] == pytest.approx(100 * 2 / (1.5 * 3))
    assert got["Rho"] == pytest.approx(100 * 3 / 2.5)
    assert got["Sproj"] == pytest.approx(100 * 1.5 / 2.5)  # 3 over two entries, turn 0 included
    assert got["Tau"] == 100.0
    assert got["Rpos"] == 50.0
    assert got["Align"] == pytest.approx(100 * (0.5 + 1) / 2)
    assert got["Pen"] == 100.0


def test_harm_floors_at_zero(empathy):
    path = Trajectory(empathy, (-4.0, 0.0, 0.0))
    forms = [marks(empathy, 0, -2)] * 3
    for item in forms:
        path.judge(item)
    got = dict(zip(INDICES, indices(path), strict=True))
    assert got["RDI"] == got["Etot"] == got["Snet"] == got["Rho"] == got["Sproj"] == got["Rpos"] == 0.0
    # 18 regression levels over 4 entries: 100 (3 - 4.5)/3 < 0
    assert got["Pen"] == 0.0


def test_nothing_needed_at_the_start(empathy):
    path = Trajectory(empathy, (0.0, 0.0, 0.0))
    forms = [marks(empathy, 1)]
    path.judge(forms[0])
    got = dict(zip(INDICES, indices(path), strict=True))
    assert got["RDI"] == 50.0 and got["Snet"] == pytest.approx(100 * 3 / 1.5)  # r0 counts as 1


def test_tortuosity(empathy):
    path = Trajectory(empathy, (-9.0, -9.0, -9.0))
    assert tortuosity(path) == 1.0  # nothing moved
    path.advance((3.0, 0.0, 0.0))
    path.advance((0.0, 3.0, 0.0))
    assert tortuosity(path) == pytest.approx(6 / 18**0.5)
    path.advance((-3.0, -3.0, 0.0))
    assert tortuosity(path) == 1.0  # back at the start


def test_unjudged_turns_are_no_part_of_any_count(empathy):
    forms = [marks(empathy, 1), marks(empathy, 0, -1), marks(empathy, 2)]
    plain, gaps = Trajectory(empathy, (-20.0,) * 3), Trajectory(empathy, (-20.0,) * 3)
    for item in forms:
        plain.judge(item)
        gaps.judge(item)
        gaps.advance(None)
    assert indices(gaps) == pytest.approx(indices(plain))


def test_four_axes():
    rubric = Rubric.load("tutoring")
    path, forms = Trajectory(rubric, (-9.0,) * 4), [marks(rubric, 1)] * 4
    for item in forms:
        path.judge(item)
    got = dict(zip(INDICES, indices(path), strict=True))
    assert got["Rho"] == pytest.approx(100 * 2 / 2.5)  # ||(1,1,1,1)|| = 2, straight at the goal
    assert got["Tau"] == pytest.approx(100.0)


# ---- another number of axes


def equal_axes(n: int) -> Rubric:
    keys = "KLMN"[:n]
    axis = """
[[axes]]
key = "{0}"
title = "{0}"
asks = "?"
progress = [0, 1, 3]
progress_means = ["a", "b", "c"]
regression = [0, -2, -5]
regression_means = ["a", "b", "c"]
"""
    start = """
[[indicators]]
key = "{0}.1"
axis = "{0}"
title = "{0}"
deficit = [0, -4, -8, -12]
means = ["a", "b", "c", "d"]
"""
    head = 'name = "equal"\ntitle = "Equal"\nversion = 1\nzone = 1.0\n'
    return Rubric.parse(head + "".join(text.format(k) for text in (axis, start) for k in keys), "equal.toml")


def always(rubric: Rubric, level: int) -> Trajectory:
    path = Trajectory(rubric, (-12.0,) * len(rubric.keys))
    for _ in range(12):
        path.judge(marks(rubric, level))
    return path


@pytest.mark.parametrize(
    ("n", "epm_q", "snet", "best_rho"),
    [(1, 85.4, 72.7, 120.0), (2, 91.5, 102.9, 169.7), (3, 96.3, 126.0, 207.8), (4, 100.2, 145.5, 240.0)],
)
def test_the_same_replies_get_more_points_on_more_axes(n, epm_q, snet, best_rho):
    """The table of docs/method.md. Best Rho: 100 * 3 sqrt(n) / 2.5."""
    rubric = equal_axes(n)
    found = composite([indices(always(rubric, 1))])
    assert (round(found.epm_q, 1), round(found.indices["Snet"], 1)) == (epm_q, snet)
    best = composite([indices(always(rubric, 2))])
    assert best.indices["Rho"] == pytest.approx(best_rho, abs=0.1) and best.epm_q > 100
    assert composite([indices(always(rubric, 0))]).epm_q == pytest.approx(100 / 3)  # nothing moves


def test_nothing_is_cut_at_100(empathy):
    assert composite([indices(always(empathy, 2))]).epm_q > 150
