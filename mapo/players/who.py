"""Who plays a role: a model and where it is, or several judges as one. Names and addresses only; what is made
of them is on the stage (`stage.py`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mapo.errors import InputError
from mapo.models.chat import OWN_WAY, Sampling

KEY_ENV = "OPENAI_API_KEY"


@dataclass(frozen=True, slots=True)
class Who:
    """A model and where it is. `scripted:NAME` is played by plain code, `local:SOURCE` sampled here."""

    model: str
    base_url: str | None = None
    key_env: str = KEY_ENV
    sampling: Sampling = OWN_WAY

    def __str__(self) -> str:
        """Who plays, for the record."""
        way = str(self.sampling)
        return f"{self.model} ({way})" if way else self.model

    @property
    def address(self) -> str | None:
        """Where its endpoint is; None for one that has none."""
        from mapo.models.endpoint import DEFAULT_URL

        if self.scripted is not None or self.local is not None:
            return None
        return (self.base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL).rstrip("/")

    @property
    def scripted(self) -> str | None:
        return self.model.removeprefix("scripted:") if self.model.startswith("scripted:") else None

    @property
    def local(self) -> str | None:
        return self.model.removeprefix("local:") if self.model.startswith("local:") else None


@dataclass(frozen=True, slots=True)
class Panel:
    """Several judges as one: "panel", all of them judge every reply; "alternate", one a scenario and step.
    With `whole`, a reply that a member fails on is unscored: in training, where siblings are compared."""

    members: tuple[Who, ...]
    way: str = "panel"
    whole: bool = False

    def __str__(self) -> str:
        names = ", ".join(self.names)
        return f"panel of {names}" if self.way == "panel" else f"one at a time of {names}"

    @property
    def names(self) -> list[str]:
        """What records call them: with an address only where nothing else tells two of one name apart."""
        from mapo.sandbox.panel import seat_names

        told = [str(who) for who in self.members]
        places = {name: {w.address for w in self.members if str(w) == name} for name in told}
        return seat_names(
            [
                name if len(places[name]) == 1 else f"{name} at {who.address}"
                for name, who in zip(told, self.members, strict=True)
            ]
        )


Players = Mapping[str, Who | Panel]
"""Who plays each role."""


def everyone_in(players: Players | None) -> dict[str, Who]:
    """Every model by its role; the judges of a panel are numbered."""
    found: dict[str, Who] = {}
    for role, player in (players or {}).items():
        if isinstance(player, Panel):
            found |= {f"{role} {n}": who for n, who in enumerate(player.members, 1)}
        else:
            found[role] = player
    return found


def read_judges(
    named: Sequence[str], base_url: str | None = None, key_envs: Sequence[str] = ()
) -> tuple[Who, ...]:
    """Judges as the command line names them, NAME or NAME@URL; one key variable for all, or one each."""
    if len(key_envs) > 1 and len(key_envs) != len(named):
        raise InputError(
            f"{len(key_envs)} key variables for {len(named)} judges", fix="Give one for all, or one each"
        )
    found = []
    for at, text in enumerate(named):
        name, url = _placed(text.strip())
        if not name:
            raise InputError(f"'{text}' names no judge", fix="Give NAME, or NAME@URL")
        key = (key_envs[at] if len(key_envs) > 1 else key_envs[0]) if key_envs else KEY_ENV
        found.append(Who(name, url or base_url, key))
    return tuple(found)


def _placed(text: str) -> tuple[str, str | None]:
    """A name may hold an @ of its own: only one before an address counts."""
    for scheme in ("@http://", "@https://"):
        name, found, rest = text.partition(scheme)
        if found:
            return name, scheme[1:] + rest
    return text, None
