"""The figure of an audit: probe effects, noise, and the reliability of advantages for each judge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mapo.judges.audit.limits import MAX_SIZE
from mapo.judges.audit.measure import Findings
from mapo.judges.audit.noise import TARGET
from mapo.judges.audit.probes import LANGUAGE_PROBE, PROBES
from mapo.judges.audit.report import Audit
from mapo.measure.stats import Interval
from mapo.show.figures import FAINT, add_key, look, new_figure, save, style
from mapo.store import RunDir

GROUPS = {"rise": "should gain nothing", "shift": "should change nothing"}
WITHIN = "#E6EFE6"
Point = tuple[float, Interval | None]


def draw(audit: Audit, out: Path) -> Path:
    """Write audit.png. Left: probe effects in standard deviations. Right: noise and its effect on
    advantages. The area within the limits is shaded."""
    with style():
        figure = new_figure(10, 5.2)
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06)
        grid = figure.add_gridspec(2, 2, width_ratios=(3, 2))
        draw_effects(figure.add_subplot(grid[:, 0]), audit)
        noise = figure.add_subplot(grid[0, 1])
        draw_judges(noise, audit, _noise, "Noise in the reward (lower is better)")
        noise.set_xlabel("share of the variance that comes from judging again", fontsize=8)
        advantages = figure.add_subplot(grid[1, 1])
        draw_judges(advantages, audit, _advantages, "Advantages (higher is better)")
        advantages.axvspan(TARGET, 1.02, color=WITHIN, zorder=0)
        advantages.set_xlabel(
            f"correlation with noise-free advantages (shaded: at least {TARGET:g})", fontsize=8
        )
        add_key(figure, [(look(n), found.judge) for n, found in enumerate(audit.findings)], "lower", 4)
        return save(figure, out, RunDir(out).audit_figure.stem, ["png"])[0]


def draw_effects(axes: Any, audit: Audit) -> None:
    """Draw one row per probe: worthless additions above irrelevant changes."""
    probes = [*PROBES.values(), LANGUAGE_PROBE]
    at: dict[str, float] = {}
    for kind, title in GROUPS.items():
        top = len(at) + (1.0 if at else 0.0)
        names = [probe.name for probe in probes if probe.kind == kind]
        at |= {name: top + row for row, name in enumerate(names)}
        ends = (top - 0.5, top + len(names) - 0.5)
        axes.fill_betweenx(ends, -1000 if kind == "rise" else -MAX_SIZE, MAX_SIZE, color=WITHIN, zorder=0)
        axes.text(0.005, top - 0.6, title, transform=axes.get_yaxis_transform(), fontsize=8, style="italic")
    step = 0.7 / max(1, len(audit.findings))
    extent = [2 * MAX_SIZE]
    for number, found in enumerate(audit.findings):
        shift = step * (number - (len(audit.findings) - 1) / 2)
        for effect in found.effects:
            if effect.size is not None:
                _dot(axes, number, (effect.size, effect.size_interval), at[effect.probe] + shift)
                extent += [abs(end) for end in effect.size_interval or (effect.size,)]
    for name, row in at.items():
        if not any(effect.probe == name for found in audit.findings for effect in found.effects):
            axes.text(0, row, " not measured", va="center", fontsize=8, color=FAINT)
    axes.axvline(0, color=FAINT, linewidth=0.8, zorder=1)
    axes.set_yticks(list(at.values()), list(at))
    axes.set_ylim(len(at) + 0.5, -1.1)
    axes.set_xlim(-1.08 * max(extent), 1.08 * max(extent))
    label = f"change of the reward in standard deviations between turns (shaded: within {MAX_SIZE:g})"
    axes.set_xlabel(label, fontsize=8)
    axes.set_title("Probe effects", fontsize=10)


def draw_judges(axes: Any, audit: Audit, value: Callable[[Findings], Point | None], title: str) -> None:
    """Draw one row per judge, with the same colour and marker in every panel."""
    for number, found in enumerate(audit.findings):
        if (point := value(found)) is not None:
            _dot(axes, number, point, number)
        else:
            axes.text(0.02, number, "not measured", va="center", fontsize=8, color=FAINT)
    axes.set_yticks([])
    axes.set_ylim(len(audit.findings) - 0.4, -0.6)
    axes.set_xlim(-0.02, 1.02)
    axes.grid(alpha=0.2, axis="x")
    axes.set_title(title, fontsize=10)


def _noise(found: Findings) -> Point | None:
    if found.noise is None or found.noise.share is None:
        return None
    return found.noise.share, found.noise.interval


def _advantages(found: Findings) -> Point | None:
    mapo = found.reliability_of("mapo")
    if mapo is None or mapo.with_truth is None:
        return None
    return mapo.with_truth, mapo.with_truth_interval


def _dot(axes: Any, number: int, point: Point, row: float) -> None:
    value, interval = point
    low, high = interval or (value, value)
    series = look(number)
    error = [[max(0.0, value - low)], [max(0.0, high - value)]]
    shape = {"fmt": series.marker, "color": series.colour, "capsize": 2, "markersize": 4}
    axes.errorbar([value], [row], xerr=error, zorder=2, **shape)
