"""EmoBench's questions and prompts, read from a checkout of its repository and checked by hash.

The data is not shipped with mapo. The release of 2025 is required: 200 questions of emotional application
(EA, one choice of four) and 200 of emotional understanding (EU: which emotion, and why), each in English and
Chinese. A score on another version is not comparable, so other versions are refused unless changed data is
explicitly allowed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.untrusted import read_file

COMMIT = "3b4f84312541f8469e909965e1fff3691ef85c62"
REPOSITORY = "https://github.com/Sahandfer/EmoBench"
PROMPTS, RESPONSE = "src/configs/prompts.yaml", "src/configs/response.yaml"
FILES = {
    "data/EA.jsonl": "344c84913ed4adc9f26261a03cc4ddbecceeef4fcb8f77ab0405f8a63e8a4628",
    "data/EU.jsonl": "60140a7617779bdb496cd50dcebaf33037c39c65821ae300a6a24a72fd7c7037",
    PROMPTS: "78e07f7a40e231e0088e3f0e356001a60ff9805be9b67b0bf55f4ff5e14791b6",
    RESPONSE: "34c22365476cb6795bdc7c11653d66e8a9d59fae2690aec6f100a8d3926d3b9a",
}
"""sha256 of every file that affects scores, at COMMIT."""

TASKS = ("EA", "EU")
LANGUAGES = ("en", "zh")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NO_THINK = "/no_think\n\n"
"""Prefix of the system prompt with which the reference implementation turns off a Qwen model's reasoning."""

_GET_DATA = f"Run git clone {REPOSITORY} and, in it, git checkout {COMMIT[:7]}; pass that folder as --data"
_CHOICES = {
    "EA": (("choices", "choices", "label"),),
    "EU": (
        ("emo_choices", "emotion_choices", "emotion_label"),
        ("cause_choices", "cause_choices", "cause_label"),
    ),
}
"""For each part of a question: its placeholder in the prompt, and the keys of its choices and its label."""


@dataclass(frozen=True, slots=True)
class QuestionPart:
    """One choice to make: the placeholder in the prompt, the choices, and the index of the correct one."""

    placeholder: str
    choices: tuple[str, ...]
    correct: int


@dataclass(frozen=True, slots=True)
class EmoBenchQuestion:
    task: str
    qid: str
    language: str
    category: str
    fields: dict[str, str]
    parts: tuple[QuestionPart, ...]

    @property
    def id(self) -> str:
        return f"{self.task}-{self.language}-{self.qid}"

    @property
    def group(self) -> str:
        """The group for intervals: the two languages of a question are translations of one text."""
        return f"{self.task}-{self.qid}"

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(LETTERS[part.correct] for part in self.parts)


@dataclass(frozen=True, slots=True)
class EmoBench:
    """The loaded benchmark: `hashes` of its files, and the names of those that differ from COMMIT
    (`changed`)."""

    questions: tuple[EmoBenchQuestion, ...]
    prompts: Mapping[str, Any]
    response: Mapping[str, Any]
    hashes: dict[str, str]
    changed: tuple[str, ...] = ()

    def system(self, task: str, language: str, *, reasoning: bool = False, no_think: bool = False) -> str:
        """Return the system prompt, byte for byte that of the reference implementation."""
        statement = self._text(RESPONSE, "cot" if reasoning else "base", language)
        keys = self._text(RESPONSE, task, language)
        if reasoning:
            keys = self._text(RESPONSE, "reasoning", language) + ",\n" + keys
        format_ = f"\n{statement}\n```json\n    {{\n    {keys}\n    }}\n``` \n    "
        return (NO_THINK if no_think else "") + self._text(PROMPTS, "sys", language) + format_

    def user(self, question: EmoBenchQuestion, orders: Sequence[Sequence[int]] | None = None) -> str:
        """Return the user message of a question. `orders` lists, per part, the choices in the order to
        show."""
        fields = dict(question.fields)
        for at, part in enumerate(question.parts):
            order = orders[at] if orders else range(len(part.choices))
            lines = [f"{LETTERS[i]}) {part.choices[choice]}" for i, choice in enumerate(order)]
            fields[part.placeholder] = "\n".join(lines)

        def value(match: re.Match[str]) -> str:
            if match[1] not in fields:
                raise InputError(
                    f"the prompt contains '{{{match[1]}}}', which questions do not have",
                    where=f"{PROMPTS}, {question.task}",
                )
            return fields[match[1]]

        return re.sub(r"\{(\w+)\}", value, self._text(PROMPTS, question.task, question.language))

    def _text(self, file: str, *keys: str) -> str:
        node: Any = self.prompts if file == PROMPTS else self.response
        for key in keys:
            node = node.get(key) if isinstance(node, Mapping) else None
        if not isinstance(node, str):
            raise InputError(f"there is no text under {'.'.join(keys)}", where=file, fix=_GET_DATA)
        return node


