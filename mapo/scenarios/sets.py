"""Scenario sets: sources, and the splits listed in manifests.

A source is a folder of scenario files (TOML), one such file, a folder of EMPA cards or one of its published
splits (`path/to/cards:test`), or one split of a manifest: `builtin:test` of the domain, or
`path/to/splits.json:test`. A manifest lists the scenarios of each
split with the SHA-256 of their files, so that a split is always exactly the same scenarios, or an error.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path

from mapo.domain_folders import DEFAULT, SHIPPED, domain_folder, domain_name, known_folder
from mapo.errors import ScenarioError
from mapo.scenarios.empa_cards import card_files, read_cards
from mapo.scenarios.official import CARD_SPLITS, card_split, changed_cards
from mapo.scenarios.scenario import Scenario, read_scenario
from mapo.untrusted import read_file

BUILTIN = "builtin:"
MANIFEST = "splits.json"
SPLITS = ("train", "validation", "test")

_log = logging.getLogger(__name__)

Manifest = dict[str, dict[str, str]]
"""split -> scenario id -> SHA-256 of its file"""


@dataclass(frozen=True, slots=True)
class ScenarioSet:
    """The content of a source: its scenarios sorted by id, their files, and the problems loaded.

    `errors` are native files that could not be read. For EMPA's cards, which we do not edit, `unreadable` are
    cards that could not be read, and `irregular` are the irregularities of the others, by card.
    """

    scenarios: list[Scenario]
    files: dict[str, Path]
    errors: list[ScenarioError] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    irregular: dict[str, list[str]] = field(default_factory=dict)


def load_scenarios(source: str | Path, domain: str | Path | None = None) -> list[Scenario]:
    """Return the scenarios of a source, sorted by id. Raises ScenarioError for the first invalid file.

    All scenarios belong to one domain: `domain` (by name or folder), or else the domain they name. EMPA cards
    that cannot be read are skipped with a logged warning.
    """
    loaded = read_set(source, domain)
    if loaded.errors:
        first, more = loaded.errors[0], len(loaded.errors) - 1
        advice = f"`mapo scenarios check {source}` lists all {more + 1} invalid files"
        fix = f"{first.fix or 'Correct the file'}; {advice}" if more else first.fix
        raise ScenarioError(first.problem, where=first.where, fix=fix)
    for problem in loaded.unreadable.values():
        _log.warning("skipped a card: %s", problem)
    return loaded.scenarios


def count_scenarios(source: str | Path, domain: str | Path | None = None) -> int:
    """Return the number of scenarios of a source. The published splits of EMPA's cards are not read."""
    name, _, split = str(source).rpartition(":")
    if name and split in CARD_SPLITS and not (name + ":" == BUILTIN or name.endswith(".json")):
        return len(card_split(split))
    return len(load_scenarios(source, domain))


