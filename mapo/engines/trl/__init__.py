"""MAPO in TRL: the GRPO trainer with mapo's turn advantages.

`MAPOTrainer` (`trainer.py`) takes its rewards from the turns of dialogues. `Sandbox` (`sandbox.py`) plays the
dialogues as the local engine does. Any other rollout function works if it follows the contract
(`contract.py`, docs/trl.md).
"""

from __future__ import annotations

from mapo.engines.trl.contract import rollout_of
from mapo.engines.trl.sandbox import Sandbox, scenario_rows
from mapo.engines.trl.trainer import MAPOConfig, MAPOTrainer

__all__ = ["MAPOConfig", "MAPOTrainer", "Sandbox", "rollout_of", "scenario_rows"]
