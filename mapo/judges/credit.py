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
from mapo.judges.sample import Recording
from mapo.measure.reward import REWARDS, Distance
from mapo.runs.contents import advantage_of, read_settings
from mapo.store import RunDir


@dataclass(frozen=True, slots=True)
class CreditSettings:
    """Reward and advantage settings; `assumed` explains each default that no run specified."""

    reward: str = Reward().name
    distance: Distance = Reward().distance
    gamma: float = Advantage().gamma
    turn_weight: float = Advantage().turn_weight
    scope: str = Advantage().scope
    horizon: str = Advantage().horizon
    assumed: tuple[str, ...] = ()

    @property
    def advantage_options(self) -> dict[str, Any]:
        """Keyword arguments for `mapo.advantages`, except the method."""
        return {key: getattr(self, key) for key in ("gamma", "turn_weight", "scope", "horizon")}

    def as_json(self) -> dict[str, Any]:
        """Return the settings as written to audit.json."""
        return asdict(self)


def credit_settings(
    recordings: Sequence[Recording], roots: Sequence[Path]
) -> tuple[CreditSettings, list[Recording]]:
    """Return the settings shared by the runs in `roots`, and the recordings with that reward."""
    reward, distance, reward_note = _reward(recordings)
    options, options_note = _advantage_options(roots)
    assumed = tuple(note for note in (reward_note, options_note) if note)
    settings = CreditSettings(reward, distance, **options, assumed=assumed)
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


def _advantage_options(roots: Sequence[Path]) -> tuple[Mapping[str, Any], str]:
    """Return the advantage options, and why the defaults were used (empty if they were not)."""
    options = []
    for root in roots:
        settings, _ = read_settings(RunDir(root).config)
        advantage, _ = advantage_of(settings)
        if advantage is not None:
            options.append({key: value for key, value in advantage.options().items() if key != "method"})
    default = CreditSettings().advantage_options
    usual = ", ".join(f"{key} {value}" for key, value in default.items())
    if not options:
        return default, f"{usual}: no run has advantage settings"
    if any(other != options[0] for other in options):
        return default, f"{usual}: the runs have different advantage settings"
    return options[0], ""
