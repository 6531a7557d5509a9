"""By what a judge's levels become credit: the reward that is audited, and how turns are credited with it.

Records name their reward, and a training run's config.toml says how it credits turns. Where all runs of an
audit say the same, that is what is measured. Where they differ, or nobody said (an evaluation credits
nothing), training's defaults are assumed, and the audit says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mapo.config import Advantage, Reward
from mapo.judges.sample import Talk
from mapo.measure.reward import REWARDS, Distance
from mapo.runs.contents import advantage_of, read_settings
from mapo.store import RunDir


@dataclass(frozen=True, slots=True)
class Terms:
    """`assumed` says what of it no run had said."""

    reward: str = Reward().name
    distance: Distance = Reward().distance
    gamma: float = Advantage().gamma
    turn_weight: float = Advantage().turn_weight
    scope: str = Advantage().scope
    horizon: str = Advantage().horizon
    assumed: tuple[str, ...] = ()

    @property
    def credit(self) -> dict[str, Any]:
        """What `mapo.advantages` is called with, but for the method."""
        return {key: getattr(self, key) for key in ("gamma", "turn_weight", "scope", "horizon")}

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def terms_of(talks: Sequence[Talk], roots: Sequence[Path]) -> tuple[Terms, list[Talk]]:
    """The terms of the runs in `roots`, and their dialogues under these terms."""
    reward, distance, about_reward = _reward(talks)
    credit, about_credit = _credit(roots)
    assumed = tuple(said for said in (about_reward, about_credit) if said)
    terms = Terms(reward, distance, **credit, assumed=assumed)
    return terms, [replace(talk, reward=reward, distance=distance) for talk in talks]


def _reward(talks: Sequence[Talk]) -> tuple[str, Distance, str]:
    named = sorted({talk.dialogue.reward for talk in talks})
    name, _, distance = named[0].partition("/")
    default = Terms()
    usual = f"reward {default.reward} on the {default.distance}'s distance"
    if len(named) > 1:
        return default.reward, default.distance, f"{usual}: the records have {', '.join(named)}"
    if name not in REWARDS or distance not in ("zone", "origin"):
        return default.reward, default.distance, f"{usual}: the records name none that is known"
    if name == "outcome":
        return default.reward, default.distance, f"{usual}: an outcome pays for no single turn"
    return name, "origin" if distance == "origin" else "zone", ""


def _credit(roots: Sequence[Path]) -> tuple[Mapping[str, Any], str]:
    found = []
    for root in roots:
        settings, _ = read_settings(RunDir(root).config)
        credit, _ = advantage_of(settings)
        if credit is not None:
            found.append({key: value for key, value in credit.options().items() if key != "method"})
    default = Terms().credit
    usual = ", ".join(f"{key} {value}" for key, value in default.items())
    if not found:
        return default, f"{usual}: no run says how it credits turns"
    if any(own != found[0] for own in found):
        return default, f"{usual}: the runs differ in how they credit turns"
    return found[0], ""
