"""EQ-Bench 3: scenarios played with canned user turns, a look back, and one judge's marks for each.

The words are the benchmark's (`data.py`), the way of playing and counting is the reference's: the
user's turns come whatever the model says; after role-play and drafting the model looks back on its own
replies; the judge reads all of it once and marks criteria from 0 to 20. A scenario's score is the mean of
the criteria that count and are there, the benchmark's five times the mean over all scenarios. The judge is
part of the measure: figures of different judges do not compare.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mapo.errors import AnswerError, EndpointError, InputError, RecordError
from mapo.evals.eqbench.data import EqBench3Data, EqBenchScenario, ScenarioKind
from mapo.evals.eqbench.parse import REASONING, parse_scores, said, written
from mapo.evals.items import REMOVE_LINE, ItemLine, PartialItemError, conversation, seed_of
from mapo.evals.summary import Scored
from mapo.models.chat import Chat, ChatFactory, Request
from mapo.store import RunDir
from mapo.types import Message

NAME = "EQ-Bench"
TEMPERATURE, DEBRIEF_TEMPERATURE, MIN_P, MAX_TOKENS = 0.7, 0.5, 0.1, 12_000
JUDGE_TOKENS = 8_000
SHORTEST = 100
"""Characters that at least one reply must have before the judge is asked."""

_WHY = "detailed chain of thought reasoning about the coming scoring decisions"
"""What the form asks for beside the marks; the judge's prompt is compared by hash, so word for word."""

_INSIGHT = frozenset({"depth_of_insight", "emotional_reasoning", "theory_of_mind", "correctness"}) | {
    "subtext_identification",
    "intellectual_grounding",
}
_ACTED = _INSIGHT | {"demonstrated_empathy", "pragmatic_ei", "social_dexterity", "message_tailoring"}
COUNTED: dict[ScenarioKind, frozenset[str]] = {"roleplay": _ACTED, "drafting": _ACTED, "analysis": _INSIGHT}
"""The criteria that enter a score, by kind. The others describe a style, in which more is not better."""


# ---- playing


async def play_scenario(
    scenario: EqBenchScenario,
    files: EqBench3Data,
    chat: Chat,
    *,
    max_tokens: int = MAX_TOKENS,
    min_p: float = MIN_P,
) -> tuple[list[str], str | None]:
    """The model's replies to the scenario's turns, and its look back (None after an analysis)."""
    messages: tuple[Message, ...] = ()
    replies: list[str] = []

    async def answer(words: str, temperature: float, min_p: float) -> str:
        nonlocal messages
        messages = (*messages, Message("user", words))
        request = Request(
            messages,
            temperature=temperature,
            max_tokens=max_tokens,
            min_p=min_p,
            session=scenario.id,
            nonce=scenario.id,
            seed=seed_of("eqbench3", scenario.id, len(messages)),
        )
        text = said((await chat.reply(request)).text)
        messages = (*messages, Message("assistant", text))
        return text

    for turn in scenario.turns:
        words = files.master[scenario.kind].format(scenario_prompt=turn)
        replies.append(await answer(words, TEMPERATURE, min_p))
    if scenario.kind == "analysis":
        return replies, None
    return replies, (await answer(files.debrief, DEBRIEF_TEMPERATURE, 0.0)).strip()


def replies_of(scenario: EqBenchScenario) -> int:
    """How many replies one conversation holds, the look back among them."""
    return len(scenario.turns) + (scenario.kind != "analysis")


def scoreable(replies: Sequence[str]) -> bool:
    """Whether there is enough to judge: one reply of some length."""
    return any(len(reply.strip()) >= SHORTEST for reply in replies)


# ---- judging


