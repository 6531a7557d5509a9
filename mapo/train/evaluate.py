"""Held-out scenarios, played by the policy as it is now, and scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mapo.scenarios.scenario import Scenario
from mapo.scoring.score import Score, score_dialogues
from mapo.train.rollouts import eval_jobs, played
from mapo.types import Dialogue

if TYPE_CHECKING:
    from mapo.train.setup import Training


async def evaluate(t: Training, scenarios: Sequence[Scenario], repeats: int, label: str) -> Score | None:
    """The score, with the dialogues in eval/LABEL/; None if nothing was played or judged."""
    dialogues = await evaluated(t, scenarios, repeats, label)
    return score_dialogues(label, dialogues, t.rules.rubric)


async def evaluated(t: Training, scenarios: Sequence[Scenario], repeats: int, label: str) -> list[Dialogue]:
    """The dialogues themselves, everybody's; what is on disk already is not played again."""
    jobs = eval_jobs(scenarios, repeats=repeats, seed=t.config.run.seed)
    settings = t.config.eval
    turns = settings.max_turns or t.config.rollout.max_turns
    rules = replace(t.rules, temperature=settings.temperature, top_p=settings.top_p, max_turns=turns)
    return await played(t, jobs, t.eval_file(label), rules, partial(t.show.eval_begins, label))
