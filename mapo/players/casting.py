"""Who plays user, director and judge: read from command-line options or from a config.

None stands for the domain's scripted cast.
"""

from __future__ import annotations

from dataclasses import replace

from mapo.config import Config, Role
from mapo.errors import InputError
from mapo.models.chat import Sampling
from mapo.players.spec import CastSpec, ModelSpec, PanelSpec, PartialSpec, inherit, parse_judges


def cast_from_options(
    agents: str | None, everyone: PartialSpec, **roles: PartialSpec
) -> dict[str, ModelSpec] | None:
    """Return the model of each of `roles`; what a role lacks it inherits from `everyone`.

    `agents` is "scripted", "llm", or None: then the roles are models if any model or address is given.
    """
    # The key variable of everyone has a default, so it says nothing about what the user wants.
    named = any(value is not None for value in (*everyone[:2], *(v for role in roles.values() for v in role)))
    agents = agents or ("llm" if named else "scripted")
    if agents not in ("scripted", "llm"):
        raise InputError(f"--agents is '{agents}'", fix="Use scripted or llm")
    if agents == "scripted":
        if named:
            raise InputError("scripted roles, but a model or address for one", fix="Leave one of them out")
        return None
    cast = {}
    for role, own in roles.items():
        spec = inherit(own, everyone)
        if not spec.model:
            raise InputError(f"no model for the {role}", fix=f"Give --agents-model or --{role}-model")
        cast[role] = spec.complete()
    return cast


def with_judge_panel(cast: dict[str, ModelSpec] | None, judges: str | None) -> CastSpec | None:
    """Replace the judge by a panel: NAME or NAME@URL, separated by commas. A member without an address is
    where the judge would have been."""
    if judges is None:
        return cast
    if cast is None:
        raise InputError("--judge-panel, but plain code plays", fix="Give --agents-model")
    judge = cast["judge"]
    members = parse_judges(judges.split(","), PartialSpec(None, judge.base_url, judge.key_env))
    if len(members) < 2:
        raise InputError(f"--judge-panel is '{judges}'", fix="Two judges or more; one is --judge-model")
    return {**cast, "judge": PanelSpec(members)}


def with_temperatures(cast: CastSpec | None, **temperatures: float | None) -> CastSpec | None:
    """Set the temperature of roles; None leaves a role as it is."""
    for role, temperature in temperatures.items():
        if temperature is None:
            continue
        if cast is None:
            raise InputError(f"--{role}-temperature, but plain code plays", fix="Give --agents-model")
        cast = {**cast, role: _with_sampling(cast[role], Sampling(temperature))}
    return cast


def _with_sampling(player: ModelSpec | PanelSpec, sampling: Sampling) -> ModelSpec | PanelSpec:
    if isinstance(player, ModelSpec):
        return replace(player, sampling=sampling)
    return replace(player, members=tuple(replace(member, sampling=sampling) for member in player.members))


def cast_from_config(config: Config) -> CastSpec | None:
    """Return who plays user, director and judge; what a role lacks it inherits from `roles.everyone`."""
    roles = config.roles
    if roles.agents == "scripted":
        return None
    user, director = _from_roles(roles.user, roles.everyone), _from_roles(roles.director, roles.everyone)
    judge: ModelSpec | PanelSpec
    if roles.judges:
        members = tuple(_from_roles(member, roles.everyone) for member in roles.judges)
        judge = PanelSpec(members, roles.judging, whole=True)
    else:
        judge = _from_roles(roles.judge, roles.everyone)
    return {"user": user, "director": director, "judge": judge}


def _from_roles(own: Role | None, everyone: Role) -> ModelSpec:
    own = own or Role()
    spec = inherit(_partial(own), _partial(everyone)).complete()
    settings = {
        key: value if (value := getattr(own, key)) is not None else getattr(everyone, key)
        for key in ("temperature", "top_p", "max_tokens")
    }
    return replace(spec, sampling=Sampling(**settings))


def _partial(role: Role) -> PartialSpec:
    return PartialSpec(role.model, role.base_url, role.key_env)
