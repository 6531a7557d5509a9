"""The cast (models of user, director and judge), read from command-line options or from a config.

None stands for the domain's scripted cast. A cast without user and director has scripted ones and a model
as judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mapo.body_fields import merge_bodies, with_thinking
from mapo.config import Config, Role
from mapo.errors import InputError
from mapo.models.chat import DEFAULT_SAMPLING, Sampling
from mapo.players.spec import (
    CastSpec,
    ModelSpec,
    PanelSpec,
    PartialSpec,
    inherit,
    models_by_role,
    parse_judges,
)
from mapo.scripted.world import SCRIPTED

CHECK_ROLE = "check"
"""The role of the judge of spot checks among the models of a training."""


def cast_from_options(
    agents: str | None, everyone: PartialSpec, **roles: PartialSpec
) -> dict[str, ModelSpec] | None:
    """Return the model of each of `roles`; what a role lacks it inherits from `everyone`.

    `agents` is "scripted", "llm", or None: then the roles are models if any model or address is given. The
    judge "scripted" is the domain's plain-code judge, which knows only scripted people.
    """
    if (judge := roles.get("judge", PartialSpec())).model == SCRIPTED:
        if agents == "llm" or everyone.model:
            raise InputError(
                "a scripted judge knows only scripted people, and these are models",
                where="--judge-model",
                fix="Name a model as judge, or leave out --agents-model",
            )
        if judge.base_url:
            raise InputError(
                "--judge-base-url has no effect on a scripted judge", fix="Remove one of the two"
            )
        roles = {**roles, "judge": PartialSpec()}
    # The key variable of everyone has a default, so it does not count as an option that was set.
    named = any(value is not None for value in (*everyone[:2], *(v for role in roles.values() for v in role)))
    agents = agents or ("llm" if named else "scripted")
    if agents not in ("scripted", "llm"):
        raise InputError(f"--agents is '{agents}'", fix="Use scripted or llm")
    if agents == "scripted":
        judge = roles.get("judge", PartialSpec())
        others = (value for role, partial in roles.items() if role != "judge" for value in partial)
        if any(value is not None for value in (*everyone[:2], *others)):
            raise InputError(
                "--agents is scripted, but a model or address is given for a role other than the judge",
                fix="Remove one of the two",
            )
        return {"judge": inherit(judge, everyone).complete()} if judge.model else None
    cast = {}
    for role, partial in roles.items():
        spec = inherit(partial, everyone)
        if not spec.model:
            raise InputError(f"no model for the {role}", fix=f"Give --agents-model or --{role}-model")
        cast[role] = spec.complete()
    return cast


def with_judge_panel(cast: dict[str, ModelSpec] | None, judges: str | None) -> CastSpec | None:
    """Replace the judge by a panel: NAME or NAME@URL, separated by commas. A member without an address has
    that of the judge it replaces."""
    if judges is None:
        return cast
    if cast is None:
        raise InputError("--judge-panel has no effect on scripted roles", fix="Give --agents-model")
    judge = cast["judge"]
    members = parse_judges(judges.split(","), PartialSpec(None, judge.base_url, judge.key_env))
    if len(members) < 2:
        raise InputError(
            f"--judge-panel is '{judges}'", fix="Name two or more judges, or use --judge-model for one"
        )
    return {**cast, "judge": PanelSpec(members)}


def with_sampling(cast: CastSpec | None, **sampling: Sampling) -> CastSpec | None:
    """Set sampling parameters of roles; None values leave a parameter as it is."""
    for role, parameters in sampling.items():
        if parameters == DEFAULT_SAMPLING:
            continue
        if cast is None or role not in cast:
            raise InputError(
                f"{str(parameters).partition(' ')[0]} is set for the {role}, which is scripted",
                fix=f"Give --agents-model or --{role}-model, or leave the option out",
            )
        cast = {**cast, role: _with_sampling(cast[role], parameters)}
    return cast


def with_judging(cast: CastSpec | None, judging: str | None) -> CastSpec | None:
    """Set how a local judge or director answers: "form" or "readout"; None leaves it to the model."""
    if judging is None:
        return cast
    if cast is None:
        raise InputError("--judging has no effect on scripted roles", fix="Give --agents-model local:FOLDER")
    judge, director = cast["judge"], cast.get("director")
    members = judge.members if isinstance(judge, PanelSpec) else (judge,)
    changed = judged_by(members, judging)
    players: dict[str, ModelSpec | PanelSpec] = {
        **cast,
        "judge": replace(judge, members=changed) if isinstance(judge, PanelSpec) else changed[0],
    }
    if isinstance(director, ModelSpec) and director.local is not None:
        players["director"] = replace(director, judging=judging)
    return players


def judged_by(judges: Sequence[ModelSpec], judging: str | None) -> tuple[ModelSpec, ...]:
    """Return judges with a way of judging; None leaves them as they are."""
    if judging not in (None, "form", "readout"):
        raise InputError(f"--judging is '{judging}'", fix="Use form or readout")
    return tuple(replace(spec, judging=judging or spec.judging) for spec in judges)


def _with_sampling(player: ModelSpec | PanelSpec, sampling: Sampling) -> ModelSpec | PanelSpec:
    if isinstance(player, ModelSpec):
        return replace(player, sampling=sampling)
    return replace(player, members=tuple(replace(member, sampling=sampling) for member in player.members))


def cast_from_config(config: Config) -> CastSpec | None:
    """Return the models of user, director and judge; missing settings are inherited from `roles.everyone`."""
    roles = config.roles
    if roles.agents == "scripted":
        judged = roles.judge is not None and roles.judge.model
        return {"judge": _from_roles(roles.judge, Role())} if judged else None
    user = _from_roles(roles.user, roles.everyone)
    # No director is asked with an intent user; its model must only be one that the run has anyway.
    director = user if roles.user_kind == "intent" else _from_roles(roles.director, roles.everyone)
    judge: ModelSpec | PanelSpec
    if roles.judges:
        members = tuple(_from_roles(member, roles.everyone) for member in roles.judges)
        judge = PanelSpec(members, roles.judging, require_all=True)
    else:
        judge = _from_roles(roles.judge, roles.everyone)
    return {"user": user, "director": director, "judge": judge}


def evaluation_cast(config: Config) -> CastSpec | None:
    """Return the models of user, director and judge in validation and test, where `eval.judge` may replace
    the judge of training."""
    cast = cast_from_config(config)
    if config.eval.judge is None:
        return cast
    everyone = Role() if config.roles.agents == "scripted" else config.roles.everyone
    return {**(cast or {}), "judge": _from_roles(config.eval.judge, everyone)}


def ranker_from_config(config: Config) -> ModelSpec | None:
    """Return the model that compares siblings, None unless the reward is `rank`."""
    role = config.roles.ranker
    return None if role is None else _from_roles(role, config.roles.everyone)


def check_from_config(config: Config) -> ModelSpec | None:
    """Return the second judge of spot checks, if there is one. It inherits nothing."""
    role = config.roles.check
    return None if role is None else _from_roles(role, Role())


def every_model(config: Config) -> dict[str, ModelSpec]:
    """Return every model that a training calls, by role; a test judge of its own is the "test judge"."""
    models = models_by_role(cast_from_config(config))
    if config.roles.user_kind == "intent":
        models.pop("director", None)
    if config.eval.judge is not None:
        models["test judge"] = models_by_role(evaluation_cast(config))["judge"]
    if ranker := ranker_from_config(config):
        models["ranker"] = ranker
    if check := check_from_config(config):
        models[CHECK_ROLE] = check
    return models


def _from_roles(role: Role | None, everyone: Role) -> ModelSpec:
    role = role or Role()
    spec = inherit(_partial(role), _partial(everyone)).complete()
    settings = {
        key: value if (value := getattr(role, key)) is not None else getattr(everyone, key)
        for key in ("temperature", "top_p", "max_tokens")
    }
    fields = merge_bodies(_body_of(everyone), _body_of(role))
    judging = role.judging or (everyone.judging if spec.local is not None else None)
    return replace(spec, sampling=Sampling(**settings, body=fields), judging=judging)


def _body_of(role: Role) -> dict[str, Any]:
    effort = {} if role.reasoning_effort is None else {"reasoning_effort": role.reasoning_effort}
    return {**with_thinking(role.body, role.thinking), **effort}


def _partial(role: Role) -> PartialSpec:
    return PartialSpec(role.model, role.base_url, role.key_env)
