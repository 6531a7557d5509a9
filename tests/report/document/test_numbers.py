"""What a report draws is what the records hold."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mapo import advantages
from mapo.report.document import numbers, plots
from mapo.report.document.blocks import format_interval, format_number
from mapo.report.document.numbers import Point
from mapo.report.sections.credit import by_turn
from mapo.report.sections.learning import dialogue_statistics, learning, speed
from mapo.report.sections.trajectories import chosen_cases
from mapo.runs.contents import number
from mapo.runs.training import evenly_spaced, read_ledger, read_training
from mapo.show import figures
from mapo.show.figures import Panel, Picture
from mapo.text import clip
from support.report_runs import group, step, talk, training, write_lines

matplotlib = pytest.importorskip("matplotlib")


def axes_of(panel: Panel):
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    panel.draw(axes)
    return axes


def pictures(blocks) -> dict[str, Picture]:
    return {b.name: b for b in blocks if isinstance(b, Picture)}


@pytest.fixture
def run(tmp_path):
    return read_training(training(tmp_path / "run"))


# ---- curves


def test_the_learning_curves_are_the_metrics(run):
    reward, score = pictures(learning(run))["fig_learning_curves"].panels
    (line,) = axes_of(reward).lines
    assert list(line.get_xdata()) == [1, 2, 3, 4, 5, 6]
    assert list(line.get_ydata()) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    axes = axes_of(score)
    training_line, dots, *references = axes.lines
    assert list(training_line.get_ydata()) == [21, 22, 23, 24, 25, 26]
    assert [round(line.get_ydata()[0]) for line in references] == [33, 89]
    assert list(dots.get_xdata()) == [3, 6] and list(dots.get_ydata()) == [40, 40]
    assert axes.get_xlabel() == "step" and "EPM-Q" in axes.get_ylabel()
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["training", "validation"]
    assert len(axes.collections) == 0  # one scenario per step: no interval, no band


def test_gradients_dialogues_and_speed_are_the_metrics(run):
    found = pictures([*learning(run), *dialogue_statistics(run), *speed(run)])
    (norm,) = found["fig_gradient_norms"].panels
    assert list(axes_of(norm).lines[0].get_ydata()) == pytest.approx([1 / n for n in range(1, 7)])
    titles = [panel.title for panel in found["fig_update"].panels]
    assert titles == [
        "Entropy",
        "KL from the sampling policy",
        "Clip fraction",
    ]  # kl_start was not measured
    ended = next(p for p in found["fig_dialogues"].panels if p.title == "Endings")
    bars = list(axes_of(ended).containers)
    assert [c.get_label() for c in bars] == ["success", "turn limit"]
    assert [r.get_height() for r in bars[0]] == pytest.approx([0.25] * 6)
    assert [r.get_y() for r in bars[1]] == [0.25] * 6 and [r.get_height() for r in bars[1]] == [0.75] * 6
    tokens, clock = found["fig_speed"].panels
    assert [line.get_ydata()[0] for line in axes_of(tokens).lines] == [100, 200]
    assert axes_of(clock).get_ylabel() == "seconds" and "judge" not in found["fig_speed"].caption
    for line in run.steps:
        line["model_s"] = 0.25
    at_work = pictures(speed(run))["fig_speed"]
    assert [line.get_ydata()[0] for line in axes_of(at_work.panels[1]).lines] == [1, 0.25, 2]
    assert "spent on user, director and judge" in at_work.caption


def test_intervals_resample_scenarios(run):
    # scenarios' (sum of rewards, turns): 10 n of two siblings with one turn each
    played = [talk([n], id=f"{n}_{k}", scenario=f"s{n}") for n in (-2, -1, 0, 1, 2, 2) for k in (0, 1)]
    played[-2:] = [talk([2], id=f"other_{k}", scenario="other") for k in (0, 1)]
    low, high = numbers.reward_intervals({1: played})[1]
    assert -20 <= low < 20 / 6 < high <= 20
    more = [replace(d, id=f"{d.id}_again") for d in played]
    assert numbers.reward_intervals({1: [*played, *more]})[1] == pytest.approx((low, high))


def test_scores_have_intervals_over_scenarios(run):
    played = [talk([n, 1], id=f"{i}", scenario=f"s{i}") for i, n in enumerate((-2, -1, 0, 1, 2, 2))]
    low, high = numbers.score_intervals({1: played}, run.root, problems := [])[1]
    each = [numbers.quality(r) for r in numbers.recomputed(played, run.root, problems)]
    assert min(each) <= low < np.mean(each) < high <= max(each)
    assert not problems


def test_few_scenarios_have_no_interval(run):
    played = {step: dialogues for step, dialogues in run.played.items() if step == 1}
    assert numbers.reward_intervals(played) == {}  # four siblings of one scenario
    assert numbers.score_intervals(played, run.root, []) == {}


def test_a_mean_over_runs_has_students_interval():
    # at x = 1: 10 and 12, mean 11, s = sqrt 2, half width t(1) * s / sqrt 2 = 12.706
    a, b = [Point(1, 10.0), Point(2, 5.0)], [Point(1, 12.0)]
    first, second = numbers.mean_over_runs([a, b])
    assert (first.x, first.y) == (1, 11) and first.high - first.y == pytest.approx(12.706, abs=1e-3)
    assert second == Point(2, 5.0, None, None)


def test_metrics_by_the_number_of_dialogues():
    steps = [step(1), step(2, dialogues="many"), step(3, score=None), step(4)]
    assert [(p.x, p.y) for p in numbers.by_dialogues(steps, "score")] == [(4, 21), (4, 22), (12, 24)]


# ---- by turn


def test_rewards_and_returns_by_turn_are_the_trainers(run):
    found = by_turn(run, [1])
    assert found.rewards == [[10, 10, 0], [0, 10, 10], [10, None, 20], [0, 0, -10]]
    # G_t = r_t + 0.5 G_{t+1}; the unscored turn adds nothing and has no return of its own
    assert found.returns == [[15, 10, 0], [7.5, 15, 10], [15, None, 20], [-2.5, -5, -10]]
    table = numbers.quantiles_by_turn(found.rewards)
    assert table.shape == (3, 6)
    assert list(table[:, 0]) == [4, 3, 4]
    assert list(table[:, 3]) == [5.0, 10.0, 5.0]  # medians of (0 0 10 10), (0 10 10), (-10 0 10 20)
    axes = axes_of(Panel("", plots.distribution(table, "reward", (-10.0, 20.0))))
    median = axes.lines[0]
    assert list(median.get_xdata()) == [1, 2, 3] and list(median.get_ydata()) == [5.0, 10.0, 5.0]
    assert numbers.quantiles_by_turn([]).shape == (0, 6) and numbers.quantiles_by_turn([[None]]).shape == (
        0,
        6,
    )


def test_credit_is_what_the_trainer_gives(run):
    usable, found = numbers.step_credit(run.played[2], run.advantage, run.root)
    expected = advantages(numbers.rewards_of(usable), ["2_s"] * 4, "mapo", gamma=0.5)
    for ours, theirs in zip(found.mixed, expected.mixed, strict=True):
        assert list(ours) == list(theirs)
    assert numbers.step_credit([], run.advantage, run.root)[1].mixed == []


def test_what_no_estimator_takes_has_no_credit(run):
    nonsense = run.advantage.model_copy(update={"gamma": -1.0})
    assert "gamma is -1.0" in numbers.step_credit(run.played[1], nonsense, run.root)[1]
    found = by_turn(replace(run, advantage=nonsense), [1])
    assert found.returns == [] and "gamma is -1.0" in found.problem


def test_broken_and_unknown_dialogues_are_left_out(run):
    foreign = replace(talk([1]), rubric="of another world")
    given = [replace(talk([1]), error="gone"), talk([None]), foreign, talk([1])]
    assert len(numbers.recomputed(given, run.root, problems := [])) == 1
    assert "of another world" in problems[0]
    assert numbers.score_intervals({1: [talk([1])]}, run.root, []) == {}  # one dialogue has no spread


def test_the_first_and_the_last_third():
    assert numbers.thirds([1, 2, 3, 4, 5, 6]) == ([1, 2], [5, 6])
    assert numbers.thirds([4]) == ([4], [4]) and numbers.thirds([]) == ([], [])


# ---- before and after


def test_a_path_starts_at_minus_one_and_goes_to_the_origin(run):
    result = numbers.recomputed([talk([2, 2, 2])], run.root, [])[0]
    along, aside = numbers.path_of(result)
    states = result.path.states
    assert along[0] == -1 and aside[0] == 0
    assert along[-1] == pytest.approx(states[-1].projection / states[0].norm)
    # the rounded norm and projection are the two sides of a right triangle
    assert (along[-1] ** 2 + aside[-1] ** 2) ** 0.5 == pytest.approx(
        states[-1].norm / states[0].norm, abs=1e-9
    )
    drawn = axes_of(
        Panel("", plots.paths([plots.ScenarioPaths(figures.AFTER, [(along, aside)])], (-1.1, 0.1, 0.3)))
    )
    assert any(list(line.get_xdata()) == along for line in drawn.lines)


def test_scenarios_are_ordered_by_gain(run):
    def of(level, case):
        return numbers.recomputed([talk([level] * 3, id=case, scenario=case)], run.root, [])[0]

    before = [of(1, "a"), of(0, "b"), of(2, "c")]
    after = [of(1, "a"), of(2, "b"), of(0, "c")]
    assert chosen_cases(before, after) == (["c", "a", "b"], 3)
    many = [of(0, f"{k:02d}") for k in range(30)]
    picked, count = chosen_cases(many, many)
    assert count == 30 and len(picked) == 12 and picked[0] == "00" and picked[-1] == "29"


def test_the_pair_shown_is_the_median_one():
    before = [talk([0, 0, 0], id=f"d{k}") for k in range(3)]
    after = [talk([k, k, k], id=f"d{k}") for k in range(3)]
    first, second = numbers.typical_pair(before, after)
    assert (first.id, second.id) == ("d1", "d1")
    assert numbers.typical_pair([replace(before[0], error="gone")], after) is None
    unjudged = replace(before[1], turns=(replace(before[1].turns[0], state=None),))
    assert numbers.typical_pair([unjudged], after)[0] is unjudged


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (0, {}),
        (1, {"only": "d0"}),
        (2, {"better": "d1", "worse": "d0"}),
        (4, {"best": "d3", "median": "d2", "worst": "d0"}),
    ],
)
def test_examples_are_chosen_by_gain(count, names):
    before = [talk([0, 0], id=f"d{k}") for k in range(count)]
    after = [talk([k - 1] * 2, id=f"d{k}") for k in range(count)]
    unjudged = talk([None], id="x")
    chosen = numbers.example_pairs([*before, unjudged], [unjudged, *after])
    assert {name: early.id for name, early, _ in chosen} == names
    assert all(late is after[int(early.id[1:])] for _, early, late in chosen)


def test_the_pair_does_not_depend_on_the_order_of_the_records():
    before = [talk([0, 0, 0], id=f"d{k}") for k in range(5)]
    after = [talk([1, 1, 1], id=f"d{k}") for k in range(5)]
    assert numbers.typical_pair(before, after)[0].id == "d2"
    assert numbers.typical_pair(before[::-1], after)[0].id == "d2"


# ---- reading


def test_a_long_run_is_read_evenly(tmp_path):
    root = training(tmp_path / "run", steps=9)
    size = (root / "dialogues" / "step_00001.jsonl").stat().st_size
    run = read_training(root, budget=3 * size + 100)
    assert sorted(run.played) == [1, 5, 9]
    assert "3 steps sampled evenly" in pictures(learning(run))["fig_learning_curves"].caption
    assert read_training(root, budget=0).played == {}
    assert evenly_spaced([1, 2, 3], 10) == [1, 2, 3] and evenly_spaced([], 3) == []


def test_every_process_writes_and_the_last_of_an_id_counts(tmp_path):
    root = training(tmp_path / "run", steps=1)
    first = group(1)[0]
    write_lines(root / "dialogues" / "step_00001.1.jsonl", [replace(first, id="new")])
    broken = replace(first, id="b", error="gone", ending=None)
    write_lines(root / "dialogues" / "step_00001.jsonl", [broken, first, replace(first, id="b")])
    found = {d.id: d for d in read_training(root).played[1]}
    assert set(found) == {"new", "b", first.id} and found["b"].error is None


def test_ledgers_are_added_up(tmp_path):
    row = {"role": "judge", "model": "j", "calls": 2, "prompt": 10, "cost": 0.5}
    (tmp_path / "ledger.json").write_text(json.dumps({"rows": [row, "no row"]}))
    (tmp_path / "ledger.1.json").write_text(json.dumps({"rows": [{**row, "calls": "x", "cost": 1.0}]}))
    (found,) = read_ledger(tmp_path, problems := [])
    assert (found["calls"], found["prompt"], found["cost"]) == (2, 20, 1.5) and not problems
    (tmp_path / "ledger.2.json").write_text(json.dumps({"rows": [{**row, "cost": None}]}))
    assert read_ledger(tmp_path, [])[0]["cost"] is None
    (tmp_path / "ledger.3.json").write_text("{")
    read_ledger(tmp_path, problems)
    assert "not JSON" in problems[0]


# ---- small things


def test_numbers_and_intervals_as_text():
    assert [number(x) for x in (1, 2.5, True, "3", None, float("nan"), float("inf"), 1e300, 10**400)] == [
        1.0, 2.5, None, None, None, None, None, None, None,
    ]  # fmt: skip
    assert (
        format_number(-0.001, "+.2f") == "+0.00"
        and format_number(-0.001, ".2f") == "0.00"
        and format_number("x") == "–"
    )
    assert (
        format_interval((1.0, 2.0)) == "1.0 to 2.0"
        and format_interval(None) == "–"
        and format_interval([1.0, None]) == "–"
    )


def test_text_is_bounded_and_turned_the_right_way():
    assert clip("a\u202eb\x00c\ud800", 120) == "a\ufffdb\ufffdc\ufffd"
    assert clip("می\u200cخواهم 👩\u200d👧", 120) == "می\u200cخواهم 👩\u200d👧"
    assert clip("x" * 500, 120) == "x" * 120 + "…"
    assert clip("x" * 5000, 4000).endswith("x… (1,000 more characters)")


def test_names_the_fonts_cannot_write_are_numbers(monkeypatch):
    assert figures.drawable("career", "1") == "career"
    assert figures.drawable("\U0001f9ff\U0001f9ff", "1") == "1" and figures.drawable("", "2") == "2"
    assert figures.drawable("x" * 50, "1", 10) == "x" * 10 + "…"
    figures.glyphs.cache_clear()
    monkeypatch.setattr(figures, "fonts", lambda: ("DejaVu Sans",))
    assert figures.drawable("夜班", "3") == "3"
    figures.glyphs.cache_clear()


def test_a_chinese_font_that_matplotlib_has_not_listed_yet_is_found(monkeypatch):
    from matplotlib import font_manager

    class Manager:
        def __init__(self):
            self.ttflist = [SimpleNamespace(name="DejaVu Sans")]

        def addfont(self, path):
            self.ttflist.append(SimpleNamespace(name="Noto Sans CJK JP"))

    there = ["/fonts/Other.ttf", "/fonts/NotoSansCJK-Bold.ttc", "/fonts/NotoSansCJK-Regular.ttc"]
    monkeypatch.setattr(font_manager, "fontManager", Manager())
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: there[:2])
    assert figures.fonts.__wrapped__() == ("DejaVu Sans",)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: there)
    assert figures.fonts.__wrapped__() == ("DejaVu Sans", "Noto Sans CJK JP")
    assert figures.fonts.__wrapped__() == ("DejaVu Sans", "Noto Sans CJK JP")  # listed now


def test_chinese_words_are_drawn_glyphs_in_a_pdf():
    from matplotlib.figure import Figure

    plain, chinese = Figure(), Figure()
    plain.subplots().set_title("day")
    chinese.subplots().set_title("夜班")
    assert figures._holds_chinese(chinese) and not figures._holds_chinese(plain)


@pytest.mark.figures
def test_hostile_names_are_drawn_as_text(recwarn):
    names = ["_hidden", "$\\frac{1}{", "</svg><script>alert(1)</script>", "a\nb", "夜班" * 30]
    lines = {name: [Point(1, i), Point(2, i)] for i, name in enumerate(names)}
    svg = figures.panel_svg(Panel("x", plots.curves(lines, "y")))
    assert "<script" not in svg and "&lt;script&gt;" in svg and "_hidden" in svg
    assert not [w for w in recwarn if "Glyph" in str(w.message)]


def test_rows_of_scores_are_the_scores():
    rows = [("EA", [Point(0, 50.0, 40.0, 60.0), None]), ("EU", [None, Point(0, 20.0)])]
    axes = axes_of(Panel("", plots.bars(rows, ["one", "two"], "points")))
    assert [t.get_text() for t in axes.get_yticklabels()] == ["EA", "EU"]
    assert [list(c.lines[0].get_xdata()) for c in axes.containers] == [[50.0], [20.0]]
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["one", "two"]
    assert plots.label_width(["x" * 99]) == 2.0


def test_files_of_a_picture(tmp_path):
    panel = Panel("Title 夜班 \U0001f9ff", plots.curves({"a": [Point(1, 2.0)]}, "y"))
    picture = Picture(
        "fig_x", "", [panel] * 3, columns=2, key=[(figures.BEFORE, "before")], labels=("x", "y")
    )
    paths = figures.save_picture(picture, tmp_path)
    assert [p.name for p in paths] == ["fig_x.png", "fig_x.pdf", "fig_x.svg"]
    assert paths[0].read_bytes().startswith(b"\x89PNG") and paths[1].read_bytes().startswith(b"%PDF")
    first = [p.read_bytes() for p in paths[1:]]
    figures.save_picture(picture, tmp_path)
    assert first == [p.read_bytes() for p in paths[1:]]  # the same numbers, the same file


def test_without_matplotlib_there_are_no_figures(monkeypatch, tmp_path):
    from mapo.errors import InputError

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not figures.can_draw()
    with pytest.raises(InputError, match="matplotlib"):
        figures.save_picture(Picture("fig_x", "", []), tmp_path)
