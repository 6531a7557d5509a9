"""An audit as one picture: what moves each judge, and how much of its word is noise."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from mapo.audit.probes import LANGUAGE_PROBE, PROBES
from mapo.audit.report import Audit
from mapo.audit.verdict import MAX_SIZE
from mapo.errors import InputError
from mapo.evals.figures import COLOURS, MARKERS
from mapo.store import write_atomic

FIGURE = "audit.png"


def draw(audit: Audit, out: Path) -> Path:
    """audit.png: left, effects of the probes in standard deviations; right, noise and what it leaves."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("the figure needs matplotlib", fix="pip install 'mapo[train]'") from None

    figure = Figure(figsize=(10, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_effects(left, audit)
    draw_noise(right, audit)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=160)
    write_atomic(out / FIGURE, drawn.getvalue())
    return out / FIGURE


def draw_effects(axes: Any, audit: Audit) -> None:
    names = [*PROBES, LANGUAGE_PROBE.name]
    for number, found in enumerate(audit.findings):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        shift = 0.16 * (number - (len(audit.findings) - 1) / 2)
        told = False
        for effect in found.effects:
            unit = effect.size / effect.reward if effect.size and effect.reward else 0.0
            size = effect.size or 0.0
            low, high = [end * unit for end in effect.interval] if effect.interval else (size, size)
            axes.errorbar(
                [size],
                [names.index(effect.probe) + shift],
                xerr=[[max(0.0, size - low)], [max(0.0, high - size)]],
                fmt=marker,
                color=colour,
                capsize=2,
                markersize=4,
                label=None if told else _plain(found.judge),
            )
            told = True
    axes.axvspan(-MAX_SIZE, MAX_SIZE, color="0.9", zorder=0)
    axes.axvline(0, color="0.5", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("change of the reward, in standard deviations between turns")
    axes.set_title("What moves it")
    if any(found.effects for found in audit.findings):
        axes.legend(loc="lower right", frameon=False, fontsize=8)


def draw_noise(axes: Any, audit: Audit) -> None:
    names = [_plain(found.judge) for found in audit.findings]
    for number, found in enumerate(audit.findings):
        colour = COLOURS[number % len(COLOURS)]
        if found.noise is not None and found.noise.share is not None:
            share, ends = found.noise.share, found.noise.interval or (found.noise.share,) * 2
            error = [[max(0.0, share - ends[0])], [max(0.0, ends[1] - share)]]
            axes.bar([number - 0.18], [share], 0.32, color=colour, alpha=0.45, yerr=error, capsize=3)
        mapo = next((r for r in found.reliability if r.method == "mapo"), None)
        if mapo is not None and mapo.with_truth is not None:
            axes.bar([number + 0.18], [mapo.with_truth], 0.32, color=colour)
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
    axes.set_ylim(0, 1.02)
    axes.set_title(
        "pale: noise in the reward\nfull: advantages' correlation with noise-free ones", fontsize=9
    )
    axes.grid(alpha=0.2, axis="y")


def _plain(name: str) -> str:
    """No dollar of a name is mathematics, no underscore at its beginning hides it from a legend."""
    return name.replace("$", r"\$").lstrip("_") or "judge"
