"""A domain is a folder of its own: rubric, scenarios, prompts, roles and policies of plain code.

`mapo/domains/NAME/` holds rubric.toml, scenarios/*.toml, prompts/*.md, and, for playing without models,
scripted.py (`scripted_cast`) and policies.py (`scripted_policy`, `POLICIES`). Nothing outside the folder
knows what a domain is about.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from mapo.errors import InputError
from mapo.sandbox.cast import Casting, Policy


def scripted_cast(domain: str) -> Casting:
    """The model-free roles of a domain."""
    casting: Casting = _module(domain, "scripted").scripted_cast
    return casting


def scripted_policy(domain: str, name: str) -> Policy:
    """One of a domain's model-free policies."""
    policy: Policy = _module(domain, "policies").scripted_policy(name)
    return policy


def _module(domain: str, part: str) -> ModuleType:
    if not domain.isidentifier():
        raise InputError(f"'{domain}' is no name of a domain", fix="See mapo/domains/")
    try:
        return import_module(f"mapo.domains.{domain}.{part}")
    except ModuleNotFoundError as error:
        if error.name and not error.name.startswith("mapo.domains"):
            raise
        raise InputError(
            f"domain '{domain}' has no {part} roles", fix="Use models for its roles: --agents llm"
        ) from None
