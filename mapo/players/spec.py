"""Descriptions of who plays a role: a model and its address, or several judges that form a panel.

These are plain data. `casting.py` reads them from options or a config, `session.py` opens the models.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mapo.errors import InputError
from mapo.models.chat import OWN_WAY, Sampling

KEY_ENV = "OPENAI_API_KEY"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model and where it is. `scripted:NAME` is plain code, `local:SOURCE` is sampled in this process."""

    model: str
    base_url: str | None = None
    key_env: str = KEY_ENV
    sampling: Sampling = OWN_WAY

    def __str__(self) -> str:
        """Return the name that records use: the model and, where it is set, how it is sampled."""
        sampling = str(self.sampling)
        return f"{self.model} ({sampling})" if sampling else self.model

    @property
    def address(self) -> str | None:
        """The address of its endpoint; None for scripted and local models."""
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
class PanelSpec:
    """Several judges as one. With "panel" all of them judge every reply; with "alternate" one judges all
    dialogues of a scenario in a step. With `whole`, a reply that any member fails on is unscored, because
    training compares siblings."""

    members: tuple[ModelSpec, ...]
    way: str = "panel"
    whole: bool = False

    def __str__(self) -> str:
        names = ", ".join(self.names)
        return f"panel of {names}" if self.way == "panel" else f"one at a time of {names}"

    @property
    def names(self) -> list[str]:
        """The members' names in records; equal names are numbered. Addresses stay out of records."""
        from mapo.sandbox.panel import seat_names

        return seat_names([str(member) for member in self.members])


CastSpec = Mapping[str, ModelSpec | PanelSpec]
"""Who plays each role."""


def models_by_role(cast: CastSpec | None) -> dict[str, ModelSpec]:
    """Return every model of a cast by its role. The judges of a panel are numbered: "judge 1", "judge 2"."""
    models: dict[str, ModelSpec] = {}
    for role, player in (cast or {}).items():
        if isinstance(player, PanelSpec):
            models |= {f"{role} {n}": member for n, member in enumerate(player.members, 1)}
        else:
            models[role] = player
    return models


class PartialSpec(NamedTuple):
    """A model as far as options or a config name it; what is missing is inherited (`inherit`)."""

    model: str | None = None
    base_url: str | None = None
    key_env: str | None = None

    def complete(self) -> ModelSpec:
        """Return the model with the default key variable where none is named."""
        if not self.model:
            raise InputError("no model is named", fix="Give the model's name")
        return ModelSpec(self.model, self.base_url, self.key_env or KEY_ENV)


def inherit(own: PartialSpec, default: PartialSpec) -> PartialSpec:
    """Fill in what `own` lacks from `default`.

    A key is sent only to the address it was given for: it is inherited only with the same address.
    """
    base_url = own.base_url or default.base_url
    same = (base_url or "").rstrip("/") == (default.base_url or "").rstrip("/")
    key_env = own.key_env or (default.key_env if same else None)
    return PartialSpec(own.model or default.model, base_url, key_env)


def parse_judges(
    texts: Sequence[str], default: PartialSpec, key_envs: Sequence[str] = ()
) -> tuple[ModelSpec, ...]:
    """Read judges as the command line names them, NAME or NAME@URL. `key_envs` holds one key variable for all
    of them or one each; the rest is inherited from `default`."""
    if len(key_envs) > 1 and len(key_envs) != len(texts):
        raise InputError(
            f"{len(key_envs)} key variables for {len(texts)} judges", fix="Give one for all, or one each"
        )
    judges = []
    for n, text in enumerate(texts):
        model, base_url = _split_address(text.strip())
        if not model:
            raise InputError(f"'{text}' names no judge", fix="Give NAME, or NAME@URL")
        key_env = key_envs[n if len(key_envs) > 1 else 0] if key_envs else None
        judges.append(inherit(PartialSpec(model, base_url, key_env), default).complete())
    return tuple(judges)


def _split_address(text: str) -> tuple[str, str | None]:
    """Split NAME@URL. A name may contain an @ itself: only one that is followed by a URL counts."""
    for scheme in ("@http://", "@https://"):
        name, found, rest = text.partition(scheme)
        if found:
            return name, scheme[1:] + rest
    return text, None
