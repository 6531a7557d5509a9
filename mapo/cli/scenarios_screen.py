"""mapo scenarios screen: which scenarios are worth keeping, by playing them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.options import (
    Concurrency,
    Context,
    Domain,
    Out,
    Prices,
    RequestsPerMinute,
    Resume,
    Retries,
    Timeout,
    TokensPerMinute,
)
from mapo.cli.say import say, say_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mapo.cli.roles import Cast
    from mapo.evals.empa import Plan
    from mapo.realsim.screen import Plays, Screened
    from mapo.sandbox.scenarios import ScenarioSet
    from mapo.who import Who

SCREEN = "screen.json"
_POLICY = "A model's name, local:FOLDER or scripted:NAME."


def screen(
    source: Annotated[
        str, typer.Argument(help="The scenarios: a folder, MANIFEST.json:SPLIT, builtin:SPLIT.")
    ],
    out: Out,
    strong: Annotated[str, typer.Option(help=f"The strong policy. {_POLICY}")],
    strong_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    strong_key_env: Annotated[str, typer.Option(help="Variable with its key.")] = "OPENAI_API_KEY",
    weak: Annotated[str | None, typer.Option(help=f"The weak policy. {_POLICY}")] = None,
    weak_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    weak_key_env: Annotated[str, typer.Option(help="Variable with its key.")] = "OPENAI_API_KEY",
    plays: Annotated[int, typer.Option(min=1, help="Plays of each scenario by each policy.")] = 4,
    agents: Annotated[str | None, typer.Option(help="User, director and judge: scripted or llm.")] = None,
    agents_model: Annotated[str | None, typer.Option(help="The model that plays them.")] = None,
    agents_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    agents_key_env: Annotated[str, typer.Option(help="Variable with its key.")] = "OPENAI_API_KEY",
    judge_model: Annotated[str | None, typer.Option(help="Another model as judge.")] = None,
    judge_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    judge_key_env: Annotated[str | None, typer.Option(help="Variable with its key.")] = None,
    domain: Domain = None,
    split: Annotated[
        str | None, typer.Option(help="Also split what is kept: shares TRAIN/VALIDATION/TEST, like 2/1/1.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the plays and of the split.")] = 0,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Turn limit (default: the rubric's).")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest reply.")] = 512,
    concurrency: Concurrency = 32,
    context: Context = 4096,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    timeout: Timeout = 120.0,
    retries: Retries = 5,
    prices: Prices = None,
    resume: Resume = False,
) -> None:
    """Play each scenario with a strong and a weak model; drop what is hopeless and what is too easy.

    Exit status: 0 all well; 1 some plays broke (run again with --resume); 2 it could not go on.
    """
    import asyncio

    from mapo.cli.roles import stage_in
    from mapo.evals.empa import Plan
    from mapo.evals.folder import CACHE, claim, digest, look
    from mapo.evals.results import read_folders
    from mapo.realsim.screen import screen as screened_by
    from mapo.realsim.screen import sizes_of
    from mapo.sandbox.places import domain_folder
    from mapo.sandbox.rubric import Rubric
    from mapo.sandbox.scenarios import read_set
    from mapo.who import Who

    if split is not None:
        sizes_of(split, 1000)  # refuse what is no split before anything is played
    found = _readable(read_set(source, domain), source)
    own = found.scenarios[0].domain
    plan = Plan(found.scenarios, plays, seed)
    who = {"strong": Who(strong, strong_base_url, strong_key_env)}
    if weak is not None:
        who["weak"] = Who(weak, weak_base_url, weak_key_env)
    given = (agents_model, agents_base_url, agents_key_env)
    judge = (judge_model, judge_base_url, judge_key_env)
    rubric = Rubric.load(domain_folder(own))
    asked = {
        "schema": "mapo.screen/1",
        "policies": {name: one.model for name, one in who.items()},
        "plays": plays,
        "seed": seed,
        "scenarios": digest(sorted((s.id, repr(s)) for s in found.scenarios)),
    }
    settings: dict[str, Any] = {
        "cache_file": out / CACHE,
        "prices": prices,
        "concurrency": concurrency,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "timeout": timeout,
        "retries": retries,
        "context": context,
    }
    _check(who, own, agents, given, judge, stage_in(out, **settings))
    look(out, asked, resume=resume)
    claim(out, asked)
    rules = {"max_turns": max_turns, "max_tokens": max_tokens, "rubric": rubric}
    broken = sum(
        asyncio.run(_plays(out / name, plan, one, agents, given, judge, settings, rules))
        for name, one in who.items()
    )
    results = {
        name: [r for folder in read_folders(out / name, None, rubric) for r in folder.results] for name in who
    }
    screened = screened_by(found.scenarios, results, plays, rubric)
    _keep(out, asked, screened, found)
    _show(screened)
    if split is not None:
        _split(out, found, screened, split, seed)
    say(f"verdicts: {out / SCREEN}")
    if broken or any(one.verdict == "undecided" for one in screened):
        raise typer.Exit(1)


def _readable(found: ScenarioSet, source: str) -> ScenarioSet:
    from mapo.errors import ScenarioError

    if broken := [str(error) for error in found.errors] + list(found.unreadable.values()):
        say_all("error", broken)
        raise ScenarioError("not all of it can be read", where=source, fix="Mend or remove those files first")
    return found


def _check(
    who: Mapping[str, Who], domain: str, agents: str | None, given: Any, judge: Any, stage: Any
) -> None:
    from mapo.sandbox.domain import scripted_cast
    from mapo.stage import cast_of

    none = (None, None, None)
    roles = cast_of(agents, given, user=none, director=none, judge=judge)
    if roles is None:
        scripted_cast(domain)
    stage.check([*who.values(), *(roles or {}).values()], domain)


async def _plays(
    out: Path, plan: Plan, who: Who, agents: str | None, given: Any, judge: Any, settings: Any, rules: Any
) -> int:
    """One policy's plays, by the machinery of `mapo eval empa`; how many broke."""
    from mapo.cli.eval import _play as play_missing
    from mapo.cli.options import Run
    from mapo.cli.roles import stage_in
    from mapo.sandbox.models import policy_system
    from mapo.sandbox.rollout import Rules
    from mapo.stage import cast_of
    from mapo.store import RunDir

    none = (None, None, None)
    roles = cast_of(agents, given, user=none, director=none, judge=judge)
    there = RunDir(out).manifest.exists()
    by = Rules(**rules, system=policy_system)
    cast: Cast = dict(roles) if roles is not None else None
    stage = stage_in(out, **settings)
    run = Run(out, concurrency=settings["concurrency"], resume=there)
    return await play_missing(run, plan, who, cast, by, stage)


