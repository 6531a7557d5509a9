"""The pictures of the documentation: small, and those of results drawn from result files."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("PIL")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("docs_pictures", ROOT / "scripts" / "docs_pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_ablation_shows_scores_and_reference_lines(script):
    from mapo.show.figures import new_figure

    table = json.loads(script.RESULTS.read_text())
    drawn = script.held_out(table)
    for panel, reward in zip(drawn.panels, ("idr", "adr"), strict=True):
        axes = new_figure(4, 3).subplots()
        panel.draw(axes)
        assert {"nothing happens 33", "honest helper 89"} <= {text.get_text() for text in axes.texts}
        means = [bars.lines[0].get_ydata()[0] for bars in axes.containers]
        assert means == [row[reward] for row in table["rows"]]


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "images").glob("*.png")), ids=lambda file: file.name)
def test_pictures_are_small(script, file):
    assert file.stat().st_size <= script.LARGEST
