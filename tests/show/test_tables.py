"""One table type: the same cells in a terminal, in Markdown and in LaTeX, none of them taken for markup."""

from __future__ import annotations

import io

import pytest

from mapo.show.tables import (
    PIPE_WIDTH,
    NumberCell,
    Table,
    interval_text,
    latex_table,
    markdown_table,
    markdown_text,
    output_console,
    p_text,
    plain_rows,
    print_tables,
)

EVIL = "[red]x[/] | `a` ![b](c) <script>alert(1)</script> \\end{tabular} $1$ \x1b[31m\u202e"
SCORES = Table(
    ["model", "score"],
    [["a", NumberCell("1.50", "1.0 to 2.0")], ["b", "-"]],
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


def headers(out: str) -> list[list[str]]:
    lines = out.splitlines()
    return [lines[n - 1].split() for n, line in enumerate(lines) if line.strip().startswith("──")]


def test_wide_tables_are_split_between_number_columns(capsys):
    wide = Table(["name", *"abcdef"], [["m", *(NumberCell("1", "0.5 to 1.5") for _ in range(6))]])
    print_tables([wide], 36)
    out = capsys.readouterr().out
    assert headers(out) == [["name", "a", "b"], ["name", "c", "d"], ["name", "e", "f"]]
    assert out.count("m ") == 3


def test_the_parts_of_a_split_table_have_about_as_many_columns(capsys):
    print_tables([Table(["name", *"abcdefg"], [["m", *["12345678"] * 7]])], 66)
    assert [len(header) for header in headers(capsys.readouterr().out)] == [5, 4]


def test_a_title_is_printed_once_above_a_split_table(capsys):
    print_tables([Table(["name", *"abcdef"], [["m", *["12345678"] * 6]], title="Scores")], 40)
    assert capsys.readouterr().out.count("Scores") == 1


def test_long_names_wrap_at_a_separator_before_a_table_is_split(capsys):
    row = ["Qwen/Qwen2.5-7B-Instruct", *["12345678"] * 4]
    print_tables([Table(["model", *"abcd"], [row])], 60)
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if "Qwen" in line] == ["Qwen/Qwen2.5-7B-"]
    assert len(headers(out)) == 1


@pytest.mark.parametrize("width", [40, 60, 80, 110])
def test_no_line_is_wider_than_the_terminal(width, capsys):
    columns = ["model", "a header of words", *"abcdefg"]
    rows = [["Qwen/Qwen2.5-7B-Instruct", "text in several words", *[NumberCell("1.00", "0.5 to 1.5")] * 7]]
    print_tables([Table(columns, rows, title="A title of many words " * 6, note="A note. " * 20)], width)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= width


def test_the_width_is_the_terminals_and_a_pipes_is_fixed(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert output_console(file=io.StringIO()).width == PIPE_WIDTH
    monkeypatch.setenv("COLUMNS", "72")
    assert output_console(file=io.StringIO()).width == 72


@pytest.mark.parametrize(("p", "text"), [(None, "-"), (0.0004, "< 0.001"), (0.04, "0.040")])
def test_p_values(p, text):
    assert p_text(p, "-") == text


def test_intervals():
    assert interval_text((1.04, 2.06)) == "1.0 to 2.1"
    assert interval_text((-1, 2), "+.0f") == "-1 to +2"
    assert interval_text(None, missing="-") == "-"
