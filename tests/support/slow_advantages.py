"""The definitions of all advantage estimators, spelt out turn by turn in plain Python.

The slow twin of `mapo.advantages`: it shares no code with it.
"""

from __future__ import annotations

import math

EPS = 1e-8
PACE = 5
HORIZON = ("mapo", "turn", "batch", "rloo_turn", "turn_gae")
ACROSS_GROUPS = ("reinforce++", "reinforce++_turn")
OWN_SCALE = {"rloo": "none", "rloo_turn": "none", "turn_gae": "batch"}


def mean(values):
    return sum(values) / len(values)


def deviation(values):
    return math.sqrt(mean([(x - mean(values)) ** 2 for x in values]))


def differences(values, peers_of, scale, leave_one_out=False):
    """values: {key: number}; peers_of(key): its peers, itself among them. Returns {key: difference}."""
    found = {}
    for key, x in values.items():
        peers = [values[other] for other in peers_of(key)]
        if len(peers) < 2:
            found[key] = 0.0
            continue
        others = list(peers)
        others.remove(x)
        found[key] = x - mean(others if leave_one_out else peers)
        if scale == "std":
            flat = max(peers) == min(peers)
            found[key] = 0.0 if flat else found[key] / (deviation(peers) + EPS)
    return over_batch(found) if scale == "batch" else found


def over_batch(found):
    std = deviation(list(found.values())) if found else 0.0
    return {key: x / (std + EPS) if std > 0 else 0.0 for key, x in found.items()}


