"""Ablation output: learning curves as a figure, tables for the terminal, ablation.md and the report.

Takes what `analysis.analyse` returns (the content of ablation.json) and computes nothing of its own.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.show.tables import Table, interval_text, markdown_table, markdown_text, p_text, print_tables
from mapo.store import write_atomic
from mapo.text import printable, terminal

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's: told apart by colour-blind people too; line styles and markers repeat the message."""
STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")


def draw(report: dict[str, Any], folder: Path) -> list[Path]:
    """ablation.png and .svg: above, score by dialogues; below, the held-out test; a column a reward."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("the figure needs matplotlib", fix="pip install 'mapo[train]'") from None

    rewards = list(dict.fromkeys(c["reward"] for c in report["curves"]))
    methods = list(dict.fromkeys(c["method"] for c in report["curves"]))
    # A fixed salt and no date: the same numbers give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "mapo", "font.size": 9}):
        figure = Figure(figsize=(1.2 + 4.6 * len(rewards), 6.4), layout="constrained")
        axes = figure.subplots(2, len(rewards), squeeze=False, sharey="row", height_ratios=(2, 1.1))
        for column, reward in enumerate(rewards):
            draw_curves(axes[0][column], report, reward, methods)
            draw_ends(axes[1][column], report, reward, methods)
        validated = any(c["validation"] for c in report["curves"])
        points = "\n(points: validation)" if validated else ""
        axes[0][0].set_ylabel(f"EPM-Q of the training dialogues{points}")
        axes[1][0].set_ylabel("EPM-Q, held-out test")
        axes[0][0].legend(frameon=False, fontsize=8)
        paths = []
        for kind in ("png", "svg"):
            drawn = io.BytesIO()
            figure.savefig(drawn, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
            paths.append(folder / f"ablation.{kind}")
            write_atomic(paths[-1], drawn.getvalue())
    return paths


def draw_curves(axes: Any, report: dict[str, Any], reward: str, methods: Sequence[str]) -> None:
    """Score by dialogues: a line a method with its interval over seeds, validation as points."""
    for curve in report["curves"]:
        points = curve["training"]
        if curve["reward"] != reward or not points:
            continue
        i = methods.index(curve["method"])
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        x = [p["dialogues"] for p in points]
        low, high = zip(*((p["interval"] or (p["mean"],) * 2) for p in points), strict=True)
        style = STYLES[i % len(STYLES)]
        axes.plot(x, [p["mean"] for p in points], color=colour, linestyle=style, label=curve["method"])
        axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
        held = curve["validation"]
        axes.plot(
            [p["dialogues"] for p in held], [p["mean"] for p in held], marker, color=colour, markersize=4
        )
    target = report["reach"]["score"]
    if target is not None:
        axes.axhline(target, color="0.6", linewidth=0.8, linestyle=":")
    axes.set_title(f"reward {reward}")
    axes.set_xlabel("dialogues")
    axes.grid(alpha=0.2)


def draw_ends(axes: Any, report: dict[str, Any], reward: str, methods: Sequence[str]) -> None:
    """A dot a seed, and the mean with its interval."""
    for cell in report["cells"]:
        score = cell["epm_q"]
        if cell["reward"] != reward or score["mean"] is None:
            continue
        i = methods.index(cell["method"])
        colour, dots = COLOURS[i % len(COLOURS)], [v for v in score["by_seed"] if v is not None]
        low, high = score["interval"] or (score["mean"],) * 2
        reach = [[score["mean"] - low], [high - score["mean"]]]
        marker = MARKERS[i % len(MARKERS)]
        axes.errorbar([i], [score["mean"]], yerr=reach, fmt=marker, color=colour, capsize=3)
        axes.plot([i + 0.22] * len(dots), dots, ".", color=colour, alpha=0.5, markersize=4)
    axes.set_xticks(range(len(methods)), methods, rotation=25, ha="right")
    axes.set_xlim(-0.5, len(methods) - 0.5)
    axes.grid(alpha=0.2, axis="y")


# ---- words and tables


def scripted_world(domains: Sequence[str]) -> str:
    """Said wherever scores are shown that were made with scripted roles; a domain is a name or a folder."""
    named = " or ".join(dict.fromkeys(Path(domain).name for domain in domains))
    return (
        "User, director and judge were plain code: a test world, no measure of real "
        f"{named or 'conversation'} (docs/scripted-world.md)."
    )


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
    found = [f"{c['claim']}: {c['verdict']}. {c['told']}." for c in report["claims"]]
    return found or ["Not enough methods to say anything."]


CLAIMS = "The paper's claims here"


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
    """Print the claims and the overview to the terminal."""
    notes = [f"Note: {note}." for note in report["notes"]]
    lines = [title(report), *([caution] if caution else []), summary(report), *notes]
    console = terminal(soft_wrap=True)
    for line in (*lines, f"{CLAIMS}:", *(f"- {claim}" for claim in claims(report))):
        console.print(printable(line), markup=False)
    print_tables([_overview(report)])


def _overview(report: dict[str, Any]) -> Table:
    """One row per method, one column per reward, as in the paper."""
    found = {(c["method"], c["reward"]): c for c in report["cells"]}
    rewards = list(dict.fromkeys(reward for _, reward in found))
    rows = [
        [method, *(_score(found[method, r]) if (method, r) in found else "" for r in rewards)]
        for method in dict.fromkeys(method for method, _ in found)
    ]
    return Table(["method", *rewards], rows, title="Held-out EPM-Q (passes)")


def _score(cell: dict[str, Any]) -> str:
    if cell["epm_q"]["mean"] is None:
        return "not tested"
    passed = f"{cell['passes']['mean']:.1f}/{cell['tests']['mean']:.0f}"
    return f"{_spread(cell['epm_q'], '.1f')} ({passed})"


def _cells(report: dict[str, Any]) -> Table:
    columns = ["method", "reward", "seeds", "before", "after", "gain", "gradient norm"]
    rows = [
        [
            *(c["method"], c["reward"], str(len(c["seeds"]))),
            "-" if c["before"]["mean"] is None else f"{c['before']['mean']:.1f}",
            *(_spread(c[key], digits) for key, digits in (("epm_q", ".1f"), ("gain", "+.1f"))),
            *(_spread(c[key], digits) for key, digits in (("grad_norm", ".3f"), ("score_end", ".1f"))),
        ]
        for c in report["cells"]
    ]
    return Table([*columns, "training score at the end"], rows, title="Every cell", left=2)


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
        f"Until the training score, as a mean over three steps, is {target:.1f} "
        f"({report['reach']['source']}). A run that never reached it is counted as more than it was given."
    )
    return Table(columns, rows, title=name, note=note, left=2)


_TITLES = {"epm_q": ("held-out EPM-Q", ".1f"), "need": ("dialogues needed", ".0f")}


def _pairs(report: dict[str, Any]) -> list[Table]:
    columns = [
        "difference",
        "mean",
        "t, seeds",
        "bootstrap, seeds and scenarios",
        "pairs",
        "p (t)",
        "p (flip)",
    ]
    note = (
        "Both p-values are two-sided and corrected after Holm within their table. The sign-flip test is "
        "exact; uncorrected, it cannot fall below 2^(1-n) with n pairs. Pairs are seeds x test scenarios. "
        "In dialogues needed, a run that never reached the score counts with all it was given."
    )
    found = []
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
        found.append(Table(columns, rows, title=f"Paired by seed: {measure}, {where}"))
    return [*found[:-1], *(replace(table, note=note) for table in found[-1:])]


def _spread(found: dict[str, Any], digits: str) -> str:
    if found["mean"] is None:
        return "-"
    if found["interval"] is None:
        return f"{found['mean']:{digits}}"
    return f"{found['mean']:{digits}} ± {found['interval'][1] - found['mean']:{digits.lstrip('+')}}"


def _interval(ends: Sequence[float] | None, digits: str) -> str:
    return interval_text(None if ends is None or math.isnan(ends[0]) else ends, digits, missing="-")


def _range(numbers: Sequence[float]) -> str:
    return f"{numbers[0]:g}" if len(numbers) == 1 else f"{numbers[0]:g} to {numbers[-1]:g}"
