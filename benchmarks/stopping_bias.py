"""Measure the selection bias of turn-level advantages: dialogues end early or late depending on how they go.

    .venv/bin/python benchmarks/stopping_bias.py [--groups N] [--run DIR ...]

(a) A simulated process whose expected returns are known exactly: good turns bring success, which ends the
    dialogue, and several idle turns in a row, often by chance, end it too. The turn-level advantage under
    both horizons is compared with the true advantage Q(s, a) - V(s) by state, over many sampled groups:
      used     share of turns that are trained
      gap      E[A | s, good] - E[A | s, bad] relative to the true value (in units of the standard deviation
               of returns at that turn). Training depends on this gap; whatever a state adds to both actions
               cancels in the expected gradient
      wrong    share of turns in states where the gap has the wrong sign
      offset   standard deviation of E[A | s] over states: credit for the state itself, which only adds noise
      cosine   between the expected gradient of a tabular policy and that of the true advantage (each turn in
               units of its standard deviation). Returns minus V(s) are unbiased and show the sampling error
(b) Recorded dialogues (of runs, or of a scripted policy that is good at most turns): how many siblings reach
    each turn, how length and return correlate, and what the choice of horizon changes.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from mapo import Dialogue, Rubric, advantages
from mapo.sandbox.domain import scripted_cast, scripted_policy
from mapo.sandbox.rollout import Job, Rules, play_all
from mapo.scenarios.sets import load_scenarios
from mapo.store import BadLine, read_dialogues

HORIZONS = ("available", "shortest")
GAMMA, SIBLINGS, TURNS, START, FAR, IDLE = 0.85, 4, 15, 10, 14, 4
GOOD = 0.5  # the policy's share of good turns
MOVES = np.array([-1, 0, 1, 2])
CHANCE = np.array([[0.3, 0.4, 0.3, 0.0], [0.0, 0.2, 0.3, 0.5]])  # of each move, by action: bad, good


def step(d, idle, move):
    """Return the distance after a move, and the number of consecutive turns without progress."""
    return np.clip(d - move, 0, FAR), np.where(move > 0, 0, np.minimum(idle + 1, IDLE))


def ended(t, d, idle, first):
    """Return whether the dialogue ends: success or stagnation from turn `first` on, or the last turn."""
    return (t >= TURNS) | ((t >= first) & ((d == 0) | (idle >= IDLE)))


def reward_of(reward, d, after):
    return d - after if reward == "idr" else -after


def true_values(reward: str, first: int) -> np.ndarray:
    """Return Q[t, d, idle, action], computed backwards from the last turn."""
    d, idle = np.meshgrid(np.arange(FAR + 1), np.arange(IDLE + 1), indexing="ij")
    q = np.zeros((TURNS + 2, FAR + 1, IDLE + 1, 2))
    for t in range(TURNS, 0, -1):
        later = q[t + 1] @ np.array([1 - GOOD, GOOD])
        for k, move in enumerate(MOVES):
            after, now_idle = step(d, idle, move)
            value = reward_of(reward, d, after)
            value = value + GAMMA * np.where(ended(t, after, now_idle, first), 0.0, later[after, now_idle])
            q[t] += value[..., None] * CHANCE[:, k]
    return q


def simulate(groups: int, reward: str, first: int, seed: int = 0):
    """Sample dialogues; return rewards, states before each turn, actions, and lengths."""
    rng, n = np.random.default_rng(seed), groups * SIBLINGS
    d, idle, length = np.full(n, START), np.zeros(n, int), np.zeros(n, int)
    rewards, states, actions = np.zeros((n, TURNS)), np.zeros((n, TURNS, 2), int), np.zeros((n, TURNS), int)
    alive = np.ones(n, bool)
    for t in range(1, TURNS + 1):
        action = (rng.random(n) < GOOD).astype(int)
        pick = (rng.random(n)[:, None] > CHANCE.cumsum(axis=1)[action][:, :-1]).sum(axis=1)
        after, idle_after = step(d, idle, MOVES[pick])
        rewards[:, t - 1], actions[:, t - 1] = reward_of(reward, d, after), action
        states[:, t - 1] = np.stack([d, idle], axis=1)
        length[alive] = t
        alive &= ~ended(t, after, idle_after, first)
        d, idle = after, idle_after
    return rewards, states, actions, length


class SimulatedTurns:
    """All turns of all sampled dialogues, concatenated, with their true values."""

    def __init__(self, groups: int, reward: str, first: int) -> None:
        rewards, states, actions, length = simulate(groups, reward, first)
        played = np.arange(TURNS)[None] < length[:, None]
        self.rows = [row[:n] for row, n in zip(rewards, length, strict=True)]
        self.groups = np.repeat(np.arange(groups), SIBLINGS)
        self.t = np.broadcast_to(np.arange(TURNS), played.shape)[played]
        d, idle = states[played].T
        self.action = actions[played]
        self.state = (self.t * (FAR + 1) + d) * (IDLE + 1) + idle
        q = true_values(reward, first)[self.t + 1, d, idle]
        self.value = q @ np.array([1 - GOOD, GOOD])
        self.gap = q[:, 1] - q[:, 0]
        result = advantages(self.rows, self.groups, "turn", gamma=GAMMA)
        self.returns = np.concatenate(result.returns)
        spread = np.array([self.returns[self.t == t].std() for t in range(TURNS)])
        self.unit = spread[self.t]

    def by_state(self, values: np.ndarray, used: np.ndarray):
        """Return the mean of `values` and the number of turns, both [state, action]."""
        size = TURNS * (FAR + 1) * (IDLE + 1)
        code = self.state[used] * 2 + self.action[used]
        count = np.bincount(code, minlength=2 * size).reshape(size, 2)
        total = np.bincount(code, weights=values[used], minlength=2 * size).reshape(size, 2)
        return total / np.maximum(count, 1), count

    def quality(self, values: np.ndarray, used: np.ndarray) -> dict[str, float]:
        """Compare the advantage `values` with the true advantage on the turns that are used."""
        mean, count = self.by_state(values, used)
        true = np.zeros(len(mean))
        true[self.state] = self.gap / self.unit
        known = count.min(axis=1) >= 30  # states with enough samples for a mean
        weight = count.sum(axis=1) * known
        gap = mean[:, 1] - mean[:, 0]
        share = weight / weight.sum()
        both = mean @ np.array([1 - GOOD, GOOD])
        true_gradient = np.bincount(self.state, minlength=len(mean)) * true
        gradient = weight * gap
        return {
            "used": used.mean(),
            "gap": (share * gap).sum() / (share * true).sum(),
            "wrong": share[(gap * true < 0)].sum(),
            "offset": np.sqrt((share * (both - (share * both).sum()) ** 2).sum()),
            "cosine": gradient @ true_gradient / np.linalg.norm(gradient) / np.linalg.norm(true_gradient),
        }


def part_a(groups: int) -> None:
    print(f"(a) {groups} groups of {SIBLINGS} simulated dialogues of at most {TURNS} turns, gamma {GAMMA}\n")
    print("| ends from turn | reward | advantage | used | gap | wrong | offset | cosine |")
    print("|---:|---|---|---:|---:|---:|---:|---:|")
    shown = None
    for first in (1, 12):
        for reward in ("idr", "adr"):
            turns = SimulatedTurns(groups, reward, first)
            shown = shown or turns
            all_turns = np.ones(len(turns.t), bool)
            cases = {"returns minus V(s)": ((turns.returns - turns.value) / turns.unit, all_turns)}
            for horizon in HORIZONS:
                result = advantages(turns.rows, turns.groups, "turn", gamma=GAMMA, horizon=horizon)
                cases[f"turn, {horizon}"] = np.concatenate(result.turn), np.concatenate(result.mask)
            for name, (values, used) in cases.items():
                m = turns.quality(values, used)
                print(
                    f"| {first} | {reward} | {name} | {m['used']:.0%} | {m['gap']:.2f} | {m['wrong']:.1%} "
                    f"| {m['offset']:.2f} | {m['cosine']:.3f} |"
                )
            harmful = (turns.gap < 0).mean()
            print(f"|  |  | *turns at which the bad action is truly better* | {harmful:.1%} |  |  |  |  |")
    print("\nidr, ending from turn 1, by turn: gaps in standard deviations of the returns at that turn\n")
    by_turn(shown)


def by_turn(turns: SimulatedTurns) -> None:
    parts = {h: advantages(turns.rows, turns.groups, "turn", gamma=GAMMA, horizon=h) for h in HORIZONS}
    print("| turn | reached | used: available | shortest | true gap | gap: available | shortest |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for t in range(TURNS):
        here = turns.t == t
        cells = [f"{here.sum() / len(turns.rows):.0%}"]
        cells += [f"{np.concatenate(parts[h].mask)[here].mean():.0%}" for h in HORIZONS]
        cells.append(f"{(turns.gap / turns.unit)[here].mean():.2f}")
        for h in HORIZONS:
            a, used = np.concatenate(parts[h].turn), np.concatenate(parts[h].mask) & here
            sides = [a[used & (turns.action == k)] for k in (1, 0)]
            cells.append(f"{sides[0].mean() - sides[1].mean():.2f}" if min(map(len, sides)) >= 30 else "-")
        print(f"| {t + 1} | " + " | ".join(cells) + " |")


class MixedPolicy:
    """A scripted policy that is good at a share of the turns, like one in the middle of training."""

    name = "scripted:mixed"

    def __init__(self, job: Job, share: float) -> None:
        self.rng = random.Random(job.id)
        self.share = share
        reseeded = replace(job, seed=self.rng.randrange(1 << 30))
        self.good, self.bad = (scripted_policy("empathy", name)(reseeded) for name in ("honest", "comforter"))

    async def reply(self, request):
        return await (self.good if self.rng.random() < self.share else self.bad).reply(request)


def scripted(max_turns: int | None) -> list[Dialogue]:
    jobs = [
        Job(s, id=f"{s.id}/{repeat}/{k}", group=f"{s.id}/{repeat}", seed=repeat)
        for s in load_scenarios("builtin:train")
        for repeat in range(2)
        for k in range(SIBLINGS)
    ]
    rules = Rules(Rubric.load("empathy"), max_turns=max_turns)
    return asyncio.run(play_all(jobs, lambda job: MixedPolicy(job, 0.8), scripted_cast("empathy"), rules))


def recorded(runs: Iterable[Path]) -> Iterator[Dialogue]:
    for run in runs:
        for file in sorted((run / "dialogues").glob("*.jsonl")):
            for d in read_dialogues(file):
                if not isinstance(d, BadLine) and d.error is None and d.turns:
                    yield replace(d, group=f"{run}/{d.step}/{d.group}")


def part_b(title: str, dialogues: list[Dialogue]) -> None:
    if not dialogues:
        raise SystemExit(f"there are no usable dialogues: {title}")
    rows = [[turn.reward for turn in d.turns] for d in dialogues]
    groups = [d.group for d in dialogues]
    results = {h: advantages(rows, groups, "mapo", gamma=GAMMA, horizon=h) for h in HORIZONS}
    lengths = np.array([len(row) for row in rows])
    siblings = defaultdict(list)
    for group, length in zip(groups, lengths, strict=True):
        siblings[group].append(length)
    unequal = np.mean([len(set(x)) > 1 for x in siblings.values()])
    print(f"\n(b) {title}: {len(rows)} dialogues in {len(siblings)} groups, {lengths.sum()} turns\n")
    print(f"- lengths {lengths.min()} to {lengths.max()}, unequal in {unequal:.0%} of the groups")
    sums = np.array([sum(r for r in row if r is not None) for row in rows])
    print(f"- correlation of length and summed reward: {correlation(lengths, sums)} over all dialogues,")
    print(f"  {correlation(centred(lengths, groups), centred(sums, groups))} among siblings")
    masks = {h: np.concatenate(results[h].mask) for h in HORIZONS}
    shares = ", ".join(f"{h} {1 - masks[h].mean():.1%}" for h in HORIZONS)
    print(f"- turns excluded from the loss: {shares}\n")
    print(
        "| turn | dialogues | siblings at the turn | excluded: available | shortest | change | sign flips |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|")
    index = np.concatenate([np.arange(n) for n in lengths])
    peers = {(g, t): sum(n > t for n in ns) for g, ns in siblings.items() for t in range(max(ns))}
    siblings_at_turn = np.array([peers[g, t] for g, n in zip(groups, lengths, strict=True) for t in range(n)])
    a, b = (np.concatenate(results[h].mixed) for h in HORIZONS)
    used = masks["available"] & masks["shortest"]
    for t in range(0, lengths.max(), 1 if lengths.max() <= 20 else 4):
        here, both = index == t, (index == t) & used
        out = " | ".join(f"{1 - masks[h][here].mean():.0%}" for h in HORIZONS)
        change = (
            f"{np.abs(a - b)[both].mean():.3f} | {(a * b < 0)[both].mean():.1%}" if both.any() else "- | -"
        )
        print(f"| {t + 1} | {here.sum()} | {siblings_at_turn[here].mean():.2f} | {out} | {change} |")


def centred(values: np.ndarray, groups: list[str]) -> np.ndarray:
    mean = {g: values[[i for i, x in enumerate(groups) if x == g]].mean() for g in set(groups)}
    return values - np.array([mean[g] for g in groups])


def correlation(x: np.ndarray, y: np.ndarray) -> str:
    return f"{np.corrcoef(x, y)[0, 1]:+.2f}" if x.std() > 1e-9 and y.std() > 1e-9 else "undefined (constant)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=20_000, help="simulated groups (default: 20000)")
    parser.add_argument("--run", type=Path, action="append", default=[], help="a run directory; repeatable")
    args = parser.parse_args()
    began = time.perf_counter()
    part_a(args.groups)
    if args.run:
        part_b("recorded training dialogues", list(recorded(args.run)))
    else:
        for turns in (15, None):
            part_b(
                f"a scripted policy that is good at 4 of 5 turns, at most {turns or 45} turns",
                scripted(turns),
            )
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
