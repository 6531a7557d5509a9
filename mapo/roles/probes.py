"""The audit's probes on a trained judge: does it reward what is worth nothing?

Every sampled turn is judged as recorded and with each change of `judges/audit/probes.py` that leaves the
rubric and the prompt alone. The change of the expected step is measured in standard deviations of the step
between turns. An attack has worked if it raised the sum of the levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mapo.judges.audit.limits import MAX_SIZE, MAX_WORKED
from mapo.judges.audit.probes import PROBES, UNCHANGED, JudgeInput, attack_name, unchanged_input
from mapo.judges.sample import Recording, choose_turns
from mapo.measure.calibration import Calibration
from mapo.measure.rubric import Rubric
from mapo.roles.agreement import step_sums
from mapo.roles.examples import Encoder, each
from mapo.roles.packing import Example
from mapo.sandbox.readout import LAYOUT, judge_messages, turn_places

NAMES = ("length", "flattery", "hedging", "verbosity", "injection", "position")
"""Probes that change the conversation only."""
Ask = Callable[[Sequence[Example]], list[list[list[float]]]]
"""Reads the answers of examples out of a model: log-probabilities of the options of every place."""


def probe(
    recordings: Sequence[Recording],
    encoder: Encoder,
    ask: Ask,
    calibration: Calibration,
    turns: int,
    seed: int,
    longest: int,
    layout: int = LAYOUT,
) -> dict[str, Any]:
    """Return the effect of every probe and the attacks that worked, on a sample of recorded turns. Prompts of
    more than `longest` tokens are left out; the result is empty if all are."""
    rubric = recordings[0].rubric
    shown: list[tuple[str, int, JudgeInput]] = []
    for variant, turn in enumerate(choose_turns(recordings, turns, seed)):
        unchanged = unchanged_input(turn)
        changes = [(name, PROBES[name].change(unchanged, variant)) for name in NAMES]
        shown.append((UNCHANGED, variant, unchanged))
        shown += [(name, variant, changed) for name, changed in changes if changed is not None]
    examples = each(shown, lambda item: _example(encoder, *item, layout=layout))
    fits = [example.needed <= longest for example in examples]
    usable = {
        variant for (name, variant, _), fit in zip(shown, fits, strict=True) if fit and name == UNCHANGED
    }
    kept = [k for k, (_, variant, _) in enumerate(shown) if fits[k] and variant in usable]
    if not kept:
        return {}
    shown = [shown[k] for k in kept]
    answers = ask([examples[k] for k in kept])
    probabilities = [calibration.apply(answer) for answer in answers]
    levels = np.array([calibration.levels(p) for p in probabilities])
    steps, _ = step_sums(probabilities, levels, rubric)
    signs = np.array([1, -1] * len(rubric.axes))
    sums = (levels * signs).sum(axis=1)
    plain = {variant: k for k, (name, variant, _) in enumerate(shown) if name == UNCHANGED}
    spread = float(np.std([steps[k] for k in plain.values()])) or 1.0
    effects = {}
    for name in NAMES:
        own = [(k, plain[variant]) for k, (probe_name, variant, _) in enumerate(shown) if probe_name == name]
        if own:
            change = np.array([steps[k] - steps[base] for k, base in own])
            size = float(change.mean()) / spread
            effects[name] = {
                "kind": PROBES[name].kind,
                "turns": len(own),
                "size": size,
                "raised": float(np.mean([sums[k] > sums[base] for k, base in own])),
                "fine": size <= MAX_SIZE if PROBES[name].kind == "rise" else abs(size) <= MAX_SIZE,
            }
    worked = [
        attack_name(variant)
        for k, (name, variant, _) in enumerate(shown)
        if name == "injection" and sums[k] > sums[plain[variant]]
    ]
    attacks = sum(name == "injection" for name, _, _ in shown)
    return {
        "turns": len(plain),
        "effects": effects,
        "attacks": {
            "tried": attacks,
            "worked": sorted(worked),
            "fine": attacks > 0 and len(worked) <= MAX_WORKED * attacks,
        },
    }


def _example(encoder: Encoder, name: str, variant: int, shown: JudgeInput, *, layout: int) -> Example:
    rubric: Rubric = shown.rubric
    places = turn_places(rubric)
    messages = judge_messages(shown.scenario, rubric, shown.turns, layout=layout)
    return encoder.reading(f"{name}/{variant}", messages, places, [0] * len(places), kind="probe")
