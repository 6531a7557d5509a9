"""EQ-Bench's own files: found, checked by their sha256, read. They are not part of this package.

EQ-Bench 3 comes from github.com/EQ-bench/eqbench3, v2 from github.com/EQ-bench/EQ-Bench, both in a folder
`data`. A score is comparable only where the words are the same, so a file that differs in one byte is
refused before anything is asked.
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
"""The files of each benchmark and the sha256 they must have."""

_V3_FOLDERS = ("eqbench3/data", "eqbench/eqbench3/data")
_V2_FOLDERS = ("v2/data", "eqbench/v2/data")
_SCENARIO = re.compile(r"########\s*(\S+)")
_PROMPT = re.compile(r"#######\s*Prompt\d+")


@dataclass(frozen=True, slots=True)
class EqBenchScenario:
    """One scenario: its canned user turns, in order, as they stand in the file."""

    id: str
    turns: tuple[str, ...]

    @property
    def kind(self) -> ScenarioKind:
        if self.id.isdecimal() and 201 <= int(self.id) <= 209:
            return "drafting"
        return "analysis" if self.id.isdecimal() and 401 <= int(self.id) <= 420 else "roleplay"


@dataclass(frozen=True, slots=True)
class EqBench3Data:
    """EQ-Bench 3: scenarios, the templates by kind, and what of the files is not played."""

    scenarios: tuple[EqBenchScenario, ...]
    master: Mapping[ScenarioKind, str]
    debrief: str
    rubric: Mapping[ScenarioKind, str]
    criteria: Mapping[ScenarioKind, tuple[str, ...]]
    dropped: tuple[str, ...]
    """Scenarios whose header no readable prompt follows; the reference drops them too."""


@dataclass(frozen=True, slots=True)
class EqBenchQuestion:
    """One item of EQ-Bench v2, as the file gives it: `reference` names four emotions and their scores."""

    id: str
    prompt: str
    reference: Mapping[str, Any]


def read_v3(folder: Path) -> EqBench3Data:
    text = _checked(folder, V3_FILES, _V3_FOLDERS)
    scenarios, dropped = scenarios_of(text["scenario_prompts.txt"])
    judged, analysed = text["rubric_scoring_prompt.txt"], text["rubric_scoring_prompt_analysis.txt"]
    marks = _lines(text["rubric_scoring_criteria.txt"])
    return EqBench3Data(
        scenarios,
        master={
            "roleplay": text["scenario_master_prompt.txt"],
            "drafting": text["scenario_master_prompt_message_drafting.txt"],
            "analysis": text["scenario_master_prompt_analysis.txt"],
        },
        debrief=text["debrief_prompt.txt"],
        rubric={"roleplay": judged, "drafting": judged, "analysis": analysed},
        criteria={
            "roleplay": marks,
            "drafting": marks,
            "analysis": _lines(text["rubric_scoring_criteria_analysis.txt"]),
        },
        dropped=dropped,
    )


def read_v2(folder: Path) -> tuple[EqBenchQuestion, ...]:
    [text] = _checked(folder, V2_FILES, _V2_FOLDERS).values()
    data = json.loads(text)
    return tuple(
        EqBenchQuestion(key, q["prompt"], q["reference_answer_fullscale"]) for key, q in data.items()
    )


def scenarios_of(text: str) -> tuple[tuple[EqBenchScenario, ...], tuple[str, ...]]:
    """The scenarios of the prompts file, and the ids of headers without a prompt.

    A line of eight marks begins a scenario, one of seven and "Prompt1" a turn. Other lines belong to the
    turn they follow; before the first turn of a scenario they belong to nothing. In the published file
    the only turn of scenario 409 has a heading of its own making, so 409 has no turn.
    """
    found: dict[str, list[list[str]]] = {}
    turns: list[list[str]] = []
    for line in text.split("\n"):
        if header := _SCENARIO.match(line.strip()):
            turns = found.setdefault(header[1], [])
            turns.clear()
        elif _PROMPT.match(line.strip()):
            turns.append([])
        elif turns:
            turns[-1].append(line)
    said = {
        key: [t for t in ("\n".join(lines).strip() for lines in turns) if t] for key, turns in found.items()
    }
    dropped = tuple(key for key, turns in said.items() if not turns)
    return tuple(EqBenchScenario(key, tuple(turns)) for key, turns in said.items() if turns), dropped


def _lines(text: str) -> tuple[str, ...]:
    lines = (line.strip() for line in text.split("\n"))
    return tuple(line for line in lines if line and not line.startswith("#"))


def _places(folder: Path, inside: tuple[str, ...]) -> list[Path]:
    return [folder, folder / "data", *(folder / name for name in inside)]


def _refuse_the_other(folder: Path, known: Mapping[str, str]) -> None:
    """The other benchmark of that name, where its files are there instead."""
    other, inside = (V2_FILES, _V2_FOLDERS) if known is V3_FILES else (V3_FILES, _V3_FOLDERS)
    if any(all((place / name).is_file() for name in other) for place in _places(folder, inside)):
        version, flag = ("v2", "Add --v2") if other is V2_FILES else ("3", "Leave out --v2")
        raise InputError(
            f"holds EQ-Bench {version}", where=str(folder), fix=f"{flag}, or give the other's data"
        )


def _checked(folder: Path, known: Mapping[str, str], inside: tuple[str, ...]) -> dict[str, str]:
    """The text of each file; InputError names the first that is missing or another."""
    places = _places(folder, inside)
    place = next((p for p in places if all((p / name).is_file() for name in known)), None)
    if place is None:
        missing = [name for name in known if not any((p / name).is_file() for p in places)] or sorted(known)
        if len(missing) == len(known):
            _refuse_the_other(folder, known)
        raise InputError(
            f"no {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else ""),
            where=str(folder),
            fix="--data is a copy of the benchmark's repository, or its folder data (docs/benchmarks.md)",
        )
    found = {}
    for name, digest in known.items():
        try:
            content = (place / name).read_bytes()
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror})", where=str(place / name)) from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise InputError(
                "is not the published file (its sha256 differs)",
                where=str(place / name),
                fix="Fetch it again from the benchmark's repository, unchanged",
            )
        found[name] = content.decode()
    return found
