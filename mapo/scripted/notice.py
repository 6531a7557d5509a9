"""The notice above every score that was measured with scripted roles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PEOPLE = "user and director are"
"""The scripted roles where a model judges scripted people."""


def scripted_world(domains: Sequence[str], roles: str = "user, director and judge are") -> str:
    """Return the notice for scores of these domains, by name or folder. `roles` says who is scripted."""
    names = " or ".join(dict.fromkeys(Path(domain).name for domain in domains))
    return (
        f"Test world, not a measure of {names or 'conversation'}: {roles} scripted (docs/scripted-world.md)."
    )
