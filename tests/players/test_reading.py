"""How judges and directors answer: forms, readout, and models that were trained for a role."""

import asyncio
import json
import shutil

import pytest

from mapo.config import load_config, read_config
from mapo.errors import InputError
from mapo.measure.calibration import IDENTITY
from mapo.measure.rubric import Rubric
from mapo.models.chat import Sampling
from mapo.players.casting import cast_from_config, every_model, with_judging
from mapo.players.prompts import prompts_from_config
from mapo.players.reading import (
    calibration_of,
    check_expected_steps,
    check_starts,
    check_trained_roles,
    is_read_out,
    judge_prompts,
    reading_prompts,
)
from mapo.players.session import ModelSession
from mapo.players.spec import ModelSpec, PanelSpec
from mapo.sandbox.cast import Job
from mapo.sandbox.model_cast import SHIPPED_PROMPTS
from mapo.sandbox.reading_roles import ReadDirector, ReadingPrompts, ReadJudge
from mapo.sandbox.readout import BRIEF, judge_messages
from mapo.scripted.story import StoryUser
from mapo.types import Reply, Turn
from support.local_cast import trained_judge
from support.roles import boat_shed

EMPATHY, TUTORING = Rubric.load("empathy"), Rubric.load("tutoring")


@pytest.fixture(scope="module")
def judge(cast_model, tmp_path_factory) -> ModelSpec:
    """A model that was trained as judge."""
    folder = tmp_path_factory.mktemp("trained") / "judge"
    return ModelSpec(f"local:{trained_judge(shutil.copytree(cast_model, folder))}")


@pytest.fixture(scope="module")
def plain(cast_model) -> ModelSpec:
    return ModelSpec(f"local:{cast_model}")


def test_a_trained_judge_is_read_out_with_its_calibration(judge):
    assert is_read_out(judge, "judge")
    assert calibration_of(judge).temperatures == (2.0,) * 6


def test_another_local_model_fills_in_forms(plain):
    assert not is_read_out(plain, "judge")
    assert calibration_of(plain) is IDENTITY


@pytest.mark.parametrize("role", ["user", "director"])
def test_a_trained_judge_is_refused_in_other_roles(judge, role):
    with pytest.raises(InputError, match=f"was trained to be a judge, not a {role}"):
        check_trained_roles({role: judge}, EMPATHY)


def test_a_trained_judge_is_refused_for_another_rubric(judge):
    with pytest.raises(InputError, match="was trained for the rubric 'empathy' as it was then, not for"):
        check_trained_roles({"test judge": judge}, TUTORING)


def test_a_cast_with_a_trained_judge_as_user_is_refused_before_it_is_loaded(judge, plain):
    async def cast():
        async with ModelSession() as session:
            await session.casting({"user": judge, "director": plain, "judge": plain}, EMPATHY, "empathy")

    with pytest.raises(InputError, match="was trained to be a judge, not a user"):
        asyncio.run(cast())


def test_an_endpoint_cannot_be_read_out():
    with pytest.raises(InputError, match="cannot be read out: 'm' is not a local model"):
        is_read_out(ModelSpec("m", judging="readout"), "judge")


def test_the_prompts_of_a_cast_say_what_is_read_out(judge, plain):
    prompts = reading_prompts(SHIPPED_PROMPTS, {"user": plain, "director": plain, "judge": judge})
    assert isinstance(prompts, ReadingPrompts)
    assert prompts.roles == {"judge"}


def test_prompts_without_readout_are_unchanged(plain):
    assert reading_prompts(SHIPPED_PROMPTS, dict.fromkeys(("director", "judge"), plain)) is SHIPPED_PROMPTS


def test_each_judge_of_a_panel_answers_in_its_own_way(judge, plain):
    assert isinstance(judge_prompts(SHIPPED_PROMPTS, judge), ReadingPrompts)
    assert judge_prompts(SHIPPED_PROMPTS, plain) is SHIPPED_PROMPTS


