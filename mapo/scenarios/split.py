"""Splits of a set of scenarios: sizes as asked, tags spread evenly, nothing alike on both sides.

Near-duplicates (`overlap.py`) form families, and a family never falls into two splits. From a random
start, families of one size trade places as long as that brings no split further from its share of each
category, axis and difficulty.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

from mapo.errors import ScenarioError
from mapo.scenarios.overlap import compare_sets, families, overlaps, texts_of
from mapo.scenarios.scenario import Scenario

_TRIES = 10_000

Label = tuple[str, str]


def split_scenarios(
    scenarios: Sequence[Scenario], sizes: Mapping[str, int], seed: int
) -> dict[str, list[str]]:
    """split -> ids, sorted. Raises ScenarioError where the sizes cannot be met, or anything leaks."""
    if sum(sizes.values()) != len(scenarios) or min(sizes.values()) < 1:
        asked = "/".join(map(str, sizes.values()))
        raise ScenarioError(
            f"sizes {asked} for {len(scenarios)} scenarios",
            fix=f"Give sizes of at least 1 that add up to {len(scenarios)}",
        )
    rng = random.Random(seed)  # noqa: S311
    texts = texts_of(scenarios)
    groups = families(sorted(texts), overlaps(texts))
    rng.shuffle(groups)
    place = _filled(groups, sizes)
    by_id = {s.id: s for s in scenarios}
    labels = [Counter(x for case in group for x in by_id[case].tags.items()) for group in groups]
    _even_out(groups, place, labels, sizes, rng)
    found = {
        name: sorted(case for group, at in zip(groups, place, strict=True) if at == name for case in group)
        for name in sizes
    }
    _, leaked = compare_sets({name: [by_id[case] for case in cases] for name, cases in found.items()})
    if leaked:
        raise ScenarioError(f"the splits overlap: {leaked[0]}", fix="This is a bug: please report it")
    return found


def _filled(groups: list[list[str]], sizes: Mapping[str, int]) -> list[str]:
    """A first split for each family, the large ones first while there is room."""
    room = dict(sizes)
    place = [""] * len(groups)
    for number in sorted(range(len(groups)), key=lambda i: -len(groups[i])):
        name = max(room, key=lambda x: room[x])
        if room[name] < len(groups[number]):
            raise ScenarioError(
                f"{len(groups[number])} scenarios are alike and fit into no split together: "
                + ", ".join(groups[number][:5]),
                fix="Remove the copies, or choose other sizes",
            )
        room[name] -= len(groups[number])
        place[number] = name
    return place


def _even_out(
    groups: list[list[str]],
    place: list[str],
    labels: list[Counter[Label]],
    sizes: Mapping[str, int],
    rng: random.Random,
) -> None:
    totals = sum(labels, Counter[Label]())
    everyone = sum(sizes.values())
    # What each split has above its share of a label, times everyone: whole numbers, so nothing is rounded.
    above = {name: {x: -totals[x] * size for x in totals} for name, size in sizes.items()}
    for name, own in zip(place, labels, strict=True):
        for x, count in own.items():
            above[name][x] += count * everyone
    for _ in range(_TRIES):
        i, j = rng.randrange(len(groups)), rng.randrange(len(groups))
        a, b = place[i], place[j]
        if a == b or len(groups[i]) != len(groups[j]):
            continue
        gained = labels[j].copy()  # by a, and lost by b
        gained.subtract(labels[i])
        # By twice this the squares of both would grow. None is good enough: drifting along a plateau finds
        # the way down from it.
        if sum(n * (above[a][x] - above[b][x] + n * everyone) for x, n in gained.items()) <= 0:
            place[i], place[j] = b, a
            for x, n in gained.items():
                above[a][x] += n * everyone
                above[b][x] -= n * everyone
