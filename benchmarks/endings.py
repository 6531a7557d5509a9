"""Measure how advantage estimators credit dialogues that end at different times.

    .venv/bin/python benchmarks/endings.py [--groups N] [--seeds N] [--out FILE] [--part cases ...]

A simulated person is some distance away from needing nothing more. A good reply tends to reduce it, a bad one
to increase it. From a first turn on, a dialogue ends if the distance is small (success), if five turns in a
row were harmful (collapse) or if hardly anything moves (stagnation); the last turn ends it in any case. How
long a dialogue lasts thus depends on the policy. Four families differ in how good the policy is and how much
room there is between the first and the last turn.

What a reply is really worth, Q, is computed exactly for the person as she would go on without the rules that
give up: after a success nothing more is earned (`adr`: the distance stays), after a collapse or a stagnation
the person is still there. With it:

  cases      the two groups of docs/method.md: a win, and an early collapse among equally bad turns
  gradient   per family, reward, estimator and treatment of endings, over many groups of four:
               cosine   of the expected policy gradient to the true one
               snr      length of the expected gradient of one group over its standard deviation
               wrong    share of turns in states in which the better reply has the lower mean advantage, by
                        more than two standard errors, among states with 100 samples of each reply
               win      mean advantage of the turn that wins; fail: of the turn at which a failure ends
  learning   success and distance covered after 60 updates of a tabular policy, learning rate tuned per row
  branching  siblings that share the first turns of a dialogue against independent ones, per turn played
"""

from __future__ import annotations

import argparse
import json
import math
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mapo.advantage import METHODS, advantages

GAMMA, SIBLINGS = 0.85, 4
FAR, ZONE, RUN, STILL = 40, 1, 5, 8
MOVES = np.array([-2, -1, 0, 1, 2, 3])
SUCCESS, FAILURE, LIMIT = 1, 2, 3
LEARNED = ("mapo", "turn", "batch", "grpo", "rloo", "rloo_turn", "kevin", "turn_gae")


@dataclass(frozen=True)
class Family:
    """A person and a policy: `good` is the share of good replies, the chances are those of MOVES."""

    name: str
    start: int
    good: float
    bad_chance: tuple[float, ...]
    good_chance: tuple[float, ...]
    first: int
    limit: int


FAMILIES = (
    Family("strong", 12, 0.60, (0, 0.25, 0.45, 0.3, 0, 0), (0, 0, 0.1, 0.3, 0.4, 0.2), 8, 20),
    Family("middle", 16, 0.40, (0.1, 0.35, 0.35, 0.2, 0, 0), (0, 0.1, 0.2, 0.35, 0.25, 0.1), 8, 20),
    Family("weak", 16, 0.15, (0.4, 0.45, 0.1, 0.05, 0, 0), (0.05, 0.2, 0.25, 0.3, 0.2, 0), 8, 20),
    Family("late", 18, 0.30, (0.3, 0.4, 0.2, 0.1, 0, 0), (0, 0.1, 0.2, 0.3, 0.3, 0.1), 12, 15),
)


@dataclass(frozen=True)
class Played:
    """Dialogues [dialogue, turn]; `harm` counts the harmful turns in a row before a turn."""

    before: np.ndarray
    after: np.ndarray
    harm: np.ndarray
    action: np.ndarray
    length: np.ndarray
    end: np.ndarray

    @property
    def turns(self) -> np.ndarray:
        return np.arange(self.before.shape[1])[None] < self.length[:, None]

    def rewards(self, reward: str) -> np.ndarray:
        return (self.before - self.after if reward == "idr" else -self.after).astype(float)


