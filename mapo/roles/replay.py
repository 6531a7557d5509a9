"""Replay: a trained user plays recorded dialogues again, with the recorded replies of the policy.

Its lines are compared with those of the recorded user by the simulator's health (repetition, lines against
the persona). With a trained judge, the replayed dialogues are judged too: how often do they end as they did,
and do the turns move the person as they did?
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mapo.errors import AnswerError, ContextError, InputError
from mapo.judges.sample import Recording, choose_dialogues
from mapo.local_model.policy import Device, LocalPolicy, load_policy
from mapo.local_model.role_file import RoleFile, check_role, read_role_file
from mapo.local_model.template import read_template
from mapo.measure.agreement import pearson
from mapo.measure.rubric import Rubric
from mapo.models.chat import Sampling
from mapo.roles.agreement import ending_by
from mapo.roles.examples import Encoder
from mapo.roles.learning import predict
from mapo.roles.packing import pack
from mapo.sampling.local import local_sampler
from mapo.sandbox.readout import judge_messages, levels_from, turn_places
from mapo.sandbox.user import ModelUser
from mapo.scoring.health import health
from mapo.types import Direction, Levels, Turn

SAMPLING = Sampling(max_tokens=256)
DIALOGUES = 12
"""Recorded dialogues that are played again."""


def replay(
    policy: LocalPolicy,
    recordings: Sequence[Recording],
    *,
    context: int,
    seed: int = 0,
    judge: str = "",
    device: Device = "auto",
) -> dict[str, Any]:
    """Play some recordings again with the user in `policy`; return its health beside the recorded user's.
    `judge` is the folder of a trained judge."""
    chosen = choose_dialogues(recordings, DIALOGUES, seed)
    played = asyncio.run(_play_all(policy, chosen, context, seed))
    scenarios = {r.scenario.id: r.scenario for r in chosen}
    result = {
        "dialogues": len(played),
        "lines": sum(len(r.dialogue.turns) - 1 for r in played),
        "recorded": health([r.dialogue for r in chosen], scenarios).as_json(),
        "played": health([r.dialogue for r in played], scenarios).as_json(),
    }
    return {**result, **(_judged(chosen, played, judge, device) if judge else {})}


async def _play_all(
    policy: LocalPolicy, recordings: Sequence[Recording], context: int, seed: int
) -> list[Recording]:
    async with local_sampler("", slots=len(recordings), context=context, loaded=policy) as sampler:
        chat = sampler.role("user")

        async def play(recording: Recording) -> Recording:
            session = f"replay/{recording.id}"
            user = ModelUser(chat, recording.scenario, recording.rubric, seed, session, SAMPLING)
            turns: list[Turn] = []
            for recorded in recording.dialogue.turns:
                try:
                    line = await user.speak(turns, recorded.direction or Direction("go_on"))
                except (AnswerError, ContextError):  # the dialogue ends here
                    break
                turns.append(replace(recorded, user=line, levels=None))
            chat.end_session(user.session)
            return replace(recording, dialogue=replace(recording.dialogue, turns=tuple(turns)))

        return list(await asyncio.gather(*map(play, recordings)))


def trained_judge(folder: str, rubric: Rubric) -> RoleFile:
    """Return the role file of a trained judge. Raise InputError if the model in the folder is not one."""
    role = read_role_file(Path(folder))
    if role is None:
        raise InputError(
            "the model is not a trained judge",
            where=folder,
            fix="Train it with mapo roles train --role judge",
        )
    check_role(role, "judge", rubric, folder)
    return role


def _judged(
    recorded: Sequence[Recording], played: Sequence[Recording], judge: str, device: Device
) -> dict[str, Any]:
    """Judge the played dialogues; return how often they end as recorded, and the correlation of their
    steps."""
    rubric = recorded[0].rubric
    role = trained_judge(judge, rubric)
    model = load_policy(judge, device=device)
    encoder, places = Encoder(read_template(model.tokenizer)), turn_places(rubric)
    examples = [
        encoder.reading(
            f"{r.id}@{n}",
            judge_messages(r.scenario, rubric, r.dialogue.turns[:n], layout=role.layout),
            places,
            [0] * len(places),
        )
        for r in played
        for n in range(1, len(r.dialogue.turns) + 1)
    ]
    rows = [row for k, example in enumerate(examples) for row in pack([example], [k], example.needed)]
    probabilities = iter(
        [role.calibration.apply(read) for read in predict(model, examples, rows, 32768).reads]
    )
    same, steps, truth = 0, [], []
    endings: Counter[str] = Counter()
    for before, after in zip(recorded, played, strict=True):
        forms: list[Levels | None] = []
        for turn in before.dialogue.turns[: len(after.dialogue.turns)]:
            levels = levels_from(next(probabilities), rubric, role.calibration)
            forms.append(levels)
            if turn.levels is not None:
                steps.append(sum(rubric.step(levels)))
                truth.append(sum(rubric.step(turn.levels)))
        recorded_ending = ending_by(before, [t.levels for t in before.dialogue.turns])
        same += ending_by(before, forms) == recorded_ending
        endings[recorded_ending] += 1
    return {
        "same_ending": same / len(recorded),
        "ending_gain": (same - max(endings.values())) / len(recorded),
        "step_correlation": pearson(steps, truth),
        "judge": role.trained_on,
    }
