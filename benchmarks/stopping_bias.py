"""The end of a dialogue depends on how it goes, so those that reach turn t are selected. Does it matter?

    .venv/bin/python benchmarks/stopping_bias.py [--groups N] [--run DIR ...]

(a) A family of dialogues small enough to know every expected return: a good turn brings success, and with it
    the end, nearer; idle turns, often mere bad luck, end it too. The turn part of the advantage, under both
    horizons, is compared with the true advantage Q(s, a) - V(s), state by state, over many sampled groups:
      used     share of the turns that count
      gap      E[A | s, good] - E[A | s, bad], as a multiple of the true one (in units of the spread of
               returns at that turn): what training learns from, since whatever a state gives to both
               actions alike cancels in the expected gradient
      wrong    share of turns in states where the gap has the wrong sign
      offset   spread over states of E[A | s]: credit for where the dialogue stood, which only adds noise
      cosine   between the expected gradient of a tabular policy and that of the true advantage (each turn in
               units of its spread, as the turn part is); returns less V(s), which are unbiased, show what
               sampling alone costs
(b) Recorded dialogues (of runs, or of a half-good scripted policy): how many siblings reach each turn, how
    length and return go together, and what the choice of horizon changes.
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


# ---- (a) a family whose expected returns are known


def step(d, idle, move):
    """Where a move leads: the distance, and how many turns in a row brought nothing."""
    return np.clip(d - move, 0, FAR), np.where(move > 0, 0, np.minimum(idle + 1, IDLE))


def over(t, d, idle, first):
    """Success or stagnation, from turn `first` on; at the last turn in any case."""
    return (t >= TURNS) | ((t >= first) & ((d == 0) | (idle >= IDLE)))


def paid(reward, d, after):
    return d - after if reward == "idr" else -after


def true_values(reward: str, first: int) -> np.ndarray:
    """Q[t, d, idle, action], backwards from the last turn."""
    d, idle = np.meshgrid(np.arange(FAR + 1), np.arange(IDLE + 1), indexing="ij")
    q = np.zeros((TURNS + 2, FAR + 1, IDLE + 1, 2))
    for t in range(TURNS, 0, -1):
        later = q[t + 1] @ np.array([1 - GOOD, GOOD])
        for k, move in enumerate(MOVES):
            after, now_idle = step(d, idle, move)
            worth = paid(reward, d, after)
            worth = worth + GAMMA * np.where(over(t, after, now_idle, first), 0.0, later[after, now_idle])
            q[t] += worth[..., None] * CHANCE[:, k]
    return q


def simulate(groups: int, reward: str, first: int, seed: int = 0):
    """Sampled dialogues: per turn and dialogue the reward, the state before and the action; the lengths."""
    rng, n = np.random.default_rng(seed), groups * SIBLINGS
    d, idle, length = np.full(n, START), np.zeros(n, int), np.zeros(n, int)
    rewards, states, actions = np.zeros((n, TURNS)), np.zeros((n, TURNS, 2), int), np.zeros((n, TURNS), int)
    alive = np.ones(n, bool)
    for t in range(1, TURNS + 1):
        action = (rng.random(n) < GOOD).astype(int)
        pick = (rng.random(n)[:, None] > CHANCE.cumsum(axis=1)[action][:, :-1]).sum(axis=1)
        after, idle_after = step(d, idle, MOVES[pick])
        rewards[:, t - 1], actions[:, t - 1] = paid(reward, d, after), action
        states[:, t - 1] = np.stack([d, idle], axis=1)
        length[alive] = t
        alive &= ~over(t, after, idle_after, first)
        d, idle = after, idle_after
    return rewards, states, actions, length


class Turns:
    """All turns of all sampled dialogues end to end, with what is true about each."""

    def __init__(self, groups: int, reward: str, first: int) -> None:
        rewards, states, actions, length = simulate(groups, reward, first)
        there = np.arange(TURNS)[None] < length[:, None]
        self.rows = [row[:n] for row, n in zip(rewards, length, strict=True)]
        self.groups = np.repeat(np.arange(groups), SIBLINGS)
        self.t = np.broadcast_to(np.arange(TURNS), there.shape)[there]
        d, idle = states[there].T
        self.action = actions[there]
        self.state = (self.t * (FAR + 1) + d) * (IDLE + 1) + idle
        q = true_values(reward, first)[self.t + 1, d, idle]
        self.value = q @ np.array([1 - GOOD, GOOD])
        self.gap = q[:, 1] - q[:, 0]
        found = advantages(self.rows, self.groups, "turn", gamma=GAMMA)
        self.returns = np.concatenate(found.returns)
        spread = np.array([self.returns[self.t == t].std() for t in range(TURNS)])
        self.unit = spread[self.t]

    def by_state(self, values: np.ndarray, used: np.ndarray):
        """Per state: the mean of `values` for either action [state, action], and how many turns used it."""
        size = TURNS * (FAR + 1) * (IDLE + 1)
        code = self.state[used] * 2 + self.action[used]
        count = np.bincount(code, minlength=2 * size).reshape(size, 2)
        total = np.bincount(code, weights=values[used], minlength=2 * size).reshape(size, 2)
        return total / np.maximum(count, 1), count

    def judge(self, values: np.ndarray, used: np.ndarray) -> dict[str, float]:
        """How good an advantage `values` is, on the turns that count."""
        mean, count = self.by_state(values, used)
        true = np.zeros(len(mean))
        true[self.state] = self.gap / self.unit
        known = count.min(axis=1) >= 30  # states met often enough to speak of a mean
        weight = count.sum(axis=1) * known
        gap = mean[:, 1] - mean[:, 0]
        share = weight / weight.sum()
        both = mean @ np.array([1 - GOOD, GOOD])
        everywhere = np.bincount(self.state, minlength=len(mean)) * true
        mine = weight * gap
        return {
            "used": used.mean(),
            "gap": (share * gap).sum() / (share * true).sum(),
            "wrong": share[(gap * true < 0)].sum(),
            "offset": np.sqrt((share * (both - (share * both).sum()) ** 2).sum()),
            "cosine": mine @ everywhere / np.linalg.norm(mine) / np.linalg.norm(everywhere),
        }


def part_a(groups: int) -> None:
    print(f"(a) {groups} groups of {SIBLINGS} simulated dialogues of at most {TURNS} turns, gamma {GAMMA}\n")
    print("| ends from turn | reward | advantage | used | gap | wrong | offset | cosine |")
    print("|---:|---|---|---:|---:|---:|---:|---:|")
    shown = None
    for first in (1, 12):
        for reward in ("idr", "adr"):
            turns = Turns(groups, reward, first)
            shown = shown or turns
            everyone = np.ones(len(turns.t), bool)
            cases = {"returns less V(s)": ((turns.returns - turns.value) / turns.unit, everyone)}
            for horizon in HORIZONS:
                found = advantages(turns.rows, turns.groups, "turn", gamma=GAMMA, horizon=horizon)
                cases[f"turn, {horizon}"] = np.concatenate(found.turn), np.concatenate(found.mask)
            for name, (values, used) in cases.items():
                m = turns.judge(values, used)
                print(
                    f"| {first} | {reward} | {name} | {m['used']:.0%} | {m['gap']:.2f} | {m['wrong']:.1%} "
                    f"| {m['offset']:.2f} | {m['cosine']:.3f} |"
                )
            harmful = (turns.gap < 0).mean()
            print(f"|  |  | *turns at which the bad action truly pays* | {harmful:.1%} |  |  |  |  |")
    print("\nidr, ending from turn 1, by turn: gaps in units of the returns' spread at that turn\n")
    by_turn(shown)


def by_turn(turns: Turns) -> None:
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


# ---- (b) recorded dialogues


class Sometimes:
    """Good at some turns, bad at others: a policy in the middle of its training."""

    name = "scripted:sometimes"

    def __init__(self, job: Job, share: float) -> None:
        self.rng = random.Random(job.id)
        self.share = share
        own = replace(job, seed=self.rng.randrange(1 << 30))
        self.good, self.bad = (scripted_policy("empathy", name)(own) for name in ("honest", "comforter"))

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
    return asyncio.run(play_all(jobs, lambda job: Sometimes(job, 0.8), scripted_cast("empathy"), rules))


def recorded(runs: Iterable[Path]) -> Iterator[Dialogue]:
    for run in runs:
        for file in sorted((run / "dialogues").glob("*.jsonl")):
            for d in read_dialogues(file):
                if not isinstance(d, BadLine) and d.error is None and d.turns:
                    yield replace(d, group=f"{run}/{d.step}/{d.group}")


def part_b(title: str, dialogues: list[Dialogue]) -> None:
    if not dialogues:
        raise SystemExit(f"no dialogues: {title}")
    rows = [[turn.reward for turn in d.turns] for d in dialogues]
    groups = [d.group for d in dialogues]
    found = {h: advantages(rows, groups, "mapo", gamma=GAMMA, horizon=h) for h in HORIZONS}
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
    masks = {h: np.concatenate(found[h].mask) for h in HORIZONS}
    told = ", ".join(f"{h} {1 - masks[h].mean():.1%}" for h in HORIZONS)
    print(f"- turns left out of the loss: {told}\n")
    print("| turn | dialogues | siblings there | left out: available | shortest | change | sign flips |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    index = np.concatenate([np.arange(n) for n in lengths])
    peers = {(g, t): sum(n > t for n in ns) for g, ns in siblings.items() for t in range(max(ns))}
    there = np.array([peers[g, t] for g, n in zip(groups, lengths, strict=True) for t in range(n)])
    a, b = (np.concatenate(found[h].mixed) for h in HORIZONS)
    used = masks["available"] & masks["shortest"]
    for t in range(0, lengths.max(), 1 if lengths.max() <= 20 else 4):
        here, both = index == t, (index == t) & used
        out = " | ".join(f"{1 - masks[h][here].mean():.0%}" for h in HORIZONS)
        change = (
            f"{np.abs(a - b)[both].mean():.3f} | {(a * b < 0)[both].mean():.1%}" if both.any() else "- | -"
        )
        print(f"| {t + 1} | {here.sum()} | {there[here].mean():.2f} | {out} | {change} |")


def centred(values: np.ndarray, groups: list[str]) -> np.ndarray:
    mean = {g: values[[i for i, x in enumerate(groups) if x == g]].mean() for g in set(groups)}
    return values - np.array([mean[g] for g in groups])


def correlation(x: np.ndarray, y: np.ndarray) -> str:
    return f"{np.corrcoef(x, y)[0, 1]:+.2f}" if x.std() > 1e-9 and y.std() > 1e-9 else "none (no spread)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=20_000, help="simulated groups")
    parser.add_argument("--run", type=Path, action="append", default=[], help="a run directory; repeatable")
    given = parser.parse_args()
    began = time.perf_counter()
    part_a(given.groups)
    if given.run:
        part_b("recorded training dialogues", list(recorded(given.run)))
    else:
        for turns in (15, None):
            part_b(f"a scripted policy, good at 4 turns of 5, {turns or 45} turns at most", scripted(turns))
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
