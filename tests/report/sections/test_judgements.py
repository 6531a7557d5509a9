"""Judgements, as a table: shares of turns by axis, level and reason."""

from __future__ import annotations

from dataclasses import replace

from mapo.report.sections.judgements import MAX_REASONS, judgements
from mapo.show.tables import Table
from mapo.types import AxisMarks, Mark
from support.report_runs import RUBRIC, talk


def talks(*reasons, axis="C", level=1):
    """One dialogue whose turns are marked for these reasons; None: judged, and nothing to mark."""
    made = talk([0] * len(reasons))
    quiet = {key: AxisMarks(Mark(0), Mark(0)) for key in made.turns[0].levels}

    def marked(why):
        mark = Mark(level, "", why) if why is not None else Mark(0)
        both = AxisMarks(mark, Mark(0)) if level > 0 else AxisMarks(Mark(0), mark)
        return {**quiet, axis: both}

    turns = tuple(replace(t, levels=marked(why)) for t, why in zip(made.turns, reasons, strict=True))
    return replace(made, turns=turns)


def rows(**sets):
    found = [block for block in judgements(sets, RUBRIC) if isinstance(block, Table)]
    assert len(found) <= 1
    return [tuple(row) for row in found[0].rows] if found else []


def test_a_reason_behind_all_marks_of_a_level_stands_alone():
    assert rows(
        before=[talks("hears", None, None, None)], after=[talks("hears", "hears", "hears", None)]
    ) == [("Cognitive (C)", "+1", "hears", "25.0 %", "75.0 %")]


def test_several_reasons_follow_their_sum_the_frequent_ones_first():
    one, other = talks("cold", "cold", "cold", level=-1), talks("late", "late", None, level=-1)
    assert rows(now=[one, other]) == [
        ("Cognitive (C)", "-1", "any reason", "83.3 %"),
        ("Cognitive (C)", "-1", "cold", "50.0 %"),
        ("Cognitive (C)", "-1", "late", "33.3 %"),
    ]


def test_a_judge_that_words_every_reason_anew_is_counted_by_level():
    assert rows(now=[talks("why a", "why b", "why c", None)]) == [
        ("Cognitive (C)", "+1", "any reason", "75.0 %")
    ]
    assert rows(now=[talks("", "", None, None)]) == [("Cognitive (C)", "+1", "any reason", "50.0 %")]


def test_a_rare_reason_is_not_named():
    many = [talks(*["hears"] * 300), talks("odd", "odd", level=1)]
    assert [row[2] for row in rows(now=many)] == ["any reason", "hears"]
    assert [row[2] for row in rows(all=many, odd=many[1:])] == ["any reason", "hears", "odd"]


def test_no_level_names_reasons_without_end():
    said = [f"reason {i % 40}" for i in range(80)]
    assert len(rows(now=[talks(*said)])) == 1 + MAX_REASONS


def test_axes_and_levels_are_in_order_and_unjudged_turns_do_not_count():
    good, bad = talks("x", "x", axis="A", level=2), talks("y", "y", axis="A", level=-2)
    unjudged = replace(good, turns=tuple(replace(t, levels=None) for t in good.turns))
    assert rows(now=[bad, talks("z", "z"), good, unjudged]) == [
        ("Cognitive (C)", "+1", "z", "33.3 %"),
        ("Affective (A)", "+2", "x", "33.3 %"),
        ("Affective (A)", "-2", "y", "33.3 %"),
    ]


def test_harm_is_named_however_rare_unless_its_reasons_are_many():
    rare = [talks(*["hears"] * 300), talks("hurts", level=-1)]
    assert rows(now=rare)[-1] == ("Cognitive (C)", "-1", "hurts", "0.3 %")
    many = talks(*(f"harm {i}" for i in range(MAX_REASONS + 1)), level=-1)
    assert [row[2] for row in rows(now=[many])] == ["any reason"]


def test_without_a_rubric_axes_go_by_their_keys():
    (table,) = (block for block in judgements({"now": [talks("x", "x")]}, None) if isinstance(block, Table))
    assert table.rows[0][0] == "C"


def test_nothing_marked_is_nothing_told():
    assert judgements({"before": [], "after": [talks(None, None)]}, RUBRIC) == []
    assert rows(before=[talks(None)], after=[talks("x", "x")]) == [
        ("Cognitive (C)", "+1", "x", "0.0 %", "100.0 %")
    ]


def test_what_a_judge_wrote_is_bounded():
    (row,) = rows(now=[talks("\u202eevil\x07" + "x" * 500, "\u202eevil\x07" + "x" * 500)])
    assert len(row[2]) <= 121 and "\u202e" not in row[2] and "\x07" not in row[2]


def test_levels_that_were_read_out_are_shown_with_their_mean_probability():
    made = talks("hears", None)
    read = tuple(replace(turn, probabilities=((0.2, 0.6, 0.2), (0.8, 0.2, 0.0)) * 3) for turn in made.turns)
    blocks = judgements({"now": [replace(made, turns=read)]}, RUBRIC)
    mean = (0.6 + 5 * 0.2 + 6 * 0.8) / 12  # one progress of level 1, five of 0, six regressions of 0
    assert blocks[-1].text.endswith(f"mean probability is {mean:.2f}.")


def test_probabilities_that_do_not_fit_the_levels_are_ignored():
    made = talks("hears", None)
    odd = tuple(replace(turn, probabilities=((),)) for turn in made.turns)
    assert isinstance(judgements({"now": [replace(made, turns=odd)]}, RUBRIC)[-1], Table)
