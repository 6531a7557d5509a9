"""Ablation output: learning curves as a figure, tables for the terminal, ablation.md and the report.

Renders the result of `analysis.analyse` (the content of ablation.json).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mapo.evals.ablation.cells import REWARD, label_of
from mapo.evals.ablation.gradients import SPIKE
from mapo.scoring.context import ScoreContext
from mapo.scoring.reference import ReferenceScore, reference_lines
from mapo.show.figures import FAINT, Look, Panel, Picture, label_axes, looks_of, save_picture
from mapo.show.tables import (
    Table,
    interval_text,
    markdown_table,
    markdown_text,
    p_text,
    print_line,
    print_tables,
)

Limits = tuple[float, float]


def draw(report: dict[str, Any], folder: Path) -> list[Path]:
    """Write ablation.png and ablation.svg."""
    return save_picture(picture(report, "ablation"), folder, ("png", "svg"))


def picture(report: dict[str, Any], name: str) -> Picture:
    """Return the learning curves above the held-out test, on common y axes: a line per value of the first
    varied setting, a column per combination of the others."""
    columns = _columns(report)
    values = _values(report)
    looks = dict(zip(values, looks_of(values), strict=True))
    points = [p for c in report["curves"] for p in (*c["training"], *c["validation"])]
    tests = [c["epm_q"] for c in report["cells"] if c["epm_q"]["mean"] is not None]
    target = [v for v in (report["reach"]["score"],) if v is not None]
    marks = [score.epm_q for score in _references(report)]
    curves = _limits([*marks, *target, *(v for p in points for v in (p["mean"], *(p["interval"] or ())))])
    ends = _limits([*marks, *(v for t in tests for v in (t["mean"], *(t["interval"] or ()), *t["by_seed"]))])
    panels = [
        *(Panel(_titled(c, "learning"), partial(draw_curves, report, c, looks, curves)) for c in columns),
        *(Panel(_titled(c, "held-out test"), partial(draw_ends, report, c, looks, ends)) for c in columns),
    ]
    dots = " (points: validation)" if any(c["validation"] for c in report["curves"]) else ""
    caption = f"EPM-Q by training dialogues{dots}, and of the held-out test; 95 % over seeds."
    return Picture(name, caption, panels, columns=len(columns))


def _values(report: dict[str, Any]) -> list[str]:
    """Return the values of the first varied setting, which are the lines of the figure."""
    return list(dict.fromkeys(_line(c) for c in report["curves"]))


def _line(cell: Mapping[str, Any]) -> str:
    return str(next(iter(cell["settings"].values()), cell["method"]))


def _column(cell: Mapping[str, Any]) -> str:
    """Name the combination of all varied settings but the first."""
    rest = list(cell["settings"].items())[1:]
    return ", ".join(f"{label_of(key)} {value}" for key, value in rest)


def _columns(report: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(_column(c) for c in report["curves"]))


def _titled(column: str, what: str) -> str:
    text = f"{column}: {what}" if column else what
    return text[0].upper() + text[1:]


def _limits(values: Sequence[float | None]) -> Limits | None:
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return None
    room = 0.05 * ((max(known) - min(known)) or 1.0)
    return min(known) - room, max(known) + room


def draw_curves(
    report: dict[str, Any], column: str, looks: Mapping[str, Look], limits: Limits | None, axes: Any
) -> None:
    """Draw the score by dialogues: a line per value with its interval over seeds, validation as points."""
    for curve in report["curves"]:
        points = curve["training"]
        if _column(curve) != column or not points:
            continue
        look = looks[_line(curve)]
        x = [p["dialogues"] for p in points]
        low, high = zip(*((p["interval"] or (p["mean"],) * 2) for p in points), strict=True)
        means = [p["mean"] for p in points]
        axes.plot(x, means, color=look.colour, linestyle=look.line, label=_line(curve))
        axes.fill_between(x, low, high, color=look.colour, alpha=0.12, linewidth=0)
        validation = curve["validation"]
        x, means = [p["dialogues"] for p in validation], [p["mean"] for p in validation]
        axes.plot(x, means, look.marker, color=look.colour, markersize=4)
    target = report["reach"]["score"]
    if target is not None:
        axes.axhline(target, color=FAINT, linewidth=0.8, linestyle="-")
    _draw_references(report, axes)
    label_axes(axes, "dialogues", "EPM-Q (points)")
    if limits:
        axes.set_ylim(*limits)
    axes.legend()


def draw_ends(
    report: dict[str, Any], column: str, looks: Mapping[str, Look], limits: Limits | None, axes: Any
) -> None:
    """Draw the held-out scores: a dot per seed, and the mean with its interval."""
    lines = list(looks)
    for cell in report["cells"]:
        score = cell["epm_q"]
        if _column(cell) != column or score["mean"] is None:
            continue
        i, look = lines.index(_line(cell)), looks[_line(cell)]
        dots = [v for v in score["by_seed"] if v is not None]
        low, high = score["interval"] or (score["mean"],) * 2
        error = [[score["mean"] - low], [high - score["mean"]]]
        axes.errorbar([i], [score["mean"]], yerr=error, fmt=look.marker, color=look.colour, capsize=3)
        axes.plot([i + 0.22] * len(dots), dots, ".", color=look.colour, alpha=0.5, markersize=4)
    axes.set_xticks(range(len(lines)), lines, rotation=25, ha="right")
    axes.set_xlim(-0.5, len(lines) - 0.5)
    axes.set_ylabel("EPM-Q (points)")
    _draw_references(report, axes)
    if limits:
        axes.set_ylim(*limits)


def _references(report: dict[str, Any]) -> tuple[ReferenceScore, ...]:
    """Return the reference scores of the test world; empty for other worlds."""
    context = _context(report)
    return reference_lines(context.world) if context else ()


def _draw_references(report: dict[str, Any], axes: Any) -> None:
    for score in _references(report):
        axes.axhline(score.epm_q, color=FAINT, linewidth=1.0, linestyle=":")
        axes.annotate(
            f"{score.label} {score.epm_q:.0f}",
            xy=(0.99, score.epm_q),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=7,
            color=FAINT,
        )


# ---- text and tables


def title(report: dict[str, Any]) -> str:
    return f"Ablation on {', '.join(report['model'])}"


def summary(report: dict[str, Any]) -> str:
    """Return what was run and what the numbers mean."""
    dialogues = sorted({c["dialogues"] for c in report["cells"]})
    validated = any(curve["validation"] for curve in report["curves"])
    chosen = "checkpoint that was best in validation" if validated else "last checkpoint"
    return (
        f"{report['runs']} of {report['wanted']} runs finished, {_range(dialogues)} dialogues each. Held-out "
        f"EPM-Q is of scenarios never trained on, with the {chosen}. Intervals are 95 %, Student's t over "
        "seeds."
    )


def claims(report: dict[str, Any]) -> list[str]:
    """Return the paper's claims, each with its verdict here."""
    lines = [f"{c['claim']}: {c['verdict']}. {c['told']}." for c in report["claims"]]
    return lines or ["No claim can be tested: these runs do not vary what the paper varies."]


