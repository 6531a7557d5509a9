"""EQ-Bench's files, located, checked by sha256 and read. They are not part of this package.

EQ-Bench 3 comes from github.com/EQ-bench/eqbench3, v2 from github.com/EQ-bench/EQ-Bench, both in a folder
`data`. Scores are comparable only with identical prompts, so a changed file is refused before any call.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mapo.errors import InputError
from mapo.untrusted import read_file

ScenarioKind = Literal["roleplay", "drafting", "analysis"]

V3_FILES = {
    "debrief_prompt.txt": "5f63279c27e444b7f8b154a190f9ce10a79d4d9cebb556fae97c70346f52c6fa",
    "rubric_scoring_criteria.txt": "11fefca1f467bbabfab8618731338aeeb167141c80756bf2d040d000d8318727",
    "rubric_scoring_criteria_analysis.txt": (
        "a83e91be22a4233c364c7cd3e611702360af94d045b170b6a88848dabf9d4d21"
    ),
    "rubric_scoring_prompt.txt": "423612b81594601548bf4625ca32c4400637fb3876171a153f3067cbcc0ec939",
    "rubric_scoring_prompt_analysis.txt": "78927fbb695c5c5374ce23ce39a1add4033abc5c99870e6be9747368df0e3f96",
    "scenario_master_prompt.txt": "8f76e06423fa6110e2afe9e88561b3511fc97a68dcd1aa1a4459c7af6424785c",
    "scenario_master_prompt_analysis.txt": "b5773ced14ab7fc6d96ae1d6a0da981d7797804359a38d4992ad530edb3915e9",
    "scenario_master_prompt_message_drafting.txt": (
        "719dc595c4fb3127a0347bbd90ceb2af7bdb5f86a0218df3cc51888a31b3f133"
    ),
    "scenario_prompts.txt": "736f67a8f18ef5bba1f4eca89e60daef1a26ac58c8fea956560726357da39cae",
}
V2_FILES = {
    "eq_bench_v2_questions_171.json": "b4e9bf11df7e88bc12381efab18565f8b0ff0d4743fe8708c4482df91c4e617a"
}
"""The files of each benchmark with their required sha256."""

_V3_FOLDERS = ("eqbench3/data", "eqbench/eqbench3/data")
_V2_FOLDERS = ("v2/data", "eqbench/v2/data")
_SCENARIO = re.compile(r"########\s*(\S+)")
_PROMPT = re.compile(r"#######\s*Prompt\d+")


@dataclass(frozen=True, slots=True)
class EqBenchScenario:
    """One scenario with its fixed user turns, in order, exactly as in the file."""

    id: str
    turns: tuple[str, ...]

    @property
    def kind(self) -> ScenarioKind:
        if self.id.isdecimal() and 201 <= int(self.id) <= 209:
            return "drafting"
        return "analysis" if self.id.isdecimal() and 401 <= int(self.id) <= 420 else "roleplay"


@dataclass(frozen=True, slots=True)
class EqBench3Data:
    """EQ-Bench 3: its scenarios, the templates by kind of scenario, and the scenarios that are not played."""

    scenarios: tuple[EqBenchScenario, ...]
    master: Mapping[ScenarioKind, str]
    debrief: str
    rubric: Mapping[ScenarioKind, str]
    criteria: Mapping[ScenarioKind, tuple[str, ...]]
    dropped: tuple[str, ...]
    """Scenarios without a readable prompt; the reference implementation drops them too."""


@dataclass(frozen=True, slots=True)
class EqBenchQuestion:
    """One item of EQ-Bench v2; `reference` holds four emotions and their scores."""

    id: str
    prompt: str
    reference: Mapping[str, Any]


def read_v3(folder: Path) -> EqBench3Data:
    """Read EQ-Bench 3 from a checkout or its data folder."""
    text = _checked(folder, V3_FILES, _V3_FOLDERS)
    scenarios, dropped = scenarios_of(text["scenario_prompts.txt"])
    prompt, analysis = text["rubric_scoring_prompt.txt"], text["rubric_scoring_prompt_analysis.txt"]
    criteria = _lines(text["rubric_scoring_criteria.txt"])
    return EqBench3Data(
        scenarios,
        master={
            "roleplay": text["scenario_master_prompt.txt"],
            "drafting": text["scenario_master_prompt_message_drafting.txt"],
            "analysis": text["scenario_master_prompt_analysis.txt"],
        },
        debrief=text["debrief_prompt.txt"],
        rubric={"roleplay": prompt, "drafting": prompt, "analysis": analysis},
        criteria={
            "roleplay": criteria,
            "drafting": criteria,
            "analysis": _lines(text["rubric_scoring_criteria_analysis.txt"]),
        },
        dropped=dropped,
    )


def read_v2(folder: Path) -> tuple[EqBenchQuestion, ...]:
    """Read EQ-Bench v2 from a checkout or its data folder."""
    [text] = _checked(folder, V2_FILES, _V2_FOLDERS).values()
    data = json.loads(text)
    return tuple(
        EqBenchQuestion(key, q["prompt"], q["reference_answer_fullscale"]) for key, q in data.items()
    )


def scenarios_of(text: str) -> tuple[tuple[EqBenchScenario, ...], tuple[str, ...]]:
    """Return the scenarios of the prompts file, and the ids of those without a prompt.

    A line of eight "#" begins a scenario, one of seven with "Prompt1" a turn. Other lines belong to the turn
    before them; lines before the first turn are ignored. In the published file the only turn of scenario 409
    has a different heading, so 409 has no turn.
    """
    lines_by_id: dict[str, list[list[str]]] = {}
    turns: list[list[str]] = []
    for line in text.split("\n"):
        if header := _SCENARIO.match(line.strip()):
            turns = lines_by_id.setdefault(header[1], [])
            turns.clear()
        elif _PROMPT.match(line.strip()):
            turns.append([])
        elif turns:
            turns[-1].append(line)
    texts = {
        key: [text for text in ("\n".join(lines).strip() for lines in turns) if text]
        for key, turns in lines_by_id.items()
    }
    dropped = tuple(key for key, turns in texts.items() if not turns)
    return tuple(EqBenchScenario(key, tuple(turns)) for key, turns in texts.items() if turns), dropped


def _lines(text: str) -> tuple[str, ...]:
    lines = (line.strip() for line in text.split("\n"))
    return tuple(line for line in lines if line and not line.startswith("#"))


def _candidates(folder: Path, subfolders: tuple[str, ...]) -> list[Path]:
    return [folder, folder / "data", *(folder / name for name in subfolders)]


def _refuse_other_version(folder: Path, known: Mapping[str, str]) -> None:
    """Raise InputError if the folder holds the files of the other version."""
    other, subfolders = (V2_FILES, _V2_FOLDERS) if known is V3_FILES else (V3_FILES, _V3_FOLDERS)
    if any(all((place / name).is_file() for name in other) for place in _candidates(folder, subfolders)):
        version, flag = ("v2", "Add --v2") if other is V2_FILES else ("3", "Leave out --v2")
        raise InputError(
            f"the folder holds EQ-Bench {version}",
            where=str(folder),
            fix=f"{flag}, or pass the data of the other version",
        )


def _checked(folder: Path, known: Mapping[str, str], subfolders: tuple[str, ...]) -> dict[str, str]:
    """Return the text of each file; raise InputError for the first that is missing or changed."""
    if not folder.is_dir():
        name, commit = ("eqbench3", "3c21bcc") if known is V3_FILES else ("EQ-Bench", "d28c60c")
        raise InputError(
            "the folder does not exist",
            where=str(folder),
            fix=f"Run git clone https://github.com/EQ-bench/{name} and, in it, git checkout {commit}; "
            "pass that folder as --data",
        )
    folders = _candidates(folder, subfolders)
    source = next((p for p in folders if all((p / name).is_file() for name in known)), None)
    if source is None:
        missing = [name for name in known if not any((p / name).is_file() for p in folders)] or sorted(known)
        if len(missing) == len(known):
            _refuse_other_version(folder, known)
        raise InputError(
            f"the folder lacks {missing[0]}"
            + (f" and {len(missing) - 1} more files" if len(missing) > 1 else ""),
            where=str(folder),
            fix="Pass a checkout of the benchmark's repository, or its data folder: docs/benchmarks.md",
        )
    texts = {}
    for name, digest in known.items():
        try:
            content = read_file(source / name)
        except OSError as error:
            raise InputError(
                f"the file cannot be read ({error.strerror})", where=str(source / name)
            ) from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise InputError(
                "the file is not the published one: its sha256 differs",
                where=str(source / name),
                fix="Download it again from the benchmark's repository",
            )
        texts[name] = content.decode()
    return texts
