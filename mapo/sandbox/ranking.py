"""A judge that compares the replies of sibling dialogues instead of filling in a form of levels.

One request shows the same turn of all siblings, anonymous and in random order, and asks for a score of each
reply. Scores of one request can be compared with each other and with nothing else, so the reward of a turn is
its score minus the mean of the scores it was given with (the reward `rank`). Levels are judged as usual:
they move the state and end the dialogues. ART's RULER does the same for whole trajectories.

Siblings end at different times, so `rank_dialogues` is a pass over finished dialogues. A comparison that
fails, or for which fewer than two siblings are left, is missing data: these turns have no reward.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from string import ascii_uppercase
from typing import Any

from mapo.errors import AnswerError, ContextError, EndpointError, InputError, JudgeError
from mapo.measure.reward import RANK, RecordedReward
from mapo.measure.rubric import Rubric
from mapo.models.chat import DEFAULT_SAMPLING, Chat, Request, Sampling
from mapo.models.structured import ask
from mapo.sandbox.cast import Cast, Casting, Job, Ranker
from mapo.sandbox.prompting import DEFAULT_PROMPTS, Prompts, full_persona, language_of
from mapo.sandbox.transcript import delimiter_of, quoted_turn
from mapo.scenarios.scenario import Scenario
from mapo.types import Dialogue, Message, Turn

LETTERS = ascii_uppercase
MAX_SIBLINGS = len(LETTERS)
"""Most conversations in one comparison."""
HIGHEST = 10
"""Highest score in the form. Records hold score / HIGHEST."""
RECENT = 3
"""Turns of each conversation that are shown: the one to be scored and those before it."""
MAX_TOKENS = 4096
FEWEST_CALLS = 10
"""Comparisons from which a share of failures stops a run."""


@dataclass(frozen=True, slots=True)
class ModelRanker:
    """A Ranker for one scenario, played by a model."""

    chat: Chat
    scenario: Scenario
    rubric: Rubric
    sampling: Sampling = DEFAULT_SAMPLING
    prompts: Prompts = DEFAULT_PROMPTS

    @property
    def name(self) -> str:
        return self.chat.name

    async def scores(self, histories: Sequence[Sequence[Turn]], name: str) -> list[float]:
        """Return a score from 0 to 1 for the last reply of each history, in their order.

        `name` identifies the comparison and determines the random order in which the replies are shown. Equal
        histories are shown once. Raises AnswerError or EndpointError on failure.
        """
        texts = [excerpt(history, self.scenario) for history in histories]
        distinct = dict(zip(texts, histories, strict=True))
        if len(distinct) == 1:
            return [0.5] * len(texts)
        order = [list(distinct)[at] for at in shuffled(len(distinct), name)]
        scores = await self.ordered_scores([distinct[text] for text in order], name)
        by_text = dict(zip(order, scores, strict=True))
        return [by_text[text] for text in texts]

    async def ordered_scores(self, histories: Sequence[Sequence[Turn]], name: str) -> list[float]:
        """Return the scores of histories that are shown in this order."""
        if len(histories) > MAX_SIBLINGS:
            raise InputError(
                f"{len(histories)} replies to compare", fix=f"At most {MAX_SIBLINGS} are possible"
            )
        letters, mark = LETTERS[: len(histories)], delimiter_of(self.scenario.id, 0)
        blocks = [
            f"Conversation {letter}\n{excerpt(history, self.scenario)}"
            for letter, history in zip(letters, histories, strict=True)
        ]
        question = self.prompts.fill("rank_ask", letters=", ".join(letters))
        request = Request(
            messages=(
                Message("system", self._system()),
                Message("user", "\n\n".join([self.prompts.fill("transcript", mark=mark), *blocks, question])),
            ),
            temperature=0.0,
            max_tokens=MAX_TOKENS,
            schema=rank_schema(letters),
            nonce=f"{name}/rank",
        )
        return await ask(self.chat, self.sampling.of(request), lambda data: parse_scores(data, letters))

    def _system(self) -> str:
        return self.prompts.fill(
            "rank",
            self.scenario.domain,
            axes="\n".join(f"- {axis.title}: {axis.asks}" for axis in self.rubric.axes),
            person=full_persona(self.scenario, self.rubric),
            language=language_of(self.scenario),
        )


def excerpt(history: Sequence[Turn], scenario: Scenario) -> str:
    """Quote the last turns of a history, as the ranking judge sees them."""
    recent, mark = history[-RECENT:], delimiter_of(scenario.id, 0)
    first = len(history) - len(recent) + 1
    return "\n".join(quoted_turn(number, turn, mark) for number, turn in enumerate(recent, first))


def shuffled(count: int, seed: str) -> list[int]:
    """Return the indices 0 to `count` - 1 in an order that depends on `seed` only."""
    order = list(range(count))
    random.Random(seed).shuffle(order)  # noqa: S311 (not a secret)
    return order


def rank_schema(letters: str) -> dict[str, Any]:
    """Return the JSON schema of a comparison."""
    score = {"type": "integer", "enum": list(range(HIGHEST + 1))}
    return _object({x: _object({"reason": {"type": "string"}, "score": score}) for x in letters})


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def parse_scores(data: object, letters: str) -> list[float]:
    """Parse a comparison from decoded JSON. Raises InputError with the location of the problem."""
    fix = f"Use a JSON object with exactly the keys {', '.join(letters)}, each with a reason and a score"
    if not isinstance(data, dict) or set(data) != set(letters):
        raise InputError("the scores are not one per conversation", fix=fix)
    scores = []
    for letter in letters:
        item = data[letter]
        score = item.get("score") if isinstance(item, dict) else None
        if type(score) is not int or not 0 <= score <= HIGHEST:
            raise InputError(
                f"{str(score)[:40]!r} is not a score",
                where=f"{letter}.score",
                fix=f"Use an integer from 0 to {HIGHEST}",
            )
        scores.append(score / HIGHEST)
    return scores


def with_ranker(
    casting: Casting,
    chat: Chat,
    rubric: Rubric,
    sampling: Sampling = DEFAULT_SAMPLING,
    prompts: Prompts = DEFAULT_PROMPTS,
) -> Casting:
    """Return the casting with a ranking judge in every cast."""

    def cast(job: Job) -> Cast:
        return replace(casting(job), ranker=ModelRanker(chat, job.scenario, rubric, sampling, prompts))

    return cast


@dataclass(slots=True)
class _Comparisons:
    """Comparisons made so far, and how many of them failed."""

    made: int = 0
    failed: int = 0
    last_error: str = ""
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(64))


async def rank_dialogues(
    dialogues: Sequence[Dialogue],
    rankers: Mapping[str, Ranker | None],
    *,
    concurrency: int = 64,
    max_failed: float = 0.5,
) -> list[Dialogue]:
    """Return the dialogues with ranks and rewards. `rankers` maps groups to their ranking judge; other groups
    are returned as they are.

    Groups that were ranked before are returned as they are. Raises JudgeError if more than `max_failed` of at
    least `FEWEST_CALLS` comparisons failed.
    """
    if None in rankers.values():
        raise InputError("the reward 'rank' needs a ranking judge", fix="Set roles.ranker")
    groups: dict[str, list[Dialogue]] = {}
    for dialogue in dialogues:
        groups.setdefault(dialogue.group, []).append(dialogue)
    comparisons = _Comparisons(slots=asyncio.Semaphore(concurrency))
    ranked = await asyncio.gather(
        *(
            _rank_group(groups[group], ranker, comparisons)
            for group, ranker in rankers.items()
            if ranker is not None
        )
    )
    if comparisons.made >= FEWEST_CALLS and comparisons.failed > max_failed * comparisons.made:
        raise JudgeError(
            f"the ranking judge failed on {comparisons.failed} of {comparisons.made} comparisons, "
            f"last error: {comparisons.last_error}",
            fix="Check it with `mapo doctor`. Finished dialogues are kept",
        )
    by_id = {dialogue.id: dialogue for members in ranked for dialogue in members}
    return [by_id.get(dialogue.id, dialogue) for dialogue in dialogues]


async def _rank_group(
    members: Sequence[Dialogue], ranker: Ranker, comparisons: _Comparisons
) -> list[Dialogue]:
    usable = [dialogue for dialogue in members if dialogue.usable]
    if all("ranker" in dialogue.cast for dialogue in usable):
        return list(members)
    longest = max(len(dialogue.turns) for dialogue in usable)
    comparing = (_rank_turn(usable, number, ranker, comparisons) for number in range(1, longest + 1))
    columns = await asyncio.gather(*comparing)
    return [
        with_ranks(dialogue, columns, ranker.name) if dialogue.usable else dialogue for dialogue in members
    ]


async def _rank_turn(
    siblings: Iterable[Dialogue], turn: int, ranker: Ranker, comparisons: _Comparisons
) -> dict[str, float]:
    """Return the score of turn `turn` by dialogue; nothing if fewer than two have it or the call failed."""
    present = [dialogue for dialogue in siblings if len(dialogue.turns) >= turn]
    if len(present) < 2:
        return {}
    first = present[0]
    name = f"{'' if first.step is None else f'{first.step}/'}{first.group}/{first.seed}/{turn}"
    async with comparisons.slots:
        comparisons.made += 1
        try:
            scores = await ranker.scores([dialogue.turns[:turn] for dialogue in present], name)
        except (AnswerError, ContextError, EndpointError, InputError) as error:
            comparisons.failed += 1
            comparisons.last_error = str(error)
            return {}
    return {dialogue.id: score for dialogue, score in zip(present, scores, strict=True)}


def with_ranks(dialogue: Dialogue, columns: Sequence[Mapping[str, float]], ranker: str) -> Dialogue:
    """Return the dialogue with its scores. `columns` are the scores of each turn by dialogue; a turn's reward
    is its score minus the mean of its column.
    """
    turns = []
    for turn, column in zip(dialogue.turns, columns, strict=False):
        score = column.get(dialogue.id)
        reward = None if score is None else score - fmean(column.values())
        turns.append(replace(turn, rank=score, reward=reward))
    cast = {**dialogue.cast, "ranker": ranker}
    return replace(dialogue, turns=tuple(turns), cast=cast, reward=str(RecordedReward(RANK)))
