"""mapo train: the main job."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from mapo.cli.common.messages import say
from mapo.cli.common.stop import until_stopped
from mapo.store import RunDir

if TYPE_CHECKING:
    from mapo.config import Config
    from mapo.train.run import Outcome


def train(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG|KEY.PATH=VALUE",
            help="A config file or the name of a shipped one (pocket), and settings on top.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the run goes (default: runs/NAME-TIME).")] = None,
    resume: Annotated[bool, typer.Option(help="Resume the run in --out.")] = False,
    engine: Annotated[
        str | None, typer.Option(help="Who trains: local (default), or verl (many cards).")
    ] = None,
) -> None:
    """Train a policy in the sandbox, and show what it learnt on scenarios it has never met."""
    from mapo.config import load_config
    from mapo.errors import InputError
    from mapo.local_model.requirements import limit_threads, require_torch
    from mapo.train.launch import threads_each, with_workers

    if engine not in (None, "local", "verl"):
        raise InputError(f"no engine '{engine}'", fix="Use local or verl")
    given = given or []
    files = [text for text in given if "=" not in text]
    overrides = [text for text in given if "=" in text]
    if len(files) > 1:
        raise InputError(f"two configs: {', '.join(files)}", fix="Settings are written key.path=value")
    if resume and out is None:
        told = f" {quote(files[0])} --resume" if files and Path(files[0]).is_dir() else ""
        raise InputError("nothing to resume", fix=f"Give the run's folder: --out{told}")
    if resume and not files and out is not None and RunDir(out).config.is_file():
        files = [str(RunDir(out).config)]
    config = load_config(files[0] if files else None, overrides)
    name = Path(files[0]).stem if files else "pocket"
    folder = out or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    processes = config.run.processes
    # Before anything loads torch, which counts the cores: another count, other sums.
    limit_threads(config.run.threads or (threads_each(processes) if processes > 1 else None))
    if (engine or _engine_there(folder, resume)) == "verl":
        _tell(on_verl(config, folder, resume), config, folder, "--step last ")
        return
    require_torch()
    _refuse_early(config, folder, resume)
    again = [*files, *overrides, "--out", str(folder), *(["--resume"] if resume else [])]
    with with_workers(processes, again, folder):
        found = trained(config, folder, resume)
    if found is not None:
        _tell(found, config, folder)


def _engine_there(out: Path, resume: bool) -> str:
    """A run goes on with the engine it was started with."""
    if not resume:
        return "local"
    from mapo.local_model.requirements import require_torch

    require_torch()
    from mapo.train.setup import engine_of

    return engine_of(out)


def _refuse_early(config: Config, out: Path, resume: bool) -> None:
    """What can be refused without a model is refused before other processes are started."""
    from mapo.errors import InputError
    from mapo.train.processes import leads
    from mapo.train.run import check_options, chosen_scenarios
    from mapo.train.setup import check_run

    if config.run.processes > 1 and leads():
        if config.run.processes > config.rollout.scenarios:
            raise InputError(
                f"{config.run.processes} processes for the {config.rollout.scenarios} scenarios of a step",
                where="run.processes",
                fix="One plays whole scenarios: at most as many as rollout.scenarios",
            )
        check_options(config)
        check_run(out, config, chosen_scenarios(config), resume=resume)


def on_verl(config: Config, out: Path, resume: bool) -> Outcome:
    """Train on verl, with the same progress display."""
    from mapo.engines.verl.launch import run_verl
    from mapo.train.callbacks import TrainingDisplay

    display = TrainingDisplay(config.optim.steps)
    display.message(f"verl: {config.verl.nodes} x {config.verl.gpus} cards, log: {RunDir(out).verl_log}")
    try:
        found: Outcome = run_verl(
            config, out, resume=resume, on_step=display.step_ends, on_resume=display.resumes
        )
        return found
    except KeyboardInterrupt:
        say(f"stopped; resume with: mapo train --engine verl --out {quote(str(out))} --resume")
        raise typer.Exit(130) from None
    finally:
        display.close()


def trained(config: Config, out: Path, resume: bool) -> Outcome | None:
    """Train with a progress display; returns None in a process that does not lead its team."""
    from mapo.players.session import open_cast
    from mapo.train.callbacks import Callbacks, TrainingDisplay
    from mapo.train.processes import join_team
    from mapo.train.run import run

    team = join_team(config.model.device)
    callbacks = TrainingDisplay(config.optim.steps, resume=resume) if team.leads else Callbacks()

    async def whole() -> Outcome:
        async with open_cast(config, out, team.rank, shared_by=team.world) as (casting, _):
            return await run(
                config,
                out,
                casting,
                paid=config.roles.agents == "llm",
                resume=resume,
                callbacks=callbacks,
                team=team,
            )

    command = f"mapo train --out {quote(str(out))} --resume"
    try:
        if team.leads:
            found = until_stopped(
                whole(),
                out,
                lambda: "what was played is kept, and what was learnt up to the last checkpoint",
                command,
            )
        else:  # stopped by the one that leads
            found = asyncio.run(whole())
        team.leave()
    finally:
        callbacks.close()
    return found if team.leads else None


def _tell(found: Outcome, config: Config, out: Path, step: str = "") -> None:
    """What came of it: the scores, one person met before and after, and where everything is."""
    from mapo.cli.training.outcome import print_outcome
    from mapo.report import write_report
    from mapo.scripted.notice import scripted_world

    scripted = config.roles.agents == "scripted"
    print_outcome(found, out, scripted_world([config.scenarios.domain]) if scripted else "")
    report = write_report(out)
    say(f"report: {report}")
    say(f"model:  mapo export {quote(str(out))} {step}--out DIR   (a plain Hugging Face folder)")