CLAIMS = "Claims of the paper, tested on these runs"


def tables(report: dict[str, Any]) -> list[Table]:
    """Return the tables of a report, the overview first."""
    return [_overview(report), _cells(report), _gradients(report), _needs(report), *_pairs(report)]


def markdown(report: dict[str, Any], *, caution: str = "") -> str:
    """Return ablation.md; `caution` comes first."""
    parts = [
        f"# {markdown_text(title(report))}",
        *([f"**{markdown_text(caution)}**"] if caution else []),
        summary(report),
        *(f"Note: {markdown_text(note)}." for note in report["notes"]),
        f"## {CLAIMS}",
        "\n".join(f"- {markdown_text(claim)}" for claim in claims(report)),
        *(markdown_table(table, 2) for table in tables(report)),
        "![Learning curves](ablation.png)",
    ]
    return "\n\n".join(parts) + "\n"


def print_report(report: dict[str, Any], *, caution: str = "") -> None:
    """Print the claims and the overview to the terminal; `caution` stands directly above the scores."""
    lines = [title(report), summary(report), *(f"Note: {note}." for note in report["notes"])]
    for line in (*lines, f"{CLAIMS}:", *(f"- {claim}" for claim in claims(report))):
        print_line(line, style="")
    overview = _overview(report)
    name = f"{overview.title}. {caution}" if caution else overview.title
    print_tables([replace(overview, title=name), _gradients(report)])


