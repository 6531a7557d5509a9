"""A verl run's directory against a local run's: the same dialogues give the same numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import small
from mapo.engines.verl import records
from mapo.engines.verl.site import STOPPED
from mapo.store import JsonlWriter, RunDir, encode_dialogue, read_dialogues, read_steps
from mapo.train.evaluate import score_dialogues
from mapo.train.setup import load_run_config

SIMILAR = {"loss", "grad_norm", "lr", "clip_fraction", "entropy", "kl", "kl_start", "drift", "memory_gb"}
CLOCK = {"rollout_s", "update_s", "sampled_per_s", "trained_per_s"}


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Two steps of the local engine."""
    folder = tmp_path_factory.mktemp("records")
    model = small.model_folder(folder / "model")
    small.trained(model, folder / "run", "optim.steps=2")
    return folder / "run"


@pytest.fixture
def run(local, tmp_path) -> RunDir:
    """The same dialogues as two playing processes would have left them."""
    found = RunDir(tmp_path)
    for step in (1, 2):
        lines = local.joinpath("dialogues", f"step_{step:05d}.jsonl").read_bytes().splitlines(keepends=True)
        found.dialogues.mkdir(exist_ok=True)
        found.dialogues_of(step).write_bytes(b"".join(lines[::2]))
        (found.dialogues / f"step_{step:05d}.1.jsonl").write_bytes(b"".join(lines[1::2]))
    (tmp_path / "config.toml").write_bytes((local / "config.toml").read_bytes())
    return found


def test_a_steps_record_is_the_one_the_local_engine_writes(local, run):
    config = load_run_config(local)
    for line in read_steps(RunDir(local).metrics):
        measured = {"actor/grad_norm": 0.5, "actor/lr": 1e-3, "perf/throughput": 9.0}
        timing = {"gen": 2.0, "update_actor": 1.0, "step": 4.0}
        found = records.step_record(run, config, line["step"], measured, timing)
        theirs = {k: v for k, v in line.items() if k not in SIMILAR | CLOCK | {"validation"}}
        shared = set(theirs) & set(found)
        assert {"reward", "score", "turns_trained", "return_by_turn", "endings", "sampled_tokens"} <= shared
        for name in shared:
            assert found[name] == approx(theirs[name]), name
        assert (found["grad_norm"], found["lr"]) == (0.5, 1e-3) and "perf/throughput" not in found
        assert (found["rollout_s"], found["update_s"], found["step_s"]) == (2.0, 1.0, 4.0)
        assert found["sampled_per_s"] == found["sampled_tokens"] / 2.0


def approx(value):
    """Sums in another order."""
    plain = isinstance(value, float) or (isinstance(value, list) and None not in value)
    return pytest.approx(value, rel=1e-9, abs=1e-12) if plain else value


def test_every_process_is_read_and_the_last_of_an_id_counts(local, run):
    config = load_run_config(local)
    whole = list(read_dialogues(local / "dialogues" / "step_00001.jsonl"))
    assert records.dialogues_of(run, config, "train", 1) == sorted(whole, key=lambda d: d.id)
    again = next(d for d in read_dialogues(run.dialogues_of(1)))
    with open(run.dialogues / "step_00001.1.jsonl", "ab") as file:
        changed = json.loads(encode_dialogue(again)) | {"seconds": 99.0}
        file.write(json.dumps(changed).encode() + b"\n" + b'{"torn')
    found = {d.id: d for d in records.dialogues_of(run, config, "train", 1)}
    assert len(found) == len(whole) and found[again.id].seconds == 99.0
    assert records.dialogues_of(run, config, "train", 7) == []


def test_a_step_that_was_cut_off_is_set_aside_with_all_its_files(run):
    records.set_aside(run, 1)
    assert sorted(f.name for f in run.dialogues.glob("*.jsonl")) == [
        "step_00002.1.jsonl",
        "step_00002.jsonl",
    ]
    run.dialogues_of(1).write_text("{}\n")
    records.set_aside(run, 1)
    records.set_aside(run, 9)
    names = {f.name for f in (run.dialogues / "cut_off").iterdir()}
    assert names == {"step_00001-0.jsonl", "step_00001-1.jsonl", "step_00001.1-0.jsonl"}


