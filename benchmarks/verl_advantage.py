"""What our estimators cost inside verl, beside verl's own, in one run.

    .venv-verl/bin/python benchmarks/verl_advantage.py [--dialogues 128] [--tokens 30000] [--turns 15]

Dialogues of one long row each, in groups of 4: a turn's tokens, then the user's. Every estimator gets the
same tensors, on the CPU, where verl computes advantages, and goes through verl's `compute_advantage`. They
take turns; the median of the repeats counts. Ratios mean something on a noisy machine; absolute times do not.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

import numpy as np

with warnings.catch_warnings():  # theirs, on being imported
    warnings.simplefilter("ignore")
    import torch
    from omegaconf import OmegaConf
    from tensordict import TensorDict
    from verl import DataProto
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.ray_trainer import compute_advantage

from mapo import advantages
from mapo.engines.verl.settings import METHODS

THEIRS = {
    "gae": AdvantageEstimator.GAE,
    "reinforce_plus_plus": AdvantageEstimator.REINFORCE_PLUS_PLUS,
    "grpo": AdvantageEstimator.GRPO,
}
CONFIG = OmegaConf.create({"gamma": 1.0, "mapo": {"gamma": 0.85}})


def made_up(dialogues: int, tokens: int, turns: int) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """Tensors as verl has them, and the turn rewards [dialogue, turn]; one turn in ten is unscored."""
    from mapo.engines.verl.estimator import UNSCORED

    chance = np.random.default_rng(0)
    rewards = torch.zeros(dialogues, tokens)
    mask = torch.zeros(dialogues, tokens, dtype=torch.int64)
    turn = tokens // turns
    said = turn // 2
    earned = chance.normal(size=(dialogues, turns)).astype(np.float32)
    earned[chance.random(earned.shape) < 0.1] = np.nan
    for i, j in np.ndindex(earned.shape):
        unscored = bool(np.isnan(earned[i, j]))
        mask[i, j * turn : j * turn + said] = int(not unscored)
        rewards[i, j * turn + said - 1] = UNSCORED if unscored else float(earned[i, j])
    values = torch.from_numpy(chance.normal(size=(dialogues, tokens)).astype(np.float32))
    return {"token_level_rewards": rewards, "response_mask": mask, "values": values}, earned


def seconds(tensors: dict[str, torch.Tensor], uid: np.ndarray, name: str) -> tuple[float, torch.Tensor]:
    data = DataProto(batch=TensorDict(dict(tensors), batch_size=len(uid)), non_tensor_batch={"uid": uid})
    began = time.perf_counter()
    found = compute_advantage(data, adv_estimator=THEIRS.get(name, name), config=CONFIG)
    return time.perf_counter() - began, found.batch["advantages"]


def check(tensors: dict[str, torch.Tensor], earned: np.ndarray, uid: np.ndarray, found: torch.Tensor) -> None:
    """What was timed is right: every turn's first token has the turn's advantage."""
    expected = advantages(list(earned.astype(np.float64)), list(uid), gamma=0.85).mixed
    turn = tensors["response_mask"].shape[1] // earned.shape[1]
    first = found[:, : turn * earned.shape[1] : turn].numpy()
    np.testing.assert_allclose(first, np.stack(expected), atol=1e-6)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("dialogues", 128), ("tokens", 30_000), ("turns", 15), ("repeats", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(1)
    tensors, earned = made_up(given.dialogues, given.tokens, given.turns)
    uid = np.array([f"s{i // 4}" for i in range(given.dialogues)], dtype=object)
    taken: dict[str, list[float]] = {name: [] for name in [*METHODS, *THEIRS]}
    for repeat in range(given.repeats + 1):
        for name, times in taken.items():
            time_s, found = seconds(tensors, uid, name)
            if repeat:  # the first round warms up
                times.append(time_s)
            elif name == "mapo":
                check(tensors, earned, uid, found)
    median = {name: statistics.median(times) for name, times in taken.items()}
    print(f"{given.dialogues} dialogues of {given.tokens} tokens, {given.turns} turns")
    for name, time_s in median.items():
        print(f"{name:24} {1000 * time_s:8.1f} ms")
    for name in THEIRS:
        print(f"mapo / {name}: {median['mapo'] / median[name]:.3f}")


if __name__ == "__main__":
    main()
