"""What a training came to, on the terminal: scores before and after, and one person met twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mapo.text import escape

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table as RichTable

    from mapo.scoring.score import Score
    from mapo.show.tables import Table
    from mapo.train.run import Outcome
    from mapo.types import Dialogue

SHOWN = 6
"""Turns shown of each of the two dialogues."""


def print_outcome(found: Outcome, out: Path, caution: str = "") -> None:
    """Of the run in `out`. `caution` is what nobody may miss who reads the numbers."""
    from mapo.report import typical_pair
    from mapo.show.tables import rich_table
    from mapo.text import terminal

    console = terminal()
    told = found.summary
    console.print(
        f"\n{told['method']} on {escape(str(told['model']))}: {told['steps']} steps, "
        f"{told['dialogues']} dialogues, "
        f"{told['seconds']:.0f} s of training (seed {told['seed']})"
    )
    if caution:
        console.print(escape(caution))
    if found.before is None or found.after is None:
        return
    console.print(rich_table(_scores(found.before, found.after, told["chosen_step"])))
    console.print(_difference(found, out))
    pair = typical_pair(found.before_dialogues, found.after_dialogues)
    if pair:
        console.print(_side_by_side(*pair))


def _scores(before: Score, after: Score, step: int) -> Table:
    from mapo.show.tables import Table, interval_text

    rows = [
        [
            name,
            f"{score.composite.epm_q:.1f}",
            interval_text(score.intervals["epm_q"] if score.intervals else None, missing="-"),
            f"{score.passes}/{score.n}",
            f"{score.turns:.1f}",
        ]
        for name, score in (("before", before), (f"after (step {step})", after))
    ]
    columns = ["", "EPM-Q", "95 % interval", "passed", "turns"]
    return Table(columns, rows, title="Scenarios never trained on")


def _difference(found: Outcome, out: Path) -> str:
    """After minus before, as the report has it."""
    from mapo.report import held_out_difference

    difference = held_out_difference(found.before_dialogues, found.after_dialogues, out)
    if difference is None:
        return "No scenario was played both before and after, so there is no paired difference."
    mean, interval, _, n = difference
    ends = f", 95 % interval {interval[0]:+.1f} to {interval[1]:+.1f}" if interval else ""
    return (
        f"after - before, paired by scenario: {mean:+.1f} EPM-Q{ends} ({n} scenario{'' if n == 1 else 's'})"
    )


def _side_by_side(before: Dialogue, after: Dialogue) -> RichTable:
    from rich.table import Table as RichTable

    title = escape(f"{before.scenario}, a case of median gain")
    table = RichTable(title=title, title_justify="left", show_lines=True)
    for name, dialogue in (("before", before), ("after", after)):
        ending = dialogue.ending.reason.value if dialogue.ending else "unfinished"
        turns = len(dialogue.turns)
        part = f" (first {SHOWN} of {turns} turns)" if turns > SHOWN else ""
        table.add_column(f"{name}: {ending} after {turns} turns{part}", ratio=1)
    for i in range(min(SHOWN, max(len(before.turns), len(after.turns)))):
        table.add_row(_turn(before, i), _turn(after, i))
    return table


def _turn(dialogue: Dialogue, i: int) -> str:
    if i >= len(dialogue.turns):
        return ""
    turn = dialogue.turns[i]
    reward = "unscored" if turn.reward is None else f"{turn.reward:+.2f}"
    said, replied = escape(turn.user), escape(turn.reply.text)
    return f"[dim]user: {said}[/dim]\nmodel: {replied}\n[cyan]reward: {reward}[/cyan]"