def read_set(source: str | Path, domain: str | Path | None = None) -> ScenarioSet:
    """Return the scenarios of a source together with the problems loaded, instead of raising the first."""
    name = str(source)
    if name.startswith(BUILTIN):
        builtin_domain = domain_name(domain or DEFAULT)
        manifest = domain_folder(builtin_domain) / MANIFEST
        return _read_split(manifest, name.removeprefix(BUILTIN), builtin_domain)
    path, _, split = name.rpartition(":")
    if name.endswith(".json"):
        return _read_split(Path(name), "all", domain)
    if path.endswith(".json"):
        return _read_split(Path(path), split, domain)
    if path and split in CARD_SPLITS and not Path(source).exists():
        loaded = _read_card_split(Path(path), split)
    else:
        loaded = _read_path(Path(source))
    expected = domain_name(domain) if domain else next((s.domain for s in loaded.scenarios), DEFAULT)
    if known_folder(expected) is None:  # a scenario file must not choose the folder whose code is executed
        raise ScenarioError(
            f"there is no domain '{expected}'",
            where=str(source),
            fix=f"Use one of: {', '.join(SHIPPED)}, or pass the domain's folder with --domain",
        )
    if other := next((s for s in loaded.scenarios if s.domain != expected), None):
        raise ScenarioError(
            f"the domain is '{other.domain}', but '{expected}' was requested"
            if domain
            else f"the domain is '{other.domain}', but other scenarios of the set have '{expected}'",
            where=f"{loaded.files[other.id]}, domain",
            fix=f"Use the domain {other.domain}, or another source"
            if domain
            else "All scenarios of a set must have the same domain",
        )
    return loaded


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file."""
    try:
        return hashlib.sha256(read_file(path)).hexdigest()
    except OSError as error:
        raise ScenarioError(f"cannot be read ({error.strerror})", where=str(path)) from error


def read_manifest(path: Path) -> Manifest:
    """Read the splits of a manifest. A scenario may belong to one split only."""
    where, fix = str(path), "Create it with `mapo scenarios split`"
    try:
        data = json.loads(read_file(path))
    except OSError as error:
        raise ScenarioError(
            f"the manifest of splits cannot be read ({error.strerror})", where=where, fix=fix
        ) from error
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"not a readable JSON file ({error})", where=where, fix=fix) from error
    if not isinstance(data, dict) or not data:
        raise ScenarioError("not a JSON object of splits", where=where, fix=fix)
    seen: dict[str, str] = {}
    for split, members in data.items():
        if not isinstance(members, dict) or not all(
            isinstance(x, str) and re.fullmatch(r"[0-9a-f]{64}", x) for x in members.values()
        ):
            raise ScenarioError("not an object of ids and SHA-256 hashes", where=f"{path}, {split}", fix=fix)
        for case in members:
            if case in seen:
                raise ScenarioError(f"{case} is both in {seen[case]} and in {split}", where=where, fix=fix)
            seen[case] = split
    return data


def _read_split(manifest: Path, split: str, domain: str | Path | None) -> ScenarioSet:
    """Read one split, or `all`, of the scenarios next to a manifest. Files must be unchanged since
    the split.
    """
    splits = read_manifest(manifest)
    if split not in splits and split != "all":
        raise ScenarioError(
            f"there is no split '{split}'",
            where=str(manifest),
            fix=f"Use one of: {', '.join([*splits, 'all'])}",
        )
    wanted = {k: v for name, members in splits.items() if split in (name, "all") for k, v in members.items()}
    inner = manifest.parent / "scenarios"
    native = not card_files(manifest.parent) and inner.is_dir()
    loaded = read_set(inner if native else manifest.parent, domain)
    for case, digest in wanted.items():
        if case in loaded.files and file_hash(loaded.files[case]) != digest:
            raise ScenarioError(
                f"the file was changed after {manifest.name} was written",
                where=str(loaded.files[case]),
                fix="Restore the file, or create the split again with `mapo scenarios split`",
            )
    if loaded.errors:
        return loaded
    if missing := [case for case in wanted if case not in loaded.files]:
        raise ScenarioError(
            f"scenario {missing[0]} is missing", where=str(manifest.parent), fix="Restore its file"
        )
    return ScenarioSet(
        [s for s in loaded.scenarios if s.id in wanted],
        {case: loaded.files[case] for case in wanted},
        irregular={case: kinds for case, kinds in loaded.irregular.items() if case in wanted},
    )


def _read_card_split(folder: Path, split: str) -> ScenarioSet:
    """Read a published split of EMPA's cards. Cards whose text differs from the published one are logged."""
    if not folder.is_dir():
        raise ScenarioError(
            "no such folder",
            where=str(folder),
            fix=f"Give the folder of EMPA's cards: CARDS:{split} (docs/scenarios.md)",
        )
    if not card_files(folder):
        raise ScenarioError(
            "the folder contains no EMPA cards",
            where=str(folder),
            fix="Expected cases/script_*.md, as in EMPA's repository; for your own splits give "
            f"{folder / MANIFEST}:{split}",
        )
    loaded, wanted = _read_path(folder), card_split(split)
    if missing := [case for case in wanted if case not in loaded.files]:
        problem = loaded.unreadable.get(missing[0], f"card {missing[0]} is missing")
        raise ScenarioError(
            f"{len(missing)} of the {len(wanted)} cards of the split are missing or unreadable: {problem}",
            where=str(folder),
            fix="Restore them from EMPA's repository",
        )
    changed = changed_cards(split, loaded.files)
    if changed:
        _log.warning(
            "%d of the %d cards in %s differ from the published ones, such as %s: results do not compare",
            len(changed),
            len(wanted),
            folder,
            changed[0],
        )
    irregular = {
        case: [*loaded.irregular.get(case, []), *["text-differs"] * (case in changed)] for case in wanted
    }
    return ScenarioSet(
        [s for s in loaded.scenarios if s.id in wanted],
        {case: loaded.files[case] for case in wanted},
        irregular={case: kinds for case, kinds in irregular.items() if kinds},
    )


def _read_path(path: Path) -> ScenarioSet:
    if path.is_file():
        scenario = read_scenario(path)
        return ScenarioSet([scenario], {scenario.id: path})
    if not path.is_dir():
        raise ScenarioError(
            "no such file or folder",
            where=str(path),
            fix=f"Check the path, or use {BUILTIN}{'|'.join(SPLITS)}|all",
        )
    tomls = sorted(path.glob("*.toml"))
    if tomls:
        return _read_files(tomls)
    if cards := card_files(path):
        card_set = read_cards(path)
        if not card_set.scenarios:
            raise ScenarioError(
                "none of the cards can be read", where=next(iter(card_set.unreadable.values()))
            )
        scenarios = sorted(card_set.scenarios, key=lambda s: s.id)
        files = {x.stem: x for x in cards if x.stem not in card_set.unreadable}
        return ScenarioSet(scenarios, files, [], card_set.unreadable, card_set.irregular)
    raise ScenarioError(
        "the folder contains no scenarios",
        where=str(path),
        fix="Expected *.toml (docs/scenarios.md) or EMPA's cases/*.md",
    )


def _read_files(paths: list[Path]) -> ScenarioSet:
    known: dict[str, Scenario] = {}
    files: dict[str, Path] = {}
    errors = []
    for path in paths:
        try:
            scenario = read_scenario(path)
        except ScenarioError as error:  # continue, so that all problems are reported at once
            errors.append(error)
            continue
        if scenario.id in known:
            problem = f"the id '{scenario.id}' is already used by {files[scenario.id]}"
            errors.append(ScenarioError(problem, where=f"{path}, id", fix="Ids must be unique within a set"))
            continue
        known[scenario.id], files[scenario.id] = scenario, path
    return ScenarioSet([known[case] for case in sorted(known)], files, errors)
