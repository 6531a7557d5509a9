"""Credit settings of an audit: the reward, and how it becomes advantages.

Records name their reward, and the config.toml of a training run holds its advantage settings. If all audited
runs agree, the audit uses their settings. If they differ, or none has any (evaluations compute no
advantages), it uses training's defaults and reports that it did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mapo.config import Advantage, Reward
from mapo.estimators.methods import ESTIMATORS
from mapo.judges.sample import Recording
from mapo.measure.reward import REWARDS, Distance
from mapo.runs.contents import advantage_of, read_settings
from mapo.store import RunDir

METHODS = ("mapo", "turn", "batch", "grpo")
"""Methods whose advantages every audit measures."""


@dataclass(frozen=True, slots=True)
class CreditSettings:
    """Reward and advantage settings; `assumed` explains each default that no run specified."""

    reward: str = Reward().name
    distance: Distance = Reward().distance
    gamma: float = Advantage().gamma
    turn_weight: float = Advantage().turn_weight
    scope: str = Advantage().scope
    horizon: str = Advantage().horizon
    endings: str = Advantage().resolved(Reward().name).endings
    scale: str | None = Advantage().scale
    lam: float = Advantage().lam
    step_weight: float = Advantage().step_weight
    methods: tuple[str, ...] = METHODS
    """Methods whose advantages are measured: the usual ones, and those of the runs that need rewards only."""
    assumed: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()
    """Methods of the runs that are not measured, because they need more than the rewards."""

    @property
    def advantage_options(self) -> dict[str, Any]:
        """Keyword arguments for `mapo.advantages`, except the method."""
        keys = ("gamma", "turn_weight", "scope", "horizon", "endings", "scale", "lam", "step_weight")
        return {key: getattr(self, key) for key in keys}

    def as_json(self) -> dict[str, Any]:
        """Return the settings as written to audit.json."""
        return asdict(self)


def credit_settings(
    recordings: Sequence[Recording], roots: Sequence[Path]
) -> tuple[CreditSettings, list[Recording]]:
    """Return the settings shared by the runs in `roots`, and the recordings with that reward."""
    reward, distance, reward_note = _reward(recordings)
    advantages = _advantages(roots)
    options, options_note = _advantage_options(advantages, reward)
    used = dict.fromkeys(a.method for a in advantages if a.method in ESTIMATORS)
    more = tuple(m for m in used if m not in METHODS and ESTIMATORS[m].needs is None)
    settings = CreditSettings(
        reward,
        distance,
        **options,
        methods=(*METHODS, *more),
        assumed=tuple(note for note in (reward_note, options_note) if note),
        unmeasured=tuple(m for m in used if ESTIMATORS[m].needs is not None),
    )
    return settings, [replace(recording, reward=reward, distance=distance) for recording in recordings]


def _reward(recordings: Sequence[Recording]) -> tuple[str, Distance, str]:
    """Return reward, distance, and why the default was used (empty if it was not)."""
    names = sorted({recording.dialogue.reward for recording in recordings})
    name, distance = [*names[0].split("/"), ""][:2]
    default = CreditSettings()
    usual = f"reward {default.reward} with {default.distance} distance"
    if len(names) > 1:
        return default.reward, default.distance, f"{usual}: the records use {', '.join(names)}"
    if name not in REWARDS or distance not in ("zone", "origin"):
        return default.reward, default.distance, f"{usual}: the records name no known reward"
    if name == "outcome":
        return default.reward, default.distance, f"{usual}: an outcome reward does not rate single turns"
    return name, "origin" if distance == "origin" else "zone", ""


def _advantages(roots: Sequence[Path]) -> list[Advantage]:
    """Return the advantage settings of the runs that have any."""
    found = (advantage_of(read_settings(RunDir(root).config)[0])[0] for root in roots)
    return [advantage for advantage in found if advantage is not None]


def _advantage_options(advantages: Sequence[Advantage], reward: str) -> tuple[Mapping[str, Any], str]:
    """Return the advantage options, and why the defaults were used (empty if they were not)."""
    options = [
        {key: value for key, value in advantage.options().items() if key != "method"}
        for advantage in advantages
    ]
    default = CreditSettings(endings=Advantage().resolved(reward).endings).advantage_options
    usual = ", ".join(f"{key} {value}" for key, value in default.items() if value is not None)
    if not options:
        return default, f"{usual}: no run has advantage settings"
    if any(other != options[0] for other in options):
        return default, f"{usual}: the runs have different advantage settings"
    return options[0], ""
