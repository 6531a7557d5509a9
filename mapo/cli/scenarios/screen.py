"""mapo scenarios screen: which scenarios are worth keeping, by playing them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.common.messages import say
from mapo.cli.common.options import Domain, Run, with_run
from mapo.cli.scenarios.common import read_whole_set
from mapo.store import RunDir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mapo.evals.empa.benchmark import Plan
    from mapo.players.spec import ModelSpec, PartialSpec
    from mapo.realsim.screen import Plays, Screened
    from mapo.sandbox.rollout import Rules
    from mapo.scenarios.scenario import Scenario
    from mapo.scenarios.sets import ScenarioSet

_POLICY = "A model's name, local:FOLDER or scripted:NAME."


@with_run()
def screen(
    run: Run,
    source: Annotated[
        str, typer.Argument(help="The scenarios: a folder, MANIFEST.json:SPLIT, builtin:SPLIT.")
    ],
    strong: Annotated[str, typer.Option(help=f"The strong policy, at --base-url. {_POLICY}")],
    weak: Annotated[str | None, typer.Option(help=f"The weak policy. {_POLICY}")] = None,
    weak_base_url: Annotated[str | None, typer.Option(help="Its endpoint (default: --base-url).")] = None,
    weak_key_env: Annotated[str | None, typer.Option(help="Variable with its key.")] = None,
    plays: Annotated[int, typer.Option(min=1, help="Dialogues per scenario and policy.")] = 4,
    agents: Annotated[str | None, typer.Option(help="User, director and judge: scripted or llm.")] = None,
    agents_model: Annotated[str | None, typer.Option(help="The model that plays them.")] = None,
    agents_base_url: Annotated[str | None, typer.Option(help="Its endpoint (default: --base-url).")] = None,
    agents_key_env: Annotated[str | None, typer.Option(help="Variable with its key.")] = None,
    judge_model: Annotated[str | None, typer.Option(help="Another model as judge.")] = None,
    judge_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    judge_key_env: Annotated[str | None, typer.Option(help="Variable with its key.")] = None,
    domain: Domain = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Also split the kept scenarios: TRAIN/VALIDATION/TEST, such as 2/1/1, or TRAIN/TEST."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the dialogues and of the split.")] = 0,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Turn limit (default: the rubric's).")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest reply.")] = 512,
) -> None:
    """Play each scenario with a strong and a weak model; drop the hopeless and the too easy ones.

    Exit status: 0 all well; 1 some plays broke (run again with --resume) or too few were kept for --split; 2
    it could not continue; 130 or 143 it was stopped by hand.
    """
    from mapo.domain_folders import domain_folder
    from mapo.evals.empa.benchmark import Plan
    from mapo.measure.rubric import Rubric
    from mapo.players.spec import PartialSpec
    from mapo.realsim.screen import screen as screened_by
    from mapo.realsim.screen import sizes_of
    from mapo.runs.claim import claim, look
    from mapo.sandbox.model_cast import policy_system
    from mapo.sandbox.rollout import Rules
    from mapo.scoring.folders import read_folders

    if split is not None:
        sizes_of(split, 1000)  # refuse what is no split before anything is played
    found = read_whole_set(source, domain)
    own = found.scenarios[0].domain
    who = _policies(run, strong, PartialSpec(weak, weak_base_url, weak_key_env))
    judge = PartialSpec(judge_model, judge_base_url, judge_key_env)
    everyone = _everyone(run, agents, PartialSpec(agents_model, agents_base_url, agents_key_env), judge)
    roles = _roles(found.scenarios, agents, everyone, judge)
    run.session().check([*who.values(), *(roles or {}).values()], own)
    rubric = Rubric.load(domain_folder(own))
    rules = Rules(rubric, max_turns=max_turns, max_tokens=max_tokens, system=policy_system)
    plan = Plan(found.scenarios, plays, seed)
    asked = _manifest(plan, who)
    look(run.out, asked, resume=run.resume)
    claim(run.out, asked)
    broken = sum(_play(run, name, plan, one, roles, rules) for name, one in who.items())
    results = {
        name: [r for folder in read_folders(run.out / name, None, rubric) for r in folder.results]
        for name in who
    }
    screened = screened_by(found.scenarios, results, plays, rubric)
    _keep(run.out, asked, screened, found)
    _show(screened)
    unsplit = split is not None and not _split(run.out, found, screened, split, seed)
    say(f"verdicts: {RunDir(run.out).screen}")
    if unsplit or broken or any(one.verdict == "undecided" for one in screened):
        raise typer.Exit(1)


def _policies(run: Run, strong: str, weak: PartialSpec) -> dict[str, ModelSpec]:
    from mapo.players.spec import ModelSpec, inherit

    policies = {"strong": ModelSpec(strong, run.base_url, run.key_env)}
    if weak.model is not None:
        policies["weak"] = inherit(weak, run.endpoint).complete()
    return policies


def _everyone(run: Run, agents: str | None, own: PartialSpec, judge: PartialSpec) -> PartialSpec:
    """Return the model of all roles, at --base-url unless it has an address of its own: what was made from
    private conversations is sent to no endpoint that was not named."""
    from mapo.players.spec import inherit

    models_play = agents == "llm" or any((own.model, own.base_url, *judge))
    return inherit(own, run.endpoint) if models_play else own


def _roles(
    scenarios: Sequence[Scenario], agents: str | None, everyone: PartialSpec, judge: PartialSpec
) -> dict[str, ModelSpec] | None:
    """Return who plays. The scripted cast is refused where the domain has none or a scenario has no cues."""
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
            f"{len(bare)} scenarios have no cues for scripted roles ({bare[0]} ...)",
            fix="Let models play: --agents-model NAME",
        )
    return None


def _manifest(plan: Plan, who: Mapping[str, ModelSpec]) -> dict[str, Any]:
    from mapo.runs.claim import digest

    return {
        "schema": "mapo.screen/1",
        "policies": {name: one.model for name, one in who.items()},
        "plays": plan.repeats,
        "seed": plan.seed,
        "scenarios": digest({s.id: asdict(s) for s in plan.scenarios}),
    }


def _play(
    run: Run, name: str, plan: Plan, who: ModelSpec, roles: dict[str, ModelSpec] | None, rules: Rules
) -> int:
    """One policy's plays in a folder of its own, by the machinery of `mapo eval empa`; how many broke."""
    from mapo.cli.common.stop import until_stopped
    from mapo.cli.evaluate.empa import play_missing, told_kept

    out = run.out / name
    there = RunDir(out).manifest.exists()
    own = replace(run, out=out, cache_file=run.cache_file or RunDir(run.out).cache_of(), resume=there)
    playing = play_missing(own, plan, who, roles, rules, own.session())
    return until_stopped(playing, run.out, lambda: f"{name}: {told_kept(out, len(plan.jobs()))}")


