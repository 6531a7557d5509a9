"""The rubric: what the judge assesses, and the value of each level.

A rubric is data, read from a TOML file. Its axes span the space in which a person's state moves, and there
may be any number of them. `start` maps a start form to the start position (deficits, never above 0), `step`
maps a turn form to a step vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from mapo.domain_folders import MAX_BYTES, RUBRIC, domain_folder, known_folder
from mapo.domain_folders import SHIPPED as SHIPPED
from mapo.errors import RubricError
from mapo.types import AxisMarks, Levels, Mark, StartLevels, Vector
from mapo.untrusted import parse_toml, read_file

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
_Count = Annotated[int, Field(ge=1)]
_Key = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$")]

DIFFICULTIES = ("easy", "medium", "hard", "extreme")


@dataclass(frozen=True)
class Axis:
    """One axis of the rubric.

    `progress[level]` and `regression[-level]` are the movements that the levels stand for, `progress_means`
    and `regression_means` their descriptions for the judge, and `asks` the question to answer. `weight` is
    the axis's weight in distances, norms and projections.
    """

    __pydantic_config__ = _STRICT

    key: _Key
    title: str
    asks: str
    progress: tuple[float, ...]
    progress_means: tuple[str, ...]
    regression: tuple[float, ...]
    regression_means: tuple[str, ...]
    weight: Annotated[float, Field(gt=0)] = 1.0


@dataclass(frozen=True)
class Indicator:
    """One item of the start form. `deficit[level]` is added to its axis."""

    __pydantic_config__ = _STRICT

    key: _Key
    axis: str
    title: str
    deficit: tuple[float, ...]
    means: tuple[str, ...]


@dataclass(frozen=True)
class EndingRules:
    """Thresholds of the ending rules (`Trajectory.ending`). The defaults are EMPA's."""

    __pydantic_config__ = _STRICT

    min_turns: _Count = 12
    max_turns: _Count = 45
    collapse_window: _Count = 5
    stagnant_window: Annotated[int, Field(ge=2)] = 5
    stagnant_stdev: float = 0.5
    regress_window: _Count = 8
    regress_count: _Count = 6
    regress_sum: float = -1.0
    idle_window: _Count = 12
    idle_move: float = 3.0
    idle_range: float = 2.0
    idle_net: float = 3.0