def _keep(out: Path, asked: Mapping[str, Any], screened: Sequence[Screened], found: ScenarioSet) -> None:
    """OUT/screen.json, and the files of what is kept, byte for byte."""
    from mapo.realsim.screen import agreement
    from mapo.store import write_atomic

    data = {**asked, "agreement": agreement(screened), "scenarios": [one.as_json() for one in screened]}
    write_atomic(out / SCREEN, json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n")
    for one in screened:
        file = found.files[one.id]
        if one.verdict == "kept" and file.suffix == ".toml":
            write_atomic(out / "scenarios" / file.name, file.read_bytes())
        elif file.suffix == ".toml":
            (out / "scenarios" / file.name).unlink(missing_ok=True)


def _split(out: Path, found: ScenarioSet, screened: Sequence[Screened], shares: str, seed: int) -> None:
    """OUT/splits.json: what is kept, even in category, measured axis and measured difficulty."""
    from dataclasses import replace

    from mapo.realsim.screen import sizes_of
    from mapo.sandbox.scenarios import MANIFEST, file_hash
    from mapo.sandbox.split import split_scenarios
    from mapo.store import write_atomic

    by_id = {scenario.id: scenario for scenario in found.scenarios}
    kept = [
        replace(by_id[one.id], difficulty=one.measured["difficulty"], axis=one.measured["axis"])
        for one in screened
        if one.verdict == "kept"
    ]
    splits = split_scenarios(kept, sizes_of(shares, len(kept)), seed)
    manifest = {
        name: {case: file_hash(found.files[case]) for case in cases} for name, cases in splits.items()
    }
    write_atomic(out / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    beside = "" if (out / "scenarios").is_dir() else ": put it beside the scenarios"
    counts = ", ".join(f"{name} {len(cases)}" for name, cases in splits.items())
    say(f"splits ({counts}): {out / MANIFEST}{beside}")


def _show(screened: Sequence[Screened]) -> None:
    from rich import box
    from rich.table import Table

    from mapo.evals.tables import escape
    from mapo.realsim.screen import agreement
    from mapo.text import terminal

    table = Table(box=box.SIMPLE_HEAD)
    who = list(screened[0].plays)
    for column in ("scenario", *who, "declared", "measured", "moved", "verdict"):
        table.add_column(column, overflow="fold", no_wrap=column == "scenario")
    for one in screened:
        cells = [_plays_cell(one.plays[name]) for name in who]
        declared = f"{one.declared['difficulty'] or '-'} {one.declared['axis'] or '-'}"
        measured = f"{one.measured['difficulty'] or '-'} {one.measured['axis'] or '-'}"
        moved = one.measured["axis_moved"] or "-"
        verdict = one.verdict + (f": {one.reason}" if one.reason else "")
        table.add_row(escape(one.id), *cells, escape(declared), measured, moved, verdict)
    console = terminal()
    console.width = max(console.width, 130)
    console.print(table)
    counts = {name: sum(one.verdict == name for one in screened) for name in ("kept", "dropped", "undecided")}
    say(", ".join(f"{name} {count}" for name, count in counts.items()))
    told = {name: value for name, value in agreement(screened).items() if value is not None}
    say("declared as measured: " + ", ".join(f"{name} {value:.2f}" for name, value in told.items()))


def _plays_cell(found: Plays) -> str:
    if found.rate is None or found.interval is None or found.epm_q is None:
        return "-"
    low, high = found.interval
    return f"{found.passes}/{found.n} ({low:.2f} to {high:.2f}), EPM-Q {found.epm_q:.0f}"
