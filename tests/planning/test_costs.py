"""Costs of a plan, by hand."""

from __future__ import annotations

import json

import pytest

from mapo.config import Config, read_config
from mapo.planning.costs import cost_table, role_costs, total_cost
from mapo.planning.demand import shape_of
from mapo.planning.plan import make_plan
from mapo.planning.rates import EXAMPLE, Rates, read_rates
from mapo.players.casting import cast_from_config
from support.command import mapo


def config() -> Config:
    roles = {"agents": "llm", "everyone": {"model": "m"}}
    rollout = {"scenarios": 8, "siblings": 4, "max_turns": 5, "max_tokens": 200}
    return read_config({"roles": roles, "rollout": rollout}, "test")


def rates() -> Rates:
    """Every call has 10 output tokens and takes a second."""
    calls = {role: {"output": 10, "seconds": 1.0} for role in ("policy", "judge", "director", "user")}
    servers = {"policy": {"streams": 64}, "everyone": {"streams": 64}}
    return read_rates({"servers": servers, "calls": calls, "update": {"seconds": 0.0}}, "test")


def test_each_role_by_its_model_and_the_total():
    plan = make_plan(shape_of(config()), rates())
    costs = role_costs(plan, cast_from_config(config()), {"m": (1.0, 0.5, 100.0)})
    by_role = {cost.role: cost for cost in costs}
    assert set(by_role) == {"user", "director", "judge"}
    # 160 calls of 10 output tokens, and no prompts in these rates
    judge = next(role for role in plan.roles if role.role == "judge")
    want = (judge.prompt * 1.0 + 1600 * 100.0) / 1e6
    assert by_role["judge"].step == pytest.approx(want)
    assert total_cost(costs) == pytest.approx(sum(cost.step for cost in costs) * plan.shape.steps)
    assert cost_table(costs, plan.shape.steps).rows[-1][0] == "total"


def test_without_a_price_there_is_no_total():
    plan = make_plan(shape_of(config()), rates())
    costs = role_costs(plan, cast_from_config(config()), {})
    table = cost_table(costs, 3)
    assert total_cost(costs) is None and table.rows[-1][0] != "total" and "No price for m" in table.note


@pytest.mark.parametrize(("judging", "share"), [("panel", 1.0), ("alternate", 0.5)])
def test_the_judges_of_a_panel(judging, share):
    roles = {"agents": "llm", "everyone": {"model": "m"}, "judging": judging}
    both = read_config({"roles": {**roles, "judges": [{"model": "a"}, {"model": "b"}]}}, "test")
    plan = make_plan(shape_of(both), rates())
    costs = {
        c.role: c for c in role_costs(plan, cast_from_config(both), {"a": (0, 0, 1e6), "b": (0, 0, 2e6)})
    }
    judge = next(role for role in plan.roles if role.role == "judge")
    assert costs["judge 1"].step == pytest.approx(share * judge.output)
    assert costs["judge 2"].step == pytest.approx(2 * share * judge.output)


def test_the_command(tmp_path):
    (tmp_path / "rates.toml").write_text(EXAMPLE)
    (tmp_path / "prices.json").write_text('{"m": [1, 0.1, 4]}')
    command = ("plan", "roles.agents=llm", "roles.everyone.model=m", "rollout.max_tokens=256")
    done = mapo(*command, "--rates", tmp_path / "rates.toml", "--prices", tmp_path / "prices.json", "--json")
    assert done.returncode == 0, done.stderr
    costs = json.loads(done.stdout)["costs"]
    assert (
        costs["total"] == pytest.approx(sum(role["total"] for role in costs["roles"])) and costs["total"] > 0
    )
