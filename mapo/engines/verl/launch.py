"""One run on verl, from its directory to its summary.

This process prepares the run directory, starts `verl.trainer.main_ppo` as a subprocess and reports its
progress. verl's own output goes to `verl/log.txt`.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
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

from mapo.config import Config, Role, dump_config, with_steps
from mapo.engines.verl.settings import check_heads, check_settings, hydra_value, overrides
from mapo.engines.verl.table import AGENT, write_tables
from mapo.errors import InputError, TrainError
from mapo.scenarios.epochs import resolve_steps
from mapo.store import RunDir, read_steps, write_atomic, write_stop_reason

POLL_SECONDS = 0.5
TERMINATE_SECONDS = 20
"""How long verl may take to exit after SIGTERM."""
_PR_SET_PDEATHSIG = 1
LOG_TAIL_LINES = 15
"""Lines of verl's log that are shown when it fails."""


def check_engine(root: Path, engine: str) -> None:
    """Raise InputError if the directory holds a run of another engine."""
    if RunDir(root).manifest.exists():
        from mapo.train.setup import refuse_other_engine

        refuse_other_engine(root, engine)


def check_verl() -> None:
    """Raise InputError if verl or a package it needs is not installed."""
    missing = [name for name in ("verl", "ray", "transfer_queue", "pyarrow") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"the verl engine needs packages that are not installed: {', '.join(missing)}",
            fix="Run `make setup-verl`, then use .venv-verl/bin/mapo train --engine verl",
        )


def run_verl(
    config: Config,
    root: Path,
    *,
    resume: bool,
    on_step: Callable[[dict[str, Any]], None],
    on_resume: Callable[[int], None] | None = None,
) -> Any:
    """Train to the end and return a TrainingOutcome, like a local run.

    `on_step` receives each line of metrics.jsonl; `on_resume` receives the first step of a resumed run.
    """
    began = time.monotonic()
    if resume:
        check_engine(root, "verl")
    check_verl()
    config = resolve_steps(config)
    check_settings(config)
    command, environment = prepare(config, root, resume=resume)
    run = RunDir(root)
    log = run.verl_log
    with _run_lock(root):
        run.stopped.unlink(missing_ok=True)
        failure = _failure(run, config, 0, log)  # None if the run is already complete
        if failure:
            if resume and on_resume:
                on_resume(first_step(root))
            since = log.stat().st_size if log.exists() else 0
            status = _run_command(command, environment, log, run, on_step)
            failure = _failure(run, config, status, log, since)
        if failure:
            write_stop_reason(run, failure, keep_first=True)
            resume_command = f"mapo train --engine verl --out {quote(str(root))} --resume"
            raise TrainError(failure, where=str(log), fix=f"Fix the cause, then resume: {resume_command}")
        return write_outcome(config, run, time.monotonic() - began)


def first_step(root: Path) -> int:
    """Return the step verl starts with: the one after its last complete checkpoint."""
    from mapo.engines.verl.records import last_checkpoint

    return last_checkpoint(RunDir(root).verl_checkpoints) + 1


def _failure(run: RunDir, config: Config, status: int, log: Path, since: int = 0) -> str | None:
    """Return what is wrong with a run that ended, or None if it is complete.

    Its last start has written verl's log from byte `since` on.
    """
    from mapo.engines.verl.records import due_splits, stop_reason

    if (reason := stop_reason(run)) or status:
        lost = config.verl.nodes > 1 and not reason and _lost_process(log, since)
        return f"verl exited with status {status}: {reason or lost or _tail(log)}"
    steps, done = config.optim.steps, [line["step"] for line in read_steps(run.metrics)]
    if done != list(range(1, steps + 1)):
        return f"verl exited early: {len(done)} of {steps} steps are recorded"
    if due := due_splits(run, config, steps):
        return f"verl exited early: all {steps} steps are recorded, but not the final {' and '.join(due)}"
    return None


def prepare(config: Config, root: Path, *, resume: bool) -> tuple[list[str], dict[str, str]]:
    """Claim the run directory and write everything verl reads; return the command and its environment."""
    from mapo.train.metrics import check_trackers
    from mapo.train.run import check_options, chosen_scenarios
    from mapo.train.setup import check_run, claim_run

    root = root.resolve()
    run = RunDir(root)
    scenarios = chosen_scenarios(config)
    config = with_steps(config, len(scenarios["train"]))
    check_options(config)
    check_trackers(config.run.trackers)
    model, context = _model(config)
    check_run(root, config, scenarios, resume=resume, engine="verl")
    claim_run(root, config, scenarios, engine="verl")
    with _run_lock(root):
        write_atomic(run.verl_config, dump_config(_with_full_paths(config)))
    tables = write_tables(run.verl, config, scenarios)
    loop = {"name": AGENT, "_target_": "mapo.engines.verl.dialogue.DialogueLoop", "run_dir": str(root)}
    write_atomic(run.verl_agent, json.dumps([loop], ensure_ascii=False) + "\n")  # JSON is valid YAML
    environment = _environment(config, root)
    settings = overrides(config, root, tables, model, context, environment)
    write_atomic(run.verl_settings, "\n".join(settings) + "\n")
    settings += ["hydra.output_subdir=null", "hydra/job_logging=none"]
    settings += [f"hydra.run.dir={hydra_value(str(run.verl))}"]
    return [sys.executable, "-m", "verl.trainer.main_ppo", *settings], environment


