"""Rates: speed of the servers and size of the calls, read from a TOML file in which every key is checked.

`EXAMPLE` is such a file with a comment on each key; `mapo plan --example` prints it. Its numbers are
assumptions to be replaced. Roles without a server of their name are served by `servers.everyone`, as
`roles.everyone` does in a training config.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mapo.errors import InputError
from mapo.untrusted import parse_toml, read_file

SECTIONS = ("servers", "calls", "dialogues", "update")
EVERYONE = "everyone"

EXAMPLE = """\
# Rates for `mapo plan`. All numbers are assumptions: measure your own servers and replace them.
# Any key can also be set on the command line: mapo plan CONFIG --rates FILE servers.everyone.replicas=3

[dialogues]
# turns = [12, 13, 15]  # turns per dialogue: a number, or a list of equally likely ones
                        # (default: rollout.max_turns, the most possible)

[servers.policy]        # samples the replies: here an 8B model on one card
replicas = 1
streams = 64            # concurrent calls per replica; further ones wait in a queue
tokens_per_s = 100      # output tokens per second of one call, while the replica is not saturated
throughput = 4000       # output tokens per second of all calls of a replica (default: no limit)
prefill_per_s = 20000   # prompt tokens per second that are not in the prefix cache (default: no time)
latency = 0.02          # additional seconds per call

[servers.everyone]      # every role without a server of its name: here a large model on eight cards
replicas = 1
streams = 64
tokens_per_s = 50
throughput = 2000
prefill_per_s = 10000
latency = 0.1

[calls.policy]          # one per turn
prompt = 130            # prompt tokens of the first call of a dialogue
growth = 200            # additional prompt tokens with each turn
cached = 0.87           # share of all prompt tokens that are in the server's prefix cache
output = 120            # output tokens per call, on average
again = 0.0             # repeated calls per call, on average, for answers that could not be used

[calls.judge]           # one per turn, after the reply
prompt = 2100
growth = 210
cached = 0.9
output = 250
again = 0.02

[calls.director]        # one per turn but the last
prompt = 2000
growth = 225
cached = 0.87
output = 50
again = 0.02

[calls.user]            # one per turn but the last
prompt = 1000
growth = 215
cached = 0.89
output = 60
again = 0.02

# [calls.start]         # the judge's start form: once per scenario, only where start levels are unknown
# prompt = 2100
# output = 400

# Any call may have `seconds` (as measured) instead of its server's speeds, and `server` to name another one.

[update]
tokens_per_s = 20000    # tokens of complete dialogues trained per second; or: seconds = 60
"""

_Positive = Annotated[float, Field(gt=0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ServerRates(_Section):
    replicas: int = Field(default=1, ge=1)
    streams: int = Field(ge=1)
    tokens_per_s: _Positive | None = None
    throughput: _Positive | None = None
    prefill_per_s: _Positive | None = None
    latency: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _speeds_fit(self) -> ServerRates:
        if self.throughput is not None and (self.tokens_per_s is None or self.throughput < self.tokens_per_s):
            raise ValueError("throughput needs tokens_per_s, which must not exceed it")
        return self

    @property
    def full(self) -> float | None:
        """Concurrent calls that a replica serves at full speed; None if only `streams` limits it."""
        if self.throughput is None or self.tokens_per_s is None:
            return None
        return self.throughput / self.tokens_per_s


class CallRates(_Section):
    server: str | None = None
    prompt: float = Field(default=0.0, ge=0)
    growth: float = Field(default=0.0, ge=0)
    cached: float = Field(default=0.0, ge=0, le=1)
    output: _Positive
    spread: float | None = None  # ignored; accepted because earlier rates files contain it
    again: float = Field(default=0.0, ge=0)
    seconds: _Positive | None = None


class CallTable(_Section):
    policy: CallRates
    judge: CallRates | None = None
    director: CallRates | None = None
    user: CallRates | None = None
    start: CallRates | None = None


class DialogueRates(_Section):
    turns: Annotated[int, Field(ge=1)] | list[Annotated[int, Field(ge=1)]] | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> DialogueRates:
        if self.turns == []:
            raise ValueError("turns must not be an empty list")
        return self


class UpdateRates(_Section):
    seconds: float | None = Field(default=None, ge=0)
    tokens_per_s: _Positive | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> UpdateRates:
        if (self.seconds is None) == (self.tokens_per_s is None):
            raise ValueError("set either seconds or tokens_per_s")
        return self


class Rates(_Section):
    servers: dict[str, ServerRates]
    calls: CallTable
    dialogues: DialogueRates = DialogueRates()
    update: UpdateRates

    def server_of(self, role: str) -> str:
        """Return the name of the server that a role's calls go to."""
        call: CallRates | None = getattr(self.calls, role)
        named = call.server if call else None
        owner = "judge" if role == "start" else role
        name = named or (owner if owner in self.servers else EVERYONE)
        if name not in self.servers:
            known = ", ".join(self.servers)
            raise InputError(
                f"there is no [servers.{named or owner}] for the calls of the {role}",
                where="rates",
                fix=f"Add it, or [servers.{EVERYONE}]; known servers: {known}",
            )
        return name


def read_toml(path: Path) -> dict[str, Any]:
    """Read a rates file without validating it."""
    try:
        return parse_toml(read_file(path).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be read ({error})", where=str(path), fix="`mapo plan --example` prints such a file"
        ) from None


def read_override(text: str) -> dict[str, Any]:
    """Parse `servers.everyone.replicas=3` into nested tables; a value that is not TOML is a string."""
    key, _, value = text.partition("=")
    for literal in (value, json.dumps(value)):
        with contextlib.suppress(ValueError):
            return parse_toml(f"{key} = {literal}")
    raise InputError(
        f"'{text}' is not a setting", fix="Write key.path=value, as in servers.everyone.replicas=3"
    )


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge two tables recursively; values of `above` take precedence."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


_MISSING_HINTS = {"update": " (update.seconds=30; an evaluation does not measure it)"}


def read_rates(data: dict[str, Any], where: str) -> Rates:
    """Validate rates. Raises InputError with the first invalid key."""
    try:
        return Rates.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise InputError(
                f"the rates lack [{key}]",
                where=where,
                fix=f"Set it in the --rates file or on the command line{_MISSING_HINTS.get(key, '')}; "
                "`mapo plan --example` explains every key",
            ) from None
        raise InputError(
            f"{key or 'the rates'}: {first['msg']}",
            where=where,
            fix="`mapo plan --example` explains every key",
        ) from None