def _context(report: dict[str, Any]) -> ScoreContext | None:
    """Return judge, roles and scenarios of the held-out scores; None for reports that do not record them."""
    return ScoreContext(**report["context"]) if "context" in report else None


def _overview(report: dict[str, Any]) -> Table:
    """One row per combination of all varied settings but the last, whose values are the columns; for methods
    and rewards, as in the paper."""
    axes = report["axes"]
    across = axes[-1] if len(axes) > 1 else None
    down = axes[:-1] if across else axes
    cells = {tuple(c["settings"].values()): c for c in report["cells"]}
    rows = []
    for names in dict.fromkeys(key[: len(down)] for key in cells):
        keys = [(*names, value) for value in across["values"]] if across else [names]
        rows.append([*names, *(_score(cells[key]) if key in cells else "" for key in keys)])
    context = _context(report)
    note = " ".join(filter(None, (f"{context.describe()}.", context.reference))) if context else ""
    heads = [axis["label"] for axis in down]
    scores = (
        [v if across["key"] == REWARD else f"{across['label']} {v}" for v in across["values"]]
        if across
        else ["EPM-Q (passes)"]
    )
    columns = [*heads, *scores]
    return Table(columns, rows, title="Held-out EPM-Q (passes)", note=note, left=max(1, len(down)))


def _score(cell: dict[str, Any]) -> str:
    if cell["epm_q"]["mean"] is None:
        return "not tested"
    passed = f"{cell['passes']['mean']:.1f}/{cell['tests']['mean']:.0f}"
    return f"{_with_interval(cell['epm_q'], '.1f')} ({passed})"


def _cells(report: dict[str, Any]) -> Table:
    heads, judged = _heads(report), _judges_differ(report)
    columns = [
        *heads,
        *(["training judge", "test judge"] if judged else []),
        "seeds",
        "before",
        "after",
        "gain",
    ]
    columns += ["gradient norm", "final training score"]
    formats = (("epm_q", ".1f"), ("gain", "+.1f"), ("grad_norm", ".3f"), ("score_end", ".1f"))
    rows = [
        [
            *_names(c),
            *([_judge(c, "training"), _judge(c, "test")] if judged else []),
            str(len(c["seeds"])),
            "-" if c["before"]["mean"] is None else f"{c['before']['mean']:.1f}",
            *(_with_interval(c[key], digits) for key, digits in formats),
        ]
        for c in report["cells"]
    ]
    note = "Training scores are the training judge's and are not comparable across judges." if judged else ""
    left = max(1, len(heads)) + (2 if judged else 0)
    return Table(columns, rows, title="All cells", note=note, left=left)


def _gradients(report: dict[str, Any]) -> Table:
    """Gradient norms: mean, peak, and how often a step is far above the run's median."""
    heads = _heads(report)
    rows = [
        [
            *_names(c),
            _with_interval(c["grad_norm"], ".3f"),
            _with_interval(c["grad_peak"], ".3f"),
            "-" if c["grad_spikes"]["mean"] is None else f"{100 * c['grad_spikes']['mean']:.1f} %",
        ]
        for c in report["cells"]
        if c["grad_peak"]["mean"] is not None
    ]
    columns = [*heads, "mean", "peak", f"steps above {SPIKE:g} x median"]
    note = "Over all steps of a run, then over seeds."
    return Table(columns, rows, title="Gradient norm before clipping", note=note, left=max(1, len(heads)))


