"""TRL's GRPO trainer with our advantages.

TRL samples a batch, scores it and takes the loss; in between stands one value a completion. Here a completion
is a whole dialogue, and that value is replaced by one a token: the advantage of the turn it was said in, from
`mapo.advantages` over the dialogues of all processes (a group may span several). Tokens of turns that may not
enter the loss are masked out, and the token mean is taken over those that are left. Everything else is TRL's.

With `loss_type="dapo"` (TRL's default) and the defaults below, gradients are those of the local engine.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from trl import GRPOConfig, GRPOTrainer

from mapo.advantage import HORIZONS, METHODS, SCOPES, Advantages, advantages
from mapo.engines.trl.contract import Rewards, checked, dialogue_return, spread
from mapo.engines.trl.sandbox import Sandbox
from mapo.errors import InputError, TrainError
from mapo.train.metrics import credit_metrics
from mapo.train.processes import ProcessGroup

RolloutFunc = Callable[[list[Any], Any], dict[str, Any]]
"""TRL's: the prompts of this process's dialogues, siblings side by side, and the trainer."""

_OURS = ("reward_funcs", "reward_processing_classes", "tools", "environment_factory")


def _option(default: Any, told: str) -> Any:
    return field(default=default, metadata={"help": told})


@dataclass
class MAPOConfig(GRPOConfig):
    """TRL's settings and the estimator's; `num_generations` is the number of siblings."""

    method: str = _option("mapo", f"How turns are credited: {', '.join(METHODS)}.")
    gamma: float = _option(0.85, "Discount a turn.")
    turn_weight: float = _option(0.5, "Weight of the turn part; the batch part has the rest.")
    scope: str = _option("group", f"Whom the batch part compares with: {', '.join(SCOPES)}.")
    horizon: str = _option("available", f"Which turns count: {', '.join(HORIZONS)}.")
    epsilon_high: float | None = _option(0.28, "Upper clip of the ratio.")
    delta: float | None = _option(
        10.0, "Dual clip: a token of negative advantage costs at most this often it."
    )

    def __post_init__(self) -> None:
        if not self.num_generations or self.num_generations < 2:
            raise InputError(
                f"num_generations is {self.num_generations}",
                fix="A turn is compared with those of sibling dialogues: give 2 or more",
            )
        self.credit([], [])  # refuses what the estimator would refuse after an hour of play
        super().__post_init__()

    def credit(self, rewards: Sequence[Sequence[float | None]], groups: Sequence[Hashable]) -> Advantages:
        return advantages(
            rewards,
            groups,
            self.method,
            gamma=self.gamma,
            turn_weight=self.turn_weight,
            scope=self.scope,
            horizon=self.horizon,
        )


class MAPOTrainer(GRPOTrainer):
    """GRPOTrainer whose rewards are those of turns; `rollout_func` plays the dialogues.

    It is a `Sandbox`, or a function of your own that keeps the contract. `rows` holds the dataset's rows that
    are being played, one a prompt, for it to look at. Whatever else GRPOTrainer takes is handed on.
    """

    _tag_names: ClassVar[list[str]] = ["trl", "mapo"]
    _name = "MAPO"
    _paper: ClassVar[dict[str, str]] = {"title": "Mixed Advantage Policy Optimization", "id": "2603.06194"}

    def __init__(
        self, model: Any, *, args: MAPOConfig, train_dataset: Any, rollout_func: RolloutFunc, **trl: Any
    ) -> None:
        if not isinstance(args, MAPOConfig):
            raise InputError(
                f"args is a {type(args).__name__}", fix="Use MAPOConfig: TRL's settings and ours"
            )
        if taken := [name for name in _OURS if name in trl]:
            raise InputError(f"{', '.join(taken)} given", fix="MAPO's rewards come with rollout_func's turns")
        super().__init__(model, reward_funcs=dialogue_return, args=args, train_dataset=train_dataset, **trl)
        self.rows: list[dict[str, Any]] = []
        if isinstance(rollout_func, Sandbox):
            rollout_func.begin(self)
        self.rollout_func = lambda prompts, trainer: checked(rollout_func(prompts, trainer), len(prompts))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's batch, with its advantages replaced; TRL puts what the rollout returned into `inputs`."""
        self.rows = inputs
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        mine: list[Rewards] = [row["turn_rewards"] for row in inputs]
        every = self._team().gather(mine)
        credit = self._credit(every)
        first = self.accelerator.process_index * len(inputs)
        said = batch["completion_ids"]
        advantage, mask = spread([row["turn_ids"] for row in inputs], mine, credit, first, said.shape[1])
        batch["advantages"] = torch.from_numpy(advantage).to(said.device)
        batch["tool_mask"] = torch.from_numpy(mask).to(said.device)
        trained = (batch["completion_mask"] * batch["tool_mask"]).sum()
        batch["num_items_in_batch"] = self.accelerator.gather(trained).sum()
        self._report(every, credit)
        return batch

    def _team(self) -> ProcessGroup:
        accelerator = self.accelerator
        return ProcessGroup(accelerator.process_index, accelerator.num_processes, str(accelerator.device))

    def _credit(self, every: Sequence[Rewards]) -> Advantages:
        """Of the whole batch; one that broke has no turns, so it is nobody's peer."""
        if self.model.training and all(row is None for row in every):
            raise TrainError(
                f"not one dialogue of step {self.state.global_step + 1} can be used",
                fix="Each one's `error` says why it broke (Sandbox: on_done)",
            )
        siblings = self.num_generations if self.model.training else self.num_generations_eval
        config: MAPOConfig = self.args
        return config.credit([row or [] for row in every], [at // siblings for at in range(len(every))])

    def _report(self, every: Sequence[Rewards], credit: Advantages) -> None:
        """Our figures beside TRL's, which then show dialogues with their own mean advantage."""
        usable = [row for row in every if row is not None]
        rewards = [reward for row in usable for reward in row]
        scored = [reward for reward in rewards if reward is not None]
        figures = {
            "turn_reward": sum(scored) / max(1, len(scored)),
            "turns": len(rewards) / max(1, len(usable)),
            "unscored": 1.0 - len(scored) / max(1, len(rewards)),
            "broken": (len(every) - len(usable)) / len(every),
            **credit_metrics(usable, credit),
        }
        told = self._metrics["train" if self.model.training else "eval"]
        for name, value in figures.items():
            if isinstance(value, int | float):
                told[f"mapo/{name}"].append(float(value))
        shown = self._logs["advantages"]
        for _ in range(min(len(shown), len(every))):
            shown.pop()
        shown.extend(
            float(a[m].mean()) if m.any() else 0.0 for a, m in zip(credit.mixed, credit.mask, strict=True)
        )
