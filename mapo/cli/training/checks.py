"""Checks of a training config that need neither the model nor a run directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mapo.config import Config


def check_policy(config: Config, device: str = "auto") -> None:
    """Check that the policy's model exists, and that there is a GPU if `device` is "cuda"."""
    from mapo.cli.common.preflight import preflight
    from mapo.players.spec import ModelSpec

    preflight({"policy": ModelSpec(f"local:{config.model.source}")}, device=device)


def check_roles(config: Config, scenarios: dict[str, int], *, done: int = 0, runs: int = 1) -> None:
    """Check that the endpoints of the roles answer, and print an estimate of what will be called.

    `scenarios` is their number per split, `done` the number of finished steps, `runs` that of equal runs.
    """
    from mapo.cli.common.preflight import preflight
    from mapo.planning.estimate import estimate_training
    from mapo.players.casting import cast_from_config
    from mapo.players.spec import models_by_role

    estimate = estimate_training(config, scenarios, done=done) * runs
    preflight(models_by_role(cast_from_config(config)), estimate=estimate)
