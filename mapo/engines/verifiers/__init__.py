"""The sandbox as an environment of verifiers (Prime Intellect), for its evaluations and for prime-rl.

    vf-eval mapo-empa -m my-model --client.base-url http://localhost:8000/v1

An environment of verifiers 0.4 is three classes: `EmpaTaskset` (`taskset.py`) has one row per scenario,
`EmpaEnv` (`environment.py`) plays one dialogue, and `EmpaHarness` (`harness.py`) asks the policy for a
reply. verifiers imports them by the name of a top-level module, hence `mapo_empa.py`. `turn_advantages`
(`credit.py`) computes mapo's advantages from finished rollouts.
"""

from __future__ import annotations

from mapo.engines.verifiers.credit import assign_advantages, dialogue_of, turn_advantages
from mapo.engines.verifiers.environment import EmpaEnv, EmpaEnvConfig
from mapo.engines.verifiers.harness import EmpaHarness, EmpaHarnessConfig
from mapo.engines.verifiers.taskset import EmpaTask, EmpaTaskset, EmpaTasksetConfig

__all__ = [
    "EmpaEnv",
    "EmpaEnvConfig",
    "EmpaHarness",
    "EmpaHarnessConfig",
    "EmpaTask",
    "EmpaTaskset",
    "EmpaTasksetConfig",
    "assign_advantages",
    "dialogue_of",
    "turn_advantages",
]
