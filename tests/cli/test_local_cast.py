"""Local models as user, director and judge of every command, without a network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mapo.store import read_dialogues
from support.command import Done, mapo
from support.local_cast import LIMITS, block_network, trained_judge
from support.writers import talk, write_jsonl

CASE = "career-night-ward"
EMPA = ("eval", "empa", "--scenarios", "builtin:all", "--cases", CASE, "--max-turns", 2, "--max-tokens", 8)
SHORT = tuple(part for role, limit in LIMITS.items() for part in (f"--{role}-max-tokens", limit))


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    block_network(monkeypatch)


def evaluated(model: Path, out: Path, *more: object) -> Done:
    return mapo(
        *EMPA, "--model", "scripted:honest", "--agents-model", f"local:{model}", *SHORT, "--out", out, *more
    )


@pytest.fixture(scope="module")
def evaluation(cast_model, tmp_path_factory) -> Path:
    """A run of `mapo eval empa` with a local cast."""
    out = tmp_path_factory.mktemp("eval") / "run"
    with pytest.MonkeyPatch.context() as patch:
        block_network(patch)
        done = evaluated(cast_model, out)
    assert done.returncode == 0, done.stderr
    return out


def test_empa_with_a_local_cast(evaluation):
    (dialogue,) = read_dialogues(evaluation / "dialogues" / "empa.jsonl")
    assert dialogue.cast == dict.fromkeys(("user", "director", "judge"), "tiny-cast")
    assert [turn.unscored for turn in dialogue.turns] == [None, None]


def test_the_weights_of_a_local_cast_are_in_the_manifest(evaluation):
    manifest = json.loads((evaluation / "manifest.json").read_text())
    assert set(manifest["weights"]) == {"user", "director", "judge"}


def test_a_local_cast_with_other_weights_does_not_resume(evaluation, cast_model):
    manifest = json.loads((evaluation / "manifest.json").read_text())
    (evaluation / "manifest.json").write_text(json.dumps({**manifest, "weights": {"judge": "another"}}))
    done = evaluated(cast_model, evaluation, "--resume")
    (evaluation / "manifest.json").write_text(json.dumps(manifest))
    assert done.returncode == 2
    assert "the run there is another one (weights" in done.stderr


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("local:./nowhere", "there is no such folder"),
        ("local:pyproject.toml", "this is a file, not the folder of a model"),
        ("local:tests", "this folder holds no model"),
    ],
)
def test_a_judge_that_is_no_model_is_one_clear_line(tmp_path, model, message):
    done = mapo(*EMPA, "--model", "scripted:honest", "--agents-model", model, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_hub_name_without_a_network_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = mapo(
        *EMPA,
        "--model",
        "scripted:honest",
        "--agents-model",
        "local:someone/model",
        "--out",
        tmp_path / "run",
    )
    assert done.returncode == 2
    assert "there is no such folder, and the Hugging Face hub cannot be reached" in done.stderr
    assert not (tmp_path / "run").exists()


def test_swapping_in_a_local_judge(evaluation, cast_model, tmp_path):
    judge = ("--judge", f"local:{cast_model}", "--judge-max-tokens", LIMITS["judge"])
    done = mapo("judge", "swap", evaluation, *judge, "--out", tmp_path / "swap")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "swap" / "swap.json").read_text())["runs"]
    assert row["new"]["judge"].startswith("local:")


@pytest.mark.slow
def test_auditing_a_local_judge(evaluation, cast_model, tmp_path):
    size = ("--turns", 1, "--dialogues", 1, "--repeats", 2, "--concurrency", 8)
    judge = ("--judge", f"local:{cast_model}", "--judge-max-tokens", LIMITS["judge"])
    done = mapo("judge", "audit", evaluation, *judge, *size, "--out", tmp_path / "audit")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "audit" / "audit.md").exists()


def test_playing_with_a_local_cast(cast_model):
    who = ("--agents-model", f"local:{cast_model}")
    done = mapo("play", CASE, "--scenarios", "builtin:all", *who, typed="The ward again.\n\n")
    assert done.returncode == 0, done.stderr
    assert "state (" in done.stdout


def test_playing_with_a_trained_judge_of_scripted_people(cast_model, tmp_path):
    judge = trained_judge(Path(shutil.copytree(cast_model, tmp_path / "judge")))
    who = ("--judge-model", f"local:{judge}")
    done = mapo("play", CASE, "--scenarios", "builtin:all", *who, typed="The ward again.\n\n")
    assert done.returncode == 0, done.stderr
    assert "Judge: judge" in done.stdout and "state (" in done.stdout


def test_playing_with_a_folder_that_is_no_model():
    done = mapo("play", CASE, "--scenarios", "builtin:all", "--agents-model", "local:tests", typed="Hm.\n")
    assert done.returncode == 2
    assert "this folder holds no model" in done.stderr.splitlines()[-1]


def test_reading_out_a_judge_from_the_command_line(cast_model, tmp_path):
    done = evaluated(cast_model, tmp_path / "run", "--judging", "readout", "--max-turns", 1)
    assert done.returncode == 0, done.stderr
    (dialogue,) = read_dialogues(tmp_path / "run" / "dialogues" / "empa.jsonl")
    assert len(dialogue.turns[0].probabilities) == 6


def test_screening_with_a_local_cast(cast_model, tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    source = Path("mapo/domains/empathy/scenarios") / f"{CASE}.toml"
    (folder / source.name).write_bytes(source.read_bytes())
    who = ("--strong", "scripted:honest", "--agents-model", f"local:{cast_model}")
    size = ("--plays", 1, "--max-turns", 1, "--out", tmp_path / "screen")
    done = mapo("scenarios", "screen", folder, *who, *size)
    assert done.returncode in (0, 1), done.stderr
    assert (tmp_path / "screen" / "screen.json").exists()


@pytest.mark.slow
def test_making_scenarios_with_a_local_model(cast_model, tmp_path):
    said = talk("I cannot sleep.", "What happened?", "They moved me to the night shift.", "That is hard.")
    source, out = tmp_path / "talks.jsonl", tmp_path / "made"
    write_jsonl(source, [said])
    done = mapo("scenarios", "make", source, "--model", f"local:{cast_model}", "--out", out)
    assert done.returncode in (0, 1), done.stderr  # random words rarely make a scenario
    report = json.loads((out / "report.json").read_text())
    assert report["asked"] == 1 and not report["failed"]
