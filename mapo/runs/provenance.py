"""Where a run came from: the command line, the git commit of mapo's checkout, and the versions used."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import join
from typing import Any

import mapo

KEYS = ("command", "git_commit", "versions")
"""Manifest keys that describe one start of a run. They may differ when it is resumed."""


def provenance() -> dict[str, Any]:
    """Return the manifest entries named in `KEYS`. The commit is absent outside a git checkout."""
    commit = git_commit()
    return {
        "command": command_line(),
        **({"git_commit": commit} if commit else {}),
        "versions": {"python": platform.python_version(), "mapo": mapo.__version__, **_installed("openai")},
    }


def command_line() -> str:
    """Return the command that started this process, as one would type it."""
    program = Path(sys.argv[0])
    name = "mapo" if program.name in ("mapo", "__main__.py") else program.name
    return join([name, *sys.argv[1:]])


def git_commit() -> str:
    """Return the commit of the checkout that mapo runs from, marked if files were modified; else ""."""
    root = Path(mapo.__file__).resolve().parent.parent
    if not (root / ".git").exists():  # installed from a wheel, perhaps inside another repository
        return ""
    commit, changes = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain", "-uno")
    return f"{commit} (modified)" if commit and changes else commit


def _git(root: Path, *arguments: str) -> str:
    try:
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _installed(*packages: str) -> dict[str, str]:
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
