"""What the dialogues of one process share: the worlds, rules and files of the local engine."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from mapo.config import load_config
from mapo.engines.verl import worker as workers
from mapo.engines.verl.launch import prepare
from mapo.engines.verl.worker import dialogue_file, get_worker
from mapo.errors import InputError, JudgeError
from mapo.local_model.shipped import POCKET
from mapo.scenarios.sets import load_scenarios
from mapo.store import RunDir, read_dialogues, write_stop_reason
from mapo.train.rollouts import eval_jobs, step_jobs
from mapo.train.setup import load_run_config
from mapo.types import Message
from support import tiny
from support.verl_rows import dialogue

GIVEN = ["optim.steps=4", "run.seed=5", "eval.temperature=0.25", "eval.top_p=0.9", "rollout.at_once=9"]
GIVEN += ["verl.workers=2", "run.trackers=[]", "roles.judge.model="]


@pytest.fixture
def ray(monkeypatch):
    """As much of Ray as says which actor this process is."""
    actor = SimpleNamespace(name=None)
    context = SimpleNamespace(get_actor_name=lambda: actor.name)
    stub = SimpleNamespace(is_initialized=lambda: actor.name is not None, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", stub)
    monkeypatch.setattr(workers, "_workers", {})
    return actor


def opened(root, tokenizer=None, model=POCKET, given=()):
    prepare(load_config(None, [*GIVEN, *given]), root, resume=root.exists())
    return asyncio.run(get_worker(root, tokenizer or tiny.tokenizer(), str(model)))


@pytest.fixture
def worker(ray, tmp_path):
    found = opened(tmp_path / "run")
    yield found
    for writer in found.writers.values():
        writer.close()


def test_siblings_meet_the_worlds_of_the_local_engine(worker):
    scenarios = list(worker.scenarios.values())[:2]
    for job in step_jobs(scenarios, 3, per_step=2, siblings=2, seed=5):
        ours = worker.job(job.scenario.id, "train", 3, job.group, int(job.id[-1]))
        assert ours == job
    for number, job in enumerate(eval_jobs(scenarios[:1], repeats=3, seed=5)):
        assert worker.job(scenarios[0].id, "test", 0, "anything", number) == job


def test_training_and_tests_have_their_own_rules(worker):
    assert worker.rules_for("train") is worker.rules
    tested = worker.rules_for("validation")
    assert (tested.temperature, tested.top_p) == (0.25, 0.9)
    for given, turns in ((3, 3), (None, worker.rules.max_turns)):
        settings = worker.config.eval.model_copy(update={"max_turns": given})
        other = replace(worker, config=worker.config.model_copy(update={"eval": settings}))
        assert other.rules_for("test").max_turns == turns


def test_files_are_named_as_in_a_local_run(tmp_path):
    run = RunDir(tmp_path)
    found = {
        (split, step): dialogue_file(run, split, step, 4, 0).relative_to(tmp_path).as_posix()
        for split in ("train", "validation", "test")
        for step in ((2,) if split == "train" else (0, 2, 4))
    }
    assert found == {
        ("train", 2): "dialogues/step_00002.jsonl",
        ("validation", 2): "eval/validation_00002/dialogues.jsonl",
        ("validation", 0): "eval/validation_00000/dialogues.jsonl",
        ("validation", 4): "eval/validation_00004/dialogues.jsonl",
        ("test", 0): "eval/before/dialogues.jsonl",
        ("test", 2): "eval/test_00002/dialogues.jsonl",
        ("test", 4): "eval/after/dialogues.jsonl",
    }
    assert dialogue_file(run, "train", 2, 4, 3).name == "step_00002.3.jsonl"


def test_every_process_keeps_dialogues_in_a_file_of_its_own(worker):
    flushed = []
    worker.flush = lambda: flushed.append(1)
    talk = dialogue([{"gap": 1, "length": 1, "reward": 1.0}])
    worker.record(talk, "train", 1)
    worker.record(replace(talk, id="d1"), "train", 1)
    worker.rank = 1
    worker.record(talk, "train", 1)
    worker.record(talk, "test", 0)
    assert len(worker.writers) == 1 and len(flushed) == 4
    root = worker.run.root
    assert [d.id for d in read_dialogues(root / "dialogues" / "step_00001.jsonl")] == ["d0", "d1"]
    assert [d.id for d in read_dialogues(root / "dialogues" / "step_00001.1.jsonl")] == ["d0"]
    assert [d.id for d in read_dialogues(root / "eval" / "before" / "dialogues.1.jsonl")] == ["d0"]


def test_the_first_reason_to_stop_stays(tmp_path):
    run = RunDir(tmp_path)
    write_stop_reason(run, JudgeError("the judge failed too often", fix="Wake it"), keep_first=True)
    write_stop_reason(run, RuntimeError("later"), keep_first=True)
    assert run.stopped.read_text() == "the judge failed too often. Wake it\n"
    for why, told in ((RuntimeError("odd"), "RuntimeError: odd\n"), ("in words", "in words\n")):
        run.stopped.unlink()
        write_stop_reason(run, why, keep_first=True)
        assert run.stopped.read_text() == told
    # a disk that refuses must not hide the reason
    write_stop_reason(RunDir(run.stopped / "below a file"), "odd", keep_first=True)
    assert [file.name for file in tmp_path.iterdir()] == ["stopped.txt"]


ROLES = ["roles.agents=llm", "roles.everyone.model=m", "roles.everyone.key_env=", "roles.retries=2"]


def test_on_a_resume_other_addresses_and_limits_count(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_workers", {})
    root = tmp_path / "run"
    first = opened(root, given=[*ROLES, "roles.everyone.base_url=http://one.example/v1"])
    assert first.config.roles.everyone.base_url == "http://one.example/v1"
    asyncio.run(first.stack.aclose())
    workers._workers.clear()  # another start is another process
    second = opened(root, given=[*ROLES, "roles.everyone.base_url=http://two.example/v1", "verl.workers=3"])
    assert second.config.roles.everyone.base_url == "http://two.example/v1"
    assert second.semaphore._value == 3  # 9 at once, three workers
    asyncio.run(second.stack.aclose())
    assert load_run_config(root).roles.everyone.base_url == "http://one.example/v1"  # as it was started


def test_a_start_without_its_settings_is_refused(ray, tmp_path):
    root = tmp_path / "run"
    prepare(load_config(None, GIVEN), root, resume=False)
    RunDir(root).verl_config.unlink()
    with pytest.raises(InputError, match=r"verl/config\.toml"):
        asyncio.run(get_worker(root, tiny.tokenizer(), str(POCKET)))
    assert root not in workers._workers


def test_a_process_has_one_site_and_its_share_of_the_work(ray, tmp_path):
    ray.name = "agent_loop_worker_3_ab12"
    first = opened(tmp_path / "run")
    again = asyncio.run(get_worker(tmp_path / "run", None, ""))
    assert first is again and first.rank == 3
    assert first.semaphore._value == 4  # 9 at once, two workers
    assert first.monitor("train", 1).limit == first.config.roles.max_unscored
    ray.name = "something_else"
    assert opened(tmp_path / "other").rank == 0


def test_whatever_the_model_may_end_with_ends_a_reply(ray, tmp_path):
    tokenizer = tiny.tokenizer()
    plain = opened(tmp_path / "a", tokenizer, tmp_path)  # a folder without generation_config.json
    assert plain.end_ids == plain.template.end_ids
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, ends in ((one, "7"), (two, "[8, 9]")):
        folder.mkdir()
        (folder / "generation_config.json").write_text(f'{{"eos_token_id": {ends}}}')
    assert opened(tmp_path / "b", tokenizer, one).end_ids == plain.end_ids | {7}
    assert opened(tmp_path / "c", tokenizer, two).end_ids == plain.end_ids | {8, 9}


def test_where_a_template_would_rewrite_earlier_turns_they_stay_as_they_were_said(ray, tmp_path):
    template = opened(tmp_path / "run", tiny.tokenizer("qwen3")).template
    assert template.append_only and template.verbatim
    assert template.next_turn("stop", "Hm.")[-1] == template.full_prompt([Message("user", "Hm.")])[-1]


def test_tests_have_a_minimum_of_turns_of_their_own(ray, tmp_path):
    worker = opened(tmp_path / "run", given=["rollout.min_turns=8", "eval.min_turns=10"])
    assert (worker.rules_for("train").min_turns, worker.rules_for("test").min_turns) == (8, 10)


def test_jobs_have_the_known_start_levels(ray, tmp_path):
    levels = dict.fromkeys(("C.1", "C.2", "C.3", "A.1", "A.2", "A.3", "P.1", "P.2", "P.3"), 1)
    scenario = load_scenarios("builtin:train")[0].id
    (tmp_path / "levels.json").write_text(json.dumps({scenario: levels}))
    worker = opened(tmp_path / "run", given=[f"scenarios.start_levels={tmp_path / 'levels.json'}"])
    assert worker.job(scenario, "train", 1, "g", 0).start_levels == levels


def test_epochs_are_resolved_before_anything_is_written(tmp_path):
    config = load_config(
        None, ["optim.epochs=0.5", "rollout.scenarios=8", "run.trackers=[]", "roles.judge.model="]
    )
    prepare(config, tmp_path / "run", resume=False)
    steps = -(-len(load_scenarios("builtin:train")) // 16)  # ceil(0.5 * n / 8)
    assert load_run_config(tmp_path / "run").optim.steps == steps
    assert f"trainer.total_training_steps={steps}" in (tmp_path / "run/verl/settings.txt").read_text()
