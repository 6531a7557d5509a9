"""Splits scenarios into sets of given sizes, with tags distributed evenly and no leakage.

Near-duplicates (`overlap.py`) form families, and a family is never divided between splits. Starting from a
random assignment, families of equal size are swapped as long as that does not move any split further from its
share of each category, axis and difficulty.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

from mapo.errors import ScenarioError
from mapo.scenarios.overlap import compare_sets, families, overlaps, texts_of
from mapo.scenarios.scenario import Scenario

_SWAPS = 10_000

Label = tuple[str, str]


def split_scenarios(
    scenarios: Sequence[Scenario], sizes: Mapping[str, int], seed: int
) -> dict[str, list[str]]:
    """Return the sorted ids of each split. Raises ScenarioError if the sizes are impossible or the splits
    overlap.
    """
    if sum(sizes.values()) != len(scenarios) or min(sizes.values()) < 1:
        requested = "/".join(map(str, sizes.values()))
        raise ScenarioError(
            f"sizes {requested} do not fit {len(scenarios)} scenarios",
            fix=f"Use sizes of at least 1 that add up to {len(scenarios)}",
        )
    rng = random.Random(seed)  # noqa: S311
    texts = texts_of(scenarios)
    groups = families(sorted(texts), overlaps(texts))
    rng.shuffle(groups)
    place = _initial_assignment(groups, sizes)
    by_id = {s.id: s for s in scenarios}
    labels = [Counter(x for case in group for x in by_id[case].tags.items()) for group in groups]
    _balance_tags(groups, place, labels, sizes, rng)
    splits = {
        name: sorted(case for group, at in zip(groups, place, strict=True) if at == name for case in group)
        for name in sizes
    }
    _, leaked = compare_sets({name: [by_id[case] for case in cases] for name, cases in splits.items()})
    if leaked:
        raise ScenarioError(f"the splits overlap: {leaked[0]}", fix="This is a bug in mapo; please report it")
    return splits


def _initial_assignment(groups: list[list[str]], sizes: Mapping[str, int]) -> list[str]:
    """Assign each family to a split, the largest families first."""
    room = dict(sizes)
    place = [""] * len(groups)
    for number in sorted(range(len(groups)), key=lambda i: -len(groups[i])):
        name = max(room, key=lambda x: room[x])
        if room[name] < len(groups[number]):
            raise ScenarioError(
                f"{len(groups[number])} near-identical scenarios do not fit into one split: "
                + ", ".join(groups[number][:5]),
                fix="Remove the duplicates, or choose other sizes",
            )
        room[name] -= len(groups[number])
        place[number] = name
    return place


def _balance_tags(
    groups: list[list[str]],
    place: list[str],
    labels: list[Counter[Label]],
    sizes: Mapping[str, int],
    rng: random.Random,
) -> None:
    totals = sum(labels, Counter[Label]())
    total = sum(sizes.values())
    # Excess of each label in each split over its share, times `total`, so that all numbers are integers.
    excess = {name: {x: -totals[x] * size for x in totals} for name, size in sizes.items()}
    for name, counts in zip(place, labels, strict=True):
        for x, count in counts.items():
            excess[name][x] += count * total
    for _ in range(_SWAPS):
        i, j = rng.randrange(len(groups)), rng.randrange(len(groups))
        a, b = place[i], place[j]
        if a == b or len(groups[i]) != len(groups[j]):
            continue
        gained = labels[j].copy()  # gained by a, lost by b
        gained.subtract(labels[i])
        # Half the change of the sum of squares. 0 is accepted, to allow moving along a plateau to its edge.
        if sum(n * (excess[a][x] - excess[b][x] + n * total) for x, n in gained.items()) <= 0:
            place[i], place[j] = b, a
            for x, n in gained.items():
                excess[a][x] += n * total
                excess[b][x] -= n * total
