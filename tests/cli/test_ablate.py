"""mapo ablate: the grid played by a stand-in for `mapo train`, in real processes."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from mapo.advantage import METHODS
from mapo.cli.training import ablate
from mapo.errors import InputError, StoreError
from mapo.estimators.methods import ESTIMATORS
from mapo.evals.ablation import processes
from mapo.evals.processes import locked
from mapo.scripted.world import World, world_notice
from mapo.testing.server import LoopbackServer
from mapo.testing.world import world

FAKE = '''
"""Does to a run directory what `mapo train` does, with numbers made of its settings."""
import json, os, pathlib, sys
config, *settings = [a for a in sys.argv[1:] if not a.startswith("--")]
told = dict(a.split("=", 1) for a in settings)
method = told.get("advantage.method", "mapo").strip('"')
reward = told.get("reward.name", "idr").strip('"')
seed, out = int(told["run.seed"]), pathlib.Path(next(a for a in sys.argv if a.startswith("--out="))[6:])
if "--engine=verl" in sys.argv:
    assert "run.threads" not in told
else:
    assert told["run.threads"] == os.environ["OMP_NUM_THREADS"] == "1"
assert pathlib.Path(config).is_file()
begun = (out / "manifest.json").exists()
assert begun == ("--resume" in sys.argv), "resumes exactly what was begun"
out.mkdir(exist_ok=True)
(out / "manifest.json").write_text("{}")
print(out.name, "resumed" if begun else "begins", flush=True)
if (gate := os.environ.get("FAKE_GATE")):
    open(gate, "w").write("here")  # blocks until somebody reads
    import signal
    signal.pause()
if method == os.environ.get("FAKE_FAILS"):
    sys.exit("error: the loss is not finite")
end = 40 + 5 * (method == "mapo") + 3 * (reward == "idr") + seed / 10
end += 10 * float(told.get("advantage.turn_weight", 0))
lines = [{"step": i, "dialogues": 8, "score": end * i / 4, "grad_norm": 1.0} for i in range(1, 5)]
(out / "metrics.jsonl").write_text("".join(json.dumps(x) + chr(10) for x in lines))
score = lambda x: {"epm_q": x, "interval": None, "passes": 1, "n": 2}
(out / "summary.json").write_text(json.dumps({"method": method, "reward": reward, "model": "fake",
    "seed": seed, "dialogues": 32, "before": score(20.0), "after": score(end)}))
'''


@pytest.fixture
def fake(tmp_path, monkeypatch):
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    monkeypatch.setattr(processes, "TRAIN", [sys.executable, str(script)])
    return script


def call(*args: object):
    app = typer.Typer()
    app.command()(ablate.ablate)
    done = CliRunner().invoke(app, list(map(str, args)), catch_exceptions=False)
    return done.exit_code, done.output


def test_the_default_methods_are_those_of_the_paper():
    assert ablate.METHODS.split(",") == list(METHODS)[:6]
    assert all(ESTIMATORS[method].needs is None for method in ablate.METHODS.split(","))


@pytest.mark.figures
def test_a_grid_from_start_to_report(fake, tmp_path):
    out = tmp_path / "grid"
    small = ("--methods", "mapo,grpo", "--rewards", "idr,adr")
    code, told = call("optim.steps=4", "roles.judge.model=", "--out", out, *small, "--seeds", 2, "--jobs", 2)
    assert code == 0, told
    names = {f"{m}_{r}_seed{s}" for m in ("mapo", "grpo") for r in ("idr", "adr") for s in (0, 1)}
    assert {p.stem for p in (out / "logs").iterdir()} == names
    assert "8/8 done" in told and re.search(r"mapo +48\.0", told)
    assert told.startswith("estimate: ")
    assert "8 runs, 0 of them finished: methods mapo, grpo; rewards idr, adr; seeds 0, 1\n" in told
    assert f"mapo report {out}" in told and f"mapo view {out}" in told
    assert f"2 in parallel, 4 steps each, in {out}; logs: {out / 'logs'}\n" in told
    caution = world_notice([World("empathy")])
    assert caution in " ".join(told.split()) and caution in (out / "ablation.md").read_text()
    report = json.loads((out / "ablation.json").read_text())
    assert report["schema"] == "mapo.ablation/1" and report["runs"] == report["wanted"] == 8
    [versus] = report["paired"]["epm_q/idr"]
    assert versus["b"] == "grpo" and versus["differences"] == pytest.approx([5.0, 5.0])
    for name in ("ablation.md", "ablation.png", "ablation.svg"):
        assert (out / name).stat().st_size > 500
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["schema"] == "mapo.ablate/1" and manifest["settings"]["optim"]["steps"] == 4
    assert "method" not in manifest["settings"]["advantage"]

    # again: nothing is left to do; more seeds: only they are played; the grid grows
    _, told = call("--out", out)
    assert f"Nothing is left to train in {out}" in told and "in parallel" not in told
    assert (out / "logs" / "mapo_idr_seed0.log").read_text() == "mapo_idr_seed0 begins\n"
    code, told = call("--out", out, "--methods", "turn", "--rewards", "idr", "--seeds", "0,")
    assert code == 0 and (out / "turn_idr_seed0").is_dir() and not (out / "turn_idr_seed1").exists()
    report = json.loads((out / "ablation.json").read_text())
    assert report["runs"] == 9 and report["wanted"] == 12
    # the report alone, to another target
    code, told = call("--out", out, "--only-report", "--reach", "1000")
    assert code == 0
    report = json.loads((out / "ablation.json").read_text())
    assert report["reach"]["score"] == 1000 and all(c["need"]["reached"] == 0 for c in report["cells"])


def test_another_config_is_refused_and_nothing_is_touched(fake, tmp_path):
    out = tmp_path / "grid"
    small = ("--methods", "mapo", "--rewards", "idr", "--seeds", 1)
    assert call("optim.steps=4", "--out", out, *small)[0] == 0
    before = (out / "manifest.json").read_bytes()
    with pytest.raises(InputError, match=r"other settings: optim.steps, optim.lr"):
        call("pocket", "optim.steps=5", "optim.lr=0.5", "--out", out, *small)
    assert (out / "manifest.json").read_bytes() == before
    # what does not change a run's course may differ
    assert call("run.keep=5", "model.stream=false", "--out", out, "--seeds", 2)[0] == 0
    (out / "manifest.json").write_bytes(before.replace(b'"steps": 4', b'"steps": 6'))
    with pytest.raises(InputError, match="was edited"):
        call("--out", out)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--methods", "mapo,ppo"], "ppo"),
        (["--methods", ","], "empty"),
        (["--rewards", "joy"], "joy"),
        (["--seeds", "0"], "--seeds is '0'"),
        (["--seeds", "a,b"], "--seeds"),
        (["--seeds", "-3"], "--seeds"),
        (["run.seed=3"], "--seeds"),
        (["advantage.method=turn"], "--methods"),
        (["pocket", "other"], "more than one config"),
        (["optim.stepz=3"], "stepz"),
        (["--only-report"], "not the manifest of an ablation"),
    ],
)
def test_what_is_refused_at_the_door(fake, tmp_path, args, told):
    with pytest.raises(InputError, match=told):
        call("--out", tmp_path / "grid", *args)
    assert not (tmp_path / "grid" / "logs").exists()


def test_a_folder_of_something_else_is_left_alone(fake, tmp_path):
    out = tmp_path / "grid"
    out.mkdir()
    (out / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        call("--out", out)
    assert {p.name for p in out.iterdir()} <= {"thesis.tex", ".lock"}


def test_a_run_that_fails_costs_itself_alone(fake, tmp_path, monkeypatch):
    out = tmp_path / "grid"
    small = ("--methods", "turn,mapo", "--rewards", "idr", "--seeds", 2, "--jobs", 1)
    monkeypatch.setenv("FAKE_FAILS", "turn")
    code, told = call("--out", out, *small)
    assert code == 1
    assert "failed: turn_idr_seed0: error: the loss is not finite" in told and "2 runs failed" in told
    assert json.loads((out / "ablation.json").read_text())["runs"] == 2
    monkeypatch.delenv("FAKE_FAILS")
    code, told = call("--out", out, *small)
    assert code == 0 and "4 runs, 2 of them finished" in told
    log = (out / "logs" / "turn_idr_seed1.log").read_text().splitlines()
    assert log == ["turn_idr_seed1 begins", "error: the loss is not finite", "turn_idr_seed1 resumed"]


def test_all_failed_makes_no_report(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_FAILS", "mapo")
    code, _ = call("--out", tmp_path / "grid", "--methods", "mapo", "--rewards", "idr", "--seeds", 1)
    assert code == 1 and not (tmp_path / "grid" / "ablation.json").exists()


def test_no_such_program_is_a_failure_of_the_run(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "TRAIN", [str(tmp_path / "nothing")])
    code, told = call("--out", tmp_path / "grid", "--methods", "mapo", "--rewards", "idr", "--seeds", 1)
    assert code == 1 and "No such file" in told


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_takes_its_runs_with_it_and_says_how_to_go_on(fake, tmp_path, how):
    out, gate = tmp_path / "grid", tmp_path / "gate"
    os.mkfifo(gate)
    code = (
        "import sys, typer; from importlib import import_module\n"
        f"import_module('mapo.evals.ablation.processes').TRAIN = {processes.TRAIN!r}\n"
        "app = typer.Typer(); app.command()(import_module('mapo.cli.training.ablate').ablate); app()"
    )
    command = [sys.executable, "-c", code, "--out", str(out), "--methods", "mapo", "--seeds", "1"]
    process = subprocess.Popen(
        [*command, "--jobs", "1"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FAKE_GATE": str(gate)},
    )
    with open(gate) as file:
        assert file.read() == "here"  # the first run is under way
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    process.send_signal(how)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 128 + how and f"resume with: mapo ablate --out {out}" in told
    assert children
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(int(child), 0)
    # and it does go on
    code, told = call("--out", out, "--jobs", 2)
    assert code == 0 and "mapo_idr_seed0 resumed" in (out / "logs" / "mapo_idr_seed0.log").read_text()


def test_two_at_a_time_in_one_folder(fake, tmp_path):
    out = tmp_path / "grid"
    with locked(out, "ablation"), pytest.raises(InputError, match="is running in this folder"):
        call("--out", out)


# ---- any settings


@pytest.mark.figures
def test_any_settings_can_vary(fake, tmp_path):
    out = tmp_path / "grid"
    vary = ("--vary", "advantage.turn_weight=0,0.5", "--vary", "optim.lr=1e-5, 1e-4")
    code, told = call("optim.steps=4", "--out", out, *vary, "--seeds", 2, "--jobs", 2)
    assert code == 0, told
    assert "8 runs, 0 of them finished: turn_weight 0, 0.5; lr 1e-05, 0.0001; seeds 0, 1\n" in told
    assert (out / "turn_weight-0.5_lr-1e-05_seed1" / "summary.json").is_file()
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["schema"] == "mapo.ablate/2"
    assert manifest["vary"] == {"advantage.turn_weight": [0, 0.5], "optim.lr": [1e-5, 1e-4]}
    assert "lr" not in manifest["settings"]["optim"] and manifest["settings"]["advantage"]["method"] == "mapo"
    assert "| turn\\_weight | lr 1e-05 | lr 0.0001 |" in (out / "ablation.md").read_text()
    # values and seeds may be added; other settings may not
    code, told = call("--out", out, "--vary", "advantage.turn_weight=1", "--seeds", "0,")
    assert code == 0 and (out / "turn_weight-1_lr-0.0001_seed0").is_dir()
    assert json.loads((out / "ablation.json").read_text())["wanted"] == 12
    with pytest.raises(InputError, match="varies advantage.turn_weight, optim.lr"):
        call("--out", out, "--vary", "advantage.gamma=1")
    with pytest.raises(InputError, match="other settings: rollout.siblings"):
        call("rollout.siblings=8", "--out", out)


def test_methods_and_rewards_given_by_vary_are_the_same_grid(fake, tmp_path):
    out = tmp_path / "grid"
    vary = ("--vary", "reward.name=idr", "--vary", "advantage.method=mapo,grpo", "--vary", "run.seed=3,4")
    assert call("--out", out, *vary)[0] == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["schema"] == "mapo.ablate/1" and manifest["seeds"] == [3, 4]
    assert (out / "grpo_idr_seed4").is_dir()


def test_short_forms_and_vary_combine_and_the_config_gives_the_rest(fake, tmp_path):
    out = tmp_path / "grid"
    options = ("--methods", "mapo,batch", "--vary", "advantage.gamma=0.85,1", "--seeds", 1)
    assert call("reward.name=adr", "--out", out, *options)[0] == 0
    assert {p.name for p in out.glob("*_seed*")} == {
        f"{m}_gamma-{g}_seed0" for m in ("mapo", "batch") for g in ("0.85", "1")
    }
    assert 'name = "adr"' in (out / "config.toml").read_text()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--vary", "advantage.turn_weight=0.5,2"], "turn_weight"),
        (["--vary", "advantage.wait=1"], "unknown setting"),
        (["--vary", "optim.lr"], "--vary"),
        (["--vary", "advantage.method=mapo,ppo"], "ppo"),
        (["--vary", "run.threads=1,2"], "run.threads cannot vary"),
        (["--vary", "run.shard=true,false"], "run.shard cannot vary"),
        (["--vary", "run.seed=1", "--seeds", "2"], "run.seed is given twice"),
        (["--vary", "optim.lr=1", "--vary", "optim.lr=2"], "optim.lr is given twice"),
        (["--vary", "optim.lr=0.1", "optim.lr=0.2"], "--vary"),
        (["--vary", "roles.user.model=a,b"], "roles"),
        (["--vary", "optim.kl=0,0.1", "run.reference=false"], "run.reference"),
        (["--vary", f"optim.lr={','.join(map(str, range(1, 500)))}"], "at most 2000"),
    ],
)
def test_every_combination_is_checked_before_anything_starts(fake, tmp_path, args, told):
    with pytest.raises(InputError, match=told):
        call("--out", tmp_path / "grid", *args)
    assert not (tmp_path / "grid" / "manifest.json").exists()
    assert not (tmp_path / "grid" / "logs").exists()


def test_runs_on_verl(fake, tmp_path, monkeypatch):
    from mapo.engines.verl import launch

    monkeypatch.setattr(launch, "check_verl", lambda: None)
    out = tmp_path / "grid"
    options = ("--vary", "advantage.turn_weight=0,1", "--seeds", 1, "--engine", "verl")
    code, told = call("--out", out, *options)
    assert code == 0 and "1 in parallel" in told
    assert json.loads((out / "manifest.json").read_text())["engine"] == "verl"
    assert call("--out", out)[0] == 0  # with the engine it was started with
    with pytest.raises(InputError, match="engine verl"):
        call("--out", out, "--engine", "local")


def test_the_lock_is_not_written_through_a_link(tmp_path):
    other = tmp_path / "of_the_user.txt"
    other.write_text("precious")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".lock").symlink_to(other)
    with pytest.raises(StoreError, match="symbolic link"), locked(tmp_path / "a", "ablation"):
        pass
    assert other.read_text() == "precious"


@pytest.mark.parametrize("replaced", [True, False])
def test_a_lock_whose_file_is_removed_while_it_is_taken_is_refused(tmp_path, monkeypatch, replaced):
    take = fcntl.flock

    def flock(*args):
        (tmp_path / ".lock").unlink()
        if replaced:
            (tmp_path / ".lock").touch()
        take(*args)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(InputError, match="is running in this folder"), locked(tmp_path, "ablation"):
        pass


def test_a_huge_number_of_seeds_is_refused_at_once(tmp_path):
    with pytest.raises(InputError, match="at most 1000 seeds"):
        call("--seeds", "99999999999", "--out", tmp_path / "a")


@pytest.mark.parametrize(
    "key",
    ["scenarios.domain", "verl.settings", "roles.everyone.base_url", "roles.judge", "eval.judge.base_url"],
)
def test_a_grid_from_somebody_else_varies_nothing_that_executes_code_or_sends_keys(tmp_path, key):
    grid = {"schema": "mapo.ablate/2", "vary": {key: ["/tmp/evil"]}, "seeds": [0], "settings": {}}
    grid["config"] = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"  # of {}
    (tmp_path / "manifest.json").write_text(json.dumps(grid))
    with pytest.raises(InputError, match=f"varies {key}, which can execute code or send a key"):
        call("--out", tmp_path)


def test_a_grid_of_too_many_runs_is_refused_at_once(tmp_path):
    axes = {f"optim.{n}": list(range(100)) for n in range(5)}
    grid = {"schema": "mapo.ablate/2", "vary": axes, "seeds": [0], "settings": {}}
    grid["config"] = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"  # of {}
    (tmp_path / "manifest.json").write_text(json.dumps(grid))
    with pytest.raises(InputError, match="too many runs"):
        call("--out", tmp_path)


@pytest.mark.slow
def test_training_under_three_judges(tmp_path):
    """Real runs with served roles: each judge trains one run, and one judge of its own rates all tests."""
    marks = {"lenient": 2, "fair": 1, "strict": 0, "referee": 1}
    worlds = {name: world(lambda n, level=level: (level + n) % 3) for name, level in marks.items()}

    def answer(body):
        known = worlds.get(body["model"])
        return known({**body, "model": "judge"}) if known else worlds["fair"](body)

    out = tmp_path / "grid"
    with LoopbackServer(answer, models=(*marks, "user", "director")) as server:
        settings = (
            *("roles.agents=llm", f"roles.everyone.base_url={server.base_url}", "roles.user.model=user"),
            *("roles.director.model=director", "eval.judge.model=referee", "eval.every=0", "run.trackers=[]"),
            *("rollout.scenarios=1", "rollout.siblings=2", "rollout.max_turns=2", "rollout.max_tokens=8"),
            *(
                "optim.steps=1",
                "eval.test_repeats=1",
                "eval.max_turns=1",
                "run.reference=false",
                "optim.kl=0",
            ),
        )
        judges = ("--vary", "roles.judge.model=lenient,fair,strict")
        code, told = call("pocket", *settings, "--out", out, *judges, "--seeds", 1, "--jobs", 2)
        assert code == 0, told
        assert server.models and {p.name for p in out.glob("judge-*")} == {
            f"judge-{name}_seed0" for name in ("lenient", "fair", "strict")
        }
    report = json.loads((out / "ablation.json").read_text())
    trained = {cell["settings"]["roles.judge.model"]: cell["judges"] for cell in report["cells"]}
    assert trained == {
        name: {"training": [name], "test": ["referee"]} for name in ("lenient", "fair", "strict")
    }
    text = (out / "ablation.md").read_text()
    assert "| judge | training judge | test judge |" in text and "| strict | strict | referee |" in text
    assert "trained by different judges (fair, lenient, strict)" in text
