"""One table type: the same cells in a terminal, in Markdown and in LaTeX, none of them taken for markup."""

from __future__ import annotations

import pytest

from mapo.show.tables import (
    Estimate,
    Table,
    fit_columns,
    interval_text,
    latex_table,
    markdown_table,
    markdown_text,
    p_text,
    plain_rows,
    print_tables,
)

EVIL = "[red]x[/] | `a` ![b](c) <script>alert(1)</script> \\end{tabular} $1$ \x1b[31m\u202e"
SCORES = Table(
    ["model", "score"],
    [["a", Estimate("1.50", "1.0 to 2.0")], ["b", "-"]],
    title="Scores",
    note="Higher is better.",
)


def test_markdown_has_title_table_and_note():
    assert markdown_table(SCORES, 2) == (
        "## Scores\n\n"
        "| model | score |\n| --- | ---: |\n| a | 1.50 (1.0 to 2.0) |\n| b | - |\n\n"
        "Higher is better."
    )


def test_a_title_without_a_level_is_bold():
    assert markdown_table(SCORES).startswith("**Scores**\n\n| model")


def test_a_table_without_rows_keeps_its_note():
    assert markdown_table(Table(["a"], [], title="T", note="Nothing.")) == "**T**\n\nNothing."


def test_latex_puts_intervals_into_brackets():
    assert latex_table(SCORES).splitlines() == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"{} model & score \\",
        r"\midrule",
        r"{} a & 1.50 [1.0 to 2.0] \\",
        r"{} b & - \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_a_terminal_shows_the_interval_below_its_number(capsys):
    print_tables([SCORES, Table(["empty"], [])])
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip(" ─━")]
    assert lines == [
        ["Scores"],
        ["model", "score"],
        ["a", "1.50"],
        ["1.0", "to", "2.0"],
        ["b", "-"],
        ["Higher", "is", "better."],
    ]


def test_a_table_without_columns_has_no_header(capsys):
    bare = Table((), [["a", "1"]])
    print_tables([bare])
    assert capsys.readouterr().out.split() == ["a", "1"]
    assert markdown_table(bare).startswith("|  |  |\n| --- | ---: |\n| a | 1 |")


@pytest.mark.parametrize(
    "first", ["a_name_of_forty_characters_that_is_whole", "a sentence of some words " * 3]
)
def test_no_column_is_cut_off_where_there_is_little_room(first, capsys):
    cells = [f"cell {n} with a few more words in it" for n in range(5)]
    print_tables([Table(["name", *"abcde"], [[first, *cells]])], 80)
    words = capsys.readouterr().out.split()
    assert all(words.count(str(n)) == 1 for n in range(5))
    assert ("a_name_of_forty_characters_that_is_whole" in words) == ("_" in first)


def test_a_terminal_shows_hostile_text_literally(capsys):
    print_tables([Table([EVIL], [[EVIL]], title=EVIL, note=EVIL)], 200)
    out = capsys.readouterr().out
    assert out.count("[red]x[/] | `a`") == 4
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_markdown_shows_hostile_text_literally():
    row = markdown_table(Table(["x"], [[EVIL]])).splitlines()[2]
    assert row.startswith(r"| \[red\]x\[/\] \| \`a\` \!\[b\](c) &lt;script&gt;")
    assert "\x1b" not in row


def test_latex_shows_hostile_text_literally():
    row = latex_table(Table(["x"], [[EVIL]])).splitlines()[4]
    assert r"\textbackslash{}end\{tabular\} \$1\$" in row


def test_long_cells_are_cut_where_asked():
    assert markdown_text("x" * 10, 4) == "xxxx…"
    assert "…" not in markdown_table(Table(["a"], [["x" * 1000]]))
    assert "x" * 5 not in markdown_table(Table(["a"], [["x" * 1000]]), limit=4)


def test_plain_rows_are_what_html_shows():
    assert plain_rows(SCORES) == [["a", "1.50 (1.0 to 2.0)"], ["b", "-"]]


def test_wide_tables_are_split_between_number_columns():
    wide = Table(["name", *"abcdef"], [["m", *(Estimate("1", "0.5 to 1.5") for _ in range(6))]])
    parts = fit_columns(wide, 40)
    assert [part.columns for part in parts] == [["name", "a", "b"], ["name", "c", "d"], ["name", "e", "f"]]
    assert all(row[0] == "m" for part in parts for row in part.rows)


@pytest.mark.parametrize(("p", "text"), [(None, "-"), (0.0004, "< 0.001"), (0.04, "0.040")])
def test_p_values(p, text):
    assert p_text(p, "-") == text


def test_intervals():
    assert interval_text((1.04, 2.06)) == "1.0 to 2.1"
    assert interval_text((-1, 2), "+.0f") == "-1 to +2"
    assert interval_text(None, missing="-") == "-"
