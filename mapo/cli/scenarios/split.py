"""mapo scenarios split: divide a set evenly, without leakage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mapo.cli.common.options import Domain
from mapo.cli.scenarios.common import SOURCE, print_table, read_whole_set
from mapo.errors import InputError

TAGS = ("category", "axis", "difficulty")


def split(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE)],
    out: Annotated[Path, typer.Option(help="Manifest to write; put it next to the scenarios.")],
    sizes: Annotated[
        str | None,
        typer.Option(help="TRAIN/VALIDATION/TEST or TRAIN/TEST (default: 1/2, 1/4, 1/4 of the set)."),
    ] = None,
    official: Annotated[
        bool,
        typer.Option(
            "--official",
            help="The test is EMPA's 30 official cases; --sizes TRAIN/VALIDATION divides the rest.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    domain: Domain = None,
) -> None:
    """Divide a set evenly by category, axis and difficulty, keeping near-duplicates together."""
    from mapo.scenarios.official import choose_cases
    from mapo.scenarios.sets import file_hash
    from mapo.scenarios.split import split_scenarios
    from mapo.store import write_atomic

    names = ("train", "validation") if official else None
    requested = _sizes(sizes, names) if sizes is not None else None
    source_set = read_whole_set(source, domain)
    test = choose_cases(source_set.scenarios, "official", source) if official else []
    rest = [s for s in source_set.scenarios if s not in test]
    quarter = 0 if official else len(rest) // 4
    default = {"train": len(rest) - 2 * quarter, "validation": quarter, "test": quarter}
    sizes_ = requested or {name: size for name, size in default.items() if size}
    splits = split_scenarios(rest, sizes_, seed)
    splits |= {"test": [s.id for s in test]} if official else {}
    manifest = {
        name: {case: file_hash(source_set.files[case]) for case in cases} for name, cases in splits.items()
    }
    write_atomic(out, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    by_id = {s.id: s for s in source_set.scenarios}
    rows = []
    for tag in TAGS:
        for value in sorted({getattr(s, tag) for s in source_set.scenarios}):
            counts = [sum(getattr(by_id[x], tag) == value for x in cases) for cases in splits.values()]
            rows.append([f"{tag} {value or '(none)'}", *map(str, counts)])
    print_table(("", *splits), rows, f"written to {out}")


def _sizes(text: str, only: tuple[str, ...] | None = None) -> dict[str, int]:
    known = (only,) if only else (("train", "test"), ("train", "validation", "test"))
    names = {len(each): each for each in known}
    parts = text.split("/")
    if len(parts) not in names or not all(part.isdecimal() for part in parts):
        raise InputError(
            f"'{text}' is not a list of sizes", where="--sizes", fix="Give sizes such as 24/12/12"
        )
    return dict(zip(names[len(parts)], map(int, parts), strict=True))
