"""EMPA's published cards: which of them are for training and which are the official test, checked by hash.

`data/empa_cards.json` lists ids and hashes, no text: the cards script_001 to script_727, of which 30 are the
official test cases and 697 are left for training. The authors trained on all 727, so their scores include
training on the test set (docs/scenarios.md). Here that takes `scenarios.contaminated = true`, and every
result of such a run is marked.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.scenarios.empa_cards import OFFICIAL, official_cases
from mapo.scenarios.overlap import normalised
from mapo.scenarios.scenario import Scenario, read_text

CARDS = Path(str(files("mapo") / "data" / "empa_cards.json"))
PUBLISHED = "published-727"
CARD_SPLITS = ("train", "test", PUBLISHED)
"""Splits of a folder of EMPA's cards, as in CARDS:train."""
TRAINED_ON_TEST = "Trained on test scenarios"

_log = logging.getLogger(__name__)


def card_split(split: str) -> dict[str, str]:
    """Return the cards of a split: id -> hash of the card's text."""
    known = _manifest()
    return known["train"] | known["test"] if split == PUBLISHED else dict(known[split])


def card_hash(text: str) -> str:
    """Return the SHA-256 of a card's text, without differences in line ends and trailing blanks."""
    lines = [line.rstrip() for line in text.removeprefix("\ufeff").splitlines()]
    return hashlib.sha256("\n".join(lines).strip().encode()).hexdigest()


def content_hash(scenario: Scenario) -> str:
    """Return the SHA-256 of what a scenario says about the person, whatever its file format, id and name.

    Stages are left out: those of a card are in another file, which may be missing.
    """
    memories = [line for memory in scenario.memories for line in memory.says]
    parts = [scenario.topic, scenario.wants_to_say, scenario.hopes_for, *memories]
    return hashlib.sha256(normalised("\n".join(parts)).encode()).hexdigest()


def changed_cards(split: str, paths: dict[str, Path]) -> list[str]:
    """Return the ids of a split whose text differs from the published one."""
    hashes = card_split(split)
    return [case for case, digest in hashes.items() if card_hash(read_text(paths[case])) != digest]


def official_ids(source: str | Path) -> list[str]:
    """Return the ids of the official test cases: from the folder of cards if it lists them, else from the
    package."""
    shipped, folder = list(card_split("test")), Path(str(source))
    if not (folder / OFFICIAL).is_file():
        return shipped
    listed = official_cases(folder)
    if set(listed) != set(shipped):
        _log.warning("%s does not list the 30 published cases", folder / OFFICIAL)
    return listed


def choose_cases(scenarios: Sequence[Scenario], cases: str | None, source: str) -> list[Scenario]:
    """Return the scenarios that `cases` names: "a,b,c", "official", or None for all."""
    if cases is None:
        return list(scenarios)
    official = cases.strip() == "official"
    wanted = official_ids(source) if official else [case.strip() for case in cases.split(",")]
    if missing := sorted(set(wanted) - {s.id for s in scenarios}):
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise InputError(
            f"there is no scenario {', '.join(missing[:5])}{more}",
            where=source,
            fix="Give the folder of EMPA's cards as scenarios"
            if official
            else f"List the scenarios with: mapo scenarios list {source}",
        )
    return [s for s in scenarios if s.id in wanted]


def official_test_cards(scenarios: Iterable[Scenario]) -> list[str]:
    """Return the ids of the scenarios that are official EMPA test cards, by content or, in Chinese, by id."""
    known = _manifest()
    contents, ids = set(known["test_content"].values()), set(known["test"])
    return sorted(
        s.id for s in scenarios if content_hash(s) in contents or (s.id in ids and s.language == "zh")
    )


def trained_on_test(ids: object) -> str:
    """Return the notice for a policy that was trained on the test scenarios `ids`, as manifests list them."""
    if not isinstance(ids, list) or not ids:
        return ""
    return (
        f"{TRAINED_ON_TEST}: its training set contains {len(ids)} of the scenarios it is tested on, so its "
        "scores do not show how it does on new ones."
    )


@lru_cache
def _manifest() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(CARDS.read_text(encoding="utf-8"))
    return data