def policy_of(good: float) -> np.ndarray:
    """Return the logit of a good reply by distance (in bins of 4) and harmful turns in a row."""
    return np.full((FAR // 4 + 1, RUN + 1), math.log(good / (1 - good)))


def chance_of(logit: np.ndarray, distance: np.ndarray, harm: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logit[distance // 4, np.minimum(harm, RUN)]))


def play(
    f: Family, logit: np.ndarray, n: int, rng: np.random.Generator, prefix: Played | None = None, at=0
) -> Played:
    """Play n dialogues, from the state before turn `at` of the first n dialogues of `prefix` if given."""
    cumulative = np.array([f.bad_chance, f.good_chance]).cumsum(axis=1)
    shape = (n, f.limit)
    before, after, harm, action = (np.zeros(shape, int) for _ in range(4))
    distance, run, length, end = np.full(n, f.start), np.zeros(n, int), np.zeros(n, int), np.zeros(n, int)
    going = np.ones(n, bool)
    for t in range(1, f.limit + 1):
        good = (rng.random(n) < chance_of(logit, distance, run)).astype(int)
        move = MOVES[(rng.random(n)[:, None] > cumulative[good][:, :-1]).sum(axis=1)]
        now = np.clip(distance - move, 0, FAR)
        if prefix is not None:
            copied = t - 1 < at
            now, good = (
                np.where(copied, prefix.after[:, t - 1], now),
                np.where(copied, prefix.action[:, t - 1], good),
            )
        before[:, t - 1], after[:, t - 1], harm[:, t - 1], action[:, t - 1] = distance, now, run, good
        length[going] = t
        run = np.where(now > distance, run + 1, 0)
        moved = np.abs(before - after)[:, max(0, t - STILL) : t].sum(axis=1)
        failing = (run >= RUN) | (moved <= 2)
        why = (
            np.where(now <= ZONE, SUCCESS, np.where(failing, FAILURE, 0))
            if t >= f.first
            else np.zeros(n, int)
        )
        why = np.where((why == 0) & (t == f.limit), LIMIT, why)
        end = np.where(going & (why > 0), why, end)
        going &= why == 0
        distance = now
    return Played(before, after, harm, action, length, end)


def true_gap(f: Family, reward: str, good: float) -> np.ndarray:
    """Return Q(good) - Q(bad) by turn, from 0, and distance, for a policy with that share of good replies."""
    chance = np.array([f.bad_chance, f.good_chance])
    q, d = np.zeros((f.limit + 1, FAR + 1, 2)), np.arange(FAR + 1)
    for t in range(f.limit - 1, -1, -1):
        value = q[t + 1] @ np.array([1 - good, good])
        rest = (1 - GAMMA ** (f.limit - t - 1)) / (1 - GAMMA)
        for k, move in enumerate(MOVES):
            now = np.clip(d - move, 0, FAR)
            settled = np.zeros(FAR + 1) if reward == "idr" else -now * rest
            later = np.where((now <= ZONE) & (t + 1 >= f.first), settled, value[now])
            q[t] += ((d - now if reward == "idr" else -now) + GAMMA * later)[:, None] * chance[:, k]
    return q[:-1, :, 1] - q[:-1, :, 0]


SUMMED = "summed"
"""sum over k >= t of gamma^(k-t) (r_k - the siblings' mean of r_k): a baseline at every later turn index, and
the policy decides how many there are (the construction that verl issue 7244 warns of)."""


def credit(p: Played, reward: str, groups: np.ndarray, method: str, **options: Any):
    """Return the advantage and the mask of every turn, concatenated."""
    rows = [row[:n] for row, n in zip(p.rewards(reward), p.length, strict=True)]
    if method == SUMMED:
        above = advantages(rows, groups.tolist(), "turn", gamma=0.0, scale="none", endings="cut").mixed
        got = advantages(above, groups.tolist(), "turn", gamma=GAMMA, scale="none", endings="cut")
        return np.concatenate(got.returns), np.concatenate(got.mask)
    more: dict[str, Any] = {}
    if method == "mt_grpo":
        more["outcome"] = (p.end == SUCCESS).astype(float)
    if method == "gigpo":
        code = p.before * (RUN + 1) + np.minimum(p.harm, RUN)
        more["states"] = [row[:n].tolist() for row, n in zip(code, p.length, strict=True)]
    got = advantages(rows, groups.tolist(), method, gamma=GAMMA, **more, **options)
    return np.concatenate(got.mixed), np.concatenate(got.mask)


# ---- gradient


def quality(
    f: Family, p: Played, groups: np.ndarray, value: np.ndarray, used: np.ndarray, gap: np.ndarray
) -> dict:
    """Compare advantages of turns with the truth. `value` and `used` have one entry per played turn."""
    on = p.turns
    t, row = (
        np.broadcast_to(np.arange(f.limit), on.shape)[on],
        np.broadcast_to(np.arange(len(on))[:, None], on.shape)[on],
    )
    d, harm, action = p.before[on], np.minimum(p.harm[on], RUN), p.action[on]
    truth = gap[t, d]
    cell, cells = d // 4 * (RUN + 1) + harm, (FAR // 4 + 1) * (RUN + 1)
    true_gradient = np.bincount(cell, weights=truth, minlength=cells)
    score = np.where(used, value * (action - f.good), 0.0)
    count = groups.max() + 1
    gradient = np.bincount(groups[row] * cells + cell, weights=score, minlength=count * cells).reshape(
        count, cells
    )
    mean = gradient.mean(axis=0)
    state = (t * (FAR + 1) + d) * (RUN + 1) + harm
    code, states = (state * 2 + action)[used], f.limit * (FAR + 1) * (RUN + 1)
    n = np.bincount(code, minlength=2 * states).reshape(states, 2)
    sums = np.bincount(code, weights=value[used], minlength=2 * states).reshape(states, 2)
    squares = np.bincount(code, weights=value[used] ** 2, minlength=2 * states).reshape(states, 2)
    mean_by_action = sums / np.maximum(n, 1)
    variance = np.maximum(squares / np.maximum(n, 1) - mean_by_action**2, 0.0)
    error = np.sqrt((variance / np.maximum(n, 1)).sum(axis=1))
    expected = np.zeros(states)
    expected[state] = truth
    weight = n.sum(axis=1) * (n.min(axis=1) >= 100)
    difference = (mean_by_action[:, 1] - mean_by_action[:, 0]) * np.sign(expected)
    wrong = weight[difference < -2 * error].sum() / weight.sum() if weight.sum() else math.nan
    last = (t == p.length[row] - 1) & used

    def mean_at(end: int) -> float:
        here = last & (p.end[row] == end)
        return float(value[here].mean()) if here.sum() >= 30 else math.nan

    lengths = np.linalg.norm(mean) * np.linalg.norm(true_gradient)
    return {
        "used": float(used.mean()),
        "cosine": float(mean @ true_gradient / lengths) if lengths else math.nan,
        "snr": float(np.linalg.norm(mean) / np.sqrt(gradient.var(axis=0).sum())),
        "wrong": float(wrong),
        "win": mean_at(SUCCESS),
        "fail": mean_at(FAILURE),
    }


def gradients(count: int) -> list[dict[str, Any]]:
    rows = []
    print(
        "\n## gradient\n\n| family | reward | method | endings | used | cosine | snr | wrong | win | fail |"
    )
    print("|---|---|---|---|---:|---:|---:|---:|---:|---:|")
    for f in FAMILIES:
        p = play(f, policy_of(f.good), count * SIBLINGS, np.random.default_rng(0))
        groups = np.repeat(np.arange(count), SIBLINGS)
        shares = ", ".join(f"{name} {np.mean(p.end == k):.0%}" for name, k in ENDS.items())
        print(f"| *{f.name}: {shares}, {p.length.mean():.1f} turns* |||||||||||")
        for reward in ("idr", "adr"):
            gap = true_gap(f, reward, f.good)
            methods = [m for m in METHODS if m != "gdpo"]  # with one axis, GDPO is GRPO
            for method in (*methods, SUMMED):
                for endings in ("cut", "continued", "held") if method != SUMMED else ("cut",):
                    value, used = credit(p, reward, groups, method, endings=endings)
                    m = quality(f, p, groups, value, used, gap)
                    rows.append(
                        {"family": f.name, "reward": reward, "method": method, "endings": endings, **m}
                    )
                    print(
                        f"| {f.name} | {reward} | {method} | {endings} | {m['used']:.0%} | {m['cosine']:.3f} "
                        f"| {m['snr']:.2f} | {m['wrong']:.1%} | {m['win']:+.2f} | {m['fail']:+.2f} |",
                        flush=True,
                    )
    return rows


AUTO = {"idr": "continued", "adr": "held"}
"""What `advantage.endings = "auto"` chooses."""
ENDS = {"success": SUCCESS, "failure": FAILURE, "turn limit": LIMIT}


# ---- learning


def learn(
    f: Family, reward: str, method: str, endings: str, rate: float, seed: int
) -> tuple[float, float, float]:
    """Train a tabular policy; return its successes, its failures and the distance it covers."""
    rng, logit = np.random.default_rng(seed), policy_of(f.good)
    groups = np.repeat(np.arange(8), SIBLINGS)
    for _ in range(60):
        p = play(f, logit, len(groups), rng)
        value, used = credit(p, reward, groups, method, endings=endings)
        on = p.turns
        d, harm = p.before[on] // 4, np.minimum(p.harm[on], RUN)
        score = np.where(used, value * (p.action[on] - chance_of(logit, p.before[on], p.harm[on])), 0.0)
        gradient = np.zeros_like(logit)
        np.add.at(gradient, (d, harm), score)
        logit = np.clip(logit + rate * gradient / max(used.sum(), 1), -6, 6)
    p = play(f, logit, 4000, np.random.default_rng(10**6 + seed))
    final = p.after[np.arange(len(p.after)), p.length - 1]
    return float(np.mean(p.end == SUCCESS)), float(np.mean(p.end == FAILURE)), float(np.mean(f.start - final))


RATES = (1.0, 4.0, 16.0, 64.0)


def learned(job: tuple[Family, str, str, str, int]) -> dict[str, Any]:
    """Return the results with the best of the learning rates, which is chosen on seeds of its own."""
    f, reward, method, endings, seeds = job
    tuning = [
        np.mean([learn(f, reward, method, endings, rate, 1000 + s)[2] for s in range(2)]) for rate in RATES
    ]
    rate = RATES[int(np.argmax(tuning))]
    found = np.array([learn(f, reward, method, endings, rate, s) for s in range(seeds)])
    half = 1.96 * found[:, 2].std(ddof=1) / math.sqrt(seeds) if seeds > 1 else math.nan
    return {
        "family": f.name, "reward": reward, "method": method, "endings": endings, "rate": rate,
        "success": float(found[:, 0].mean()), "failure": float(found[:, 1].mean()),
        "covered": float(found[:, 2].mean()), "half": float(half),
    }  # fmt: skip


def learning(seeds: int) -> list[dict[str, Any]]:
    jobs = [
        (f, reward, method, endings, seeds)
        for f in FAMILIES
        for reward in ("idr", "adr")
        for method in LEARNED
        for endings in ("cut", AUTO[reward])
    ]
    print(f"\n## learning: 60 updates of 8 groups, {seeds} seeds, 95 % interval of the mean\n")
    print("| family | reward | method | endings | rate | success | failure | distance covered |")
    print("|---|---|---|---|---:|---:|---:|---:|")
    rows = []
    with ProcessPoolExecutor() as pool:
        for row in pool.map(learned, jobs):
            rows.append(row)
            print(
                f"| {row['family']} | {row['reward']} | {row['method']} | {row['endings']} | {row['rate']:g} "
                f"| {row['success']:.0%} | {row['failure']:.0%} | {row['covered']:.2f} ± {row['half']:.2f} |",
                flush=True,
            )
    return rows


# ---- branching


def branching(count: int) -> list[dict[str, Any]]:
    """Compare independent siblings with siblings that branch off one dialogue at a random turn."""
    print("\n## branching\n\nSignal per 1,000 turns played: squared snr of the gradient per turn played.\n")
    print(
        "| family | reward | method | siblings | turns played per group | cosine | signal per 1,000 turns |"
    )
    print("|---|---|---|---|---:|---:|---:|")
    rows = []
    for f in FAMILIES:
        rng, logit = np.random.default_rng(1), policy_of(f.good)
        n = count * SIBLINGS
        groups = np.repeat(np.arange(count), SIBLINGS)
        independent = play(f, logit, n, rng)
        trunk = play(f, logit, count, rng)
        spread = Played(*(np.repeat(x, SIBLINGS, axis=0) for x in vars(trunk).values()))
        at = np.repeat((rng.random(count) * trunk.length).astype(int), SIBLINGS)
        own = np.arange(n) % SIBLINGS == 0
        branched = play(f, logit, n, rng, spread, np.where(own, f.limit, at))
        fresh = np.arange(f.limit)[None] >= at[:, None]
        played = (branched.turns & fresh).sum() + np.minimum(at[own], branched.length[own]).sum()
        for reward in ("idr", "adr"):
            gap = true_gap(f, reward, f.good)
            for method in ("turn", "mapo", "grpo"):
                value, used = credit(independent, reward, groups, method, endings=AUTO[reward])
                cases = {"independent": (independent, value, used, independent.length.sum())}
                value, used = credit(branched, reward, groups, method, endings=AUTO[reward])
                # A turn is compared as often as the branch comes before it: weigh it by the inverse
                t = np.broadcast_to(np.arange(f.limit), branched.turns.shape)[branched.turns]
                length = np.broadcast_to(np.repeat(trunk.length, SIBLINGS)[:, None], branched.turns.shape)[
                    branched.turns
                ]
                weighed = value * np.minimum(length / (t + 1), length)
                cases["branched"] = (branched, value, used & fresh[branched.turns], played)
                cases["branched, weighed"] = (branched, weighed, used & fresh[branched.turns], played)
                for name, (p, v, u, turns) in cases.items():
                    m = quality(f, p, groups, v, u, gap)
                    per = turns / count
                    signal = 1000 * m["snr"] ** 2 / per
                    row = {"family": f.name, "reward": reward, "method": method, "siblings": name}
                    rows.append({**row, "turns": per, "cosine": m["cosine"], "signal": signal})
                    cells = [*row.values(), f"{per:.1f}", f"{m['cosine']:.3f}", f"{signal:.1f}"]
                    print("| " + " | ".join(cells) + " |", flush=True)
    return rows


# ---- cases


def cases() -> list[dict[str, Any]]:
    groups = ["s"] * 4
    found = {
        "win": [[2.0] * 11 + [0.3], *[[1.0] * 14] * 3],
        "collapse": [[-1.5] * 12, *[[-1.5] * 15] * 3],
    }
    rows = []
    print("## cases: the last turn of the dialogue that ends first, mapo\n")
    print("| case | gamma | endings | turn part | batch part | mixed |\n|---|---:|---|---:|---:|---:|")
    for name, rewards in found.items():
        for gamma in (0.85, 1.0):
            for endings in ("cut", "continued"):
                got = advantages(rewards, groups, gamma=gamma, endings=endings)
                parts = [float(x[0][-1]) + 0.0 for x in (got.turn, got.batch, got.mixed)]
                rows.append({"case": name, "gamma": gamma, "endings": endings, "parts": parts})
                print(f"| {name} | {gamma} | {endings} | " + " | ".join(f"{x:+.2f}" for x in parts) + " |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=10_000, help="simulated groups (default: 10000)")
    parser.add_argument("--seeds", type=int, default=5, help="seeds per row of `learning` (default: 5)")
    parser.add_argument("--out", type=Path, help="write all rows to this JSON file")
    parser.add_argument("--part", action="append", choices=["cases", "gradient", "learning", "branching"])
    args = parser.parse_args()
    began, parts = time.perf_counter(), args.part or ["cases", "gradient", "learning", "branching"]
    run = {
        "cases": cases,
        "gradient": lambda: gradients(args.groups),
        "learning": lambda: learning(args.seeds),
        "branching": lambda: branching(args.groups),
    }
    found = {name: run[name]() for name in parts}
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
