"""mapo scenarios list, check, split; make and screen have files of their own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mapo.cli.common.options import Domain
from mapo.cli.common.plain import commands
from mapo.cli.common.say import say, say_all
from mapo.cli.scenarios.make import make
from mapo.cli.scenarios.screen import screen
from mapo.errors import InputError, ScenarioError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mapo.scenarios.scenario import Scenario
    from mapo.scenarios.sets import ScenarioSet

app = commands("List, check, split, make and screen sets of scenarios.")

_SOURCE = (
    "builtin:train|validation|test|all, a folder of TOML files, one file, a folder of EMPA's cards, "
    "or MANIFEST.json:SPLIT."
)
_COLUMNS = ("id", "category", "axis", "difficulty", "threshold", "language")
_TAGS = ("category", "axis", "difficulty")

app.command()(make)
app.command()(screen)


@app.command("list")
def list_scenarios(
    source: Annotated[str, typer.Argument(help=_SOURCE)] = "builtin:all",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    domain: Domain = None,
) -> None:
    """One line a scenario."""
    from mapo.scenarios.sets import load_scenarios

    rows = [{key: getattr(s, key) for key in _COLUMNS} for s in load_scenarios(source, domain)]
    if as_json:
        typer.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    _print_table(_COLUMNS, [[str(cell) for cell in row.values()] for row in rows])
    say(f"{len(rows)} scenarios")


@app.command("check")
def check(
    sources: Annotated[list[str] | None, typer.Argument(help=f"{_SOURCE} Several are compared.")] = None,
    every: Annotated[bool, typer.Option("--all", help="List what is irregular card by card.")] = False,
    domain: Domain = None,
) -> None:
    """Are scenarios valid, and do sets of them overlap? Without a source, the shipped splits.

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
    _print_table(("irregular", "cards"), [[kind, str(count)] for kind, count in counts.most_common()])
    say("What was irregular and read all the same; docs/scenarios.md says what each means")
    if every:
        for case, kinds in found.irregular.items():
            typer.echo(f"{case}: {', '.join(kinds)}")


@app.command("split")
def split(
    source: Annotated[str, typer.Argument(help=_SOURCE)],
    out: Annotated[Path, typer.Option(help="Manifest to write; put it beside the scenarios.")],
    sizes: Annotated[
        str | None, typer.Option(help="TRAIN/VALIDATION/TEST or TRAIN/TEST (default: a half, two quarters).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed, another split.")] = 0,
    domain: Domain = None,
) -> None:
    """Divide a set evenly by category, axis and difficulty, keeping near-duplicates together."""
    from mapo.scenarios.sets import file_hash, read_set
    from mapo.scenarios.split import split_scenarios
    from mapo.store import write_atomic

    wanted = _sizes(sizes) if sizes is not None else None
    found = read_set(source, domain)
    if broken := [str(error) for error in found.errors] + list(found.unreadable.values()):
        say_all("error", broken)
        raise ScenarioError("not all of it can be read", where=source, fix="Mend or remove those files first")
    quarter = len(found.scenarios) // 4
    halves = {"train": len(found.scenarios) - 2 * quarter, "validation": quarter, "test": quarter}
    splits = split_scenarios(found.scenarios, wanted or halves, seed)
    manifest = {
        name: {case: file_hash(found.files[case]) for case in cases} for name, cases in splits.items()
    }
    write_atomic(out, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    by_id = {s.id: s for s in found.scenarios}
    rows = []
    for tag in _TAGS:
        for value in sorted({getattr(s, tag) for s in found.scenarios}):
            counts = [sum(getattr(by_id[x], tag) == value for x in cases) for cases in splits.values()]
            rows.append([f"{tag} {value or '(none)'}", *map(str, counts)])
    _print_table(("", *splits), rows)
    say(f"written to {out}")


def _sizes(text: str) -> dict[str, int]:
    names = {2: ("train", "test"), 3: ("train", "validation", "test")}
    parts = text.split("/")
    if len(parts) not in names or not all(part.isdecimal() for part in parts):
        raise InputError(f"'{text}' is no list of sizes", where="--sizes", fix="Write it like 24/12/12")
    return dict(zip(names[len(parts)], map(int, parts), strict=True))


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from mapo.show.tables import Table, print_tables

    print_tables([Table(columns, rows, left=len(columns))], 100)
