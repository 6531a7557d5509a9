"""mapo train: train a policy and test it on held-out scenarios before and after."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from mapo.cli.common.messages import say
from mapo.cli.common.stop import until_stopped
from mapo.cli.training.checks import (
    check_policy,
    check_roles,
    check_run_config,
    is_config_of,
    resume_command,
)
from mapo.store import RunDir

if TYPE_CHECKING:
    from mapo.config import Config
    from mapo.train.run import TrainingOutcome


def train(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY.PATH=VALUE]...",
            help="A config file or the name of a shipped config (default: pocket), and settings to change.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory (default: runs/CONFIG-TIMESTAMP).")] = None,
    resume: Annotated[bool, typer.Option(help="Resume the run in --out.")] = False,
    engine: Annotated[
        str | None, typer.Option(help="Training engine: local (default) or verl (several GPUs or nodes).")
    ] = None,
) -> None:
    """Train a policy in the sandbox, and test it on held-out scenarios before and after."""
    from mapo.errors import InputError
    from mapo.local_model.requirements import limit_threads, require_torch
    from mapo.train.launch import is_leader, threads_each, with_workers

    if engine not in (None, "local", "verl"):
        raise InputError(f"--engine is '{engine}'", fix="Use local or verl")
    config, folder, arguments = _read_settings(settings or [], out, resume)
    processes = config.run.processes
    # Set before torch is imported: another number of threads gives other rounding.
    limit_threads(config.run.threads or (threads_each(processes) if processes > 1 else None))
    if (engine or _engine_of_run(folder, resume)) == "verl":
        _print_outcome(train_on_verl(config, folder, resume), config, folder, "--step last ")
        return
    require_torch()
    if is_leader():
        say("loading torch ...")
    _check_before_start(config, folder, resume)
    with with_workers(processes, [*arguments, *(["--resume"] if resume else [])], folder):
        outcome = train_locally(config, folder, resume)
    if outcome is not None:
        _print_outcome(outcome, config, folder)


def _read_settings(settings: list[str], out: Path | None, resume: bool) -> tuple[Config, Path, list[str]]:
    """Return the config, the run directory, and the arguments with which worker processes are started."""
    from mapo.config import load_config
    from mapo.errors import InputError
    from mapo.scenarios.epochs import resolve_steps

    files = [text for text in settings if "=" not in text]
    overrides = [text for text in settings if "=" in text]
    if len(files) > 1:
        raise InputError(
            f"more than one config is given: {', '.join(files)}",
            fix="Give one config; settings are written as key.path=value",
        )
    if resume and out is None:
        option = f"--out {quote(files[0])}" if files and Path(files[0]).is_dir() else "--out RUN"
        raise InputError("--resume needs the folder of the run", fix=f"Add it: {option} --resume")
    from_run = resume and not files and out is not None and RunDir(out).config.is_file()
    if from_run and out is not None:
        files = [str(RunDir(out).config)]
    flat = resume and out is not None and is_config_of(out, files)
    config = load_config(files[0] if files else None, overrides, flat=flat)
    if from_run and out is not None:
        check_run_config(config, out, "mapo train", overrides)
    config = resolve_steps(config)
    name = Path(files[0]).stem if files else "pocket"
    folder = out or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return config, folder, [*files, *overrides, "--out", str(folder)]


def _engine_of_run(out: Path, resume: bool) -> str:
    """Return the engine of the run in `out`: a run is resumed with the engine it was started with."""
    if not resume:
        return "local"
    from mapo.local_model.requirements import require_torch

    require_torch()
    from mapo.train.setup import engine_of

    return engine_of(out)


def _check_before_start(config: Config, out: Path, resume: bool) -> None:
    """Check everything that can be checked before the model is loaded and other processes are started."""
    from mapo.errors import InputError
    from mapo.train.launch import is_leader

    if not is_leader():
        return
    if resume:
        from mapo.train.setup import refuse_other_engine

        refuse_other_engine(out, "local")
    if RunDir(out).summary.exists():  # a finished run calls no model
        return
    if config.run.processes > config.rollout.scenarios:
        raise InputError(
            f"there are {config.run.processes} processes for {config.rollout.scenarios} scenarios per step",
            where="run.processes",
            fix="A scenario is not divided among processes: use at most as many as rollout.scenarios",
        )
    check_policy(config, config.model.device)  # first: it needs no torch, whose import takes seconds
    if "WORLD_SIZE" not in os.environ:  # else the processes, and their GPUs, were chosen by a launcher
        from mapo.players.preflight import check_processes

        check_processes(config.run.processes, config.model.device)
    from mapo.local_model.memory import process_count
    from mapo.train.run import check_options, check_sampler, check_shard, chosen_scenarios
    from mapo.train.setup import check_run

    scenarios = chosen_scenarios(config)
    check_options(config)
    processes = process_count(config.run.processes)
    check_shard(config, processes)
    check_sampler(config, processes)
    check_run(out, config, scenarios, resume=resume)
    check_roles(config, scenarios, done=_finished_steps(out))
    _say_memory(config, out)


def _say_memory(config: Config, out: Path) -> None:
    """Print the planned memory, if there is a plan. Raise InputError if it does not fit."""
    from mapo.players.local_models import plan_training
    from mapo.train.setup import slots_of_run

    if plan := plan_training(config, slots_of_run(out)):
        for line in plan.lines:
            say(f"memory: {line}")


def _finished_steps(out: Path) -> int:
    from mapo.store import read_steps

    return max((line["step"] for line in read_steps(RunDir(out).metrics)), default=0)


def train_on_verl(config: Config, out: Path, resume: bool) -> TrainingOutcome:
    """Train on verl, with the same progress display."""
    from mapo.engines.verl.launch import check_verl, run_verl
    from mapo.train.callbacks import TrainingDisplay

    check_verl()
    if not RunDir(out).summary.exists():
        from mapo.train.run import chosen_scenarios

        check_policy(config)
        check_roles(config, chosen_scenarios(config), done=_finished_steps(out))
    display = TrainingDisplay(config.optim.steps)
    display.message(f"verl: {config.verl.nodes} x {config.verl.gpus} GPUs, log: {RunDir(out).verl_log}")
    try:
        outcome: TrainingOutcome = run_verl(
            config, out, resume=resume, on_step=display.step_ends, on_resume=display.resumes
        )
        return outcome
    except KeyboardInterrupt:
        say(f"stopped; resume with: {resume_command(config, out, 'verl')}")
        raise typer.Exit(130) from None
    finally:
        display.close()


def train_locally(config: Config, out: Path, resume: bool) -> TrainingOutcome | None:
    """Train with a progress display; return None in processes other than rank 0."""
    from mapo.errors import TrainError
    from mapo.local_model.policy import start_of
    from mapo.players.casting import every_model
    from mapo.players.local_models import plan_training, shares_start
    from mapo.players.session import open_cast
    from mapo.sampling.graphs import out_of_memory
    from mapo.train.callbacks import CountingCallbacks, TrainingDisplay
    from mapo.train.processes import join_processes
    from mapo.train.run import load_model, run
    from mapo.train.setup import slots_of_run

    processes = join_processes(config.model.device)
    callbacks: CountingCallbacks = (
        TrainingDisplay(config.optim.steps, resume=resume, processes=processes)
        if processes.is_leader
        else CountingCallbacks(processes)
    )

    paid = any(spec.address is not None for spec in every_model(config).values())
    memory = plan_training(config, slots_of_run(out))
    loaded = load_model(config, keep_base=True) if memory and shares_start(config) else None

    async def play_and_train() -> TrainingOutcome:
        async with open_cast(
            config,
            out,
            processes.rank,
            shared_by=processes.world_size,
            plan=memory,
            start=start_of(loaded[0]) if loaded else None,
        ) as (casting, _, ledger):
            callbacks.activity = ledger.activity.snapshot
            return await run(
                config,
                out,
                casting,
                paid=paid,
                resume=resume,
                callbacks=callbacks,
                processes=processes,
                loaded=loaded,
                memory=memory,
            )

    try:
        if processes.is_leader:
            outcome = until_stopped(
                play_and_train(),
                out,
                lambda: "finished dialogues and the last checkpoint are kept",
                resume_command(config, out),
            )
        else:  # rank 0 handles signals
            outcome = asyncio.run(play_and_train())
        processes.leave()
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise TrainError(
            "the memory of the GPU is too small for this training",
            where=config.model.source,
            fix=_how_to_save_memory(config),
        ) from error
    finally:
        callbacks.close()
    return outcome if processes.is_leader else None


def _how_to_save_memory(config: Config) -> str:
    """Return the settings that would need less memory of a GPU than those of `config`."""
    ways = ["lower rollout.vllm_memory"] if config.rollout.sampler == "vllm" else []
    ways.append("lower optim.tokens")
    if not config.model.checkpointing:
        ways.append("set model.checkpointing=true")
    if config.model.lora is None:
        ways.append("train with LoRA (model.lora.rank=32)")
    if config.run.shard:
        ways.append("use more GPUs (run.processes, or --engine verl)")
    elif config.model.lora is None and config.rollout.sampler == "own":
        ways.append("use several GPUs (run.shard=true run.processes=N, or --engine verl)")
    else:  # run.shard would be refused
        ways.append("use several GPUs (--engine verl)")
    text = f"{', '.join(ways[:-1])}, or {ways[-1]}"
    return text[0].upper() + text[1:]


def _print_outcome(outcome: TrainingOutcome, config: Config, out: Path, step: str = "") -> None:
    """Print the scores and a dialogue before and after, write the report, and name the next commands."""
    from mapo.cli.training.outcome import print_outcome
    from mapo.report import write_report
    from mapo.runs.contamination import notice_of
    from mapo.runs.training import world_of_config
    from mapo.scripted.world import world_notice

    world = world_of_config(config)
    print_outcome(outcome, out, world_notice([world]) if world else "")
    if notice := notice_of(outcome.summary):
        say(f"warning: {notice}")
    report, run = write_report(out), quote(str(out))
    say(f"report: {report}   (to write it again: mapo report {run})")
    say(f"viewer: mapo view {run}")
    say(f"model:  mapo export {run} {step}--out DIR   (a plain Hugging Face folder)")