def slow_advantages(
    rewards,
    groups,
    method="mapo",
    *,
    gamma=1.0,
    turn_weight=0.5,
    scope="group",
    horizon="available",
    endings="continued",
    scale=None,
    lam=0.95,
    step_weight=1.0,
    outcome=None,
    states=None,
    axes=None,
    axis_weights=None,
):
    """Return lists of lists: turn, batch, mixed, returns, mask."""
    scale = scale or OWN_SCALE.get(method, "std")
    n = len(rewards)
    r = [[None if x is None or math.isnan(x) else float(x) for x in row] for row in rewards]
    alive = [any(x is not None for x in row) for row in r]
    siblings = [[j for j in range(n) if groups[j] == groups[i] and alive[j]] for i in range(n)]

    def continued(row, i):
        """The values of a dialogue, with the continued ones, and how many of them there are."""
        values = [0.0 if x is None else x for x in row]
        if endings == "cut" or not alive[i]:
            return values, 0
        peers = siblings[i] if method not in ACROSS_GROUPS else [j for j in range(n) if alive[j]]
        if all(x in (None, 0.0) for x in r[i][: max(1, len(r[i]) - 1)]):
            return values, 0  # an outcome, or nothing at all
        scored = [x for x, known in zip(row, r[i], strict=True) if known is not None]
        extra = max(len(r[j]) for j in peers) - len(row)
        return values + [mean(scored[-1 if endings == "held" else -PACE :])] * extra, extra

    def sums(values):
        return [
            sum(gamma ** (k - t) * values[k] for k in range(t, len(values))) for t in range(len(values) + 1)
        ]

    long = [continued(row, i)[0] for i, row in enumerate(r)]
    long_returns = [sums(values) for values in long]
    returns = [row[: len(r[i])] for i, row in enumerate(long_returns)]
    settled = [list(row) for row in r]
    for i, row in enumerate(r):
        _, extra = continued(row, i)
        if extra and row and row[-1] is not None:
            settled[i][-1] = mean(long[i][len(row) - 1 :])

    def counts(i, t):
        if r[i][t] is None:
            return False
        if method not in HORIZON:
            return True
        everyone = [j for j in range(n) if groups[j] == groups[i]]
        if horizon == "shortest":
            return t < min(len(r[j]) for j in everyone if alive[j])
        return sum(t < len(r[j]) for j in everyone) >= 2

    turns = [(i, t) for i in range(n) for t in range(len(r[i])) if counts(i, t)]
    dialogues = [i for i in range(n) if alive[i]]

    def same_turn(key):
        return [(i, t) for i, t in turns if groups[i] == groups[key[0]] and t == key[1]]

    def same_group(key):
        return [(i, t) for i, t in turns if groups[i] == groups[key[0]]]

    def same_state(key):
        mine = states[key[0]][key[1]]
        if mine is None:
            return [key]
        return [(i, t) for i, t in same_group(key) if states[i][t] == mine]

    def among_siblings(values, **options):
        return differences(values, lambda i: siblings[i], scale, **options)

    value = {key: returns[key[0]][key[1]] for key in turns}
    reward = {key: settled[key[0]][key[1]] for key in turns}
    turn, batch = dict.fromkeys(turns, 0.0), dict.fromkeys(turns, 0.0)
    if method in ("mapo", "turn"):
        turn = differences(value, same_turn, scale)
    if method in ("mapo", "batch", "reinforce++_turn"):
        pool = same_group if scope == "group" and method != "reinforce++_turn" else lambda key: turns
        batch = differences(reward, pool, scale)
    if method == "rloo_turn":
        turn = differences(value, same_turn, scale, leave_one_out=True)
    if method == "turn_gae":
        turn = gae(r, long_returns, siblings, alive, turns, gamma, lam)
        if scale == "batch":
            turn = over_batch(turn)
        elif scale == "std":
            turn = differences(turn, same_turn, "std")
    if method == "mt_grpo":
        turn = differences(reward, same_turn, scale)
    if method == "gigpo":
        turn = differences(value, same_state, scale)

    mixed = {key: turn[key] + batch[key] for key in turns}
    if method == "kevin":
        mixed = differences(value, same_group, scale)
    whole = {}
    if method in ("grpo", "rloo", "gigpo"):
        whole = among_siblings({i: sum(long[i]) for i in dialogues}, leave_one_out=method == "rloo")
    elif method == "reinforce++":
        whole = differences({i: returns[i][0] for i in dialogues}, lambda i: dialogues, scale)
    elif method == "mt_grpo":
        whole = among_siblings({i: outcome[i] for i in dialogues})
    elif method == "gdpo":
        total = dict.fromkeys(dialogues, 0.0)
        for name in axes[0] if axes else ():
            known = [
                [x if y is not None else None for x, y in zip(axes[i][name], r[i], strict=True)]
                for i in range(n)
            ]
            z = among_siblings({i: sum(continued(known[i], i)[0]) for i in dialogues})
            for i in dialogues:
                total[i] += (axis_weights or {}).get(name, 1.0) * z[i]
        total = {i: 0.0 if abs(x) < 1e-6 else x for i, x in total.items()}
        whole = differences(total, lambda i: dialogues, "std")
    for key in turns:
        if method == "mapo":
            mixed[key] = turn_weight * turn[key] + (1 - turn_weight) * batch[key]
        elif method in ("mt_grpo", "gigpo"):
            mixed[key] = whole[key[0]] + step_weight * turn[key]
        elif whole:
            mixed[key] = whole[key[0]]

    def spread(values):
        return [[values.get((i, t), 0.0) for t in range(len(r[i]))] for i in range(n)]

    mask = [[(i, t) in set(turns) for t in range(len(r[i]))] for i in range(n)]
    return spread(turn), spread(batch), spread(mixed), returns, mask


def gae(r, long_returns, siblings, alive, turns, gamma, lam):
    """A_t = sum over k of (gamma lam)^k (r + gamma V_next - V), V the siblings' mean of G at a turn index."""

    def value(i, t):
        if t == len(r[i]):
            return long_returns[i][t]  # what follows the end: the continued turns, or nothing
        known = [long_returns[j][t] for j in siblings[i] if t < len(r[j]) and r[j][t] is not None]
        return mean(known) if known else long_returns[i][t]

    found = {}
    for i, t in turns:
        found[i, t] = sum(
            (gamma * lam) ** (k - t) * ((r[i][k] or 0.0) + gamma * value(i, k + 1) - value(i, k))
            for k in range(t, len(r[i]))
        )
    return found
