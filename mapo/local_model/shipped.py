"""The models that come with the package."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
POCKET = _HERE / "pocket"
SHIPPED = {
    "pocket": POCKET,
    "pocket-judge": _HERE / "pocket_judge",
    "pocket-judge-2": _HERE / "pocket_judge_2",
}
"""The folders of the embedded policy and of two judges of its replies, by name."""


def local_folder(source: str) -> Path:
    """Return the folder that `source` names: a shipped model's, or a path."""
    return SHIPPED.get(source) or Path(source).expanduser()
