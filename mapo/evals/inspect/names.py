"""Names of the tasks in inspect's registry."""

from __future__ import annotations

from pathlib import Path


def task_name(name: str) -> str:
    """Return the name to register a task under, so that it is found as mapo/NAME.

    Inspect adds the package's name itself, except for an editable install whose distribution has another
    name than the package.
    """
    installed = "site-packages" in Path(__file__).parts
    return name if installed else f"mapo/{name}"
