"""The package's vocabulary as plain data. Start reading here.

A *scenario* describes a person and their situation. A *dialogue* is one conversation between the policy and
that person: a list of *turns*, each with a user message, the policy's reply and the judge's assessment of the
reply. The judge fills in *levels*; the rubric maps levels to a *step vector*; step vectors move the
*potential state*, a vector of deficits whose origin means that nothing more is needed; the movement
determines the turn's *reward*.

The types have no behaviour beyond trivial properties and import nothing from the rest of the package. Records
on disk are these types as JSON (`records.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[_T]) -> type[_T]:
    """Make `cls` a frozen dataclass that rejects unknown keys and non-finite numbers when read from JSON."""
    cls.__pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}  # type: ignore[attr-defined]
    return dataclass(frozen=True, slots=True)(cls)


Vector = tuple[float, ...]
"""One number per axis of the rubric, in the rubric's order."""


@record
class Message:
    """One text by one speaker, in the form chat models take."""

    role: Literal["system", "user", "assistant"]
    content: str


@record
class Reply:
    """The policy's message in a turn, with its token ids if it was sampled locally.

    `prompt_ids` are the tokens appended to the context since the previous reply (template markers and the
    user's message). Concatenating the `prompt_ids` and `token_ids` of all turns gives the token ids of the
    dialogue, so nothing is ever tokenised twice. If the chat template rewrites earlier turns, that is not
    possible: then `whole_prompt` is True and `prompt_ids` is the complete context of this reply. `token_ids`
    include the end-of-turn token if it was sampled.
    """

    text: str
    finish: Literal["stop", "length"] = "stop"
    prompt_ids: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    whole_prompt: bool = False


@record
class Mark:
    """One item of a judge's form: the level, the quoted evidence and the reason."""

    level: int
    evidence: str = ""
    reason: str = ""


@record
class AxisMarks:
    """The two marks of one axis. They are independent: a reply can earn both progress and regression."""

    progress: Mark
    regression: Mark


Levels = dict[str, AxisMarks]
"""A turn form: axis key -> marks."""

StartLevels = dict[str, Mark]
"""A start form: indicator key -> mark."""


@record
class PotentialState:
    """The state of a dialogue after a turn; turn 0 is the start.

    Metrics are rounded as the profile prescribes. `step` is the step vector, None if the turn is unscored;
    the position is then unchanged. `energy_sum` is the unrounded running sum behind `energy`.
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


@record
class Goal:
    """The thresholds a dialogue must reach, fixed at its start.

    `direction` is v*, the ideal direction. `distance` bounds ||P_t|| (geometric success), `crossing` the
    remaining projection (positional success), and `energy` is the energy that both require.
    """

    direction: Vector
    distance: float
    crossing: float
    energy: float


class StopReason(StrEnum):
    """Why a dialogue stopped."""

    SUCCESS = "success"
    FAILURE = "failure"
    STAGNATION = "stagnation"
    TIMEOUT = "timeout"
    DIRECTOR = "director"
    USER = "user"  # the user left: neither success nor failure
    LENGTH = "length"  # the context of the policy, or of a local user, is full
    BROKEN = "broken"  # something outside the dialogue failed; excluded from scores and training

    @property
    def label(self) -> str:
        """The name shown to people. "timeout" would read like a network error."""
        return ending_label(self.value)


def ending_label(ending: str) -> str:
    """Return the name shown to people for a recorded ending, which may be unknown or "unfinished"."""
    return {"timeout": "turn limit", "user": "user left"}.get(ending, ending)


RECORDED_REASONS = (StopReason.DIRECTOR, StopReason.USER, StopReason.LENGTH)
"""Reasons that no ending rule can produce. Scoring takes them from the record instead of recomputing them."""


@record
class Ending:
    """How a dialogue ended.

    `detail` names the rule that applied: geometric, positional or zone (success); collapsed, stagnant,
    regressing (failure); minimal, oscillation or oscillation-distance (stagnation). If a context was full
    (length), it is "user" for that of the user and empty for that of the policy. `numbers` are the quantities
    that a stagnation rule compared with its thresholds.
    """

    reason: StopReason
    detail: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()


@record
class Direction:
    """The director's decision before a user message: the act, and the stage, memory or axis it refers to."""

    act: str
    item: str = ""
    reason: str = ""


@record
class Turn:
    """A user message, the policy's reply and its assessment.

    If the judgement failed, `levels` and `reward` are None and `unscored` holds the reason. `direction` is
    what the director decided before `user` was written. With a panel of judges, `panel` maps each judge to
    its levels (progress and regression of every axis, in the rubric's order), empty for a judge that failed.
    If levels were read out, `probabilities` holds those of the levels 0, 1, ... of each mark, in that order.
    `faults` are those of user, director, judge and policy, as in "user: repeats itself". `check` are the
    levels of the judge of spot checks, in the order of `panel`; if it failed, `unchecked` holds the reason.
    `rank` is the score from 0 to 1 of a judge that compared the reply with those of the siblings.
    """

    user: str
    reply: Reply
    levels: Levels | None = None
    state: PotentialState | None = None
    reward: float | None = None
    unscored: str | None = None
    direction: Direction | None = None
    panel: dict[str, tuple[int, ...]] | None = None
    probabilities: tuple[tuple[float, ...], ...] | None = None
    faults: tuple[str, ...] = ()
    check: tuple[int, ...] | None = None
    unchecked: str | None = None
    rank: float | None = None

    @property
    def user_at_fault(self) -> bool:
        """Whether the user's message is faulty, so that the reply to it says little about the policy."""
        return any(fault.startswith("user:") for fault in self.faults)


@record
class Dialogue:
    """One conversation from start to end: one line of `dialogues/*.jsonl`.

    Siblings (dialogues played from the same scenario in one batch) share `group`. `start` is the initial
    position given by the start levels. `cast` names the models or scripts behind user, director and judge,
    `reward` the reward that the turns carry. Reports group dialogues by `tags` (category, axis, difficulty).
    `prompts` names the prompts of roles played by models, with their fingerprint. `goal` is given only if it
    is not the one that the profile derives from the start. `steps` is "expected" if turns moved the state by
    the expected step of their probabilities, and empty if by the step of their levels.
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
    prompts: str = ""
    goal: Goal | None = None
    steps: Literal["", "expected"] = ""
    schema: Literal["mapo.dialogue/1"] = "mapo.dialogue/1"

    @property
    def usable(self) -> bool:
        """Whether the dialogue may be trained on, that is, whether it is not broken."""
        return self.error is None and (self.ending is None or self.ending.reason is not StopReason.BROKEN)

    @property
    def judged(self) -> bool:
        """Whether the dialogue counts in scores: it is usable and has at least one scored turn."""
        return self.usable and any(turn.levels is not None for turn in self.turns)

    @property
    def rewards(self) -> list[float | None]:
        """One reward per turn, None for unscored turns."""
        return [turn.reward for turn in self.turns]
