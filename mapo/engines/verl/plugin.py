"""Plugin that verl loads in each of its processes (entry point `verl.plugins`). It registers the estimators.

Select one with `algorithm.adv_estimator`: mapo, or mapo_NAME for another method of `mapo.advantage`, with _pp
instead of ++ (mapo_turn, mapo_reinforce_pp). Options are in `+algorithm.mapo.*`. Methods that need more than
rewards (mt_grpo, gigpo, gdpo) work only with MapoTrainer, that is, with `mapo train --engine verl`. verl
ignores errors in plugins; set VERL_USE_EXTERNAL_MODULES=mapo.engines.verl.plugin to have them raised.
"""

from __future__ import annotations

import os
from functools import partial

if os.environ.get("VERL_PLATFORM") == "cpu":  # must run before verl looks up its platform
    from mapo.engines.verl.cpu.platform import install

    install()

from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

from mapo.engines.verl.estimator import estimate
from mapo.engines.verl.settings import METHODS

for _name, _method in METHODS.items():
    if _name not in ADV_ESTIMATOR_REGISTRY:
        register_adv_est(_name)(partial(estimate, _method))
