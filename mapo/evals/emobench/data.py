"""EmoBench's questions and prompts, read from a checkout of its repository and checked by hash.

Nothing of it is shipped here. The release of 2025 is meant: 200 questions of emotional application (EA, one
choice of four) and 200 of emotional understanding (EU: which emotion, and why), each in English and in
Chinese. Another version would give a score under the same name that means something else, so it is refused
unless changed data is allowed on purpose.
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

COMMIT = "3b4f84312541f8469e909965e1fff3691ef85c62"
REPOSITORY = "https://github.com/Sahandfer/EmoBench"
PROMPTS, RESPONSE = "src/configs/prompts.yaml", "src/configs/response.yaml"
FILES = {
    "data/EA.jsonl": "344c84913ed4adc9f26261a03cc4ddbecceeef4fcb8f77ab0405f8a63e8a4628",
    "data/EU.jsonl": "60140a7617779bdb496cd50dcebaf33037c39c65821ae300a6a24a72fd7c7037",
    PROMPTS: "78e07f7a40e231e0088e3f0e356001a60ff9805be9b67b0bf55f4ff5e14791b6",
    RESPONSE: "34c22365476cb6795bdc7c11653d66e8a9d59fae2690aec6f100a8d3926d3b9a",
}
"""sha256 of every file that shapes a score, as of COMMIT."""

TASKS = ("EA", "EU")
LANGUAGES = ("en", "zh")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NO_THINK = "/no_think\n\n"
"""What the reference puts before the system prompt of a Qwen model, if it asks for no reasoning."""

_GET_IT = f"git clone {REPOSITORY}, then git checkout {COMMIT[:7]} in it; --data is that folder"
_CHOICES = {
    "EA": (("choices", "choices", "label"),),
    "EU": (
        ("emo_choices", "emotion_choices", "emotion_label"),
        ("cause_choices", "cause_choices", "cause_label"),
    ),
}
"""For each part of a question: its place in the prompt, its choices and its label in the data."""


@dataclass(frozen=True, slots=True)
class Part:
    """One thing to choose: the place of its choices in the prompt, the choices, and which is right."""

    place: str
    choices: tuple[str, ...]
    right: int


@dataclass(frozen=True, slots=True)
class EmoBenchQuestion:
    task: str
    qid: str
    language: str
    category: str
    fields: dict[str, str]
    parts: tuple[Part, ...]

    @property
    def id(self) -> str:
        return f"{self.task}-{self.language}-{self.qid}"

    @property
    def group(self) -> str:
        """The two languages of one question are translations of one text."""
        return f"{self.task}-{self.qid}"

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(LETTERS[part.right] for part in self.parts)


@dataclass(frozen=True, slots=True)
class EmoBench:
    """`hashes` is what was found; `changed` names the files that are not those of COMMIT."""

    questions: tuple[EmoBenchQuestion, ...]
    prompts: Mapping[str, Any]
    response: Mapping[str, Any]
    hashes: dict[str, str]
    changed: tuple[str, ...] = ()

    def system(self, task: str, language: str, *, reasoning: bool = False, no_think: bool = False) -> str:
        """The system prompt, to the byte as the reference sends it."""
        statement = self._words(RESPONSE, "cot" if reasoning else "base", language)
        form = self._words(RESPONSE, task, language)
        if reasoning:
            form = self._words(RESPONSE, "reasoning", language) + ",\n" + form
        answer_in = f"\n{statement}\n```json\n    {{\n    {form}\n    }}\n``` \n    "
        return (NO_THINK if no_think else "") + self._words(PROMPTS, "sys", language) + answer_in

    def user(self, question: EmoBenchQuestion, orders: Sequence[Sequence[int]] | None = None) -> str:
        """The question as it is put; `orders` says for each part which choice stands where."""
        fields = dict(question.fields)
        for at, part in enumerate(question.parts):
            order = orders[at] if orders else range(len(part.choices))
            lines = [f"{LETTERS[i]}) {part.choices[choice]}" for i, choice in enumerate(order)]
            fields[part.place] = "\n".join(lines)

        def value(match: re.Match[str]) -> str:
            if match[1] not in fields:
                raise InputError(f"no question has a '{match[1]}'", where=f"{PROMPTS}, {question.task}")
            return fields[match[1]]

        return re.sub(r"\{(\w+)\}", value, self._words(PROMPTS, question.task, question.language))

    def _words(self, file: str, *keys: str) -> str:
        found: Any = self.prompts if file == PROMPTS else self.response
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        if not isinstance(found, str):
            raise InputError(f"no text under {'.'.join(keys)}", where=file, fix=_GET_IT)
        return found


def load(folder: Path, languages: Sequence[str] = LANGUAGES, *, allow_changed: bool = False) -> EmoBench:
    """The benchmark of a checkout, in the order of its files."""
    content = {name: _content(folder, name) for name in FILES}
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    changed = tuple(name for name in FILES if hashes[name] != FILES[name])
    if changed and not allow_changed:
        name = changed[0]
        raise InputError(
            f"is not EmoBench {COMMIT[:7]}'s (sha256 {hashes[name][:12]}..., not {FILES[name][:12]}...)",
            where=str(folder / name),
            fix=f"{_GET_IT}. Or --allow-changed-data: scores are then not comparable with anybody's",
        )
    questions = [q for task in TASKS for q in _questions(task, content[f"data/{task}.jsonl"], folder)]
    wanted = tuple(q for q in questions if q.language in languages)
    if len({q.id for q in wanted}) < len(wanted) or not wanted:
        raise InputError("no questions, or two with one qid", where=str(folder / "data"), fix=_GET_IT)
    prompts, response = (_yaml(folder, name, content[name]) for name in (PROMPTS, RESPONSE))
    found = EmoBench(wanted, prompts, response, hashes, changed)
    for question in wanted:  # prompts that cannot be filled in are refused before anything is spent
        found.user(question)
        found.system(question.task, question.language, reasoning=True)
        found.system(question.task, question.language)
    return found


def _content(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        if (folder / "data" / "EA").is_dir():
            problem = "is missing: this is the release of 2024, another benchmark under the same name"
        raise InputError(problem, where=str(folder / name), fix=_GET_IT) from None


def _yaml(folder: Path, name: str, data: bytes) -> Mapping[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(
            f"is no YAML ({' '.join(str(error).split())[:200]})", where=str(folder / name), fix=_GET_IT
        ) from None
    return found if isinstance(found, Mapping) else {}


def _questions(task: str, data: bytes, folder: Path) -> list[EmoBenchQuestion]:
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(_question(task, json.loads(line)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(
                f"no question of {task} ({error!r})",
                where=f"{folder / 'data' / task}.jsonl, line {number}",
                fix=_GET_IT,
            ) from None
    return found


def _question(task: str, row: Mapping[str, Any]) -> EmoBenchQuestion:
    if row["language"] not in LANGUAGES:
        raise ValueError(f"language is {row['language']!r}")
    fields = {"scenario": row["scenario"], "subject": row["subject"]}
    if task == "EA":
        fields["q_type"] = row["question type"]
    category = row["category" if task == "EA" else "coarse_category"]
    parts = tuple(
        Part(place, tuple(row[choices]), row[choices].index(row[label]))
        for place, choices, label in _CHOICES[task]
    )
    texts = [category, *fields.values(), *(text for part in parts for text in part.choices)]
    if not all(isinstance(text, str) for text in texts) or any(len(p.choices) > len(LETTERS) for p in parts):
        raise ValueError("texts and lists of texts are expected")
    return EmoBenchQuestion(task, str(row["qid"]), row["language"], category, fields, parts)
