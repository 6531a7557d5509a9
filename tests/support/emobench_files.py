"""Made-up files with the layout of EmoBench's own, and a model that answers by rule, for its tests."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from mapo.evals.emobench.data import EmoBench, EmoBenchQuestion
from mapo.evals.emobench.questions import KEYS
from support.published import SHARED

PROMPTS = """\
sys: {en: "Read this.\\n", zh: "请读。\\n"}
EA:
  en: "{scenario}\\nWhich {q_type} of {subject} helps?\\n{choices}"
  zh: "{scenario}\\n{subject}的哪个{q_type}有用？\\n{choices}"
EU:
  en: "{scenario}\\nWhat does {subject} feel?\\n{emo_choices}\\nWhy?\\n{cause_choices}"
  zh: "{scenario}\\n{subject}有什么感受？\\n{emo_choices}\\n为什么？\\n{cause_choices}"
"""
RESPONSE = """\
base: {en: "As JSON:", zh: "用JSON："}
cot: {en: "Think, then JSON:", zh: "想一想，再用JSON："}
EA: {en: '"answer": "<letter>"', zh: '"answer": "<字母>"'}
EU:
  en: '"answer_q1": "<letter>", "answer_q2": "<letter>"'
  zh: '"answer_q1": "<字母>", "answer_q2": "<字母>"'
reasoning: {en: '"reasoning": "<why>"', zh: '"reasoning": "<原因>"'}
"""
FEELINGS = ["Joy", "Relief & Joy", "Anger", "Shame", "Pride", "Boredom"]
CAUSES = ["It rained.", "It was over", "Nobody came", "The cat"]


def ea(number: int, language: str = "en", **kw) -> dict:
    choices = [f"{word} {number}" for word in ("Wait", "Call", "Listen", "Leave")]
    row = {
        "qid": str(number),
        "language": language,
        "category": ("Personal-Self", "Social-Others")[number % 2],
        "question type": "Action",
        "scenario": f"({language}) Something happened, number {number}.",
        "subject": "Ada",
        "choices": choices,
        "label": choices[number % 3],
    }
    return {**row, **kw}


def eu(number: int, language: str = "en", **kw) -> dict:
    row = {
        "qid": str(number),
        "language": language,
        "coarse_category": ("complex_emotions", "emotional_cues")[number % 2],
        "finegrained_category": "made_up",
        "scenario": f"({language}) Somebody felt something, number {number}.",
        "subject": "Ben",
        "emotion_choices": FEELINGS,
        "emotion_label": FEELINGS[number % 6],
        "cause_choices": CAUSES,
        "cause_label": CAUSES[number % 4],
    }
    return {**row, **kw}


def write(folder: Path, n: int = 6, **files: str) -> Path:
    """A checkout with `n` questions a task and language; `files` replaces EA, EU, prompts or response."""

    def lines(make) -> str:
        rows = [make(i, language) for language in ("en", "zh") for i in range(1, n + 1)]
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    content = {"EA": lines(ea), "EU": lines(eu), "prompts": PROMPTS, "response": RESPONSE, **files}
    for name, path in {
        "EA": "data/EA.jsonl",
        "EU": "data/EU.jsonl",
        "prompts": "src/configs/prompts.yaml",
        "response": "src/configs/response.yaml",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content[name], encoding="utf-8")
    return folder


def shared(*parts: str) -> Path:
    """The benchmark's own files or recorded cases, or a skip that says what is missing."""
    path = SHARED.joinpath("data", *parts)
    if not path.exists():
        pytest.skip(f"published data absent: {path} (set MAPO_SHARED)")
    return path


def fixture(name: str) -> dict:
    return json.loads(shared("fixtures", name).read_text(encoding="utf-8"))


def form(question: EmoBenchQuestion, letters) -> str:
    return json.dumps(dict(zip(KEYS[question.task], letters, strict=True)))


class Student:
    """Knows about half of the answers; some of its replies are in another form, empty or nonsense.

    What it says depends on the question alone, so two runs agree. `asked` counts questions by id.
    """

    def __init__(self, bench: EmoBench) -> None:
        self.questions = {bench.user(q): q for q in bench.questions}
        self.asked: list[str] = []

    def __call__(self, body: dict) -> str:
        question = self.questions[body["messages"][-1]["content"]]
        self.asked.append(question.id)
        return self.says(question)

    @staticmethod
    def says(question: EmoBenchQuestion) -> str:
        mood = hashlib.sha256(question.id.encode()).digest()[0]
        if mood < 128:
            return f"Well:\n```json\n{form(question, question.labels)}\n```"
        if mood < 160:
            return f"Answer: ({question.labels[0]})"  # read by the lenient reading of EA only
        if mood < 180:
            return "I would rather not say."
        return form(question, ["A"] * len(question.parts))
