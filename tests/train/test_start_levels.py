"""Training with known start levels, for a number of epochs, and with turn limits of its tests."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from mapo.cli.training.checks import check_roles
from mapo.config import load_config
from mapo.errors import InputError
from mapo.sandbox.domain import scripted_cast
from mapo.scenarios.sets import load_scenarios
from mapo.store import read_dialogues
from mapo.train.run import run
from support import small_run as small

LEVELS = dict.fromkeys(("C.1", "C.2", "C.3", "A.1", "A.2", "A.3", "P.1", "P.2", "P.3"), 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a fraction of an epoch in which every scenario starts at the same levels."""
    folder = tmp_path_factory.mktemp("run")
    model, file, out = small.model_folder(folder / "model"), folder / "levels.json", folder / "run"
    file.write_text(json.dumps({s.id: LEVELS for s in load_scenarios("builtin:all")}))
    settings = [text for text in small.SMALL if not text.startswith("optim.steps")]
    settings += [f"model.source={model}", f"scenarios.start_levels={file}", "eval.test_repeats=1"]
    epochs = 3 / len(load_scenarios("builtin:train"))  # three scenarios, in steps of two
    settings += [f"optim.epochs={epochs}", "rollout.min_turns=2", "eval.min_turns=1", "eval.max_turns=2"]
    outcome = asyncio.run(run(load_config(None, settings), out, scripted_cast("empathy")))
    return out, outcome, settings


def starts(file):
    return [{key: mark.level for key, mark in d.start_levels.items()} for d in read_dialogues(file)]


def test_every_dialogue_starts_at_the_known_levels(trained):
    out, _, _ = trained
    for file in (out / "dialogues/step_00001.jsonl", *(out / "eval").rglob("*.jsonl")):
        assert all(levels == LEVELS for levels in starts(file)), file


def test_the_run_has_the_steps_of_its_epochs(trained):
    out, outcome, _ = trained
    manifest = json.loads((out / "manifest.json").read_bytes())
    assert outcome.summary["steps"] == manifest["steps"] == 2
    assert manifest["epochs"] == pytest.approx(4 / len(load_scenarios("builtin:train")), abs=1e-3)
    config = load_config(out / "config.toml", flat=True)
    assert (config.optim.steps, config.optim.epochs) == (2, None)


def test_tests_have_turn_limits_of_their_own(trained):
    out, _, _ = trained
    played = list(read_dialogues(next((out / "eval/after").glob("*.jsonl"))))
    assert {(d.min_turns, d.max_turns) for d in played} == {(1, 2)}
    assert {d.min_turns for d in read_dialogues(out / "dialogues/step_00001.jsonl")} == {2}


def test_other_start_levels_are_another_run(trained, tmp_path):
    out, _, settings = trained
    other = tmp_path / "other.json"
    other.write_text(json.dumps({s.id: LEVELS | {"C.1": 2} for s in load_scenarios("builtin:all")}))
    changed = load_config(None, [*settings, f"scenarios.start_levels={other}"])
    with pytest.raises(InputError, match=r"other settings: scenarios\.start_levels"):
        asyncio.run(run(changed, out, scripted_cast("empathy"), resume=True))


def test_scenarios_with_levels_of_their_own_are_not_missing_in_the_file(tmp_path, capsys):
    known, *others = load_scenarios("builtin:train")[:3]
    scenarios = {
        "train": [known, others[0], replace(others[1], start_levels={})],
        "validation": [],
        "test": [],
    }
    file = tmp_path / "levels.json"
    file.write_text(json.dumps({known.id: LEVELS}))
    check_roles(load_config(None, ["roles.judge.model=", f"scenarios.start_levels={file}"]), scenarios)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert lines == [f"warning: no start levels for {others[1].id}"]
