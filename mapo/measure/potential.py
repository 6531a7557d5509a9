"""The potential model: step vectors -> potential states -> ending.

Implements the Empathy Potential Model (EMPA, arXiv:2603.00552) for any number of axes. A dialogue starts at a
position P_0 of deficits, and each judged reply moves it by the step vector v_t:

    P_t = P_{t-1} + v_t

Progress is measured along the ideal direction, which is fixed at the start:

    v*           = -P_0 / ||P_0||
    alignment_t  = cos(v_t, v*)
    dE_t         = ||v_t|| * alignment_t       energy gained in turn t;  E_t = dE_1 + ... + dE_t
    projection_t = P_t . v*

All norms and dot products use the rubric's axis weights. The paper's authors published two sets of rules that
differ in rounding, tolerances and early stopping (see `Profile`). The ending rules compare the metrics as
recorded, that is, after rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

from mapo.errors import InputError
from mapo.measure.rubric import Rubric
from mapo.types import Dialogue, Ending, Goal, Levels, PotentialState, StopReason, Turn, Vector


@dataclass(frozen=True, slots=True)
class Profile:
    """Rounding, tolerances and early stopping of one published set of rules.

    `published` reproduces EMPA's 480 published dialogues and is the default; `released` follows the code
    package that its authors released later. `*_digits` are decimal places; None means that the value is not
    rounded.
    """

    name: str
    tolerance: float  # allowed distance from the goal, as a fraction of ||P_0||
    goal_digits: int | None
    direction_digits: int | None
    alignment_digits: int
    metric_digits: int
    stops_on_stagnation: bool


PROFILES = {
    "published": Profile("published", 0.10, 2, 4, 4, 2, True),
    "released": Profile("released", 0.05, None, None, 4, 4, False),
}


def profile_named(name: str) -> Profile:
    """Return a profile by name."""
    if name not in PROFILES:
        raise InputError(f"unknown profile '{name}'", fix=f"Use one of: {', '.join(PROFILES)}")
    return PROFILES[name]


def goal_of(start: Vector, rubric: Rubric, profile: Profile) -> Goal:
    """Return the goal of a dialogue that starts at `start`."""
    norm = _norm(start, rubric.weights)
    unit = tuple(-x / norm for x in start) if norm else tuple(0.0 for _ in start)
    tolerance = _round(profile.tolerance * norm, profile.goal_digits)
    return Goal(
        direction=tuple(_round(x, profile.direction_digits) for x in unit),
        distance=tolerance,
        crossing=tolerance,
        energy=_round(norm, profile.goal_digits),
    )


class Trajectory:
    """The sequence of potential states of one dialogue.

    Call `judge` after each reply, with None if the judgement failed, then `ending` to see whether the
    dialogue is over. An unscored turn counts as a turn, but it does not move the state and is ignored by the
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
                f"start position {list(start)} has a value above 0",
                fix="Start positions are deficits: use values of 0 or less",
            )
        if goal is not None:
            _check_vector("goal direction", goal.direction, rubric)
        self.rubric = rubric
        self.profile = profile_named(profile)
        self.start: Vector = tuple(start)
        self.goal = goal or goal_of(self.start, rubric, self.profile)
        self.min_turns = rubric.ending.min_turns if min_turns is None else min_turns
        self.max_turns = rubric.ending.max_turns if max_turns is None else max_turns
        norm = _norm(self.start, rubric.weights)
        rounded = _round(norm, self.profile.goal_digits)
        self.forms: list[Levels] = []
        """The turn forms of the scored turns."""
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
        """The latest state."""
        return self.states[-1]

    def judge(
        self, levels: Levels | None, probabilities: Sequence[Sequence[float]] | None = None
    ) -> PotentialState:
        """Apply a turn form, or None for an unscored turn, and return the new state.

        With `probabilities` of the levels, the state moves by the expected step.
        """
        step = None if levels is None else self.rubric.step(levels)
        if levels is not None and probabilities is not None:
            step = self.rubric.expected_step(probabilities)
        state = self.advance(step)
        if levels is not None:
            self.forms.append(levels)
        return state

    def advance(self, step: Sequence[float] | None) -> PotentialState:
        """Apply a step vector, or None for an unscored turn, and return the new state.

        Most callers have levels and use `judge`.
        """
        if step is not None:
            _check_vector(f"turn {self.now.turn + 1}: step", step, self.rubric)
        previous, weights, digits = self.now, self.rubric.weights, self.profile.metric_digits
        step_vector: Vector = tuple(step) if step is not None else tuple(0.0 for _ in weights)
        position = tuple(p + v for p, v in zip(previous.position, step_vector, strict=True))
        length = _norm(step_vector, weights)
        alignment = _dot(step_vector, self.goal.direction, weights) / length if length else 0.0
        delta = length * alignment
        energy = previous.energy_sum + delta
        self.states.append(
            PotentialState(
                turn=previous.turn + 1,
                position=position,
                distance=zone_distance(position, self.rubric),
                in_zone=in_zone(position, self.rubric),
                norm=round(_norm(position, weights), digits),
                projection=round(_dot(position, self.goal.direction, weights), digits),
                step=step_vector if step is not None else None,
                step_norm=round(length, digits),
                alignment=round(alignment, self.profile.alignment_digits),
                delta_energy=round(delta, digits),
                energy=round(energy, digits),
                energy_sum=energy,
            )
        )
        return self.now

    def ending(self) -> Ending | None:
        """Return how the dialogue ends at the latest state, or None if it continues.

        The first rule that applies decides. All but the turn limit apply only from turn `min_turns` on, and
        stagnation only outside the target zone.
        """
        now, past_minimum = self.now, self.now.turn >= self.min_turns
        enough_energy = past_minimum and now.energy >= self.goal.energy
        if enough_energy and now.norm <= self.goal.distance:
            return Ending(StopReason.SUCCESS, ("geometric",))
        if enough_energy and any(self.goal.direction) and now.projection >= -self.goal.crossing:
            return Ending(StopReason.SUCCESS, ("positional",))
        if past_minimum and (flags := self._failure_flags()):
            return Ending(StopReason.FAILURE, flags)
        # This rule compares the unrounded sum; the margin lets an exact tie pass despite rounding errors.
        if past_minimum and now.in_zone and now.energy_sum >= self.goal.energy - 1e-9:
            return Ending(StopReason.SUCCESS, ("zone",))
        if now.turn >= self.max_turns:
            return Ending(StopReason.TIMEOUT)
        if past_minimum and not now.in_zone and self.profile.stops_on_stagnation:
            return self._stagnation()
        return None

    def _failure_flags(self) -> tuple[str, ...]:
        """Return the failure flags, empty unless they amount to a failure: collapsed, or stagnant and
        regressing.

        collapsed:  dE < 0 in each of the last `collapse_window` scored turns
        stagnant:   sample standard deviation of the last `stagnant_window` norms < `stagnant_stdev`
        regressing: dE < 0 in at least `regress_count` of the last `regress_window` turns, sum < `regress_sum`
        """
        rules = self.rubric.ending
        scored = self._scored_states()
        gains = [s.delta_energy for s in scored]
        last, wide = gains[-rules.collapse_window :], gains[-rules.regress_window :]
        norms = [s.norm for s in scored[-rules.stagnant_window :]]
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

    def _stagnation(self) -> Ending | None:
        """Return the ending if the last `idle_window` scored turns led nowhere, by one of three criteria.

        minimal:              total movement (L1) < `idle_move`
        oscillation-distance: distances vary by less than `idle_range` while their mean is above the zone
        oscillation:          net movement (L1, first to last position) < `idle_net`
        """
        rules, weights = self.rubric.ending, self.rubric.weights
        recent = self._scored_states()[-rules.idle_window :]
        if len(recent) < rules.idle_window:
            return None
        moved = sum(w * abs(x) for s in recent for w, x in zip(weights, s.step or (), strict=True))
        if moved < rules.idle_move:
            return Ending(StopReason.STAGNATION, ("minimal",), (moved,))
        distances = [s.distance for s in recent]
        span, mean = max(distances) - min(distances), sum(distances) / len(distances)
        if span < rules.idle_range and mean > self.rubric.zone:
            return Ending(StopReason.STAGNATION, ("oscillation-distance",), (span, mean))
        ends = zip(weights, recent[0].position, recent[-1].position, strict=True)
        net = sum(w * abs(b - a) for w, a, b in ends)
        if net < rules.idle_net:
            return Ending(StopReason.STAGNATION, ("oscillation",), (moved, net))
        return None

    def _scored_states(self) -> list[PotentialState]:
        return [s for s in self.states[1:] if s.step is not None]


