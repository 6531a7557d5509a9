"""The outcome of a training run on the terminal: learning curve, test scores, dialogues, a turn's credit."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from mapo.text import clip, escape, plural

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table as RichTable

    from mapo.runs.training import TrainingRun
    from mapo.scoring.score import Score
    from mapo.show.tables import Table
    from mapo.train.run import TrainingOutcome
    from mapo.types import Dialogue, Turn

SHOWN = 4
"""Turns shown of each dialogue: the first and the last ones."""
TEXT = 240
"""Characters of a message that are shown."""


def print_outcome(outcome: TrainingOutcome, out: Path, caution: str = "") -> None:
    """Print the outcome of the run in `out`, with `caution` above the scores."""
    from mapo.report import end_distance, example_pairs
    from mapo.runs.training import read_training
    from mapo.show.tables import output_console, print_line, print_tables

    console = output_console()
    summary = outcome.summary
    console.print(
        f"\n{summary['method']} on {escape(str(summary['model']))}: {plural(summary['steps'], 'step')}, "
        f"{plural(summary['dialogues'], 'dialogue')}, "
        f"{summary['seconds']:.0f} s of training (seed {summary['seed']})"
    )
    run = read_training(out)
    _print_curve(run, console)
    if outcome.before is None or outcome.after is None:
        if caution:
            print_line(caution)
    else:
        print_line(f"Held-out scenarios. {outcome.after.context.describe()}", style="")
        print_tables([_scores(outcome.before, outcome.after, summary["chosen_step"], caution)])
        console.print(_difference(outcome, out))
        for name, before, after in example_pairs(outcome.before_dialogues, outcome.after_dialogues):
            ends = f"{end_distance(before):.1f} before, {end_distance(after):.1f} after"
            title = (
                f"\n{name.capitalize()} test dialogue by gain: {before.id}, final distance to the goal {ends}"
            )
            print_line(title, style="bold", console=console)
            console.print(_side_by_side(before, after, out))
    _print_credit(run, console)


def _print_curve(run: TrainingRun, console: Console) -> None:
    """Print the scores by step, with the reference scores where they apply."""
    from mapo.report.document.numbers import series
    from mapo.scoring.reference import REFERENCE_NOTE, reference_lines
    from mapo.show.tables import print_line
    from mapo.show.text_chart import text_chart

    curves = {
        sign: (name, [(p.x, p.y) for p in series(run.steps, *keys)])
        for sign, name, keys in (
            ("*", "training dialogues", ("score",)),
            ("o", "validation (over *)", ("validation", "epm_q")),
        )
    }
    references = [(f"{score.label} {score.epm_q:.1f}", score.epm_q) for score in reference_lines(run.world)]
    lines = text_chart(
        {sign: points for sign, (_, points) in curves.items()}, references, width=console.width
    )
    if not lines:
        return
    print_line("\nScore (EPM-Q) by step", style="bold", console=console)
    for line in lines:
        console.print(line, markup=False, no_wrap=True, overflow="crop")
    legend = [f"{sign} {name}: {_ends(points)}" for sign, (name, points) in curves.items() if points]
    print_line("   ".join(legend), style="", console=console)
    notes = [REFERENCE_NOTE] if references else []
    if limits := _turn_limits(run):
        notes.append(limits)
    if any(len(points) > console.width for _, points in curves.values()):
        notes.append("Neighbouring steps are averaged.")
    print_line(" ".join(notes), console=console)
    console.print()


def _turn_limits(run: TrainingRun) -> str:
    """Say how long dialogues were, if those of training end earlier than those of validation."""
    if run.config is None or run.config.eval.max_turns in (None, run.config.rollout.max_turns):
        return ""
    limits = run.config.rollout.max_turns, run.config.eval.max_turns
    return f"Training dialogues have up to {limits[0]} turns, those of validation and test up to {limits[1]}."


def _ends(points: Sequence[tuple[float, float]]) -> str:
    """Return the first and the last score of a curve."""
    ends = points if len(points) == 1 else (points[0], points[-1])
    return ", ".join(f"{score:.1f} (step {step:.0f})" for step, score in ends)


def _last_dialogues(run: TrainingRun) -> Sequence[Dialogue]:
    """Return the dialogues of the last training step that was read."""
    return run.played[max(run.played)] if run.played else ()


def _print_credit(run: TrainingRun, console: Console) -> None:
    """Explain the advantage of one turn; nothing if no training dialogue was read."""
    from rich.table import Table as RichTable

    from mapo.report.turn_example import turn_example
    from mapo.show.tables import print_line

    if not run.played:
        return
    example = turn_example(run)
    if isinstance(example, str):
        print_line(f"\nNo turn's credit is explained: {example}.", console=console)
        return
    print_line(f"\nHow one turn was credited: {example.title}", style="bold", console=console)
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="cyan", max_width=20)
    grid.add_column()
    for label, text in example.lines:
        grid.add_row(escape(label), escape(text))
    console.print(grid)


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
    if after.context.world:
        rows += reference_rows(after.context.world, len(columns))
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

    table = RichTable(show_lines=True)
    excerpts = []
    for when, dialogue in (("before", before), ("after", after)):
        ending = dialogue.ending.reason.label if dialogue.ending else "unfinished"
        turns = len(dialogue.turns)
        part = f" (first {SHOWN - SHOWN // 2} and last {SHOWN // 2} shown)" if turns > SHOWN else ""
        score = dialogue_score(dialogue, out)
        table.add_column(f"{when}: {score}{ending} after {plural(turns, 'turn')}{part}", ratio=1)
        excerpts.append(_excerpt(dialogue))
    for cells in zip_longest(*excerpts, fillvalue=""):
        table.add_row(*cells)
    return table


def _excerpt(dialogue: Dialogue) -> list[str]:
    """Return the first and the last turns as text."""
    turns, first = dialogue.turns, SHOWN - SHOWN // 2
    shown: Sequence[int] = range(len(turns))
    if len(turns) > SHOWN:
        shown = [*range(first), *range(len(turns) - SHOWN // 2, len(turns))]
    return [_turn(turns[i], i + 1) for i in shown]


def _turn(turn: Turn, number: int) -> str:
    reward = "unscored" if turn.reward is None else f"{turn.reward:+.2f}"
    user, reply = escape(clip(turn.user, TEXT)), escape(clip(turn.reply.text, TEXT))
    return f"[dim]{number}. user: {user}[/dim]\npolicy: {reply}\n[cyan]reward: {reward}[/cyan]"
