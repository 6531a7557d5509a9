"""MAPO: train language models to hold long conversations that help, and see that they do.

The public names below are imported on first use, so `import mapo` costs next to nothing and never
imports torch. Start reading at `mapo/types.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mapo.advantage import Advantages, advantages
    from mapo.errors import InputError, MapoError, RecordError, RewardError, RubricError, StoreError
    from mapo.sandbox.potential import Trajectory
    from mapo.sandbox.rubric import Rubric
    from mapo.types import (
        AxisMarks,
        Dialogue,
        Ending,
        Levels,
        Mark,
        Message,
        PotentialState,
        Reply,
        StopReason,
        Turn,
    )

__version__ = "0.1.0"

_HOME = {
    **dict.fromkeys(("Advantages", "advantages"), "mapo.advantage"),
    **dict.fromkeys(
        ("InputError", "MapoError", "RecordError", "RewardError", "RubricError", "StoreError"), "mapo.errors"
    ),
    "Trajectory": "mapo.sandbox.potential",
    "Rubric": "mapo.sandbox.rubric",
    **dict.fromkeys(
        (
            "AxisMarks",
            "Dialogue",
            "Ending",
            "Levels",
            "Mark",
            "Message",
            "PotentialState",
            "Reply",
            "StopReason",
            "Turn",
        ),
        "mapo.types",
    ),
}

__all__ = [
    "Advantages",
    "AxisMarks",
    "Dialogue",
    "Ending",
    "InputError",
    "Levels",
    "MapoError",
    "Mark",
    "Message",
    "PotentialState",
    "RecordError",
    "Reply",
    "RewardError",
    "Rubric",
    "RubricError",
    "StopReason",
    "StoreError",
    "Trajectory",
    "Turn",
    "__version__",
    "advantages",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mapo' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
