"""A judge of its own in validation and test."""

from __future__ import annotations

import asyncio

import pytest

from mapo.config import read_config, without_addresses
from mapo.errors import InputError
from mapo.players.casting import cast_from_config, evaluation_cast, every_model
from mapo.players.session import open_cast
from mapo.sandbox.cast import Job
from support.roles import boat_shed

ROLES = {"agents": "llm", "everyone": {"model": "m", "base_url": "http://127.0.0.1:9/v1"}}


def config(**more):
    return read_config({"roles": ROLES, **more}, "test")


def test_it_replaces_the_judge_and_inherits_from_everyone():
    own = config(eval={"judge": {"model": "referee", "temperature": 0.3}})
    assert cast_from_config(own)["judge"].model == "m"
    judge = evaluation_cast(own)["judge"]
    assert (judge.model, judge.base_url, judge.sampling.temperature) == (
        "referee",
        "http://127.0.0.1:9/v1",
        0.3,
    )
    assert list(every_model(own)) == ["user", "director", "judge", "test judge"]
    assert evaluation_cast(config()) == cast_from_config(config())


def test_it_may_judge_scripted_people():
    own = read_config({"eval": {"judge": {"model": "x"}}}, "test")
    assert cast_from_config(own) is None
    assert [*evaluation_cast(own)] == ["judge"]
    assert list(every_model(own)) == ["test judge"]


def test_it_needs_a_model_and_its_address_is_not_passed_on():
    with pytest.raises(InputError, match="no model for the judge of evaluations"):
        read_config({"eval": {"judge": {"temperature": 0.1}}}, "test")
    data = without_addresses(config(eval={"judge": {"model": "x", "base_url": "http://secret/v1"}}))
    assert data["eval"]["judge"]["model"] == "x" and "secret" not in str(data)


def test_only_the_jobs_of_training_steps_have_the_training_judge(tmp_path):
    async def judges():
        async with open_cast(config(eval={"judge": {"model": "referee"}}), tmp_path) as (casting, _, _):
            jobs = Job(boat_shed(), "a", step=3), Job(boat_shed(), "a")
            return [casting(job).names["judge"] for job in jobs]

    assert asyncio.run(judges()) == ["m", "referee"]
