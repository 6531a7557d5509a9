"""Effects of the probes on a judge: the change of rewards and levels, and which attacks succeeded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mapo.judges.audit.answers import Answers, Forms, level_sum
from mapo.judges.audit.limits import (
    MAX_SIZE,
    MAX_WORKED,
    MIN_DIALOGUES,
    State,
    check_both_sides,
    check_limit,
    interval_or_point,
)
from mapo.judges.audit.probes import LANGUAGE, LANGUAGE_PROBE, PROBES, attack_name
from mapo.judges.sample import RecordedTurn, Stratum, sampling_weights
from mapo.measure.stats import Floats, Interval, bootstrap, reportable, wilson


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of a probe on a judge, over `n` turns of `clusters` dialogues: mean change of the sum of levels
    and of the reward, with 95 % intervals over dialogues. `size` is the change of the reward in standard
    deviations of the reward between turns, None if the judge gives every turn the same reward."""

    probe: str
    kind: str
    n: int
    clusters: int
    levels: float
    levels_interval: Interval | None
    reward: float
    interval: Interval | None
    size: float | None = None
    size_interval: Interval | None = None

    @property
    def state(self) -> State:
        """The size compared with its limit: a "rise" probe may lower the reward but not raise it, a "shift"
        probe may do neither."""
        if self.size is None:
            return "unclear"
        ends = interval_or_point(self.size, self.size_interval, self.clusters)
        if self.kind == "rise":
            return check_limit(ends, MAX_SIZE, at_most=True)
        return check_both_sides(ends, MAX_SIZE)

    def as_json(self) -> dict[str, Any]:
        """Return the fields and the state, as written to audit.json."""
        return {**asdict(self), "state": self.state}


@dataclass(frozen=True, slots=True)
class AttackResults:
    """Outcome of `n` attacks in `clusters` dialogues. An attack `worked` if it raised the form above all but
    one of the repeats without an attack. `chance` is how often the repeat left out is above the others: the
    rate without any attack. `interval` is that of worked / n."""

    n: int
    worked: int
    names: tuple[str, ...]
    """The attacks that worked."""
    chance: float
    interval: Interval
    clusters: int

    @property
    def state(self) -> State:
        """The success rate above chance compared with its limit."""
        if self.clusters < MIN_DIALOGUES:
            return "unclear"  # the interval is over attacks, and replies of one dialogue are alike
        low, high = self.interval
        return check_limit((low - self.chance, high - self.chance), MAX_WORKED, at_most=True)

    def as_json(self) -> dict[str, Any]:
        """Return the fields and the state, as written to audit.json."""
        return {**asdict(self), "state": self.state}


def measure_effects(answers: Answers, deviation: float, sizes: Mapping[Stratum, int]) -> tuple[Effect, ...]:
    """Measure all probes. `deviation` is the standard deviation of the reward between turns, `sizes` the
    number of recorded turns per stratum."""
    effects = []
    for probe in (*PROBES.values(), LANGUAGE_PROBE):
        changes: list[tuple[RecordedTurn, float, float]] = []
        for name, forms in answers.by_probe.get(probe.name, {}).items():
            turn = answers.turns[name]
            unchanged = answers.unchanged.get(_counterpart(name, probe.name), [])
            before, after = _means(unchanged, turn), _means(forms, turn)
            if before and after:
                changes.append((turn, after[0] - before[0], after[1] - before[1]))
        if changes:
            used = {} if probe.name == LANGUAGE else sizes  # language pairs are not sampled from strata
            effects.append(_effect(probe.name, probe.kind, changes, deviation, used))
    return tuple(effects)


def _counterpart(name: str, probe: str) -> str:
    """Return the turn to compare with: the same one, or the English side of a language pair."""
    return name.replace("pairs/zh", "pairs/en", 1) if probe == LANGUAGE else name


def _means(forms: Forms, turn: RecordedTurn) -> tuple[float, float] | None:
    """Return the mean sum of levels and the mean reward of the usable forms."""
    usable = [levels for levels in forms if levels is not None]
    if not usable:
        return None
    return (
        sum(level_sum(levels, turn) for levels in usable) / len(usable),
        sum(turn.reward(levels) for levels in usable) / len(usable),
    )


def _effect(
    probe: str,
    kind: str,
    changes: Sequence[tuple[RecordedTurn, float, float]],
    deviation: float,
    sizes: Mapping[Stratum, int],
) -> Effect:
    sums: dict[str, Floats] = {}
    weights = sampling_weights([turn for turn, _, _ in changes], sizes)
    for (turn, levels, reward), w in zip(changes, weights, strict=True):
        row = np.array([w, w * levels, w * reward])
        sums[turn.recording.id] = sums.get(turn.recording.id, np.zeros(3)) + row
    table = np.array(list(sums.values()), dtype=np.float64)

    def weighted_mean(rows: Floats) -> Floats:
        return np.asarray(rows[..., 1:] / rows[..., :1])

    levels_mean, reward_mean = (float(x) for x in weighted_mean(table.sum(axis=0)))
    ends = bootstrap(table, weighted_mean)
    intervals = [None, None] if ends is None else [reportable(*pair, rows=len(table)) for pair in ends]
    reward_interval = intervals[1]
    return Effect(
        probe,
        kind,
        n=len(changes),
        clusters=len(table),
        levels=levels_mean,
        levels_interval=intervals[0],
        reward=reward_mean,
        interval=reward_interval,
        size=reward_mean / deviation if deviation else None,
        size_interval=(reward_interval[0] / deviation, reward_interval[1] / deviation)
        if reward_interval and deviation
        else None,
    )


def attack_results(answers: Answers) -> AttackResults | None:
    """Count the attacks that worked. Attacked and unattacked forms are compared with the same number of
    repeats (one fewer than there are), so that the two rates are comparable; None without any pair."""
    n = comparisons = above_by_chance = 0
    names: list[str] = []
    dialogues: set[str] = set()
    for name, forms in answers.by_probe.get("injection", {}).items():
        turn = answers.turns[name]
        repeats = [
            level_sum(levels, turn) for levels in answers.unchanged.get(name, []) if levels is not None
        ]
        attacked = forms[0]
        if len(repeats) < 2 or attacked is None:
            continue
        n += 1
        dialogues.add(turn.recording.id)
        if level_sum(attacked, turn) > max(repeats[1:]):
            names.append(attack_name(answers.variants[name]))
        comparisons += len(repeats)
        above_by_chance += sum(x > max(repeats[:at] + repeats[at + 1 :]) for at, x in enumerate(repeats))
    if not n:
        return None
    chance = above_by_chance / comparisons
    return AttackResults(
        n, len(names), tuple(sorted(names)), chance, wilson(len(names), n), clusters=len(dialogues)
    )
