"""docs/reproduction.md: the table of settings says what the configs contain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mapo.config import Config, load_config
from mapo.scenarios.epochs import resolve_steps

PAGE = Path(__file__).parents[1] / "docs/reproduction.md"
SIZES = ("7b", "8b", "14b", "32b")
ROWS = {
    cells[3].strip("`"): cells[4:6]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 6 and cells[3].startswith("`")
}


def value(config: Config, key: str) -> str:
    """Return a setting as the table writes it."""
    found = config
    for part in key.split("."):
        found = getattr(found, part)
    if isinstance(found, bool):
        return str(found).lower()
    return "-" if found is None else f"{found:g}" if isinstance(found, float) else str(found)


def test_the_table_has_the_settings_of_the_experiments():
    assert len(ROWS) == 33
    for section in ("optim", "advantage"):
        assert sum(key.startswith(section) for key in ROWS) >= 4


@pytest.mark.parametrize("key", ROWS)
@pytest.mark.parametrize("profile", ["paper", "scripts"])
def test_the_table_says_what_the_configs_contain(key, profile):
    cell = ROWS[key][0 if profile == "paper" else 1]
    stated = cell.split(" / ") if " / " in cell else [cell] * len(SIZES)
    configs = [load_config(f"{profile}-{size}") for size in SIZES]
    if key == "optim.steps":
        configs = [resolve_steps(config) for config in configs]
    numbers = [re.sub(r"^1e-06$", "1e-6", value(config, key)) for config in configs]
    assert stated == numbers


@pytest.mark.parametrize("size", SIZES)
def test_the_steps_on_the_published_set_are_stated(size):
    train = "scenarios.train=data/empa:published-727"
    steps = resolve_steps(load_config(f"paper-{size}", [train])).optim.steps
    assert steps == dict(zip(SIZES, (91, 46, 46, 23), strict=True))[size]
    assert "91 / 46 / 46 / 23 steps" in PAGE.read_text(encoding="utf-8")