def _with_full_paths(config: Config) -> Config:
    """Return the config with the full paths of local roles: processes on other nodes may have another
    working folder."""
    from mapo.local_model.policy import folder_of
    from mapo.local_model.shipped import SHIPPED

    def full(role: Role | None) -> Role | None:
        if role is None or not (role.model or "").startswith("local:"):
            return role
        source = str(role.model).removeprefix("local:")
        folder = None if source in SHIPPED else folder_of(source)
        return role.model_copy(update={"model": f"local:{folder.resolve()}"}) if folder else role

    names = ("everyone", "user", "director", "judge", "ranker", "check")
    roles = {name: full(getattr(config.roles, name)) for name in names}
    judges = tuple(full(judge) for judge in config.roles.judges)
    return config.model_copy(
        update={
            "roles": config.roles.model_copy(update={**roles, "judges": judges}),
            "eval": config.eval.model_copy(update={"judge": full(config.eval.judge)}),
        }
    )


def _model(config: Config) -> tuple[str, int]:
    """Return the model path for verl and the token limit of a dialogue.

    Models that the local engine rejects are rejected here too.
    """
    from mapo.local_model.policy import attention_heads, folder_of, load_tokenizer, max_context
    from mapo.local_model.template import keep_turns_verbatim, read_template
    from mapo.sampling.tokens import longest_dialogue

    source = config.model.source
    folder = folder_of(source)
    if folder and (folder / "adapter_config.json").is_file():
        raise InputError(
            "this folder holds an adapter, which the verl engine cannot train",
            where=source,
            fix="Merge the adapter into its base model first",
        )
    keep_turns_verbatim(read_template(load_tokenizer(source), enable_thinking=config.model.thinking))
    if max(config.verl.tensor_parallel, config.verl.sequence_parallel) > 1:
        check_heads(config, *attention_heads(source))
    context = longest_dialogue(config.rollout.context, max_context(source), source)
    return str(folder.resolve()) if folder else source, context


def _environment(config: Config, root: Path) -> dict[str, str]:
    """Return the environment variables that every process of the run needs. API keys are not included."""
    environment = {
        "VERL_USE_EXTERNAL_MODULES": "mapo.engines.verl.plugin,mapo.engines.verl.trainer",
        "TENSORBOARD_DIR": str(RunDir(root).tensorboard),
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "HYDRA_FULL_ERROR": "1",
    }
    if config.verl.rollout == "mapo_cpu":
        environment |= {
            "VERL_PLATFORM": "cpu",
            "MAPO_CPU_RANKS": str(config.verl.gpus),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
        }
    return environment


@contextmanager
def _run_lock(root: Path) -> Iterator[None]:
    """Hold the run's lock; raise InputError if another process has it."""
    run = RunDir(root)
    run.verl.mkdir(exist_ok=True)
    with open(run.verl_lock, "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                "another process is training this run",
                where=str(root),
                fix="Wait for it to finish, or stop it",
            ) from None
        yield


def _run_command(
    command: list[str],
    environment: dict[str, str],
    log: Path,
    run: RunDir,
    on_step: Callable[[dict[str, Any]], None],
) -> int:
    """Run verl, report steps as they finish, and return the exit status."""
    reported = {line["step"]: line for line in read_steps(run.metrics)}
    with open(log, "ab") as out:
        verl = subprocess.Popen(  # noqa: S603 (built by `prepare`)
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        try:
            while True:
                status = verl.poll()
                for line in read_steps(run.metrics):
                    if reported.get(line["step"]) != line:
                        reported[line["step"]] = line
                        on_step(line)
                if status is not None:
                    return status
                time.sleep(POLL_SECONDS)
        finally:
            _terminate(verl)


def _die_with_parent() -> None:
    """Kill the child when this process dies, so that SIGKILL does not leave a cluster running."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _terminate(verl: subprocess.Popen[bytes]) -> None:
    """End verl's whole process group."""
    for number, seconds in ((signal.SIGTERM, TERMINATE_SECONDS), (signal.SIGKILL, 5)):
        try:
            os.killpg(verl.pid, number)
            verl.wait(seconds)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _tail(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-LOG_TAIL_LINES:])


def _lost_process(log: Path, since: int) -> str | None:
    """Return a reason to stop if verl's last error, after byte `since`, is that Ray lost a process.

    Usually MapoTrainer says which node was lost, but it may have run there itself.
    """
    with open(log, "rb") as file:
        file.seek(since)
        text = file.read().decode(errors="replace")
    last_error = text[text.rfind("Traceback (most recent call last):") :]
    match = re.search(
        r"^ray\.exceptions\.(?:Actor|Node|Owner|WorkerCrashed)\w*Error", last_error, re.MULTILINE
    )
    return f"a Ray node or a process on it was lost ({match[0]})" if match else None


def write_outcome(config: Config, run: RunDir, seconds: float) -> Any:
    """Score the tests before and after training, write summary.json and return a TrainingOutcome."""
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
        best=records.best_validation(run),
        seconds=seconds,
        trained_on_test=json.loads(run.manifest.read_bytes()).get("trained_on_test", []),
    )
    write_json(run.summary, {**summary, "engine": "verl"})
    return TrainingOutcome(summary, *scores, before, after)
