"""Finds domain folders: shipped domains by name, others by path.

A folder with a `rubric.toml` is a domain. A domain outside the package is first given by its path and from
then on known by the name in its rubric, which scenarios and records use. Finding a domain reads only its
rubric; its Python files are executed when its scripted roles are loaded (`mapo.sandbox.domain`).
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from mapo.errors import ScenarioError
from mapo.untrusted import parse_toml, read_file

DEFAULT = "empathy"
"""The default domain."""

RUBRIC = "rubric.toml"
MAX_BYTES = 1 << 20

_HOME = Path(str(files("mapo") / "domains"))
SHIPPED = tuple(sorted(file.parent.name for file in _HOME.glob(f"*/{RUBRIC}")))
"""Names of the domains that come with the package."""
SHIPPED_JUDGE = "pocket-judge"
"""The judge model that comes with the package, for the scripted people of the default domain."""

_by_path: dict[str, Path] = {}


def domain_folder(domain: str | Path) -> Path:
    """Return the folder of a domain given by name or path."""
    name = str(domain)
    if name in SHIPPED:
        return _HOME / name
    if name in _by_path:
        return _by_path[name]
    folder = Path(domain)
    if not (folder / RUBRIC).is_file():
        known = ", ".join([*SHIPPED, *_by_path])
        raise ScenarioError(
            f"there is no domain '{name}'",
            fix=f"Use one of: {known}, or the path of a folder with a {RUBRIC}",
        )
    _register(folder.resolve())
    return folder.resolve()


def domain_name(domain: str | Path) -> str:
    """Return the name that scenarios and records use for a domain."""
    folder = domain_folder(domain)
    return folder.name if folder.parent == _HOME else _rubric_name(folder)


def known_folder(name: str) -> Path | None:
    """Return the folder of a shipped domain, or of one used before by its path; None for other names."""
    return domain_folder(name) if name in SHIPPED or name in _by_path else None


def _register(folder: Path) -> None:
    name = _rubric_name(folder)
    if folder.parent == _HOME:
        return
    other = _HOME / name if name in SHIPPED else _by_path.setdefault(name, folder)
    if other != folder:
        raise ScenarioError(
            f"the domain name '{name}' is already used by {other}",
            where=f"{folder / RUBRIC}, name",
            fix="Choose another name in the rubric and in the scenarios",
        )


def _rubric_name(folder: Path) -> str:
    where = str(folder / RUBRIC)
    try:
        name = _parse_toml(read_file(folder / RUBRIC, MAX_BYTES).decode("utf-8")).get("name")
    except (OSError, ValueError) as error:
        raise ScenarioError(f"not a readable TOML file ({error})", where=where) from error
    if not isinstance(name, str) or not name:
        raise ScenarioError("the rubric has no name", where=where, fix="See docs/own-domain.md")
    return name


@lru_cache(maxsize=16)
def _parse_toml(text: str) -> dict[str, Any]:
    return parse_toml(text)
