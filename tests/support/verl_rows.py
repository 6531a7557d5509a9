"""Batches as verl hands them to an estimator, and dialogues as an agent loop leaves them, made up."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from mapo import Dialogue, Reply, Turn, advantages
from mapo.advantage import ENDINGS, HORIZONS, METHODS, SCALES, SCOPES
from mapo.engines.verl.estimator import UNSCORED
from mapo.estimators.methods import ESTIMATORS
from mapo.types import Ending, PotentialState, StopReason

numbers = st.floats(-8, 8, width=32).map(lambda x: x if abs(x) > 1e-3 else 0.0)
"""No reward so near 0 that float32 could not tell it from its neighbours'."""
rewards = st.one_of(numbers, st.just(0.0), st.none())
spoken = st.fixed_dictionaries(
    {
        "gap": st.integers(1, 3),
        "length": st.integers(1, 4),
        "reward": rewards,
        "kl": numbers,
        "step": st.tuples(*[st.sampled_from([-2.0, 0.0, 3.0])] * 3),
    }
)
rows = st.lists(st.lists(spoken, max_size=5), min_size=1, max_size=8)
options = st.fixed_dictionaries(
    {},
    optional={
        "gamma": st.sampled_from([0.0, 0.5, 0.85, 1.0]),
        "turn_weight": st.sampled_from([0.0, 0.3, 1.0]),
        "scope": st.sampled_from(SCOPES),
        "horizon": st.sampled_from(HORIZONS),
        "endings": st.sampled_from(ENDINGS),
        "scale": st.sampled_from(SCALES),
        "lam": st.sampled_from([0.0, 0.95, 1.0]),
        "step_weight": st.sampled_from([0.0, 0.5, 2.0]),
    },
)
methods = st.sampled_from(METHODS)
WEIGHTS = {"x": 2.0, "y": 0.5}


class Batch:
    """Rows of turns as tensors: each turn's tokens after a gap of the user's. `kl`: a penalty on every token,
    as verl spreads it."""

    def __init__(self, made: list[list[dict]], *, kl: bool = False) -> None:
        self.made = made
        width = max((sum(t["gap"] + t["length"] for t in row) for row in made), default=0) + 2
        self.rewards = torch.zeros(len(made), width)
        self.mask = torch.zeros(len(made), width, dtype=torch.int64)
        self.turn = np.full((len(made), width), -1)
        self.ragged: list[list[float | None]] = []
        for i, row in enumerate(made):
            at, known = 0, []
            for t, turn in enumerate(row):
                first = at + turn["gap"] - (t == 0)  # the response begins with the first reply, or nearly
                at = first + turn["length"]
                known.append(self._place(i, t, slice(first, at), turn, kl))
            self.ragged.append(known)

    def _place(self, row: int, number: int, where: slice, turn: dict, kl: bool) -> float | None:
        if turn["reward"] is None:
            self.rewards[row, where.stop - 1] = UNSCORED
            return None
        self.mask[row, where] = 1
        self.turn[row, where] = number
        self.rewards[row, where] = turn["kl"] if kl else 0.0
        self.rewards[row, where.stop - 1] += turn["reward"]
        return sum(self.rewards[row, where].double().tolist())

    def groups(self, size: int = 4) -> list[str]:
        return [f"s{i // size}" for i in range(len(self.made))]

    def credit(self, method: str, given: dict, groups: list[str]):
        need = ESTIMATORS[method].needs
        more = {need: [_input(need, row) for row in self.made]} if need else {}
        weights = {"axis_weights": WEIGHTS} if need == "axes" else {}
        return advantages(self.ragged, groups, method, **given, **more, **weights)

    def inputs(self, method: str) -> list[dict[str, Any]]:
        """What the agent loop attaches to each row, after its way through the queue. A row without turns is a
        copy of the longest: verl fills up a batch like this."""
        need = ESTIMATORS[method].needs
        longest = max(self.made, key=len, default=[])
        rows = [{need: [_input(need, row or longest)]} if need else {} for row in self.made]
        if need == "axes":
            rows = [{**row, "axis_weights": WEIGHTS} for row in rows]
        return json.loads(json.dumps(rows))

    def tokens(self, per_turn) -> torch.Tensor:
        """A value a turn, on the turn's tokens."""
        found = torch.zeros(self.rewards.shape, dtype=torch.float64)
        for i, j in zip(*np.nonzero(self.turn >= 0), strict=True):
            found[i, j] = float(per_turn[i][self.turn[i, j]])
        return found


def _input(need: str | None, row: list[dict]) -> Any:
    """A row's outcome, states or axes, made of its turns' steps; x is the first axis, y the others."""
    steps = [turn.get("step", (0.0, 0.0, 0.0)) for turn in row]
    if need == "outcome":
        return float(sum(map(sum, steps)) > 0)
    if need == "states":
        return [(int(x), (y, "line")) if z else None for x, y, z in steps]
    scored = [turn["reward"] is not None for turn in row]
    return {
        "x": [x if known else None for (x, _, _), known in zip(steps, scored, strict=True)],
        "y": [y + z if known else None for (_, y, z), known in zip(steps, scored, strict=True)],
    }


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """To 1e-6, relative where the numbers are larger than 1."""
    return torch.allclose(found.double(), expected.double(), rtol=1e-6, atol=1e-6)


def dialogue(made: list[dict], name: str = "d0", group: str = "s", error: str | None = None) -> Dialogue:
    """The ids count up, so that each token is known by its id. Each scored turn makes its step, if it has
    one; a dialogue ends well if its last one does not lead away."""
    start = (-9.0, -6.0, -3.0)
    turns, at, position = [], 1, start
    for turn in made:
        prompt = tuple(range(at, at + turn["gap"]))
        said = tuple(range(prompt[-1] + 1, prompt[-1] + 1 + turn["length"]))
        at = said[-1] + 1
        logprobs = tuple(-token / 64 for token in said)
        if turn["reward"] is not None:
            position = tuple(x + d for x, d in zip(position, turn.get("step", (0.0,) * 3), strict=True))
        state = PotentialState(len(turns) + 1, position, 0.0, False, 0.0, 0.0)
        reply = Reply("text", "stop", prompt, said, logprobs)
        turns.append(Turn("line", reply, state=state, reward=turn["reward"]))
    well = bool(made) and sum(made[-1].get("step", ())) >= 0
    return Dialogue(
        name, "s1", "m", "empathy", "published", {}, start, tuple(turns), group=group, error=error,
        ending=Ending(StopReason.SUCCESS if well else StopReason.TIMEOUT),
    )  # fmt: skip
