"""Local models of roles beside verl: what they need, and their actors in a real Ray."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from mapo.config import dump_config, load_config
from mapo.engines.verl.roles import (
    RoleHost,
    check_gpus,
    check_shares,
    open_role,
    own_gpus,
    start_hosts,
)
from mapo.engines.verl.settings import check_settings, overrides
from mapo.errors import ContextError, InputError, TrainError
from mapo.measure.rubric import Rubric
from mapo.models.chat import ReadRequest, Request
from mapo.players.local_models import local_role_models
from mapo.sampling.local import local_sampler
from mapo.sandbox.readout import turn_places
from mapo.store import RunDir, write_atomic
from mapo.types import Message
from support.local_cast import local_cast_folder

LOCAL = ["verl.rollout=mapo_cpu", "verl.gpus=2", "run.trackers=[]", "roles.agents=llm"]
LOCAL += ["roles.everyone.judging=readout", "roles.context=2048", "rollout.at_once=4"]
PLACES = turn_places(Rubric.load("empathy"))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two folders: one model plays user and director, the other one judges."""
    folder = tmp_path_factory.mktemp("models")
    return [local_cast_folder(folder / name, seed) for seed, name in enumerate(("people", "judge"))]


def config_of(models, *settings):
    people, judge = models
    roles = [f"roles.everyone.model=local:{people}", f"roles.judge.model=local:{judge}"]
    return load_config(None, [*LOCAL, *roles, *settings])


def written(config, root):
    """Return a run directory with what the actors read."""
    write_atomic(RunDir(root).verl_config, dump_config(config))
    return root


# ---- settings


def test_each_model_is_there_once(models):
    by_model = local_role_models(config_of(models))
    assert [list(roles) for roles in by_model.values()] == [["user", "director"], ["judge"]]


@pytest.mark.parametrize(("share", "gpus"), [(1, 2), (0.6, 2), (0.5, 1), (0.2, 1)])
def test_models_with_a_share_of_a_gpu_are_packed(share, gpus, models):
    assert own_gpus(config_of(models, f"verl.roles_gpus={share}")) == gpus


def test_shared_or_no_local_models_need_no_gpu_of_their_own(models):
    assert own_gpus(config_of(models, "verl.roles_shared=true")) == 0
    assert own_gpus(load_config(None, ["roles.judge.model="])) == 0
    assert own_gpus(load_config(None, [])) == 1  # the shipped judge


def test_a_cluster_of_cpus_has_logical_gpus_for_the_roles(models, tmp_path):
    tables = {split: tmp_path / split for split in ("train", "validation", "test")}
    for settings, gpus in ((["verl.roles_gpus=0.5"], 3), (["verl.roles_shared=true"], 2)):
        lines = overrides(config_of(models, *settings), tmp_path, tables, "m", 512, {})
        assert f"+ray_kwargs.ray_init.num_gpus={gpus}" in lines


def test_shares_that_do_not_fit_beside_the_policy_are_refused(models):
    shared = "verl.roles_shared=true"
    check_settings(config_of(models, shared, "verl.roles_gpus=0.5"))
    with pytest.raises(InputError, match=r"beside the policy 0\.67 of a GPU is left"):
        check_settings(config_of(models, shared, "verl.roles_gpus=0.7"))
    with pytest.raises(InputError, match=r"beside the policy 0\.40 of a GPU is left"):
        check_shares(config_of(models, shared, "verl.roles_gpus=0.5", "verl.rollout=vllm"))
    with pytest.raises(InputError, match=r"beside the policy 0\.33 of a GPU is left"):  # both on one GPU
        check_shares(config_of(models, shared, "verl.roles_gpus=0.5", "verl.gpus=1"))


# ---- the model


def messages(text="hello"):
    return (Message("system", "You are a person."), Message("user", text))


