"""A judge of a local model from the embedded texts, from recordings to dialogues that it judges."""

from __future__ import annotations

import gzip
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mapo.domain_folders import domain_folder
from mapo.measure.rubric import Rubric
from mapo.roles.recordings import read_all
from mapo.store import RunDir
from support.command import mapo

ROOT = Path(__file__).resolve().parents[2]
EMBEDDED = ROOT / "scripts" / "embedded"
EMPATHY = Rubric.load("empathy")
SCENARIO = "career-boat-shed"

WRITE = """
import json, sys
from pathlib import Path
from recordings import main
from texts import held_out_people

Path("people.json").write_text(json.dumps([person.id for person in held_out_people()]))
for line in sys.argv[1:]:
    main(line.split())
"""
COMMANDS = [
    "--part even --dialogues 12 --out even.jsonl.gz --held-out held.jsonl.gz --held-out-dialogues 2",
    "--part odd --dialogues 6 --out odd.jsonl.gz",
    "--dialogues 40 --out all.jsonl.gz",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which one process has run all commands; reading the texts takes seconds."""
    folder = tmp_path_factory.mktemp("recordings")
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, EMBEDDED)))}
    command = [sys.executable, "-c", WRITE, *COMMANDS]
    subprocess.run(command, check=True, cwd=folder, env=paths, stdout=subprocess.DEVNULL, timeout=900)
    return folder


def rows(path):
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def people(path):
    return {row["case"] for row in rows(path)}


def test_the_parts_share_nobody(folder):
    even, odd, held = (people(folder / f"{name}.jsonl.gz") for name in ("even", "odd", "held"))
    assert not even & odd and not (even | odd) & held
    assert held <= set(json.loads((folder / "people.json").read_text()))


def test_levels_are_those_of_the_kinds(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(EMBEDDED))
    from dialogues import HARM

    turns = [turn for row in rows(folder / "even.jsonl.gz") for turn in row["turns"]]
    poor = [turn for turn in turns if turn["kind"] in HARM]
    assert len(poor) > 20
    for turn in poor:
        magnitudes = [abs(mark["level"]) for side in turn["levels"].values() for mark in side.values()]
        assert tuple(magnitudes) == HARM[turn["kind"]]


@pytest.mark.parametrize("name", ["even", "odd", "held", "all"])
def test_every_line_is_a_judged_dialogue(folder, name):
    path = folder / f"{name}.jsonl.gz"
    read = read_all([path], {}, EMPATHY, brief=True)
    assert not read.problems and len(read.dialogues) == len(rows(path))
    assert all(turn.levels for r in read.dialogues for turn in r.dialogue.turns)


def test_replies_of_policies_are_among_them(folder):
    kinds = {turn["kind"] for row in rows(folder / "all.jsonl.gz") for turn in row["turns"]}
    assert "senseless" in kinds


@pytest.fixture(scope="module")
def judge(folder, cast_model, tmp_path_factory):
    even, held = folder / "even.jsonl.gz", folder / "held.jsonl.gz"
    out = tmp_path_factory.mktemp("judge") / "judge"
    command = ["roles", "train", "--role", "judge", "--brief", "--from", even, "--test", held, "--out", out]
    fast = ["--tokens", 6144, "--epochs", 1, "--lr", 1e-3, "--lora", 4, "--device", "cpu", "--no-refit"]
    done = mapo(*command, "--model", cast_model, *fast)
    assert done.returncode == 0, done.stderr
    return out


def test_agreement_is_measured_on_held_out_people(folder, judge):
    held = rows(folder / "held.jsonl.gz")
    tested = json.loads(RunDir(judge).role.read_text())["tests"]["both"]
    assert tested["turns"] == sum(len(row["turns"]) for row in held)
    assert set(tested["policies"]["rows"]) == {row["model"] for row in held}


@pytest.mark.parametrize("policy", ["listener", "honest"])
def test_the_judge_judges_scripted_policies(judge, policy, tmp_path):
    command = ["eval", "empa", "--agents", "scripted", "--judge-model", f"local:{judge}", "--limit", 1]
    done = mapo(*command, "--max-turns", 2, "--model", f"scripted:{policy}", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    [line] = (RunDir(tmp_path / "run").dialogues / "empa.jsonl").read_text().splitlines()
    assert all(turn["levels"] for turn in json.loads(line)["turns"])


def test_attacks_on_the_judge_are_played(judge, tmp_path, monkeypatch, capsys):
    shutil.copy(domain_folder("empathy") / "scenarios" / f"{SCENARIO}.toml", tmp_path)
    script = ROOT / "benchmarks" / "gaming.py"
    options = ["1", "--scenarios", str(tmp_path), "--judge", f"local:{judge}"]
    monkeypatch.setattr(sys, "argv", [str(script), *options])
    runpy.run_path(str(script), run_name="__main__")
    table = capsys.readouterr().out
    assert "| honest |" in table and "turns per second" in table
