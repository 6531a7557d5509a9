"""mapo scenarios make: real conversations become scenarios."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.common.messages import say, say_all
from mapo.cli.common.options import Domain, Run, with_run
from mapo.store import RunDir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mapo.evals.items import Kept, Line, Solve
    from mapo.players.session import ModelSession
    from mapo.players.spec import ModelSpec, PartialSpec
    from mapo.realsim.make import Making
    from mapo.realsim.reading.read import Conversation, Source
    from mapo.scenarios.scenario import Scenario

_SHOWN = 30


@with_run(concurrency=16, timeout=180.0)
def make(
    run: Run,
    sources: Annotated[
        list[Path], typer.Argument(help="Conversations: .jsonl, .json, .csv, .tsv, .txt, or folders of them.")
    ],
    model: Annotated[str | None, typer.Option(help="The model that writes (not used with --local).")] = None,
    judge_model: Annotated[
        str | None, typer.Option(help="The model that fills in start forms and reviews.")
    ] = None,
    judge_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    judge_key_env: Annotated[str | None, typer.Option(help="Variable with its key.")] = None,
    domain: Domain = None,
    language: Annotated[
        str | None, typer.Option(help="Language of the scenarios (default: that of the conversation).")
    ] = None,
    categories: Annotated[
        str | None, typer.Option(help="a,b,c (default: those of the domain's own scenarios).")
    ] = None,
    person: Annotated[str, typer.Option(help="The speaker who is the person, if the roles do not say.")] = "",
    window: Annotated[int, typer.Option(min=4, help="How many turns of a conversation to read.")] = 60,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N conversations.")] = None,
    prefix: Annotated[str, typer.Option(help="Prefix of the ids; use another one for each run.")] = "made",
    forms: Annotated[int, typer.Option(min=1, help="Start forms per scenario.")] = 3,
    judge_temperature: Annotated[float, typer.Option(min=0.0, help="Temperature of the start forms.")] = 1.0,
    against: Annotated[
        list[str] | None,
        typer.Option(help="Scenarios that no new one may resemble (default: the domain's own)."),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Only run the pass that needs no model.")] = False,
    keep_raw: Annotated[bool, typer.Option("--keep-raw", help="Keep conversations and answers.")] = False,
) -> None:
    """Turn real conversations into scenarios: the same need in another life, nothing that identifies.

    Exit status: 0 all well; 1 some items failed (run again with --resume) or none was made; 2 it could not
    continue; 130 or 143 it was stopped by hand.
    """
    from mapo.domain_folders import DEFAULT, domain_folder, domain_name
    from mapo.errors import InputError
    from mapo.measure.rubric import Rubric
    from mapo.players.spec import PartialSpec
    from mapo.realsim.make import Making
    from mapo.realsim.reading.read import files_of, read_sources
    from mapo.realsim.report import finish
    from mapo.scoring.tables import print_ledger

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,40}", prefix):
        raise InputError("no beginning of an id", where="--prefix", fix="Letters, digits, - and _")
    found = read_sources(sources, prefix=prefix, person=person, window=window)
    _tell(found, files_of(sources))
    chosen = found.conversations[:limit]
    if not chosen:
        raise InputError("no conversation that can be used", fix="See the problems above")
    if local:
        _local(run, found, chosen)
        return
    if model is None:
        raise InputError("no model to write with", fix="Give --model, or --local for the pass without one")
    own = domain_name(domain or DEFAULT)
    known = _known(own, against)
    making = Making(
        Rubric.load(domain_folder(own)),
        tuple(_split(categories)) if categories else tuple(sorted({s.category for s in known if s.category})),
        language or "",
        forms,
        judge_temperature,
        window,
        keep_raw=keep_raw,
    )
    calls = run.cache_file or RunDir(run.out).private_cache
    run = replace(run, cache_file=calls)
    session = run.session()
    who = _models(run, model, PartialSpec(judge_model, judge_base_url, judge_key_env))
    lines = _lines(run, making, found, chosen, who, session)
    report = finish(run.out, making, found, chosen, lines, known, calls)
    _show(report)
    print_ledger(session.ledger)
    say(f"scenarios: {RunDir(run.out).scenarios}; report: {RunDir(run.out).make_report}")
    if report["failed"] or not report["made"]:
        raise typer.Exit(1)


def _models(run: Run, model: str, judge: PartialSpec) -> dict[str, ModelSpec]:
    """Return the model that writes and the one that judges, which is the same unless another is named."""
    from mapo.players.spec import ModelSpec, inherit

    maker = ModelSpec(model, run.base_url, run.key_env)
    return {"maker": maker, "judge": inherit(judge, run.endpoint._replace(model=model)).complete()}


def _lines(
    run: Run,
    making: Making,
    source: Source,
    chosen: Sequence[Conversation],
    who: dict[str, ModelSpec],
    session: ModelSession,
) -> dict[str, Line]:
    """Make what is not made yet; the lines of all finished items."""
    from mapo.cli.common.items import solve_until_stopped
    from mapo.players.identity import identity
    from mapo.realsim.make import Maker
    from mapo.realsim.provenance import fingerprints, keep_key

    told, key = fingerprints(run.out, source)
    asked = {
        **making.manifest(told, {role: one.model for role, one in who.items()}),
        "limit": len(chosen),
        "prefix": chosen[0].id.rpartition("-")[0],
        **identity(**who),
    }

    async def cast(session: ModelSession, kept: Kept) -> Solve[Conversation]:
        maker, judge = (session.endpoint(one, role) for role, one in who.items())
        keep_key(run.out, key)
        return Maker(run.out, making, maker, judge, kept.halves).solve

    solved = solve_until_stopped(run, asked, chosen, list(who.values()), cast, session)
    say_all("note", list(solved.notes))
    return solved.lines


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _known(domain: str, against: list[str] | None) -> list[Scenario]:
    """Scenarios that none may be near to; the domain's own, where it has any."""
    from mapo.domain_folders import domain_folder
    from mapo.scenarios.sets import MANIFEST, load_scenarios

    if against is None:
        against = ["builtin:all"] if (domain_folder(domain) / MANIFEST).is_file() else []
    return [scenario for source in against for scenario in load_scenarios(source, domain)]


