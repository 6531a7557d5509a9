"""mapo scenarios check: are scenarios valid, and do sets of them overlap?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from mapo.cli.common.messages import say_all
from mapo.cli.common.options import Domain
from mapo.cli.scenarios.common import SOURCE, print_table
from mapo.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mapo.scenarios.scenario import Scenario
    from mapo.scenarios.sets import ScenarioSet


def check(
    sources: Annotated[list[str] | None, typer.Argument(help=f"{SOURCE} Several are compared.")] = None,
    every: Annotated[bool, typer.Option("--all", help="List the irregularities of each card.")] = False,
    domain: Domain = None,
) -> None:
    """Check that scenarios are valid and that sets do not overlap (default: the shipped splits).

    Exit status: 0 all well; 1 unreadable or invalid scenarios, or leakage between sources.
    """
    from mapo.scenarios.overlap import compare_sets
    from mapo.scenarios.sets import SPLITS, read_set

    names = list(dict.fromkeys(sources or [f"builtin:{split}" for split in SPLITS]))
    problems: list[str] = []
    sets: dict[str, Sequence[Scenario]] = {}
    for name in names:
        try:
            found = read_set(name, domain)
            problems += _problems(found)
        except ScenarioError as error:  # the other sources are still worth checking
            problems.append(str(error))
            continue
        sets[name] = found.scenarios
        typer.echo(f"{name}: {len(found.scenarios)} scenarios")
        _show_irregular(found, every)
    inside, between = compare_sets(sets)
    leaked = [*_shared_ids(sets), *map(str, between)]
    say_all("warning: alike in one set", [str(pair) for pair in inside])
    say_all("error", problems)
    say_all("error: leakage", leaked)
    if problems or leaked:
        raise typer.Exit(1)
    typer.echo("no problem found")


def _problems(found: ScenarioSet) -> list[str]:
    from mapo.domain_folders import domain_folder
    from mapo.measure.rubric import Rubric
    from mapo.sandbox.domain import check_cues
    from mapo.scenarios.scenario import check_scenario

    lines = [str(error) for error in found.errors] + list(found.unreadable.values())
    for scenario in found.scenarios:
        rubric = Rubric.load(domain_folder(scenario.domain))
        wrong = [*check_scenario(scenario, rubric), *check_cues(scenario.domain, scenario)]
        lines += [f"{found.files[scenario.id]}: {line}" for line in wrong]
    return lines


def _shared_ids(sets: dict[str, Sequence[Scenario]]) -> list[str]:
    owners: dict[str, list[str]] = {}
    for name, scenarios in sets.items():
        for scenario in scenarios:
            owners.setdefault(scenario.id, []).append(name)
    return [f"{case} is in {' and in '.join(names)}" for case, names in owners.items() if len(names) > 1]


def _show_irregular(found: ScenarioSet, every: bool) -> None:
    if not found.irregular:
        return
    counts = Counter(kind for kinds in found.irregular.values() for kind in kinds)
    print_table(
        ("irregular", "cards"),
        [[kind, str(count)] for kind, count in counts.most_common()],
        "These cards were irregular but readable; docs/scenarios.md explains each kind",
    )
    if every:
        for case, kinds in found.irregular.items():
            typer.echo(f"{case}: {', '.join(kinds)}")
