"""mapo judge audit --rank: audit judges that compare the replies of siblings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from mapo.cli.common.messages import say, say_all
from mapo.cli.judge.options import SCRIPTED, limited_estimate
from mapo.errors import InputError
from mapo.store import RunDir

if TYPE_CHECKING:
    from mapo.cli.common.options import RunOptions
    from mapo.judges.sample import Recording
    from mapo.planning.estimate import Estimate
    from mapo.players.session import ModelSession
    from mapo.players.spec import PanelSpec


def audit_ranking(
    run: RunOptions, judges: PanelSpec, recordings: list[Recording], turns: int, repeats: int, seed: int
) -> None:
    """Audit ranking judges on `turns` comparisons of recorded siblings."""
    from mapo.cli.common.items import solve_until_stopped
    from mapo.judges.audit.ranking.comparisons import rank_solver
    from mapo.judges.audit.ranking.report import RankPlan, build_rank_audit, tables, write
    from mapo.players.identity import identity
    from mapo.scoring.tables import print_ledger
    from mapo.show.tables import print_tables

    models = dict(zip(judges.names, judges.members, strict=True))
    if any(spec.model == SCRIPTED for spec in models.values()):
        raise InputError("a scripted judge cannot rank", fix="Name models with --judge")
    plan = RankPlan(tuple(models), recordings, turns, repeats, seed)
    questions = plan.questions()
    session = run.session()

    async def solver(session: ModelSession, _: Any) -> Any:
        return rank_solver(
            {name: (await session.chat(spec, name), spec.sampling) for name, spec in models.items()}
        )

    def estimate(count: int) -> Estimate:
        return limited_estimate(run, count, max(len(question.comparison.turns) for question in questions))

    manifest = {**plan.manifest(), **identity(**models)}
    solved = solve_until_stopped(run, manifest, questions, models, solver, session, estimate)
    result = build_rank_audit(plan, solved.lines)
    write(result, run.out)
    print_tables(tables(result))
    for verdict in result.verdicts:
        say_all(f"{verdict.judge}, not measured", list(verdict.unknown))
    print_ledger(session.ledger)
    say(f"Audit written to {RunDir(run.out).audit_markdown}")
    if any(findings.missing for findings in result.findings):
        raise typer.Exit(1)
