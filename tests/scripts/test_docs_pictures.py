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


def test_the_reference_lines_are_those_of_the_judge_of_the_result_file(script):
    from mapo.scoring.reference import reference_lines
    from mapo.scripted.world import World
    from mapo.show.figures import new_figure

    drawn = script.held_out({**json.loads(script.RESULTS.read_text()), "judge": "local:pocket-judge"})
    axes = new_figure(4, 3).subplots()
    drawn.panels[0].draw(axes)
    lines = reference_lines(World("empathy", "pocket-judge"))
    assert [line.label for line in lines] == ["nothing happens", "written replies"]
    assert {f"{line.label} {line.epm_q:.0f}" for line in lines} <= {text.get_text() for text in axes.texts}


def write_steps(run, *endings):
    (run / "dialogues").mkdir()
    records = [
        {"ending": {"reason": ending}, "turns": [{"reward": reward}]} for reward, ending in enumerate(endings)
    ]
    text = "".join(f"{json.dumps(record)}\n" for record in records)
    (run / "dialogues" / "step_00001.jsonl").write_text(text)


def test_the_shown_dialogue_is_a_success(script, tmp_path):
    write_steps(tmp_path, "failure", "success", "turn_limit")
    assert script.chosen_dialogue(tmp_path) == "step_00001.jsonl/2"


def test_without_a_success_the_shown_dialogue_began_best(script, tmp_path):
    write_steps(tmp_path, "failure", "turn_limit", "turn_limit")
    assert script.chosen_dialogue(tmp_path) == "step_00001.jsonl/3"


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "images").glob("*.png")), ids=lambda file: file.name)
def test_pictures_are_small(script, file):
    assert file.stat().st_size <= script.LARGEST
