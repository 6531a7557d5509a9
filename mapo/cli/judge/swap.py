"""mapo judge swap: rejudge finished runs with another judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from mapo.cli.common.messages import say, say_all
from mapo.cli.common.options import Domain, Judging, RunOptions, with_run_options
from mapo.cli.judge.options import (
    REPLACED_OPTIONS,
    SCRIPTED,
    BaseUrl,
    JudgeBody,
    JudgePrompts,
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
from mapo.errors import InputError
from mapo.store import RunDir

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mapo.judges.sample import Recording
    from mapo.planning.estimate import Estimate
    from mapo.players.session import ModelSession
    from mapo.players.spec import PanelSpec
    from mapo.sandbox.cast import RolePrompts
    from mapo.sandbox.panel import NamedJudge


@with_run_options(without=REPLACED_OPTIONS)
def swap(
    run: RunOptions,
    runs: Runs,
    judge: Judges = None,
    base_url: BaseUrl = None,
    key_env: KeyEnvs = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    judge_body: JudgeBody = None,
    judging: Judging = None,
    scenarios: Scenarios = "builtin:all",
    domain: Domain = None,
    prompts: JudgePrompts = "",
) -> None:
    """Rejudge finished runs with another judge (several --judge: a panel) to see whether the results hold.

    The dialogues stay as they were played. Exit status: 0 success; 1 some dialogues were not judged (run
    again with --resume); 2 nothing could be judged; 130 or 143 interrupted.
    """
    from mapo.cli.common.items import solve_until_stopped
    from mapo.evals.compare.comparison import split_name
    from mapo.judges.swap import order
    from mapo.judges.swap import swap as swapping
    from mapo.players.identity import identity
    from mapo.players.reading import knows_turns_only, reading_prompts
    from mapo.sandbox.cast import prompts_id
    from mapo.scoring.tables import print_ledger
    from mapo.show.tables import print_tables

    if not judge:
        raise InputError("no judge given", fix="Give --judge NAME or --judge NAME@URL")
    judges = judges_named(judge, base_url, key_env, temperature, max_tokens, judge_body, judging)
    if len(judges.members) > 1 and any(spec.model == SCRIPTED for spec in judges.members):
        raise InputError(
            "the scripted judge cannot be part of a panel",
            fix="Use models only, or the scripted judge alone",
        )
    title = judges.names[0] if len(judges.members) == 1 else str(judges)
    roots = {name or root.resolve().name: root for name, root in map(split_name, runs)}
    if len(roots) < len(runs):
        raise InputError("two runs have the same name", fix="Name them: a=FOLDER b=FOLDER")
    recordings = swapping.evaluations(recordings_of(runs, scenarios, domain))
    if not recordings:
        raise InputError(
            "no finished evaluation in these runs",
            fix="Give evaluations, or training runs that have finished a test",
        )
    sources = {recording.run: swapping.SwapSource.of(recording, roots) for recording in recordings}
    fixed_starts = {name: swapping.has_fixed_start(source.root) for name, source in sources.items()}
    items = swapping.rejudgements(recordings, fixed_starts)
    if any(map(knows_turns_only, judges.members)) and any(item.start for item in items):
        say("note: a trained judge cannot fill in start forms; the recorded start levels are kept")
        items = [swapping.Rejudgement(item.recording, start=False) for item in items]
    session = run.session()
    judge_prompts = _prompts(prompts, recordings, scenarios, domain)
    scripted = any(spec.model == SCRIPTED for spec in judges.members)
    used = ""
    if not scripted:
        used = prompts_id(reading_prompts(judge_prompts, {"judge": judges}), recordings[0].scenario.domain)

    async def cast(session: ModelSession, _: Any) -> Any:
        return swapping.rejudgement_solver(await _judge(session, judges, recordings[0], judge_prompts))

    specs = zip(judges.names, judges.members, strict=True)
    models = {name: spec for name, spec in specs if spec.model != SCRIPTED}
    manifest = {**swapping.swap_manifest(title, recordings, used), **identity(**models)}
    forms = sum(len(item.recording.dialogue.turns) + item.start for item in items) * len(models)
    longest = max(len(item.recording.dialogue.turns) for item in items)

    def estimate(dialogues: int) -> Estimate:
        return limited_estimate(run, forms * dialogues / len(items), longest)

    solved = solve_until_stopped(run, manifest, items, models, cast, session, estimate)
    lines = solved.lines
    rejudged = []
    for name, source in sources.items():
        run_items = [item for item in items if item.recording.run == name]
        if any(item.id in lines for item in run_items):
            folder = swapping.write_run(run.out, source, run_items, lines, title, used)
            rejudged.append((name, source.root, folder))
    if not rejudged:
        raise InputError(
            "no dialogue was judged",
            where=str(run.out),
            fix="Fix the cause of the errors above, then run again with --resume",
        )
    result = order.compare_judges(rejudged)
    notice = _test_world(recordings, judges)
    order.write(result, run.out, notice)
    if notice:
        typer.echo(notice)
    print_tables(order.tables(result))
    say_all("note", list(solved.notes))
    print_ledger(session.ledger)
    say(f"Swap written to {RunDir(run.out).swap_markdown}; compare the run folders with `mapo compare`")
    if len(lines) < len(items):
        raise typer.Exit(1)


def _test_world(recordings: Sequence[Recording], judges: PanelSpec) -> str:
    """Return the notice above scores from a scripted user or judge, old or new; else ""."""
    from dataclasses import replace

    from mapo.scoring.context import context_of_dialogues

    old = context_of_dialogues([recording.dialogue for recording in recordings])
    scripted = any(spec.model == SCRIPTED for spec in judges.members)
    return old.notice or (replace(old, judge=SCRIPTED).notice if scripted else "")


def _prompts(name: str, recordings: Sequence[Recording], scenarios: str, domain: str | None) -> RolePrompts:
    """Return the prompts that --prompts names, for the scenarios of the recordings."""
    from mapo.players.prompts import named_prompts
    from mapo.scenarios.sets import read_set

    def files() -> dict[str, Path]:
        known = read_set(scenarios, domain).files
        return {case: known[case] for case in dict.fromkeys(rec.scenario.id for rec in recordings)}

    return named_prompts(name, recordings[0].rubric, files)


async def _judge(
    session: ModelSession, judges: PanelSpec, recording: Recording, prompts: RolePrompts
) -> NamedJudge:
    from mapo.sandbox.domain import scripted_cast
    from mapo.sandbox.panel import NamedJudge, panel

    scripted = NamedJudge(SCRIPTED, lambda job: scripted_cast(recording.scenario.domain)(job).judge)
    if any(spec.model == SCRIPTED for spec in judges.members):
        return scripted
    members = await session.judges(judges, recording.rubric, prompts)
    return panel(members) if len(members) > 1 else members[0]
