"""Reports of evaluations: EMPA (recomputed from the dialogues), EmoBench and EQ-Bench (result.json)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mapo.domain_folders import DEFAULT
from mapo.errors import InputError
from mapo.evals.compare.entries import read_benchmark
from mapo.measure.stats import MIN_ROWS
from mapo.report.document import numbers, plots
from mapo.report.document.blocks import (
    Block,
    DialogueColumn,
    DialoguePair,
    Heading,
    Paragraph,
    Report,
    StatTile,
    StatTiles,
    format_interval,
    format_number,
)
from mapo.report.document.numbers import Point
from mapo.report.sections.held_out import score_row
from mapo.report.sections.judgements import judgements
from mapo.report.sections.movement import movement
from mapo.report.sections.trajectories import DialogueSet, trajectories
from mapo.report.sections.user_health import user_health
from mapo.report.training import ledger_table, problem_list, setting_text
from mapo.runs.contamination import notice_of
from mapo.runs.contents import details_in_points, planned_dialogues
from mapo.runs.kind import Kind, kind_of
from mapo.runs.provenance import KEYS
from mapo.runs.training import dialogues_by_id, read_ledger, read_object
from mapo.scoring.context import context_of_results
from mapo.scoring.folders import read_folders
from mapo.scoring.result import Result
from mapo.scoring.score import Score, score_results
from mapo.show.figures import Panel, Picture, look
from mapo.show.tables import Table
from mapo.store import RunDir
from mapo.text import plural
from mapo.types import Dialogue, ending_label

SCORE_COLUMNS = [
    *("EPM-Q", "95 % interval", "outcome", "efficiency", "stability", "passes", "turns", "unscored turns"),
]
BREAKDOWN = (
    f"EPM-Q with 95 % bootstrap intervals over scenarios. Groups of fewer than {MIN_ROWS} scenarios have no "
    "interval."
)
PARTIAL = "The scores cover only these and are not comparable with those of a complete run. Use --resume."
ROWS = 80
"""Maximum rows of a table of details."""
IN_POINTS = "; accuracies and shares in percent"


# ---- EMPA


def empa_report(root: Path, name: str | None = None) -> Report:
    """Build the report of a `mapo eval empa` run or of EMPA result files."""
    folders = read_folders(root)
    problems = [line for folder in folders for line in (*folder.bad, *folder.torn)]
    models: dict[str, list[Result]] = {}
    for folder in folders:
        for result in folder.results:
            kind = (result.path.rubric.name, result.path.profile.name)
            models.setdefault(", ".join((name or result.model, *kind)), []).append(result)
    broken = sum(len(folder.broken) for folder in folders)
    if broken:
        excluded = plural(broken, "broken dialogue is", "broken dialogues are")
        problems.append(f"{excluded} excluded (an endpoint or role failed, not the policy)")
    if not models and kind_of(root) is Kind.NOTHING:
        raise InputError(
            "the folder is not a run",
            where=str(root),
            fix="Give a folder of mapo train, mapo eval or mapo ablate",
        )
    if not models:
        empty: list[Block] = [
            Paragraph("This evaluation is empty: it has no dialogue that can be scored."),
            *problem_list(problems),
        ]
        title = f"EMPA: {name or root.resolve().name}"
        return Report(title, str(root), empty, [f"{root}: no dialogue can be scored"])
    scores = {label: score_results(label, results) for label, results in models.items()}
    first = next(iter(models))
    manifest = read_object(RunDir(root).manifest, problems)
    incomplete = _incomplete(manifest, {r.id for results in models.values() for r in results})
    played = dialogues_by_id(root, {r.id for r in models[first]})
    blocks = [
        *_headline(scores[first], incomplete),
        Heading("Scores"),
        Table(
            ["model, rubric, profile", *SCORE_COLUMNS], [score_row(label, s) for label, s in scores.items()]
        ),
        *movement(models, "model, rubric, profile"),
        *_breakdown(models[first]),
        *_endings(scores),
        *trajectories([DialogueSet(k, v, look(i)) for i, (k, v) in enumerate(list(models.items())[:4])]),
        *_extremes(models[first], played),
        *judgements({"share of turns": list(played.values())}, models[first][0].path.rubric),
        *user_health({"dialogues": list(played.values())}, _recorded_health(root)),
        *ledger_table(read_ledger(root, problems)),
        *manifest_table(manifest),
        *problem_list(problems),
    ]
    title = f"{_benchmark_name(models[first][0])}: {name or models[first][0].model}"
    context = context_of_results(models[first])
    cautions = [*filter(None, (context.notice, context.reference))]
    cautions += [notice] if (notice := notice_of(manifest)) else []
    if note := context.prompts_note:
        cautions.append(f"{note}.")
    if incomplete:
        cautions.insert(0, f"Incomplete evaluation: {incomplete}. {PARTIAL}")
    return Report(title, _lead(root, models[first]), blocks, caution=" ".join(cautions))


def _incomplete(manifest: Mapping[str, Any], ids: Collection[str]) -> str:
    """Return "4 of 12 dialogues" if an evaluation has fewer than planned, else an empty string."""
    planned = planned_dialogues(manifest)
    return f"{len(ids)} of {plural(planned, 'dialogue')}" if len(ids) < planned else ""


def _recorded_health(root: Path) -> dict[str, Any]:
    """Return the health that the run wrote; empty if there is none."""
    file = RunDir(root).health
    return read_object(file, []) if file.is_file() else {}


def _benchmark_name(result: Result) -> str:
    """Return "EMPA", or the title of another domain."""
    rubric = result.path.rubric
    return "EMPA" if rubric.name == DEFAULT else rubric.title


def _lead(root: Path, results: Sequence[Result]) -> str:
    cast = results[0].cast
    roles = ", ".join(f"{role}: {who}" for role, who in cast.items()) or "the other roles are not recorded"
    cases = len({r.case for r in results})
    played = f"{plural(len(results), 'dialogue')} on {plural(cases, 'scenario')}"
    return f"{root.resolve().name}: {played}; {roles}."


def _headline(score: Score, incomplete: str) -> list[Block]:
    ends = score.intervals["epm_q"] if score.intervals else None
    interval = f"{format_interval(ends)} (95 %)" if ends else "too few dialogues for an interval"
    tiles = [
        StatTile(
            "EPM-Q",
            format_number(score.composite.epm_q),
            f"{incomplete}, incomplete; {interval}" if incomplete else interval,
        ),
        StatTile(
            "Passes",
            f"{score.passes} of {score.n}",
            f"{format_number(100 * score.passes / score.n, '.0f')} %"
            + (f"; {score.unmet} leave an axis unmet" if score.unmet else ""),
        ),
        StatTile("Turns per dialogue", format_number(score.turns)),
        StatTile(
            "Dynamic alignment",
            format_number(score.dynamic_alignment, "+.2f"),
            f"with the fixed direction {format_number(score.alignment, '+.2f')}",
        ),
        StatTile("Unscored turns", str(score.unscored), "the judge failed on them" if score.unscored else ""),
    ]
    return [StatTiles(tiles)]


def _breakdown(results: Sequence[Result]) -> list[Block]:
    """Break EPM-Q down by category, dominant axis and difficulty, where dialogues have these tags."""
    blocks: list[Block] = []
    panels = []
    references = plots.references_of(context_of_results(results).world)
    for title, key in (("category", "category"), ("dominant axis", "axis"), ("difficulty", "difficulty")):
        groups: dict[str, list[Result]] = {}
        for r in results:
            groups.setdefault(r.axis if key == "axis" else r.tags.get(key, ""), []).append(r)
        groups.pop("", None)
        if len(groups) < 2:
            continue
        scores = {
            name: score_results(name, members) for name, members in sorted(groups.items(), key=_rank)[:ROWS]
        }
        blocks.append(Table([f"by {title}", *SCORE_COLUMNS], [score_row(n, s) for n, s in scores.items()]))
        rows = [(n, [_point(s)]) for n, s in list(scores.items())[:14]]
        panels.append(
            Panel(
                f"By {title}",
                plots.bars(rows, ["EPM-Q"], "EPM-Q (points)", references),
                plots.label_width([*scores]),
            )
        )
    if panels:
        blocks.append(Picture("fig_breakdown", BREAKDOWN, panels))
    return blocks


def _rank(group: tuple[str, object]) -> tuple[int, str]:
    """Sort by name, but difficulties from easy to extreme."""
    known = ("easy", "medium", "hard", "extreme")
    return (known.index(group[0]) if group[0] in known else -1, group[0])


def _point(score: Score) -> Point:
    ends = score.intervals["epm_q"] if score.intervals else (None, None)
    return Point(0.0, score.composite.epm_q, *ends)


def _endings(scores: Mapping[str, Score]) -> list[Block]:
    kinds = list(Counter({k: n for s in scores.values() for k, n in s.endings.items()}))
    rows = [[name, *(str(s.endings.get(kind, 0)) for kind in kinds)] for name, s in scores.items()]
    return [Table(["ending", *map(ending_label, kinds)], rows)]


def _extremes(results: Sequence[Result], dialogues: Mapping[str, Dialogue]) -> list[Block]:
    """Show the lowest-scoring next to the highest-scoring dialogue, if their records are available."""
    ranked = sorted(results, key=lambda r: (numbers.quality(r), r.id))
    if len(ranked) < 2 or not {ranked[0].id, ranked[-1].id} <= set(dialogues):
        return []
    sides = []
    for word, r in (("lowest", ranked[0]), ("highest", ranked[-1])):
        d = dialogues[r.id]
        title = f"{word}: EPM-Q {format_number(numbers.quality(r))}, {r.case}"
        sides.append(DialogueColumn(title, d))
    return [
        Heading("Lowest and highest score"),
        DialoguePair(*sides),
    ]


def manifest_table(manifest: Mapping[str, Any]) -> list[Block]:
    """Return the settings in a manifest. Nested values are left out, and so is the command: it contains
    addresses and paths, and a report is sent to others."""
    plain = {k: v for k, v in manifest.items() if v is not None and not isinstance(v, dict | list)}
    rows = [[str(k), setting_text(v)] for k, v in plain.items() if k not in KEYS]
    if not rows:
        return []
    table = Table(["setting", "value"], rows[:ROWS], title="Settings", left=2, folded=True)
    return [Heading("Configuration"), table]


# ---- EmoBench, EQ-Bench


def bench_report(root: Path, name: str | None = None) -> Report:
    """Build the report of a result.json of `mapo eval emobench` or `eqbench`."""
    entries = read_benchmark(root, name)
    problems: list[str] = []
    data = read_object(RunDir(root).result, problems)
    first, incomplete = entries[0], data.get("complete") is False
    rows = [
        [e.name, format_number(e.value, ".2f", "no score"), format_interval(e.interval), f"{e.n} of {e.of}"]
        for e in entries
    ]
    tiles = [
        StatTile(
            e.name,
            format_number(e.value, ".1f", "no score"),
            f"{e.n} of {e.of} items, incomplete"
            if incomplete
            else f"{format_interval(e.interval)} (95 %)"
            if e.interval
            else "too few items for an interval",
        )
        for e in entries
    ]
    values = [(e.name, [_of(e.value, e.interval)]) for e in entries if e.value is not None]
    blocks: list[Block] = [StatTiles(tiles)]
    notes = [str(note) for note in first.notes]
    blocks += [Paragraph(note) for note in notes[:8]]
    blocks += [Heading("Scores"), Table(["score", "score (0-100)", "95 % interval", "items"], rows)]
    if len(values) > 1:
        panel = Panel(
            first.benchmark,
            plots.bars(values, [first.model], "score (0-100)"),
            plots.label_width(["EQ-Bench"]),
        )
        blocks.append(Picture("fig_scores", "Scores with 95 % bootstrap intervals over items.", [panel]))
    blocks += _details(details_in_points(data), "" if data.get("benchmark") != "emobench" else IN_POINTS)
    settings = {**first.meaning, **first.sampling}
    blocks += ledger_table(read_ledger(root, problems))
    blocks += manifest_table(settings)
    return Report(
        f"{first.benchmark}: {first.model}",
        f"{root.resolve().name}: {first.n} of {first.of} items scored.",
        [*blocks, *problem_list(problems)],
        caution=f"Incomplete evaluation: {first.n} of {first.of} items. {PARTIAL}" if incomplete else "",
    )


def _of(value: float | None, interval: tuple[float, float] | None) -> Point | None:
    return None if value is None else Point(0.0, value, *(interval or (None, None)))


def _details(details: object, about: str) -> list[Block]:
    rows = [[name, value] for name, value in _flat(details, "")]
    if not rows:
        return []
    caption = f"{min(len(rows), ROWS)} of {len(rows)} figures{about}"
    return [Heading("Details"), Table(["metric", "value"], rows[:ROWS], title=caption, folded=True)]


def _flat(value: object, name: str) -> list[tuple[str, str]]:
    if isinstance(value, dict) and name.count(" / ") < 6:
        return [
            pair
            for k, v in list(value.items())[:ROWS]
            for pair in _flat(v, f"{name} / {k}" if name else str(k))
        ]
    if isinstance(value, list | dict):
        return []
    shown = value if isinstance(value, str | bool) or value is None else format_number(value, ".4g")
    return [(name, str(shown))]
