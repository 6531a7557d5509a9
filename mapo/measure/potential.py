"""Step vectors -> potential states -> won, lost or going on.

The Empathy Potential Model (EMPA, arXiv:2603.00552), for any number of axes. A dialogue starts at a
position of deficits P_0. Each judged reply moves it by v_t. Progress is measured along the fixed ideal
direction v* = -P_0/||P_0||: alignment = cos(v_t, v*), delta energy = ||v_t|| * alignment.

Two sets of rules are in circulation, and they do not agree in rounding, tolerances and early stops:
`published` reproduces the published dialogues and is the default; `released` follows the package that
was released later. All tests for an ending use the metrics as the profile records them, rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

from mapo.errors import InputError
from mapo.measure.rubric import Rubric
from mapo.types import Ending, Levels, PotentialState, StopReason, Vector


@dataclass(frozen=True, slots=True)
class Profile:
    """How goals and metrics are computed; None for `*_digits` means not rounded."""

    name: str
    tolerance: float  # distance and direction tolerance, as a share of ||P_0||
    goal_digits: int | None
    direction_digits: int | None
    alignment_digits: int
    metric_digits: int
    stops_when_idle: bool


PROFILES = {
    "published": Profile("published", 0.10, 2, 4, 4, 2, True),
    "released": Profile("released", 0.05, None, None, 4, 4, False),
}


def profile_named(name: str) -> Profile:
    if name not in PROFILES:
        raise InputError(f"unknown profile '{name}'", fix=f"Use one of: {', '.join(PROFILES)}")
    return PROFILES[name]


@dataclass(frozen=True, slots=True)
class Goal:
    """What a dialogue must reach: fixed at the start, or read from a precomputed file."""

    direction: Vector
    distance: float
    crossing: float
    energy: float

    @staticmethod
    def of(start: Vector, rubric: Rubric, profile: Profile) -> Goal:
        norm = _norm(start, rubric.weights)
        unit = tuple(-x / norm for x in start) if norm else tuple(0.0 for _ in start)
        near = _round(profile.tolerance * norm, profile.goal_digits)
        return Goal(
            direction=tuple(_round(x, profile.direction_digits) for x in unit),
            distance=near,
            crossing=near,
            energy=_round(norm, profile.goal_digits),
        )


class Trajectory:
    """One dialogue's way through the potential space, turn by turn.

    `judge(levels)` after each reply, None for a reply nobody could judge; then `ending()` says whether
    the dialogue is over. An unjudged turn counts as a turn but moves nothing and enters no window of the
    ending rules: missing data is neither progress nor stagnation.
    """

    def __init__(
        self,
        rubric: Rubric,
        start: Sequence[float],
        profile: str = "published",
        *,
        goal: Goal | None = None,
        min_turns: int | None = None,
        max_turns: int | None = None,
    ) -> None:
        _check_vector("start position", start, rubric)
        if max(start) > 0:
            raise InputError(
                f"start position {list(start)} has a surplus", fix="A start holds deficits: 0 or less"
            )
        if goal is not None:
            _check_vector("goal direction", goal.direction, rubric)
        self.rubric = rubric
        self.profile = profile_named(profile)
        self.start: Vector = tuple(start)
        self.goal = goal or Goal.of(self.start, rubric, self.profile)
        self.min_turns = rubric.ending.min_turns if min_turns is None else min_turns
        self.max_turns = rubric.ending.max_turns if max_turns is None else max_turns
        norm = _norm(self.start, rubric.weights)
        rounded = _round(norm, self.profile.goal_digits)
        self.forms: list[Levels] = []
        """The forms of the judged turns."""
        self.states = [
            PotentialState(
                turn=0,
                position=self.start,
                distance=zone_distance(self.start, rubric),
                in_zone=in_zone(self.start, rubric),
                norm=rounded,
                projection=-rounded,
            )
        ]

    @property
    def now(self) -> PotentialState:
        return self.states[-1]

    def judge(self, levels: Levels | None) -> PotentialState:
        """Move by what the judge filled in, or stand still where no judge could."""
        state = self.advance(None if levels is None else self.rubric.step(levels))
        if levels is not None:
            self.forms.append(levels)
        return state

    def advance(self, step: Sequence[float] | None) -> PotentialState:
        """Move by a step vector; `judge` is the usual way in."""
        if step is not None:
            _check_vector(f"turn {self.now.turn + 1}: step", step, self.rubric)
        before, weights, digits = self.now, self.rubric.weights, self.profile.metric_digits
        move: Vector = tuple(step) if step is not None else tuple(0.0 for _ in weights)
        position = tuple(p + v for p, v in zip(before.position, move, strict=True))
        length = _norm(move, weights)
        alignment = _dot(move, self.goal.direction, weights) / length if length else 0.0
        delta = length * alignment
        energy = before.energy_sum + delta
        self.states.append(
            PotentialState(
                turn=before.turn + 1,
                position=position,
                distance=zone_distance(position, self.rubric),
                in_zone=in_zone(position, self.rubric),
                norm=round(_norm(position, weights), digits),
                projection=round(_dot(position, self.goal.direction, weights), digits),
                step=move if step is not None else None,
                step_norm=round(length, digits),
                alignment=round(alignment, self.profile.alignment_digits),
                delta_energy=round(delta, digits),
                energy=round(energy, digits),
                energy_sum=energy,
            )
        )
        return self.now

    def ending(self) -> Ending | None:
        """The first rule that ends the dialogue here, in the order the profile tests them."""
        now, grown = self.now, self.now.turn >= self.min_turns
        charged = grown and now.energy >= self.goal.energy
        if charged and now.norm <= self.goal.distance:
            return Ending(StopReason.SUCCESS, ("geometric",))
        if charged and any(self.goal.direction) and now.projection >= -self.goal.crossing:
            return Ending(StopReason.SUCCESS, ("positional",))
        if grown and (lost := self._lost()):
            return Ending(StopReason.FAILURE, lost)
        # Here the unrounded sum decides; an exact tie must win in spite of the last bit of the sum.
        if grown and now.in_zone and now.energy_sum >= self.goal.energy - 1e-9:
            return Ending(StopReason.SUCCESS, ("zone",))
        if now.turn >= self.max_turns:
            return Ending(StopReason.TIMEOUT)
        if grown and not now.in_zone and self.profile.stops_when_idle:
            return self._idle()
        return None

    def _lost(self) -> tuple[str, ...]:
        rules = self.rubric.ending
        judged = [s for s in self.states[1:] if s.step is not None]
        gains = [s.delta_energy for s in judged]
        last, wide = gains[-rules.collapse_window :], gains[-rules.regress_window :]
        norms = [s.norm for s in judged[-rules.stagnant_window :]]
        collapsed = len(last) == rules.collapse_window and all(g < 0 for g in last)
        stagnant = len(norms) == rules.stagnant_window and stdev(norms) < rules.stagnant_stdev
        regressing = (
            len(wide) == rules.regress_window
            and sum(g < 0 for g in wide) >= rules.regress_count
            and sum(wide) < rules.regress_sum
        )
        if not (collapsed or (stagnant and regressing)):
            return ()
        flags = (("collapsed", collapsed), ("stagnant", stagnant), ("regressing", regressing))
        return tuple(name for name, raised in flags if raised)

    def _idle(self) -> Ending | None:
        rules, weights = self.rubric.ending, self.rubric.weights
        recent = [s for s in self.states[1:] if s.step is not None][-rules.idle_window :]
        if len(recent) < rules.idle_window:
            return None
        moved = sum(w * abs(x) for s in recent for w, x in zip(weights, s.step or (), strict=True))
        if moved < rules.idle_move:
            return Ending(StopReason.STAGNATION, ("minimal",), (moved,))
        distances = [s.distance for s in recent]
        spread, mean = max(distances) - min(distances), sum(distances) / len(distances)
        if spread < rules.idle_range and mean > self.rubric.zone:
            return Ending(StopReason.STAGNATION, ("oscillation-distance",), (spread, mean))
        ends = zip(weights, recent[0].position, recent[-1].position, strict=True)
        net = sum(w * abs(b - a) for w, a, b in ends)
        if net < rules.idle_net:
            return Ending(StopReason.STAGNATION, ("oscillation",), (moved, net))
        return None


def _check_vector(what: str, vector: Sequence[float], rubric: Rubric) -> None:
    numbers = all(isinstance(x, int | float) and abs(x) < 1e100 for x in vector)
    if len(vector) != len(rubric.axes) or not numbers:
        raise InputError(
            f"{what} {list(vector)} does not fit rubric '{rubric.name}'",
            fix=f"Give {len(rubric.axes)} finite numbers, one for each of {', '.join(rubric.keys)}",
        )


def zone_distance(position: Sequence[float], rubric: Rubric) -> float:
    """How far outside the zone: sqrt(sum of w * (-zone - x)^2 over axes with x < -zone). Surplus is free."""
    gaps = (-rubric.zone - x for x in position)
    return math.sqrt(sum(w * g * g for w, g in zip(rubric.weights, gaps, strict=True) if g > 0))


def origin_distance(position: Sequence[float], rubric: Rubric) -> float:
    """||P||: surplus counts as much as deficit. What the papers write; the published code uses the zone."""
    return _norm(position, rubric.weights)


def distance_between(a: Sequence[float], b: Sequence[float], rubric: Rubric) -> float:
    return _norm([x - y for x, y in zip(a, b, strict=True)], rubric.weights)


def in_zone(position: Sequence[float], rubric: Rubric) -> bool:
    return all(x >= -rubric.zone for x in position)


def _dot(a: Sequence[float], b: Sequence[float], weights: Vector) -> float:
    return sum(w * x * y for w, x, y in zip(weights, a, b, strict=True))


def _norm(a: Sequence[float], weights: Vector) -> float:
    return math.sqrt(_dot(a, a, weights))


def _round(x: float, digits: int | None) -> float:
    return x if digits is None else round(x, digits)
