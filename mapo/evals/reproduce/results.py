"""The table of an experiment: measured scores beside the paper's, with every deviation named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mapo.errors import MapoError
from mapo.evals.reproduce.experiments import MODELS, Experiment, Row
from mapo.evals.reproduce.stages import TEST_CASES, test_folder
from mapo.runs.contamination import notice_of
from mapo.runs.files import read_object
from mapo.scoring.reference import reference_rows
from mapo.scoring.score import Score, score
from mapo.show.tables import Cell, NumberCell, Table, interval_text, markdown_table, markdown_text
from mapo.store import RunDir

SCHEMA = "mapo.reproduction/1"


@dataclass(frozen=True, slots=True)
class RowResult:
    """A row with its measured score. `problem` says why there is none or why it is incomplete, `notice` that
    the policy was trained on test scenarios."""

    row: Row
    score: Score | None
    problem: str = ""
    notice: str = ""

    @property
    def difference(self) -> float | None:
        """The measured score minus the paper's; None without both, for an incomplete test, or if the paper
        gives a range."""
        published = self.row.published
        if self.score is None or self.problem or published.low is None or published.low != published.high:
            return None
        return self.score.composite.epm_q - published.low

    def as_json(self) -> dict[str, Any]:
        return {
            "size": self.row.size,
            "label": self.row.label,
            "training": asdict(self.row.training) if self.row.training else None,
            "test_judge": self.row.judge,
            "published": asdict(self.row.published),
            "measured": self.score.as_json() if self.score else None,
            "problem": self.problem,
            "notice": self.notice,
        }


def read_results(experiment: Experiment, out: Path, cases: int) -> list[RowResult]:
    """Read the test of every row; a complete one has `cases` dialogues."""
    return [_read(row, test_folder(out, row), cases) for row in experiment.rows]


def _read(row: Row, folder: Path, cases: int) -> RowResult:
    try:
        models = score(folder).models if folder.is_dir() else []
    except MapoError as error:
        return RowResult(row, None, str(error))
    if not models:
        return RowResult(row, None, "not tested yet")
    measured = models[0].score
    problem = f"incomplete: {measured.n} of {cases} cases" if measured.n != cases else ""
    return RowResult(row, measured, problem, notice_of(read_object(RunDir(folder).manifest)[0]))


def result_table(experiment: Experiment, results: Sequence[RowResult], small: bool) -> Table:
    """Return the table beside the paper's figures."""
    columns = ["model", "", "EPM-Q", "passes", "paper: score", "paper: passes", "difference"]
    rows: list[list[Cell]] = []
    for result in results:
        measured, published = result.score, result.row.published
        interval = measured.intervals["epm_q"] if measured and measured.intervals else None
        epm_q = NumberCell(f"{measured.composite.epm_q:.1f}", interval_text(interval)) if measured else "-"
        rows.append(
            [
                "embedded" if small else MODELS[result.row.size],
                f"{result.row.label} ({result.problem})" if result.problem else result.row.label,
                epm_q,
                f"{measured.passes}/{measured.n}" if measured else "-",
                published.text,
                f"{published.passes}/{TEST_CASES}" if published.passes is not None else "-",
                f"{result.difference:+.1f}" if result.difference is not None and not small else "-",
            ]
        )
    known = next((r.score.context for r in results if r.score), None)
    if known and known.world:
        rows += [[name, "", *cells] for name, *cells in reference_rows(known.world, len(columns) - 1)]
    notice = next((r.score.context.notice for r in results if r.score and r.score.context.notice), "")
    note = "The paper's EMPA score is read as EPM-Q."
    if any(r.score and r.score.intervals for r in results):
        note += " Below EPM-Q: 95 % bootstrap interval over scenarios."
    note += "".join(f" {line}" for line in dict.fromkeys(r.notice for r in results if r.notice))
    if small:
        sizes = ", ".join(MODELS[size] for size in dict.fromkeys(row.size for row in experiment.rows))
        note += f" The paper's figures are those of {sizes}, not comparable with this test of the pipeline."
    return Table(columns, rows, title=notice or experiment.title, note=note, left=2)


def context_lines(results: Sequence[RowResult]) -> list[str]:
    """Return who judged, once per different context."""
    return list(dict.fromkeys(r.score.context.describe() for r in results if r.score))


def as_json(experiment: Experiment, results: Sequence[RowResult], lines: Sequence[str]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "experiment": experiment.name,
        "rows": [result.as_json() for result in results],
        "deviations": list(lines),
    }


def as_markdown(
    experiment: Experiment, results: Sequence[RowResult], lines: Sequence[str], small: bool
) -> str:
    """Return the table and the deviations as Markdown."""
    table = result_table(experiment, results, small)
    parts = [f"# {experiment.title}", "", markdown_table(table), ""]
    parts += [f"{markdown_text(line)}." for line in context_lines(results)]
    parts += ["", "Deviations from the paper:", "", *(f"- {markdown_text(line)}" for line in lines), ""]
    return "\n".join(parts)
