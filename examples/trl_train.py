"""MAPO with TRL's trainer: the embedded model and scripted roles, on a CPU, in two minutes.

    pip install '.[trl]'
    python examples/trl_train.py

It prints the mean turn reward of each batch and writes the trained model to runs/trl, a Hugging Face folder
(`mapo eval empa --model local:runs/trl`). For a real model and model roles see docs/trl.md.
"""

from __future__ import annotations

import argparse
from typing import Any

from transformers import PrinterCallback, TrainerCallback

from mapo import Rubric, Rules
from mapo.engines.trl import MAPOConfig, MAPOTrainer, Sandbox, scenario_rows
from mapo.local_model.policy import load_policy
from mapo.sandbox.domain import scripted_cast
from mapo.scenarios.sets import load_scenarios


class PrintRewards(TrainerCallback):
    """Prints one line per batch."""

    def __init__(self) -> None:
        self.rewards: list[float] = []

    def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
        if (reward := logs.get("mapo/turn_reward")) is not None:
            self.rewards.append(reward)
            print(f"batch {len(self.rewards):2d}   turn reward {reward:+.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=12, help="batches of 32 dialogues")
    parser.add_argument("--out", default="runs/trl")
    options = parser.parse_args()

    policy = load_policy("pocket", device="cpu")
    scenarios = load_scenarios("builtin:train")
    sandbox = Sandbox(
        scenarios,
        scripted_cast("empathy"),
        Rules(Rubric.load("empathy"), max_turns=8, max_tokens=32),
        context=2048,
        at_once=32,
    )
    trainer = MAPOTrainer(
        policy.model,
        processing_class=policy.tokenizer,
        train_dataset=scenario_rows(scenarios),
        rollout_func=sandbox,
        args=MAPOConfig(
            options.out,
            method="mapo",
            gamma=0.85,
            num_generations=4,
            per_device_train_batch_size=8,
            steps_per_generation=4,  # 8 scenarios of 4 siblings, then four updates
            max_steps=4 * options.batches,
            learning_rate=5e-4,
            lr_scheduler_type="constant",
            logging_steps=4,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
        ),
        callbacks=[rewards := PrintRewards()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trainer.save_model(options.out)
    third = max(1, options.batches // 3)
    first, last = sum(rewards.rewards[:third]) / third, sum(rewards.rewards[-third:]) / third
    print(f"Mean turn reward: {first:+.2f} in the first third, {last:+.2f} in the last. Model: {options.out}")


if __name__ == "__main__":
    main()
