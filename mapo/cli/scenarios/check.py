"""mapo scenarios check: validate scenarios and find overlaps between sets."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from mapo.cli.common.messages import say, say_all
from mapo.cli.common.options import Domain
from mapo.cli.scenarios.common import SOURCE, print_table
from mapo.errors import ScenarioError
from mapo.text import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mapo.scenarios.scenario import Scenario
    from mapo.scenarios.sets import ScenarioSet


EXAMPLES = 3
"""Cards named per irregularity without --all."""


def check(
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="SOURCE", help=f"{SOURCE} Several sources are compared.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List the irregularities of every EMPA card.")] = False,
    domain: Domain = None,
) -> None:
    """Check that scenarios are valid and that sets do not overlap (default: the shipped splits).

    Exit status: 0 no problem; 1 unreadable or invalid scenarios, or overlap between sources.
    """
    from mapo.scenarios.overlap import compare_sets
    from mapo.scenarios.sets import SPLITS, read_set

    names = list(dict.fromkeys(sources or [f"builtin:{split}" for split in SPLITS]))
    problems: list[str] = []
    sets: dict[str, Sequence[Scenario]] = {}
    for name in names:
        try:
            scenarios = read_set(name, domain)
            problems += _problems(scenarios)
        except ScenarioError as error:  # still check the other sources
            problems.append(str(error))
            continue
        sets[name] = scenarios.scenarios
        typer.echo(f"{name}: {len(scenarios.scenarios)} scenarios")
        _show_irregular(scenarios, every)
    inside, between = compare_sets(sets)
    leaked = [*_shared_ids(sets), *(f"{pair}; remove one of the two" for pair in between)]
    say_all("warning: similar scenarios in one set", [f"{pair}; consider removing one" for pair in inside])
    say_all("error", problems, most=len(problems))
    say_all("error: leakage", leaked, most=len(leaked))
    if problems or leaked:
        invalid = plural(len(problems), "invalid field or file", "invalid fields or files")
        say(f"{invalid} and {plural(len(leaked), 'overlap')}; fix them and check again")
        raise typer.Exit(1)
    typer.echo("no problem found")


def _problems(scenario_set: ScenarioSet) -> list[str]:
    """Return every problem with its file, field and reason."""
    from mapo.domain_folders import domain_folder
    from mapo.measure.rubric import Rubric
    from mapo.sandbox.domain import check_cues
    from mapo.scenarios.scenario import check_scenario

    lines = [str(error) for error in scenario_set.errors] + list(scenario_set.unreadable.values())
    for scenario in scenario_set.scenarios:
        rubric = Rubric.load(domain_folder(scenario.domain))
        wrong = [*check_scenario(scenario, rubric), *check_cues(scenario.domain, scenario)]
        lines += [f"{scenario_set.files[scenario.id]}: {line}" for line in wrong]
    return lines


def _shared_ids(sets: dict[str, Sequence[Scenario]]) -> list[str]:
    owners: dict[str, list[str]] = {}
    for name, scenarios in sets.items():
        for scenario in scenarios:
            owners.setdefault(scenario.id, []).append(name)
    return [
        f"{case} is in {' and in '.join(names)}; keep it in one of them"
        for case, names in owners.items()
        if len(names) > 1
    ]


def _show_irregular(scenario_set: ScenarioSet, every: bool) -> None:
    if not scenario_set.irregular:
        return
    counts = Counter(kind for kinds in scenario_set.irregular.values() for kind in kinds)
    rows = []
    for kind, count in counts.most_common():
        cases = [case for case, kinds in scenario_set.irregular.items() if kind in kinds]
        more = "" if count <= EXAMPLES else f" and {count - EXAMPLES} more (--all)"
        rows.append([kind, str(count), ", ".join(cases[:EXAMPLES]) + more])
    print_table(
        ("irregularity", "cards", "examples"),
        rows,
        "These cards are irregular but readable; docs/scenarios.md explains each kind",
    )
    if every:
        for case, kinds in scenario_set.irregular.items():
            typer.echo(f"{case}: {', '.join(kinds)}")