@dataclass(frozen=True)
class Rubric:
    """Axes, indicators and thresholds of a domain.

    `zone` is the deficit per axis up to which nothing more is needed. `difficulty` are the norms of the start
    position at which medium, hard and extreme begin; without them, difficulty is not checked.
    """

    __pydantic_config__ = _STRICT

    name: _Key
    title: str
    version: int
    axes: tuple[Axis, ...]
    indicators: tuple[Indicator, ...]
    zone: Annotated[float, Field(ge=0)] = 1.0
    ending: EndingRules = EndingRules()
    difficulty: tuple[float, ...] = ()

    @staticmethod
    def load(source: str | Path) -> Rubric:
        """Load the rubric of a domain given by name or folder, or a TOML file."""
        if str(source) in SHIPPED:
            return _shipped(str(source))
        if known_folder(str(source)) or Path(source).is_dir():
            return _read(domain_folder(source) / RUBRIC)
        return _read(Path(source))

    @staticmethod
    def parse(text: str, where: str) -> Rubric:
        """Parse the text of a TOML file; `where` is used in error messages."""
        return _parse(text, where)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of the axes, in order."""
        return tuple(axis.key for axis in self.axes)

    @cached_property
    def weights(self) -> Vector:
        """The weights of the axes, in order."""
        return tuple(axis.weight for axis in self.axes)

    @cached_property
    def _axis(self) -> dict[str, Axis]:
        return {axis.key: axis for axis in self.axes}

    def start(self, levels: StartLevels | Mapping[str, int]) -> Vector:
        """Return the start position P_0: the sum of the indicators' deficits per axis."""
        _same_keys("start form", levels, [i.key for i in self.indicators])
        sums = dict.fromkeys(self.keys, 0.0)
        for item in self.indicators:
            level = _level_of(levels[item.key], f"start form, {item.key}")
            if not 0 <= level < len(item.deficit):
                raise RubricError(
                    f"level {level} is out of range 0..{len(item.deficit) - 1}",
                    where=f"start form, {item.key}",
                    fix=f"The levels of {item.key} are listed in rubric '{self.name}'",
                )
            sums[item.axis] += item.deficit[level]
        return tuple(sums.values())

    def step(self, levels: Levels) -> Vector:
        """Return the step vector v_t of a turn form: progress plus regression per axis."""
        _same_keys("turn form", levels, self.keys)
        return tuple(
            self._value(key, "progress", levels[key].progress)
            + self._value(key, "regression", levels[key].regression)
            for key in self.keys
        )

    def expected_step(self, probabilities: Sequence[Sequence[float]]) -> Vector:
        """Return the expectation of the step vector under the probabilities of the levels.

        `probabilities` has those of the levels 0, 1, ... (of a regression: 0, -1, ...) of progress and
        regression of every axis, in order.
        """
        tables = [table for axis in self.axes for table in (axis.progress, axis.regression)]
        for number, (place, table) in enumerate(zip_longest(probabilities, tables, fillvalue=()), 1):
            if len(place) != len(table) or not _is_distribution(place):
                raise RubricError(
                    f"{list(place)[:8]} are not the probabilities of {len(table)} levels",
                    where=f"turn form, mark {number} of {len(tables)}",
                    fix=f"The levels are listed in rubric '{self.name}'",
                )
        means = [
            sum(p * value for p, value in zip(place, table, strict=True))
            for place, table in zip(probabilities, tables, strict=True)
        ]
        return tuple(up + down for up, down in zip(means[::2], means[1::2], strict=True))

    def regression(self, levels: Levels) -> Vector:
        """Return the regression of a turn form per axis: the part of the step vector that is not positive."""
        _same_keys("turn form", levels, self.keys)
        return tuple(self._value(key, "regression", levels[key].regression) for key in self.keys)

    def _value(self, key: str, kind: str, mark: Mark) -> float:
        axis, level = self._axis[key], _level_of(mark, f"turn form, {key}.{kind}")
        table, sign = (axis.progress, 1) if kind == "progress" else (axis.regression, -1)
        if not 0 <= level * sign < len(table):
            ends = sorted((0, sign * (len(table) - 1)))
            raise RubricError(
                f"level {level} is out of range {ends[0]}..{ends[1]}",
                where=f"turn form, {key}.{kind}",
                fix="Progress levels count up from 0, regression levels down from 0",
            )
        return table[level * sign]

    @property
    def measure(self) -> dict[str, Any]:
        """The parts of the rubric that scores depend on."""
        return {key: value for key, value in asdict(self).items() if key != "difficulty"}

    def difficulty_of(self, start: Vector) -> str:
        """Return the difficulty of a start position by its norm, empty if the rubric has no bounds."""
        norm = sum(w * x * x for w, x in zip(self.weights, start, strict=True)) ** 0.5
        return DIFFICULTIES[sum(norm >= bound for bound in self.difficulty)] if self.difficulty else ""

    def levels(self, **marks: tuple[int, int]) -> Levels:
        """Return a turn form without evidence: `rubric.levels(C=(1, 0), A=(2, -1))`. Other axes get
        (0, 0).
        """
        filled = {**dict.fromkeys(self.keys, (0, 0)), **marks}
        return {key: AxisMarks(Mark(up), Mark(down)) for key, (up, down) in filled.items()}


def _is_distribution(values: Sequence[float]) -> bool:
    """Return whether values can be probabilities that were rounded to some decimal places."""
    numbers = all(isinstance(p, int | float) and 0 <= p <= 1 for p in values)
    return numbers and abs(sum(values) - 1) <= 0.01


