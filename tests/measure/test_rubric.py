"""Rubrics are data: both shipped ones go through the same tests, and bad files are refused."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from mapo import Mark, Rubric, RubricError
from mapo.measure.rubric import SHIPPED
from support.builders import marks


def shipped_text(name: str) -> str:
    return (files("mapo") / "domains" / name / "rubric.toml").read_text(encoding="utf-8")


@pytest.fixture(params=SHIPPED)
def rubric(request) -> Rubric:
    return Rubric.load(request.param)


def test_shipped_rubrics_differ_in_dimension():
    assert Rubric.load("empathy").keys == ("C", "A", "P")
    assert Rubric.load("tutoring").keys == ("M", "U", "S", "G")


def test_start_sums_deficits_per_axis(rubric):
    nothing = rubric.start({i.key: 0 for i in rubric.indicators})
    deepest = rubric.start({i.key: Mark(len(i.deficit) - 1) for i in rubric.indicators})
    assert nothing == (0.0,) * len(rubric.axes)
    for key, value in zip(rubric.keys, deepest, strict=True):
        assert value == sum(i.deficit[-1] for i in rubric.indicators if i.axis == key)


def test_step_adds_progress_and_regression(rubric):
    # level 2 / -1 on every axis: progress[2] + regression[1]
    step = rubric.step(marks(rubric, 2, -1))
    assert step == tuple(a.progress[2] + a.regression[1] for a in rubric.axes)


def test_empathy_tables():
    rubric = Rubric.load("empathy")
    # C.1 C.2 A.1 P.1 weigh 2 a level, C.3 A.3 P.3 weigh 3, A.2 P.2 weigh 4
    assert rubric.start({i.key: 1 for i in rubric.indicators}) == (-7, -9, -9)
    assert rubric.step(rubric.levels(C=(2, -2), A=(1, -2), P=(0, -1))) == (3 - 4, 1 - 5, -2)


@pytest.mark.parametrize(("progress", "regression"), [(3, 0), (-1, 0), (0, 1), (0, -3)])
def test_levels_out_of_range_name_the_axis(rubric, progress, regression):
    with pytest.raises(RubricError, match=rf"turn form, {rubric.keys[0]}\.(progress|regression): level"):
        rubric.step(marks(rubric, progress, regression))


@pytest.mark.parametrize("level", [1.0, "1", None, True])
def test_levels_that_are_no_integers_are_refused(rubric, level):
    with pytest.raises(RubricError, match="not an integer"):
        rubric.step(marks(rubric, level))


def test_forms_with_other_keys_are_refused(rubric):
    form = marks(rubric, 1)
    form["X"] = form.pop(rubric.keys[0])
    with pytest.raises(RubricError, match=f"missing {rubric.keys[0]}; unknown X"):
        rubric.step(form)
    start = {i.key: 0 for i in rubric.indicators}
    with pytest.raises(RubricError, match="start form.*out of range"):
        rubric.start({**start, rubric.indicators[0].key: 9})
    start.pop(rubric.indicators[0].key)
    with pytest.raises(RubricError, match="start form: missing"):
        rubric.start(start)


def test_a_rubric_file_is_the_same_as_the_shipped_one(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(shipped_text("tutoring"), encoding="utf-8")
    assert Rubric.load(path) == Rubric.load("tutoring")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("progress = [0, 1, 3]", "progress = [0, 1]"), "as many descriptions as values"),
        (("progress = [0, 1, 3]", "progress = [1, 1, 3]"), "level 0 must have the value 0"),
        (("regression = [0, -2, -4]", "regression = [0, 2, -4]"), "wrong sign"),
        (("deficit = [0, -2, -4, -6]", "deficit = [0, 2, -4, -6]"), "must not be above 0"),
        (("deficit = [0, -2, -4, -6]", "deficit = [-1, -2, -4, -6]"), "level 0 must have the value 0"),
        (("deficit = [0, -2, -4, -6]", "deficit = [0, -2]"), "as many descriptions as deficits"),
        (('axis = "C"', 'axis = "Q"'), "no axis 'Q'"),
        (('key = "A"', 'key = "C"'), "two axes have the same key"),
        (('key = "C.2"', 'key = "C.1"'), "two indicators have the same key"),
        (("zone = 1.0", "zone = 1.0\n[ending]\nstagnant_window = 1\n"), "ending.stagnant_window"),
        (("zone = 1.0", "zone = 1.0\n[ending]\nmin_turns = 9\nmax_turns = 8\n"), "min_turns is greater"),
        (("zone = 1.0", "zone = 1.0\n[ending]\ncollapse_window = 0\n"), "ending.collapse_window"),
        (("zone = 1.0", "zone = -1"), "zone"),
        (("zone = 1.0", "zone = nan"), "zone"),
        (("zone = 1.0", "zome = 1.0"), "zome"),
        (("version = 1", ""), "version"),
        (("[[axes]]", "[[axes"), "TOML"),
    ],
)
def test_bad_rubric_files_say_what_and_where(tmp_path, change, words):
    path = tmp_path / "mine.toml"
    path.write_text(
        re.sub(re.escape(change[0]), change[1], shipped_text("empathy"), count=1), encoding="utf-8"
    )
    with pytest.raises(RubricError) as caught:
        Rubric.load(path)
    assert str(path) in str(caught.value) and words in str(caught.value)


def test_missing_rubric_lists_the_shipped_ones():
    with pytest.raises(RubricError, match="empathy, tutoring"):
        Rubric.load("no-such-rubric")


def test_rubric_without_axes_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('name = "x"\ntitle = ""\nversion = 1\naxes = []\nindicators = []\n', encoding="utf-8")
    with pytest.raises(RubricError, match="needs at least one axis"):
        Rubric.load(path)


@pytest.mark.parametrize("text", ["x = " + "[" * 5000, "x = " + "9" * 5000])
def test_rubric_nested_too_deep_or_with_an_endless_number_is_refused(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RubricError, match="not a readable TOML file"):
        Rubric.load(path)


def test_certain_levels_have_their_own_step_as_expectation(rubric):
    for up, down in ((0, 0), (1, -1), (2, -2)):
        certain = [[float(n == level) for n in range(3)] for level in (up, -down)] * len(rubric.axes)
        assert rubric.expected_step(certain) == rubric.step(marks(rubric, up, down))


def test_an_expected_step_weighs_the_values_of_the_levels():
    """C: 0.5 * 1 + 0.1 * 3 = 0.8 up, 0.25 * -2 + 0.05 * -4 = -0.7 down; A and P: 0.25 * -2 + 0.05 * -5."""
    rubric = Rubric.load("empathy")
    step = rubric.expected_step(((0.4, 0.5, 0.1), (0.7, 0.25, 0.05)) * 3)
    assert step == pytest.approx((0.1, 0.05, 0.05))


@pytest.mark.parametrize(
    "places",
    [
        (),
        ((1.0, 0.0, 0.0),) * 5,
        ((1.0, 0.0, 0.0),) * 7,
        ((1.0, 0.0),) * 6,
        ((0.5, 0.4, 0.0),) * 6,
        ((1.5, -0.5, 0.0),) * 6,
        ((float("nan"), 0.5, 0.5),) * 6,
        (("1", 0.0, 0.0),) * 6,
    ],
)
def test_what_is_no_distribution_over_the_levels_is_refused(places):
    with pytest.raises(RubricError, match="not the probabilities of"):
        Rubric.load("empathy").expected_step(places)
