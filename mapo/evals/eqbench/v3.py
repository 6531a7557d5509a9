"""EQ-Bench 3: scenarios with fixed user turns, a debrief, and the marks of one judge.

Prompts come from the benchmark's files (`data.py`); procedure and scoring are those of the reference
implementation. The user turns do not depend on the replies. After role-play and drafting, the model is asked
for a debrief on its own replies. The judge reads everything once and marks each criterion from 0 to 20. A
scenario's score is the mean of the counted criteria that have a mark; the benchmark's score is five times the
mean over scenarios. Scores of different judges are not comparable.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mapo.errors import AnswerError, EndpointError, InputError, RecordError
from mapo.evals.eqbench.data import EqBench3Data, EqBenchScenario, ScenarioKind
from mapo.evals.eqbench.parse import REASONING, parse_scores, reply_for_judge, without_reasoning
from mapo.evals.items import REMOVE_LINE, ItemLine, PartialItemError, conversation, seed_of
from mapo.evals.summary import Scored
from mapo.models.chat import Chat, ChatFactory, Request
from mapo.store import RunDir
from mapo.types import Message

NAME = "EQ-Bench"
TEMPERATURE, DEBRIEF_TEMPERATURE, MIN_P, MAX_TOKENS = 0.7, 0.5, 0.1, 12_000
JUDGE_TOKENS = 8_000
MIN_CHARACTERS = 100
"""Length that at least one reply must have to be judged."""

_REASONING_HINT = "detailed chain of thought reasoning about the coming scoring decisions"
"""The reference implementation's wording; tests compare the judge's prompt by hash."""

_INSIGHT = frozenset({"depth_of_insight", "emotional_reasoning", "theory_of_mind", "correctness"}) | {
    "subtext_identification",
    "intellectual_grounding",
}
_ALL_COUNTED = _INSIGHT | {"demonstrated_empathy", "pragmatic_ei", "social_dexterity", "message_tailoring"}
COUNTED: dict[ScenarioKind, frozenset[str]] = {
    "roleplay": _ALL_COUNTED,
    "drafting": _ALL_COUNTED,
    "analysis": _INSIGHT,
}
"""The criteria that enter a score, by kind of scenario. The others describe style, where more is not
better."""


# ---- playing


async def play_scenario(
    scenario: EqBenchScenario,
    files: EqBench3Data,
    chat: Chat,
    *,
    max_tokens: int = MAX_TOKENS,
    min_p: float = MIN_P,
) -> tuple[list[str], str | None]:
    """Play a scenario; return the model's replies and its debrief (None for an analysis)."""
    messages: tuple[Message, ...] = ()
    replies: list[str] = []

    async def answer(prompt: str, temperature: float, min_p: float) -> str:
        nonlocal messages
        messages = (*messages, Message("user", prompt))
        request = Request(
            messages,
            temperature=temperature,
            max_tokens=max_tokens,
            min_p=min_p,
            session=scenario.id,
            nonce=scenario.id,
            seed=seed_of("eqbench3", scenario.id, len(messages)),
        )
        text = without_reasoning((await chat.reply(request)).text)
        messages = (*messages, Message("assistant", text))
        return text

    for turn in scenario.turns:
        prompt = files.master[scenario.kind].format(scenario_prompt=turn)
        replies.append(await answer(prompt, TEMPERATURE, min_p))
    if scenario.kind == "analysis":
        return replies, None
    return replies, (await answer(files.debrief, DEBRIEF_TEMPERATURE, 0.0)).strip()


def replies_of(scenario: EqBenchScenario) -> int:
    """Return the number of replies in one conversation, including the debrief."""
    return len(scenario.turns) + (scenario.kind != "analysis")


def scoreable(replies: Sequence[str]) -> bool:
    """Return whether at least one reply is long enough to be judged."""
    return any(len(reply.strip()) >= MIN_CHARACTERS for reply in replies)


# ---- judging


def judge_prompt(
    scenario: EqBenchScenario, files: EqBench3Data, replies: Sequence[str], debrief: str | None
) -> str:
    """Return the judge's prompt with the whole conversation, without marks of headings and emphasis."""
    kind = scenario.kind
    parts = []
    for turn, reply in zip(scenario.turns, replies, strict=True):
        prompt = files.master[kind].format(scenario_prompt=turn)
        parts += [
            f"User:\n{prompt}\n",
            f"Assistant:\n{reply if kind == 'analysis' else reply_for_judge(kind, reply)}\n",
        ]
    form = json.dumps({REASONING: _REASONING_HINT, **dict.fromkeys(files.criteria[kind], 0)}, indent=2)
    text = files.rubric[kind].format(
        transcript="---\n".join(parts), debrief=debrief or "", output_format=form.replace(": 0", ": 0-20")
    )
    return text.replace("*", "").replace("#", "")


async def judgement(
    prompt: str, chat: Chat, *, name: str, attempt: int = 0, max_tokens: int = JUDGE_TOKENS
) -> str:
    """Return the judge's answer. After a failed attempt the judge is called again instead of the cache."""
    request = Request(
        (Message("user", prompt),),
        temperature=0.0,
        max_tokens=max_tokens,
        session=name,
        nonce=f"{name}/{attempt}" if attempt else name,
    )
    return without_reasoning((await chat.reply(request)).text).strip()


