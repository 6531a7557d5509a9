"""mapo scenarios make: turn real conversations into scenarios."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.common.messages import say, say_all
from mapo.cli.common.options import Domain, JudgeBody, RunOptions, role_body, with_run_options
from mapo.store import RunDir
from mapo.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mapo.evals.items import ItemLine, PreviousItems, Solve
    from mapo.planning.estimate import Estimate
    from mapo.players.session import ModelSession
    from mapo.players.spec import ModelSpec, PartialSpec
    from mapo.realsim.make import MakeSettings
    from mapo.realsim.reading.read import Conversation, SourceConversations
    from mapo.scenarios.scenario import Scenario

_SHOWN = 30
_PROMPT_TOKENS, _ANSWER_TOKENS = 2500, 600
"""Typical tokens of a call, for the estimate."""


@with_run_options(concurrency=16, timeout=180.0)
def make(
    run: RunOptions,
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE",
            help="Conversations: .jsonl, .json, .csv, .tsv or .txt files, or folders of them.",
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help="Model that writes the scenarios (not used with --local).")
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option(help="Model that fills in start forms and reviews.")
    ] = None,
    judge_base_url: Annotated[str | None, typer.Option(help="Endpoint of the judge model.")] = None,
    judge_key_env: Annotated[str | None, typer.Option(help="Environment variable with its API key.")] = None,
    judge_body: JudgeBody = None,
    domain: Domain = None,
    language: Annotated[
        str | None, typer.Option(help="Language of the scenarios (default: that of the conversation).")
    ] = None,
    categories: Annotated[
        str | None,
        typer.Option(help="Comma-separated list (default: the categories of the domain's scenarios)."),
    ] = None,
    person: Annotated[
        str, typer.Option(help="Name of the speaker who is the person, if the role names do not show it.")
    ] = "",
    window: Annotated[int, typer.Option(min=4, help="Maximum number of turns used per conversation.")] = 60,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N conversations.")] = None,
    prefix: Annotated[
        str, typer.Option(help="Prefix of the scenario ids; use a different one for each run.")
    ] = "made",
    forms: Annotated[int, typer.Option(min=1, help="Start forms per scenario.")] = 3,
    judge_temperature: Annotated[float, typer.Option(min=0.0, help="Temperature of the start forms.")] = 1.0,
    against: Annotated[
        list[str] | None,
        typer.Option(help="Scenarios that no new one may resemble (default: the domain's scenarios)."),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Only redact, without a model.")] = False,
    keep_raw: Annotated[
        bool, typer.Option("--keep-raw", help="Keep the raw conversations and model answers.")
    ] = False,
) -> None:
    """Turn real conversations into scenarios with the same need and another life, without personal data.

    Exit status: 0 success; 1 some conversations failed (run again with --resume) or no scenario was made; 2
    error; 130 or 143 interrupted.
    """
    from mapo.domain_folders import DEFAULT, domain_folder, domain_name
    from mapo.errors import InputError
    from mapo.measure.rubric import Rubric
    from mapo.players.spec import PartialSpec
    from mapo.realsim.make import MakeSettings
    from mapo.realsim.reading.read import files_of, read_sources
    from mapo.realsim.report import finish
    from mapo.scoring.tables import print_ledger

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,40}", prefix):
        raise InputError(
            f"'{prefix}' cannot start an id", where="--prefix", fix="Use letters, digits, - and _"
        )
    source, paths = read_sources(sources, prefix=prefix, person=person, window=window), files_of(sources)
    _show_input(source, paths)
    chosen = source.conversations[:limit]
    if not chosen:
        raise InputError(
            "no conversation can be used", fix="Fix the input as described above, or give other files"
        )
    if local:
        _redact_only(run, source, chosen)
        return
    if model is None:
        raise InputError(
            "no model given", fix="Give --model NAME, or --local to only redact the conversations"
        )
    name = domain_name(domain or DEFAULT)
    known = _known(name, against)
    settings = MakeSettings(
        Rubric.load(domain_folder(name)),
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
    specs = _models(run, model, PartialSpec(judge_model, judge_base_url, judge_key_env), judge_body)
    lines = _lines(run, settings, source, chosen, specs, session)
    report = finish(run.out, settings, source, chosen, lines, known, calls)
    _show(report)
    _show_dropped(report, paths)
    print_ledger(session.ledger)
    say(f"Scenarios: {RunDir(run.out).scenarios}. Report: {RunDir(run.out).make_report}")
    if report["failed"] or not report["made"]:
        raise typer.Exit(1)


def _models(run: RunOptions, model: str, judge: PartialSpec, judge_body: str | None) -> dict[str, ModelSpec]:
    """Return the writing and the judging model; they are the same unless a judge is given."""
    from mapo.models.chat import Sampling
    from mapo.players.spec import inherit

    maker = run.model_spec(model)
    spec = inherit(judge, run.endpoint._replace(model=model)).complete()
    body = maker.sampling.body if judge_body is None and not judge.model else role_body("judge", judge_body)
    return {"maker": maker, "judge": replace(spec, sampling=Sampling(body=body))}


def _lines(
    run: RunOptions,
    settings: MakeSettings,
    source: SourceConversations,
    chosen: Sequence[Conversation],
    specs: dict[str, ModelSpec],
    session: ModelSession,
) -> dict[str, ItemLine]:
    """Process the conversations that are not finished, and return the lines of all finished ones."""
    from mapo.cli.common.items import solve_until_stopped
    from mapo.players.identity import identity
    from mapo.realsim.make import ScenarioMaker
    from mapo.realsim.provenance import fingerprints, store_key

    source_prints, key = fingerprints(run.out, source)
    manifest = {
        **settings.manifest(source_prints, {role: str(spec) for role, spec in specs.items()}),
        "limit": len(chosen),
        "prefix": chosen[0].id.rpartition("-")[0],
        **identity(**specs),
    }

    async def cast(session: ModelSession, previous: PreviousItems) -> Solve[Conversation]:
        maker, judge = [await session.chat(spec, role) for role, spec in specs.items()]
        store_key(run.out, key)
        return ScenarioMaker(run.out, settings, maker, judge, previous.partial).solve

    solved = solve_until_stopped(
        run, manifest, chosen, specs, cast, session, lambda count: _estimate(run, settings, count)
    )
    say_all("note", list(solved.notes))
    return solved.lines


def _estimate(run: RunOptions, settings: MakeSettings, conversations: int) -> Estimate:
    """Estimate the calls: two notes or scenarios, one correction, the start forms and the review."""
    from mapo.planning.estimate import Estimate

    calls = conversations * (3 + settings.forms + settings.reviewed)
    return Estimate(
        calls=calls,
        prompt=calls * _PROMPT_TOKENS,
        output=calls * _ANSWER_TOKENS,
        requests_per_minute=run.requests_per_minute,
        tokens_per_minute=run.tokens_per_minute,
    )


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _known(domain: str, against: list[str] | None) -> list[Scenario]:
    """Return the scenarios that no new one may resemble: by default the domain's, if it has any."""
    from mapo.domain_folders import domain_folder
    from mapo.scenarios.sets import MANIFEST, load_scenarios

    if against is None:
        against = ["builtin:all"] if (domain_folder(domain) / MANIFEST).is_file() else []
    return [scenario for source in against for scenario in load_scenarios(source, domain)]


