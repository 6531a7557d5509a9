"""Rejudging of finished runs: would another judge reach the same result?

The other judge sees every dialogue as it was played, turn by turn; trajectory, EPM-Q and ending are computed
from its levels. The messages stay as they are: the user was steered by the first judge's levels, and the
dialogue ended where those levels ended it. A dialogue that the new judge would have ended earlier is cut at
that point. One that it would have continued counts as unfinished, which is not a pass. Passes are therefore
biased against the new judge; compare the ranking of runs and the differences between them instead.

OUT/manifest.json, items.jsonl, cache.sqlite, ledger.json    as for every benchmark; one item per dialogue
    RUN/manifest.json, dialogues/empa.jsonl                  a run for `mapo score` and `mapo compare`
    swap.json, swap.md                                       the runs under both judges
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mapo.errors import AnswerError, ContextError, InputError, RecordError
from mapo.evals.items import REMOVE_LINE, ItemLine
from mapo.judges.sample import Recording
from mapo.measure.potential import Trajectory
from mapo.measure.reward import REWARDS, RecordedReward, rewards_of
from mapo.records import encode, encode_dialogue
from mapo.runs.claim import digest, read_manifest
from mapo.runs.kind import Kind, kind_in_manifest
from mapo.sandbox.cast import Job, Judge, panel_levels, read_probabilities
from mapo.sandbox.panel import NamedJudge
from mapo.store import RunDir, write_atomic
from mapo.types import RECORDED_REASONS, AxisMarks, Dialogue, Levels, Mark, StartLevels, Turn

SCHEMA = "mapo.swap/1"
STEERED = ", on dialogues steered by "


@dataclass(frozen=True, slots=True)
class Rejudgement:
    """A dialogue to judge again. `start` is whether the judge also fills in the start form."""

    recording: Recording
    start: bool

    @property
    def id(self) -> str:
        """Id of the recording."""
        return self.recording.id


def rejudgements(recordings: Sequence[Recording], fixed_starts: Mapping[str, bool]) -> list[Rejudgement]:
    """Return the dialogues to judge again. `fixed_starts` is, by run, whether its start levels were given
    instead of judged; those in scenarios always were."""
    return [
        Rejudgement(rec, not rec.scenario.start_levels and not fixed_starts.get(rec.run, False))
        for rec in recordings
    ]


def rejudgement_solver(named: NamedJudge) -> Callable[[Rejudgement, int], Awaitable[dict[str, Any]]]:
    """Return the function that the item runner calls for each dialogue. It judges the turns in order, because
    a judge may keep state."""

    async def solve(item: Rejudgement, attempt: int) -> dict[str, Any]:
        dialogue = item.recording.dialogue
        job = Job(item.recording.scenario, f"again/{item.id}", seed=dialogue.seed or 0, attempt=attempt)
        judge = named.create(job)
        start = await judge.start() if item.start else None
        turns = [
            await _judge_turn(judge, dialogue.turns[:n], item) for n in range(1, len(dialogue.turns) + 1)
        ]
        return {"start": start and {key: asdict(mark) for key, mark in start.items()}, "turns": turns}

    return solve


async def _judge_turn(judge: Judge, turns: Sequence[Turn], item: Rejudgement) -> dict[str, Any]:
    rubric = item.recording.rubric
    try:
        levels = await judge.judge([replace(turn, levels=None, state=None) for turn in turns])
        rubric.step(levels)
    except (AnswerError, ContextError, InputError) as problem:
        return {"unscored": str(problem), "panel": panel_levels(judge, rubric)}
    read = read_probabilities(judge)
    return {
        "levels": {k: asdict(levels[k]) for k in rubric.keys},
        "panel": panel_levels(judge, rubric),
        **({} if read is None else {"probabilities": read}),
    }


# ---- records of the new judgements


def judged_again(item: Rejudgement, line: ItemLine, judge: str, prompts: str = "") -> Dialogue:
    """Return the dialogue's record under the new judge, as far as it was played. `prompts` are the judge's;
    empty if it has none."""
    dialogue, rubric = item.recording.dialogue, item.recording.rubric
    where = f"{RunDir.items.name}, {item.id}"
    try:
        start = _start(line["start"]) if line["start"] else dialogue.start_levels
        goal = None if line["start"] else dialogue.goal  # other start levels have another goal
        forms = [_form(turn.get("levels")) for turn in line["turns"]]
        details = [
            (turn.get("unscored"), turn.get("panel"), turn.get("probabilities")) for turn in line["turns"]
        ]
        trajectory = Trajectory(
            rubric,
            rubric.start(start),
            dialogue.profile,
            goal=goal,
            min_turns=dialogue.min_turns,
            max_turns=dialogue.max_turns,
        )
        turns, ending = [], None
        for turn, levels, (unscored, panel, read) in zip(dialogue.turns, forms, details, strict=True):
            judged = replace(
                turn,
                levels=levels,
                state=trajectory.judge(levels),
                unscored=unscored,
                panel={name: tuple(levels) for name, levels in panel.items()} if panel else None,
                probabilities=tuple(map(tuple, read)) if read else None,
            )
            turns.append(judged)
            if ending := trajectory.ending():
                break
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(
            f"the line does not hold a rejudged dialogue ({error!r})", where=where, fix=REMOVE_LINE
        ) from None
    recorded = dialogue.ending
    if ending is None and recorded is not None and recorded.reason in RECORDED_REASONS:
        ending = recorded
    reward = RecordedReward.read(dialogue.reward)
    known = reward.name if reward.name in REWARDS else "idr"
    rewards = rewards_of(trajectory, known, distance=reward.distance, gamma=reward.gamma, ending=ending)
    return replace(
        dialogue,
        start_levels=start,
        start=trajectory.start,
        turns=tuple(replace(turn, reward=r) for turn, r in zip(turns, rewards, strict=True)),
        ending=ending,
        goal=goal,
        prompts=prompts or dialogue.prompts,
        cast={**dialogue.cast, "judge": judge},
        steps="",
    )


def _start(form: Mapping[str, Any]) -> StartLevels:
    return {key: Mark(**mark) for key, mark in form.items()}


def _form(levels: Mapping[str, Any] | None) -> Levels | None:
    if levels is None:
        return None
    return {k: AxisMarks(Mark(**v["progress"]), Mark(**v["regression"])) for k, v in levels.items()}


def judge_name(judge: str, before: str) -> str:
    """Return the judge's name in rejudged records. It names the judge that steered the dialogues (the first
    one, after several swaps), so that the scores are not compared with those of runs steered by `judge`."""
    return f"{judge}{STEERED}{before.rpartition(STEERED)[2]}"


@dataclass(frozen=True, slots=True)
class SwapSource:
    """A run, or one test of a training run, and the folder for its new records."""

    name: str
    root: Path
    model: str
    folder: str

    @staticmethod
    def of(recording: Recording, roots: Mapping[str, Path]) -> SwapSource:
        """Return the source that a recording belongs to."""
        run = recording.run
        name, _, test = run.rpartition("/") if run.endswith(("/before", "/after")) else (run, "", "")
        model = f"{name}, {test}" if test else recording.dialogue.model
        safe = "".join(c if c.isalnum() or c in "-._" else "_" for c in run).strip(".") or "run"
        return SwapSource(run, roots[name], model, f"{safe}-{digest(run)[:4]}")


def evaluations(recordings: Sequence[Recording]) -> list[Recording]:
    """Return the recordings of evaluations and of the tests of training runs."""
    training = {rec.run for rec in recordings if rec.dialogue.step is not None}
    return [rec for rec in recordings if rec.run not in training]


def write_run(
    out: Path,
    source: SwapSource,
    items: Sequence[Rejudgement],
    lines: Mapping[str, ItemLine],
    judge: str,
    prompts: str = "",
) -> Path:
    """Write a run directory like that of an evaluation, with the new levels, and return it."""
    folder = out / source.folder
    before = items[0].recording.dialogue.cast.get("judge") or "unknown"
    name = judge_name(judge, before)
    records = [judged_again(item, lines[item.id], name, prompts) for item in items if item.id in lines]
    text = b"".join(encode_dialogue(record) + b"\n" for record in records)
    run = RunDir(folder)
    write_atomic(run.empa_dialogues, text)
    rubric = RunDir(source.root).rubric
    if rubric.exists():
        write_atomic(run.rubric, rubric.read_bytes())
    write_atomic(run.manifest, encode(_manifest(source, items, name, prompts), str(run.manifest)) + b"\n")
    return folder


def _manifest(source: SwapSource, items: Sequence[Rejudgement], judge: str, prompts: str) -> dict[str, Any]:
    """Return the evaluation's manifest with the new judge; for a test of a training run, one with what
    `mapo compare` needs."""
    original = read_manifest(RunDir(source.root).manifest) if RunDir(source.root).manifest.exists() else {}
    dialogue = items[0].recording.dialogue
    cast = {**dict.fromkeys(("user", "director"), "unknown"), **dialogue.cast, "judge": judge}
    changes: dict[str, Any] = {"cast": cast, "judged_again": {"run": source.name}}
    changes |= {"prompts": prompts} if prompts else {}
    if kind_in_manifest(original) is Kind.EMPA:
        return {**original, **changes}
    cases = list(dict.fromkeys(item.recording.dialogue.scenario for item in items))
    known = (original.get("scenarios") or {}).get("test") or {}
    return {
        "schema": "mapo.empa/1",
        "model": source.model,
        "scenarios": {case: str(known.get(case, "")) for case in cases},
        "repeats": max(1, len(items) // len(cases)),
        "profile": dialogue.profile,
        **changes,
    }


def has_fixed_start(root: Path) -> bool:
    """Return whether an evaluation was given its start levels instead of judging them."""
    path = RunDir(root).manifest
    return bool(path.exists() and read_manifest(path).get("start_levels"))


def swap_manifest(judge: str, recordings: Sequence[Recording], prompts: str = "") -> dict[str, Any]:
    """Return the settings that a resumed swap must share."""
    messages = {rec.id: digest([[t.user, t.reply.text] for t in rec.dialogue.turns]) for rec in recordings}
    settings = {"schema": SCHEMA, "judge": judge, "dialogues": digest(json.loads(json.dumps(messages)))}
    return {**settings, **({"prompts": prompts} if prompts else {})}
