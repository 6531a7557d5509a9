"""Insert the tables of docs/results/*.json into the Markdown pages.

    python scripts/docs_tables.py            # rewrite every table
    python scripts/docs_tables.py --check    # change nothing; exit 1 if a table is out of date

A page marks the place of a table with two comments; everything between them is generated:

    <!-- table: results/make-train.json -->
    <!-- /table -->

A result file holds measured figures and how to measure them again:

    {"command": "mapo train pocket run.seed=K",      the command, or a list of commands
     "setup": "two x86 cores",                       where and how it was measured
     "columns": {"seed": "{seed}", "after": "{after:.1f}"},     column title: Python format of a row
     "rows": [{"seed": 0, "after": 48.7}]}

Figures that depend on a judge model name it: `judge`, and `judge_weights`, the fingerprint of its weights, are
optional and shown before the setup. A row without a value that its column needs has an empty cell. A page can also
link to a result file instead of showing it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLACE = re.compile(
    r"(?P<indent>[ ]*)<!-- table: (?P<file>\S+) -->\n(?P<body>.*?)[ ]*<!-- /table -->", re.DOTALL
)


class ResultFileError(ValueError):
    """A result file that cannot be rendered."""


def read_result(path: Path) -> dict[str, Any]:
    """Read a result file and check that it has what a table needs."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultFileError(f"{path}: {error}") from error
    if result.get("judge_weights") and not result.get("judge"):
        raise ResultFileError(f"{path}: judge_weights without judge")
    missing = [key for key in ("command", "setup", "columns", "rows") if not result.get(key)]
    if missing:
        raise ResultFileError(f"{path}: {', '.join(missing)} is missing or empty")
    used = " ".join(result["columns"].values())
    unused = {key for row in result["rows"] for key in row if not re.search(rf"{{{key}[:}}]", used)}
    if unused:
        raise ResultFileError(f"{path}: no column shows {', '.join(sorted(unused))}")
    return dict(result)


def render(result: dict[str, Any]) -> str:
    """Return the result as a Markdown table, followed by the commands that measure it again."""
    columns: dict[str, str] = result["columns"]
    lines = [_line(list(columns)), _line(["---"] * len(columns))]
    lines += [_line([_cell(form, row) for form in columns.values()]) for row in result["rows"]]
    commands = result["command"] if isinstance(result["command"], list) else [result["command"]]
    source = "; ".join(f"`{command}`" for command in commands)
    return "\n".join([*lines, "", f"*{_judge(result)}{result['setup']}* Command: {source}", ""])


def _judge(result: dict[str, Any]) -> str:
    if not (judge := result.get("judge")):
        return ""
    weights = result.get("judge_weights")
    return f"Judge: {judge}{f' (weights {weights})' if weights else ''}. "


def _line(cells: list[str]) -> str:
    return f"|{'|'.join(cells)}|"


def _cell(form: str, row: dict[str, Any]) -> str:
    try:
        text = form.format_map(row)
    except KeyError:
        return ""
    return text.replace("|", "\\|").replace("\n", " ")


def insert_tables(page: Path) -> str:
    """Return the text of `page` with every marked table rendered again."""

    def table(match: re.Match[str]) -> str:
        indent = match["indent"]
        text = render(read_result(page.parent / match["file"]))
        body = "".join(f"{indent}{line}".rstrip() + "\n" for line in text.splitlines())
        return f"{indent}<!-- table: {match['file']} -->\n\n{body}\n{indent}<!-- /table -->"

    return PLACE.sub(table, page.read_text(encoding="utf-8"))


def unused_results(docs: Path) -> list[Path]:
    """Return the result files that no page shows or links to."""
    shown = {
        (page.parent / name).resolve()
        for page in docs.rglob("*.md")
        for name in re.findall(r"[\w./-]+\.json", page.read_text(encoding="utf-8"))
    }
    return [path for path in sorted(docs.rglob("results/*.json")) if path.resolve() not in shown]


def main(arguments: list[str] | None = None) -> int:
    """Rewrite or check all pages below docs/; return the exit status."""
    parser = argparse.ArgumentParser(description="Insert the tables of docs/results/*.json into docs/*.md.")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if a table is out of date"
    )
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="the folder of the pages")
    options = parser.parse_args(arguments)
    problems = [f"{path}: no page shows or links to this file" for path in unused_results(options.docs)]
    for page in sorted(options.docs.rglob("*.md")):
        try:
            text = insert_tables(page)
        except ResultFileError as error:
            problems.append(str(error))
            continue
        if text == page.read_text(encoding="utf-8"):
            continue
        if options.check:
            problems.append(f"{page}: a table is out of date; run: make docs-tables")
        else:
            page.write_text(text, encoding="utf-8")
            print(f"{page}: updated")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
