"""An ablation as people look at it: the learning curves as a picture, the tables as Markdown.

Takes what `ablation.analyse` returns (or ablation.json holds) and computes nothing of its own.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.store import RunDir, write_atomic

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
            paths.append(RunDir(folder).ablation.with_suffix(f".{kind}"))
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


# ---- tables


def scripted_world(domains: Sequence[str]) -> str:
    """Said wherever scores are shown that were made with scripted roles; a domain is a name or a folder."""
    named = " or ".join(dict.fromkeys(Path(domain).name for domain in domains))
    return (
        "User, director and judge were plain code: a test world, no measure of real "
        f"{named or 'conversation'} (docs/scripted-world.md)."
    )


def markdown(report: dict[str, Any], *, caution: str = "") -> str:
    """ablation.md: what was found, the tables it rests on, and how they were made; `caution` comes first."""
    rewards = list(dict.fromkeys(c["reward"] for c in report["cells"]))
    dialogues = sorted({c["dialogues"] for c in report["cells"]})
    validated = any(curve["validation"] for curve in report["curves"])
    chosen = "checkpoint that was best in validation" if validated else "last checkpoint"
    parts = [
        f"# Ablation on {', '.join(report['model'])}",
        *([f"**{caution}**"] if caution else []),
        f"{report['runs']} of {report['wanted']} runs finished, {_range(dialogues)} dialogues each. Held-out "
        f"EPM-Q is of scenarios never trained on, with the {chosen}. Intervals are 95 %, Student's t over "
        "seeds.",
        *(f"Note: {note}." for note in report["notes"]),
        "## The paper's claims here",
        "\n".join(f"- {c['claim']}: **{c['verdict']}**. {c['told']}." for c in report["claims"])
        or "Not enough methods to say anything.",
        "## Held-out EPM-Q (passes)",
        _paper_table(report, rewards),
        "## Every cell",
        _cells(report),
        "## Dialogues needed",
        _needs(report),
        *_pairs(report),
        "![Learning curves](ablation.png)",
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def _paper_table(report: dict[str, Any], rewards: Sequence[str]) -> str:
    found = {(c["method"], c["reward"]): c for c in report["cells"]}
    rows = [
        [method, *(_score(found[method, r]) if (method, r) in found else "" for r in rewards)]
        for method in dict.fromkeys(method for method, _ in found)
    ]
    return _table(["method", *rewards], rows)


def _score(cell: dict[str, Any]) -> str:
    if cell["epm_q"]["mean"] is None:
        return "not tested"
    passed = f"{cell['passes']['mean']:.1f}/{cell['tests']['mean']:.0f}"
    return f"{_spread(cell['epm_q'], '.1f')} ({passed})"


def _cells(report: dict[str, Any]) -> str:
    head = [
        "method",
        "reward",
        "seeds",
        "before",
        "after",
        "gain",
        "gradient norm",
        "training score at the end",
    ]
    rows = [
        [
            *(c["method"], c["reward"], str(len(c["seeds"]))),
            "-" if c["before"]["mean"] is None else f"{c['before']['mean']:.1f}",
            *(_spread(c[key], digits) for key, digits in (("epm_q", ".1f"), ("gain", "+.1f"))),
            *(_spread(c[key], digits) for key, digits in (("grad_norm", ".3f"), ("score_end", ".1f"))),
        ]
        for c in report["cells"]
    ]
    return _table(head, rows)


def _needs(report: dict[str, Any]) -> str:
    target = report["reach"]["score"]
    if target is None:
        return "No run recorded a training score."
    rows = []
    for c in report["cells"]:
        need, most = c["need"], c["dialogues"]
        each = ", ".join(f"> {most}" if n is None else f"{n:.0f}" for n in need["by_seed"])
        middle = f"> {most}" if need["median"] is None else f"{need['median']:.0f}"
        reached = f"{need['reached']} of {len(need['by_seed'])}"
        rows.append([c["method"], c["reward"], middle, reached, each])
    table = _table(["method", "reward", "median", "reached", "by seed"], rows)
    return (
        f"Until the training score, as a mean over three steps, is {target:.1f} "
        f"({report['reach']['source']}). A run that never got there is counted as more than it was given.\n\n"
        + table
    )


_TITLES = {"epm_q": ("Held-out EPM-Q", ".1f"), "need": ("Dialogues needed", ".0f")}


def _pairs(report: dict[str, Any]) -> list[str]:
    parts = ["## Paired by seed"]
    head = ["difference", "mean", "t, seeds", "bootstrap, seeds and scenarios", "pairs", "p (t)", "p (flip)"]
    for name, family in report["paired"].items():
        what, _, where = name.partition("/")
        title, digits = _TITLES.get(what, ("Gradient norm", ".3f"))
        rows = [
            [
                f"{c['a']} - {c['b']}",
                f"{c['mean']:+{digits}}",
                _interval(c["interval"], f"+{digits}"),
                _interval(c["over_both"], f"+{digits}"),
                f"{c['n']}" + (f" x {c['scenarios']}" if c["scenarios"] else ""),
                _p(c["p_holm"]),
                _p(c["p_flip_holm"]),
            ]
            for c in family
        ]
        parts += [f"### {title}, {where}", _table(head, rows)]
    parts.append(
        "Both p-values are two-sided and corrected after Holm within their table. The sign-flip test is "
        "exact; uncorrected, it cannot fall below 2^(1-n) with n pairs. Pairs are seeds x test scenarios. "
        "In dialogues needed, a run that never got there counts with all it was given."
    )
    return parts


def _spread(found: dict[str, Any], digits: str) -> str:
    if found["mean"] is None:
        return "-"
    if found["interval"] is None:
        return f"{found['mean']:{digits}}"
    return f"{found['mean']:{digits}} ± {found['interval'][1] - found['mean']:{digits.lstrip('+')}}"


def _interval(ends: Sequence[float] | None, digits: str) -> str:
    return "-" if ends is None or math.isnan(ends[0]) else f"{ends[0]:{digits}} to {ends[1]:{digits}}"


def _p(p: float | None) -> str:
    return "-" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _range(numbers: Sequence[float]) -> str:
    return f"{numbers[0]:g}" if len(numbers) == 1 else f"{numbers[0]:g} to {numbers[-1]:g}"
