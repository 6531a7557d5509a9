"""Measure the cost of mapo's estimators inside verl, compared with verl's own.

    .venv-verl/bin/python benchmarks/verl_advantage.py [--dialogues 128] [--tokens 30000] [--turns 15]

Each dialogue is one long row; groups have 4 dialogues. Every estimator gets the same tensors on the CPU,
where verl computes advantages, through verl's `compute_advantage`. Estimators that need more than rewards are
left out. The estimators alternate, and the median of the repeats counts. Ratios are meaningful on a noisy
machine; absolute times are not.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

import numpy as np

with warnings.catch_warnings():  # raised while importing verl
    warnings.simplefilter("ignore")
    import torch
    from omegaconf import OmegaConf
    from tensordict import TensorDict
    from verl import DataProto
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.ray_trainer import compute_advantage

from mapo import advantages
from mapo.engines.verl.settings import METHODS
from mapo.estimators.methods import ESTIMATORS

VERL_ESTIMATORS = {
    "gae": AdvantageEstimator.GAE,
    "reinforce_plus_plus": AdvantageEstimator.REINFORCE_PLUS_PLUS,
    "grpo": AdvantageEstimator.GRPO,
}
CONFIG = OmegaConf.create({"gamma": 1.0, "mapo": {"gamma": 0.85}})


def random_batch(dialogues: int, tokens: int, turns: int) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """Return verl's tensors and the turn rewards [dialogue, turn]; one turn in ten is unscored."""
    from mapo.engines.verl.estimator import UNSCORED

    rng = np.random.default_rng(0)
    rewards = torch.zeros(dialogues, tokens)
    mask = torch.zeros(dialogues, tokens, dtype=torch.int64)
    turn = tokens // turns
    reply = turn // 2
    turn_rewards = rng.normal(size=(dialogues, turns)).astype(np.float32)
    turn_rewards[rng.random(turn_rewards.shape) < 0.1] = np.nan
    for i, j in np.ndindex(turn_rewards.shape):
        unscored = bool(np.isnan(turn_rewards[i, j]))
        mask[i, j * turn : j * turn + reply] = int(not unscored)
        rewards[i, j * turn + reply - 1] = UNSCORED if unscored else float(turn_rewards[i, j])
    values = torch.from_numpy(rng.normal(size=(dialogues, tokens)).astype(np.float32))
    return {"token_level_rewards": rewards, "response_mask": mask, "values": values}, turn_rewards


def seconds(tensors: dict[str, torch.Tensor], uid: np.ndarray, name: str) -> tuple[float, torch.Tensor]:
    data = DataProto(batch=TensorDict(dict(tensors), batch_size=len(uid)), non_tensor_batch={"uid": uid})
    began = time.perf_counter()
    result = compute_advantage(data, adv_estimator=VERL_ESTIMATORS.get(name, name), config=CONFIG)
    return time.perf_counter() - began, result.batch["advantages"]


def check(
    tensors: dict[str, torch.Tensor], turn_rewards: np.ndarray, uid: np.ndarray, result: torch.Tensor
) -> None:
    """Check that the first token of every turn has the turn's advantage."""
    expected = advantages(list(turn_rewards.astype(np.float64)), list(uid), gamma=0.85).mixed
    turn = tensors["response_mask"].shape[1] // turn_rewards.shape[1]
    first = result[:, : turn * turn_rewards.shape[1] : turn].numpy()
    np.testing.assert_allclose(first, np.stack(expected), atol=1e-6)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("dialogues", 128), ("tokens", 30_000), ("turns", 15), ("repeats", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tensors, turn_rewards = random_batch(args.dialogues, args.tokens, args.turns)
    uid = np.array([f"s{i // 4}" for i in range(args.dialogues)], dtype=object)
    names = [name for name, method in METHODS.items() if ESTIMATORS[method].needs is None]
    durations: dict[str, list[float]] = {name: [] for name in [*names, *VERL_ESTIMATORS]}
    for repeat in range(args.repeats + 1):
        for name, times in durations.items():
            time_s, result = seconds(tensors, uid, name)
            if repeat:  # the first round is a warm-up
                times.append(time_s)
            elif name == "mapo":
                check(tensors, turn_rewards, uid, result)
    median = {name: statistics.median(times) for name, times in durations.items()}
    print(f"{args.dialogues} dialogues of {args.tokens} tokens, {args.turns} turns")
    for name, time_s in median.items():
        print(f"{name:24} {1000 * time_s:8.1f} ms")
    for name in VERL_ESTIMATORS:
        print(f"mapo / {name}: {median['mapo'] / median[name]:.3f}")


if __name__ == "__main__":
    main()
