"""Where a domain lies: one that is shipped by its name, any other by its folder.

A folder with a `rubric.toml` is a domain. One outside the package is named by its path the first time and
known by its rubric's name from then on, because that is what scenarios and records call it. Looking a
domain up reads its rubric and nothing else; its Python files run when its roles are asked for (`domain.py`).
"""

from __future__ import annotations

import tomllib
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from mapo.errors import ScenarioError

DEFAULT = "empathy"
"""The domain where nobody named one."""

RUBRIC = "rubric.toml"

_HOME = Path(str(files("mapo") / "domains"))
SHIPPED = tuple(sorted(found.parent.name for found in _HOME.glob(f"*/{RUBRIC}")))
"""The domains that come with the package: each folder with a rubric is one."""

_outside: dict[str, Path] = {}


def domain_folder(domain: str | Path) -> Path:
    """Where a domain keeps its rubric, scenarios and manifest: by its name, or by the folder itself."""
    name = str(domain)
    if name in SHIPPED:
        return _HOME / name
    if name in _outside:
        return _outside[name]
    folder = Path(domain)
    if not (folder / RUBRIC).is_file():
        known = ", ".join([*SHIPPED, *_outside])
        raise ScenarioError(
            f"no domain '{name}'", fix=f"Choose one of: {known}, or give the path of a folder with a {RUBRIC}"
        )
    _remember(folder.resolve())
    return folder.resolve()


def domain_name(domain: str | Path) -> str:
    """What scenarios and records call a domain."""
    folder = domain_folder(domain)
    return folder.name if folder.parent == _HOME else _name_in(folder)


def known_folder(name: str) -> Path | None:
    """The folder of a domain that is shipped, or was named before by its path."""
    return domain_folder(name) if name in SHIPPED or name in _outside else None


def _remember(folder: Path) -> None:
    name = _name_in(folder)
    if folder.parent == _HOME:
        return
    other = _HOME / name if name in SHIPPED else _outside.setdefault(name, folder)
    if other != folder:
        raise ScenarioError(
            f"the domain '{name}' is in {other} already",
            where=f"{folder / RUBRIC}, name",
            fix="Give the rubric, and the domain of its scenarios, a name of their own",
        )


def _name_in(folder: Path) -> str:
    where = str(folder / RUBRIC)
    try:
        name = _parsed((folder / RUBRIC).read_text(encoding="utf-8")).get("name")
    except (OSError, ValueError, RecursionError) as error:
        raise ScenarioError(f"not a readable TOML file ({error})", where=where) from error
    if not isinstance(name, str) or not name:
        raise ScenarioError("has no name", where=where, fix="See docs/own-domain.md")
    return name


@lru_cache(maxsize=16)
def _parsed(text: str) -> dict[str, Any]:
    return tomllib.loads(text)
