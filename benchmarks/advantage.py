"""Measure the speed of the advantage estimators against plain Python loops, and how it scales.

    .venv/bin/python benchmarks/advantage.py [dialogues]

Runs every method on dialogues of 5 to 45 turns in groups of 4, with ended dialogues continued (the default)
and cut. For the methods of the paper, two loops compute the same numbers, with endings cut:

- obvious: each turn collects its peers and normalises among them. Only values that are the same for the whole
  batch are computed once; otherwise reinforce++ would take hours.
- hoisted: plain Python written for speed. The mean and standard deviation of each set of peers are computed
  once, and only what the method needs. `advantages` always returns all five results.

All run in one process on the same data, so the ratios are meaningful on a noisy machine; absolute times are
not.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from functools import partial
from typing import Any

import numpy as np

from mapo import advantages
from mapo.advantage import METHODS

EPS = 1e-8
PAPER = ("mapo", "turn", "batch", "grpo", "reinforce++", "reinforce++_turn")


def make(dialogues: int) -> tuple[list[list[float]], list[int]]:
    rng = np.random.default_rng(0)
    rewards = [rng.normal(size=n).tolist() for n in rng.integers(5, 46, size=dialogues)]
    return rewards, [i // 4 for i in range(dialogues)]


def inputs_of(rewards: list[list[float]], method: str) -> dict[str, Any]:
    """Return what a method needs beside the rewards."""
    if method == "mt_grpo":
        return {"outcome": [float(row[-1] > 0) for row in rewards]}
    if method == "gigpo":
        return {"states": [[round(x) for x in row] for row in rewards]}
    return {"axes": [{"C": row, "A": row, "P": row} for row in rewards]} if method == "gdpo" else {}


def moments(values: list[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))


def z(x: float, mean: float, std: float, n: int) -> float:
    return 0.0 if n < 2 or std == 0 else (x - mean) / (std + EPS)


def returns_of(rewards: list[list[float]], gamma: float) -> list[list[float]]:
    out = []
    for row in rewards:
        g_t, reverse = 0.0, []
        for r in reversed(row):
            g_t = r + gamma * g_t
            reverse.append(g_t)
        out.append(reverse[::-1])
    return out


def obvious(
    rewards: list[list[float]], groups: list[int], method: str, gamma: float = 1.0
) -> list[list[float]]:
    """Process each turn separately: collect its peers and normalise among them."""
    returns = returns_of(rewards, gamma)
    members: dict[int, list[int]] = {}
    for i, g in enumerate(groups):
        members.setdefault(g, []).append(i)
    flat = [r for row in rewards for r in row]
    turn_moments, dialogue_moments = moments(flat), moments([g[0] for g in returns])
    mixed: list[list[float]] = []
    for i, row in enumerate(rewards):
        siblings, out = members[groups[i]], []
        for t, reward in enumerate(row):
            if method == "reinforce++":
                out.append(z(returns[i][0], *dialogue_moments, len(rewards)))
                continue
            if method == "reinforce++_turn":
                out.append(z(reward, *turn_moments, len(flat)))
                continue
            if method == "grpo":
                peers = [sum(rewards[j]) for j in siblings]
                out.append(z(sum(row), *moments(peers), len(peers)))
                continue
            here = [returns[j][t] for j in siblings if t < len(rewards[j])]
            if len(here) < 2:
                out.append(0.0)
                continue
            turn = part = 0.0
            if method != "batch":
                turn = z(returns[i][t], *moments(here), len(here))
            if method != "turn":
                reach = sorted(len(rewards[j]) for j in siblings)[-2]
                peers = [r for j in siblings for r in rewards[j][:reach]]
                part = z(reward, *moments(peers), len(peers))
            out.append({"mapo": 0.5 * (turn + part), "turn": turn, "batch": part}[method])
        mixed.append(out)
    return mixed


def hoisted(
    rewards: list[list[float]], groups: list[int], method: str, gamma: float = 1.0
) -> list[list[float]]:
    """Compute every mean and standard deviation once, and only what the method needs."""
    returns = returns_of(rewards, gamma)
    members: dict[int, list[int]] = {}
    for i, g in enumerate(groups):
        members.setdefault(g, []).append(i)
    if method == "reinforce++":
        mean, std = moments([g[0] for g in returns])
        return [[z(g[0], mean, std, len(rewards))] * len(g) for g in returns]
    if method == "reinforce++_turn":
        flat = [r for row in rewards for r in row]
        mean, std = moments(flat)
        return [[z(r, mean, std, len(flat)) for r in row] for row in rewards]
    mixed = [[0.0] * len(row) for row in rewards]
    for siblings in members.values():
        if method == "grpo":
            totals = [sum(rewards[i]) for i in siblings]
            mean, std = moments(totals)
            for i, total in zip(siblings, totals, strict=True):
                mixed[i] = [z(total, mean, std, len(siblings))] * len(rewards[i])
            continue
        reach = sorted(len(rewards[i]) for i in siblings)[-2]
        weight = {"mapo": 0.5, "turn": 1.0, "batch": 0.0}[method]
        if weight < 1:
            batch = [r for i in siblings for r in rewards[i][:reach]]
            mean, std = moments(batch)
            for i in siblings:
                for t, r in enumerate(rewards[i][:reach]):
                    mixed[i][t] += (1 - weight) * z(r, mean, std, len(batch))
        if weight > 0:
            for t in range(reach):
                here = [i for i in siblings if t < len(rewards[i])]
                mean, std = moments([returns[i][t] for i in here])
                for i in here:
                    mixed[i][t] += weight * z(returns[i][t], mean, std, len(here))
    return mixed


def timed(function, *args, repeat: int) -> tuple[float, object]:
    times, result = [], None
    for _ in range(repeat):
        start = time.perf_counter()
        result = function(*args)
        times.append(time.perf_counter() - start)
    return statistics.median(times), result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dialogues", type=int, nargs="?", default=20_000, help="at least 8 (default: 20000)")
    dialogues = parser.parse_args().dialogues
    if dialogues < 8:
        parser.error("dialogues must be at least 8")
    rewards, groups = make(dialogues)
    turns = sum(map(len, rewards))
    print(f"{dialogues} dialogues, {turns} turns; median times and ratios to `advantages`\n")
    head = f"{'method':18} {'continued':>12} {'cut':>12} {'obvious':>12} {'hoisted':>12}"
    print(f"{head} {'obvious':>9} {'hoisted':>9}")
    for method in METHODS:
        inputs = inputs_of(rewards, method)
        default, _ = timed(partial(advantages, **inputs), rewards, groups, method, repeat=7)
        cut = partial(advantages, endings="cut", **inputs)
        fast, result = timed(cut, rewards, groups, method, repeat=7)
        times = []
        for function in (obvious, hoisted) if method in PAPER else ():
            slow, expected = timed(function, rewards, groups, method, repeat=1 if function is obvious else 3)
            np.testing.assert_allclose(np.concatenate(result.mixed), np.concatenate(expected), atol=1e-7)
            times.append(slow)
        milliseconds = " ".join(f"{1e3 * t:9.0f} ms" for t in (default, fast, *times))
        ratios = " ".join(f"{t / fast:8.1f}x" for t in times)
        print(f"{method:18} {milliseconds} {ratios}")
    print("\nscaling (mapo): time per turn, absolute and relative to the smallest size")
    base = None
    for size in (dialogues // 8, dialogues // 4, dialogues // 2, dialogues, 2 * dialogues):
        rewards, groups = make(size)
        seconds, _ = timed(advantages, rewards, groups, repeat=7)
        per_turn = seconds / sum(map(len, rewards))
        base = base or per_turn
        print(f"{size:8d} dialogues  {1e9 * per_turn:7.1f} ns per turn  {per_turn / base:5.2f}")


if __name__ == "__main__":
    main()
