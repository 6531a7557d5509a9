"""Specifications of the models that play roles: a model and its address, or a panel of judges.

These are plain data. `casting.py` reads them from options or a config, `session.py` opens the models.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mapo.errors import InputError
from mapo.models.chat import DEFAULT_SAMPLING, Sampling

KEY_ENV = "OPENAI_API_KEY"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model and its address. `scripted:NAME` is a scripted policy, `local:SOURCE` is sampled in this
    process. Without `key_env` no key is sent. `judging` is how a local judge or director answers: "form",
    "readout", or None for what its model was trained for."""

    model: str
    base_url: str | None = None
    key_env: str = KEY_ENV
    sampling: Sampling = DEFAULT_SAMPLING
    judging: str | None = None

    def __str__(self) -> str:
        """Return the name that records use: the model and, where it is set, how it is sampled."""
        sampling = str(self.sampling)
        return f"{self.model} ({sampling})" if sampling else self.model

    @property
    def address(self) -> str | None:
        """The address of its endpoint; None for scripted and local models."""
        return None if self.scripted is not None or self.local is not None else _address(self.base_url)

    @property
    def scripted(self) -> str | None:
        return self.model.removeprefix("scripted:") if self.model.startswith("scripted:") else None

    @property
    def local(self) -> str | None:
        return self.model.removeprefix("local:") if self.model.startswith("local:") else None


@dataclass(frozen=True, slots=True)
class PanelSpec:
    """Several judges as one. In mode "panel" all of them judge every reply; in mode "alternate" one of them
    judges all dialogues of a scenario in a step. With `require_all`, a reply that any member fails on is
    unscored, because training compares siblings."""

    members: tuple[ModelSpec, ...]
    mode: str = "panel"
    require_all: bool = False

    def __str__(self) -> str:
        names = ", ".join(self.names)
        return f"panel of {names}" if self.mode == "panel" else f"one at a time of {names}"

    @property
    def names(self) -> list[str]:
        """The members' names in records; equal names are numbered. Addresses are not recorded."""
        from mapo.sandbox.panel import unique_names

        return unique_names([str(member) for member in self.members])


CastSpec = Mapping[str, ModelSpec | PanelSpec]
"""The models of a cast by role."""


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
    """A model as options or a config give it, perhaps incomplete; see `inherit`."""

    model: str | None = None
    base_url: str | None = None
    key_env: str | None = None

    def complete(self) -> ModelSpec:
        """Return the complete specification, with the default key variable if `key_env` is None."""
        if not self.model:
            raise InputError("no model is named", fix="Give the model's name")
        return ModelSpec(self.model, self.base_url, KEY_ENV if self.key_env is None else self.key_env)


def inherit(spec: PartialSpec, default: PartialSpec) -> PartialSpec:
    """Fill in the missing fields of `spec` from `default`.

    A key is sent only to the address it is meant for: it is inherited only with the same address.
    """
    base_url = spec.base_url or default.base_url
    key_env = spec.key_env or key_env_at(base_url, default)
    return PartialSpec(spec.model or default.model, base_url, key_env)


def key_env_at(base_url: str | None, other: PartialSpec) -> str | None:
    """Return the key variable of an address for which none is named, next to `other`.

    That is the one of `other` at the same address, and the default one at the default address. Any other
    address gets no key (an empty name).
    """
    if _address(base_url) == _address(other.base_url):
        return other.key_env
    return None if _address(base_url) == _address(None) else ""


def _address(base_url: str | None) -> str:
    from mapo.models.endpoint import DEFAULT_URL

    return (base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL).rstrip("/")


def parse_judges(
    texts: Sequence[str], default: PartialSpec, key_envs: Sequence[str] = ()
) -> tuple[ModelSpec, ...]:
    """Parse judges from the command line, NAME or NAME@URL each. `key_envs` has one key variable for all of
    them or one for each; missing fields are inherited from `default`."""
    if len(key_envs) > 1 and len(key_envs) != len(texts):
        raise InputError(
            f"{len(key_envs)} key variables for {len(texts)} judges", fix="Give one for all, or one for each"
        )
    judges = []
    for n, text in enumerate(texts):
        model, base_url = _split_address(text.strip())
        if not model:
            raise InputError(f"'{text}' does not name a judge", fix="Give NAME or NAME@URL")
        key_env = key_envs[n if len(key_envs) > 1 else 0] if key_envs else None
        judges.append(inherit(PartialSpec(model, base_url, key_env), default).complete())
    return tuple(judges)


def _split_address(text: str) -> tuple[str, str | None]:
    """Split NAME@URL. A name may contain an @ itself; only one that is followed by a URL separates."""
    for scheme in ("@http://", "@https://"):
        name, separator, rest = text.partition(scheme)
        if separator:
            return name, scheme[1:] + rest
    return text, None
