"""MAPO for people who live in TRL: its GRPO trainer with our advantages, turn by turn.

`MAPOTrainer` takes its rewards from the turns of dialogues (`trainer.py`). `Sandbox` plays those dialogues as
the local engine does (`sandbox.py`); a rollout function of your own will do if it keeps the contract
(`contract.py`, docs/trl.md).
"""

from __future__ import annotations

from mapo.engines.trl.contract import rollout_of
from mapo.engines.trl.sandbox import Sandbox, scenario_rows
from mapo.engines.trl.trainer import MAPOConfig, MAPOTrainer

__all__ = ["MAPOConfig", "MAPOTrainer", "Sandbox", "rollout_of", "scenario_rows"]