# ---- output


def _place(paths: Sequence[Path], file: int, line: int) -> str:
    """Return where a conversation is; in .json files `line` is its number."""
    path = paths[file - 1]
    return f"{path}, {'conversation' if path.suffix.lower() == '.json' else 'line'} {line}"


def _show_input(source: SourceConversations, paths: Sequence[Path]) -> None:
    """Print which conversations were dropped or cut, and why."""

    def lines(items: Iterable[tuple[int, int, str]]) -> list[str]:
        return [f"{_place(paths, file, line)}: {text}" for file, line, text in items]

    say_all("dropped", lines((p.file, p.line, p.text) for p in source.problems), most=_SHOWN)
    say_all("note", lines((p.file, p.line, p.text) for p in source.notes), most=_SHOWN)
    say_all("cut", lines((c.file, c.line, c.cut) for c in source.conversations if c.cut), most=_SHOWN)
    count, dropped = len(source.conversations), len(source.problems)
    usable = counted(count, "usable conversation")
    say(f"{usable} in {counted(len(paths), 'file')}; {dropped} dropped")


def _show_dropped(report: dict[str, Any], paths: Sequence[Path]) -> None:
    """Print which conversations became no scenario: where each is, which step and field, why, what to do."""
    refused = [
        f"{item['id']} ({_place(paths, item['file'], item['line'])}) in step {item['step']}, "
        f"{item['reason']}: {item['detail']}. {item['fix']}"
        for item in report["refused"]
    ]
    failed = [
        f"{item['id']} ({_place(paths, item['file'], item['line'])}): {item['error']}. {item['fix']}"
        for item in report["failures"]
    ]
    say_all("refused", refused, most=_SHOWN)
    say_all("not made", failed, most=_SHOWN)
    if len(refused) > _SHOWN or len(failed) > _SHOWN:
        say("report.json lists all of them under `refused` and `failures`")


def _redact_only(run: RunOptions, source: SourceConversations, chosen: Sequence[Conversation]) -> None:
    from mapo.errors import InputError
    from mapo.realsim.make import STEPS
    from mapo.realsim.report import finish_local
    from mapo.runs.claim import check_folder

    if RunDir(run.out).make_report.exists() and not RunDir(run.out).manifest.exists():
        raise InputError(
            "holds redacted conversations of an earlier run already",
            where=str(run.out),
            fix="Use another --out, or delete that folder",
        )
    check_folder(run.out, {}, resume=False)
    _table("Private values found without a model", _by_frequency(finish_local(run.out, source, chosen)))
    say(f"Redacted conversations: {run.out / STEPS[0]}. Report: {RunDir(run.out).make_report}")


def _show(report: dict[str, Any]) -> None:
    from collections import Counter

    _table("Private values found without a model", _by_frequency(report))
    refused = Counter(f"{item['reason']} ({item['step']})" for item in report["refused"])
    counts = {"conversations": report["asked"], "made": report["made"], "failed": len(report["failed"])}
    _table("Result", {**counts, **{f"refused: {why}": n for why, n in refused.most_common()}})
    agreement = {
        key: " / ".join(_number(row[k]) for k in ("same", "range", "alpha"))
        for key, row in report["agreement"].items()
    }
    forms = counted(report["forms"], "start form")
    _table(f"Agreement of {forms} per scenario, by indicator: equal to the median / range / alpha", agreement)
    if agreement:
        say(
            "Equal to the median: share of the forms. Range: mean distance of the highest from the lowest "
            "level. Alpha: Krippendorff's alpha, 1 for perfect agreement and 0 for chance."
        )
    say(f"Further private values listed by the model: {report['listed_by_the_model']}")
    say(f"Recorded model answers: {report['private_calls']}")


def _by_frequency(report: dict[str, Any]) -> dict[str, int]:
    """Return the counts of private values, the most frequent kind first."""
    return dict(sorted(report["found"].items(), key=lambda item: (-item[1], item[0])))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(title: str, rows: dict[str, Any]) -> None:
    from mapo.show.tables import Table, print_tables

    if rows:
        print_tables([Table((), [[name, str(value)] for name, value in rows.items()], title=title)])
