"""The money a plan's calls cost, at given prices per million tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mapo.models.ledger import Price, cost_of
from mapo.planning.demand import START
from mapo.planning.plan import Plan, RolePlan
from mapo.players.spec import CastSpec, PanelSpec
from mapo.show.tables import Table


@dataclass(frozen=True, slots=True)
class RoleCost:
    """The cost of one model's calls in one step and in all steps; None if its price is not known."""

    role: str
    model: str
    step: float | None
    total: float | None


def role_costs(plan: Plan, cast: CastSpec | None, prices: Mapping[str, Price]) -> list[RoleCost]:
    """Return the cost of user, director and judge. The policy is trained here and has no price.

    Every member of a panel judges every reply; alternating judges share the calls.
    """
    costs = []
    for role in plan.roles:
        player = (cast or {}).get("judge" if role.role == START else role.role)
        if player is None:
            continue
        if isinstance(player, PanelSpec):
            share = 1.0 if player.mode == "panel" else 1 / len(player.members)
            models = [(f"{role.role} {n}", m.model) for n, m in enumerate(player.members, 1)]
        else:
            share, models = 1.0, [(role.role, player.model)]
        for name, model in models:
            step = share * _cost(role, prices[model]) if model in prices else None
            costs.append(RoleCost(name, model, step, None if step is None else step * plan.shape.steps))
    return costs


def _cost(role: RolePlan, price: Price) -> float:
    return cost_of({"prompt": role.prompt, "cached": role.cached, "completion": role.output}, price)


def total_cost(costs: Sequence[RoleCost]) -> float | None:
    """Return the cost of all steps; None if a price is missing."""
    return None if any(c.total is None for c in costs) else sum(c.total or 0.0 for c in costs)


def cost_table(costs: Sequence[RoleCost], steps: int) -> Table:
    """Return the costs as a table, with their sum if every price is known."""
    rows = [[c.role, c.model, _money(c.step), _money(c.total)] for c in costs]
    total = total_cost(costs)
    if total is not None:
        rows.append(["total", "", _money(sum(c.step or 0.0 for c in costs)), _money(total)])
    missing = sorted({c.model for c in costs if c.step is None})
    note = f"No price for {', '.join(missing)}, so there is no total. " if missing else ""
    return Table(
        ["Role", "Model", "Per step", f"{steps} steps"],
        rows,
        title="Cost, in the currency of the prices",
        note=f"{note}Without evaluations.",
        left=2,
    )


def _money(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:,.2f}" if amount >= 1 else f"{amount:.4f}"
