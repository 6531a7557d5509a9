"""mapo judge audit: measure the noise, bias and agreement of judges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.common.messages import say, say_all
from mapo.cli.common.options import Domain, Judging, RunOptions, with_run_options
from mapo.cli.judge.options import (
    REPLACED_OPTIONS,
    SCRIPTED,
    BaseUrl,
    JudgeBody,
    Judges,
    KeyEnvs,
    MaxTokens,
    Runs,
    Scenarios,
    Temperature,
    judges_named,
    limited_estimate,
    recordings_of,
)
from mapo.cli.judge.rank import audit_ranking
from mapo.errors import InputError
from mapo.store import RunDir

if TYPE_CHECKING:
    from mapo.judges.audit.questions import AskJudge
    from mapo.judges.sample import Recording
    from mapo.planning.estimate import Estimate
    from mapo.players.session import ModelSession
    from mapo.players.spec import ModelSpec, PanelSpec


@with_run_options(without=REPLACED_OPTIONS, out=None)
def audit(
    run: RunOptions,
    runs: Runs,
    judge: Judges = None,
    panel: Annotated[
        bool, typer.Option("--panel", help="Also audit the panel of all judges, using their answers.")
    ] = False,
    rank: Annotated[
        bool, typer.Option("--rank", help="Audit them as judges that rank the replies of siblings.")
    ] = False,
    base_url: BaseUrl = None,
    key_env: KeyEnvs = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    judge_body: JudgeBody = None,
    judging: Judging = None,
    scenarios: Scenarios = "builtin:all",
    domain: Domain = None,
    turns: Annotated[int, typer.Option(min=1, help="Turns to judge repeatedly and to probe.")] = 48,
    dialogues: Annotated[int, typer.Option(min=0, help="Whole dialogues to judge twice.")] = 12,
    repeats: Annotated[int, typer.Option(min=2, max=1000, help="How often an unchanged turn is judged.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
) -> None:
    """Audit judges: noise, bias, agreement, and whether they are fit for training and evaluation.

    Without --judge, report what the records show about the judge that made them. Exit status: 0 success; 1
    some questions have no answer (run again with --resume); 2 nothing could be audited; 130 or 143
    interrupted.
    """
    from mapo.cli.common.items import solve_until_stopped
    from mapo.evals.compare.comparison import split_name
    from mapo.judges.audit.figure import draw
    from mapo.judges.audit.report import SMALL_SAMPLE, tables, write
    from mapo.judges.audit.run import AuditPlan, build_audit
    from mapo.judges.credit import credit_settings
    from mapo.players.identity import identity
    from mapo.scoring.tables import print_ledger
    from mapo.show.tables import print_tables

    if rank and not judge:
        raise InputError("--rank needs a judge", fix="Name one with --judge")
    if not judge:
        _as_recorded(runs)
        return
    if run.out is None:
        raise InputError("--judge needs --out", fix="Give the folder for the answers with --out DIR")
    judges = judges_named(judge, base_url, key_env, temperature, max_tokens, judge_body, judging)
    if rank:
        if panel:
            raise InputError("--panel and --rank cannot be combined", fix="Leave out one of them")
        audit_ranking(run, judges, recordings_of(runs, scenarios, domain), turns, repeats, seed)
        return
    names = judges.names
    panel_name = str(judges) if panel and len(names) > 1 else ""
    roots = [split_name(each)[1] for each in runs]
    credit, recordings = credit_settings(recordings_of(runs, scenarios, domain), roots)
    plan = AuditPlan(
        tuple(names), recordings, turns, dialogues, repeats, seed, credit=credit, panel=panel_name
    )
    say_all("warning", plan.warnings())
    session = run.session()

    async def cast(session: ModelSession, _: Any) -> Any:
        from mapo.judges.audit.questions import question_solver

        return question_solver(await _ask_functions(session, judges, recordings[0]))

    models = {name: spec for name, spec in zip(names, judges.members, strict=True) if spec.model != SCRIPTED}
    manifest = {**plan.manifest(), **identity(**models)}
    longest = max(len(recording.dialogue.turns) for recording in recordings)
    share = len(models) / len(names)  # a scripted judge makes no calls

    def estimate(questions: int) -> Estimate:
        return limited_estimate(run, questions * share, longest)

    solved = solve_until_stopped(run, manifest, plan.questions(), models, cast, session, estimate)
    result = build_audit(plan, solved.lines, _costs(session), solved.notes)
    draw(result, run.out)
    write(result, run.out, RunDir.audit_figure.name)
    print_tables(tables(result))
    for verdict in result.verdicts:
        say_all(f"{verdict.judge}, not measured", list(verdict.unknown))
    say_all("note", [note for note in result.notes if not note.startswith(SMALL_SAMPLE)])
    print_ledger(session.ledger)
    say(f"Audit written to {RunDir(run.out).audit_markdown}")
    if any(findings.missing for findings in result.findings):
        raise typer.Exit(1)


def _as_recorded(runs: list[str]) -> None:
    from mapo.evals.compare.comparison import split_name
    from mapo.judges.audit.recorded import tables
    from mapo.show.tables import print_tables

    print_tables(tables([split_name(run)[1] for run in runs]))


async def _ask_functions(
    session: ModelSession, judges: PanelSpec, recording: Recording
) -> dict[str, AskJudge]:
    from mapo.judges.audit.questions import model_asker, reading_asker, scripted_asker
    from mapo.players.reading import calibration_of, check_trained_roles, is_read_out
    from mapo.sandbox.domain import scripted_cast
    from mapo.sandbox.reading_roles import reader_of

    rubric = recording.rubric
    check_trained_roles(dict(zip(judges.names, judges.members, strict=True)), rubric)

    async def ask_function(spec: ModelSpec, role: str) -> AskJudge:
        if spec.model == SCRIPTED:
            return scripted_asker(scripted_cast(recording.scenario.domain))
        chat = await session.chat(spec, role)
        if is_read_out(spec, "judge"):
            return reading_asker(reader_of(chat), rubric, calibration_of(spec))
        return model_asker(chat, spec.sampling)

    members = zip(judges.names, judges.members, strict=True)
    return {name: await ask_function(spec, name) for name, spec in members}


def _costs(session: ModelSession) -> dict[str, dict[str, Any]]:
    """Return calls, tokens and cost per judge. In the ledger, a judge's role is its name; the cost is None if
    the model has no price."""
    costs: dict[str, dict[str, Any]] = {}
    for row in session.ledger.as_rows():
        totals = costs.setdefault(
            row["role"], {"calls": 0, "seconds": 0.0, "prompt": 0, "completion": 0, "cost": 0.0}
        )
        for key, total in totals.items():
            totals[key] = None if total is None or row[key] is None else total + row[key]
    return costs
