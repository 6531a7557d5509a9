"""Test worlds: people who follow a script, and who judges them. Scores from them carry a notice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mapo.domain_folders import SHIPPED_JUDGE

SCRIPTED = "scripted"
_SHIPPED_TEXT = "a small trained model that comes with mapo"


@dataclass(frozen=True, slots=True)
class World:
    """The scripted people and director of a domain, and a judge. Scores compare within one world only."""

    domain: str
    """Name or folder."""
    judge: str = SCRIPTED
    """`scripted`, or the name of the model that judges."""


def world_of(domain: str, cast: object) -> World | None:
    """Return the test world of a cast as in records and manifests; None if its people are models."""
    if cast == SCRIPTED:
        return World(domain)
    if isinstance(cast, Mapping) and cast.get("user") == cast.get("director") == SCRIPTED:
        return World(domain, _judge_name(cast.get("judge")))
    return None


def configured_world(agents: str, domain: str, judge: str | None) -> World | None:
    """Return the test world of settings: `roles.agents`, domain, and the judge's model if there is one."""
    return World(domain, _judge_name(judge)) if agents == SCRIPTED else None


def _judge_name(judge: object) -> str:
    """Return a judge's name in records. Settings and manifests have local:FOLDER for a local one."""
    name = str(judge or SCRIPTED)
    return Path(name.removeprefix("local:")).name if name.startswith("local:") else name


def world_notice(worlds: Sequence[World]) -> str:
    """Return the notice above scores of these worlds."""
    judges = {world.judge for world in worlds} or {SCRIPTED}
    if judges == {SCRIPTED}:
        roles = "user, director and judge are scripted"
    elif SCRIPTED in judges:
        roles = "user and director, and for some scores the judge, are scripted"
    else:
        roles = "user and director are scripted"
    if SHIPPED_JUDGE in judges:
        some = "" if judges == {SHIPPED_JUDGE} else "for some scores "
        roles += f", and {some}the judge is {_SHIPPED_TEXT}"
    return scripted_notice([world.domain for world in worlds], roles)


def scripted_notice(domains: Sequence[str], roles: str) -> str:
    """Return the notice for scores of these domains. `roles` says who is scripted."""
    names = " or ".join(dict.fromkeys(Path(domain).name for domain in domains))
    return f"Test world, not a measure of {names or 'conversation'}: {roles} (docs/scripted-world.md)."
