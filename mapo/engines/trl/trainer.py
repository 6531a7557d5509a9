"""TRL's GRPO trainer with mapo's advantages.

GRPOTrainer has one advantage per completion. Here a completion is a whole dialogue, and each token gets the
advantage of its turn, computed by `mapo.advantages` over the dialogues of all processes (a group may span
several). Tokens of turns that are excluded from the loss are masked, and the token mean is taken over the
rest. Everything else is TRL's.

With `loss_type="dapo"` (TRL's default) and the defaults below, gradients equal those of the local engine.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from trl import GRPOConfig, GRPOTrainer

from mapo.advantage import ENDINGS, HORIZONS, METHODS, SCALES, SCOPES, Advantages, advantages
from mapo.config import Advantage
from mapo.credit import STATES, credit_inputs
from mapo.engines.trl.contract import (
    EXCLUDED,
    Rewards,
    all_entries,
    check_rollout,
    dialogue_return,
    token_advantages,
)
from mapo.engines.trl.sandbox import Sandbox
from mapo.errors import InputError, TrainError
from mapo.estimators.methods import ESTIMATORS
from mapo.measure.rubric import Rubric
from mapo.train.metrics import credit_metrics
from mapo.train.processes import ProcessGroup
from mapo.types import Dialogue

RolloutFunc = Callable[[list[Any], Any], dict[str, Any]]
"""Rollout function as defined by TRL. It gets this process's prompts, siblings adjacent, and the trainer."""

_UNSUPPORTED = ("reward_funcs", "reward_processing_classes", "tools", "environment_factory")


def _option(default: Any, description: str) -> Any:
    return field(default=default, metadata={"help": description})


@dataclass
class MAPOConfig(GRPOConfig):
    """GRPOConfig with the options of the estimator. `num_generations` is the number of siblings."""

    method: str = _option("mapo", f"Advantage estimator: {', '.join(METHODS)}.")
    gamma: float = _option(0.85, "Discount per turn.")
    turn_weight: float = _option(
        0.5, "Weight of the turn-level advantage; the batch-level advantage has the rest."
    )
    scope: str = _option("group", f"Dialogues the batch-level advantage compares with: {', '.join(SCOPES)}.")
    horizon: str = _option("available", f"Turns that are trained: {', '.join(HORIZONS)}.")
    endings: str = _option(
        "auto",
        f"How dialogues that end before their siblings go on in the statistics: {', '.join(ENDINGS)}. "
        "auto: held in a Sandbox whose reward is adr, else continued.",
    )
    scale: str | None = _option(
        None, f"Scale of differences: {', '.join(SCALES)} (default: as in the method's paper)."
    )
    lam: float = _option(0.95, "Lambda of turn_gae.")
    step_weight: float = _option(1.0, "Weight of the second part of mt_grpo and gigpo.")
    states: str = _option("binned", f"States that gigpo takes as equal, in a Sandbox: {', '.join(STATES)}.")
    mask_faults: bool = _option(
        False, "Do not train replies to user messages that are at fault, in a Sandbox (`Turn.faults`)."
    )
    epsilon_high: float | None = _option(0.28, "Upper clip of the probability ratio.")
    delta: float | None = _option(10.0, "Dual clip: upper limit of the ratio for negative advantages.")

    def __post_init__(self) -> None:
        if not self.num_generations or self.num_generations < 2:
            raise InputError(
                f"num_generations is {self.num_generations}",
                fix="Use 2 or more: turns are compared with those of sibling dialogues",
            )
        self.credit([], [])  # validates the options before anything is played
        if self.states not in STATES:
            raise InputError(f"unknown states {self.states!r}", fix=f"Use one of: {', '.join(STATES)}")
        super().__post_init__()

    def credit_inputs(self, dialogues: Sequence[Dialogue], rubric: Rubric) -> dict[str, Any]:
        """Return the keys that the settings need beside those of `rollout_of`."""
        settings = Advantage.model_validate(
            {"method": self.method, "states": self.states, "mask_faults": self.mask_faults}
        )
        return credit_inputs(dialogues, settings, rubric)

    def credit(
        self,
        rewards: Sequence[Sequence[float | None]],
        groups: Sequence[Hashable],
        reward: str = "",
        **inputs: Any,
    ) -> Advantages:
        """Return the advantages. `reward` is the name of the rewards, if they have one in mapo."""
        auto = self.endings == "auto"
        return advantages(
            rewards,
            groups,
            self.method,
            gamma=self.gamma,
            turn_weight=self.turn_weight,
            scope=self.scope,
            horizon=self.horizon,
            endings=Advantage().resolved(reward).endings if auto else self.endings,
            scale=self.scale,
            lam=self.lam,
            step_weight=self.step_weight,
            **inputs,
        )