def test_a_step_without_a_usable_dialogue_says_so(local, tmp_path):
    run, config = RunDir(tmp_path), load_run_config(local)
    records.check_usable(run, config, 1)  # nothing was played yet
    assert records.why_stopped(run) is None
    played = next(read_dialogues(RunDir(local).dialogues_of(1)))
    with JsonlWriter(run.dialogues_of(1)) as writer:
        writer.write_dialogue(replace(played, error="the user is gone"))
    records.check_usable(run, config, 1)
    told = records.why_stopped(run)
    assert "not one dialogue of step 1 can be used; the first: the user is gone" in told


def test_lines_are_logged_and_told_to_trackers(run):
    records.log(run, {"step": 1, "reward": 0.5, "by": {"turn": [1.0, None]}})
    records.log(run, {"step": 1, "reward": 1.5})
    assert read_steps(run.metrics) == [{"step": 1, "reward": 1.5}]
    told = records.for_trackers({"reward": 0.5, "by": {"turn": [1.0, None]}, "score": None})
    assert told == {"mapo/reward": 0.5, "mapo/by/turn/1": 1.0}


def validated(local: Path, run: RunDir, step: int, dialogues) -> dict | None:
    folder = run.root / "eval" / f"validation_{step:05d}"
    with JsonlWriter(folder / "dialogues.jsonl") as writer:
        for talk in dialogues:
            writer.write_dialogue(talk)
    return records.score_validation(run, load_run_config(local), step)


def test_the_best_validation_is_remembered(local, run):
    rubric = records.Rubric.load("empathy")
    talks = list(read_dialogues(local / "eval" / "validation_00002" / "dialogues.jsonl"))
    ranked = sorted(talks, key=lambda d: score_dialogues("", [d], rubric).composite.epm_q)
    assert validated(local, run, 0, ranked[-1:]) and records.best(run) is None  # nothing was trained yet
    low = validated(local, run, 1, ranked[:1])
    assert records.best(run) == {"step": 1, **low}
    expected = score_dialogues("x", ranked[-1:], rubric)
    high = validated(local, run, 2, ranked[-1:])
    assert high == {"epm_q": expected.composite.epm_q, "passes": expected.passes, "n": 1}
    assert high["epm_q"] > low["epm_q"] and records.best(run) == {"step": 2, **high}
    validated(local, run, 3, ranked[:1])
    assert records.best(run)["step"] == 2
    assert records.score_validation(run, load_run_config(local), 4) is None


def checkpoint(folder: Path, step: int, *, whole: bool = True) -> Path:
    made = folder / f"global_step_{step}" / "actor" / "huggingface"
    made.mkdir(parents=True)
    if whole:
        (made / "config.json").write_text(f'{{"step": {step}}}')
    return made


def test_checkpoints_are_linked_and_links_to_nothing_go(run):
    folder = run.root / "verl" / "checkpoints"
    first, second = checkpoint(folder, 5), checkpoint(folder, 10)
    checkpoint(folder, 15, whole=False)  # still being written
    records.link_checkpoints(run, folder)
    records.link_checkpoints(run, folder)
    there = run.checkpoint(0).parent
    assert sorted(link.name for link in there.iterdir()) == ["step_00005", "step_00010"]
    assert run.checkpoint(10).resolve() == second.resolve()
    assert not run.checkpoint(10).readlink().is_absolute()  # a run can be moved
    for file in first.iterdir():
        file.unlink()
    first.rmdir()
    records.link_checkpoints(run, folder)
    assert [link.name for link in there.iterdir()] == ["step_00010"]


def test_the_best_model_outlives_its_checkpoint(run, monkeypatch):
    folder = run.root / "verl" / "checkpoints"
    made = {step: checkpoint(folder, step) for step in (5, 10)}
    records.link_checkpoints(run, folder)
    records.keep_best(run)  # no validation yet
    assert run.checkpoint(5).is_symlink()
    for step in (5, 10):
        (run.root / "best.json").write_text(json.dumps({"step": step, "epm_q": step}))
        if step == 10:  # as on a disk without hard links
            monkeypatch.setattr(records.os, "link", lambda *_: (_ for _ in ()).throw(OSError))
        records.keep_best(run)
        records.keep_best(run)
        kept = run.checkpoint(step)
        assert not kept.is_symlink() and json.loads((kept / "config.json").read_text()) == {"step": step}
    assert not run.checkpoint(5).exists()  # one is kept, not all that were once the best
    (made[10] / "config.json").unlink()
    assert (run.checkpoint(10) / "config.json").exists()


def test_why_a_run_stopped_is_told(run):
    assert records.why_stopped(run) is None
    (run.root / STOPPED).write_text("the judge is deaf\n")
    assert records.why_stopped(run) == "the judge is deaf"
