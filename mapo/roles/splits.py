"""What is trained on and what is held out, by scenario and by policy.

A judge that has seen a policy's other dialogues knows its manner, and one that has seen a scenario knows its
person. Agreement therefore counts where both are new: the held-out policies in the held-out scenarios
(`both`). The dialogues in which only one of the two is new are not trained on either. The split depends only
on the names and the seed. A test set of other scenarios takes the place of all this (`split_for_test`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mapo.errors import InputError
from mapo.judges.sample import Recording

CELLS = ("both", "new_scenario", "new_policy")
"""Held-out parts: scenario and policy unseen, only the scenario unseen, only the policy unseen."""


@dataclass(frozen=True, slots=True)
class Split:
    """Recordings by use. `validation` scenarios decide when training stops and how levels are calibrated."""

    train: tuple[Recording, ...]
    validation: tuple[Recording, ...]
    both: tuple[Recording, ...]
    new_scenario: tuple[Recording, ...]
    new_policy: tuple[Recording, ...]

    def describe(self) -> dict[str, object]:
        """Return scenarios, policies and dialogues per part, for the manifest."""
        parts = ("train", "validation", *CELLS)
        return {name: _summary(getattr(self, name)) for name in parts}

    @property
    def tests(self) -> dict[str, tuple[Recording, ...]]:
        """The held-out parts that have dialogues."""
        return {name: own for name in CELLS if (own := getattr(self, name))}


def split(
    recordings: Sequence[Recording],
    *,
    seed: int = 0,
    policies: float = 0.25,
    scenarios: float = 0.2,
    validation: float = 0.12,
) -> Split:
    """Split recordings. The shares are those of policies, of scenarios, and of the other scenarios."""
    return next(
        folds(recordings, 1, seed=seed, policies=policies, scenarios=scenarios, validation=validation)
    )


def folds(
    recordings: Sequence[Recording],
    count: int,
    *,
    seed: int = 0,
    policies: float = 0.25,
    scenarios: float = 0.2,
    validation: float = 0.12,
) -> Iterator[Split]:
    """Yield `count` splits. With several, their held-out policies and scenarios rotate through all names."""
    every_policy = _shuffled({r.dialogue.model for r in recordings}, f"{seed}/policies")
    every_scenario = _shuffled({r.scenario.id for r in recordings}, f"{seed}/scenarios")
    n_policies = _held_out(policies, every_policy, "policies", ", or use --test-policies 0")
    n_scenarios = _held_out(scenarios, every_scenario, "scenarios")
    for fold in range(count):
        test_policies = _window(every_policy, fold, count, n_policies)
        test_scenarios = _window(every_scenario, fold, count, n_scenarios)
        others = [name for name in every_scenario if name not in test_scenarios]
        checked = set(others[: max(1, round(validation * len(others)))])
        yield _assign(recordings, test_policies, test_scenarios, checked)


def split_for_test(
    recordings: Sequence[Recording],
    tests: Sequence[Recording],
    *,
    seed: int = 0,
    validation: float = 0.12,
) -> Split:
    """Return a split in which `tests` are tested on and everything else is trained or validated on. Raise
    InputError if they share scenarios or names."""
    for what, name in (("scenario", _scenario), ("dialogue", _name)):
        if shared := sorted({*map(name, recordings)} & {*map(name, tests)}):
            raise InputError(
                f"the {what} '{shared[0]}' is in the recordings to train on, too"
                + (f", and {len(shared) - 1} more are" if len(shared) > 1 else ""),
                where="--test",
                fix="Test on dialogues of other scenarios",
            )
    every_scenario = _shuffled({*map(_scenario, recordings)}, f"{seed}/scenarios")
    if len(every_scenario) < 2:
        raise InputError(
            "the recordings to train on have one scenario, and another is needed for validation",
            where="--from",
            fix="Give recordings of at least 2 scenarios",
        )
    checked = set(every_scenario[: max(1, round(validation * len(every_scenario)))])
    return _assign((*recordings, *tests), set(), {*map(_scenario, tests)}, checked)


def _scenario(recording: Recording) -> str:
    return recording.scenario.id


def _name(recording: Recording) -> str:
    return recording.id


def _assign(
    recordings: Sequence[Recording], policies: set[str], scenarios: set[str], validation: set[str]
) -> Split:
    parts: dict[str, list[Recording]] = {name: [] for name in ("train", "validation", *CELLS)}
    for recording in recordings:
        new_policy = recording.dialogue.model in policies
        if recording.scenario.id in scenarios:
            # without held-out policies, unseen scenarios are the strictest test there is
            part = "both" if new_policy or not policies else "new_scenario"
        elif new_policy:
            part = "new_policy"
        else:
            part = "validation" if recording.scenario.id in validation else "train"
        parts[part].append(recording)
    for name in ("train", "validation", "both"):
        if not parts[name]:
            raise InputError(
                f"no dialogue is left for {name if name != 'both' else 'the test'}",
                where="--from",
                fix="Give recordings in which every policy plays most scenarios, or smaller test shares",
            )
    return Split(**{name: tuple(own) for name, own in parts.items()})


def _held_out(share: float, names: Sequence[str], what: str, other: str = "") -> int:
    """Return how many names to hold out: the share, at least one, and few enough to train on two."""
    if share == 0:
        return 0
    if len(names) < 3:
        raise InputError(
            f"there are {len(names)} {what}, too few to hold one out",
            where="--from",
            fix=f"Give recordings of at least 3 {what}{other}",
        )
    return min(max(1, round(share * len(names) + 1e-9)), len(names) - 2)


def _window(names: Sequence[str], fold: int, count: int, n: int) -> set[str]:
    start = fold * len(names) // count
    return {names[(start + i) % len(names)] for i in range(n)}


def _shuffled(names: set[str], seed: str) -> list[str]:
    order = sorted(names)
    random.Random(seed).shuffle(order)  # noqa: S311 (a split, not security)
    return order


def _summary(recordings: Sequence[Recording]) -> dict[str, object]:
    return {
        "dialogues": len(recordings),
        "policies": sorted({r.dialogue.model for r in recordings}),
        "scenarios": sorted({r.scenario.id for r in recordings}),
    }