class MAPOTrainer(GRPOTrainer):
    """GRPOTrainer with a reward per turn.

    `rollout_func` plays the dialogues: a `Sandbox`, or any function that follows the contract. `rows` has the
    dataset rows being played, one per prompt. Other arguments are passed on to GRPOTrainer.
    """

    _tag_names: ClassVar[list[str]] = ["trl", "mapo"]
    _name = "MAPO"
    _paper: ClassVar[dict[str, str]] = {"title": "Mixed Advantage Policy Optimization", "id": "2603.06194"}

    def __init__(
        self, model: Any, *, args: MAPOConfig, train_dataset: Any, rollout_func: RolloutFunc, **trl: Any
    ) -> None:
        if not isinstance(args, MAPOConfig):
            raise InputError(
                f"args is a {type(args).__name__}", fix="Use a MAPOConfig, which extends GRPOConfig"
            )
        if unsupported := [name for name in _UNSUPPORTED if name in trl]:
            raise InputError(
                f"MAPOTrainer does not support {', '.join(unsupported)}",
                fix="Remove them: rewards are the turn_rewards that rollout_func returns",
            )
        super().__init__(model, reward_funcs=dialogue_return, args=args, train_dataset=train_dataset, **trl)
        self.rows: list[dict[str, Any]] = []
        self._reward = ""
        if isinstance(rollout_func, Sandbox):
            rollout_func.begin(self)
            self._reward = rollout_func.rules.reward
        self.rollout_func = lambda prompts, trainer: check_rollout(
            rollout_func(prompts, trainer), len(prompts), args.method
        )

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return TRL's batch with token advantages. TRL adds the rollout's output to `inputs`."""
        self.rows = inputs
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        rewards: list[Rewards] = [row["turn_rewards"] for row in inputs]
        all_rewards = self._process_group().gather(rewards)
        credit = self._credit(all_rewards, self._credit_inputs(inputs))
        first = self.accelerator.process_index * len(inputs)
        completions = batch["completion_ids"]
        turn_ids = [row["turn_ids"] for row in inputs]
        advantage, mask = token_advantages(turn_ids, rewards, credit, first, completions.shape[1])
        batch["advantages"] = torch.from_numpy(advantage).to(completions.device)
        batch["tool_mask"] = torch.from_numpy(mask).to(completions.device)
        trained = (batch["completion_mask"] * batch["tool_mask"]).sum()
        batch["num_items_in_batch"] = self.accelerator.gather(trained).sum()
        self._log_metrics(all_rewards, credit)
        return batch

    def _process_group(self) -> ProcessGroup:
        accelerator = self.accelerator
        return ProcessGroup(accelerator.process_index, accelerator.num_processes, str(accelerator.device))

    def _credit_inputs(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return what is needed beside the rewards, for the batch of all processes."""
        need = ESTIMATORS[self.args.method].needs
        keys = [key for key in (need, EXCLUDED) if key and key in rows[0]]
        weights = {"axis_weights": rows[0].get("axis_weights")} if need == "axes" else {}
        gather = self._process_group().gather
        return {key: all_entries(key, gather([row[key] for row in rows])) for key in keys} | weights

    def _credit(self, all_rewards: Sequence[Rewards], inputs: dict[str, Any]) -> Advantages:
        """Compute the advantages of the batch of all processes. Broken dialogues count as having no turns."""
        if self.model.training and all(row is None for row in all_rewards):
            raise TrainError(
                f"no dialogue of step {self.state.global_step + 1} is usable",
                fix="See `Dialogue.error` of the dialogues passed to the Sandbox's on_done",
            )
        siblings = self.num_generations if self.model.training else self.num_generations_eval
        config: MAPOConfig = self.args
        groups = [index // siblings for index in range(len(all_rewards))]
        return config.credit([row or [] for row in all_rewards], groups, self._reward, **inputs)

    def _log_metrics(self, all_rewards: Sequence[Rewards], credit: Advantages) -> None:
        """Add mapo's metrics to TRL's, and replace the advantages in TRL's completion table by mean ones."""
        usable = [row for row in all_rewards if row is not None]
        rewards = [reward for row in usable for reward in row]
        scored = [reward for reward in rewards if reward is not None]
        metrics = {
            "turn_reward": sum(scored) / max(1, len(scored)),
            "turns": len(rewards) / max(1, len(usable)),
            "unscored": 1.0 - len(scored) / max(1, len(rewards)),
            "broken": (len(all_rewards) - len(usable)) / len(all_rewards),
            **credit_metrics(usable, credit),
        }
        log = self._metrics["train" if self.model.training else "eval"]
        for name, value in metrics.items():
            if isinstance(value, int | float):
                log[f"mapo/{name}"].append(float(value))
        advantage_log = self._logs["advantages"]
        for _ in range(min(len(advantage_log), len(all_rewards))):
            advantage_log.pop()
        advantage_log.extend(
            float(a[m].mean()) if m.any() else 0.0 for a, m in zip(credit.mixed, credit.mask, strict=True)
        )
