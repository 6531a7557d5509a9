"""Start levels estimated from priorities."""

from __future__ import annotations

import json
import tarfile

import pytest
from typer.testing import CliRunner

from mapo import Rubric
from mapo.cli.scenarios import app
from mapo.errors import InputError
from mapo.scenarios.scenario import Persona, Scenario
from mapo.scenarios.sets import load_scenarios
from mapo.scenarios.start_levels import estimate_start_levels, estimation_errors
from support.published import published

RUBRIC = Rubric.load("empathy")
KEYS = [indicator.key for indicator in RUBRIC.indicators]


def scenario(name, **priorities):
    return Scenario(name, Persona("Ada"), "a topic", "first words", priorities=priorities)


HIGH = [scenario(f"high{k}", C="high") for k in range(3)]
LOW = [scenario(f"low{k}", C="low") for k in range(3)]
KNOWN = {s.id: dict.fromkeys(KEYS, 3) for s in HIGH} | {s.id: dict.fromkeys(KEYS, 1) for s in LOW}


def test_levels_of_an_axis_follow_its_priority_and_others_the_mean_of_all():
    [levels] = estimate_start_levels(
        KNOWN, [*HIGH, *LOW], [scenario("new", C="high", A="low")], RUBRIC
    ).values()
    assert {levels[key] for key in KEYS if key.startswith("C")} == {3}
    assert {levels[key] for key in KEYS if not key.startswith("C")} == {2}


def test_known_levels_are_kept_and_an_unknown_priority_has_the_mean():
    table = estimate_start_levels(KNOWN, [*HIGH, *LOW], [HIGH[0], scenario("new", C="medium")], RUBRIC)
    assert table["high0"] == KNOWN["high0"] and set(table["new"].values()) == {2}


def test_errors_are_those_of_scenarios_left_out():
    errors = estimation_errors(KNOWN, [*HIGH, *LOW], RUBRIC)
    assert errors["C.1"] == [0] * 6 and set(map(abs, errors["A.1"])) == {1}


def test_examples_without_known_levels_are_refused():
    with pytest.raises(InputError, match="none of the example scenarios"):
        estimate_start_levels({"x": {}}, HIGH, LOW, RUBRIC)


def test_the_command_estimates_levels_of_published_cards(tmp_path):
    for file in ("cards", "results_two_models"):
        with tarfile.open(published(f"{file}.tar.gz")) as archive:
            archive.extractall(tmp_path / file, filter="data")
    [model, *_] = (tmp_path / "results_two_models").iterdir()
    out, cards = tmp_path / "start.json", tmp_path / "cards"
    done = CliRunner().invoke(
        app,
        ["start-levels", f"{cards}:train", "--known", str(model), "--out", str(out)],
        catch_exceptions=False,
    )
    assert done.exit_code == 0 and "estimated from 30 known ones" in done.output
    table = json.loads(out.read_text())
    assert len(table) == 697 and all(set(levels) == set(KEYS) for levels in table.values())
    assert all(RUBRIC.start(levels) for levels in table.values())


def test_the_command_needs_two_known_scenarios(tmp_path):
    known = tmp_path / "known.json"
    name = load_scenarios("builtin:test")[0].id
    known.write_text(json.dumps({name: dict.fromkeys(KEYS, 1)}))
    words = ["start-levels", "builtin:train", "--known", str(known), "--out", str(tmp_path / "out.json")]
    with pytest.raises(InputError, match="name 1 of the example scenarios"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert not (tmp_path / "out.json").exists()
