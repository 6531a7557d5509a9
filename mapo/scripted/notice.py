"""The notice next to every score that was made with scripted roles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def scripted_world(domains: Sequence[str]) -> str:
    """Return the notice for scores of these domains, given by name or folder."""
    named = " or ".join(dict.fromkeys(Path(domain).name for domain in domains))
    return (
        "User, director and judge were plain code: a test world, no measure of real "
        f"{named or 'conversation'} (docs/scripted-world.md)."
    )
