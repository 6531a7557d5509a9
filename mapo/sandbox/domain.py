"""Loads the Python code of a domain: its scripted roles and policies.

A domain is the folder `mapo/domains/NAME/`, or any other folder given by its path (`domain_folders.py`). It
contains rubric.toml, scenarios/*.toml, splits.json and prompts/*.md. To be played without models it also has
scripted.py (`scripted_cast`, optionally `check_cues`) and policies.py (`scripted_policy`, `POLICIES`). No
code outside the folder depends on what the domain is about. The Python files of a folder given by its path
are executed, so only use folders that you trust.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from importlib import import_module
from types import ModuleType

from mapo.domain_folders import SHIPPED, domain_folder, domain_name
from mapo.errors import InputError, ScenarioError
from mapo.sandbox.cast import Casting, Job, Policy
from mapo.scenarios.scenario import Scenario


def scripted_cast(domain: str) -> Casting:
    """Return the scripted roles of a domain."""
    casting: Casting = _module(domain, "scripted").scripted_cast
    return casting


def check_scripted(scenarios: Collection[Scenario], domain: str, fix: str) -> None:
    """Raise InputError, with `fix`, unless the scripted roles of a domain can play all scenarios."""
    casting, unplayable = scripted_cast(domain), []
    for scenario in scenarios:
        try:
            casting(Job(scenario, scenario.id))
        except ScenarioError:
            unplayable.append(scenario.id)
    if unplayable:
        raise InputError(
            f"scripted roles cannot play {len(unplayable)} of {len(scenarios)} scenarios "
            f"(such as {unplayable[0]})",
            fix=fix,
        )


def scripted_policy(domain: str, name: str) -> Policy:
    """Return one of a domain's scripted policies."""
    policy: Policy = _module(domain, "policies").scripted_policy(name)
    return policy


def scripted_policies(domain: str) -> tuple[str, ...]:
    """Return the names of a domain's scripted policies."""
    return tuple(_module(domain, "policies").POLICIES)


def check_cues(domain: str, scenario: Scenario) -> list[str]:
    """Return the problems that a domain finds in a scenario's cues, empty for a domain without scripted
    roles.
    """
    if not (domain_folder(domain) / "scripted.py").is_file():
        return []
    check = getattr(_module(domain, "scripted"), "check_cues", None)
    return list(check(scenario)) if check else []


_MISSING = {
    "scripted": (
        "it has no scripted user, director and judge",
        "Use models for its roles (--agents llm), or write the file (docs/own-domain.md)",
    ),
    "policies": (
        "it has no scripted policies, so scripted:NAME cannot be used",
        "Use a model, or write the file (docs/own-domain.md)",
    ),
}
"""What a domain without this file lacks, and how to fix it."""


def _module(domain: str, part: str) -> ModuleType:
    folder, name = domain_folder(domain), domain_name(domain)
    if not (folder / f"{part}.py").is_file():
        problem, fix = _MISSING[part]
        raise InputError(f"domain '{name}' has no {part}.py: {problem}", where=str(folder), fix=fix)
    return import_module(f"{_package(name)}.{part}")


def _package(name: str) -> str:
    """Return the package name of a domain. For a folder given by its path, create a package for it."""
    if name in SHIPPED:
        return f"mapo.domains.{name}"
    package = "mapo_domain_" + re.sub(r"\W", "_", name)
    if package not in sys.modules:
        module = ModuleType(package, f"The domain '{name}'.")
        module.__path__ = [str(domain_folder(name))]
        sys.modules[package] = module
    return package
