"""One palette for reports and the viewer: what means the same looks the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mapo
from mapo import advantage
from mapo.runs import contents
from mapo.show import figures
from mapo.types import StopReason

STATIC = Path(mapo.__file__).parent / "view" / "static"


def test_every_method_has_a_look_of_its_own():
    assert tuple(figures.METHODS) == advantage.METHODS
    assert len({(look.colour, look.dash) for look in figures.METHODS.values()}) == len(advantage.METHODS)


def test_the_methods_of_the_paper_have_colours_of_their_own():
    assert len({look.colour for look in list(figures.METHODS.values())[:6]}) == 6


def test_every_ending_has_a_colour_of_its_own():
    assert set(figures.ENDINGS) == {*contents.ENDINGS, StopReason.BROKEN.value}
    assert len(set(figures.ENDINGS.values())) == len(figures.ENDINGS)


def test_lines_of_different_methods_look_like_their_methods():
    assert figures.looks_of(["grpo", "mapo"]) == [figures.METHODS["grpo"], figures.METHODS["mapo"]]


@pytest.mark.parametrize("methods", [["grpo", "grpo"], ["mapo", "unknown method"], ["", "mapo"]])
def test_other_lines_look_by_their_position(methods):
    assert figures.looks_of(methods) == [figures.LOOKS[0], figures.LOOKS[1]]


def test_the_viewers_style_sheet_has_the_colours_of_endings():
    css = (STATIC / "style.css").read_text(encoding="utf-8")
    found = dict(re.findall(r"\.ending\.(\w+)::before \{ background: (#[0-9a-f]{6})", css))
    assert found == figures.ENDINGS


def test_the_viewer_lightens_every_colour_of_the_palette():
    script = (STATIC / "plots.js").read_text(encoding="utf-8")
    lighter = dict(re.findall(r'"(#[0-9a-f]{6})": "(#[0-9a-f]{6})"', script))
    assert set(figures.COLOURS) <= set(lighter)
    assert lighter[figures.COLOURS[0]] == figures.DARK_COLOURS[0]


def test_colours_with_transparency():
    assert figures.rgba("#0072b2", 0.5) == "rgba(0,114,178,0.5)"


def test_only_one_module_imports_matplotlib():
    root = Path(mapo.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(r"^\s*(from|import) matplotlib", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert found == {"show/figures.py"}
