"""What verl loads in each of its processes (entry point `verl.plugins`): our estimators, by name.

`algorithm.adv_estimator=mapo`, or mapo_turn, mapo_batch, mapo_grpo, mapo_reinforce_pp and
mapo_reinforce_pp_turn; options in `+algorithm.mapo.*`. verl swallows what goes wrong in a plugin; with
VERL_USE_EXTERNAL_MODULES=mapo.engines.verl.plugin it is raised.
"""

from __future__ import annotations

import os
from functools import partial

if os.environ.get("VERL_PLATFORM") == "cpu":  # before anything of verl asks which platform there is
    from mapo.engines.verl.cpu.platform import install

    install()

from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

from mapo.engines.verl.estimator import estimate
from mapo.engines.verl.settings import METHODS

for _name, _method in METHODS.items():
    if _name not in ADV_ESTIMATOR_REGISTRY:
        register_adv_est(_name)(partial(estimate, _method))
