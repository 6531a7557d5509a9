"""Measure the cost of replacing TRL's advantages: MAPOTrainer against GRPOTrainer in one process.

    python benchmarks/trl_overhead.py [--dialogues 16] [--turns 10] [--steps 8]

Both get the same generated dialogues (nothing is sampled), so a step consists of padding, advantages, forward
and backward pass. Steps of the two trainers alternate, and the fastest step of each counts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import numpy as np
import torch
from datasets import Dataset

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from trl import GRPOConfig, GRPOTrainer

from mapo.engines.trl import MAPOConfig, MAPOTrainer
from mapo.engines.trl.contract import check_rollout, dialogue_return
from mapo.local_model.policy import load_policy


def random_rollout(dialogues: int, turns: int, words: int, between: int) -> dict:
    """Return a rollout in TRL's form: `words` tokens per reply and `between` tokens between replies."""
    rng = np.random.default_rng(0)
    rollout: dict = {
        "prompt_ids": [],
        "completion_ids": [],
        "logprobs": None,
        "turn_ids": [],
        "turn_rewards": [],
    }
    for _ in range(dialogues):
        count = int(rng.integers(turns // 2, turns + 1))
        ids = [[t] * words + [-1] * between for t in range(count)]
        flat = [t for part in ids for t in part]
        rollout["prompt_ids"].append(rng.integers(5, 200, 24).tolist())
        rollout["completion_ids"].append(rng.integers(5, 200, len(flat)).tolist())
        rollout["turn_ids"].append(flat)
        rollout["turn_rewards"].append(rng.normal(size=count).tolist())
    return rollout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("dialogues", 16), ("turns", 10), ("words", 24), ("between", 24), ("steps", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rollout = random_rollout(args.dialogues, args.turns, args.words, args.between)
    rows = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": str(i)}] for i in range(args.dialogues // 4)]}
    )
    batch = [dict(row) for row in rows for _ in range(4)]
    options = {
        "num_generations": 4,
        "per_device_train_batch_size": args.dialogues,
        "gradient_checkpointing": False,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
    }
    with tempfile.TemporaryDirectory() as out:
        policies = [load_policy("pocket", device="cpu") for _ in range(2)]
        trainers = {
            "grpo": GRPOTrainer(
                policies[0].model,
                dialogue_return,
                GRPOConfig(out, **options),
                rows,
                processing_class=policies[0].tokenizer,
                rollout_func=lambda prompts, _: check_rollout(rollout, len(prompts)),
            ),
            "mapo": MAPOTrainer(
                policies[1].model,
                args=MAPOConfig(out, **options),
                train_dataset=rows,
                processing_class=policies[1].tokenizer,
                rollout_func=lambda *_: rollout,
            ),
        }
        seconds: dict[str, list[float]] = {name: [] for name in trainers}
        scoring: dict[str, list[float]] = {name: [] for name in trainers}
        for step in range(args.steps + 1):
            for name, trainer in trainers.items():
                trainer.current_gradient_accumulation_steps = 1
                trainer.model.train()
                began = time.perf_counter()
                inputs = trainer._generate_and_score_completions([dict(row) for row in batch])
                scored = time.perf_counter()
                trainer._compute_loss(trainer.model, inputs).backward()
                trainer.model.zero_grad()
                if step:  # the first step is a warm-up
                    scoring[name].append(scored - began)
                    seconds[name].append(time.perf_counter() - began)
    step_s = {name: min(values) for name, values in seconds.items()}
    score_s = {name: min(values) for name, values in scoring.items()}
    for name in trainers:
        print(
            f"{name}: {1000 * step_s[name]:8.1f} ms per step, {1000 * score_s[name]:.2f} ms before the loss"
        )
    extra = score_s["mapo"] - score_s["grpo"]
    print(f"step, mapo / grpo: {step_s['mapo'] / step_s['grpo']:.3f}")
    print(f"replacing the advantages: {1000 * extra:.2f} ms, {100 * extra / step_s['grpo']:.2f} % of a step")


if __name__ == "__main__":
    main()