def _level_of(mark: Mark | int, where: str) -> int:
    level = mark.level if isinstance(mark, Mark) else mark
    if type(level) is not int:
        raise RubricError(f"level {level!r} is not an integer", where=where, fix="Use an integer")
    return level


def _same_keys(form: str, levels: Mapping[str, Any], wanted: list[str] | tuple[str, ...]) -> None:
    missing = [key for key in wanted if key not in levels]
    unknown = [key for key in levels if key not in wanted]
    if missing or unknown:
        parts = [f"missing {', '.join(missing)}"] * bool(missing)
        parts += [f"unknown {', '.join(map(str, unknown))}"] * bool(unknown)
        raise RubricError("; ".join(parts), where=form, fix=f"Expected exactly: {', '.join(wanted)}")


@lru_cache
def _parse(text: str, where: str) -> Rubric:
    try:
        data = parse_toml(text)
    except ValueError as error:  # not TOML, or a number with thousands of digits
        raise RubricError(f"not a readable TOML file ({error})", where=where) from error
    try:
        rubric = _adapter().validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RubricError(
            first["msg"], where=f"{where}, {place}", fix="See docs/method.md, 'A rubric is data'"
        ) from None
    _check(rubric, where)
    return rubric


@lru_cache
def _adapter() -> TypeAdapter[Rubric]:
    return TypeAdapter(Rubric)


@lru_cache
def _shipped(name: str) -> Rubric:
    return _read(domain_folder(name) / RUBRIC)


def _read(path: Path) -> Rubric:
    try:
        text = read_file(path, MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise RubricError(
            "the rubric does not exist",
            where=str(path),
            fix=f"Use a TOML file, or one of: {', '.join(SHIPPED)}",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RubricError(f"not a readable TOML file ({error})", where=str(path)) from error
    return Rubric.parse(text, str(path))


def _check(rubric: Rubric, where: str) -> None:
    """Check what types cannot express: unique keys, tables as long as their descriptions and
    starting at 0.
    """

    def need(condition: bool, problem: str) -> None:
        if not condition:
            raise RubricError(problem, where=where, fix="See docs/method.md, 'A rubric is data'")

    need(bool(rubric.axes) and bool(rubric.indicators), "a rubric needs at least one axis and one indicator")
    bounds = rubric.difficulty
    need(
        not bounds or (len(bounds) == len(DIFFICULTIES) - 1 and list(bounds) == sorted(bounds)),
        f"difficulty: expected {len(DIFFICULTIES) - 1} increasing bounds, or none",
    )
    need(rubric.ending.min_turns <= rubric.ending.max_turns, "ending: min_turns is greater than max_turns")
    need(len(set(rubric.keys)) == len(rubric.axes), "two axes have the same key")
    need(
        len({i.key for i in rubric.indicators}) == len(rubric.indicators), "two indicators have the same key"
    )
    for axis in rubric.axes:
        for name, table, means, sign in (
            ("progress", axis.progress, axis.progress_means, 1),
            ("regression", axis.regression, axis.regression_means, -1),
        ):
            place = f"axis {axis.key}, {name}"
            need(
                len(table) == len(means) >= 2,
                f"{place}: expected as many descriptions as values, at least two",
            )
            need(table[0] == 0, f"{place}: level 0 must have the value 0")
            need(all(sign * x >= 0 for x in table), f"{place}: a value in {list(table)} has the wrong sign")
    for item in rubric.indicators:
        need(item.axis in rubric.keys, f"indicator {item.key}: no axis '{item.axis}'")
        need(
            len(item.deficit) == len(item.means) >= 2,
            f"indicator {item.key}: expected as many descriptions as deficits, at least two",
        )
        need(item.deficit[0] == 0, f"indicator {item.key}: level 0 must have the value 0")
        need(all(x <= 0 for x in item.deficit), f"indicator {item.key}: deficits must not be above 0")