def _heads(report: dict[str, Any]) -> list[str]:
    return [axis["label"] for axis in report["axes"]]


def _names(cell: Mapping[str, Any]) -> list[str]:
    return list(cell["settings"].values())


def _judges_differ(report: dict[str, Any]) -> bool:
    """Return whether the judge varies over the grid, or differs between training and test."""
    judges = {tuple(c["judges"][when]) for c in report["cells"] for when in ("training", "test")} - {()}
    return len(judges) > 1 or any(axis["key"].startswith("roles.") for axis in report["axes"])


def _judge(cell: Mapping[str, Any], when: str) -> str:
    return " or ".join(cell["judges"][when]) or "-"


def _needs(report: dict[str, Any]) -> Table:
    """Dialogues until the target score is reached; without rows where no run recorded a score."""
    heads = _heads(report)
    columns, name = [*heads, "median", "reached", "by seed"], "Dialogues needed"
    target = report["reach"]["score"]
    if target is None:
        return Table(columns, [], title=name, note="No run recorded a training score.")
    rows = []
    for c in report["cells"]:
        need, most = c["need"], c["dialogues"]
        each = ", ".join(f"> {most}" if n is None else f"{n:.0f}" for n in need["by_seed"])
        middle = f"> {most}" if need["median"] is None else f"{need['median']:.0f}"
        reached = f"{need['reached']} of {len(need['by_seed'])}"
        rows.append([*_names(c), middle, reached, each])
    note = (
        f"Dialogues until the training score, averaged over three steps, reaches {target:.1f} "
        f"({report['reach']['source']}). For runs that never reached it, the number of their dialogues is a "
        "lower bound."
    )
    return Table(columns, rows, title=name, note=note, left=max(1, len(heads)))


_TITLES = {"epm_q": ("held-out EPM-Q", ".1f"), "need": ("dialogues needed", ".0f")}


def _pairs(report: dict[str, Any]) -> list[Table]:
    columns = [
        "difference",
        "mean",
        "95 % (t over seeds)",
        "95 % (bootstrap over seeds and scenarios)",
        "pairs",
        "p (t)",
        "p (sign flip)",
    ]
    note = (
        "Both p-values are two-sided and Holm-corrected within their table. The sign-flip test is "
        "exact; uncorrected, it cannot fall below 2^(1-n) with n pairs. Pairs are seeds x test scenarios. "
        "For dialogues needed, a run that never reached the score counts with all its dialogues."
    )
    results = []
    for name, family in report["paired"].items():
        what, _, where = name.partition("/")
        measure, digits = _TITLES.get(what, ("gradient norm", ".3f"))
        rows = [
            [
                f"{c['a']} - {c['b']}",
                f"{c['mean']:+{digits}}",
                _interval(c["interval"], f"+{digits}"),
                _interval(c["over_both"], f"+{digits}"),
                f"{c['n']}" + (f" x {c['scenarios']}" if c["scenarios"] else ""),
                p_text(c["p_holm"], "-"),
                p_text(c["p_flip_holm"], "-"),
            ]
            for c in family
        ]
        results.append(
            Table(columns, rows, title=f"Paired by seed: {measure}{f', {where}' if where else ''}")
        )
    return [*results[:-1], *(replace(table, note=note) for table in results[-1:])]


def _with_interval(summary: dict[str, Any], digits: str) -> str:
    if summary["mean"] is None:
        return "-"
    if summary["interval"] is None:
        return f"{summary['mean']:{digits}}"
    return f"{summary['mean']:{digits}} ± {summary['interval'][1] - summary['mean']:{digits.lstrip('+')}}"


def _interval(ends: Sequence[float] | None, digits: str) -> str:
    return interval_text(None if ends is None or math.isnan(ends[0]) else ends, digits, missing="-")


def _range(numbers: Sequence[float]) -> str:
    return f"{numbers[0]:g}" if len(numbers) == 1 else f"{numbers[0]:g} to {numbers[-1]:g}"