def judge_prompt(
    scenario: EqBenchScenario, files: EqBench3Data, replies: Sequence[str], debrief: str | None
) -> str:
    """The whole talk as the judge reads it, without the marks of headings and emphasis."""
    kind = scenario.kind
    parts = []
    for turn, reply in zip(scenario.turns, replies, strict=True):
        words = files.master[kind].format(scenario_prompt=turn)
        parts += [
            f"User:\n{words}\n",
            f"Assistant:\n{reply if kind == 'analysis' else written(kind, reply)}\n",
        ]
    form = json.dumps({REASONING: _WHY, **dict.fromkeys(files.criteria[kind], 0)}, indent=2)
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
    return said((await chat.reply(request)).text).strip()


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
    """What the model said in an attempt that failed later; None unless all of it is there."""
    replies, debrief = (line or {}).get("replies"), (line or {}).get("debrief")
    if not isinstance(replies, list) or not all(isinstance(reply, str) for reply in replies):
        return None
    looked_back = isinstance(debrief, str)
    whole = len(replies) == len(scenario.turns) and looked_back == (scenario.kind != "analysis")
    return (replies, debrief) if whole else None


def _check_length(replies: Sequence[str]) -> None:
    if not scoreable(replies):
        longest = max(len(reply.strip()) for reply in replies)
        raise AnswerError(
            f"no reply to judge: the longest has {longest} characters, {SHORTEST} are needed",
            fix="The scenario stays without a score. Try the model by hand; a new --out asks it again",
        )


_ASK_AGAIN = (
    "The replies are kept: --resume asks the judge again. Another judge is another run: a new --out, where "
    "--cache-file OLD/cache.sqlite gives the replies without asking for them"
)


def marks_of(kind: ScenarioKind, raw: str) -> dict[str, float]:
    """The judge's marks; AnswerError where none of them counts."""
    shown = f"; it begins: {raw[:80]!r}"
    try:
        marks = parse_scores(raw)
    except InputError as error:
        raise AnswerError(f"{error.problem}{shown}", where="judge", fix=_ASK_AGAIN) from None
    if task_score(kind, marks) is None:
        raise AnswerError(f"no mark that counts in the judge's answer{shown}", where="judge", fix=_ASK_AGAIN)
    return marks


# ---- counting


def task_score(kind: ScenarioKind, marks: Mapping[str, float]) -> float | None:
    """The mean of the criteria that count and are there, as they are: no range is enforced."""
    counted = [mark for name, mark in marks.items() if name in COUNTED[kind]]
    return statistics.mean(counted) if counted else None


def total(tasks: Iterable[tuple[ScenarioKind, Mapping[str, float]]]) -> float | None:
    """The mean over scenarios on the judge's scale, rounded as the reference rounds it; None for none."""
    scores = [score for kind, marks in tasks if (score := task_score(kind, marks)) is not None]
    return round(statistics.mean(scores), 2) if scores else None


def headline(score: float) -> float:
    """From the judge's 0..20 to 0..100."""
    return 5 * score


def marks_by_id(
    lines: Mapping[str, ItemLine], files: EqBench3Data
) -> dict[str, tuple[ScenarioKind, dict[str, float]]]:
    """The finished scenarios' marks, of the criteria that were asked for or count; those of an answer that
    cannot be read (any more) are missing."""
    found: dict[str, tuple[ScenarioKind, dict[str, float]]] = {}
    for scenario in files.scenarios:
        if scenario.id in lines:
            known = COUNTED[scenario.kind].union(files.criteria[scenario.kind])
            with suppress(AnswerError):
                marks = marks_of(scenario.kind, _judgement(lines[scenario.id]))
                found[scenario.id] = scenario.kind, {k: v for k, v in marks.items() if k in known}
    return found


def _judgement(line: ItemLine) -> str:
    raw = line.get("judge")
    if not isinstance(raw, str):
        raise RecordError(
            "holds no answer of a judge", where=f"{RunDir.items.name}, item {line['id']}", fix=REMOVE_LINE
        )
    return raw


def scored(marks: Mapping[str, tuple[ScenarioKind, Mapping[str, float]]]) -> list[Scored]:
    """The score of each scenario on 0..100, and every mark on 0..20."""
    return [
        Scored(name, {NAME: headline(score), **given})
        for name, (kind, given) in marks.items()
        if (score := task_score(kind, given)) is not None
    ]
