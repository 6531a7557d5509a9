"""Shared options of the judge commands, and the judges and dialogues they refer to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mapo.cli.common.messages import say_all
from mapo.cli.common.options import FIELDS, role_body
from mapo.errors import InputError

if TYPE_CHECKING:
    from mapo.cli.common.options import RunOptions
    from mapo.judges.sample import Recording
    from mapo.planning.estimate import Estimate
    from mapo.players.spec import PanelSpec

SCRIPTED = "scripted"
"""Name of a domain's scripted judge."""

REPLACED_OPTIONS = ("base_url", "key_env", "body", "context")
"""Options of `RunOptions` that these commands replace, because they take several judges and no policy."""

Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN", help="Run directories of mapo eval empa or mapo train; NAME=FOLDER sets a name."
    ),
]
Judges = Annotated[
    list[str] | None,
    typer.Option("--judge", help="Judge model: NAME, NAME@URL, local:FOLDER or 'scripted'. Repeatable."),
]
KeyEnvs = Annotated[
    list[str] | None,
    typer.Option(
        "--key-env", help="Environment variable with the API key: one for all judges, or one per judge."
    ),
]
BaseUrl = Annotated[str | None, typer.Option(help="Endpoint of judges given without a URL.")]
Temperature = Annotated[
    float | None, typer.Option(min=0.0, help="Sampling temperature (default: 0, as in a run).")
]
MaxTokens = Annotated[
    int | None, typer.Option("--judge-max-tokens", min=1, help="Token limit of a judgement (default: 4096).")
]
JudgeBody = Annotated[str | None, typer.Option(help=f"Further fields of all judges' requests: {FIELDS}.")]
Scenarios = Annotated[str, typer.Option(help="The scenarios that the runs played.")]


JudgePrompts = Annotated[
    str,
    typer.Option("--prompts", help="The judge's prompts: empa, or a folder of templates (default: mapo's)."),
]


def judges_named(
    named: list[str],
    base_url: str | None,
    keys: list[str] | None,
    temperature: float | None,
    max_tokens: int | None = None,
    body: str | None = None,
    judging: str | None = None,
) -> PanelSpec:
    """Return the judges given by --judge as a panel. The scripted judge has no sampling parameters."""
    from dataclasses import replace

    from mapo.models.chat import Sampling
    from mapo.players.casting import judged_by
    from mapo.players.spec import PanelSpec, PartialSpec, parse_judges

    members = parse_judges(named, PartialSpec(base_url=base_url), keys or [])
    for spec in members:
        if spec.scripted is not None:
            raise InputError(
                f"'{spec.model}' cannot be used as a judge here",
                fix=f"Give a model, or use '{SCRIPTED}'",
            )
    sampling = Sampling(temperature, max_tokens=max_tokens, body=role_body("judge", body))
    members = tuple(spec if spec.model == SCRIPTED else replace(spec, sampling=sampling) for spec in members)
    return PanelSpec(judged_by(members, judging))


def limited_estimate(run: RunOptions, judgements: float, turns: int) -> Estimate:
    """Estimate so many judgements in dialogues of up to `turns` turns, at the run's rate limits."""
    from dataclasses import replace

    from mapo.planning.estimate import estimate_judgements

    return replace(
        estimate_judgements(judgements, turns),
        requests_per_minute=run.requests_per_minute,
        tokens_per_minute=run.tokens_per_minute,
    )


def recordings_of(runs: list[str], scenarios: str, domain: str | None) -> list[Recording]:
    """Return the dialogues of the runs with their scenarios; print a warning for those that are skipped."""
    from mapo.domain_folders import known_folder
    from mapo.evals.compare.comparison import split_name
    from mapo.judges.sample import domain_in, read_recordings
    from mapo.scenarios.sets import BUILTIN, load_scenarios

    by_id: dict[str, Recording] = {}
    for run in runs:
        name, root = split_name(run)
        recorded = domain_in(root) if domain is None and scenarios.startswith(BUILTIN) else None
        run_domain = recorded if recorded and known_folder(recorded) else domain
        known = {scenario.id: scenario for scenario in load_scenarios(scenarios, run_domain)}
        recordings, problems = read_recordings(root, known, name or "")
        say_all("warning", problems, most=5)
        by_id |= {recording.id: recording for recording in recordings}
    return list(by_id.values())
