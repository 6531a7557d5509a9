"""Options that the judge commands share, and the judges and dialogues they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mapo.cli.common.messages import say_all
from mapo.errors import InputError

if TYPE_CHECKING:
    from mapo.judges.sample import Talk
    from mapo.players.spec import PanelSpec

SCRIPTED = "scripted"
"""The name of a domain's judge of plain code."""

OWN = ("base_url", "key_env", "context")
"""Options of `Run` that these commands replace: there are several judges, none of them local."""

Runs = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", help="Folders of mapo eval empa or mapo train; NAME=FOLDER names one."),
]
Judges = Annotated[
    list[str] | None,
    typer.Option("--judge", help="A judge, NAME or NAME@URL; repeatable. 'scripted' is the domain's own."),
]
KeyEnvs = Annotated[
    list[str] | None,
    typer.Option("--key-env", help="Variable with the key: one for all judges, or one each."),
]
BaseUrl = Annotated[str | None, typer.Option(help="Endpoint of judges without their own.")]
Temperature = Annotated[
    float | None, typer.Option(min=0.0, help="The working temperature (default: the judge's, 0).")
]
Scenarios = Annotated[str, typer.Option(help="Where the runs' scenarios are.")]


def judges_named(
    named: list[str], base_url: str | None, keys: list[str] | None, temperature: float | None
) -> PanelSpec:
    """Return the judges given by --judge as a panel."""
    from dataclasses import replace

    from mapo.models.chat import Sampling
    from mapo.players.spec import PanelSpec, PartialSpec, parse_judges

    members = parse_judges(named, PartialSpec(base_url=base_url), keys or [])
    for spec in members:
        if spec.scripted is not None or spec.local is not None:
            raise InputError(
                f"'{spec.model}' as judge", fix=f"Serve the model and give its URL, or use '{SCRIPTED}'"
            )
    if temperature is not None:
        members = tuple(replace(spec, sampling=Sampling(temperature)) for spec in members)
    return PanelSpec(members)


def talks_of(runs: list[str], scenarios: str, domain: str | None) -> list[Talk]:
    """Return the dialogues of the runs with their scenarios, and print what cannot be used."""
    from mapo.domain_folders import known_folder
    from mapo.evals.compare.comparison import named
    from mapo.judges.sample import domain_in, read_talks
    from mapo.scenarios.sets import BUILTIN, load_scenarios

    found: dict[str, Talk] = {}
    for run in runs:
        name, root = named(run)
        own = domain_in(root) if domain is None and scenarios.startswith(BUILTIN) else None
        of = own if own and known_folder(own) else domain
        known = {scenario.id: scenario for scenario in load_scenarios(scenarios, of)}
        talks, problems = read_talks(root, known, name or "")
        say_all("warning", problems, most=5)
        found |= {talk.id: talk for talk in talks}
    return list(found.values())
