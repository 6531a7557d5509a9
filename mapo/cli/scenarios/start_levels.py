"""mapo scenarios start-levels: estimate start levels from priorities."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from mapo.cli.common.options import Domain
from mapo.cli.scenarios.common import SOURCE, print_table, read_whole_set
from mapo.errors import InputError


def start_levels(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE)],
    known: Annotated[
        Path, typer.Option(help="Known start levels: a JSON file, or a folder of EMPA result files.")
    ],
    out: Annotated[Path, typer.Option(help="JSON file to write, for scenarios.start_levels.")],
    examples: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="The scenarios of the known start levels (default: CARDS:test)."),
    ] = None,
    domain: Domain = None,
) -> None:
    """Estimate start levels from priorities, as EMPA's cards have them, so that no judge needs to.

    The estimate is the mean of known start levels of scenarios with the same priority. The table shows how
    far it is off for each known scenario when estimated from the others.
    """
    from mapo.measure.rubric import Rubric
    from mapo.scenarios.start_levels import (
        check_start_levels,
        estimate_start_levels,
        estimation_errors,
        read_start_levels,
    )
    from mapo.store import write_atomic

    scenarios = read_whole_set(source, domain).scenarios
    rubric = Rubric.load(domain or scenarios[0].domain)
    learned_from = read_whole_set(examples or f"{source.rpartition(':')[0] or source}:test", domain).scenarios
    levels = read_start_levels(known)
    check_start_levels(levels, learned_from, rubric)
    count = sum(scenario.id in levels for scenario in learned_from)
    if count < 2:
        raise InputError(
            f"the known start levels name {count} of the example scenarios, but at least 2 are needed",
            where=str(known),
            fix="Name the scenarios that they belong to with --examples",
        )
    errors = estimation_errors(levels, learned_from, rubric)
    table = estimate_start_levels(levels, learned_from, scenarios, rubric)
    write_atomic(out, json.dumps(table, indent=1) + "\n")
    rows = [
        [
            indicator.key,
            f"{sum(e == 0 for e in errors[indicator.key])}/{count}",
            f"{fmean(map(abs, errors[indicator.key])):.2f}",
            f"{max(map(abs, errors[indicator.key]))}",
        ]
        for indicator in rubric.indicators
    ]
    print_table(
        ("indicator", "right", "mean error", "largest"),
        rows,
        f"start levels of {len(table)} scenarios written to {out}, estimated from {count} known ones",
    )
