"""The number of steps of a training that is configured in epochs."""

from __future__ import annotations

from mapo.config import Config, with_steps
from mapo.scenarios.sets import count_scenarios


def resolve_steps(config: Config) -> Config:
    """Return the config with `optim.epochs` replaced by the steps that they take on its training scenarios.

    Everything that counts steps (both engines, estimates, plans and progress displays) starts with this.
    """
    if config.optim.epochs is None:
        return config
    return with_steps(config, count_scenarios(config.scenarios.train, config.scenarios.domain))