def test_judge_and_director_of_a_config_can_be_read_out(cast_model):
    config = load_config(
        None,
        ["roles.agents=llm", f"roles.everyone.model=local:{cast_model}", "roles.everyone.judging=readout"],
    )
    cast = cast_from_config(config)
    assert {role: spec.judging for role, spec in cast.items()} == dict.fromkeys(cast, "readout")
    prompts = reading_prompts(SHIPPED_PROMPTS, cast)
    assert prompts.roles == {"judge", "director"}


def test_readout_from_the_command_line_leaves_a_served_director_alone(plain):
    cast = with_judging({"director": ModelSpec("served"), "judge": PanelSpec((plain, plain))}, "readout")
    assert cast["director"].judging is None
    assert [member.judging for member in cast["judge"].members] == ["readout", "readout"]


@pytest.mark.parametrize(
    ("cast", "judging", "message"),
    [
        (None, "readout", "--judging has no effect on scripted roles"),
        ({"judge": ModelSpec("m")}, "aloud", "--judging is 'aloud'"),
    ],
)
def test_judging_that_cannot_be_meant(cast, judging, message):
    with pytest.raises(InputError, match=message):
        with_judging(cast, judging)


def test_roles_that_are_read_out(plain):
    from dataclasses import replace

    from mapo.sandbox.cast import Job

    read = replace(plain, judging="readout")

    async def cast():
        async with ModelSession(concurrency=1, role_context=4096) as session:
            casting = await session.casting(
                dict.fromkeys(("user", "director", "judge"), read), EMPATHY, "empathy"
            )
            return casting(Job(boat_shed(), id="boat"))

    roles = asyncio.run(cast())
    assert isinstance(roles.judge, ReadJudge)
    assert isinstance(roles.director, ReadDirector)


@pytest.mark.parametrize("role", ["judge", "director"])
def test_a_limit_that_is_too_small_for_a_form_is_refused_at_the_start(plain, role):
    from dataclasses import replace

    short = replace(plain, sampling=Sampling(max_tokens=20))

    async def cast():
        async with ModelSession(concurrency=1, role_context=4096) as session:
            models = {**dict.fromkeys(("user", "director", "judge"), plain), role: short}
            await session.casting(models, EMPATHY, "empathy")

    with pytest.raises(InputError, match=rf"a form of the {role} takes up to \d+ tokens.* may have 20"):
        asyncio.run(cast())


@pytest.mark.parametrize(("role", "option"), [("judge", "2"), ("director", "C")])
def test_options_that_are_no_single_tokens_are_refused_at_the_start(
    cast_model, tmp_path, plain, role, option
):
    from dataclasses import replace

    folder = shutil.copytree(cast_model, tmp_path / "split")
    data = json.loads((folder / "tokenizer.json").read_text())
    data["normalizer"] = {"type": "Replace", "pattern": {"String": option}, "content": "~#~"}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    split = replace(plain, model=f"local:{folder}", judging="readout")

    async def cast():
        async with ModelSession(concurrency=1, role_context=4096) as session:
            models = {**dict.fromkeys(("user", "director", "judge"), plain), role: split}
            await session.casting(models, EMPATHY, "empathy")

    with pytest.raises(InputError, match=rf"the answer '{option}' is \d+ tokens"):
        asyncio.run(cast())


def test_an_intent_user_is_not_checked_as_a_director(plain):
    """Its answers may be shorter than a director's form, and it has one slot per dialogue."""
    roles = ["roles.agents=llm", "roles.user_kind=intent", f"roles.everyone.model={plain.model}"]
    config = load_config(None, [*roles, "roles.user.max_tokens=20"])

    async def cast():
        async with ModelSession(concurrency=1, role_context=4096) as session:
            session.check(every_model(config))
            await session.casting(cast_from_config(config), EMPATHY, "empathy", prompts_from_config(config))
            return session.local.roles

    assert list(asyncio.run(cast()).values()) == [["user", "judge"]]


