"""The distribution's name, its extras and the install commands that we print."""

import re
import sys
import tomllib
from pathlib import Path

from mapo.errors import install_hint

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def _texts():
    for folder, pattern in (
        ("mapo", "*.py"),
        ("mapo", "*.html"),
        ("docs", "*.md"),
        ("examples", "*"),
        (".", "*.md"),
    ):
        files = (ROOT / folder).glob(pattern) if folder == "." else (ROOT / folder).rglob(pattern)
        yield from (file for file in files if file.suffix in {".py", ".html", ".md"})


def test_no_text_names_the_unrelated_package_on_pypi():
    unrelated = re.compile(r"\bmapo\[|pip install '?mapo\b(?!-rl)")
    assert [str(file) for file in _texts() if unrelated.search(file.read_text(encoding="utf-8"))] == []


def test_extras_refer_to_this_distribution():
    names = {re.split(r"[\[<>=;! ]", need)[0] for needs in EXTRAS.values() for need in needs if "[" in need}
    assert {name for name in names if name.startswith("mapo")} == {"mapo-rl"}
    assert PROJECT["name"] == "mapo-rl"


def test_every_extra_that_is_printed_or_documented_exists():
    named = {
        extra
        for file in _texts()
        for extras in re.findall(
            r"(?:'\.|mapo-rl)\[([a-z,]+)\]|install_hint\(.([a-z]+).\)", file.read_text("utf-8")
        )
        for extra in ",".join(extras).split(",")
        if extra
    }
    assert named <= set(EXTRAS)


def test_the_hint_works_installed_and_in_a_checkout():
    assert install_hint("view") == "Run: pip install 'mapo-rl[view]' (in a checkout: pip install '.[view]')"


def test_a_report_without_matplotlib_says_that_it_has_no_figures(monkeypatch, tmp_path):
    from typer.testing import CliRunner

    from mapo.cli import app

    assert (
        CliRunner()
        .invoke(app, ["eval", "empa", "--model", "scripted:honest", "--out", str(tmp_path / "e")])
        .exit_code
        == 0
    )
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(app, ["report", str(tmp_path / "e")])
    assert done.exit_code == 0
    assert (
        "no figures because matplotlib is not installed. Run: pip install 'mapo-rl[figures]'" in done.stderr
    )


def test_setup_prints_a_line_before_each_of_its_steps():
    recipes = re.findall(
        r"^\$\(\w*READY\): .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE
    )
    for recipe in recipes:
        steps = [
            line
            for line in recipe.splitlines()
            if "echo" in line or "-m venv" in line or "pip install" in line
        ]
        numbers = re.findall(r'echo "setup (\d)/(\d): ', recipe)
        assert [number for number, _ in numbers] == [str(n + 1) for n in range(int(numbers[0][1]))]
        commands = [at for at, line in enumerate(steps) if "echo" not in line]
        assert all('echo "setup' in steps[at - 1] for at in commands)
    assert len(recipes) == 5
