"""Charts made of characters."""

from __future__ import annotations

from mapo.show.text_chart import MAX_ROWS, text_chart


def row_of(lines: list[str], sign: str) -> str:
    (line,) = [line for line in lines if sign in line]
    return line


def test_a_point_stands_in_the_row_of_its_value():
    lines = text_chart({"*": [(1, 3.0), (2, 5.0)], "o": [(2, 4.0)]})
    assert [line.partition("|")[0].strip() for line in lines[:3]] == ["5", "4", "3"]
    assert row_of(lines, "o").startswith("   4 |")
    assert lines[0].endswith("*")
    assert lines[2] == "   3 |*"


def test_the_axis_names_the_first_and_the_last_step():
    assert text_chart({"*": [(7, 1.0), (90, 2.0)]})[-1].split() == ["step", "7", "90"]


def test_one_step_has_one_point():
    lines = text_chart({"*": [(1, 30.2)]})
    assert lines[-1].split() == ["step", "1"]
    assert "".join(lines).count("*") == 1


def test_references_are_named_lines():
    lines = text_chart({"*": [(1, 2.0)]}, [("floor", 0.0), ("a\x1b[2J", 9.0), ("same", 9.2)])
    assert row_of(lines, "floor").startswith("   0 |- - ")
    assert ", same" in row_of(lines, "same") and "\x1b" not in "".join(lines)


def test_a_long_run_fits_and_is_averaged():
    # Steps alternate between 0 and 100: a column of many steps holds their mean, 50.
    lines = text_chart({"*": [(n, 100.0 * (n % 2)) for n in range(10_000)]}, [("top", 100.0)], width=60)
    assert max(map(len, lines)) <= 60 and len(lines) <= MAX_ROWS + 3
    assert all(" 40 |" in line or " 50 |" in line or " 60 |" in line for line in lines if "*" in line)


def test_huge_and_equal_values_are_drawn():
    assert any("*" in line for line in text_chart({"*": [(1, -1e12), (2, 1e12)]}))
    assert any("*" in line for line in text_chart({"*": [(1, 5.0), (2, 5.0)]}))


def test_no_points_are_no_chart():
    assert text_chart({"*": []}, [("floor", 0.0)]) == []
