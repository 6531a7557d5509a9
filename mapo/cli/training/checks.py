"""Checks of a training config that need neither the model nor a run directory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from mapo.store import RunDir

if TYPE_CHECKING:
    from mapo.config import Config
    from mapo.scenarios.scenario import Scenario


def check_policy(config: Config, device: str = "auto") -> None:
    """Check that the policy's model exists, and that there is a GPU if `device` is "cuda"."""
    from mapo.cli.common.preflight import preflight
    from mapo.players.reading import refuse_as_policy
    from mapo.players.spec import ModelSpec

    policy = ModelSpec(f"local:{config.model.source}")
    preflight({"policy": policy}, device=device)
    refuse_as_policy(policy)


def check_roles(
    config: Config, scenarios: Mapping[str, Sequence[Scenario]], *, done: int = 0, runs: int = 1
) -> None:
    """Check that the endpoints of the roles answer, and print an estimate of what will be called.

    `scenarios` are those of each split, `done` is the number of finished steps, `runs` that of equal runs.
    """
    from mapo.cli.common.messages import say_all
    from mapo.cli.common.preflight import preflight
    from mapo.config import with_steps
    from mapo.domain_folders import domain_folder
    from mapo.measure.rubric import Rubric
    from mapo.planning.estimate import estimate_training
    from mapo.players.casting import every_model
    from mapo.players.reading import check_starts, check_trained_roles
    from mapo.scenarios.start_levels import check_start_levels, read_start_levels

    sizes = {split: len(members) for split, members in scenarios.items()}
    members = [s for split in scenarios.values() for s in split]
    table = read_start_levels(Path(source)) if (source := config.scenarios.start_levels) else {}
    if table:
        rubric = Rubric.load(domain_folder(config.scenarios.domain))
        without_own = [s for s in members if s.id in table or not s.start_levels]
        say_all("warning", check_start_levels(table, without_own, rubric), most=5)
    unknown = {s.id for s in members if not (s.start_levels or s.id in table)}
    config = with_steps(config, sizes["train"])
    _warn_about_turn_limits(config)
    estimate = estimate_training(config, sizes, done=done, starts=len(unknown)) * runs
    check_trained_roles(every_model(config), Rubric.load(domain_folder(config.scenarios.domain)))
    check_starts(every_model(config), unknown)
    preflight(every_model(config), estimate=estimate)


def _warn_about_turn_limits(config: Config) -> None:
    """Warn if dialogues are too short for a success."""
    from mapo.cli.common.messages import say
    from mapo.domain_folders import domain_folder
    from mapo.measure.rubric import Rubric

    rubric_least = Rubric.load(domain_folder(config.scenarios.domain)).ending.min_turns
    limits = {
        "rollout.max_turns": (config.rollout.min_turns, config.rollout.max_turns),
        "eval.max_turns": (config.eval.min_turns, config.eval.max_turns),
    }
    if config.eval.max_turns is not None and config.eval.max_turns >= (config.eval.min_turns or rubric_least):
        del limits["rollout.max_turns"]  # short training dialogues are meant if the test has longer ones
    for key, (own_least, limit) in limits.items():
        least = own_least or rubric_least
        if limit is not None and limit < least:
            say(
                f"warning: no dialogue can pass with {key} = {limit}: success requires at least {least} turns"
            )


def is_config_of(out: Path, files: Sequence[str]) -> bool:
    """Return whether the config that is named is the one in the run directory `out`."""
    own = RunDir(out).config
    return bool(files) and own.is_file() and Path(files[0]).is_file() and own.samefile(files[0])


def check_run_config(config: Config, out: Path, command: str, overrides: Sequence[str] = ()) -> None:
    """Check a config that was read from a run directory because none was given. Raise InputError if it would
    execute code or send a key.

    A run directory may come from somebody else, so it is data: what it names is used only after the user
    named it too, in `overrides` or by giving the config itself.
    """
    from mapo.domain_folders import DEFAULT
    from mapo.errors import InputError

    if any(text.partition("=")[0].strip() == "scenarios.domain" for text in overrides):
        config = config.model_copy(
            update={"scenarios": config.scenarios.model_copy(update={"domain": DEFAULT})}
        )
    reasons = _trusted_parts(config)
    if reasons:
        path = str(RunDir(out).config)
        again = f"{command} {quote(path)} --out {quote(str(out))}"
        raise InputError(
            f"the config in this run directory {' and '.join(reasons)}",
            where=path,
            fix=f"If you trust it, name it: {again}{' --resume' if command == 'mapo train' else ''}",
        )


def check_inherited_axes(keys: Sequence[str]) -> None:
    """Check the settings that the grid in a folder varies and the user did not name again. Raise InputError
    if they can execute code or send a key: the folder may come from somebody else."""
    from mapo.errors import InputError

    for key in keys:
        harmless = key.rpartition(".")[2] in (
            "model",
            "temperature",
            "top_p",
            "max_tokens",
            "judging",
            "agents",
            "context",
        )
        role = key.startswith(("roles", "eval.judge"))
        if key in ("scenarios.domain", "verl.settings") or (role and not harmless):
            raise InputError(
                f"the ablation in this folder varies {key}, which can execute code or send a key",
                fix=f"If you trust it, name the setting and its values: --vary {key}=...",
            )


def resume_command(config: Config, out: Path, engine: str = "") -> str:
    """Return the command that resumes a training run."""
    named = [quote(str(RunDir(out).config))] if _trusted_parts(config) else []
    engines = ["--engine", engine] if engine else []
    return " ".join(["mapo train", *engines, *named, "--out", quote(str(out)), "--resume"])


def _trusted_parts(config: Config) -> list[str]:
    """Return what the config does beyond naming data: executing code and sending keys."""
    from mapo.config import EMPA_PROMPTS
    from mapo.domain_folders import SHIPPED
    from mapo.players.casting import every_model
    from mapo.players.spec import KEY_ENV, ModelSpec

    parts = []
    if config.scenarios.domain not in SHIPPED:
        parts.append(f"executes the Python files of the domain {config.scenarios.domain}")
    if config.roles.prompts == EMPA_PROMPTS:
        parts.append(f"imports the Python package {EMPA_PROMPTS} (roles.prompts)")
    if config.verl.settings:
        parts.append("passes settings to verl, which can load code")
    default = ModelSpec("any").address
    keys = {
        (spec.key_env, spec.address)
        for spec in every_model(config).values()
        if spec.address is not None
        and (spec.address, spec.key_env) != (default, KEY_ENV)
        and os.environ.get(spec.key_env)
    }
    return parts + [f"sends the key in {key_env} to {address}" for key_env, address in sorted(keys)]
