"""Local models in every role: loaded once, planned first, refused in one line."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from mapo.config import load_config
from mapo.errors import InputError
from mapo.local_model.memory import GIB, ModelSize, plan_memory, sampling_need, training_need
from mapo.measure.rubric import Rubric
from mapo.models.chat import Sampling
from mapo.players.casting import every_model
from mapo.players.local_models import shares_start
from mapo.players.session import ModelSession
from mapo.players.spec import ModelSpec, PanelSpec, models_by_role
from mapo.sandbox.cast import Job
from mapo.sandbox.model_cast import policy_system
from mapo.sandbox.rollout import Rules, play_all
from mapo.types import Dialogue
from support.local_cast import LIMITS, local_cast_folder
from support.roles import boat_shed

ROLES = ("user", "director", "judge")


def cast_of(source: object, **others: object) -> dict[str, ModelSpec]:
    """Return a cast of one local model, or of several."""
    sources = {**dict.fromkeys(ROLES, source), **others}
    return {
        role: ModelSpec(f"local:{sources[role]}", sampling=Sampling(max_tokens=LIMITS[role]))
        for role in ROLES
    }


def played(
    cast: Mapping[str, ModelSpec | PanelSpec],
    policy: ModelSpec,
    session: ModelSession | None = None,
    *,
    dialogues: int = 1,
    turns: int = 1,
) -> list[Dialogue]:
    """Play one scenario in sibling dialogues."""

    async def play() -> list[Dialogue]:
        async with session or ModelSession(concurrency=2, context=2048, role_context=4096) as opened:
            opened.check({"policy": policy, **models_by_role(cast)}, "empathy")
            rubric = Rubric.load("empathy")
            rules = Rules(rubric, max_turns=turns, max_tokens=8, system=policy_system)
            chat = await opened.policy(policy, "empathy")
            casting = await opened.casting(cast, rubric, "empathy")
            jobs = [Job(boat_shed(), id=f"boat_{n}", seed=1) for n in range(dialogues)]
            return await play_all(jobs, chat, casting, rules)

    return asyncio.run(play())


@pytest.fixture(scope="module")
def loads() -> Iterator[list[str]]:
    """The sources of the models that are loaded."""
    from mapo.sampling import local

    sources: list[str] = []
    load = local.load_policy

    def count(source: str, **options: object):
        sources.append(source)
        return load(source, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "load_policy", count)
        yield sources


@pytest.fixture(scope="module")
def four_roles(cast_model, loads):
    """Two dialogues in which one model plays all four roles, their session, and what was loaded."""
    session = ModelSession(concurrency=2, context=2048, role_context=4096)
    policy = ModelSpec(f"local:{cast_model}")
    loads.clear()
    dialogues = played(cast_of(cast_model), policy, session, dialogues=2, turns=2)
    return dialogues, session, list(loads)


def test_one_model_plays_all_four_roles(four_roles):
    dialogues, _, _ = four_roles
    assert [d.error for d in dialogues] == [None, None]
    assert all(turn.levels is not None for d in dialogues for turn in d.turns)
    assert dialogues[0].cast == dict.fromkeys(ROLES, "tiny-cast")


def test_a_model_of_several_roles_is_loaded_once(four_roles, cast_model):
    assert four_roles[2] == [str(cast_model)]


def test_siblings_meet_different_users(four_roles):
    a, b = four_roles[0]
    assert a.turns[1].user != b.turns[1].user


def test_the_end_of_a_dialogue_frees_the_caches_of_its_roles(four_roles, cast_model):
    sampler = four_roles[1].local._samplers[str(cast_model)]
    assert len(sampler._free) == sampler.decoder.slots == 8


def test_roles_of_several_models_take_turns_and_repeat_to_the_same_dialogues(cast_model, tmp_path, loads):
    other = local_cast_folder(tmp_path / "other", seed=1)
    cast = cast_of(other, judge=cast_model)
    loads.clear()
    first, again = (played(cast, ModelSpec(f"local:{cast_model}"), dialogues=2) for _ in range(2))
    assert loads == [str(cast_model), str(other)] * 2
    assert [d.turns for d in first] == [d.turns for d in again]


def test_a_panel_of_local_judges(cast_model):
    judge = cast_of(cast_model)["judge"]
    cast = {**cast_of(cast_model), "judge": PanelSpec((judge, judge))}
    (dialogue,) = played(cast, ModelSpec("scripted:honest"))
    assert set(dialogue.turns[0].panel) == {str(judge), f"{judge} #2"}


def test_roles_share_one_context_and_slots_are_counted_per_role(cast_model):
    session = ModelSession(concurrency=3, context=1024, role_context=5000)
    models = {"policy": ModelSpec(f"local:{cast_model}"), **cast_of(cast_model)}
    session.check(models, "empathy")
    (need,) = session.local.make_plan().needs
    assert (need.slots, need.context) == (12, 5000)
    assert need.roles == ("policy", "user", "director", "judge")


def test_a_role_context_is_limited_by_the_model(cast_model):
    session = ModelSession(role_context=100_000)
    session.check(cast_of(cast_model), "empathy")
    assert session.local.make_plan().needs[0].context == 8192


def test_models_that_do_not_fit_are_refused_before_they_are_loaded(cast_model, monkeypatch, loads):
    loads.clear()
    monkeypatch.setattr("mapo.local_model.memory.host_memory", lambda: (1 << 20, 1 << 30))
    with pytest.raises(InputError, match="tiny-cast need .* can be planned"):
        played(cast_of(cast_model), ModelSpec("scripted:honest"))
    assert loads == []


def test_a_scripted_model_is_no_role(cast_model):
    cast = {**cast_of(cast_model), "judge": ModelSpec("scripted:honest")}
    with pytest.raises(InputError, match="'scripted:honest' cannot be used as judge"):
        played(cast, ModelSpec("scripted:honest"))


def test_the_config_for_one_card_shares_one_model_and_fits_its_plan(cast_model):
    """With the model's sizes from its config, the plan is for 24 GiB."""
    config = load_config("one-card")
    assert {spec.local for spec in every_model(config).values()} == {config.model.source}
    assert shares_start(config)
    size = ModelSize(
        1_543_714_304,
        kv_per_token=2 * 28 * 2 * 128,
        layers=28,
        hidden=1536,
        intermediate=8960,
        linear=((1536, 1536), (256, 1536), (256, 1536), (1536, 1536), *[(8960, 1536)] * 3) * 28,
    )
    policy = training_need(
        size, config, slots=config.rollout.at_once, context=config.rollout.context or 0, width=2
    )
    roles = sampling_need(
        size, "qwen", ROLES, slots=3 * config.rollout.at_once, context=config.roles.context, width=2
    )
    plan = plan_memory([policy, replace(roles, weights=0)], 24 * GIB, "GPU")
    assert plan.needs[1].slots >= 32