def test_the_end_of_a_dialogue_with_served_roles_frees_the_cache_of_a_local_check(plain):
    from dataclasses import replace

    from mapo.sandbox.cast import Job

    job, read = Job(boat_shed(), id="boat"), replace(plain, judging="readout")

    async def held_slots():
        async with ModelSession(concurrency=1, role_context=4096) as session:
            served = dict.fromkeys(("user", "director", "judge"), ModelSpec("served"))
            casting = await session.casting(served, EMPATHY, "empathy")
            (check,) = await session.judges(PanelSpec((read,)), EMPATHY, role="check")
            sampler = await session.local.sampler(plain.local, "check")
            await check.create(job).judge([Turn("Hello.", Reply("Hi."))])
            before = len(sampler._holders)
            casting(job).close()
            return before, len(sampler._holders)

    assert asyncio.run(held_slots()) == (1, 0)


def test_expected_steps_need_one_judge_that_is_read_out(judge, plain):
    check_expected_steps({"judge": judge})
    check_expected_steps({"judge": PanelSpec((plain, judge))})
    for cast in (None, {"judge": plain}, {"judge": PanelSpec((plain, plain))}):
        with pytest.raises(InputError, match="no judge is read out"):
            check_expected_steps(cast)


def test_a_trained_judge_needs_known_start_levels(judge):
    with pytest.raises(InputError, match="2 scenarios without start levels, such as a, and a trained judge"):
        check_starts({"judge 1": judge}, {"b", "a"})


def test_start_levels_are_no_matter_for_other_models_and_roles(judge, plain):
    check_starts({"judge": plain, "check": judge}, {"a"})
    check_starts({"judge": judge}, ())


def test_scripted_people_may_have_a_model_as_judge(judge):
    async def cast():
        async with ModelSession(concurrency=2) as session:
            casting = await session.casting({"judge": judge}, EMPATHY, "empathy")
            return casting(Job(boat_shed(), "a"))

    played = asyncio.run(cast())
    assert isinstance(played.judge, ReadJudge) and isinstance(played.user, StoryUser)
    assert (played.names["user"], played.names["director"]) == ("scripted", "scripted")
    assert played.names["judge"] not in ("scripted", "")
    assert played.prompts


def test_a_config_with_scripted_roles_may_name_a_judge(judge):
    config = read_config({"roles": {"judge": {"model": judge.model}}}, "test")
    assert cast_from_config(config) == {"judge": ModelSpec(judge.model)}
    assert cast_from_config(read_config({}, "test")) is None


def test_a_brief_judge_sees_neither_rubric_nor_person(cast_model, tmp_path):
    folder = trained_judge(shutil.copytree(cast_model, tmp_path / "brief"), layout=BRIEF)
    spec = ModelSpec(f"local:{folder}")
    check_trained_roles({"judge": spec}, EMPATHY)
    scenario = boat_shed()
    reader = judge_prompts(SHIPPED_PROMPTS, spec).judge(Unread(), Job(scenario, "a"), EMPATHY, Sampling())
    assert isinstance(reader, ReadJudge) and reader.layout == BRIEF
    turns = [Turn("Hello.", Reply("Hi.")), Turn("It rains.", Reply("Go on."))]
    shown = judge_messages(scenario, EMPATHY, turns, layout=BRIEF)
    assert [m.role for m in shown] == ["system", "user", "assistant", "user"]
    assert shown[0].content == f"Trust: {scenario.threshold}"
    assert shown[1].content == 'person: "Hello."\nreply: "Hi."'
    assert shown == judge_messages(scenario, EMPATHY, turns[:1], layout=BRIEF) + shown[2:]


class Unread:
    """A model that can be read but is not."""

    name = "unread"

    async def read(self, request):
        raise AssertionError(request)


def test_the_shipped_judge_learned_the_rubric_as_it_is():
    judge = ModelSpec("local:pocket-judge")
    check_trained_roles({"judge": judge}, Rubric.load("empathy"))
    assert is_read_out(judge, "judge")


def test_the_shipped_judge_is_refused_where_people_are_models():
    models = {"user": ModelSpec("big"), "judge": ModelSpec("local:pocket-judge")}
    with pytest.raises(InputError, match="replies to scripted people"):
        check_trained_roles(models, Rubric.load("empathy"))
