"""Scores of a result.json in points of 100."""

from __future__ import annotations

import json

from mapo.evals.compare.entries import _BENCHMARKS, SCORES
from mapo.report import build
from mapo.report.document.markdown import markdown_page
from mapo.runs import contents as read
from mapo.view.index.facts import facts_of
from mapo.view.index.files import find_runs
from mapo.view.index.sets import result_of
from support import report_runs, view_runs

RESULT = {
    "benchmark": "emobench",
    "complete": True,
    "scores": {"EA": 0.5, "EU": 0.25, "Overall": 0.375, "odd": "x"},
    "intervals": {"EA": [0.4, 0.6], "EU": None, "Overall": [0.3, "x"]},
    "details": {"languages": {"en": {"EA": {"mixed": 0.5}}}, "parse_rate": {"strict": 1.0}, "cut_replies": 3},
}


def test_the_headline_is_the_one_mapo_compare_takes():
    assert {name: SCORES[title][-1] for name, title in _BENCHMARKS.items()} == read.HEADLINES


def test_emobench_in_points():
    assert read.headline(RESULT) == 37.5
    assert read.scores_in_points(RESULT) == {"EA": 50.0, "EU": 25.0, "Overall": 37.5, "odd": None}
    assert read.intervals_in_points(RESULT) == {"EA": (40.0, 60.0)}
    told = read.details_in_points(RESULT)
    assert told == {
        "languages": {"en": {"EA": {"mixed": 50.0}}},
        "parse_rate": {"strict": 100.0},
        "cut_replies": 3,
    }


def test_eqbench_is_in_points_already():
    other = {
        **RESULT,
        "benchmark": "eqbench3",
        "scores": {"EQ-Bench": 71.5},
        "details": {"criteria": {"a": 9}},
    }
    assert read.headline(other) == 71.5 and read.details_in_points(other) == {"criteria": {"a": 9}}


def test_an_incomplete_run_has_no_score():
    for lacking in ({"complete": False}, {"complete": "yes"}):
        part = {**RESULT, **lacking}
        assert read.headline(part) is None and set(read.scores_in_points(part).values()) == {None}
        assert read.intervals_in_points(part) == {}


def test_odd_files_have_no_score():
    deep: dict = {}
    for _ in range(50):
        deep = {"x": deep}
    odd = {"benchmark": "emobench", "complete": True, "scores": [1], "details": {"languages": deep}}
    assert read.headline(odd) is None and read.headline({**RESULT, "benchmark": "other"}) is None
    assert json.dumps(read.details_in_points(odd)).count("x") == 8


def facts(root):
    return next(facts_of(run) for run in find_runs(root))


def test_the_viewer_shows_overall_in_points_and_nothing_of_a_part(tmp_path):
    run = view_runs.questions(tmp_path)
    assert facts(tmp_path)["score"] == 37.5
    files = next(find_runs(tmp_path))
    shown = result_of(files)
    assert [row["value"] for row in shown["scores"]] == [50.0, 25.0, 37.5]
    assert (
        shown["scores"][0]["low"] == 40.0 and ("languages / en / EA", [("accuracy", 50.0)]) in shown["tables"]
    )
    data = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**data, "complete": False, "n": 1}))
    assert facts(tmp_path)["score"] is None
    assert [row["value"] for row in result_of(next(find_runs(tmp_path)))["scores"]] == [None] * 3


def test_the_reports_details_are_in_points(tmp_path):
    run = report_runs.bench(tmp_path / "b", details={"languages": {"en": {"EA": {"mixed": 0.375}}}})
    page = markdown_page(build([str(run)]), "")
    assert "37.5" in page and "0.375" not in page and "EA / mixed | 37.5 |" in page
