"""mapo judge swap: finished runs judged again by another judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    from mapo.judges.sample import Talk
    from mapo.players.session import ModelSession
    from mapo.players.spec import PanelSpec
    from mapo.sandbox.panel import Seat


@with_run(without=OWN)
def swap(
    run: Run,
    runs: Runs,
    judge: Judges = None,
    base_url: BaseUrl = None,
    key_env: KeyEnvs = None,
    temperature: Temperature = None,
    scenarios: Scenarios = "builtin:all",
    domain: Domain = None,
) -> None:
    """Judge finished runs again with another judge (several --judge: a panel): does the result hold?

    The dialogues stay as they were played. Exit status: 0 all well; 1 some dialogues were not judged (run
    again with --resume); 2 nothing could be judged; 130 or 143 it was stopped by hand.
    """
    from mapo.cli.common.items import solve_until_stopped
    from mapo.evals.compare.comparison import named
    from mapo.judges.swap import order
    from mapo.judges.swap import swap as swapping
    from mapo.players.identity import identity
    from mapo.scoring.tables import print_ledger
    from mapo.show.tables import print_tables

    if not judge:
        raise InputError("no judge", fix="Give --judge NAME, or NAME@URL")
    panelled = judges_named(judge, base_url, key_env, temperature)
    title = panelled.names[0] if len(panelled.members) == 1 else str(panelled)
    roots = {name or root.resolve().name: root for name, root in map(named, runs)}
    if len(roots) < len(runs):
        raise InputError("two runs of one name", fix="Name them: a=FOLDER b=FOLDER")
    talks = swapping.evaluations(talks_of(runs, scenarios, domain))
    if not talks:
        raise InputError("no finished evaluation in these runs", fix="Is the training's test still to come?")
    sources = {talk.run: swapping.Source.of(talk, roots) for talk in talks}
    items = swapping.again(talks, {name: swapping.starts_given(s.root) for name, s in sources.items()})
    session = run.session()

    async def cast(session: ModelSession, _: Any) -> Any:
        return swapping.solving(_seat(session, panelled, talks[0]))

    real = {n: who for n, who in zip(panelled.names, panelled.members, strict=True) if who.model != SCRIPTED}
    asked = {**swapping.swap_manifest(title, talks), **identity(**real)}
    solved = solve_until_stopped(run, asked, items, list(real.values()), cast, session)
    lines = solved.lines
    pairs = []
    for name, source in sources.items():
        mine = [item for item in items if item.talk.run == name]
        if any(item.id in lines for item in mine):
            folder = swapping.write_run(run.out, source, mine, lines, title)
            pairs.append((name, source.root, folder))
    if not pairs:
        raise InputError(
            "no dialogue was judged", where=str(run.out), fix="See the errors above; then --resume"
        )
    found = order.swapped(pairs)
    order.write(found, run.out)
    print_tables(order.tables(found), 120)
    say_all("note", list(solved.notes))
    print_ledger(session.ledger)
    say(f"judged again: {RunDir(run.out).swap_markdown}; each run is a folder for `mapo compare`")
    if len(lines) < len(items):
        raise typer.Exit(1)


def _seat(session: ModelSession, judges: PanelSpec, talk: Talk) -> Seat:
    from mapo.sandbox.domain import scripted_cast
    from mapo.sandbox.panel import Seat, panel

    scripted = Seat(SCRIPTED, lambda job: scripted_cast(talk.scenario.domain)(job).judge)
    if any(who.model == SCRIPTED for who in judges.members):
        if len(judges.members) > 1:
            raise InputError("a panel with a judge of plain code", fix="Models only, or plain code alone")
        return scripted
    seats = session.seats(judges, talk.rubric)
    return panel(seats) if len(seats) > 1 else seats[0]
