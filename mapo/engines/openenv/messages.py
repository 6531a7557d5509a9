"""What client and server send each other: OpenEnv's action, observation and state of a dialogue."""

from __future__ import annotations

from typing import Any

from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field, field_validator

from mapo.models.wire import storable

MAX_REPLY = 32_768
"""The longest reply, in characters."""
MAX_ID = 100
"""The longest `episode_id`, in characters."""


class PolicyReply(Action):
    """The action: what the policy says to the person. Characters that a record cannot hold are replaced."""

    reply: str = Field(max_length=MAX_REPLY)

    @field_validator("reply", mode="before")
    @classmethod
    def _storable(cls, reply: Any) -> Any:
        # A model that calls a tool can write half of a surrogate pair as a JSON escape.
        return storable(reply) if isinstance(reply, str) else reply


class DialogueObservation(Observation):
    """What the policy sees next, and what its last reply was worth.

    `reward` is that of the last reply. It is None at the start, for an unscored turn (missing data, not 0)
    and if the dialogue broke before the reply was judged.
    """

    messages: list[dict[str, str]] = Field(default_factory=list)
    """The conversation so far, with roles and contents as chat templates take them."""
    user: str | None = None
    """The person's new message; None when the dialogue has ended."""
    turn: int = 0
    """The number of turns so far."""
    levels: dict[str, dict[str, int]] | None = None
    """The judge's levels for the last reply: {axis: {"progress": level, "regression": level}}."""
    unscored: str | None = None
    """Why the last reply has no levels, if its judgement failed."""
    rewards: list[float | None] = Field(default_factory=list)
    """The rewards of all turns so far. They are final when the dialogue has ended: with the reward `outcome`,
    the ending decides about an earlier turn if unscored ones follow."""
    ending: str | None = None
    """Why the dialogue ended (`mapo.types.StopReason`): success, failure, timeout, broken and so on."""
    ending_detail: list[str] = Field(default_factory=list)
    error: str | None = None
    """What broke the dialogue. A broken dialogue is neither scored nor trained."""


class DialogueState(State):
    """Where a dialogue stands. `episode_id` is the id of its record."""

    scenario: str | None = None
    seed: int | None = None
    group: str | None = None
    """Shared by siblings: dialogues of the same scenario and seed."""
    position: list[float] | None = None
    """The person's state: one deficit per axis."""
    done: bool = False
    rules: dict[str, str] = Field(default_factory=dict)
    """What the server's rewards depend on (`mapo.engines.openenv.rules`), also before a dialogue begins."""
