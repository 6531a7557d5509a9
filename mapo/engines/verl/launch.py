"""One run on verl, from its folder to its summary.

This process prepares the run directory, starts `verl.trainer.main_ppo` as a process of its own and says what
it does. verl's words go to `verl/log.txt`.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

from mapo.config import Config, dump_config
from mapo.engines.verl.settings import check_settings, hydra_value, overrides
from mapo.engines.verl.table import AGENT, write_tables
from mapo.errors import InputError, TrainError
from mapo.store import RunDir, read_steps, write_atomic, write_stop_reason

POLL = 0.5
PATIENCE = 20
"""Seconds verl may take to end when it is asked to."""
_PR_SET_PDEATHSIG = 1
TAIL = 15
"""Lines of verl's log that are shown when it fails."""


def check_engine(root: Path, engine: str) -> None:
    if RunDir(root).manifest.exists():
        from mapo.train.setup import refuse_other_engine

        refuse_other_engine(root, engine)


def check_verl() -> None:
    missing = [name for name in ("verl", "ray", "transfer_queue", "pyarrow") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"the verl engine needs {', '.join(missing)}, not installed here",
            fix="An environment of its own: make setup-verl, then .venv-verl/bin/mapo train --engine verl",
        )


def run_verl(
    config: Config,
    root: Path,
    *,
    resume: bool,
    on_step: Callable[[dict[str, Any]], None],
    on_resume: Callable[[int], None] | None = None,
) -> Any:
    """The run, to its end; `on_step` is told each line of metrics.jsonl, `on_resume` the step a run that was
    begun goes on with. A TrainingOutcome, as of a local run."""
    began = time.monotonic()
    if resume:
        check_engine(root, "verl")
    check_verl()
    check_settings(config)
    command, environment = prepare(config, root, resume=resume)
    run = RunDir(root)
    log = run.verl_log
    with _alone(root):
        run.stopped.unlink(missing_ok=True)
        told = _why(run, config, 0, log)  # a run that is over has nothing left to do
        if told:
            if resume and on_resume:
                on_resume(first_step(root))
            code = _watched(command, environment, log, run, on_step)
            told = _why(run, config, code, log)
        if told:
            write_stop_reason(run, told, keep_first=True)
            again = f"mapo train --engine verl --out {quote(str(root))} --resume"
            raise TrainError(told, where=str(log), fix=f"When that is mended: {again}")
        return outcome(config, run, time.monotonic() - began)