# ---- what is shown


def _tell(source: Source, paths: Sequence[Path]) -> None:
    told = [f"{paths[p.file - 1]}, line {p.line}: {p.text}" for p in source.problems]
    say_all("problem", told, most=_SHOWN)
    noted = [f"{paths[p.file - 1]}, line {p.line}: {p.text}" for p in source.notes]
    say_all("note", noted, most=_SHOWN)
    cut = [f"{paths[t.file - 1]}, line {t.line}: {t.cut}" for t in source.conversations if t.cut]
    say_all("cut", cut, most=_SHOWN)
    say(f"{len(source.conversations)} conversations in {len(paths)} files, {len(source.problems)} problems")


def _local(run: Run, source: Source, chosen: Sequence[Conversation]) -> None:
    from mapo.realsim.make import STEPS
    from mapo.realsim.report import finish_local
    from mapo.runs.claim import look

    look(run.out, {}, resume=False)
    _table("found by the local pass", finish_local(run.out, source, chosen)["found"])
    say(f"with placeholders: {run.out / STEPS[0]}; report: {RunDir(run.out).make_report}")


def _show(report: dict[str, Any]) -> None:
    from collections import Counter

    _table("found by the local pass", report["found"])
    refused = Counter(f"{one['reason']} ({one['step']})" for one in report["refused"])
    counts = {"asked": report["asked"], "made": report["made"], "failed": len(report["failed"])}
    _table("items", {**counts, **{f"refused: {why}": n for why, n in refused.most_common()}})
    told = report["agreement"]
    shown = {
        key: " / ".join(_number(row[k]) for k in ("same", "range", "alpha")) for key, row in told.items()
    }
    _table(f"start levels, {report['forms']} forms: share at the median / range / alpha", shown)
    say(f"listed as identifying by the model: {report['listed_by_the_model']}")
    say(f"answers of models ({report['private_calls']})")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(title: str, rows: dict[str, Any]) -> None:
    from mapo.show.tables import Table, print_tables

    print_tables([Table((), [[name, str(value)] for name, value in rows.items()], title=title)], 100)
