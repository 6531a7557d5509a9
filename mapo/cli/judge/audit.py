"""mapo judge audit: how much of a judge's word is noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.common.messages import say, say_all
from mapo.cli.common.options import Domain, Run, with_run
from mapo.cli.judge.options import (
    OWN,
    SCRIPTED,
    BaseUrl,
    Judges,
    KeyEnvs,
    Runs,
    Scenarios,
    Temperature,
    judges_named,
    talks_of,
)
from mapo.errors import InputError
from mapo.store import RunDir

if TYPE_CHECKING:
    from mapo.judges.audit.ask import Asking
    from mapo.players.session import ModelSession
    from mapo.players.spec import ModelSpec, PanelSpec


@with_run(without=OWN, out=None)
def audit(
    run: Run,
    runs: Runs,
    judge: Judges = None,
    panel: Annotated[
        bool, typer.Option("--panel", help="Also audit the panel of all judges, from their answers.")
    ] = False,
    base_url: BaseUrl = None,
    key_env: KeyEnvs = None,
    temperature: Temperature = None,
    scenarios: Scenarios = "builtin:all",
    domain: Domain = None,
    turns: Annotated[int, typer.Option(min=1, help="Turns to judge again and to probe.")] = 48,
    dialogues: Annotated[int, typer.Option(min=0, help="Whole dialogues to judge twice.")] = 12,
    repeats: Annotated[int, typer.Option(min=2, help="How often each turn is judged unchanged.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
) -> None:
    """Audit a judge: its noise, what sways it that should not, whom it agrees with, and what it is fit for.

    Without --judge, report what the records show about the judge that made them. Exit status: 0 all well; 1
    some questions have no answer (run again with --resume); 2 nothing could be audited; 130 or 143 it was
    stopped by hand.
    """
    from mapo.cli.common.items import solve_until_stopped
    from mapo.evals.compare.comparison import named
    from mapo.judges.audit.figure import draw
    from mapo.judges.audit.report import tables, write
    from mapo.judges.audit.run import Plan, audited
    from mapo.judges.terms import terms_of
    from mapo.players.identity import identity
    from mapo.scoring.tables import print_ledger
    from mapo.show.tables import print_tables

    if not judge:
        _as_recorded(runs)
        return
    if run.out is None:
        raise InputError("--judge without --out", fix="Say where the answers go")
    panelled = judges_named(judge, base_url, key_env, temperature)
    names = panelled.names
    together = str(panelled) if panel and len(names) > 1 else ""
    roots = [named(each)[1] for each in runs]
    terms, talks = terms_of(talks_of(runs, scenarios, domain), roots)
    plan = Plan(tuple(names), talks, turns, dialogues, repeats, seed, terms=terms, panel=together)
    say_all("warning", plan.warnings())
    session = run.session()

    async def cast(session: ModelSession, _: Any) -> Any:
        from mapo.judges.audit.ask import solving

        return solving(_askings(session, panelled, talks[0].scenario.domain))

    real = {name: who for name, who in zip(names, panelled.members, strict=True) if who.model != SCRIPTED}
    asked = {**plan.manifest(), **identity(**real)}
    solved = solve_until_stopped(run, asked, plan.questions(), list(real.values()), cast, session)
    found = audited(plan, solved.lines, _costs(session), solved.notes)
    draw(found, run.out)
    write(found, run.out, RunDir.audit_figure.name)
    print_tables(tables(found), 120)
    for said in found.verdicts:
        say_all(f"{said.judge}, not known", list(said.unknown))
    say_all("note", list(found.notes))
    print_ledger(session.ledger)
    say(f"audit: {RunDir(run.out).audit_markdown}")
    if any(each.missing for each in found.findings):
        raise typer.Exit(1)


def _as_recorded(runs: list[str]) -> None:
    from mapo.evals.compare.comparison import named
    from mapo.judges.audit.recorded import tables
    from mapo.show.tables import print_tables

    print_tables(tables([named(run)[1] for run in runs]), 120)


def _askings(session: ModelSession, judges: PanelSpec, domain: str) -> dict[str, Asking]:
    from mapo.judges.audit.ask import model_asking, scripted_asking
    from mapo.sandbox.domain import scripted_cast

    def asking(who: ModelSpec, role: str) -> Asking:
        if who.model == SCRIPTED:
            return scripted_asking(scripted_cast(domain))
        return model_asking(session.endpoint(who, role), who.sampling)

    return {name: asking(who, name) for name, who in zip(judges.names, judges.members, strict=True)}


def _costs(session: ModelSession) -> dict[str, dict[str, Any]]:
    """What each judge's calls came to; its endpoint's role is its name. Without a cost where it has no
    price."""
    found: dict[str, dict[str, Any]] = {}
    for row in session.ledger.as_rows():
        own = found.setdefault(
            row["role"], {"calls": 0, "seconds": 0.0, "prompt": 0, "completion": 0, "cost": 0.0}
        )
        for key, before in own.items():
            own[key] = None if before is None or row[key] is None else before + row[key]
    return found
