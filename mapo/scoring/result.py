"""One dialogue, recomputed from the judge's levels.

Positions, rewards, metrics and the ending are recomputed; `differences` lists where the record disagrees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

from mapo.errors import InputError, RecordError, RubricError
from mapo.measure.alignment import unmet_axes
from mapo.measure.epmq import indices
from mapo.measure.potential import Trajectory, moving_probabilities
from mapo.measure.reward import REWARDS, RecordedReward, rewards_of
from mapo.measure.rubric import Rubric
from mapo.runs.contents import find_rubric, read_rubric
from mapo.types import RECORDED_REASONS, Dialogue, Ending, PotentialState, StopReason


@dataclass(frozen=True, slots=True)
class Result:
    """One recomputed dialogue. `unscored` counts unscored turns, `notes` lists irregular judgement forms, and
    `cast` names who played user, director and judge, and `prompts` their prompts, as far as recorded."""

    model: str
    case: str
    path: Trajectory
    ending: Ending | None
    indices: tuple[float, ...]
    unscored: int
    id: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    cast: dict[str, str] = field(default_factory=dict)
    prompts: str = ""
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: tuple[tuple[str, ...], ...] = ()
    """The recorded faults of each turn."""

    @property
    def passed(self) -> bool:
        return self.ending is not None and self.ending.reason is StopReason.SUCCESS

    @property
    def unmet(self) -> tuple[str, ...]:
        """The axes that were left unmet: their final deficit is outside the target zone."""
        return unmet_axes(self.path)

    @property
    def axis(self) -> str:
        """The tagged dominant axis, or the axis with the largest deficit at the start."""
        keys, start = self.path.rubric.keys, self.path.start
        return self.tags.get("axis") or keys[start.index(min(start))]


def recompute(
    dialogue: Dialogue, folder: Path, profile: str | None, rubric: Rubric | None, where: str
) -> Result:
    """Recompute a dialogue under `profile` (by default its own) and list where the record disagrees."""
    rubric = rubric or _rubric_of(dialogue.rubric, find_rubric(folder))
    same = profile in (None, dialogue.profile)
    path = Trajectory(
        rubric,
        rubric.start(dialogue.start_levels),
        profile or dialogue.profile,
        goal=dialogue.goal if same else None,
        min_turns=dialogue.min_turns,
        max_turns=dialogue.max_turns,
    )
    differences, ending = [], None
    if path.start != dialogue.start:
        differences.append(f"{where}: start is {list(dialogue.start)}, its levels give {list(path.start)}")
    for number, turn in enumerate(dialogue.turns, 1):
        try:
            state = path.judge(turn.levels, moving_probabilities(dialogue, turn))
        except InputError as error:
            raise RecordError(str(error), where=f"{where}, turn {number}") from None
        if turn.state is not None and same:
            differences += _state_differences(turn.state, state, f"{where}, turn {number}")
        if ending := path.ending():
            break
    if not path.forms:
        raise RecordError("the dialogue has no judged turn, so it has no score", where=where)
    if same:
        differences += _reward_differences(dialogue, path, where)
    differences += ending_differences(path, ending, len(dialogue.turns), dialogue.ending, where)
    if ending is None and dialogue.ending is not None and dialogue.ending.reason in RECORDED_REASONS:
        ending = dialogue.ending
    return Result(
        model=dialogue.model,
        case=dialogue.scenario,
        path=path,
        ending=ending,
        indices=indices(path),
        unscored=sum(s.step is None for s in path.states[1:]),
        id=dialogue.id,
        tags=dialogue.tags,
        cast=dialogue.cast,
        prompts=dialogue.prompts,
        differences=differences,
        faults=tuple(turn.faults for turn in dialogue.turns),
    )


def ending_differences(
    path: Trajectory, ending: Ending | None, turns: int, recorded: Ending | None, where: str
) -> Iterator[str]:
    """Yield where the rules end a dialogue at another turn or in another way than recorded."""
    ours = ending.reason.value if ending else "not over"
    if path.now.turn < turns:
        later = turns - path.now.turn
        yield f"{where}: ends at turn {path.now.turn} ({ours}); {later} later turns are ignored"
    elif recorded is not None and recorded.reason not in RECORDED_REASONS:
        rules = f"the rules of '{path.profile.name}' give {ours}"
        if ours != recorded.reason:
            yield f"{where}: ending is {recorded.reason.value}, {rules}"
        elif ending is not None and recorded.detail and recorded.detail != ending.detail:
            yield f"{where}: ending is {'+'.join(recorded.detail)}, {rules} ({'+'.join(ending.detail)})"


def _state_differences(recorded: PotentialState, state: PotentialState, where: str) -> Iterator[str]:
    for field_ in fields(PotentialState):
        theirs, ours = getattr(recorded, field_.name), getattr(state, field_.name)
        if theirs != ours:
            yield f"{where}: {field_.name} is {theirs}, not {ours}"


def _reward_differences(dialogue: Dialogue, path: Trajectory, where: str) -> Iterator[str]:
    recorded = RecordedReward.read(dialogue.reward)
    if recorded.name not in REWARDS or path.now.turn < len(dialogue.turns):
        return
    ours = rewards_of(
        path, recorded.name, distance=recorded.distance, gamma=recorded.gamma, ending=dialogue.ending
    )
    for number, (turn, reward) in enumerate(zip(dialogue.turns, ours, strict=True), 1):
        if (turn.reward is None) != (reward is None) or abs((turn.reward or 0) - (reward or 0)) > 1e-9:
            yield f"{where}, turn {number}: reward is {turn.reward}, not {reward}"


def _rubric_of(name: str, copy: Path) -> Rubric:
    rubric, problem = read_rubric(copy, name)
    if problem:
        raise RubricError(problem, where=str(copy), fix="Restore it, or pass another with --rubric")
    if rubric is None:
        raise RubricError(
            f"rubric '{name}' is not shipped with mapo", fix=f"Put it at {copy}, or pass it with --rubric"
        )
    return rubric
