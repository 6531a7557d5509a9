"""mapo train: the main job."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.say import say

if TYPE_CHECKING:
    from mapo.cli.roles import Who
    from mapo.config import Config, Roles
    from mapo.sandbox.chat import Sampling
    from mapo.train.run import Outcome
    from mapo.train.team import Team


def train(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY.PATH=VALUE]...",
            help="A config file or the name of a shipped one (pocket), and settings on top.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the run goes (default: runs/NAME-TIME).")] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run in --out.")] = False,
    engine: Annotated[str, typer.Option(help="Who trains: local.")] = "local",
) -> None:
    """Train a policy in the sandbox, and show what it learnt on scenarios it has never met."""
    from mapo.config import load_config
    from mapo.errors import InputError

    if engine != "local":
        raise InputError(f"no engine '{engine}'", fix="Use local")
    given = given or []
    files = [text for text in given if "=" not in text]
    overrides = [text for text in given if "=" in text]
    if len(files) > 1:
        raise InputError(f"two configs: {', '.join(files)}", fix="Settings are written key.path=value")
    if resume and out is None:
        raise InputError("nothing to resume", fix="Give the run's folder: --out")
    if resume and not files and out is not None and (out / "config.toml").is_file():
        files = [str(out / "config.toml")]
    config = load_config(files[0] if files else None, overrides)
    name = Path(files[0]).stem if files else "pocket"
    folder = out or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    from mapo.cli.roles import calm_threads, need_torch
    from mapo.train.launch import with_others

    calm_threads(config.run.threads)
    need_torch()
    _refuse_early(config, folder, resume)
    again = [*files, *overrides, "--out", str(folder), *(["--resume"] if resume else [])]
    with with_others(config.run.processes, again, folder):
        found = trained(config, folder, resume)
    if found is not None:
        _tell(found, folder)


def _refuse_early(config: Config, out: Path, resume: bool) -> None:
    """What can be refused without a model is refused before other processes are started."""
    from mapo.train.run import check_options, chosen_scenarios
    from mapo.train.setup import check_run
    from mapo.train.team import leads

    if config.run.processes > 1 and leads():
        check_options(config)
        check_run(out, config, chosen_scenarios(config), resume=resume)


def trained(config: Config, out: Path, resume: bool) -> Outcome | None:
    """The run, with a live line; None in a member of a team that does not lead."""
    from mapo.cli.live import Live
    from mapo.train.run import run
    from mapo.train.show import Show
    from mapo.train.team import join_team

    team = join_team(config.model.device)
    show = Live(config.optim.steps) if team.leads else Show()

    async def whole() -> Outcome:
        async with casting_of(config, out, team) as casting:
            return await run(
                config,
                out,
                casting,
                paid=config.roles.agents == "llm",
                resume=resume,
                show=show,
                team=team,
            )

    try:
        found = asyncio.run(whole())
        team.leave()
    except KeyboardInterrupt:
        say(f"stopped; go on with: mapo train --out {out} --resume")
        raise typer.Exit(130) from None
    finally:
        show.close()
    return found if team.leads else None


def cast_in(config: Config) -> dict[str, Who] | None:
    """Who plays user, director and judge; None for plain code. A role takes from everyone what it lacks."""
    from mapo.cli.roles import cast_of

    roles = config.roles
    if roles.agents == "scripted":
        return None
    given = {
        name: (role.model, role.base_url, role.key_env) if role else (None, None, None)
        for name, role in (("user", roles.user), ("director", roles.director), ("judge", roles.judge))
    }
    everyone = roles.everyone
    cast = cast_of("llm", (everyone.model, everyone.base_url, everyone.key_env), **given)
    return {name: replace(who, sampling=sampling_of(roles, name)) for name, who in (cast or {}).items()}


def sampling_of(roles: Roles, name: str) -> Sampling:
    """A role's own settings, everyone's where it has none."""
    from mapo.sandbox.chat import Sampling

    def pick(key: str) -> Any:
        own = getattr(getattr(roles, name), key, None)
        return own if own is not None else getattr(roles.everyone, key)

    return Sampling(pick("temperature"), pick("top_p"), pick("max_tokens"))


def casting_of(config: Config, out: Path, team: Team) -> Any:
    """The cast as the config names it: an async context whose endpoints are closed in the end."""
    from contextlib import asynccontextmanager

    from mapo.cli.roles import Stage
    from mapo.evals.folder import CACHE
    from mapo.sandbox.rubric import Rubric

    roles = config.roles
    who = cast_in(config)
    mine = f".{team.rank}" if team.rank else ""
    stage = Stage(
        cache=out / f"{CACHE}{mine}",
        ledger_file=out / f"ledger{mine}.json",
        concurrency=roles.requests,
        requests_per_minute=roles.requests_per_minute,
        tokens_per_minute=roles.tokens_per_minute,
        timeout=roles.timeout,
        retries=roles.retries,
    )

    @asynccontextmanager
    async def opened() -> Any:
        domain = config.scenarios.domain
        if who:
            stage.check(list(who.values()), domain)
        async with stage:
            try:
                yield stage.casting(who, Rubric.load(domain), domain)
            finally:
                if who:
                    stage.ledger.flush(out / f"ledger{mine}.json")

    return opened()


def _tell(found: Outcome, out: Path) -> None:
    """What came of it: the scores, one person met before and after, and where everything is."""
    from mapo.cli.outcome import print_outcome
    from mapo.report import write_report

    print_outcome(found)
    report = write_report(out)
    say(f"report: {report}")
    say(f"model:  mapo export {out} --out DIR   (a plain Hugging Face folder)")
