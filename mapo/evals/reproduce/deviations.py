"""Where a reproduction differs from the paper, or from its authors' released scripts, as sentences.

The expected settings are those the paper's text or the scripts state; what a source leaves open is not
compared. docs/reproduction.md has the complete table.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mapo.config import EMPA_PROMPTS, Config, load_config
from mapo.evals.reproduce.experiments import Experiment, Training
from mapo.evals.reproduce.stages import TEST_MODEL, Recipe
from mapo.players.casting import cast_from_config
from mapo.players.spec import models_by_role

TRAINING_ROLES = "Qwen3-235B"
CARDS = 727

_COMMON: dict[str, Any] = {
    "rollout.siblings": 4,
    "optim.lr": 1e-6,
    "optim.warmup": 0.05,
    "optim.schedule": "cosine",
    "optim.weight_decay": 0.1,
    "optim.grad_clip": 1.0,
    "model.thinking": False,
    "model.lora": None,
    "advantage.horizon": "shortest",
    "advantage.endings": "cut",
}
_PAPER: dict[str, dict[str, Any]] = {
    "7b": {"rollout.max_turns": 15, "optim.epochs": 2},
    "8b": {"rollout.scenarios": 16, "rollout.max_turns": 15, "optim.epochs": 1},
    "14b": {"rollout.max_turns": 30, "optim.epochs": 1},
    "32b": {"rollout.scenarios": 32, "rollout.max_turns": 30, "optim.epochs": 1},
}
_SCRIPTS: dict[str, dict[str, Any]] = {
    "7b": {"rollout.min_turns": 8, "rollout.max_turns": 15, "rollout.temperature": 1.0},
    "8b": {"rollout.min_turns": 8, "rollout.max_turns": 15, "rollout.temperature": 1.0},
    "14b": {},
    "32b": {"rollout.max_turns": 20, "rollout.temperature": 0.8},
}


def expected_settings(profile: str, size: str) -> dict[str, Any]:
    """Return the settings that a source states for a size."""
    if profile == "paper":
        stated = {
            "optim.updates": 1,
            "rollout.temperature": 1.0,
            "reward.distance": "origin",
            "advantage.scope": "batch",
        }
        return {**_COMMON, **stated, **_PAPER[size]}
    stated = {"optim.updates": 2, "optim.epochs": 2, "rollout.scenarios": 16, "advantage.gamma": 0.85}
    return {**_COMMON, **stated, **_SCRIPTS[size]}


def deviations(experiment: Experiment, recipe: Recipe, scenarios: int | None) -> list[str]:
    """Return every deviation of an experiment, one sentence each. `scenarios`: training scenarios."""
    if recipe.small:
        return [
            "The policy is the small embedded model, not a Qwen model.",
            "User, director and judge are scripted, in training and in tests: a test world.",
            "Trainings have two steps, tests four built-in scenarios of at most 15 turns.",
            "The scores test the pipeline; they say nothing about the paper's results.",
        ]
    sizes = dict.fromkeys(row.size for row in experiment.rows)
    lines = [line for size in sizes for line in _settings(size, recipe)]
    lines += _cast(experiment, recipe)
    lines += [*_cards(recipe, next(iter(sizes)), scenarios), *_prompts(recipe), *_assumed(recipe, sizes)]
    return [*lines, "Every training and every test is run once, with one seed."]


def _cards(recipe: Recipe, size: str, scenarios: int | None) -> list[str]:
    if recipe.config(Training(size)).scenarios.contaminated:
        return [
            "As in the paper, the training cards contain the 30 test cases: scores include training on the "
            "test set."
        ]
    if scenarios is None or scenarios == CARDS:
        return []
    return [f"Training uses {scenarios} cards instead of {CARDS}, which contain the 30 test cases."]


def _prompts(recipe: Recipe) -> list[str]:
    if recipe.prompts != EMPA_PROMPTS:
        lines = [
            "Judge, user and director have mapo's prompts. They judge more mildly than EMPA's, so scores are "
            "not comparable with the paper's (--prompts empa uses EMPA's own)."
        ]
        anew = "Start levels are judged anew, not taken from EMPA's file (--start-levels)."
    else:
        lines = [
            "In training, the policy sees the dialogue as chat messages and the profile is 'published'; in "
            "tests, as in EMPA's package, one message with the history, and the profile is 'released'.",
            "A failed judgement is missing data; EMPA's package counts it as no movement.",
            "EMPA's frequency and presence penalties do not apply to a local policy.",
        ]
        anew = "Start levels are judged anew unless EMPA's package brings them (--start-levels)."
    return lines + ([] if recipe.start_levels else [anew])


def _assumed(recipe: Recipe, sizes: Collection[str]) -> list[str]:
    """Return what neither source states and was therefore assumed."""
    unstated = [size for size in sizes if size in ("7b", "14b")] if recipe.profile == "paper" else []
    parts = ["gamma 0.85, as in the scripts"] * (recipe.profile == "paper")
    parts += [f"16 scenarios per step for {' and '.join(unstated)}"] * bool(unstated)
    replies = 256 if recipe.engine == "local" else 512
    parts += [f"replies of at most {replies} tokens", "temperature 1 in tests, one dialogue per case"]
    return [f"Not stated by the paper and assumed: {'; '.join(parts)}."]


def _settings(size: str, recipe: Recipe) -> list[str]:
    config = load_config(recipe.config_name(size), recipe.settings_of(Training(size)))
    source = "the paper" if recipe.profile == "paper" else "the scripts"
    lines = []
    for key, expected in expected_settings(recipe.profile, size).items():
        value = setting(config, key)
        if value != expected:
            lines.append(f"{size}: {key} is {_text(value)}; {source}: {_text(expected)}.")
    return lines


def _cast(experiment: Experiment, recipe: Recipe) -> list[str]:
    lines = []
    first = experiment.rows[0].size
    config = load_config(recipe.config_name(first), recipe.settings_of(Training(first)))
    for role, spec in models_by_role(cast_from_config(config)).items():
        if TRAINING_ROLES.lower() not in spec.model.lower():
            lines.append(f"In training, the {role} is {spec.model}; the paper: {TRAINING_ROLES}.")
    if recipe.tester and TEST_MODEL not in recipe.tester.model.lower():
        lines.append(
            f"In tests, user, director and judge are {recipe.tester.model}; the paper: {TEST_MODEL}."
        )
    return lines


def setting(config: Config, key: str) -> Any:
    """Return the value of a dotted setting."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _text(value: Any) -> str:
    if value is None:
        return "not set"
    if hasattr(value, "model_dump"):
        return ", ".join(f"{k} {v:g}" for k, v in value.model_dump().items())
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
