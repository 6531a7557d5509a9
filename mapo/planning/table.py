"""Print a plan."""

from __future__ import annotations

from mapo.planning.demand import Shape
from mapo.planning.plan import CONCURRENCY, LONGEST, Plan
from mapo.show.tables import Table, print_tables
from mapo.text import terminal

_NAMES = {
    LONGEST: "the longest dialogue, whose calls come one after another",
    CONCURRENCY: "the number of concurrent dialogues (rollout.at_once)",
}


def print_plan(plan: Plan) -> None:
    """Print the estimate, the bottleneck, and one table each of roles and servers."""
    shape, steps = plan.shape, plan.shape.steps
    _print(
        f"{shape.scenarios} scenarios x {shape.siblings} siblings, {plan.turns:.1f} turns per dialogue, "
        f"{shape.concurrent} concurrent dialogues"
    )
    _print(f"A step takes at least {plan.step_s:.1f} s", style="bold")
    _print(
        f"Rollout {plan.rollout_s:.1f} s, update {plan.update_s:.1f} s. {steps} steps: at least "
        f"{_duration(steps * plan.step_s)}, without evaluations."
    )
    _print(f"Rollout bottleneck: {_name(plan.bottleneck, shape)}.")
    _print("These are lower bounds computed from the rates, not a simulation: queueing comes on top.")
    print_tables([_role_table(plan), _server_table(plan)])
    for name in (LONGEST, CONCURRENCY):
        _print(f"Bound by {_name(name, shape)}: {plan.bounds_s[name]:.1f} s.")
    if len(plan.servers) > 1:
        _print(
            f"With unlimited replicas a step takes at least {plan.floor_s:.1f} s "
            f"(bottleneck: {_name(plan.floor_bottleneck, shape)}); "
            f"with the recommended ones at least {plan.recommended_s:.1f} s."
        )


def _print(text: str, style: str | None = None) -> None:
    terminal().print(text, style=style, markup=False)


def _role_table(plan: Plan) -> Table:
    rows = [
        [
            role.role,
            role.server,
            f"{role.calls:,.0f}",
            f"{role.prompt:,.0f}",
            f"{role.cached / role.prompt:.0%}" if role.prompt else "-",
            f"{role.output:,.0f}",
            f"{role.seconds:.2f}",
        ]
        for role in plan.roles
    ]
    columns = ["Role", "Server", "Calls", "Prompt", "Cached", "Output", "s/call"]
    return Table(columns, rows, title="Calls and tokens per step", left=2)


def _server_table(plan: Plan) -> Table:
    rows = [
        [
            server.server,
            ", ".join(server.roles),
            f"{server.bound_s:.1f} s",
            f"{server.utilisation:.0%}",
            str(server.replicas),
            "-" if server.recommended is None else str(server.recommended),
        ]
        for server in plan.servers
    ]
    columns = ["Server", "Roles", "At least", "Busy", "Replicas", "Recommended"]
    return Table(columns, rows, title="Time each server needs per step, and its replicas", left=2)


def _name(bound: str, shape: Shape) -> str:
    if bound == CONCURRENCY and shape.dialogues <= shape.at_once:
        return f"the number of dialogues per step ({shape.dialogues}, all concurrent)"
    return _NAMES.get(bound, f"the server {bound}")


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
