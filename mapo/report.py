"""A run directory -> one HTML page to read or to send: the scores, the curve, one person met twice.

Self-contained: no script, no address is fetched. What models wrote is text, escaped, nothing more.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.store import BadLine, RunDir, read_dialogues, read_steps, write_atomic
from mapo.types import Dialogue

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; }
td, th { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }
td:first-child, th:first-child { text-align: left; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1.5rem; }
.turn { border-top: 1px solid #ddd; padding: .5rem 0; }
.said { color: #666; } .up { color: #176b37; } .down { color: #a5281b; }
@media (prefers-color-scheme: dark) {
  body { background: #16181a; color: #e4e4e4; } .said { color: #9a9a9a; }
  .up { color: #6fcf97; } .down { color: #f28b82; } td, th, .turn { border-color: #3a3a3a; }
}
"""


def write_report(root: Path) -> Path:
    """report.html of a training run; returns its path."""
    run = RunDir(root)
    try:
        summary = json.loads((root / "summary.json").read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(
            f"no finished run ({error})", where=str(root), fix="Let it finish: mapo train --resume"
        ) from None
    title = f"{summary['method']} on {summary['model']}"
    parts = [
        f"<h1>{_text(title)}</h1>",
        f"<p>{summary['steps']} steps, {summary['dialogues']} dialogues, {summary['seconds']:.0f} s of "
        f"training, seed {summary['seed']}; tested with the checkpoint of step {summary['chosen_step']}"
        f"{', the best on the validation scenarios' if summary.get('validation') else ''}.</p>",
        _scores(summary),
        _curves(read_steps(run.metrics)),
        _pair(_dialogues(root, "before"), _dialogues(root, "after")),
    ]
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{_text(title)}</title><style>{_STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )
    write_atomic(run.report, page)
    return run.report


def _text(text: object) -> str:
    return html.escape(str(text), quote=True)


def _scores(summary: dict[str, Any]) -> str:
    rows = ""
    for name in ("before", "after"):
        score = summary.get(name)
        if not score:
            return ""
        low, high = score["interval"] or (float("nan"), float("nan"))
        rows += (
            f"<tr><td>{name}<td>{score['epm_q']:.1f}<td>{low:.1f} to {high:.1f}"
            f"<td>{score['passes']} of {score['n']}</tr>"
        )
    return (
        "<h2>Scenarios never trained on</h2>"
        f"<table><tr><th><th>EPM-Q<th>95 % interval<th>passed</tr>{rows}</table>"
    )


def _curves(steps: Sequence[dict[str, Any]]) -> str:
    reward = [(s["step"], s["reward"]) for s in steps if s.get("reward") is not None]
    score = [(s["step"], s["score"]) for s in steps if s.get("score") is not None]
    held = [(s["step"], s["validation"]["epm_q"]) for s in steps if "validation" in s]
    return (
        "<h2>Training</h2>"
        + _curve("mean reward of a turn", [("#2b6cb0", reward)])
        + _curve(
            "EPM-Q: training dialogues (blue), validation (orange)", [("#2b6cb0", score), ("#dd6b20", held)]
        )
    )


Points = list[tuple[float, float]]


def _curve(title: str, lines: Sequence[tuple[str, Points]]) -> str:
    points = [p for _, line in lines for p in line]
    if len(points) < 2:
        return ""
    (x0, x1), (y0, y1) = ((min(v), max(v)) for v in zip(*points, strict=True))
    width, height, left = 640, 180, 48

    def place(p: tuple[float, float]) -> str:
        x = left + (p[0] - x0) / ((x1 - x0) or 1) * (width - left - 8)
        y = height - 20 - (p[1] - y0) / ((y1 - y0) or 1) * (height - 32)
        return f"{x:.1f},{y:.1f}"

    drawn = "".join(
        f"<polyline fill=none stroke='{color}' stroke-width=2 points='{' '.join(map(place, line))}'/>"
        for color, line in lines
    )
    marks = (
        f"<text x=2 y=16>{y1:.2f}</text><text x=2 y={height - 22}>{y0:.2f}</text>"
        f"<text x={left} y={height - 4}>step {x0:g}</text>"
        f"<text x={width - 8} y={height - 4} text-anchor=end>{x1:g}</text>"
    )
    return (
        f"<figure><figcaption>{_text(title)}</figcaption><svg viewBox='0 0 {width} {height}' role=img "
        f"aria-label='{_text(title)}' font-size=12 fill=currentColor>{drawn}{marks}</svg></figure>"
    )


def _dialogues(root: Path, label: str) -> list[Dialogue]:
    folder = root / "eval" / label
    files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    return [d for file in files for d in read_dialogues(file) if not isinstance(d, BadLine)]


def typical_pair(before: Sequence[Dialogue], after: Sequence[Dialogue]) -> tuple[Dialogue, Dialogue] | None:
    """The same job before and after, of median gain in distance: neither the best nor the worst."""
    late = {d.id: d for d in after if d.error is None and d.turns}
    pairs = [(d, late[d.id]) for d in before if d.error is None and d.turns and d.id in late]
    pairs.sort(key=lambda pair: _end(pair[0]) - _end(pair[1]))
    return pairs[len(pairs) // 2] if pairs else None


def _end(dialogue: Dialogue) -> float:
    state = dialogue.turns[-1].state
    return state.distance if state else 0.0


def _pair(before: Sequence[Dialogue], after: Sequence[Dialogue]) -> str:
    pair = typical_pair(before, after)
    if pair is None:
        return ""
    sides = "".join(_dialogue(name, d) for name, d in zip(("before", "after"), pair, strict=True))
    return f"<h2>{_text(pair[0].scenario)}, a case of median gain</h2><div class=pair>{sides}</div>"


def _dialogue(name: str, dialogue: Dialogue) -> str:
    ending = dialogue.ending.reason.value if dialogue.ending else "unfinished"
    turns = ""
    for turn in dialogue.turns:
        mark = "unscored" if turn.reward is None else f"{turn.reward:+.2f}"
        kind = "up" if (turn.reward or 0) > 0 else "down" if (turn.reward or 0) < 0 else ""
        turns += (
            f"<div class=turn><div class=said>{_text(turn.user)}</div><div>{_text(turn.reply.text)}</div>"
            f"<div class='{kind}'>{mark}</div></div>"
        )
    return f"<div><h3>{name}: {_text(ending)} after {len(dialogue.turns)} turns</h3>{turns}</div>"
