"""Comparisons one can trust: the statistics against scipy and simulation, columns that never mix meanings."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from mapo import Ending, Rubric, StopReason
from mapo.errors import InputError, MapoError, RecordError
from mapo.evals.compare import comparison as comparing
from mapo.evals.compare.comparison import Comparison, compare, compared, paired, read_run, split_name
from mapo.evals.compare.entries import Case, Entry, count, read_benchmark, split_settings
from mapo.evals.compare.entries_empa import read_empa
from mapo.evals.compare.tables import FORMS, differences_table, figure, legend, print_comparison
from mapo.evals.summary import Scored, summarise, write_result
from mapo.measure import stats
from mapo.measure.stats import bootstrap, sign_flip, small_sample_level, t_quantile
from mapo.store import JsonlWriter, write_atomic
from support.builders import dialogue, marks
from support.published import published
from support.report_runs import training

RUBRIC = Rubric.load("empathy")


def cases(scores, kind="") -> list[Case]:
    return [Case(float(score), kind) for score in scores]


def differences(d) -> tuple:
    return paired(cases(d), cases(np.zeros(len(d))))


# ---- the statistics, on simulated data


def normal(rng, n):
    return rng.normal(3.0, 10.0, size=n), 3.0


def right_or_wrong(rng, n):
    """Two models on yes-or-no items, right on 60 % and 45 %, alike on some: differences of -100, 0, 100."""
    return 100.0 * (rng.random(n) < 0.6) - 100.0 * (rng.random(n) < 0.45), 15.0


def skewed(rng, n):
    return rng.exponential(10.0, size=n) - 10.0, 0.0


@pytest.mark.parametrize(
    ("draw", "n", "low", "high"),
    [
        (normal, 12, 0.92, 0.98),
        (normal, 30, 0.925, 0.975),
        (normal, 45, 0.925, 0.975),
        (right_or_wrong, 30, 0.925, 0.985),  # few different values: steps, a little too wide
        (right_or_wrong, 100, 0.925, 0.975),
        (skewed, 30, 0.90, 0.97),  # a skewed mean is covered a little less
    ],
)
def test_intervals_cover_about_95_percent(monkeypatch, draw, n, low, high):
    monkeypatch.setattr(comparing, "RESAMPLES", 1000)
    monkeypatch.setattr(stats, "_FLIPS", 1)
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(500):
        d, truth = draw(rng, n)
        _, (lo, hi), _ = differences(d)
        covered += lo <= truth <= hi
    assert low <= covered / 500 <= high


def test_small_samples_get_the_width_of_students_t():
    # normal scores: the bootstrap's mean has the standard error s sqrt(n-1)/n, so z = t sqrt(n/(n-1)) of them
    # is t s / sqrt(n), as in the t interval
    d = np.random.default_rng(2).normal(size=12)
    _, (lo, hi), _ = differences(d)
    assert hi - lo == pytest.approx(2 * t_quantile(11) * d.std(ddof=1) / math.sqrt(12), rel=0.08)
    plain = bootstrap(d[:, None], lambda m: m, resamples=10_000, level=0.95)[0]
    assert plain[1] - plain[0] < 0.92 * (hi - lo)  # percentiles alone are too narrow
    for n in (5, 30, 400):
        z = scipy_stats.t.ppf(0.975, n - 1) * math.sqrt(n / (n - 1))
        assert small_sample_level(n) == pytest.approx(1 - 2 * scipy_stats.norm.sf(z), abs=1e-9)
    assert small_sample_level(100_000) == pytest.approx(0.95, abs=1e-4)


@pytest.mark.parametrize("n", [9, 30])
def test_the_test_rejects_a_true_null_about_five_times_in_a_hundred(monkeypatch, n):
    monkeypatch.setattr(stats, "_FLIPS", 999)
    rng = np.random.default_rng(3)
    rejected = [sign_flip(rng.normal(size=n)) <= 0.05 for _ in range(1000)]
    assert 0.033 <= np.mean(rejected) <= 0.067  # 0.05 +- 2.5 standard errors
    # discrete scores make it careful: it may reject less, and not more
    ties = [sign_flip(rng.choice([-100.0, 0.0, 100.0], size=n)) <= 0.05 for _ in range(1000)]
    assert 0.002 <= np.mean(ties) <= 0.067


@pytest.mark.parametrize("shift", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("n", [12, 40, 200])
def test_p_values_are_near_scipys(n, shift):
    rng = np.random.default_rng(n)
    a, b = rng.normal(shift, 1.0, size=n), rng.normal(0.0, 1.0, size=n)
    d = a - b
    mean, _, p = paired(cases(a), cases(b))
    theirs = scipy_stats.permutation_test(
        (a, b),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        n_resamples=20_000,
        vectorized=True,
        rng=np.random.default_rng(1),
    )
    assert mean == pytest.approx(theirs.statistic)
    assert p == pytest.approx(theirs.pvalue, abs=0.012)
    assert p == pytest.approx(scipy_stats.ttest_rel(a, b).pvalue, abs=0.03)
    assert p == pytest.approx(scipy_stats.wilcoxon(d).pvalue, abs=0.15)


def test_right_and_wrong_answers_are_tested_as_mcnemar_does():
    # 14 items only the first got right, 4 only the second: of 18 that differ, the exact binomial test
    d = [100.0] * 14 + [-100.0] * 4 + [0.0] * 82
    assert sign_flip(d) == pytest.approx(scipy_stats.binomtest(4, 18).pvalue, abs=0.005)
    few = [100.0] * 9 + [-100.0] * 2 + [0.0] * 50
    assert sign_flip(few) == pytest.approx(scipy_stats.binomtest(2, 11).pvalue)  # gone through one by one
    assert sign_flip([0.0, 0.0]) == 1.0


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=2, max_size=14), st.randoms())
def test_what_a_comparison_does_not_depend_on(pairs, random):
    a, b = (cases(column) for column in zip(*pairs, strict=True))
    mean, _, p = paired(a, b)
    back, _, p_back = paired(b, a)
    assert (back, p_back) == (pytest.approx(-mean), pytest.approx(p))
    order = list(range(len(a)))
    random.shuffle(order)
    mixed, _, p_mixed = paired([a[i] for i in order], [b[i] for i in order])
    assert (mixed, p_mixed) == (pytest.approx(mean), pytest.approx(p))
    assert 0 < p <= 1


def test_kinds_of_cases_count_alike_however_many_they_are():
    # EA: differences 10 and 30, EU: 0, 0, 0, 40. Overall: (20 + 10) / 2
    a = cases([10, 30], "EA") + cases([0, 0, 0, 40], "EU")
    b = [replace_score(case, 0.0) for case in a]
    mean, (lo, hi), _ = paired(a, b)
    assert mean == pytest.approx(15.0) and lo <= 15 <= hi
    # each resample draws two of EA: if EU says 0 throughout, its half of the weight stands still
    still = cases([10, 30], "EA") + cases([0, 0, 0, 0], "EU")
    _, (lo, hi), _ = paired(still, [replace_score(case, 0.0) for case in still])
    assert (lo, hi) == (pytest.approx(5.0), pytest.approx(15.0))


def replace_score(case: Case, score: float) -> Case:
    return case._replace(score=score)


@pytest.mark.parametrize("d", [[4.0], [4.0, 5.0, 6.0, 7.0, 9.0], [4.0] * 30, [0.0] * 30])
def test_few_cases_and_cases_that_are_all_alike_have_no_interval(d):
    mean, interval, p = differences(d)
    assert (mean, interval) == (pytest.approx(np.mean(d)), None) and 0 < p <= 1
    assert differences([4.0, 5.0, 6.0, 7.0, 8.0, 9.0])[1] is not None


# ---- columns


def entry(
    model="a", name="EQ-Bench", scores=(50, 60, 70), *, meaning=None, benchmark="EQ-Bench 3", **kw
) -> Entry:
    own = {str(i): Case(float(score)) for i, score in enumerate(scores)}
    known = {
        "meaning": {"judge": "x"} if meaning is None else meaning,
        "sampling": {},
        "value": float(np.mean(scores)) if scores else None,
        "interval": None,
        "n": len(scores),
        "of": len(scores),
        "cases": own,
        "source": f"runs/{model}",
    }
    return Entry(model, benchmark, name, **{**known, **kw})


def labels(found: Comparison) -> list[str]:
    return [column.label for column in found.columns]


def test_rows_are_models_and_the_first_is_the_measure():
    found = compared([entry("a"), entry("b", scores=(55, 65, 75)), entry("a", "EA", benchmark="EmoBench")])
    assert found.models == ["a", "b"] and labels(found) == ["EA", "EQ-Bench"]  # in the paper's order
    [d] = found.differences
    assert (d.model, d.baseline, d.column, d.n, d.mean) == ("b", "a", "EQ-Bench", 3, 5.0)
    assert d.p == 0.25 == d.p_holm  # 2^(1-3)
    assert found.difference("b", "EQ-Bench") == d and found.difference("a", "EA") is None
    assert any("3 cases; intervals and tests" in note for note in found.notes)


def test_judges_never_share_a_column():
    found = compared([entry("a"), entry("b", meaning={"judge": "y"}), entry("c")])
    assert labels(found) == ["EQ-Bench, judge x", "EQ-Bench, judge y"]
    assert set(found.cells) == {("a", labels(found)[0]), ("b", labels(found)[1]), ("c", labels(found)[0])}
    assert [d.model for d in found.differences] == ["c"]
    assert "'b': no score is comparable with one of 'a'" in found.notes


def test_labels_name_differences_and_one_model_in_all_roles_once():
    def cast(judge, user, **kw):
        meaning = {"user": user, "director": user, "judge": judge, "profile": "published", **kw}
        return entry(f"{judge}{user}{kw}", "EPM-Q", benchmark="EMPA", meaning=meaning)

    assert labels(compared([cast("x", "x"), cast("y", "y")])) == ["EPM-Q, judge x", "EPM-Q, judge y"]
    assert labels(compared([cast("x", "x"), cast("y", "x")])) == ["EPM-Q, judge x", "EPM-Q, judge y"]
    assert labels(compared([cast("x", "x"), cast("x", "z")]))[1] == "EPM-Q, director z, user z"
    apart = compared([cast("x", "x"), cast("x", "x", profile="released"), cast("x", "x", votes="5")])
    assert labels(apart) == [
        "EPM-Q, profile published, votes not given",
        "EPM-Q, profile released, votes not given",
        "EPM-Q, profile published, votes 5",
    ]


def test_holm_is_taken_over_the_whole_table():
    base = [50.0] * 12
    better = [50.0 + i for i in range(1, 13)]
    found = compared([entry("a", scores=base), entry("b", scores=better), entry("c", scores=better[::-1])])
    one, two = found.differences
    assert one.p == two.p == 2 / 2**12 and one.p_holm == two.p_holm == 4 / 2**12


def test_only_common_cases_are_compared_with_a_note():
    def some(model, scores, chosen):
        own = {name: Case(float(s), "", version) for name, s, version in scores}
        kw = {"cases": own, "chosen": chosen, "meaning": {}, "benchmark": "EMPA"}
        return entry(model, "EPM-Q", [s for _, s, _ in scores], **kw)

    a = some("a", [("p", 10, "v1"), ("q", 20, "v1"), ("r", 30, "v1")], "set1")
    b = some("b", [("q", 25, "v1"), ("r", 30, "other words"), ("s", 99, "v1")], "set2")
    found = compared([a, b])
    assert labels(found) == ["EPM-Q, 3 cases (set1)", "EPM-Q, 3 cases (set2)"]  # never in one column
    [d] = found.differences
    assert (d.column, d.n, d.mean) == (labels(found)[1], 1, 5.0)
    assert any("1 case in common (of 3 and 3); only those are compared" in note for note in found.notes)
    # of two sets of the first model the one with more in common is taken; without any, nothing
    wider = some("a", [("q", 20, ""), ("r", 20, ""), ("s", 90, "")], "set3")
    [d] = compared([a, wider, b]).differences
    assert d.n == 3 and d.mean == pytest.approx((5 + 10 + 9) / 3)
    none = compared([a, some("b", [("z", 1, "")], "set4")])
    assert none.differences == [] and any("no case in common" in note for note in none.notes)


def test_incomplete_scores_are_not_shown_but_noted():
    found = compared([entry("a"), entry("b", value=None, n=2, of=45, notes=("incomplete: x", "odd"))])
    assert found.cells["b", "EQ-Bench"].value is None
    assert any("'b', EQ-Bench (runs/b): incomplete, 2 of 45 have a score: not" in n for n in found.notes)
    assert "'b', EQ-Bench 3 (runs/b): odd" in found.notes and not any(
        "incomplete: x" in n for n in found.notes
    )


def test_other_sampling_settings_share_a_column_with_a_note():
    found = compared(
        [entry("a", sampling={"temperature": "0.6", "seed": "1"}), entry("b", sampling={"seed": "2"})]
    )
    assert labels(found) == ["EQ-Bench"]
    assert [n for n in found.notes if "temperature" in n] == [
        "EQ-Bench 3: temperature is 0.6 for a, unknown for b"
    ]
    assert not any("seed" in note for note in found.notes)


def test_the_same_result_twice_is_one_and_two_that_disagree_are_refused():
    assert compared([entry("a"), entry("a", source="a copy")]).models == ["a"]
    with pytest.raises(InputError, match="'a' has two different results for EQ-Bench: runs/a and other"):
        compared([entry("a"), entry("a", scores=(1, 2, 3), source="other")])


def test_a_name_before_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert split_name("mine=runs/x") == ("mine", comparing.Path("runs/x"))
    assert split_name("runs/x") == (None, comparing.Path("runs/x"))
    monkeypatch.setenv("HOME", "/home/me")
    assert split_name("mine=~/x") == ("mine", comparing.Path("/home/me/x"))
    assert split_name("~/x") == (None, comparing.Path("/home/me/x"))
    (tmp_path / "lr=1").mkdir()
    assert split_name("lr=1") == (None, comparing.Path("lr=1"))  # a folder of that name
    for bad in ("=runs/x", "mine="):
        with pytest.raises(InputError, match="is not a run"):
            split_name(bad)


def test_settings_that_are_not_known_are_taken_for_meaning():
    told = {
        "temperature": 0.6,
        "seed": 1,
        "shuffle": False,
        "languages": ["en", "zh"],
        "data": {"f": "1"},
        "new": 3,
    }
    meaning, sampling = split_settings(told)
    assert sampling == {"temperature": "0.6", "seed": "1"}
    assert meaning == {"shuffle": "no", "languages": "en zh", "data": meaning["data"], "new": "3"}
    assert len(meaning["data"]) == 16
    assert "seed" in split_settings({**told, "shuffle": True})[0]  # another order is another test


# ---- result.json, through the real writer


def emobench(
    folder, model="m", *, right=lambda i: i % 2, of=None, languages=("en", "zh"), n=10, lost=(), **settings
):
    items = [
        Scored(f"{task}-{language}-{i}", {task: float(right(i)), f"{task}_lenient": 1.0}, f"{task}-{i}", task)
        for task in ("EA", "EU")
        for language in languages
        for i in range(n)
        if (language, i) not in lost
    ]
    scores, intervals = summarise(items, {"Overall": ["EA", "EU"]})
    told = {"languages": list(languages), "shuffle": False, "seed": 0, "temperature": 0.6, **settings}
    write_result(
        folder,
        benchmark="emobench",
        model=model,
        settings=told,
        of=of or len(items),
        items=items,
        scores=scores,
        intervals=intervals,
        notes=["a note"],
    )
    return folder


def test_emobench_results_by_question(tmp_path):
    found = read_benchmark(emobench(tmp_path / "a", right=lambda i: i < 3), None)
    assert [e.name for e in found] == ["EA", "EU", "Overall"]
    ea, _, overall = found
    assert ea.value == pytest.approx(30.0) and overall.value == pytest.approx(30.0)
    assert count(ea.cases) == 10 and count(overall.cases) == 20  # both languages of a question are one case
    assert ea.cases["EA-zh-1"] == Case(100.0, "EA", group="EA-1") and ea.interval[0] < 30 < ea.interval[1]
    assert (ea.n, ea.of, ea.model, ea.notes) == (40, 40, "m", ("a note",))
    part = read_benchmark(emobench(tmp_path / "b", of=41), "mine")
    assert [(e.model, e.value, e.interval, e.n, e.of) for e in part] == [("mine", None, None, 40, 41)] * 3


def test_two_models_on_emobench(tmp_path):
    one = emobench(tmp_path / "a", "a", n=30, right=lambda i: i % 2)
    two = emobench(tmp_path / "b", "b", n=30, right=lambda i: i % 3 > 0)
    other = emobench(tmp_path / "c", "c", n=30, right=lambda i: 1, languages=("en",))
    found = compare([str(one), str(two), str(other)])
    assert labels(found)[:2] == ["EA, languages en zh", "EA, languages en"]
    assert [(d.model, d.n) for d in found.differences] == [("b", 30), ("b", 30), ("b", 60)]
    [ea, _, overall] = found.differences
    assert ea.mean == pytest.approx(100 * (20 / 30 - 15 / 30)) and overall.mean == pytest.approx(ea.mean)
    narrow, wide = overall.interval[1] - overall.interval[0], ea.interval[1] - ea.interval[0]
    assert narrow == pytest.approx(wide / math.sqrt(2), rel=0.1)  # twice the cases


def test_an_incomplete_run_has_no_difference_and_no_p_value(tmp_path):
    complete = str(emobench(tmp_path / "a", "a", n=20))
    half = str(emobench(tmp_path / "b", "b", n=20, lost={("zh", i) for i in range(20)}, of=80))
    for runs in ([complete, half], [half, complete]):
        comparison = compare(runs)
        assert comparison.differences == []
        assert any("(EA, EU, Overall): not compared, 'b' is incomplete" in note for note in comparison.notes)


def test_a_single_baseline_that_is_not_the_first_model_is_named_in_the_title():
    first = entry("first", meaning={"judge": "other"})
    before, after = entry("t, before"), entry("t, after", baseline="t, before")
    comparison = compared([first, before, after])
    assert comparison.baselines == ["t, before"]
    assert differences_table(comparison).title == "Differences from t, before, paired by case"
    assert "'t, before'; 't, after': no score is comparable with one of 'first'" in comparison.notes


def test_languages_of_a_question_are_no_evidence_of_their_own():
    a = [Case(float(s), "EA", group=f"EA-{i // 2}") for i, s in enumerate([10, 30, 0, 0, 0, 40])]
    b = [case._replace(score=0.0) for case in a]
    assert paired(a, b) == paired(cases([20, 0, 20], "EA"), cases([0, 0, 0], "EA"))


def spoilt(folder, **changes):
    data = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    write_atomic(folder / "result.json", json.dumps({**data, **changes}))
    return folder


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"schema": "mapo.result/9"}, "the schema is 'mapo.result/9', not 'mapo.result/1'.*upgrade"),
        (
            {"scores": {"EA": 0.9, "EU": 0.5, "Overall": 0.7}},
            "EA is 90.00, but the mean of its items is 50.00",
        ),
        ({"benchmark": "other"}, "benchmark: Input should be"),
        ({"n": "four"}, "n: Input should be a valid integer"),
        ({"more": 1}, "more: Unexpected keyword"),
        ({"items": [{"id": "EA-en-1", "scores": {"EA": 1.0}}] * 2}, "two items have the same id"),
    ],
)
def test_results_that_cannot_be_trusted_are_refused(tmp_path, changes, told):
    with pytest.raises(RecordError, match=told):
        read_benchmark(spoilt(emobench(tmp_path), **changes))


def test_a_result_without_one_score_is_shown_as_that(tmp_path):
    folder = spoilt(emobench(tmp_path, of=40), items=[], scores={}, n=0, complete=False)
    [only] = read_benchmark(folder)
    assert (only.name, only.value, only.n, only.of) == ("Overall", None, 0, 40)
    nan = (folder / "result.json").read_text().replace('"of": 40', '"of": NaN')
    (folder / "result.json").write_text(nan)
    with pytest.raises(RecordError, match="of: Input|JSON|json"):
        read_benchmark(folder)
    half = [{"id": "EU-en-1", "scores": {"EU": 0.5}}]
    alone = spoilt(emobench(tmp_path / "x"), items=half, of=1, scores={"EU": 0.5})
    assert [(e.name, e.value) for e in read_benchmark(alone)] == [("EU", 50.0)]


@pytest.mark.parametrize(
    ("content", "told"), [(b"{", "is not JSON"), (b"[]", "is not a JSON object"), (b"\xff", "is not JSON")]
)
def test_files_that_are_no_json_are_refused(tmp_path, content, told):
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(RecordError, match=told):
        compare([str(tmp_path)])


def v2(folder, model, readable, *, asked=171):
    items = [
        Scored(str(i), {"EQ-Bench v2": 40.0 + i % 7 + 10 * (model == "b")} if i < readable else {})
        for i in range(asked)
    ]
    scores, intervals = summarise(items)
    told = {} if readable >= 0.8333 * asked and asked == 171 else {"scores": {}, "intervals": {}}
    known = {"scores": scores, "intervals": intervals, "settings": {"max_tokens": 60}, **told}
    write_result(folder, benchmark="eqbench_v2", model=model, of=171, items=items, **known)
    return str(folder)


def test_an_invalid_run_is_compared_with_nothing(tmp_path):
    good, bad = v2(tmp_path / "a", "a", 171), v2(tmp_path / "b", "b", 30)
    for runs in ([good, bad], [bad, good]):
        found = compare(runs)
        assert found.differences == []
        assert figure(found.cells["b", "EQ-Bench v2"], found.columns[0]) == "invalid (30/171 readable)"
        assert any("(EQ-Bench v2): not compared, a score is invalid" in note for note in found.notes)
    [line] = csv.DictReader(FORMS["csv"](compare([bad])).splitlines())
    assert (line["value"], line["note"]) == ("", "invalid: 30/171 readable")
    assert FORMS["json"](compare([bad])).count('"invalid": "30/171 readable"') == 1
    [d] = compare([good, v2(tmp_path / "c", "c", 143)]).differences  # 83.6 %
    assert d.n == 143
    [none] = read_benchmark(comparing.Path(v2(tmp_path / "d", "d", 0, asked=0)))
    assert (none.value, none.n, none.invalid) == (None, 0, "")  # missing, not invalid


def test_an_incomplete_score_has_a_note_in_the_csv(tmp_path):
    comparison = compare([v2(tmp_path / "a", "a", 171), v2(tmp_path / "b", "b", 170, asked=170)])
    line = list(csv.DictReader(FORMS["csv"](comparison).splitlines()))[1]
    assert (line["difference"], line["p"], line["note"]) == ("", "", "incomplete: 170 of 171")
    assert line["sampling"] == "max_tokens 60" and line["judge"] == line["settings"] == ""


def test_a_run_that_did_not_end_is_left_out_of_a_folder(tmp_path, caplog):
    emobench(tmp_path / "runs" / "x-emobench", "x")
    (tmp_path / "runs" / "early").mkdir()
    (tmp_path / "runs" / "early" / "manifest.json").write_text('{"schema": "mapo.eqbench3/1"}')
    assert compare([str(tmp_path / "runs")]).models == ["x"]
    assert "is not finished" in caplog.text


def test_a_folder_of_runs_is_read_one_level_down(tmp_path):
    emobench(tmp_path / "runs" / "x-emobench", "x")
    v2(tmp_path / "runs" / "x-v2", "x", 171)
    put(tmp_path / "runs" / "x-empa", *(played(f"s{i}", model="x") for i in range(6)))
    found = compare([str(tmp_path / "runs")])
    assert found.models == ["x"]
    assert labels(found) == ["passes", "EPM-Q", "EA", "EU", "Overall", "EQ-Bench v2"]
    assert compare([f"mine={tmp_path / 'runs'}"]).models == ["mine"]
    v2(tmp_path / "runs" / "y-v2", "y", 171)
    assert compare([str(tmp_path / "runs")]).models == ["x", "y"]
    with pytest.raises(InputError, match="holds several models. Omit 'mine='"):
        compare([f"mine={tmp_path / 'runs'}"])


def test_a_prompt_that_forbids_thinking_is_another_column(tmp_path):
    one, two = (emobench(tmp_path / m, m, no_think=m == "b") for m in "ab")
    found = compare([str(one), str(two)])
    assert labels(found)[:2] == ["EA, no_think no", "EA, no_think yes"] and found.differences == []


def test_latex_shows_the_judge(tmp_path):
    text = FORMS["latex"](compared([entry("a", meaning={"judge": "big_judge"})]))
    shown = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert r"EQ-Bench: EQ-Bench 3, judge big\_judge\par" in shown


# ---- EMPA


def put(folder, *dialogues):
    with JsonlWriter(folder / "dialogues" / "d.jsonl") as out:
        for item in dialogues:
            out.write_dialogue(item)
    return folder


def played(case, progress=2, turns=12, repeat=1, **kw):
    cast = dict.fromkeys(("user", "director", "judge"), "big")
    forms = [marks(RUBRIC, progress)] * turns
    return dialogue(RUBRIC, forms, id=f"{case}_{repeat}", scenario=case, **{"cast": cast, **kw})


def test_repeats_of_a_case_are_averaged(tmp_path):
    talks = [played("s1"), played("s1", 0, repeat=2), played("s2"), played("s2", repeat=2)]
    passes, quality = read_empa(put(tmp_path, *talks))
    assert (passes.passes, passes.n, passes.of, passes.value) == (3, 4, 4, 75.0)
    assert {name: case.score for name, case in passes.cases.items()} == {"s1": 50.0, "s2": 100.0}
    assert quality.value == pytest.approx(np.mean([case.score for case in quality.cases.values()]))
    assert quality.meaning["judge"] == "big" and quality.meaning["turns"] == "12 to 45"
    assert quality.interval is None and passes.interval is None  # two cases


def test_passes_have_an_interval(tmp_path):
    once = [played(f"s{i}", 2 if i < 7 else 0) for i in range(10)]
    passes, _ = read_empa(put(tmp_path / "a", *once))
    ends = scipy_stats.binomtest(7, 10).proportion_ci(method="wilson")
    assert passes.interval == pytest.approx((100 * ends.low, 100 * ends.high))
    all_of_them, _ = read_empa(put(tmp_path / "b", *once[:7]))
    assert all_of_them.interval == pytest.approx((64.57, 100.0), abs=0.01)  # not 100 to 100
    # a case that passes or fails as a whole says no more with three repeats than with one
    often = [played(f"s{i}", 2 if i < 7 else 0, repeat=r) for i in range(10) for r in (1, 2, 3)]
    repeated, _ = read_empa(put(tmp_path / "c", *often))
    assert repeated.value == 70.0 and repeated.interval[0] < 45 and repeated.interval[1] > 95


def test_cases_repeated_unevenly_are_noted(tmp_path):
    one = put(tmp_path / "a", *(played(f"s{i}", repeat=r, model="a") for i in range(3) for r in (1, 2)))
    lame = [played("s0", model="b"), *(played(f"s{i}", repeat=r, model="b") for i in (1, 2) for r in (1, 2))]
    found = compare([str(one), str(put(tmp_path / "b", *lame))])
    told = "'b' and 'a' (passes, EPM-Q): 1 case was repeated more often by one of the two; means are compared"
    assert told in found.notes


def test_cases_that_start_elsewhere_are_noted(tmp_path):
    one = put(tmp_path / "a", *(played(f"s{i}", model="a") for i in range(3)))
    two = put(tmp_path / "b", *(played(f"s{i}", model="b", level=2 if i else 1) for i in range(3)))
    notes = compare([str(one), str(two)]).notes
    told = "1 case starts at other levels in one of the two; give both runs the same start levels"
    assert f"'b' and 'a' (passes, EPM-Q): {told}" in notes


def test_dialogues_of_other_judges_or_rules_are_other_columns(tmp_path):
    other = {"cast": dict.fromkeys(("user", "director", "judge"), "small")}
    one = put(tmp_path / "a", played("s1"), played("s2", **other), played("s3", max_turns=20))
    found = compare([str(one)])
    assert [c for c in labels(found) if "EPM-Q" in c] == [
        "EPM-Q, judge big, turns 12 to 45",
        "EPM-Q, judge small, turns 12 to 45",
        "EPM-Q, judge big, turns 12 to 20",
    ]


def test_an_unknown_judge_compares_with_nothing_but_itself(tmp_path):
    one, two = (put(tmp_path / name, played("s1", cast={}, model=name)) for name in "ab")
    found = compare([str(one), str(two)])
    assert found.differences == [] and len(found.columns) == 4
    assert "unknown" in labels(found)[0]


def test_a_turn_limit_below_the_minimum_is_named_alone(tmp_path):
    [_, quality] = read_empa(put(tmp_path, played("s1", turns=4, max_turns=4)))
    assert quality.meaning["turns"] == "at most 4"


def test_start_levels_are_named_only_if_a_file_gave_them(tmp_path):
    [_, quality] = read_empa(put(tmp_path, played("s1")))
    assert "start levels" not in quality.meaning


def test_notes_of_an_empa_folder(tmp_path):
    folder = put(tmp_path, *[played(f"s{i}", turns=3) for i in range(2)])
    with open(folder / "dialogues" / "d.jsonl", "a") as file:
        file.write("nonsense\n" * 7 + "torn")
    passes, _ = read_empa(folder)
    assert passes.value is None and (passes.n, passes.of) == (2, 10)
    told = " ".join(passes.notes)
    assert "2 unfinished dialogues" in told and "excluded: 2 more" in told and "torn" in told
    ended = Ending(StopReason.BROKEN)
    broken = put(tmp_path / "b", played("s1"), replace(played("s2"), error="x", ending=ended))
    [passes, _] = read_empa(broken)
    assert (passes.n, passes.of) == (1, 2) and "1 broken dialogue excluded" in passes.notes


def test_nothing_that_could_be_scored(tmp_path):
    with pytest.raises(InputError, match="no dialogue in the folder could be scored: .*no judged turn"):
        read_empa(put(tmp_path, dialogue(RUBRIC, [None] * 3)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no result files"):
        compare([str(tmp_path / "empty")])


def test_two_published_models_have_their_published_figures(two_models):
    want = json.loads(published("epmq_expected.json").read_text(encoding="utf-8"))["models"]
    found = compare([str(two_models)])
    assert found.models == ["claude-3.5-sonnet", "llama-3.3-70b-instruct"]
    assert labels(found) == ["passes", "EPM-Q"]
    for model in found.models:
        passes, quality = (found.cells[model, label] for label in labels(found))
        assert (passes.passes, passes.n, passes.of) == (want[model]["n_success"], 30, 30)
        assert round(quality.value, 2) == want[model]["published"]["EPM-Q Score"]
        assert quality.meaning["judge"] == "google/gemini-2.5-pro"
    for d in found.differences:
        a, b = (found.cells[m, d.column].value for m in (d.model, d.baseline))
        assert d.n == 30 and d.mean == pytest.approx(a - b) and d.interval[1] < 0 and d.p_holm < 0.001


# ---- what people read


def test_columns_of_one_name_have_letters_and_a_legend_that_begins_with_what_differs():
    one, two = ({"rubric": f"empathy {'0123456789abcdef'}", "judge": j} for j in ("big", "bigger"))
    many = [entry("a", n, meaning=m, benchmark="EMPA") for n in ("passes", "EPM-Q") for m in (one, two)]
    found = compared([*many, entry("a")])
    assert [c.short for c in found.columns] == ["passes A", "passes B", "EPM-Q A", "EPM-Q B", "EQ-Bench"]
    assert labels(found)[0] == "passes, judge big"  # in full for programs
    told = legend(found)
    assert told[0] == "passes A; EPM-Q A: EMPA, judge big, rubric empathy 0123456, 3 scenarios"
    assert told[1].startswith("passes B; EPM-Q B: EMPA, judge bigger, ") and "EQ-Bench: EQ-Bench 3" in told[2]
    [heads] = [line for line in FORMS["markdown"](found).splitlines() if line.startswith("| model |")]
    assert heads == "| model | passes A | passes B | EPM-Q A | EPM-Q B | EQ-Bench |"


def test_more_measures_than_letters():
    found = compared([entry(meaning={"judge": f"j{n}"}) for n in range(28)])
    assert [c.short for c in found.columns][-3:] == ["EQ-Bench Z", "EQ-Bench A1", "EQ-Bench B1"]


def test_a_wide_table_goes_on_below(capsys):
    names = [f"model-{'x' * 30}-{n}" for n in range(2)]
    wide = [entry(m, meaning={"judge": f"j{n}"}, interval=(40.0, 60.0)) for m in names for n in range(9)]
    print_comparison(compared(wide))
    told = capsys.readouterr().out.splitlines()
    heads = [line for line in told if line.split()[:2] == ["model", "EQ-Bench"]]
    assert len(heads) == 2 and "EQ-Bench A" in heads[0] and "EQ-Bench I" in heads[1]
    tables = told[: next(at for at, line in enumerate(told) if "Differences" in line)]
    assert sum(names[0] in line for line in tables) == 2 and max(map(len, tables)) <= 110  # nothing folded


def test_notes_say_which_run_they_are_of():
    one = entry("a", notes=("odd",), source="runs/first", n=3, of=5, value=None)
    two = entry("a", meaning={"judge": "y"}, notes=("odd",), source="runs/second")
    found = compared([one, two])
    assert any(
        note.startswith("'a', EQ-Bench A (runs/first): incomplete, 3 of 5 have a score: not shown")
        for note in found.notes
    )
    assert "'a', EQ-Bench 3 A (runs/first); 'a', EQ-Bench 3 B (runs/second): odd" in found.notes


def test_a_note_about_several_pairs_is_said_once():
    found = compared([entry("a"), entry("b"), entry("c")])
    [few] = [note for note in found.notes if "3 cases; intervals" in note]
    assert few.startswith("'b' and 'a' (EQ-Bench); 'c' and 'a' (EQ-Bench): only 3 cases")


def test_each_training_is_held_against_its_own_start_too():
    def rows(name, before, after):
        yield entry(f"{name}, before", scores=before)
        yield entry(f"{name}, after", scores=after, baseline=f"{name}, before")

    scores = ((50, 60, 70), (60, 70, 80)), ((10, 20, 30), (11, 22, 33))
    found = compared([e for n, (b, a) in zip("xy", scores, strict=True) for e in rows(n, b, a)])
    pairs = {(d.model, d.baseline): d.mean for d in found.differences}
    assert pairs == {
        ("x, after", "x, before"): 10.0,
        ("y, before", "x, before"): -40.0,
        ("y, after", "x, before"): -38.0,
        ("y, after", "y, before"): 2.0,
    }
    assert {d.p_holm for d in found.differences} == {1.0}  # 4 * 0.25: corrected among all four
    told = differences_table(found)
    assert told.title == "Differences, paired by case" and told.columns[:3] == ["model", "from", "score"]
    assert ["y, after", "y, before", "EQ-Bench", "+2.00"] in [row[:4] for row in told.rows]
    lines = {line["model"]: line for line in csv.DictReader(FORMS["csv"](found).splitlines())}
    assert (lines["y, after"]["baseline"], lines["y, after"]["difference"]) == ("x, before", "-38.0")
    assert (lines["y, after"]["before"], lines["y, after"]["gain"]) == ("y, before", "2.0")
    assert lines["x, after"]["gain"] == lines["x, after"]["difference"] == "10.0"
    assert lines["y, before"]["gain"] == ""
    assert "x, before" in FORMS["latex"](found) and "lllrrrrr" in FORMS["latex"](found)


def test_the_order_of_rows_does_not_move_an_interval():
    rng = np.random.default_rng(5)
    rows, strata = rng.normal(size=(40, 3)), ["a", "b"] * 20
    order = rng.permutation(40)

    def ends(picked):
        return bootstrap(rows[picked], lambda m: m, strata=[strata[i] for i in picked])

    assert np.array_equal(ends(np.arange(40)), ends(order))


def test_passes_with_an_unmet_axis_stand_beside_the_passes():
    rows = [entry("a", passes=2, unmet=1, n=4, of=4), entry("b", passes=2, n=4, of=4)]
    column = SimpleNamespace(name="passes")
    assert [figure(row, column) for row in rows] == ["2/4 (1 unmet)", "2/4"]


def test_a_folder_of_runs_leaves_out_what_cannot_be_read(tmp_path, caplog):
    training(tmp_path / "runs" / "good", cases=4)
    broken = training(tmp_path / "runs" / "broken", cases=4)
    for file in (broken / "eval").rglob("*.jsonl"):
        file.write_text("")
    names = {entry.model for entry in read_run(str(tmp_path / "runs"))}
    assert names == {"good, before", "good, after"}
    assert "left out" in caplog.text
    for file in (tmp_path / "runs" / "good" / "eval").rglob("*.jsonl"):
        file.write_text("")
    with pytest.raises(MapoError):
        read_run(str(tmp_path / "runs"))
