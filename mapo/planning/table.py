"""Print a plan."""

from __future__ import annotations

from rich import box
from rich.markup import escape
from rich.table import Table

from mapo.planning.plan import CONCURRENCY, LONGEST, Plan
from mapo.text import terminal

_NAMES = {
    LONGEST: "the longest dialogue, whose calls come one after another",
    CONCURRENCY: "the number of concurrent dialogues (rollout.at_once)",
}


def print_plan(plan: Plan) -> None:
    console = terminal(soft_wrap=False)
    console.width = max(console.width, 120)
    shape, steps = plan.shape, plan.shape.steps
    console.print(
        f"{shape.scenarios} scenarios x {shape.siblings} siblings, {plan.turns:.1f} turns per dialogue, "
        f"{shape.concurrent} concurrent dialogues"
    )
    console.print(
        f"[bold]A step takes at least {plan.step_s:.1f} s[/]: rollout {plan.rollout_s:.1f} s, "
        f"update {plan.update_s:.1f} s. {steps} steps: at least {_duration(steps * plan.step_s)}, "
        "without evaluations."
    )
    console.print(f"The rollout is limited by {_name(plan.bottleneck)}.")
    console.print("These are lower bounds computed from the rates, not a simulation: queueing comes on top.")
    console.print(_table(plan))
    for name in (LONGEST, CONCURRENCY):
        console.print(f"Bound by {_name(name)}: {plan.bounds_s[name]:.1f} s.")
    if len(plan.servers) > 1:
        console.print(
            f"With unlimited replicas a step takes at least {plan.floor_s:.1f} s "
            f"(limited by {_name(plan.floor_bottleneck)}); "
            f"with the recommended ones at least {plan.recommended_s:.1f} s."
        )


def _table(plan: Plan) -> Table:
    """One row per role; the columns about a server stand in the row of its first role."""
    title = "Per step: calls, tokens, seconds per call; the least time each server needs, and its replicas"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style="")
    table.add_column("role", no_wrap=True)
    table.add_column("server", no_wrap=True)
    for column in (
        "calls",
        "prompt",
        "cached",
        "output",
        "s/call",
        "at least",
        "busy",
        "replicas",
        "recommended",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    servers = {server.roles[0]: server for server in plan.servers}
    for r in plan.roles:
        server = servers.get(r.role)
        about_server = ["", "", "", ""]
        if server:
            recommended = "-" if server.recommended is None else str(server.recommended)
            about_server = [f"{server.bound_s:.1f} s", f"{server.utilisation:.0%}"]
            about_server += [str(server.replicas), recommended]
        table.add_row(
            r.role,
            escape(r.server),
            f"{r.calls:,.0f}",
            f"{r.prompt:,.0f}",
            f"{r.cached / r.prompt:.0%}" if r.prompt else "-",
            f"{r.output:,.0f}",
            f"{r.seconds:.2f}",
            *about_server,
        )
    return table


def _name(bound: str) -> str:
    return _NAMES.get(bound, f"the server {escape(bound)}")


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
