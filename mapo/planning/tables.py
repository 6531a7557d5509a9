"""A plan as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mapo.planning.bounds import LONGEST, PLACES
from mapo.planning.plan import Plan
from mapo.text import terminal

_SAYS = {
    LONGEST: "the longest dialogue, its calls one after another",
    PLACES: "dialogues at once (rollout.at_once)",
}


def print_plan(plan: Plan) -> None:
    console = terminal(soft_wrap=False)
    console.width = max(console.width, 110)
    shape = plan.shape
    console.print(
        f"{shape.scenarios} scenarios x {shape.siblings} siblings, {plan.turns:.1f} turns a dialogue, "
        f"{min(shape.at_once, shape.dialogues)} at once"
    )
    _step(console, plan)
    _roles(console, plan)
    _bounds(console, plan)
    _servers(console, plan)
    if plan.tries:
        _tries(console, plan)


def _step(console: Console, plan: Plan) -> None:
    low, high = plan.rollout_range_s
    steps = plan.shape.steps
    console.print(
        f"[bold]A step takes {plan.step_s:.1f} s[/]: rollout {plan.rollout_s:.1f} s "
        f"({low:.1f} to {high:.1f}), update {plan.update_s:.1f} s. "
        f"{steps} steps: {_long(steps * plan.step_s)}, without tests and validations."
    )
    console.print(f"What holds the rollout up: {_says(plan.bottleneck)}.")


def _roles(console: Console, plan: Plan) -> None:
    columns = ["calls", "prompt tokens", "cached", "output tokens", "s a call", "s alone", "of the time"]
    table = _table("a step, by role", columns)
    for r in plan.roles:
        table.add_row(
            r.role,
            f"{r.calls:,.0f}",
            f"{r.prompt:,.0f}",
            f"{r.cached / r.prompt:.0%}" if r.prompt else "-",
            f"{r.output:,.0f}",
            f"{r.seconds:.2f}",
            f"{r.seconds_alone:.2f}",
            f"{r.share:.0%}",
        )
    table.add_section()
    sums = [sum(getattr(r, key) for r in plan.roles) for key in ("calls", "prompt", "cached", "output")]
    cached = f"{sums[2] / sums[1]:.0%}" if sums[1] else "-"
    table.add_row("all", f"{sums[0]:,.0f}", f"{sums[1]:,.0f}", cached, f"{sums[3]:,.0f}", "", "", "")
    console.print(table)


def _bounds(console: Console, plan: Plan) -> None:
    table = _table("no rollout is shorter than", ["s", "of the simulated"])
    for name, seconds in sorted(plan.bounds_s.items(), key=lambda item: -item[1]):
        says = _SAYS.get(name, f"the work of server {escape(name)} over what it can do")
        table.add_row(says, f"{seconds:.1f}", f"{seconds / plan.rollout_s:.0%}")
    console.print(table)


def _servers(console: Console, plan: Plan) -> None:
    table = _table("server", ["serves", "replicas", "busy", "recommended"])
    for s in plan.servers:
        wanted = "-" if s.recommended is None else str(s.recommended)
        table.add_row(escape(s.server), ", ".join(s.roles), str(s.replicas), f"{s.utilisation:.0%}", wanted)
    console.print(table)
    console.print(
        f"With as many replicas as could be of use a step takes {plan.floor_s:.1f} s "
        f"(then it is held up by {_says(plan.floor_bottleneck)}); "
        f"with those recommended {plan.recommended_s:.1f} s."
    )


def _tries(console: Console, plan: Plan) -> None:
    table = _table("the others as recommended", ["replicas", "step s", "over the least"])
    for t in plan.tries:
        table.add_row(escape(t.server), str(t.replicas), f"{t.step_s:.1f}", f"{t.over_floor:.2f}")
    console.print(table)


def _says(bound: str) -> str:
    return _SAYS.get(bound, f"the server {escape(bound)}")


def _table(label: str, columns: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(label, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _long(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