async def solve(
    scenario: EqBenchScenario,
    attempt: int,
    *,
    files: EqBench3Data,
    policy: ChatFactory,
    judge: Chat,
    max_tokens: int = MAX_TOKENS,
    judge_max_tokens: int = JUDGE_TOKENS,
    min_p: float = MIN_P,
    partial: Mapping[str, ItemLine] | None = None,
) -> dict[str, Any]:
    """Play and judge one scenario, as an item of a run (`evals/items.py`).

    `partial` holds the lines of failed attempts: replies in them are used instead of calling the model again.
    """
    recorded = _replies_in((partial or {}).get(scenario.id), scenario)
    if recorded is None:
        with conversation(policy, scenario.id) as chat:
            recorded = await play_scenario(scenario, files, chat, max_tokens=max_tokens, min_p=min_p)
    replies, debrief = recorded
    body: dict[str, Any] = {"kind": scenario.kind, "replies": replies, "debrief": debrief, "judge": None}
    try:
        _check_length(replies)
        prompt = judge_prompt(scenario, files, replies, debrief)
        body["judge"] = await judgement(
            prompt, judge, name=scenario.id, attempt=attempt, max_tokens=judge_max_tokens
        )
        marks_of(scenario.kind, body["judge"])
    except (AnswerError, EndpointError) as problem:
        raise PartialItemError(body, problem) from problem
    return body


def _replies_in(line: ItemLine | None, scenario: EqBenchScenario) -> tuple[list[str], str | None] | None:
    """Return replies and debrief of an attempt that failed later; None if they are incomplete."""
    replies, debrief = (line or {}).get("replies"), (line or {}).get("debrief")
    if not isinstance(replies, list) or not all(isinstance(reply, str) for reply in replies):
        return None
    debriefed = isinstance(debrief, str)
    complete = len(replies) == len(scenario.turns) and debriefed == (scenario.kind != "analysis")
    return (replies, debrief) if complete else None


def _check_length(replies: Sequence[str]) -> None:
    if not scoreable(replies):
        longest = max(len(reply.strip()) for reply in replies)
        raise AnswerError(
            f"no reply is long enough to be judged: the longest has {longest} characters, "
            f"not {MIN_CHARACTERS}",
            fix="The scenario has no score. Check the model's replies; use a new --out to ask it again",
        )


_ASK_AGAIN = (
    "The replies are kept: run again with --resume to ask the judge again. For another judge, use a new "
    "--out and reuse the replies with --cache-file OLD/cache.sqlite"
)


def marks_of(kind: ScenarioKind, raw: str) -> dict[str, float]:
    """Return the judge's marks; raise AnswerError if there is none of a counted criterion."""
    excerpt = f"; it begins: {raw[:80]!r}"
    try:
        marks = parse_scores(raw)
    except InputError as error:
        raise AnswerError(f"{error.problem}{excerpt}", where="judge", fix=_ASK_AGAIN) from None
    if task_score(kind, marks) is None:
        raise AnswerError(
            f"the judge's answer has no mark of a counted criterion{excerpt}", where="judge", fix=_ASK_AGAIN
        )
    return marks


# ---- scores


def task_score(kind: ScenarioKind, marks: Mapping[str, float]) -> float | None:
    """Return the mean of the counted criteria that have a mark. Marks out of range count unchanged."""
    counted = [mark for name, mark in marks.items() if name in COUNTED[kind]]
    return statistics.mean(counted) if counted else None


def total(tasks: Iterable[tuple[ScenarioKind, Mapping[str, float]]]) -> float | None:
    """Return the mean over scenarios on the judge's scale, rounded like the reference implementation; None
    without scores."""
    scores = [score for kind, marks in tasks if (score := task_score(kind, marks)) is not None]
    return round(statistics.mean(scores), 2) if scores else None


def headline(score: float) -> float:
    """Convert a score from the judge's scale (0 to 20) to 0 to 100."""
    return 5 * score


def marks_by_id(
    lines: Mapping[str, ItemLine], files: EqBench3Data
) -> dict[str, tuple[ScenarioKind, dict[str, float]]]:
    """Return the marks of finished scenarios, for requested and counted criteria. Scenarios whose judgement
    cannot be parsed are missing."""
    result: dict[str, tuple[ScenarioKind, dict[str, float]]] = {}
    for scenario in files.scenarios:
        if scenario.id in lines:
            known = COUNTED[scenario.kind].union(files.criteria[scenario.kind])
            with suppress(AnswerError):
                marks = marks_of(scenario.kind, _judgement(lines[scenario.id]))
                result[scenario.id] = scenario.kind, {k: v for k, v in marks.items() if k in known}
    return result


def _judgement(line: ItemLine) -> str:
    raw = line.get("judge")
    if not isinstance(raw, str):
        raise RecordError(
            "the item has no judge's answer",
            where=f"{RunDir.items.name}, item {line['id']}",
            fix=REMOVE_LINE,
        )
    return raw


def scored(marks: Mapping[str, tuple[ScenarioKind, Mapping[str, float]]]) -> list[Scored]:
    """Return the score of each scenario on 0 to 100, and its marks on 0 to 20."""
    return [
        Scored(name, {NAME: headline(score), **by_name})
        for name, (kind, by_name) in marks.items()
        if (score := task_score(kind, by_name)) is not None
    ]
