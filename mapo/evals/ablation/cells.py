"""The runs of an ablation grid, as data: which settings vary, and the name and overrides of each run.

An *axis* is a setting with the values it takes. The grid is the product of all axes and the seeds. A *cell*
is one run of it. Cells that differ only in the seed form one row of the tables.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from mapo.errors import InputError
from mapo.untrusted import parse_toml

METHOD, REWARD, SEED = "advantage.method", "reward.name", "run.seed"
LABELS = {
    METHOD: "method",
    REWARD: "reward",
    "reward.distance": "distance",
    "advantage.turn_weight": "turn_weight",
    "advantage.scope": "scope",
    "advantage.horizon": "horizon",
    "advantage.endings": "endings",
    "advantage.scale": "scale",
    "advantage.gamma": "gamma",
    "optim.lr": "lr",
    "model.source": "model",
    "roles.everyone.model": "roles",
    "roles.judge.model": "judge",
    "roles.user.model": "user",
    "roles.director.model": "director",
    "eval.judge.model": "test_judge",
}
"""Short names of settings, in tables and folder names. Folder names of existing grids depend on them."""
LONGEST_VALUE, LONGEST_NAME = 40, 180
"""Characters of a value and of all settings in a folder name; longer ones are cut and get a checksum."""


@dataclass(frozen=True, slots=True)
class GridCell:
    """One run of the grid. `settings` are its varied settings and their values as TOML, in grid order."""

    settings: tuple[tuple[str, str], ...]
    seed: int

    @classmethod
    def of(cls, settings: Mapping[str, Any], seed: int) -> GridCell:
        """Return the cell with these settings, such as {"advantage.method": "mapo", "optim.lr": 1e-5}."""
        return cls(tuple((key, toml_value(value)) for key, value in settings.items()), seed)

    @property
    def shown(self) -> dict[str, str]:
        """The settings as text for people: strings without quotes."""
        return {key: plain_text(value) for key, value in self.settings}

    @property
    def overrides(self) -> list[str]:
        """The settings and the seed as `key.path=value`, as `mapo train` takes them."""
        return [*(f"{key}={value}" for key, value in self.settings), f"{SEED}={self.seed}"]

    @property
    def name(self) -> str:
        """The name of the run's folder: method_reward_seed0, or turn_weight-0.5_seed0 for other settings."""
        parts = [_part(key, value) for key, value in self.settings]
        settings = "_".join(parts)
        if len(settings) > LONGEST_NAME:
            settings = f"{settings[:LONGEST_NAME]}-{_checksum(repr(self.settings))}"
        return f"{settings}_seed{self.seed}" if parts else f"seed{self.seed}"


def label_of(key: str) -> str:
    """Return the name of a setting in tables."""
    return LABELS.get(key, key)


def axes_of(grid: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the varied settings and their values; in mapo.ablate/1 they are the methods and rewards."""
    if "vary" in grid:
        return {str(key): list(values) for key, values in dict(grid["vary"]).items()}
    return {METHOD: list(grid["methods"]), REWARD: list(grid["rewards"])}


def cells_of(grid: Mapping[str, Any]) -> list[GridCell]:
    """Return the runs of a grid, seed by seed, so that the finished ones can be compared at any time.

    `grid` has "seeds" and either "vary" (setting -> values) or "methods" and "rewards". The first setting
    varies fastest.
    """
    return list(iter_cells(grid))


def iter_cells(grid: Mapping[str, Any]) -> Iterator[GridCell]:
    """Yield the runs of a grid; a damaged manifest may name more than fit into memory."""
    axes = axes_of(grid)
    for seed in grid["seeds"]:
        for values in product(*reversed(axes.values())):
            yield GridCell.of(dict(zip(axes, reversed(values), strict=True)), int(seed))


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """Parse `key=a,b,c`. Values are TOML, or else strings; commas in brackets and quotes do not separate."""
    key, equals, values = text.partition("=")
    key = key.strip()
    fix = "Write a setting and its values, such as advantage.turn_weight=0,0.5,1"
    if not equals or not all(key.split(".")):
        raise InputError(f"'{text}' does not name a setting", where="--vary", fix=fix)
    parsed = [_parse(part) for part in split_values(values)]
    unique = {toml_value(value): value for value in parsed}
    if not unique:
        raise InputError(f"'{text}' has no values", where="--vary", fix=fix)
    return key, list(unique.values())


def split_values(text: str) -> list[str]:
    """Split at commas outside brackets and quotes; surrounding space and empty parts are dropped."""
    parts, depth, quote, current = [], 0, "", ""
    for character in text:
        if quote:
            quote = "" if character == quote and not current.endswith("\\") else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        if character == "," and not quote and depth <= 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return [part.strip() for part in (*parts, current) if part.strip()]


def _parse(text: str) -> Any:
    try:
        value = parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text
    return value if isinstance(value, str | int | float | list | dict) else text  # a date is a name


def toml_value(value: Any) -> str:
    """Return a value as TOML on one line. An integral float has the text of the integer, so that 1 and 1.0
    are one value."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        pairs = (f"{toml_value(str(key))} = {toml_value(inner)}" for key, inner in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(toml_value, value))}]"
    raise InputError(f"{value!r} cannot be the value of a setting", where="--vary", fix="Use TOML values")


def plain_text(value: str) -> str:
    """Return a TOML value as text for people."""
    return str(json.loads(value)) if value.startswith('"') else value


def _part(key: str, value: str) -> str:
    """Return a setting as part of a folder name. Method and reward go without their label."""
    text = plain_text(value)
    safe = _safe(text)
    if safe != text or len(safe) > LONGEST_VALUE:
        safe = f"{safe[:LONGEST_VALUE]}-{_checksum(text)}"
    return safe if key in (METHOD, REWARD) else f"{_safe(label_of(key))}-{safe}"


def _safe(text: str) -> str:
    """Return a text as part of a folder name; a manifest from elsewhere may name anything."""
    return re.sub(r"[^A-Za-z0-9.+_-]+", "-", text).strip("-.") or "value"


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]
