"""Small builders used by several tests."""

from __future__ import annotations

from collections.abc import Mapping

from mapo import AxisMarks, Dialogue, Mark, Path, Reply, Rubric, Turn
from mapo.types import Ending, Levels


def form(levels: Mapping[str, int] | None, keys: str = "CAP") -> Levels:
    """The published data's flat levels as a turn form; absent judgements and keys count as 0."""
    levels = levels or {}
    return {k: AxisMarks(Mark(levels.get(f"{k}_Prog", 0)), Mark(levels.get(f"{k}_Neg", 0))) for k in keys}


def marks(rubric: Rubric, progress: int, regression: int = 0) -> Levels:
    """The same two levels on every axis."""
    return rubric.levels(**dict.fromkeys(rubric.keys, (progress, regression)))


def walk(path: Path, forms: list[Levels | None]) -> Ending | None:
    """Advance until an ending or the last form."""
    for item in forms:
        path.advance(None if item is None else path.rubric.step(item))
        if ending := path.ending():
            return ending
    return None


def dialogue(rubric: Rubric, forms: list[Levels | None], level: int = 2, **kw) -> Dialogue:
    """A recorded dialogue as play() would leave it, with all start indicators at `level`."""
    start = {i.key: Mark(level) for i in rubric.indicators}
    path = Path(rubric, rubric.start(start))
    turns, ending = [], None
    for number, item in enumerate(forms, 1):
        state = path.advance(None if item is None else rubric.step(item))
        turns.append(
            Turn(f"line {number}", Reply(f"reply {number}"), item, state, unscored=None if item else "x")
        )
        ending = path.ending()
    known = {
        "id": "d1",
        "scenario": "s1",
        "model": "m",
        "start_levels": start,
        "start": path.start,
        "turns": tuple(turns),
        "ending": ending,
        "rubric": rubric.name,
    }
    return Dialogue(**{**known, **kw})
