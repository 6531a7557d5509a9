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
    """Return the learning curves above the held-out test, one column per reward, on common y axes."""
    rewards = list(dict.fromkeys(c["reward"] for c in report["curves"]))
    methods = list(dict.fromkeys(c["method"] for c in report["curves"]))
    looks = dict(zip(methods, looks_of(methods), strict=True))
    points = [p for c in report["curves"] for p in (*c["training"], *c["validation"])]
    tests = [c["epm_q"] for c in report["cells"] if c["epm_q"]["mean"] is not None]
    target = [v for v in (report["reach"]["score"],) if v is not None]
    marks = [score.epm_q for score in _references(report)]
    curves = _limits([*marks, *target, *(v for p in points for v in (p["mean"], *(p["interval"] or ())))])
    ends = _limits([*marks, *(v for t in tests for v in (t["mean"], *(t["interval"] or ()), *t["by_seed"]))])
    panels = [
        *(Panel(f"Reward {r}: learning", partial(draw_curves, report, r, looks, curves)) for r in rewards),
        *(Panel(f"Reward {r}: held-out test", partial(draw_ends, report, r, looks, ends)) for r in rewards),
    ]
    dots = " (points: validation)" if any(c["validation"] for c in report["curves"]) else ""
    caption = f"EPM-Q by training dialogues{dots}, and of the held-out test; 95 % over seeds."
    return Picture(name, caption, panels, columns=len(rewards))


def _limits(values: Sequence[float | None]) -> Limits | None:
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return None
    room = 0.05 * ((max(known) - min(known)) or 1.0)
    return min(known) - room, max(known) + room


def draw_curves(
    report: dict[str, Any], reward: str, looks: Mapping[str, Look], limits: Limits | None, axes: Any
) -> None:
    """Draw the score by dialogues: a line per method with its interval over seeds, validation as points."""
    for curve in report["curves"]:
        points = curve["training"]
        if curve["reward"] != reward or not points:
            continue
        look = looks[curve["method"]]
        x = [p["dialogues"] for p in points]
        low, high = zip(*((p["interval"] or (p["mean"],) * 2) for p in points), strict=True)
        means = [p["mean"] for p in points]
        axes.plot(x, means, color=look.colour, linestyle=look.line, label=curve["method"])
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
    report: dict[str, Any], reward: str, looks: Mapping[str, Look], limits: Limits | None, axes: Any
) -> None:
    """Draw the held-out scores: a dot per seed, and the mean with its interval."""
    methods = list(looks)
    for cell in report["cells"]:
        score = cell["epm_q"]
        if cell["reward"] != reward or score["mean"] is None:
            continue
        i, look = methods.index(cell["method"]), looks[cell["method"]]
        dots = [v for v in score["by_seed"] if v is not None]
        low, high = score["interval"] or (score["mean"],) * 2
        error = [[score["mean"] - low], [high - score["mean"]]]
        axes.errorbar([i], [score["mean"]], yerr=error, fmt=look.marker, color=look.colour, capsize=3)
        axes.plot([i + 0.22] * len(dots), dots, ".", color=look.colour, alpha=0.5, markersize=4)
    axes.set_xticks(range(len(methods)), methods, rotation=25, ha="right")
    axes.set_xlim(-0.5, len(methods) - 0.5)
    axes.set_ylabel("EPM-Q (points)")
    _draw_references(report, axes)
    if limits:
        axes.set_ylim(*limits)


def _references(report: dict[str, Any]) -> tuple[ReferenceScore, ...]:
    """Return the reference scores of the scripted world; empty for other worlds."""
    context = _context(report)
    roles = (context.user, context.director, context.judge) if context else ()
    return reference_lines(context.domain, roles) if context else ()


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
    return lines or ["There are too few methods to test the claims."]


CLAIMS = "Claims of the paper, tested on these runs"


def tables(report: dict[str, Any]) -> list[Table]:
    """Return the tables of a report, the overview first."""
    return [_overview(report), _cells(report), _needs(report), *_pairs(report)]


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
    print_tables([replace(overview, title=name)])


def _context(report: dict[str, Any]) -> ScoreContext | None:
    """Return judge, roles and scenarios of the held-out scores; None for reports that do not record them."""
    return ScoreContext(**report["context"]) if "context" in report else None


def _overview(report: dict[str, Any]) -> Table:
    """One row per method, one column per reward, as in the paper."""
    cells = {(c["method"], c["reward"]): c for c in report["cells"]}
    rewards = list(dict.fromkeys(reward for _, reward in cells))
    rows = [
        [method, *(_score(cells[method, r]) if (method, r) in cells else "" for r in rewards)]
        for method in dict.fromkeys(method for method, _ in cells)
    ]
    context = _context(report)
    note = " ".join(filter(None, (f"{context.describe()}.", context.reference))) if context else ""
    return Table(["method", *rewards], rows, title="Held-out EPM-Q (passes)", note=note)


def _score(cell: dict[str, Any]) -> str:
    if cell["epm_q"]["mean"] is None:
        return "not tested"
    passed = f"{cell['passes']['mean']:.1f}/{cell['tests']['mean']:.0f}"
    return f"{_with_interval(cell['epm_q'], '.1f')} ({passed})"


def _cells(report: dict[str, Any]) -> Table:
    columns = ["method", "reward", "seeds", "before", "after", "gain", "gradient norm"]
    rows = [
        [
            *(c["method"], c["reward"], str(len(c["seeds"]))),
            "-" if c["before"]["mean"] is None else f"{c['before']['mean']:.1f}",
            *(_with_interval(c[key], digits) for key, digits in (("epm_q", ".1f"), ("gain", "+.1f"))),
            *(_with_interval(c[key], digits) for key, digits in (("grad_norm", ".3f"), ("score_end", ".1f"))),
        ]
        for c in report["cells"]
    ]
    return Table([*columns, "final training score"], rows, title="All cells", left=2)


def _needs(report: dict[str, Any]) -> Table:
    """Dialogues until the target score is reached; without rows where no run recorded a score."""
    columns, name = ["method", "reward", "median", "reached", "by seed"], "Dialogues needed"
    target = report["reach"]["score"]
    if target is None:
        return Table(columns, [], title=name, note="No run recorded a training score.")
    rows = []
    for c in report["cells"]:
        need, most = c["need"], c["dialogues"]
        each = ", ".join(f"> {most}" if n is None else f"{n:.0f}" for n in need["by_seed"])
        middle = f"> {most}" if need["median"] is None else f"{need['median']:.0f}"
        reached = f"{need['reached']} of {len(need['by_seed'])}"
        rows.append([c["method"], c["reward"], middle, reached, each])
    note = (
        f"Dialogues until the training score, averaged over three steps, reaches {target:.1f} "
        f"({report['reach']['source']}). For runs that never reached it, the number of their dialogues is a "
        "lower bound."
    )
    return Table(columns, rows, title=name, note=note, left=2)


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
        results.append(Table(columns, rows, title=f"Paired by seed: {measure}, {where}"))
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