def _keep(out: Path, asked: Mapping[str, Any], screened: Sequence[Screened], found: ScenarioSet) -> None:
    """OUT/screen.json, and the files of what is kept, byte for byte."""
    from mapo.realsim.screen import agreement
    from mapo.store import RunDir, write_atomic

    data = {**asked, "agreement": agreement(screened), "scenarios": [one.as_json() for one in screened]}
    write_atomic(RunDir(out).screen, json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n")
    for one in screened:
        file = found.files[one.id]
        if one.verdict == "kept" and file.suffix == ".toml":
            write_atomic(RunDir(out).scenarios / file.name, file.read_bytes())
        elif file.suffix == ".toml":
            (RunDir(out).scenarios / file.name).unlink(missing_ok=True)


def _split(out: Path, found: ScenarioSet, screened: Sequence[Screened], shares: str, seed: int) -> bool:
    """OUT/splits.json: what is kept, even in category, measured axis and measured difficulty. False where it
    is too little to be split; the screening stands."""
    from mapo.errors import InputError
    from mapo.realsim.screen import sizes_of
    from mapo.scenarios.sets import MANIFEST, file_hash
    from mapo.scenarios.split import split_scenarios
    from mapo.store import RunDir, write_atomic

    by_id = {scenario.id: scenario for scenario in found.scenarios}
    kept = [
        replace(by_id[one.id], difficulty=one.measured["difficulty"], axis=one.measured["axis"])
        for one in screened
        if one.verdict == "kept"
    ]
    (out / MANIFEST).unlink(missing_ok=True)
    try:
        splits = split_scenarios(kept, sizes_of(shares, len(kept)), seed)
    except InputError as error:
        say(f"no splits: {error}")
        return False
    manifest = {
        name: {case: file_hash(found.files[case]) for case in cases} for name, cases in splits.items()
    }
    write_atomic(out / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    beside = "" if RunDir(out).scenarios.is_dir() else ": put it beside the scenarios"
    counts = ", ".join(f"{name} {len(cases)}" for name, cases in splits.items())
    say(f"splits ({counts}): {out / MANIFEST}{beside}")
    return True


def _show(screened: Sequence[Screened]) -> None:
    from mapo.realsim.screen import agreement
    from mapo.show.tables import Table, print_tables

    who = list(screened[0].plays)
    rows = []
    for one in screened:
        cells = [_plays_cell(one.plays[name]) for name in who]
        declared = f"{one.declared['difficulty'] or '-'} {one.declared['axis'] or '-'}"
        measured = f"{one.measured['difficulty'] or '-'} {one.measured['axis'] or '-'}"
        moved = one.measured["axis_moved"] or "-"
        verdict = one.verdict + (f": {one.reason}" if one.reason else "")
        rows.append([one.id, *cells, declared, measured, moved, verdict])
    columns = ["scenario", *who, "declared", "measured", "moved", "verdict"]
    print_tables([Table(columns, rows, left=len(columns))], 170)
    counts = {name: sum(one.verdict == name for one in screened) for name in ("kept", "dropped", "undecided")}
    say(", ".join(f"{name} {count}" for name, count in counts.items()))
    told = {name: value for name, value in agreement(screened).items() if value is not None}
    rank = told.pop("rank", None)
    say(
        "share of scenarios whose declared tag is the measured one: "
        + ", ".join(f"{name} {value:.2f}" for name, value in told.items())
        + ("" if rank is None else f"; rank correlation of declared difficulty with failures {rank:.2f}")
    )


def _plays_cell(found: Plays) -> str:
    if found.rate is None or found.interval is None or found.epm_q is None:
        return "-"
    low, high = found.interval
    return f"{found.passes}/{found.n} ({low:.2f} to {high:.2f}), EPM-Q {found.epm_q:.0f}"