def test_a_host_answers_as_the_local_engine_does(models, tmp_path):
    config = config_of(models)
    people, judge = local_role_models(config)
    request = Request(messages(), max_tokens=8, seed=3, session="1/d/user")
    read = ReadRequest(messages(), PLACES, session="1/d/judge")

    async def hosted():
        root, answers = written(config, tmp_path), []
        for key, call in ((people, ("reply", "user", request)), (judge, ("read", "judge", read))):
            host = RoleHost(str(root), key)
            lines = await host.open()
            assert lines[0].startswith(Path(key).name)
            answers.append(await getattr(host, call[0])(*call[1:]))
            await host.end_session(call[1], "1/d")
            await host.stack.aclose()
        return answers

    async def local():
        async with local_sampler(people, slots=4, context=2048, device="cpu") as user:
            reply = await user.role("user").reply(request)
        async with local_sampler(judge, slots=4, context=2048, device="cpu") as reader:
            return reply, await reader.role("judge").read(read)

    (reply, logprobs), (expected, expected_logprobs) = asyncio.run(hosted()), asyncio.run(local())
    assert reply.text == expected.text
    for place, other in zip(logprobs, expected_logprobs, strict=True):
        assert place == pytest.approx(other, abs=1e-5)


def test_a_host_that_is_not_open_says_so(models, tmp_path):
    config = config_of(models)
    host = RoleHost(str(written(config, tmp_path)), next(iter(local_role_models(config))))
    with pytest.raises(TrainError, match="before it is open"):
        asyncio.run(host.reply("user", Request(messages())))


# ---- the actors


