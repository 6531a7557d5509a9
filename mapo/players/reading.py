"""How local judges and directors answer: they write a form, or their answers are read out.

A model that `mapo roles train` made for a role is read out in it, and refused in any other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from string import ascii_uppercase
from typing import TYPE_CHECKING

from mapo.domain_folders import SHIPPED_JUDGE
from mapo.errors import InputError
from mapo.local_model.forms import form_tokens
from mapo.measure.calibration import IDENTITY, Calibration
from mapo.models.chat import Place
from mapo.players.spec import CastSpec, ModelSpec, PanelSpec
from mapo.sandbox.cast import RolePrompts
from mapo.sandbox.director import FORM
from mapo.sandbox.judge import MAX_TOKENS, start_schema, turn_schema
from mapo.sandbox.reading_roles import READABLE, with_readout
from mapo.sandbox.readout import LAYOUT, start_places, turn_places
from mapo.text import counted

if TYPE_CHECKING:
    from mapo.local_model.role_file import RoleFile
    from mapo.measure.rubric import Rubric
    from mapo.sampling.sampler import Sampler


def is_read_out(spec: ModelSpec, role: str) -> bool:
    """Return whether the answers of a role are read out of its model. Raises InputError where they should be
    and cannot be."""
    if role not in READABLE:
        return False
    if spec.judging is None:
        file = role_file_of(spec)
        return file is not None and file.role == role
    if spec.judging == "readout" and spec.local is None:
        raise InputError(
            f"the answers of the {role} cannot be read out: '{spec.model}' is not a local model",
            fix=f"Use local:FOLDER as {role}, or judging = 'form'",
        )
    return spec.judging == "readout"


def check_expected_steps(cast: CastSpec | None) -> None:
    """Raise InputError if no judge of a cast is read out, so that steps have no expectation."""
    judge = (cast or {}).get("judge")
    members = judge.members if isinstance(judge, PanelSpec) else (judge,) if judge else ()
    if not any(is_read_out(member, "judge") for member in members):
        raise InputError(
            "reward.steps is 'expected', but no judge is read out",
            fix="Set roles.judge.judging = 'readout', or reward.steps = 'likely'",
        )


def reading_prompts(prompts: RolePrompts, cast: CastSpec) -> RolePrompts:
    """Return the prompts of a cast, with the answers of judge and director read out where that is set. Of a
    panel, they are those of its first judge."""
    one = {role: x.members[0] if isinstance(x, PanelSpec) else x for role, x in cast.items()}
    roles = [role for role in READABLE if role in one and is_read_out(one[role], role)]
    if "judge" not in roles:
        return with_readout(prompts, roles)
    return with_readout(prompts, roles, calibration_of(one["judge"]), layout_of(one["judge"]))


def judge_prompts(prompts: RolePrompts, spec: ModelSpec) -> RolePrompts:
    """Return the prompts of one judge."""
    return reading_prompts(prompts, {"judge": spec})


def calibration_of(spec: ModelSpec) -> Calibration:
    """Return the calibration of a trained judge; that of any other model changes nothing."""
    file = role_file_of(spec)
    return file.calibration if file is not None and file.role == "judge" else IDENTITY


def layout_of(spec: ModelSpec) -> int:
    """Return the layout of the prompts that a trained judge learned; any other model sees the full one."""
    file = role_file_of(spec)
    return file.layout if file is not None and file.role == "judge" else LAYOUT


def knows_turns_only(spec: ModelSpec) -> bool:
    """Return whether a model is a trained judge, which cannot fill in start forms."""
    return is_read_out(spec, "judge") and calibration_of(spec) != IDENTITY


def role_file_of(spec: ModelSpec) -> RoleFile | None:
    """Return what a local model was trained to play, if anything."""
    from mapo.local_model.role_file import read_role_file
    from mapo.local_model.shipped import local_folder

    folder = local_folder(spec.local) if spec.local else None
    return read_role_file(folder) if folder is not None and folder.is_dir() else None


def check_trained_roles(models: Mapping[str, ModelSpec], rubric: Rubric) -> None:
    """Raise InputError if a model was trained for another role than its own, for another rubric or for other
    people, or cannot answer as is set. `models` are the models by role: user, director, ranker, or any
    judge."""
    from mapo.local_model.role_file import check_role

    for role, spec in models.items():
        kind = role_kind(role)
        if kind == "judge" and "user" in models and spec.local == SHIPPED_JUDGE:
            raise InputError(
                f"the {role} was trained on replies to scripted people, but the user is a model",
                where=spec.model,
                fix="Name another judge. In a config, roles.judge.model='' leaves it to roles.everyone",
            )
        is_read_out(spec, kind)
        if file := role_file_of(spec):
            check_role(file, kind, rubric, spec.model)


def refuse_as_policy(spec: ModelSpec) -> None:
    """Raise InputError if a model was trained to judge or direct: it answers forms and cannot speak."""
    file = role_file_of(spec)
    if file is not None and file.role in READABLE:
        raise InputError(
            f"the policy was trained to be a {file.role} and cannot hold a dialogue",
            where=spec.model,
            fix=f"Name another model as policy, such as local:pocket. This one can be the {file.role}: "
            f"--{file.role}-model {spec.model}, or roles.{file.role}.model={spec.model} in a training",
        )


def role_kind(role: str) -> str:
    """Return the kind of a role among the models of a training: user, director, ranker, or any judge."""
    return role if role in ("user", "director", "ranker") else "judge"


def check_starts(models: Mapping[str, ModelSpec], unknown: Collection[str]) -> None:
    """Raise InputError if a trained judge, which knows turn forms only, would have to fill in start forms.
    `unknown` are the scenarios without start levels."""
    for role, spec in models.items():
        judges = role not in ("user", "director", "ranker", "check")
        if unknown and judges and knows_turns_only(spec):
            raise InputError(
                f"{counted(len(unknown), 'scenario')} without start levels, such as {min(unknown)}, and a "
                "trained judge cannot fill in start forms",
                where=spec.model,
                fix="Give start levels (scenarios.start_levels or --start-levels), or another judge",
            )


def check_forms(sampler: Sampler, spec: ModelSpec, role: str, rubric: Rubric) -> None:
    """Raise InputError if a local model cannot fill in the forms of its role: the options are not tokens that
    can be read out, or its answers may be shorter than a form."""
    if is_read_out(spec, role):
        letters = (Place("Act", tuple(ascii_uppercase)),)
        forms = (turn_places(rubric), start_places(rubric)) if role == "judge" else (letters,)
        for places in forms:
            form_tokens(sampler.template.tokenizer, places)
        return
    schemas = {"judge": (turn_schema(rubric), start_schema(rubric)), "director": (FORM,)}.get(role, ())
    limit = spec.sampling.max_tokens or MAX_TOKENS
    if schemas and (needed := max(map(sampler.guides.needed, schemas))) > limit:
        raise InputError(
            f"a form of the {role} takes up to {needed} tokens, but its answers may have {limit}",
            where=spec.model,
            fix=f"Set max_tokens of the {role} to {needed} or more, or judging = 'readout'",
        )
