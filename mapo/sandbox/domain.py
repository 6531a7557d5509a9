"""A domain is a folder of its own: rubric, scenarios, prompts, roles and policies of plain code.

`mapo/domains/NAME/`, or any folder that is named by its path (`domain_folders.py`), holds rubric.toml,
scenarios/*.toml, splits.json, prompts/*.md, and, for playing without models, scripted.py (`scripted_cast`,
and `check_cues` where it asks something of a scenario's cues) and policies.py (`scripted_policy`,
`POLICIES`). Nothing outside the folder knows what a domain is about. The Python files of a folder that is
named are run: name none that you would not run yourself.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from types import ModuleType

from mapo.domain_folders import SHIPPED, domain_folder, domain_name
from mapo.errors import InputError
from mapo.sandbox.cast import Casting, Policy
from mapo.scenarios.scenario import Scenario


def scripted_cast(domain: str) -> Casting:
    """The model-free roles of a domain."""
    casting: Casting = _module(domain, "scripted").scripted_cast
    return casting


def scripted_policy(domain: str, name: str) -> Policy:
    """One of a domain's model-free policies."""
    policy: Policy = _module(domain, "policies").scripted_policy(name)
    return policy


def scripted_policies(domain: str) -> tuple[str, ...]:
    """The names of a domain's model-free policies."""
    return tuple(_module(domain, "policies").POLICIES)


def check_cues(domain: str, scenario: Scenario) -> list[str]:
    """What a domain's scripted roles miss in a scenario's cues, as text; nothing where it has none."""
    if not (domain_folder(domain) / "scripted.py").is_file():
        return []
    check = getattr(_module(domain, "scripted"), "check_cues", None)
    return list(check(scenario)) if check else []


_MISSING = {
    "scripted": (
        "no user, director and judge of plain code",
        "Use models for its roles (--agents llm), or write it: docs/own-domain.md",
    ),
    "policies": (
        "no policies of plain code, so none can be named with scripted:NAME",
        "Name a model, or write it: docs/own-domain.md",
    ),
}
"""What a domain without this file lacks, and what to do about it."""


def _module(domain: str, part: str) -> ModuleType:
    folder, name = domain_folder(domain), domain_name(domain)
    if not (folder / f"{part}.py").is_file():
        told, fix = _MISSING[part]
        raise InputError(f"domain '{name}' has no {part}.py: {told}", where=str(folder), fix=fix)
    return import_module(f"{_package(name)}.{part}")


def _package(name: str) -> str:
    """A shipped domain's package; for another one, a package made of its folder as it lies there."""
    if name in SHIPPED:
        return f"mapo.domains.{name}"
    package = "mapo_domain_" + re.sub(r"\W", "_", name)
    if package not in sys.modules:
        made = ModuleType(package, f"The domain '{name}'.")
        made.__path__ = [str(domain_folder(name))]
        sys.modules[package] = made
    return package
