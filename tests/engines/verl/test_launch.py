"""One run on verl as its launcher sees it; in verl's place stands a small program."""

from __future__ import annotations

import copy
import json
import sys
import time
from pathlib import Path

import pytest
import yaml

from mapo.config import load_config
from mapo.engines.verl import launch
from mapo.engines.verl.launch import check_verl, prepare, run_verl
from mapo.errors import InputError, TrainError
from mapo.local_model import policy
from mapo.local_model.shipped import POCKET
from mapo.scenarios.sets import load_scenarios
from mapo.store import JsonlWriter, RunDir
from mapo.train.run import chosen_scenarios
from mapo.train.setup import check_run, claim_run, engine_of, load_run_config
from support import small_run as small
from support import tiny
from support.command import mapo
from support.verl_rows import dialogue

GIVEN = ("roles.judge.model=", "optim.steps=2", "run.trackers=[]", "eval.test_repeats=0", "eval.repeats=1")


def config(*given: str):
    return load_config(None, [*GIVEN, *given])


def test_everything_verl_reads_is_written(tmp_path):
    root = tmp_path / "a run, ünlike 'others'"
    command, environment = prepare(config(), root, resume=False)
    assert command[:3] == [sys.executable, "-m", "verl.trainer.main_ppo"]
    settings = (root / "verl" / "settings.txt").read_text().splitlines()
    assert command[3 : 3 + len(settings)] == settings
    assert f'+trainer.mapo_run="{root}"' in settings
    assert f"actor_rollout_ref.model.path={POCKET.resolve()}" in settings
    assert all(line.startswith("hydra") for line in command[3 + len(settings) :])
    (loop,) = yaml.safe_load((root / "verl" / "agent.yaml").read_text())
    assert loop == {
        "name": "mapo_dialogue",
        "_target_": "mapo.engines.verl.dialogue.DialogueLoop",
        "run_dir": str(root),
    }
    assert load_run_config(root) == config() and RunDir(root).manifest.exists()
    assert environment["TENSORBOARD_DIR"] == str(root / "tensorboard")
    assert "mapo.engines.verl.plugin" in environment["VERL_USE_EXTERNAL_MODULES"]
    assert "VERL_PLATFORM" not in environment
    reach = {line.rpartition("env_vars.")[2].split("=")[0] for line in settings if "env_vars" in line}
    assert reach == set(environment)  # the processes of a cluster that was started before need it too


def test_on_cpus_verl_is_told_so(tmp_path):
    _, environment = prepare(config("verl.rollout=mapo_cpu", "verl.gpus=3"), tmp_path, resume=False)
    assert (environment["VERL_PLATFORM"], environment["MAPO_CPU_RANKS"]) == ("cpu", "3")


def test_no_secret_is_written_down(tmp_path, monkeypatch):
    monkeypatch.setenv("THEIR_KEY", "very-secret-words")
    told = ["roles.agents=llm", "roles.everyone.model=m", "roles.everyone.key_env=THEIR_KEY"]
    command, environment = prepare(config(*told), tmp_path / "run", resume=False)
    assert "very-secret-words" not in " ".join([*command, *environment.values()])
    for file in (tmp_path / "run").rglob("*"):
        assert file.is_dir() or b"very-secret-words" not in file.read_bytes()


def test_a_model_of_a_hub_keeps_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr("mapo.local_model.policy.load_tokenizer", lambda _: tiny.tokenizer())
    monkeypatch.setattr("mapo.local_model.policy.max_context", lambda _: None)
    command, _ = prepare(config("model.source=someone/some-model"), tmp_path, resume=False)
    assert "actor_rollout_ref.model.path=someone/some-model" in command


def test_other_processes_get_the_full_paths_of_local_roles(cast_model, tmp_path, monkeypatch):
    monkeypatch.chdir(cast_model.parent)
    name, path = f"local:{cast_model.name}", f"local:{cast_model.resolve()}"
    settings = ["roles.agents=llm", "roles.everyone.model=m", f"roles.user.model={name}"]
    settings += [f'roles.judges=[{{model="{name}"}}, {{model="local:pocket"}}]', f"eval.judge.model={name}"]
    prepare(config(*settings), tmp_path / "run", resume=False)
    roles = load_config(RunDir(tmp_path / "run").verl_config, flat=True)
    assert roles.roles.user.model == roles.eval.judge.model == path
    assert [judge.model for judge in roles.roles.judges] == [path, "local:pocket"]
    assert roles.roles.everyone.model == "m"
    assert load_run_config(tmp_path / "run").roles.user.model == name
    prepare(config(*settings), tmp_path / "run", resume=True)


