"""The models that come with the package."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
POCKET = _HERE / "pocket"
SHIPPED = {
    "pocket": POCKET,
}
"""The folders of shipped models by name."""


def local_folder(source: str) -> Path:
    """Return the folder that `source` names: a shipped model's, or a path."""
    return SHIPPED.get(source) or Path(source).expanduser()
