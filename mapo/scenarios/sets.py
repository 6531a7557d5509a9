"""Sets of scenarios: where they lie, how they are named, and which belong to which split.

A source is a folder of our TOML files, one such file, a folder of EMPA's cards, or one split of a manifest:
`builtin:test` of the domain, or `path/to/splits.json:test`. A manifest names its scenarios with the
SHA-256 of their files, so that a split is the same scenarios to the last byte, or an error.
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
from mapo.scenarios.scenario import Scenario, read_scenario

BUILTIN = "builtin:"
MANIFEST = "splits.json"
SPLITS = ("train", "validation", "test")

_log = logging.getLogger(__name__)

Manifest = dict[str, dict[str, str]]
"""split -> scenario id -> SHA-256 of its file"""


@dataclass(frozen=True, slots=True)
class ScenarioSet:
    """What a source holds: its scenarios in the order of their ids, their files, and what is wrong.

    `errors` are files of ours that gave no scenario. Of EMPA's cards, which are nobody's to mend,
    `unreadable` are those that gave none and `irregular` what the others do differently, by card.
    """

    scenarios: list[Scenario]
    files: dict[str, Path]
    errors: list[ScenarioError] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    irregular: dict[str, list[str]] = field(default_factory=dict)


def load_scenarios(source: str | Path, domain: str | Path | None = None) -> list[Scenario]:
    """The scenarios of a source, sorted by id; raises ScenarioError for the first file that is not one.

    All are of one domain: the one asked for (by name or folder), else the one they name themselves.
    EMPA's cards that cannot be read are left out with a logged warning.
    """
    found = read_set(source, domain)
    if found.errors:
        more = len(found.errors) - 1
        first = found.errors[0]
        raise ScenarioError(
            first.problem,
            where=first.where,
            fix=f"{first.fix or 'Put it right'}; {more} more such: `mapo scenarios check {source}` lists them"
            if more
            else first.fix,
        )
    for problem in found.unreadable.values():
        _log.warning("card left out: %s", problem)
    return found.scenarios


def read_set(source: str | Path, domain: str | Path | None = None) -> ScenarioSet:
    """Like `load_scenarios`, but with what is wrong listed beside what can be used."""
    name = str(source)
    if name.startswith(BUILTIN):
        own = domain_name(domain or DEFAULT)
        return _read_split(domain_folder(own) / MANIFEST, name.removeprefix(BUILTIN), own)
    path, _, split = name.rpartition(":")
    if name.endswith(".json"):
        return _read_split(Path(name), "all", domain)
    if path.endswith(".json"):
        return _read_split(Path(path), split, domain)
    found = _read_path(Path(source))
    asked = domain_name(domain) if domain else next((s.domain for s in found.scenarios), DEFAULT)
    if known_folder(asked) is None:  # a file may name a domain, but not the folder whose code is run for it
        raise ScenarioError(
            f"no domain '{asked}'",
            where=str(source),
            fix=f"{', '.join(SHIPPED)}, or give its folder: --domain",
        )
    if wrong := [s for s in found.scenarios if s.domain != asked]:
        raise ScenarioError(
            f"domain is '{wrong[0].domain}', but '{asked}' was asked for"
            if domain
            else f"domain is '{wrong[0].domain}', beside scenarios of '{asked}'",
            where=f"{found.files[wrong[0].id]}, domain",
            fix=f"Choose the domain {wrong[0].domain}, or another source"
            if domain
            else "A set is of one domain",
        )
    return found


def file_hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ScenarioError(f"cannot be read ({error.strerror})", where=str(path)) from error


def read_manifest(path: Path) -> Manifest:
    """A manifest's splits; an id stands in one of them only."""
    where, fix = str(path), "Write it with `mapo scenarios split`"
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ScenarioError(f"no manifest of splits here ({error.strerror})", where=where, fix=fix) from error
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"not a readable JSON file ({error})", where=where, fix=fix) from error
    if not isinstance(data, dict) or not data:
        raise ScenarioError("not an object of splits", where=where, fix=fix)
    seen: dict[str, str] = {}
    for split, members in data.items():
        if not isinstance(members, dict) or not all(
            isinstance(x, str) and re.fullmatch(r"[0-9a-f]{64}", x) for x in members.values()
        ):
            raise ScenarioError("not an object of ids and SHA-256 sums", where=f"{path}, {split}", fix=fix)
        for case in members:
            if case in seen:
                raise ScenarioError(f"{case} is in {seen[case]} and in {split}", where=where, fix=fix)
            seen[case] = split
    return data


def _read_split(manifest: Path, split: str, domain: str | Path | None) -> ScenarioSet:
    """One split, or `all`, of the scenarios beside the manifest; each must be as it was when it was split."""
    splits = read_manifest(manifest)
    if split not in splits and split != "all":
        raise ScenarioError(
            f"no split '{split}'", where=str(manifest), fix=f"Choose one of: {', '.join([*splits, 'all'])}"
        )
    wanted = {k: v for name, members in splits.items() if split in (name, "all") for k, v in members.items()}
    inner = manifest.parent / "scenarios"
    own = not card_files(manifest.parent) and inner.is_dir()
    found = read_set(inner if own else manifest.parent, domain)
    for case, digest in wanted.items():
        if case in found.files and file_hash(found.files[case]) != digest:
            raise ScenarioError(
                f"changed since {manifest.name} was written",
                where=str(found.files[case]),
                fix="Restore the file, or make the split anew with `mapo scenarios split`",
            )
    if found.errors:
        return found
    if missing := [case for case in wanted if case not in found.files]:
        raise ScenarioError(f"scenario {missing[0]} is missing", where=str(manifest.parent), fix="Restore it")
    return ScenarioSet(
        [s for s in found.scenarios if s.id in wanted],
        {case: found.files[case] for case in wanted},
        irregular={case: kinds for case, kinds in found.irregular.items() if case in wanted},
    )


def _read_path(path: Path) -> ScenarioSet:
    if path.is_file():
        scenario = read_scenario(path)
        return ScenarioSet([scenario], {scenario.id: path})
    if not path.is_dir():
        raise ScenarioError(
            "no such file or folder", where=str(path), fix=f"Give one, or {BUILTIN}{'|'.join(SPLITS)}|all"
        )
    tomls = sorted(path.glob("*.toml"))
    if tomls:
        return _read_files(tomls)
    if cards := card_files(path):
        found = read_cards(path)
        if not found.scenarios:
            raise ScenarioError("no card here can be read", where=next(iter(found.unreadable.values())))
        scenarios = sorted(found.scenarios, key=lambda s: s.id)
        where = {x.stem: x for x in cards if x.stem not in found.unreadable}
        return ScenarioSet(scenarios, where, [], found.unreadable, found.irregular)
    raise ScenarioError(
        "no scenarios here", where=str(path), fix="Expected *.toml (docs/scenarios.md) or EMPA's cases/*.md"
    )


def _read_files(paths: list[Path]) -> ScenarioSet:
    known: dict[str, Scenario] = {}
    where: dict[str, Path] = {}
    errors = []
    for path in paths:
        try:
            scenario = read_scenario(path)
        except ScenarioError as error:  # the rest is still worth reading: all faults are told at once
            errors.append(error)
            continue
        if scenario.id in known:
            problem = f"id '{scenario.id}' is taken by {where[scenario.id]}"
            errors.append(ScenarioError(problem, where=f"{path}, id", fix="Ids are unique in a set"))
            continue
        known[scenario.id], where[scenario.id] = scenario, path
    return ScenarioSet([known[case] for case in sorted(known)], where, errors)