def test_a_run_is_resumed_in_its_own_folder_only(tmp_path):
    root = tmp_path / "run"
    with pytest.raises(InputError, match="no run to resume"):
        prepare(config(), root, resume=True)
    first, _ = prepare(config(), root, resume=False)
    with pytest.raises(InputError, match="holds a run already"):
        prepare(config(), root, resume=False)
    with pytest.raises(InputError, match="started with other settings: optim.lr"):
        prepare(config("optim.lr=1"), root, resume=True)
    assert prepare(config(), root, resume=True)[0] == first


@pytest.mark.parametrize("given", ["verl.memory=0.5", "verl.tensor_parallel=2", "verl.workers=2"])
def test_where_a_run_goes_on_may_differ(given, tmp_path, monkeypatch):
    monkeypatch.setattr(policy, "attention_heads", lambda source: (4, 2))  # the shipped policy has 5 and 1
    root = tmp_path / "run"
    prepare(config(), root, resume=False)
    prepare(config(given), root, resume=True)
    assert load_config(RunDir(root).verl_config) == config(given) and load_run_config(root) == config()


@pytest.mark.parametrize("given", ["verl.nodes=2", "verl.gpus=4", "verl.sequence_parallel=2"])
def test_what_verls_checkpoints_are_cut_by_may_not(given, tmp_path, monkeypatch):
    monkeypatch.setattr(policy, "attention_heads", lambda source: (4, 2))  # the shipped policy has 5 and 1
    root = tmp_path / "run"
    prepare(config(), root, resume=False)
    with pytest.raises(InputError, match=f"started with other settings: {given.partition('=')[0]}"):
        prepare(config(given), root, resume=True)
    assert load_config(RunDir(root).verl_config) == config()


