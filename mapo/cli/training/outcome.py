"""The outcome of a training run on the terminal: scores and one dialogue, before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mapo.text import escape, plural

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table as RichTable

    from mapo.scoring.score import Score
    from mapo.show.tables import Table
    from mapo.train.run import TrainingOutcome
    from mapo.types import Dialogue

SHOWN = 6
"""Turns shown of each of the two dialogues."""


def print_outcome(outcome: TrainingOutcome, out: Path, caution: str = "") -> None:
    """Print the outcome of the run in `out`, with `caution` above the scores."""
    from mapo.report import typical_pair
    from mapo.show.tables import output_console, print_line, print_tables

    console = output_console()
    summary = outcome.summary
    console.print(
        f"\n{summary['method']} on {escape(str(summary['model']))}: {summary['steps']} steps, "
        f"{summary['dialogues']} dialogues, "
        f"{summary['seconds']:.0f} s of training (seed {summary['seed']})"
    )
    if outcome.before is None or outcome.after is None:
        if caution:
            print_line(caution)
        return
    print_line(f"Held-out scenarios. {outcome.after.context.describe()}", style="")
    print_tables([_scores(outcome.before, outcome.after, summary["chosen_step"], caution)])
    console.print(_difference(outcome, out))
    pair = typical_pair(outcome.before_dialogues, outcome.after_dialogues)
    if pair:
        console.print(_side_by_side(*pair, out))


def _scores(before: Score, after: Score, step: int, caution: str) -> Table:
    from mapo.scoring.reference import reference_rows
    from mapo.show.tables import Cell, NumberCell, Table, interval_text

    rows: list[list[Cell]] = [
        [
            name,
            NumberCell(
                f"{score.composite.epm_q:.1f}",
                interval_text(score.intervals["epm_q"] if score.intervals else None),
            ),
            f"{score.passes}/{score.n}",
            f"{score.turns:.1f}",
        ]
        for name, score in (("before", before), (f"after (step {step})", after))
    ]
    columns = ["", "EPM-Q", "passes", "turns"]
    if after.context.reference:
        rows += reference_rows(after.context.domain, len(columns))
    title = after.context.notice or caution
    known = before.intervals or after.intervals
    note = "Below EPM-Q: 95 % bootstrap interval over scenarios." if known else ""
    return Table(columns, rows, title=title, note=note)


def _difference(outcome: TrainingOutcome, out: Path) -> str:
    """Return the difference after - before with its interval, as the report shows it."""
    from mapo.report import held_out_difference

    difference = held_out_difference(outcome.before_dialogues, outcome.after_dialogues, out)
    if difference is None:
        return "No scenario was played both before and after, so there is no paired difference."
    mean, interval, _, n = difference
    bounds = f", 95 % interval {interval[0]:+.1f} to {interval[1]:+.1f}" if interval else ""
    scenarios = f"{n} scenario{'' if n == 1 else 's'}"
    return f"after - before, paired by scenario: {mean:+.1f} EPM-Q{bounds} ({scenarios})"


def _side_by_side(before: Dialogue, after: Dialogue, out: Path) -> RichTable:
    from rich.table import Table as RichTable

    from mapo.report import dialogue_score

    title = escape(f"Dialogue {before.id}: the median gain in distance of the held-out test")
    table = RichTable(title=title, title_justify="left", show_lines=True)
    for name, dialogue in (("before", before), ("after", after)):
        ending = dialogue.ending.reason.label if dialogue.ending else "unfinished"
        turns = len(dialogue.turns)
        part = f" (first {SHOWN} of {turns} turns)" if turns > SHOWN else ""
        score = dialogue_score(dialogue, out)
        table.add_column(f"{name}: {score}{ending} after {plural(turns, 'turn')}{part}", ratio=1)
    for i in range(min(SHOWN, max(len(before.turns), len(after.turns)))):
        table.add_row(_turn(before, i), _turn(after, i))
    return table


def _turn(dialogue: Dialogue, i: int) -> str:
    if i >= len(dialogue.turns):
        return ""
    turn = dialogue.turns[i]
    reward = "unscored" if turn.reward is None else f"{turn.reward:+.2f}"
    user, reply = escape(turn.user), escape(turn.reply.text)
    return f"[dim]user: {user}[/dim]\npolicy: {reply}\n[cyan]reward: {reward}[/cyan]"
