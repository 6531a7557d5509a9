"""What a reproduction would cost: calls, tokens, GPU hours and money of each stage.

Calls and tokens assume that every dialogue reaches its turn limit, with the call sizes of the rates. GPU
hours are those of the policy's cards, waiting for user, director and judge included: the lower bounds of
`mapo plan`, times the number of cards.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mapo.config import Config, load_config, with_steps
from mapo.evals.reproduce.experiments import MODELS, Experiment, Row, Training
from mapo.evals.reproduce.stages import (
    BILLIONS,
    SMALL_CASES,
    SMALL_TURNS,
    TEST_CASES,
    TEST_MODEL,
    TEST_TURNS,
    Recipe,
    Stage,
)
from mapo.models.ledger import Price
from mapo.planning.costs import role_costs, total_cost
from mapo.planning.demand import POLICY, Shape, shape_of
from mapo.planning.plan import Plan, make_plan
from mapo.planning.rates import EXAMPLE, Rates, merged, read_rates
from mapo.players.casting import cast_from_config
from mapo.players.spec import CastSpec, ModelSpec
from mapo.show.tables import Table

UPDATE_FLOPS = 0.35 * 990e12
"""Assumed speed of an update: 35 % of the peak of an H100 in bfloat16."""
FLOPS_PER_WEIGHT = 8
"""Forward, backward and, with gradient checkpointing, another forward pass, per weight and token."""
START_FORM = {"prompt": 2100, "output": 400}
"""Tokens of a start form, which the judge fills in where start levels are unknown."""
EXAMPLE_BILLIONS = 8.0
"""The size of the policy that the example rates describe."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """The estimate of one stage. `cost` is None if the price of one of its models is unknown."""

    stage: str
    dialogues: int
    calls: float
    prompt: float
    output: float
    hours: float
    gpu_hours: float
    cost: float | None
    unpriced: tuple[str, ...] = ()


def estimate(
    stages: Sequence[Stage],
    recipe: Recipe,
    rates: Mapping[str, Any],
    prices: Mapping[str, Price],
    scenarios: int | None,
) -> list[StageCost]:
    """Estimate the stages that play dialogues. `rates` change the assumed ones; `scenarios` is the number of
    training scenarios, for trainings whose length is given in epochs."""
    costs = []
    for stage in stages:
        row = stage.row
        if row is None or stage.kind == "export":
            continue
        if stage.kind == "train" and row.training is not None:
            costs.append(_training_cost(stage, row.training, recipe, rates, prices, scenarios))
        elif stage.kind == "test":
            costs.append(_test_cost(stage, row, recipe, rates, prices))
    return costs


def _training_cost(
    stage: Stage,
    training: Training,
    recipe: Recipe,
    rates: Mapping[str, Any],
    prices: Mapping[str, Price],
    scenarios: int | None,
) -> StageCost:
    config = with_steps(recipe.config(training), scenarios or 0)
    cards = 1 if recipe.engine == "local" or recipe.small else config.verl.nodes * config.verl.gpus
    plan = make_plan(shape_of(config), _rates(training.size, config, cards, recipe, rates))
    return _stage_cost(stage.name, plan, cards, cast_from_config(config), prices)


def _test_cost(
    stage: Stage, row: Row, recipe: Recipe, rates: Mapping[str, Any], prices: Mapping[str, Price]
) -> StageCost:
    config = load_config(recipe.config_name(row.size), recipe.settings)
    shape = Shape(
        scenarios=SMALL_CASES if recipe.small else TEST_CASES,
        siblings=1,
        max_turns=SMALL_TURNS if recipe.small else TEST_TURNS,
        max_tokens=512,
        at_once=32,
        requests=32,
        agents=not recipe.small,
    )
    adapted = merged(dict(rates), {"update": {"seconds": 0.0, "tokens_per_s": None}})
    plan = make_plan(shape, _rates(row.size, config, 1, recipe, adapted))
    tester = recipe.tester or ModelSpec(TEST_MODEL)
    judge = replace(tester, model=row.judge) if row.judge else tester
    cast = None if recipe.small else {"user": tester, "director": tester, "judge": judge}
    return _stage_cost(stage.name, plan, 1, cast, prices)


def _rates(size: str, config: Config, cards: int, recipe: Recipe, changes: Mapping[str, Any]) -> Rates:
    """Return the rates of a model of this size on so many cards, with the user's changes."""
    data = tomllib.loads(EXAMPLE)
    scale = EXAMPLE_BILLIONS / BILLIONS[size]
    parallel = 1 if cards == 1 else config.verl.tensor_parallel
    policy = data["servers"]["policy"]
    speeds = ("tokens_per_s", "throughput", "prefill_per_s")
    per_replica = {key: policy[key] * scale * parallel for key in speeds}
    update = cards * UPDATE_FLOPS / (FLOPS_PER_WEIGHT * BILLIONS[size] * 1e9)
    assumed: dict[str, Any] = {
        "servers": {"policy": {**per_replica, "replicas": max(1, cards // parallel)}},
        "update": {"tokens_per_s": update},
    }
    if recipe.small:
        assumed["calls"] = {"policy": {"output": 40.0}}
    elif recipe.start_levels is None:
        assumed["calls"] = {"start": START_FORM}
    return read_rates(merged(merged(data, assumed), dict(changes)), "the rates")


def _stage_cost(
    name: str, plan: Plan, cards: int, cast: CastSpec | None, prices: Mapping[str, Price]
) -> StageCost:
    """Return the estimate of all steps of a plan."""
    served, steps = [role for role in plan.roles if role.role != POLICY], plan.shape.steps
    costs = role_costs(plan, cast, prices)
    hours = steps * plan.step_s / 3600
    return StageCost(
        name,
        dialogues=steps * plan.shape.dialogues,
        calls=steps * sum(role.calls for role in served),
        prompt=steps * sum(role.prompt for role in served),
        output=steps * sum(role.output for role in served),
        hours=hours,
        gpu_hours=hours * cards,
        cost=total_cost(costs),
        unpriced=tuple(sorted({cost.model for cost in costs if cost.step is None})),
    )


def estimate_table(costs: Sequence[StageCost], experiment: Experiment) -> Table:
    """Return the estimate of all stages, and their sum."""
    total = StageCost(
        "all",
        sum(c.dialogues for c in costs),
        sum(c.calls for c in costs),
        sum(c.prompt for c in costs),
        sum(c.output for c in costs),
        sum(c.hours for c in costs),
        sum(c.gpu_hours for c in costs),
        None if any(c.cost is None for c in costs) else sum(c.cost or 0.0 for c in costs),
    )
    rows = [
        [
            c.stage,
            f"{c.dialogues:,}",
            _millions(c.calls),
            _millions(c.prompt),
            _millions(c.output),
            f"{c.hours:,.1f}",
            f"{c.gpu_hours:,.1f}",
            "-" if c.cost is None else f"{c.cost:,.2f}",
        ]
        for c in (*costs, total)
    ]
    columns = [
        "stage",
        "dialogues",
        "calls (M)",
        "prompt (M tokens)",
        "completion (M tokens)",
        "hours",
        "GPU hours",
        "cost",
    ]
    models = ", ".join(MODELS[size] for size in dict.fromkeys(row.size for row in experiment.rows))
    unpriced = sorted({model for c in costs for model in c.unpriced})
    note = (
        "Every dialogue is counted with its turn limit, calls with the sizes of the rates. Hours are lower "
        "bounds (`mapo plan`); the speed of the policy is scaled by its size."
    )
    if unpriced:
        note += f" No price is known for {', '.join(unpriced)} (--prices)."
    return Table(columns, rows, title=f"{experiment.title}: {models}", note=note)


def _millions(number: float) -> str:
    return f"{number / 1e6:,.3f}" if number < 1e5 else f"{number / 1e6:,.1f}"
