"""A verl run's directory against a local run's: the same dialogues give the same numbers."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from mapo.config import Config, Model, load_config
from mapo.engines.verl import records
from mapo.engines.verl.settings import learning_rate_at
from mapo.errors import TrainError
from mapo.scenarios.sets import load_scenarios
from mapo.scoring.score import score_dialogues
from mapo.store import (
    JsonlWriter,
    RunDir,
    encode_dialogue,
    process_files,
    read_dialogues,
    read_steps,
    write_stop_reason,
)
from mapo.train.setup import load_run_config
from support import small_run as small
from support.verl_rows import dialogue

SIMILAR = {"loss", "grad_norm", "lr", "clip_fraction", "entropy", "kl", "kl_start", "drift", "memory_gb"}
SIMILAR |= {"first", "tokens", "gpu_gb"}
CLOCK = {"rollout_s", "update_s", "other_s", "step_s", "time", "sampled_per_s", "trained_per_s"}


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
        measured = {"actor/grad_norm": 0.5, "actor/lr": 9.0, "perf/throughput": 9.0, "mapo/drift": 1e-5}
        measured |= {"mapo/tokens": 30.0, "mapo/first_ratio_max": 1.5, "mapo/gpu_gb": 7.0}
        timing = {"gen": 2.0, "update_actor": 1.0, "ref": 0.25, "adv": 0.5, "step": 4.0}
        found = records.step_record(run, config, line["step"], measured, timing)
        theirs = {k: v for k, v in line.items() if k not in SIMILAR | CLOCK | {"validation"}}
        shared = set(theirs) & set(found)
        assert {"reward", "score", "turns_trained", "return_by_turn", "endings", "sampled_tokens"} <= shared
        for name in shared:
            assert found[name] == approx(theirs[name]), name
        assert (found["grad_norm"], found["drift"]) == (0.5, 1e-5) and "perf/throughput" not in found
        assert found["lr"] == learning_rate_at(config, line["step"])  # verl reports the next step's rate
        assert (found["rollout_s"], found["update_s"], found["other_s"]) == (2.0, 1.0, 0.75)
        assert found["sampled_per_s"] == found["sampled_tokens"] / 2.0
        assert (found["trained_per_s"], found["gpu_gb"], found["step_s"]) == (30.0, 7.0, 4.0)
        assert found["first"] == {"ratio_max": 1.5} and set(line["first"]) == {
            "drift",
            "ratio_max",
            "clip_fraction",
        }
        assert found["time"] == {name: spent for name, spent in timing.items() if name != "step"}


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


def test_of_two_processes_the_one_that_wrote_later_counts(local, run):
    """After a resume, an id may be played by another process than before."""
    config = load_run_config(local)
    talk = next(read_dialogues(run.dialogues_of(1)))
    for rank, (seconds, written) in {0: (7.0, 3000), 2: (8.0, 1000), 10: (9.0, 2000)}.items():
        file = run.dialogues_of(1) if rank == 0 else run.dialogues / f"step_00001.{rank}.jsonl"
        file.unlink(missing_ok=True)
        with JsonlWriter(file) as writer:
            writer.write_dialogue(replace(talk, seconds=seconds))
        os.utime(file, (written, written))
    found = {d.id: d.seconds for d in records.dialogues_of(run, config, "train", 1)}
    assert found[talk.id] == 7.0
    os.utime(run.dialogues / "step_00001.10.jsonl", (4000, 4000))
    found = {d.id: d.seconds for d in records.dialogues_of(run, config, "train", 1)}
    assert found[talk.id] == 9.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_null_in_the_line_and_ends_the_run_as_a_gradient(value, local, run):
    measured = {"actor/entropy": value, "actor/grad_norm": 0.5}
    line = records.step_record(run, load_run_config(local), 1, measured, {})
    assert line["entropy"] is None and line["grad_norm"] == 0.5 and line["rollout_s"] == 0.0
    records.append_metrics(run, line)
    assert read_steps(run.metrics)[0]["entropy"] is None
    records.check_gradient(measured, 1, run.root)
    records.check_gradient({}, 1, run.root)  # a step without an update
    with pytest.raises(TrainError, match="the gradient of step 3 is not finite") as problem:
        records.check_gradient({"actor/grad_norm": value}, 3, run.root)
    assert problem.value.where == str(run.root) and "--resume" in problem.value.fix


# ---- validations and tests


def played(run: RunDir, config: Config, split: str, folder: str, times: int, **more) -> Path:
    """A split as two processes would have left it."""
    talks = [
        replace(dialogue([{"gap": 1, "length": 1, "reward": 1.0}], f"{scenario.id}_{k}"), **more)
        for scenario in load_scenarios(getattr(config.scenarios, split), config.scenarios.domain)
        for k in range(1, times + 1)
    ]
    place = run.root / "eval" / folder
    for rank, mine in enumerate((talks[::2], talks[1::2])):
        with JsonlWriter(place / ("dialogues.1.jsonl" if rank else "dialogues.jsonl")) as writer:
            for talk in mine:
                writer.write_dialogue(talk)
    return place


def test_what_is_due_is_what_is_not_on_disk(local, tmp_path):
    run = RunDir(tmp_path)
    known = load_run_config(local)
    told = known.eval.model_copy(update={"every": 2, "repeats": 2, "test_repeats": 1})
    steps = known.optim.model_copy(update={"steps": 5})
    config = known.model_copy(update={"eval": told, "optim": steps})
    due = [records.due_splits(run, config, step) for step in range(6)]
    assert due == [["test"], [], ["validation"], [], ["validation"], ["validation", "test"]]
    untested = config.model_copy(update={"eval": told.model_copy(update={"test_repeats": 0})})
    assert records.due_splits(run, untested, 0) == []
    assert records.due_splits(run, untested, 5) == ["validation"]
    never = config.model_copy(update={"eval": told.model_copy(update={"every": 0})})
    assert [records.due_splits(run, never, step) for step in range(6)] == [["test"], [], [], [], [], ["test"]]
    played(run, config, "test", "before", 1, error="the user is gone")  # broken ones were played too
    played(run, config, "validation", "validation_00005", 2)
    assert records.due_splits(run, config, 0) == [] and records.due_splits(run, config, 5) == ["test"]
    played(run, config, "test", "after", 1)
    assert records.due_splits(run, config, 5) == []
    played(run, config, "validation", "validation_00004", 1)  # each once, not twice
    assert not records.is_complete(run, config, "validation", 4) and records.due_splits(run, config, 4) == [
        "validation"
    ]


def test_a_kill_before_the_last_dialogue_leaves_a_test_due(local, tmp_path):
    run, config = RunDir(tmp_path), load_run_config(local)
    file = played(run, config, "validation", "validation_00002", 1) / "dialogues.1.jsonl"
    assert records.due_splits(run, config, 2) == []
    file.write_bytes(file.read_bytes()[:-9])
    assert records.due_splits(run, config, 2) == ["validation"]
    assert records.due_splits(RunDir(local), config, 2) == []  # a local run's ids are the same


def test_a_judge_deaf_to_everybody_is_noticed_though_nobody_saw_enough(local, tmp_path):
    """Two processes with 21 turns each: one sees a deaf judge after 40."""
    run, config = RunDir(tmp_path), load_run_config(local)
    turn = {"gap": 1, "length": 1, "reward": None}
    for rank in (0, 1):
        file = run.dialogues_of(1) if rank == 0 else run.dialogues / "step_00001.1.jsonl"
        records.check_judge(run, config, "train", 1)
        assert records.stop_reason(run) is None
        with JsonlWriter(file) as writer:
            writer.write_dialogue(dialogue([turn] * 21, f"d{rank}"))
    records.check_judge(run, config, "train", 1)
    assert records.stop_reason(run).startswith("the judge failed on 40 of 40 turns")


def test_a_judge_that_answers_leaves_no_word(local, run):
    for step in (1, 2):
        records.check_judge(run, load_run_config(local), "train", step)
    assert records.stop_reason(run) is None


def test_a_step_that_was_cut_off_is_set_aside_with_all_its_files(run):
    records.move_interrupted_step(run, 1)
    assert sorted(f.name for f in run.dialogues.glob("*.jsonl")) == [
        "step_00002.1.jsonl",
        "step_00002.jsonl",
    ]
    run.dialogues_of(1).write_text("{}\n")
    records.move_interrupted_step(run, 1)
    records.move_interrupted_step(run, 9)
    names = {f.name for f in (run.dialogues / "cut_off").iterdir()}
    assert names == {"step_00001-0.jsonl", "step_00001-1.jsonl", "step_00001.1-0.jsonl"}


def test_a_step_without_a_usable_dialogue_says_so(local, tmp_path):
    run, config = RunDir(tmp_path), load_run_config(local)
    records.check_usable(run, config, 1)  # nothing was played yet
    assert records.stop_reason(run) is None
    played = next(read_dialogues(RunDir(local).dialogues_of(1)))
    with JsonlWriter(run.dialogues_of(1)) as writer:
        writer.write_dialogue(replace(played, error="the user is gone"))
    records.check_usable(run, config, 1)
    told = records.stop_reason(run)
    assert "no dialogue of step 1 is usable; the first failed with: the user is gone" in told


def test_lines_are_logged_and_told_to_trackers(run):
    records.append_metrics(run, {"step": 1, "reward": 0.5, "by": {"turn": [1.0, None]}})
    records.append_metrics(run, {"step": 1, "reward": 1.5})
    assert read_steps(run.metrics) == [{"step": 1, "reward": 1.5}]
    assert records.step_line(run, 1) == {"step": 1, "reward": 1.5} and records.step_line(run, 2) is None
    told = records.tracker_metrics({"reward": 0.5, "by": {"turn": [1.0, None]}, "score": None})
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
    assert validated(local, run, 0, ranked[-1:])
    assert records.best_validation(run) is None  # nothing was trained yet
    low = validated(local, run, 1, ranked[:1])
    assert records.best_validation(run) == {"step": 1, **low}
    expected = score_dialogues("x", ranked[-1:], rubric)
    high = validated(local, run, 2, ranked[-1:])
    assert high == {"epm_q": expected.composite.epm_q, "passes": expected.passes, "n": 1}
    assert high["epm_q"] > low["epm_q"] and records.best_validation(run) == {"step": 2, **high}
    validated(local, run, 3, ranked[:1])
    assert records.best_validation(run)["step"] == 2
    assert records.score_validation(run, load_run_config(local), 4) is None


def checkpoint(folder: Path, step: int, *, whole: bool = True) -> Path:
    made = folder / f"global_step_{step}" / "actor" / "huggingface"
    made.mkdir(parents=True)
    (made / "config.json").write_text(f'{{"step": {step}}}')
    if whole:  # verl writes this last
        (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
    return made


def test_checkpoints_are_linked_and_links_to_nothing_go(run):
    folder = run.root / "verl" / "checkpoints"
    first, second = checkpoint(folder, 5), checkpoint(folder, 10)
    checkpoint(folder, 15, whole=False)  # still being written
    records.link_checkpoints(run, folder, Model())
    records.link_checkpoints(run, folder, Model())
    there = run.checkpoint(0).parent
    assert sorted(link.name for link in there.iterdir()) == ["step_00005", "step_00010"]
    assert run.checkpoint(10).resolve() == second.resolve()
    assert not run.checkpoint(10).readlink().is_absolute()  # a run can be moved
    for file in first.iterdir():
        file.unlink()
    first.rmdir()
    records.link_checkpoints(run, folder, Model())
    assert [link.name for link in there.iterdir()] == ["step_00010"]


def test_the_best_model_outlives_its_checkpoint(run, monkeypatch):
    folder = run.root / "verl" / "checkpoints"
    made = {step: checkpoint(folder, step) for step in (5, 10)}
    records.link_checkpoints(run, folder, Model())
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
    assert records.stop_reason(run) is None
    write_stop_reason(run, "the judge failed too often", keep_first=True)
    assert run.stopped.exists() and records.stop_reason(run) == "the judge failed too often"


def test_spot_checks_of_all_processes_are_compared_and_may_end_the_run(local, run):
    second = 'roles.check={{model="second", window=24, limit={}}}'
    plain, low, high = (
        load_run_config(local),
        *(load_config(local / "config.toml", [second.format(limit)], flat=True) for limit in (-1.0, 0.5)),
    )
    for step in (1, 2):
        for file in process_files(run.dialogues_of(step)):
            opposite = [
                replace(d, turns=tuple(replace(t, check=_opposite(t)) for t in d.turns))
                for d in read_dialogues(file)
            ]
            file.write_bytes(b"".join(encode_dialogue(d) + b"\n" for d in opposite))
    assert records.restored_checks(run, plain, 2) is None
    records.check_agreement(run, plain, None)
    checks = records.restored_checks(run, low, 2)
    assert len(checks.turns) == 24  # those of step 1
    line = records.step_record(run, low, 2, {}, {}, checks)
    assert line["check"]["asked"] == line["check"]["answered"] == 24
    assert line["check"]["window"]["kappa"] < 0.5
    records.check_agreement(run, low, checks)
    assert not records.stop_reason(run)
    records.check_agreement(run, high, checks)
    assert "below the limit of 0.5" in records.stop_reason(run)


def _opposite(turn):
    return tuple(level for m in turn.levels.values() for level in (0 if m.progress.level else 2, 0))
