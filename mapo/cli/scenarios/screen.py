"""mapo scenarios screen: play scenarios and keep the informative ones."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.common.messages import say
from mapo.cli.common.options import AgentsBody, Domain, JudgeBody, RunOptions, role_body, with_run_options
from mapo.cli.scenarios.common import read_whole_set
from mapo.store import RunDir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mapo.evals.empa.benchmark import EmpaPlan
    from mapo.players.spec import ModelSpec, PartialSpec
    from mapo.realsim.screen import Plays, Screened
    from mapo.sandbox.rollout import Rules
    from mapo.scenarios.scenario import Scenario
    from mapo.scenarios.sets import ScenarioSet

_POLICY = "A model's name, local:FOLDER or scripted:NAME."


@with_run_options()
def screen(
    run: RunOptions,
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="The scenarios: a folder, MANIFEST.json:SPLIT, builtin:SPLIT."),
    ],
    strong: Annotated[str, typer.Option(help=f"The strong policy, at --base-url. {_POLICY}")],
    weak: Annotated[str | None, typer.Option(help=f"The weak policy. {_POLICY}")] = None,
    weak_base_url: Annotated[str | None, typer.Option(help="Its endpoint (default: --base-url).")] = None,
    weak_key_env: Annotated[str | None, typer.Option(help="Environment variable with its API key.")] = None,
    weak_body: Annotated[str | None, typer.Option(help="Further fields of its requests, as --body.")] = None,
    plays: Annotated[int, typer.Option(min=1, help="Dialogues per scenario and policy.")] = 4,
    agents: Annotated[str | None, typer.Option(help="User, director and judge: scripted or llm.")] = None,
    agents_model: Annotated[
        str | None, typer.Option(help="The model that plays them: a name, or local:FOLDER.")
    ] = None,
    agents_base_url: Annotated[str | None, typer.Option(help="Its endpoint (default: --base-url).")] = None,
    agents_key_env: Annotated[str | None, typer.Option(help="Environment variable with its API key.")] = None,
    agents_body: AgentsBody = None,
    judge_model: Annotated[str | None, typer.Option(help="Another model as judge.")] = None,
    judge_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    judge_key_env: Annotated[str | None, typer.Option(help="Environment variable with its API key.")] = None,
    judge_body: JudgeBody = None,
    domain: Domain = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Also split the kept scenarios: TRAIN/VALIDATION/TEST, such as 2/1/1, or TRAIN/TEST."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the dialogues and of the split.")] = 0,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Turn limit (default: the rubric's).")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens per reply.")] = 512,
) -> None:
    """Play each scenario with a strong and a weak model; drop those that are too hard or too easy.

    Exit status: 0 success; 1 some plays failed (run again with --resume) or too few were kept for --split; 2
    error; 130 or 143 interrupted.
    """
    from mapo.domain_folders import domain_folder
    from mapo.evals.empa.benchmark import EmpaPlan
    from mapo.measure.rubric import Rubric
    from mapo.players.spec import PartialSpec
    from mapo.realsim.screen import screen as screen_scenarios
    from mapo.realsim.screen import sizes_of
    from mapo.runs.claim import check_folder, claim
    from mapo.sandbox.model_cast import policy_system
    from mapo.sandbox.rollout import Rules
    from mapo.scoring.folders import read_folders

    if split is not None:
        sizes_of(split, 1000)  # reject an invalid option before anything is played
    scenarios = read_whole_set(source, domain)
    name = scenarios.scenarios[0].domain
    policies = _policies(run, strong, PartialSpec(weak, weak_base_url, weak_key_env), weak_body)
    judge = PartialSpec(judge_model, judge_base_url, judge_key_env)
    everyone = _everyone(run, agents, PartialSpec(agents_model, agents_base_url, agents_key_env), judge)
    roles = _with_bodies(_roles(scenarios.scenarios, agents, everyone, judge), agents_body, judge_body)
    run.session().check({**policies, **(roles or {})}, name)
    rubric = Rubric.load(domain_folder(name))
    rules = Rules(rubric, max_turns=max_turns, max_tokens=max_tokens, system=policy_system)
    plan = EmpaPlan(scenarios.scenarios, plays, seed)
    manifest = _manifest(plan, policies)
    check_folder(run.out, manifest, resume=run.resume)
    if weak is None:
        say("note: without --weak, no scenario counts as too easy")
    _preflight(run, plan, policies, roles, rules)
    claim(run.out, manifest)
    broken = sum(_play(run, role, plan, spec, roles, rules) for role, spec in policies.items())
    results = {
        role: [r for folder in read_folders(run.out / role, None, rubric) for r in folder.results]
        for role in policies
    }
    screened = screen_scenarios(scenarios.scenarios, results, plays, rubric)
    _write(run.out, manifest, screened, scenarios)
    _show(screened)
    not_split = split is not None and not _split(run.out, scenarios, screened, split, seed)
    say(f"Verdicts written to {RunDir(run.out).screen}")
    if not_split or broken or any(item.verdict == "undecided" for item in screened):
        raise typer.Exit(1)


def _preflight(
    run: RunOptions,
    plan: EmpaPlan,
    policies: Mapping[str, ModelSpec],
    roles: dict[str, ModelSpec] | None,
    rules: Rules,
) -> None:
    """Check the models of the dialogues that are missing, and print an estimate of their calls."""
    from mapo.cli.common.preflight import preflight
    from mapo.cli.evaluate.empa import estimate_jobs
    from mapo.evals.empa.benchmark import read_previous
    from mapo.planning.estimate import Estimate

    finished = {role: {d.id for d in read_previous(run.out / role).finished} for role in policies}
    jobs = {role: [job for job in plan.jobs() if job.id not in finished[role]] for role in policies}
    missing = {role: spec for role, spec in policies.items() if jobs[role]}
    if not missing:
        return
    parts = [
        part for role, spec in missing.items() if (part := estimate_jobs(jobs[role], spec, roles, rules))
    ]
    estimate = Estimate(
        sum(len(jobs[role]) for role in missing),
        rules.max_turns or rules.rubric.ending.max_turns,
        sum(part.calls for part in parts),
        sum(part.prompt for part in parts),
        sum(part.output for part in parts),
        run.requests_per_minute,
        run.tokens_per_minute,
    )
    models = {f"{role} policy": spec for role, spec in missing.items()} | (roles or {})
    preflight(models, estimate=estimate, cache_mode=run.cache, cache=_cache_of(run))


def _policies(run: RunOptions, strong: str, weak: PartialSpec, weak_body: str | None) -> dict[str, ModelSpec]:
    from mapo.models.chat import Sampling
    from mapo.players.spec import inherit

    policies = {"strong": run.model_spec(strong)}
    if weak.model is not None:
        sampling = Sampling(body=role_body("weak", weak_body))
        policies["weak"] = replace(inherit(weak, run.endpoint).complete(), sampling=sampling)
    return policies


def _with_bodies(
    roles: dict[str, ModelSpec] | None, agents: str | None, judge: str | None
) -> dict[str, ModelSpec] | None:
    """Set the body fields of the roles; refuse them for scripted roles."""
    from mapo.errors import InputError
    from mapo.models.chat import Sampling

    if roles is None:
        if agents or judge:
            raise InputError("body fields have no effect on scripted roles", fix="Give --agents-model")
        return None
    bodies = {role: role_body(role, judge if role == "judge" else None, agents) for role in roles}
    return {role: replace(spec, sampling=Sampling(body=bodies[role])) for role, spec in roles.items()}


def _everyone(run: RunOptions, agents: str | None, spec: PartialSpec, judge: PartialSpec) -> PartialSpec:
    """Return the model of all roles, at --base-url unless it has its own address: scenarios made from private
    conversations are only sent to endpoints that were named."""
    from mapo.players.spec import inherit

    models_play = agents == "llm" or any((spec.model, spec.base_url, *judge))
    return inherit(spec, run.endpoint) if models_play else spec


def _roles(
    scenarios: Sequence[Scenario], agents: str | None, everyone: PartialSpec, judge: PartialSpec
) -> dict[str, ModelSpec] | None:
    """Return the models of the roles, or None for scripted roles. Raise InputError if the domain has no
    scripted roles or a scenario has no cues for them."""
    from mapo.errors import InputError
    from mapo.players.casting import cast_from_options
    from mapo.players.spec import PartialSpec
    from mapo.sandbox.domain import scripted_cast

    none = PartialSpec()
    roles = cast_from_options(agents, everyone, user=none, director=none, judge=judge)
    if roles is not None:
        return roles
    scripted_cast(scenarios[0].domain)
    if bare := [s.id for s in scenarios if not any(beat.cues for beat in s.beats)]:
        raise InputError(
            f"{len(bare)} scenarios have no cues for scripted roles, such as {bare[0]}",
            fix="Use models for the roles: --agents-model NAME",
        )
    return None


def _manifest(plan: EmpaPlan, policies: Mapping[str, ModelSpec]) -> dict[str, Any]:
    from mapo.runs.claim import digest

    return {
        "schema": "mapo.screen/1",
        "policies": {role: str(spec) for role, spec in policies.items()},
        "plays": plan.repeats,
        "seed": plan.seed,
        "scenarios": digest({s.id: asdict(s) for s in plan.scenarios}),
    }


def _play(
    run: RunOptions,
    role: str,
    plan: EmpaPlan,
    spec: ModelSpec,
    roles: dict[str, ModelSpec] | None,
    rules: Rules,
) -> int:
    """Play one policy in its own folder, as `mapo eval empa` does, and return how many dialogues broke."""
    from mapo.cli.common.stop import until_stopped
    from mapo.cli.evaluate.empa import finished_text, play_missing
    from mapo.errors import EndpointError

    out = run.out / role
    started = RunDir(out).manifest.exists()
    policy_run = replace(run, out=out, cache_file=_cache_of(run), resume=started)
    playing = play_missing(policy_run, plan, spec, roles, rules, policy_run.session())
    broken = until_stopped(playing, run.out, lambda: f"{role}: {finished_text(out, len(plan.jobs()))}")
    if broken == len(plan.jobs()):
        raise EndpointError(
            f"all {broken} dialogues of the {role} policy broke",
            fix="Fix the cause of the errors above, then run again with --resume",
        )
    return broken


def _cache_of(run: RunOptions) -> Path:
    """Return the cache that all policies share."""
    return run.cache_file or RunDir(run.out).cache_of()


def _write(
    out: Path, manifest: Mapping[str, Any], screened: Sequence[Screened], scenarios: ScenarioSet
) -> None:
    """Write OUT/screen.json, and copy the files of the kept scenarios."""
    from mapo.realsim.screen import agreement
    from mapo.store import RunDir, write_atomic

    data = {**manifest, "agreement": agreement(screened), "scenarios": [item.as_json() for item in screened]}
    write_atomic(RunDir(out).screen, json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n")
    for item in screened:
        file = scenarios.files[item.id]
        if item.verdict == "kept" and file.suffix == ".toml":
            write_atomic(RunDir(out).scenarios / file.name, file.read_bytes())
        elif file.suffix == ".toml":
            (RunDir(out).scenarios / file.name).unlink(missing_ok=True)


def _split(out: Path, scenarios: ScenarioSet, screened: Sequence[Screened], shares: str, seed: int) -> bool:
    """Write OUT/splits.json: the kept scenarios divided evenly by category, measured axis and difficulty.
    Return False if there are too few."""
    from mapo.errors import InputError
    from mapo.realsim.screen import sizes_of
    from mapo.scenarios.sets import MANIFEST, file_hash
    from mapo.scenarios.split import split_scenarios
    from mapo.store import RunDir, write_atomic

    by_id = {scenario.id: scenario for scenario in scenarios.scenarios}
    kept = [
        replace(by_id[item.id], difficulty=item.measured["difficulty"], axis=item.measured["axis"])
        for item in screened
        if item.verdict == "kept"
    ]
    (out / MANIFEST).unlink(missing_ok=True)
    try:
        splits = split_scenarios(kept, sizes_of(shares, len(kept)), seed)
    except InputError as error:
        say(f"The kept scenarios were not split: {error}")
        return False
    manifest = {
        name: {case: file_hash(scenarios.files[case]) for case in cases} for name, cases in splits.items()
    }
    write_atomic(out / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    hint = "" if RunDir(out).scenarios.is_dir() else "; put it next to the scenarios"
    counts = ", ".join(f"{name} {len(cases)}" for name, cases in splits.items())
    say(f"Splits ({counts}) written to {out / MANIFEST}{hint}")
    return True


def _show(screened: Sequence[Screened]) -> None:
    from mapo.realsim.screen import agreement
    from mapo.show.tables import Table, print_tables

    names = list(screened[0].plays)
    rows = []
    for item in screened:
        cells = [_plays_cell(item.plays[name]) for name in names]
        declared = f"{item.declared['difficulty'] or '-'} {item.declared['axis'] or '-'}"
        measured = f"{item.measured['difficulty'] or '-'} {item.measured['axis'] or '-'}"
        moved = item.measured["axis_moved"] or "-"
        verdict = item.verdict + (f": {item.reason}" if item.reason else "")
        rows.append([item.id, *cells, declared, measured, moved, verdict])
    columns = ["scenario", *names, "declared", "measured", "moved most along", "verdict"]
    print_tables([Table(columns, rows, left=len(columns))])
    counts = {
        name: sum(item.verdict == name for item in screened) for name in ("kept", "dropped", "undecided")
    }
    say(", ".join(f"{name} {count}" for name, count in counts.items()))
    shares = {name: value for name, value in agreement(screened).items() if value is not None}
    rank = shares.pop("rank", None)
    labels = {"axis": "axis with the largest need at the start", "axis_moved": "axis of the largest gain"}
    if shares:
        values = ", ".join(f"{labels.get(name, name)} {value:.2f}" for name, value in shares.items())
        say(f"Share of scenarios whose declared tag equals the measured one: {values}")
    if rank is not None:
        say(f"Rank correlation of declared difficulty with the share of failed dialogues: {rank:.2f}")


def _plays_cell(plays: Plays) -> str:
    if plays.rate is None or plays.interval is None or plays.epm_q is None:
        return "-"
    low, high = plays.interval
    return f"{plays.passes}/{plays.n} ({low:.2f} to {high:.2f}), EPM-Q {plays.epm_q:.0f}"
