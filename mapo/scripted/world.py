"""Test worlds: people who follow a script, and who judges them. Scores from them carry a notice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SCRIPTED = "scripted"


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
        return World(domain, str(cast.get("judge") or SCRIPTED))
    return None


def configured_world(agents: str, domain: str, judge: str | None) -> World | None:
    """Return the test world of settings: `roles.agents`, domain, and the judge's model if there is one."""
    if agents != SCRIPTED:
        return None
    return World(domain, Path((judge or SCRIPTED).removeprefix("local:")).name)


def world_notice(worlds: Sequence[World]) -> str:
    """Return the notice above scores of these worlds."""
    judges = {world.judge == SCRIPTED for world in worlds}
    if judges == {False}:
        roles = "user and director are"
    elif judges == {True, False}:
        roles = "user and director, and for some scores the judge, are"
    else:
        roles = "user, director and judge are"
    return scripted_notice([world.domain for world in worlds], roles)


def scripted_notice(domains: Sequence[str], roles: str) -> str:
    """Return the notice for scores of these domains. `roles` says who is scripted."""
    names = " or ".join(dict.fromkeys(Path(domain).name for domain in domains))
    return (
        f"Test world, not a measure of {names or 'conversation'}: {roles} scripted (docs/scripted-world.md)."
    )
