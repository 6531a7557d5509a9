"""The vocabulary. Read this first.

A *scenario* describes a person. A *dialogue* is one conversation of a policy with that person: a list
of *turns*, each a user message, the policy's reply, and what the judge made of the reply. The judge
fills in *levels*; a rubric turns them into a step; steps move the *potential state*, a vector of
deficits whose origin means "nothing more needed"; movement becomes the turn's *reward*.

Plain data only: no behaviour beyond what a reader would compute in their head, no imports from the
rest of the package. Records on disk are these types as JSON (`store.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[_T]) -> type[_T]:
    """A frozen dataclass; read from a file, it refuses unknown keys and numbers that are not finite."""
    cls.__pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}  # type: ignore[attr-defined]
    return dataclass(frozen=True, slots=True)(cls)


Vector = tuple[float, ...]
"""One number per axis of the rubric, in the rubric's order."""


@record
class Message:
    role: Literal["system", "user", "assistant"]
    content: str


@record
class Reply:
    """What a policy answered. The ids are there when it was sampled locally.

    `prompt_ids` is what was appended to the context since the previous reply (template marks and the
    user's turn), so a dialogue's ids are all prompt_ids and token_ids in order, never tokenised again.
    Where the chat template rewrites earlier turns there is no such order: then `whole_prompt` is true
    and `prompt_ids` is the whole context of this reply. `token_ids` hold the end mark if one was sampled.
    """

    text: str
    finish: Literal["stop", "length"] = "stop"
    prompt_ids: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    whole_prompt: bool = False


@record
class Mark:
    """One filled-in item of a judge's form: the level, the words it rests on, and why."""

    level: int
    evidence: str = ""
    reason: str = ""


@record
class AxisMarks:
    """Progress and regression are judged independently: one reply can earn both."""

    progress: Mark
    regression: Mark


Levels = dict[str, AxisMarks]
"""The judge's turn form: axis key -> its two marks."""

StartLevels = dict[str, Mark]
"""The judge's start form: indicator key -> mark."""


@record
class PotentialState:
    """Where a dialogue stands after a turn, as the profile records it (rounded), turn 0 being the start.

    `step` is None where the turn could not be judged: the position is carried over unchanged.
    `energy_sum` is the running sum behind `energy`, never rounded.
    """

    turn: int
    position: Vector
    distance: float
    in_zone: bool
    norm: float
    projection: float
    step: Vector | None = None
    step_norm: float = 0.0
    alignment: float = 0.0
    delta_energy: float = 0.0
    energy: float = 0.0
    energy_sum: float = 0.0


class StopReason(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"
    STAGNATION = "stagnation"
    TIMEOUT = "timeout"
    DIRECTOR = "director"
    LENGTH = "length"  # the policy's context is full
    BROKEN = "broken"  # the machinery failed, not the policy: kept as data, out of the score


OUTSIDE_THE_RULES = (StopReason.DIRECTOR, StopReason.LENGTH)
"""Endings that no rule of the potential model gives: they stand as they were recorded."""


@record
class Ending:
    """Why a dialogue stopped.

    `detail` names the rule: geometric, positional or zone (success); collapsed, stagnant, regressing
    (failure); minimal, oscillation or oscillation-distance (stagnation). `numbers` holds what the rule
    measured, where it measured anything.
    """

    reason: StopReason
    detail: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()


@record
class Direction:
    """What the director did before a user's line: `act` names it, `item` which stage, memory or axis."""

    act: str
    item: str = ""
    reason: str = ""


@record
class Turn:
    """`levels` and `reward` are None where the judge failed; `unscored` then says how.

    `direction` is what the director decided before `user` was said. Where a panel judged, `panel` holds the
    levels of each member, progress and regression of every axis in the rubric's order; of one that failed,
    none.
    """

    user: str
    reply: Reply
    levels: Levels | None = None
    state: PotentialState | None = None
    reward: float | None = None
    unscored: str | None = None
    direction: Direction | None = None
    panel: dict[str, tuple[int, ...]] | None = None


@record
class Dialogue:
    """One conversation from start to end; a line of `dialogues/*.jsonl`.

    Siblings, the dialogues played from one scenario in one batch, share `group`. `start` is the
    position the start levels gave. `cast` names who played the other roles (user, director, judge),
    `reward` which reward the turns carry. `tags` is what reports group by: category, axis, difficulty.
    """

    id: str
    scenario: str
    model: str
    rubric: str
    profile: str
    start_levels: StartLevels
    start: Vector
    turns: tuple[Turn, ...]
    ending: Ending | None = None
    reward: str = ""
    cast: dict[str, str] = field(default_factory=dict)
    system: str = ""
    min_turns: int | None = None
    max_turns: int | None = None
    group: str = ""
    step: int | None = None
    seed: int | None = None
    seconds: float | None = None
    error: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    schema: Literal["mapo.dialogue/1"] = "mapo.dialogue/1"

    @property
    def usable(self) -> bool:
        """Whether it may be trained on: the machinery did not fail, whatever the policy made of it."""
        return self.error is None and (self.ending is None or self.ending.reason is not StopReason.BROKEN)

    @property
    def judged(self) -> bool:
        """Whether it enters a score: usable, and at least one turn was judged."""
        return self.usable and any(turn.levels is not None for turn in self.turns)

    @property
    def rewards(self) -> list[float | None]:
        """One reward per turn, None where the judge failed."""
        return [turn.reward for turn in self.turns]