def moving_probabilities(dialogue: Dialogue, turn: Turn) -> tuple[tuple[float, ...], ...] | None:
    """Return the probabilities whose expected step moved the state in a turn, None if its levels did."""
    return turn.probabilities if dialogue.steps == "expected" else None


def _check_vector(name: str, vector: Sequence[float], rubric: Rubric) -> None:
    numbers = all(isinstance(x, int | float) and abs(x) < 1e100 for x in vector)
    if len(vector) != len(rubric.axes) or not numbers:
        raise InputError(
            f"{name} {list(vector)} does not fit rubric '{rubric.name}'",
            fix=f"Give {len(rubric.axes)} finite numbers, one for each of {', '.join(rubric.keys)}",
        )


def zone_distance(position: Sequence[float], rubric: Rubric) -> float:
    """Return the distance from the target zone: sqrt(sum of w * (-zone - x)^2 over axes with x < -zone).

    A surplus on an axis (x > 0) costs nothing.
    """
    gaps = (-rubric.zone - x for x in position)
    return math.sqrt(sum(w * g * g for w, g in zip(rubric.weights, gaps, strict=True) if g > 0))


def origin_distance(position: Sequence[float], rubric: Rubric) -> float:
    """Return ||P||, to which a surplus counts as much as a deficit.

    The papers define the reward by this distance; the published code uses `zone_distance`.
    """
    return _norm(position, rubric.weights)


def distance_between(a: Sequence[float], b: Sequence[float], rubric: Rubric) -> float:
    """Return ||a - b||."""
    return _norm([x - y for x, y in zip(a, b, strict=True)], rubric.weights)


def in_zone(position: Sequence[float], rubric: Rubric) -> bool:
    """Return whether the deficit on every axis is at most the rubric's `zone`."""
    return all(x >= -rubric.zone for x in position)


def _dot(a: Sequence[float], b: Sequence[float], weights: Vector) -> float:
    return sum(w * x * y for w, x, y in zip(weights, a, b, strict=True))


def _norm(a: Sequence[float], weights: Vector) -> float:
    return math.sqrt(_dot(a, a, weights))


def _round(x: float, digits: int | None) -> float:
    return x if digits is None else round(x, digits)
