"""Several studies of the same comparison, each made anew with judges, learning rates and seeds of its own.

A study's report writes results/scores.json: the scores of its tests, without any text. `pool` reads such
files and writes the comparisons over all studies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from measures import MAX_LOST, MethodScores, Scores, complete_tests, differences, rejudged
from plan import read_plan
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from report import PRIMARY_COLUMNS, AllScores, differences_table, methods_table, primary_row, write_table
from study import Run, Study
from tables import Table, table

from mapo.errors import InputError
from mapo.measure.epmq import weigh
from mapo.scoring.folders import read_folders
from mapo.scoring.result import Result
from mapo.store import write_atomic

Judge = Literal["a", "b"]
JUDGES: tuple[Judge, ...] = ("b", "a")
SCHEMA: Literal["mapo.real_proof.scores/1"] = "mapo.real_proof.scores/1"
FILE = "scores.json"
LONGEST = 16 << 20
"""Bytes of a scores file: far more than a study of a thousand cases has."""
EpmQ = Annotated[float, Field(ge=0, le=10_000)]
"""It can exceed 100, but not by much."""
COMMAND = "python examples/real_proof/proof.py pool --work OUT --scores {}"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TestScores(_Record):
    """The scores of one test under one judge: rows of case, dialogue, EPM-Q and whether it passed."""

    judge: Judge
    method: str
    seed: int
    dialogues: tuple[tuple[str, str, EpmQ, bool], ...] = Field(min_length=1)

    @property
    def run(self) -> str:
        return Run(self.method, self.seed).name

    def of_cases(self, cases: Collection[str]) -> Scores:
        kept = [row for row in self.dialogues if row[0] in cases]
        return Scores({row[:2]: row[2] for row in kept}, sum(row[3] for row in kept))


class StudyScores(_Record):
    """All complete tests of a study, and what its plan named."""

    format: Literal["mapo.real_proof.scores/1"] = Field(alias="schema")
    judge_seeds: tuple[int, int]
    comparisons: tuple[str, ...]
    level: float = Field(gt=0, lt=1)
    runs: tuple[str, ...]
    """The runs of the primary comparisons."""
    cases: int = Field(gt=0)
    cases_digest: str
    tests: tuple[TestScores, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_nothing_twice(self) -> Self:
        tests = [(test.judge, test.run) for test in self.tests]
        dialogues = [(n, *row[:2]) for n, test in enumerate(self.tests) for row in test.dialogues]
        if len(set(tests)) < len(tests) or len(set(dialogues)) < len(dialogues):
            raise ValueError("a test, or a dialogue of a test, is there twice")
        return self

    @property
    def waiting(self) -> list[str]:
        """The planned runs without a complete test."""
        tested = {test.run for test in self.tests if test.judge == "b"}
        return [name for name in self.runs if name not in tested]


# ---- one study


def write_scores(study: Study) -> None:
    """Write results/scores.json, unless nothing has been tested."""
    plan, tests = read_plan(study), tuple(_tests_of(study))
    (study.results / FILE).unlink(missing_ok=True)
    if not plan or not tests:
        return
    record = StudyScores(
        schema=SCHEMA,
        judge_seeds=study.settings.judges.seeds,
        comparisons=plan["comparisons"],
        level=plan["level"],
        runs=plan["runs"],
        cases=plan["cases"]["count"],
        cases_digest=plan["cases"]["digest"],
        tests=tests,
    )
    write_atomic(study.results / FILE, record.model_dump_json(by_alias=True) + "\n")


def _tests_of(study: Study) -> Iterator[TestScores]:
    for run in complete_tests(study):
        folders: dict[Judge, Path | None] = {"b": study.test(run), "a": rejudged(study.test_a, run.name)}
        for judge, folder in folders.items():
            results = [] if folder is None else [r for part in read_folders(folder) for r in part.results]
            rows = sorted((r.case, r.id, _epm_q(r), r.passed) for r in results)
            if rows:
                yield TestScores(judge=judge, method=run.method, seed=run.seed, dialogues=tuple(rows))


def _epm_q(result: Result) -> float:
    return round(float(weigh(np.array(result.indices))[3]), 4)


# ---- several


def pool(files: Sequence[Path], out: Path) -> Path:
    """Write the comparisons over several studies to `out`: the tables, and a page of them."""
    studies = [_read(file) for file in files]
    _check_plans(files, studies)
    _check_judges(files, studies)
    first = studies[0]
    every: AllScores = {judge: _methods(studies, judge) for judge in JUDGES}
    if not every["b"]:
        raise InputError("no case was played in all tests of all studies", where=str(files[0]))
    tables = {
        "primary": ("Primary comparison", _primary(studies)),
        "methods": ("Test", methods_table(every)),
        "differences": ("Other paired differences", differences_table(every, first.comparisons)),
    }
    command = COMMAND.format(" ".join(file.name for file in files))
    parts = [f"# MAPO on a real language model: {len(studies)} studies"]
    for name, (title, content) in tables.items():
        if text := write_table(out / f"{name}.json", command, content):
            parts += [f"## {title}", text]
    write_atomic(out / "report.md", "\n\n".join(parts) + "\n")
    return out / "report.md"


def _read(file: Path) -> StudyScores:
    try:
        if file.stat().st_size > LONGEST:
            raise ValueError(f"the file is larger than {LONGEST >> 20} MB")
        return StudyScores.model_validate_json(file.read_bytes())
    except (OSError, ValueError) as error:
        problem = _first_problem(error) if isinstance(error, ValidationError) else error
        raise InputError(
            f"the scores cannot be read: {problem}",
            where=str(file),
            fix="Write them again with: proof.py report",
        ) from None


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def _check_plans(files: Sequence[Path], studies: Sequence[StudyScores]) -> None:
    first = studies[0]
    for file, study in zip(files, studies, strict=True):
        planned = (study.comparisons, study.level, study.cases_digest)
        if planned != (first.comparisons, first.level, first.cases_digest):
            raise InputError(
                f"this study differs from that of {files[0]} in its planned comparisons or its test cases",
                where=str(file),
                fix="Pool studies with the same plan.json, except for seeds",
            )


def _check_judges(files: Sequence[Path], studies: Sequence[StudyScores]) -> None:
    """Refuse a study whose judges are those of another one: it would count as further evidence."""
    seen: dict[tuple[int, int], Path] = {}
    for file, study in zip(files, studies, strict=True):
        if study.judge_seeds in seen:
            raise InputError(
                f"this study has the judges' seeds of {seen[study.judge_seeds]}",
                where=str(file),
                fix="Name each study once, and make further ones with other judges.seeds",
            )
        seen[study.judge_seeds] = file


def _methods(
    studies: Sequence[StudyScores], judge: Judge, among: Collection[str] | None = None
) -> dict[str, MethodScores]:
    """Return the scores of every method, with the seeds of all studies numbered anew, on the cases that all
    tests have. `among` are names of runs (default: all)."""
    tests = [
        ((number, test.seed), test)
        for number, study in enumerate(studies)
        for test in study.tests
        if test.judge == judge and (among is None or test.run in among)
    ]
    seeds = {key: n for n, key in enumerate(sorted({key for key, _ in tests}))}
    common = set.intersection(*({row[0] for row in test.dialogues} for _, test in tests)) if tests else set()
    methods: dict[str, dict[int, Scores]] = {}
    for key, test in tests:
        if common:
            methods.setdefault(test.method, {})[seeds[key]] = test.of_cases(common)
    return {name: MethodScores(name, own) for name, own in methods.items()}


def _primary(studies: Sequence[StudyScores]) -> Table:
    """Return the planned comparisons over all studies."""
    first = studies[0]
    pairs = [(a, b) for a, _, b in (text.partition(" - ") for text in first.comparisons)]
    waiting = [f"{name} of study {n}" for n, study in enumerate(studies, 1) for name in study.waiting]
    rows = []
    for found in differences(_methods(studies, "b", {run for study in studies for run in study.runs}), pairs):
        failed = first.cases - found["cases"] > MAX_LOST * first.cases
        rows.append(primary_row(found, first.level, waiting, failed))
    setup = (
        f"{len(studies)} studies, each with judges of its own. Paired by study, seed and case; 95 % "
        "bootstrap over cases and trainings."
    )
    return table(setup, PRIMARY_COLUMNS, rows)