def test_a_run_is_of_one_engine(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    scenarios = chosen_scenarios(config())
    prepare(config(), ours, resume=False)
    claim_run(theirs, config(), scenarios)
    assert (engine_of(ours), engine_of(theirs)) == ("verl", "local")
    with pytest.raises(InputError, match="is a run of the verl engine. Add --engine verl"):
        check_run(ours, config(), scenarios, resume=True)
    with pytest.raises(InputError, match="is a run of the local engine. Add --engine local"):
        prepare(config(), theirs, resume=True)
    assert not (theirs / "verl").exists()


@pytest.mark.parametrize("told", [None, b"{", b"[]", b"{}", b"\xff"])
def test_whose_run_it_is_where_nothing_says_so(told, tmp_path):
    if told is not None:
        RunDir(tmp_path).manifest.write_bytes(told)
    assert engine_of(tmp_path) == "local"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("model.source=/no/such/folder", "no such folder"),
        ("advantage.method=magic", "unknown method"),
        ('run.trackers=["trackio"]', "trackio, which is not installed"),
        ("scenarios.train=builtin:test", "in both train and test"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_nothing_written(given, told, tmp_path):
    with pytest.raises(InputError, match=told):
        prepare(config(given), tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()


def model_folder(folder: Path, template: str | None = None) -> Path:
    """What of a model is read before verl starts."""
    words = copy.deepcopy(tiny.tokenizer())
    words.chat_template = template or words.chat_template
    words.save_pretrained(folder)
    tiny.model("llama", vocab_size=len(words), max_position_embeddings=1024).config.save_pretrained(folder)
    return folder


def test_a_model_that_verl_could_not_train_is_refused_with_nothing_written(tmp_path):
    root = tmp_path / "run"

    def refused(folder, told, *given):
        with pytest.raises(InputError, match=told):
            prepare(config(f"model.source={folder}", "rollout.context=1024", *given), root, resume=False)
        assert not root.exists()

    good = model_folder(tmp_path / "good")
    refused(good, "rollout.context is 1025, but the model's context is 1024 tokens", "rollout.context=1025")
    turns = "{% for m in messages %}<|im_start|>{{ m.role }} {{ loop.revindex }} {{ loop.index }}\n"
    turns += "{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    odd = model_folder(tmp_path / "odd", turns)
    refused(odd, "changes from turn to turn")
    part = model_folder(tmp_path / "part")
    (part / "config.json").unlink()
    refused(part, "its config cannot be loaded")
    (part / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/model"}')
    refused(part, "holds an adapter")
    prepare(config(f"model.source={good}", "rollout.context=1024"), root, resume=False)


# ---- a program in verl's place

LINE = {"reward": 0.5, "score": 50.0, "sampled_per_s": 9.0, "turns": 2.0, "unscored": 0, "broken": 0}
LINE |= {"dialogues": 8, "rollout_s": 1.0, "update_s": 1.0}
WRITES = f"""
import json, os, shutil, sys, time
root = os.environ["ROOT"]
def step(n, **more):
    with open(root + "/metrics.jsonl", "a") as file:
        file.write(json.dumps(dict({LINE!r}, step=n, **more)) + "\\n")
def validate(n):
    os.makedirs(root + f"/eval/validation_{{n:05d}}", exist_ok=True)
    shutil.copy(root + "/../validation.jsonl", root + f"/eval/validation_{{n:05d}}/dialogues.jsonl")
"""
WHOLE = "step(1); step(2); validate(2);"


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Run `code` instead of verl, in a run directory that `prepare` made."""
    root = tmp_path / "run"
    monkeypatch.setattr(launch, "check_verl", lambda: None)
    monkeypatch.setattr(launch, "POLL_SECONDS", 0.01)
    with JsonlWriter(tmp_path / "validation.jsonl") as writer:
        for scenario in load_scenarios(config().scenarios.validation):
            said = [{"gap": 1, "length": 1, "reward": 1.0}]
            writer.write_dialogue(dialogue(said, f"{scenario.id}_1"))

    def instead(code: str) -> Path:
        def prepared(given, folder, *, resume):
            _, environment = prepare(given, folder, resume=resume)
            return [sys.executable, "-c", WRITES + code], {**environment, "ROOT": str(folder)}

        monkeypatch.setattr(launch, "prepare", prepared)
        return root

    return instead


def test_steps_are_told_as_they_end_and_the_run_is_summed_up(stand_in):
    root = stand_in(WHOLE + "print('hello'); step(2, again=True)")
    told: list[dict] = []
    found = run_verl(config(), root, resume=False, on_step=told.append)
    assert told[0]["step"] == 1 and told[-1]["again"]
    assert (root / "verl" / "log.txt").read_text() == "hello\n"
    summary = json.loads((root / "summary.json").read_text())
    assert summary == found.summary | {"engine": "verl"}
    assert (summary["steps"], summary["dialogues"], summary["seconds"]) == (2, 16, 4.0)
    assert found.before is None and found.after is None
    told.clear()
    stand_in("raise SystemExit('a run that is over is not started again')")
    again = run_verl(config(), root, resume=True, on_step=told.append)
    assert not told and again.summary["steps"] == 2


def test_what_was_told_before_a_resume_is_not_told_again(stand_in):
    root = stand_in("step(1); raise SystemExit(1)")
    told: list[dict] = []
    with pytest.raises(TrainError, match="verl exited with status 1"):
        run_verl(config(), root, resume=False, on_step=told.append)
    stand_in("step(2); validate(2)")
    run_verl(config(), root, resume=True, on_step=told.append)
    assert [line["step"] for line in told] == [1, 2]


@pytest.mark.parametrize(
    ("told", "folder", "first"),
    [(None, None, 1), ("1", "global_step_1", 2), ("2\n", "global_step_2", 3), ("1", None, 1), ("", None, 1)],
)
def test_a_run_goes_on_after_verls_last_checkpoint(stand_in, told, folder, first):
    root = stand_in("step(1); raise SystemExit(1)")
    heard: list[int] = []
    with pytest.raises(TrainError):
        run_verl(config(), root, resume=False, on_step=print, on_resume=heard.append)
    assert not heard  # it was begun, not resumed
    saved = root / "verl" / "checkpoints"
    saved.mkdir()
    if told is not None:
        (saved / "latest_checkpointed_iteration.txt").write_text(told)
    if folder:
        (saved / folder).mkdir()
    stand_in("step(2); validate(2)")
    run_verl(config(), root, resume=True, on_step=print, on_resume=heard.append)
    assert heard == [first]
    run_verl(config(), root, resume=True, on_step=print, on_resume=heard.append)
    assert heard == [first]  # a run that is over is not resumed


@pytest.mark.parametrize("code", ["", "step(1); validate(2)", "step(2); validate(2)", "step(1); step(2)"])
def test_a_run_that_ended_early_is_no_run_though_verl_is_content(code, stand_in):
    root = stand_in(code)
    with pytest.raises(TrainError, match="verl exited early: ") as problem:
        run_verl(config(), root, resume=False, on_step=print)
    assert "--resume" in problem.value.fix and not (root / "summary.json").exists()
    assert RunDir(root).stopped.read_text().startswith("verl exited early")
    stand_in(WHOLE)
    run_verl(config(), root, resume=True, on_step=print)
    assert not RunDir(root).stopped.exists() and (root / "summary.json").exists()


def test_a_run_is_run_once_at_a_time(stand_in):
    root = stand_in(WHOLE + "time.sleep(600)")

    def again(line):
        before = RunDir(root).verl_config.read_bytes()
        with pytest.raises(InputError, match="another process is training this run. Wait for it"):
            run_verl(config("verl.memory=0.5"), root, resume=True, on_step=print)
        assert RunDir(root).verl_config.read_bytes() == before
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_verl(config(), root, resume=False, on_step=again)
    stand_in(WHOLE)  # whoever held it is gone
    run_verl(config("verl.memory=0.5"), root, resume=True, on_step=print)


def test_a_failure_shows_the_end_of_the_log(stand_in):
    root = stand_in("[print('line', n) for n in range(40)]; print(); sys.exit(3)")
    with pytest.raises(TrainError) as problem:
        run_verl(config(), root, resume=False, on_step=print)
    assert problem.value.problem.startswith("verl exited with status 3: line 25\nline 26")
    assert problem.value.problem.endswith("line 39")
    assert problem.value.where == str(root / "verl" / "log.txt") and "--resume" in problem.value.fix
    assert not (root / "summary.json").exists()


def test_the_reason_a_process_left_is_told_instead_of_the_log(stand_in):
    root = stand_in("open(root + '/stopped.txt', 'w').write('the judge failed too often'); sys.exit('x')")
    with pytest.raises(TrainError, match="status 1: the judge failed too often") as problem:
        run_verl(config(), root, resume=False, on_step=print)
    assert problem.value.problem.endswith("failed too often")
    assert RunDir(root).stopped.read_text() == "the judge failed too often"  # the first word counts
    stand_in("sys.exit(1)")  # what stopped the last run is not held against this one
    with pytest.raises(TrainError) as problem:
        run_verl(config(), root, resume=True, on_step=print)
    assert "too often" not in str(problem.value)
    assert RunDir(root).stopped.read_text().startswith("verl exited with status 1")


def test_a_word_that_was_left_counts_though_verl_is_content(stand_in):
    root = stand_in(WHOLE + "open(root + '/stopped.txt', 'w').write('the judge failed too often')")
    with pytest.raises(TrainError, match="status 0: the judge failed too often"):
        run_verl(config(), root, resume=False, on_step=print)


CHILD = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(root + "/pid", "w").write(str(os.getpid()))
step(1)
"""


def alive(group: int) -> list[str]:
    """The processes of a group that are no zombies."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = file.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_group) == group and state != "Z":
            found.append(file.parent.name)
    return found


def gone(group: int) -> bool:
    """Within a moment."""
    for _ in range(500):
        if not alive(group):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", ["interrupted", "failed", "ended", "deaf to being asked"])
def test_nothing_is_left_running(how, stand_in, monkeypatch):
    monkeypatch.setattr(launch, "TERMINATE_SECONDS", 0.3)
    ends = {"failed": "sys.exit(1)", "ended": "step(2); validate(2)"}.get(how, "time.sleep(600)")
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" if "deaf" in how else ""
    root = stand_in(deaf + CHILD + ends)

    def interrupt(line):
        if ends.startswith("time"):
            assert len(alive(int((root / "pid").read_text()))) == 2
            raise KeyboardInterrupt

    expected = {"failed": TrainError, "ended": None}.get(how, KeyboardInterrupt)
    if expected:
        with pytest.raises(expected):
            run_verl(config(), root, resume=False, on_step=interrupt)
    else:
        run_verl(config(), root, resume=False, on_step=interrupt)
    assert gone(int((root / "pid").read_text()))


# ---- as typed


def test_without_verl_the_command_says_how_to_get_it(tmp_path, monkeypatch):
    known = launch.find_spec
    monkeypatch.setattr(launch, "find_spec", lambda name: None if name in ("verl", "ray") else known(name))
    done = mapo("train", "--engine", "verl", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "packages that are not installed: verl, ray" in done.stderr
    assert "make setup-verl" in done.stderr
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(launch, "find_spec", lambda name: object())
    check_verl()


def test_an_engine_that_is_none_is_refused(tmp_path):
    done = mapo("train", "--engine", "nonsense", "--out", tmp_path / "run")
    assert done.returncode == 2 and "--engine is 'nonsense'. Use local or verl" in done.stderr


def test_what_verl_could_not_do_is_refused_by_the_command(stand_in, tmp_path):
    stand_in("")
    done = mapo("train", "--engine", "verl", "optim.schedule=linear", "--out", tmp_path / "run")
    assert done.returncode == 2 and "linear schedule" in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_command_tells_steps_and_how_to_go_on(stand_in):
    root = stand_in(WHOLE)
    done = mapo("train", "--engine", "verl", *GIVEN, "--out", root)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("step")]
    assert len(lines) == 2 and "reward +0.50" in lines[0] and (root / "report.html").exists()
    metrics = root / "metrics.jsonl"
    metrics.write_text(
        metrics.read_text().splitlines(keepends=True)[0]
    )  # as if a kill had come before the last
    stand_in("import signal; os.kill(os.getppid(), signal.SIGINT); time.sleep(600)")
    done = mapo("train", "--out", root, "--resume")  # with the engine it was started with
    assert "resumed at step 1\n" in done.stderr  # no checkpoint is there
    assert done.returncode == 130 and f"--engine verl --out {root} --resume" in done.stderr
    done = mapo("train", "--engine", "local", "--out", root, "--resume")
    assert done.returncode == 2 and "is a run of the verl engine" in done.stderr


def test_the_command_goes_on_with_a_local_run_as_one(stand_in, tmp_path):
    stand_in("")
    model, out = small.model_folder(tmp_path / "model"), tmp_path / "mine"
    given = [*small.SMALL, f"model.source={model}", "optim.steps=1"]
    assert mapo("train", *given, "--out", out).returncode == 0
    done = mapo("train", "--engine", "verl", "verl.gpus=2", "--out", out, "--resume")
    assert done.returncode == 2 and "is a run of the local engine" in done.stderr
    assert mapo("train", "--out", out, "--resume").returncode == 0


def test_a_trainer_lost_with_its_node_is_recognised_in_the_log_of_this_start(tmp_path):
    log = tmp_path / "log.txt"
    lost = "Traceback (most recent call last):\nray.exceptions.ActorUnavailableError: The actor is gone\n"
    log.write_text(lost)
    run, two_nodes = RunDir(tmp_path), load_config(None, ["verl.nodes=2", "verl.gpus=1"])
    reason = launch._failure(run, two_nodes, 1, log)
    expected = "a Ray node or a process on it was lost (ray.exceptions.ActorUnavailableError)"
    assert reason == f"verl exited with status 1: {expected}"
    assert launch._failure(run, load_config(None), 1, log).endswith("The actor is gone")  # one node
    before = log.stat().st_size
    log.write_text(f"{lost}Traceback (most recent call last):\nValueError: other\n")
    assert launch._failure(run, two_nodes, 1, log, before).endswith("ValueError: other")
