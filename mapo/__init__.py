"""MAPO: train language models to hold long, helpful conversations, and evaluate them.

Public names are imported on first use, so `import mapo` is fast and never imports torch. Start reading at
`mapo/types.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mapo.advantage import Advantages, advantages
    from mapo.errors import (
        AnswerError,
        EndpointError,
        InputError,
        JudgeError,
        MapoError,
        RecordError,
        RewardError,
        RubricError,
        ScenarioError,
        StoreError,
    )
    from mapo.measure.potential import Trajectory
    from mapo.measure.rubric import Rubric
    from mapo.models.chat import Answer, Chat, Request
    from mapo.sandbox.cast import Cast, Job
    from mapo.sandbox.rollout import Rules, play, play_all
    from mapo.scenarios.scenario import Scenario
    from mapo.types import (
        AxisMarks,
        Dialogue,
        Direction,
        Ending,
        Levels,
        Mark,
        Message,
        PotentialState,
        Reply,
        StopReason,
        Turn,
    )

__version__ = "0.2.0"

_NAMES = {
    "mapo.advantage": "Advantages advantages",
    "mapo.errors": """AnswerError EndpointError InputError JudgeError MapoError RecordError RewardError
                      RubricError ScenarioError StoreError""",
    "mapo.sandbox.cast": "Cast Job",
    "mapo.models.chat": "Answer Chat Request",
    "mapo.measure.potential": "Trajectory",
    "mapo.sandbox.rollout": "Rules play play_all",
    "mapo.measure.rubric": "Rubric",
    "mapo.scenarios.scenario": "Scenario",
    "mapo.types": """AxisMarks Dialogue Direction Ending Levels Mark Message PotentialState Reply
                     StopReason Turn""",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Advantages",
    "Answer",
    "AnswerError",
    "AxisMarks",
    "Cast",
    "Chat",
    "Dialogue",
    "Direction",
    "Ending",
    "EndpointError",
    "InputError",
    "Job",
    "JudgeError",
    "Levels",
    "MapoError",
    "Mark",
    "Message",
    "PotentialState",
    "RecordError",
    "Reply",
    "Request",
    "RewardError",
    "Rubric",
    "RubricError",
    "Rules",
    "Scenario",
    "ScenarioError",
    "StopReason",
    "StoreError",
    "Trajectory",
    "Turn",
    "__version__",
    "advantages",
    "play",
    "play_all",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mapo' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