@pytest.fixture(scope="module")
def ray_():
    ray = pytest.importorskip("ray", reason="needs verl (make test-verl)")
    ray.init(num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


async def play(user, judge, number):
    """Three turns of a dialogue."""
    session = f"1/d{number}"
    for turn in range(3):
        request = Request(messages(f"{number} {turn}"), max_tokens=6, session=f"{session}/user")
        said = await user.reply(request)
        levels = await judge.read(ReadRequest(messages(said.text), PLACES, f"{session}/judge"))
        assert len(levels) == len(PLACES)
    for role in (user, judge):
        role.end_session(session)


@pytest.mark.verl
@pytest.mark.filterwarnings("default")
def test_actors_on_the_policys_gpus_answer_many_dialogues_until_they_die(ray_, models, tmp_path):
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([{"CPU": 1, "GPU": 1}] * 2)  # as verl's: every GPU there is
    ray_.get(group.ready())
    config = config_of(models, "verl.roles_shared=true", "verl.roles_gpus=0.3")
    hosts = start_hosts(config, written(config, tmp_path), [group])
    groups = [
        ray_.get(host.__ray_call__.remote(lambda _: ray_.get_runtime_context().get_placement_group_id()))
        for host in hosts
    ]
    assert groups == [group.id.hex()] * 2
    specs = {role: spec for own in local_role_models(config).values() for role, spec in own.items()}

    async def use():
        user, judge = [await open_role(specs[role], role) for role in ("user", "judge")]
        assert (user.name, judge.name, user.supports_tools) == ("people", "judge", False)
        await asyncio.gather(*(play(user, judge, number) for number in range(6)))
        with pytest.raises(ContextError, match="do not fit into a context of 2048") as caught:
            await judge.read(ReadRequest(messages("far " * 3000), PLACES))
        assert "ray" not in str(caught.value) and caught.value.fix
        return judge

    judge = asyncio.run(use())
    sessions = ray_.get(hosts[1].__ray_call__.remote(lambda host: len(host._chats["judge"]._sessions)))
    assert sessions == 0  # ended with their dialogues

    async def after():
        with pytest.raises(TrainError, match="the process of the judge's model is gone"):
            await judge.read(ReadRequest(messages(), PLACES))
        judge.end_session("1/d0")  # no error: it is called while another one is handled
        with pytest.raises(TrainError, match="gone"):
            await open_role(specs["judge"], "judge")

    ray_.kill(hosts[1])
    asyncio.run(after())
    remove_placement_group(group)


def actor_functions():
    """Return functions to call in an actor. They are nested, so that Ray sends them: an actor cannot import
    this module."""

    def close_gate(host):
        """Compute no reply and no answer until the gate is opened."""
        import threading

        def behind_gate(compute):
            def compute_later(*args):
                assert host.gate.wait(60)
                return compute(*args)

            return compute_later

        host.gate, decoder = threading.Event(), host.sampler.decoder
        decoder.round, decoder.begin_reads = behind_gate(decoder.round), behind_gate(decoder.begin_reads)

    def open_gate(host):
        host.gate.set()

    def load_of(host):
        """Return how many calls are not over, and how many slots are taken."""
        calls = [*host.sampler._active.values(), *host.sampler._waiting]
        return sum(not call.done.done() for call in calls), len(host.sampler._holders)

    return close_gate, open_gate, load_of


@pytest.mark.verl
@pytest.mark.filterwarnings("default")
def test_cancelled_calls_end_in_their_actor_and_free_their_slots(ray_, models, tmp_path):
    """One call is being computed, 29 wait for a slot. All but the last of them are cancelled."""
    config = config_of(models, "verl.roles_gpus=0.5")
    hosts = start_hosts(config, written(config, tmp_path), [])
    specs = {role: spec for own in local_role_models(config).values() for role, spec in own.items()}
    close_gate, open_gate, load_of = actor_functions()

    async def until(host, expected):
        for _ in range(600):
            if (load := await host.__ray_call__.remote(load_of)) == expected:
                return
            await asyncio.sleep(0.05)
        pytest.fail(f"calls and slots: {load}, not {expected}")

    async def cancel(tasks):
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended)

    async def cancel_calls(host, role, call):
        await host.__ray_call__.remote(close_gate)
        first = asyncio.ensure_future(call(0))
        await until(host, (1, 1))
        *others, last = [asyncio.ensure_future(call(k)) for k in range(1, 30)]
        await until(host, (30, 1))
        await cancel([first, *others])
        await until(host, (1, 1))  # the slot is being used
        await host.__ray_call__.remote(open_gate)
        await last
        await until(host, (0, 1))  # that of the last call's session
        arriving = [asyncio.ensure_future(call(k)) for k in range(30)]
        await asyncio.sleep(0)
        await cancel(arriving)  # some are answered before
        await asyncio.gather(*(call(k) for k in range(30)))  # the sessions go on
        for k in range(30):
            role.end_session(str(k))
        await until(host, (0, 0))

    async def use():
        user, judge = [await open_role(specs[role], role) for role in ("user", "judge")]
        request, places = Request(messages(), max_tokens=6), ReadRequest(messages(), PLACES)
        await cancel_calls(hosts[0], user, lambda k: user.reply(replace(request, session=f"{k}/user")))
        await cancel_calls(hosts[1], judge, lambda k: judge.read(replace(places, session=f"{k}/judge")))

    asyncio.run(use())
    for host in hosts:
        ray_.kill(host)


@pytest.mark.verl
@pytest.mark.filterwarnings("default")
def test_a_model_that_cannot_be_loaded_is_one_clear_error(ray_, tmp_path):
    broken = local_cast_folder(tmp_path / "broken", 2)
    (broken / "model.safetensors").write_bytes(b"\xff" * 64)
    config = load_config(None, ["verl.rollout=mapo_cpu", f"roles.judge.model=local:{broken}"])
    with pytest.raises(InputError, match="the weights cannot be read"):
        start_hosts(config, written(config, tmp_path), [])


@pytest.mark.verl
@pytest.mark.filterwarnings("default")
def test_too_few_gpus_are_told_before_anything_is_loaded(ray_, models):
    with pytest.raises(InputError, match="has 2 GPUs, but the policy needs 2 and its local roles 1"):
        check_gpus(config_of(models, "verl.roles_gpus=0.5"))
    check_gpus(config_of(models, "verl.roles_gpus=0.5", "verl.gpus=1"))
    check_gpus(config_of(models, "verl.roles_shared=true"))
