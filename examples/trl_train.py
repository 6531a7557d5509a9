"""MAPO on TRL's trainer: the embedded model in the scripted sandbox, on a CPU, in a minute or two.

    pip install 'mapo[trl]'
    python examples/trl_train.py

It prints the mean reward of a turn, batch by batch, and leaves the trained model in runs/trl: a plain Hugging
Face folder (`mapo eval empa --model local:runs/trl`). With a real model, model-driven roles and a GPU the
same lines are the real thing; see docs/trl.md.
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


class Show(TrainerCallback):
    """A line a batch."""

    def __init__(self) -> None:
        self.rewards: list[float] = []

    def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
        if (reward := logs.get("mapo/turn_reward")) is not None:
            self.rewards.append(reward)
            print(f"batch {len(self.rewards):2d}   reward of a turn {reward:+.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=12, help="batches of 32 dialogues")
    parser.add_argument("--out", default="runs/trl")
    given = parser.parse_args()

    policy = load_policy("pocket", device="cpu")
    scenarios = load_scenarios("builtin:train")
    sandbox = Sandbox(
        scenarios,
        scripted_cast("empathy"),
        Rules(Rubric.load("empathy"), max_turns=8, max_tokens=48),
        context=2048,
        at_once=32,
    )
    trainer = MAPOTrainer(
        policy.model,
        processing_class=policy.tokenizer,
        train_dataset=scenario_rows(scenarios),
        rollout_func=sandbox,
        args=MAPOConfig(
            given.out,
            method="mapo",
            gamma=0.85,
            num_generations=4,
            per_device_train_batch_size=8,
            steps_per_generation=4,  # 8 scenarios of 4 siblings, then four updates
            max_steps=4 * given.batches,
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
        callbacks=[show := Show()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trainer.save_model(given.out)
    third = max(1, given.batches // 3)
    first, last = sum(show.rewards[:third]) / third, sum(show.rewards[-third:]) / third
    print(f"first third {first:+.2f}, last third {last:+.2f}; the model is in {given.out}")


if __name__ == "__main__":
    main()
