"""What replacing TRL's advantages costs: steps of MAPOTrainer against steps of GRPOTrainer, in one run.

Both get the same dialogues, made up beforehand (nothing is sampled), so a step is padding, credit, forward
and backward pass. Steps of the two alternate; of each the fastest counts.

    python benchmarks/trl_overhead.py [--dialogues 16] [--turns 10] [--steps 8]
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


def made_up(dialogues: int, turns: int, words: int, between: int) -> dict:
    chance = np.random.default_rng(0)
    found: dict = {
        "prompt_ids": [],
        "completion_ids": [],
        "logprobs": None,
        "turn_ids": [],
        "turn_rewards": [],
    }
    for _ in range(dialogues):
        count = int(chance.integers(turns // 2, turns + 1))
        ids = [[t] * words + [-1] * between for t in range(count)]
        flat = [t for part in ids for t in part]
        found["prompt_ids"].append(chance.integers(5, 200, 24).tolist())
        found["completion_ids"].append(chance.integers(5, 200, len(flat)).tolist())
        found["turn_ids"].append(flat)
        found["turn_rewards"].append(chance.normal(size=count).tolist())
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("dialogues", 16), ("turns", 10), ("words", 24), ("between", 24), ("steps", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rollout = made_up(given.dialogues, given.turns, given.words, given.between)
    rows = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": str(i)}] for i in range(given.dialogues // 4)]}
    )
    batch = [dict(row) for row in rows for _ in range(4)]
    plain = {
        "num_generations": 4,
        "per_device_train_batch_size": given.dialogues,
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
                GRPOConfig(out, **plain),
                rows,
                processing_class=policies[0].tokenizer,
                rollout_func=lambda prompts, _: check_rollout(rollout, len(prompts)),
            ),
            "mapo": MAPOTrainer(
                policies[1].model,
                args=MAPOConfig(out, **plain),
                train_dataset=rows,
                processing_class=policies[1].tokenizer,
                rollout_func=lambda *_: rollout,
            ),
        }
        seconds: dict[str, list[float]] = {name: [] for name in trainers}
        scoring: dict[str, list[float]] = {name: [] for name in trainers}
        for step in range(given.steps + 1):
            for name, trainer in trainers.items():
                trainer.current_gradient_accumulation_steps = 1
                trainer.model.train()
                began = time.perf_counter()
                inputs = trainer._generate_and_score_completions([dict(row) for row in batch])
                scored = time.perf_counter()
                trainer._compute_loss(trainer.model, inputs).backward()
                trainer.model.zero_grad()
                if step:  # the first one warms up
                    scoring[name].append(scored - began)
                    seconds[name].append(time.perf_counter() - began)
    step_s = {name: min(values) for name, values in seconds.items()}
    score_s = {name: min(values) for name, values in scoring.items()}
    for name in trainers:
        print(f"{name}: {1000 * step_s[name]:8.1f} ms a step, {1000 * score_s[name]:.2f} ms before the loss")
    extra = score_s["mapo"] - score_s["grpo"]
    print(f"step, mapo / grpo: {step_s['mapo'] / step_s['grpo']:.3f}")
    print(f"replacing the advantages: {1000 * extra:.2f} ms, {100 * extra / step_s['grpo']:.2f} % of a step")


if __name__ == "__main__":
    main()