def first_step(root: Path) -> int:
    """The step verl begins with: the one after its last checkpoint, where that is whole."""
    folder = RunDir(root).verl_checkpoints
    try:
        last = int((folder / "latest_checkpointed_iteration.txt").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 1
    return last + 1 if (folder / f"global_step_{last}").is_dir() else 1


def _why(run: RunDir, config: Config, code: int, log: Path) -> str | None:
    """What is wrong with a run that ended, if anything is."""
    from mapo.engines.verl.records import due, why_stopped

    if (told := why_stopped(run)) or code:
        return f"verl ended with status {code}: {told or _tail(log)}"
    steps, done = config.optim.steps, [line["step"] for line in read_steps(run.metrics)]
    if done != list(range(1, steps + 1)) or due(run, config, steps):
        return f"verl ended early: {len(done)} of {steps} steps are on record, or a test is not complete"
    return None


def prepare(config: Config, root: Path, *, resume: bool) -> tuple[list[str], dict[str, str]]:
    """Claim the folder and write everything verl reads; the command, and the environment it needs."""
    from mapo.train.metrics import check_trackers
    from mapo.train.run import check_options, chosen_scenarios
    from mapo.train.setup import check_run, claim_run

    root = root.resolve()
    run = RunDir(root)
    scenarios = chosen_scenarios(config)
    check_options(config)
    check_trackers(config.run.trackers)
    model, context = _model(config)
    check_run(root, config, scenarios, resume=resume, engine="verl")
    claim_run(root, config, scenarios, engine="verl")
    with _alone(root):
        write_atomic(run.verl_config, dump_config(config))
    tables = write_tables(run.verl, config, scenarios)
    loop = {"name": AGENT, "_target_": "mapo.engines.verl.dialogue.DialogueLoop", "run_dir": str(root)}
    write_atomic(run.verl_agent, json.dumps([loop], ensure_ascii=False) + "\n")  # YAML too
    environment = _environment(config, root)
    settings = overrides(config, root, tables, model, context, environment)
    write_atomic(run.verl_settings, "\n".join(settings) + "\n")
    settings += ["hydra.output_subdir=null", "hydra/job_logging=none"]
    settings += [f"hydra.run.dir={hydra_value(str(run.verl))}"]
    return [sys.executable, "-m", "verl.trainer.main_ppo", *settings], environment


def _model(config: Config) -> tuple[str, int]:
    """Where verl loads the model from, after what the local engine would refuse about it; and how many tokens
    a dialogue may grow to."""
    from mapo.local_model.policy import folder_of, load_tokenizer, max_context
    from mapo.local_model.template import keep_turns_verbatim, read_template
    from mapo.sampling.tokens import longest_dialogue

    source = config.model.source
    folder = folder_of(source)
    if folder and (folder / "adapter_config.json").is_file():
        told = "holds an adapter, and the verl engine trains whole models"
        raise InputError(told, where=source, fix="Merge it into its base first")
    keep_turns_verbatim(read_template(load_tokenizer(source), enable_thinking=config.model.thinking))
    context = longest_dialogue(config.rollout.context, max_context(source), source)
    return str(folder.resolve()) if folder else source, context


def _environment(config: Config, root: Path) -> dict[str, str]:
    """What every process of the run must find in its environment; keys are not among it."""
    found = {
        "VERL_USE_EXTERNAL_MODULES": "mapo.engines.verl.plugin,mapo.engines.verl.trainer",
        "TENSORBOARD_DIR": str(RunDir(root).tensorboard),
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "HYDRA_FULL_ERROR": "1",
    }
    if config.verl.rollout == "mapo_cpu":
        found |= {
            "VERL_PLATFORM": "cpu",
            "MAPO_CPU_RANKS": str(config.verl.gpus),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
        }
    return found


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Nobody else may run this run."""
    run = RunDir(root)
    run.verl.mkdir(exist_ok=True)
    with open(run.verl_lock, "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            told = "somebody is running this run"
            raise InputError(told, where=str(root), fix="Wait for it, or stop it") from None
        yield


def _watched(
    command: list[str],
    environment: dict[str, str],
    log: Path,
    run: RunDir,
    on_step: Callable[[dict[str, Any]], None],
) -> int:
    """The exit status; steps are told as they end."""
    told = {line["step"]: line for line in read_steps(run.metrics)}
    with open(log, "ab") as out:
        verl = subprocess.Popen(  # noqa: S603 (our own command)
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_us,
        )
        try:
            while True:
                code = verl.poll()
                for line in read_steps(run.metrics):
                    if told.get(line["step"]) != line:
                        told[line["step"]] = line
                        on_step(line)
                if code is not None:
                    return code
                time.sleep(POLL)
        finally:
            _end(verl)


def _die_with_us() -> None:
    """In the child: a kill of this process that cannot be caught must not leave a cluster running."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(verl: subprocess.Popen[bytes]) -> None:
    """Nothing of it is left behind, however we leave."""
    for sign, patience in ((signal.SIGTERM, PATIENCE), (signal.SIGKILL, 5)):
        try:
            os.killpg(verl.pid, sign)
            verl.wait(patience)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _tail(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-TAIL:])


def outcome(config: Config, run: RunDir, seconds: float) -> Any:
    """Scores before and after, and summary.json."""
    from mapo.engines.verl import records
    from mapo.local_model.policy import name_of
    from mapo.train.rollouts import write_json
    from mapo.train.run import TrainingOutcome, summarise

    before, after = (records.dialogues_of(run, config, "test", step) for step in (0, config.optim.steps))
    scores = records.score(config, "before", before), records.score(config, "after", after)
    lines = read_steps(run.metrics)
    done = lines[-1]["step"] if lines else 0
    summary = summarise(
        config,
        lines,
        name_of(config.model.source),
        scores,
        done=done,
        chosen=done,
        best=records.best(run),
        seconds=seconds,
    )
    write_json(run.summary, {**summary, "engine": "verl"})
    return TrainingOutcome(summary, *scores, before, after)
