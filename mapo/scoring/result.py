"""One scored dialogue, whichever kind of file it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mapo.measure.potential import Trajectory
from mapo.types import OUTSIDE_THE_RULES, Ending, StopReason


@dataclass(frozen=True, slots=True)
class Result:
    """One dialogue, recomputed. `unscored` counts turns without a judgement; `notes` tells of oddities.
    `cast` names who played user, director and judge, as far as the file says."""

    model: str
    case: str
    path: Trajectory
    ending: Ending | None
    indices: tuple[float, ...]
    unscored: int
    id: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    cast: dict[str, str] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.ending is not None and self.ending.reason is StopReason.SUCCESS

    @property
    def axis(self) -> str:
        """The tagged dominant axis, or the one with the deepest deficit at the start."""
        keys, start = self.path.rubric.keys, self.path.start
        return self.tags.get("axis") or keys[start.index(min(start))]


def ending_differences(
    path: Trajectory, ending: Ending | None, turns: int, recorded: Ending | None, where: str
) -> Iterator[str]:
    """Where the rules end a dialogue elsewhere, or otherwise, than its record says."""
    ours = ending.reason.value if ending else "not over"
    if path.now.turn < turns:
        yield f"{where}: over at turn {path.now.turn} ({ours}), {turns - path.now.turn} later turns left out"
    elif recorded is not None and recorded.reason not in OUTSIDE_THE_RULES:
        rules = f"the rules of '{path.profile.name}' give {ours}"
        if ours != recorded.reason:
            yield f"{where}: ending is {recorded.reason.value}, {rules}"
        elif ending is not None and recorded.detail and recorded.detail != ending.detail:
            yield f"{where}: ending is {'+'.join(recorded.detail)}, {rules} ({'+'.join(ending.detail)})"