def load(folder: Path, languages: Sequence[str] = LANGUAGES, *, allow_changed: bool = False) -> EmoBench:
    """Load the benchmark from a checkout, questions in file order."""
    content = {name: _content(folder, name) for name in FILES}
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    changed = tuple(name for name in FILES if hashes[name] != FILES[name])
    if changed and not allow_changed:
        name = changed[0]
        raise InputError(
            f"the file is not that of EmoBench {COMMIT[:7]}: its sha256 is {hashes[name][:12]}..., "
            f"not {FILES[name][:12]}...",
            where=str(folder / name),
            fix=f"{_GET_DATA}. With --allow-changed-data the file is used, but scores are not comparable",
        )
    questions = [q for task in TASKS for q in _questions(task, content[f"data/{task}.jsonl"], folder)]
    wanted = tuple(q for q in questions if q.language in languages)
    if len({q.id for q in wanted}) < len(wanted) or not wanted:
        raise InputError(
            "there are no questions, or two with the same qid", where=str(folder / "data"), fix=_GET_DATA
        )
    prompts, response = (_yaml(folder, name, content[name]) for name in (PROMPTS, RESPONSE))
    bench = EmoBench(wanted, prompts, response, hashes, changed)
    for question in wanted:  # refuse prompts that cannot be filled in before any call is made
        bench.user(question)
        bench.system(question.task, question.language, reasoning=True)
        bench.system(question.task, question.language)
    return bench


def _content(folder: Path, name: str) -> bytes:
    try:
        return read_file(folder / name)
    except OSError as error:
        problem = f"the file cannot be read ({error.strerror})"
        if (folder / "data" / "EA").is_dir():
            problem = (
                "the file is missing: this is the release of 2024, a different benchmark of the same name"
            )
        raise InputError(problem, where=str(folder / name), fix=_GET_DATA) from None


def _yaml(folder: Path, name: str, data: bytes) -> Mapping[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(
            f"the file is not valid YAML ({' '.join(str(error).split())[:200]})",
            where=str(folder / name),
            fix=_GET_DATA,
        ) from None
    return content if isinstance(content, Mapping) else {}


def _questions(task: str, data: bytes, folder: Path) -> list[EmoBenchQuestion]:
    questions = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            questions.append(_question(task, json.loads(line)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(
                f"the line is not a question of {task} ({error!r})",
                where=f"{folder / 'data' / task}.jsonl, line {number}",
                fix=_GET_DATA,
            ) from None
    return questions


def _question(task: str, row: Mapping[str, Any]) -> EmoBenchQuestion:
    if row["language"] not in LANGUAGES:
        raise ValueError(f"language is {row['language']!r}")
    fields = {"scenario": row["scenario"], "subject": row["subject"]}
    if task == "EA":
        fields["q_type"] = row["question type"]
    category = row["category" if task == "EA" else "coarse_category"]
    parts = tuple(
        QuestionPart(placeholder, tuple(row[choices]), row[choices].index(row[label]))
        for placeholder, choices, label in _CHOICES[task]
    )
    texts = [category, *fields.values(), *(text for part in parts for text in part.choices)]
    if not all(isinstance(text, str) for text in texts) or any(len(p.choices) > len(LETTERS) for p in parts):
        raise ValueError("expected texts and lists of texts")
    return EmoBenchQuestion(task, str(row["qid"]), row["language"], category, fields, parts)
