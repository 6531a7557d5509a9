"""The tables of the documentation come from result files and are up to date."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import docs_tables  # noqa: E402

RESULT = {
    "command": "mapo train pocket",
    "setup": "Two cores.",
    "columns": {"seed": "{seed}", "after": "{after:.1f} ({low:.1f} to {high:.1f})"},
    "rows": [{"seed": 0, "after": 48.71, "low": 39.1, "high": 58.8}, {"seed": 1}],
}
PAGE = "# Title\n\n<!-- table: results/a.json -->\n<!-- /table -->\n\nText\n"


@pytest.fixture
def docs(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.json").write_text(json.dumps(RESULT), encoding="utf-8")
    (tmp_path / "page.md").write_text(PAGE, encoding="utf-8")
    return tmp_path


def run(docs, *options):
    return docs_tables.main(["--docs", str(docs), *options])


def test_a_table_is_inserted_with_its_setup_and_command(docs):
    assert run(docs) == 0
    text = (docs / "page.md").read_text(encoding="utf-8")
    assert "|seed|after|\n|---|---|\n|0|48.7 (39.1 to 58.8)|\n|1||\n" in text
    assert "*Two cores.* Command: `mapo train pocket`" in text
    assert text.startswith("# Title\n\n<!-- table: results/a.json -->\n") and text.endswith(
        "<!-- /table -->\n\nText\n"
    )


def test_a_result_file_may_name_the_judge_and_its_weights(docs):
    named = {**RESULT, "judge": "local:pocket-judge", "judge_weights": "f844"}
    (docs / "results" / "a.json").write_text(json.dumps(named), encoding="utf-8")
    assert run(docs) == 0
    text = (docs / "page.md").read_text(encoding="utf-8")
    assert "*Judge: local:pocket-judge (weights f844). Two cores.* Command" in text


def test_inserting_twice_changes_nothing(docs):
    run(docs)
    once = (docs / "page.md").read_text(encoding="utf-8")
    run(docs)
    assert (docs / "page.md").read_text(encoding="utf-8") == once


def test_the_check_reports_an_outdated_table_and_changes_nothing(docs, capsys):
    assert run(docs, "--check") == 1
    assert "a table is out of date; run: make docs-tables" in capsys.readouterr().err
    assert (docs / "page.md").read_text(encoding="utf-8") == PAGE
    run(docs)
    assert run(docs, "--check") == 0


def test_a_new_figure_makes_the_table_outdated(docs):
    run(docs)
    changed = {**RESULT, "rows": [{"seed": 0, "after": 50.0, "low": 39.1, "high": 58.8}]}
    (docs / "results" / "a.json").write_text(json.dumps(changed), encoding="utf-8")
    assert run(docs, "--check") == 1


def test_a_result_file_that_no_page_uses_is_reported(docs, capsys):
    (docs / "results" / "b.json").write_text(json.dumps(RESULT), encoding="utf-8")
    assert run(docs) == 1
    assert "b.json: no page shows or links to this file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"command": ""}, "command is missing or empty"),
        ({"rows": [{"seed": 0, "speed": 1}]}, "no column shows speed"),
        ({"judge_weights": "f844"}, "judge_weights without judge"),
    ],
)
def test_a_result_file_that_cannot_be_rendered_is_reported(docs, capsys, change, message):
    (docs / "results" / "a.json").write_text(json.dumps(RESULT | change), encoding="utf-8")
    assert run(docs) == 1
    assert message in capsys.readouterr().err


def test_a_missing_result_file_is_reported(docs, capsys):
    (docs / "results" / "a.json").unlink()
    assert run(docs) == 1
    assert "a.json" in capsys.readouterr().err


def test_the_tables_of_this_repository_are_up_to_date():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/docs_tables.py", "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
