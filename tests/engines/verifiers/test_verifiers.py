"""The sandbox as a verifiers environment plays and rewards as mapo does. Run by `make test-verifiers`."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("verifiers.v1", reason="verifiers is not installed (make test-verifiers)")

import verifiers.v1 as vf
from aiohttp import web
from verifiers.v1.cli.eval.main import main as vf_eval
from verifiers.v1.cli.eval.runner import run_eval
from verifiers.v1.configs.cli.eval import EvalConfig
from verifiers.v1.serve import EnvClient, EnvServer
from verifiers.v1.utils.paths import CACHE_DIR

from mapo import Job, Rules, advantages, play
from mapo.engines.verifiers import assign_advantages, dialogue_of, turn_advantages
from mapo.errors import InputError
from mapo.measure.reward import rewards_of
from mapo.sandbox.domain import scripted_cast
from mapo.scenarios.scenario import dump_scenario
from mapo.scenarios.sets import load_scenarios
from mapo.store import JsonlWriter
from mapo.testing.fakes import FakeChat
from mapo.testing.server import LoopbackServer
from mapo.testing.world import world
from mapo.types import StopReason
from support.command import mapo

pytestmark = pytest.mark.filterwarnings("ignore")  # the warnings of verifiers' packages are not ours to fix


@pytest.fixture
def server():
    with LoopbackServer(world(), record=True) as running:
        yield running


def settings(url, **env):
    """The [env] block of a run; keys of the taskset go there."""
    taskset = {key: env.pop(key) for key in ("scenarios", "epochs", "seed", "start_levels") if key in env}
    return {"taskset": {"id": "mapo-empa", **taskset}, "max_turns": 6, **env}


def evaluate(url, out, *, n=1, r=1, model="policy", **env):
    """Play with verifiers' own evaluation and return the episodes."""
    config = EvalConfig(
        env=settings(url, **env),
        model=model,
        client={"base_url": url, "api_key_var": "NO_SUCH_KEY"},
        select={"limit": n},
        num_rollouts=r,
        rich=None,
        push=False,
        output_dir=out,
    )
    return asyncio.run(run_eval(config))


def traces_of(episodes):
    return [trace for episode in episodes for trace in episode.traces]


def left_behind(traces):
    """The working directories of rollouts that still exist."""
    return [
        trace.id for trace in traces for _ in (CACHE_DIR / "runtimes" / "subprocess").glob(f"*{trace.id}*")
    ]


def model_roles(url, **more):
    return {"agents": "llm", "retries": 0, **more} | {
        role: {"model": role, "base_url": url, "key_env": ""} for role in ("user", "director", "judge")
    }


# ---- playing


def test_the_command_finds_the_environment_and_mapo_score_agrees(server, tmp_path):
    command = [Path(sys.executable).parent / "vf-eval", "mapo-empa", "-m", "policy", "-n", "2", "-r", "2"]
    options = ["--client.base-url", server.base_url, "--client.api-key-var", "NO_SUCH_KEY", "-o", tmp_path]
    own = ["--env.taskset.scenarios", "builtin:test", "--env.records", tmp_path / "records"]
    done = subprocess.run(
        [*command, *options, "--run.name", "one", "--no-push", "--no-rich", *own],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "one" / "traces.jsonl").read_text("utf-8").splitlines()
    traces = traces_of(vf.WireEpisode.model_validate_json(line) for line in lines)
    assert len(traces) == 4 and all(trace.ok for trace in traces)
    scored = mapo("score", tmp_path / "records", "--json")
    [total] = json.loads(scored.stdout)
    assert total["n"] == 4 and total["differences"] == [] and "builtin:test" in total["context"]["scenarios"]
    for number, trace in enumerate(traces):
        file = tmp_path / f"single-{number}" / "dialogues.jsonl"
        with JsonlWriter(file) as writer:
            writer.write_dialogue(dialogue_of(trace))
        [single] = json.loads(mapo("score", file.parent, "--json").stdout)
        assert trace.metrics["epm_q"] == pytest.approx(single["epm_q"])
        assert trace.metrics["success"] == single["passes"]


def test_the_same_replies_make_the_same_dialogue_as_in_mapo(server, tmp_path):
    [trace] = traces_of(evaluate(server.base_url, tmp_path, max_turns=12))
    theirs = dialogue_of(trace)
    env = vf.load_environment(vf.resolve_env_config(settings("", max_turns=12)))
    [task, *_] = env.taskset
    job = Job(env.taskset.scenario(task.data.scenario), "one", seed=task.data.seed)
    replies = FakeChat([turn.reply.text for turn in theirs.turns])
    ours = asyncio.run(
        play(job, replies, scripted_cast("empathy")(job), Rules(env.taskset.rubric, max_turns=12))
    )
    assert theirs.turns == ours.turns and theirs.ending == ours.ending and len(ours.turns) > 3
    assert trace.info["turn_rewards"] == ours.rewards
    assert trace.reward == pytest.approx(sum(ours.rewards)) and trace.stop_condition == ours.ending.reason


@pytest.mark.parametrize("reward", ["idr", "adr", "outcome"])
def test_rewards_are_those_of_the_recorded_levels(server, tmp_path, reward):
    from mapo.scoring.result import recompute

    [trace] = traces_of(evaluate(server.base_url, tmp_path, reward=reward))
    dialogue = dialogue_of(trace)
    result = recompute(dialogue, Path(), None, None, "")
    expected = rewards_of(result.path, reward, ending=result.ending)
    assert dialogue.rewards == pytest.approx(expected) and trace.reward == pytest.approx(sum(expected))
    assert result.differences == []


def test_the_policy_is_asked_with_the_conversation_and_the_sampling_of_verifiers(server, tmp_path):
    config = {"max_turns": 2, "min_turns": 1, "agent": {"sampling": {"temperature": 0.25, "max_tokens": 77}}}
    [trace] = traces_of(evaluate(server.base_url, tmp_path, **config))
    first, second = dialogue_of(trace).turns
    body = server.bodies[-1]
    assert [m["role"] for m in body["messages"]] == ["system", "user", "assistant", "user"]
    assert [m["content"] for m in body["messages"][1:]] == [first.user, first.reply.text, second.user]
    assert body["messages"][0]["content"] == dialogue_of(trace).system
    assert body["temperature"] == 0.25 and 77 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    assert trace.num_branches == 1


def test_rows_have_seeds_and_siblings_share_them(server, tmp_path):
    episodes = evaluate(
        server.base_url, tmp_path, n=None, r=2, epochs=2, seed=3, scenarios="builtin:validation"
    )
    dialogues = [dialogue_of(trace) for trace in traces_of(episodes)]
    groups = {}
    for dialogue in dialogues:
        groups.setdefault(dialogue.group, []).append(dialogue)
    assert all(len(group) == 2 for group in groups.values())
    assert len(groups) == 2 * len({dialogue.scenario for dialogue in dialogues})
    for first, second in groups.values():
        assert first.seed == second.seed and first.start == second.start and first.id != second.id
    assert {dialogue.seed for dialogue in dialogues} == {3 * 1_000_003 + 1, 3 * 1_000_003 + 2}


def test_rollouts_run_side_by_side_and_leave_nothing_behind(tmp_path):
    with LoopbackServer(world(), latency=0.1) as server:
        traces = traces_of(evaluate(server.base_url, tmp_path, n=4, r=4))
    assert len(traces) == 16 and all(trace.ok for trace in traces)
    assert server.peak >= 8 and left_behind(traces) == []


def test_the_command_line_sets_roles(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["vf-eval"])
    roles = ["--env.roles.agents", "llm", "--env.roles.everyone.model", "big", "--env.roles.judge.model", "j"]
    vf_eval(["mapo-empa", "-o", str(tmp_path), "--run.name", "dry", "--dry-run", "--no-rich", *roles])
    [file] = (tmp_path / "dry").rglob("eval.json")
    saved = json.loads(file.read_text("utf-8"))["env"]["roles"]
    assert saved["everyone"]["model"] == "big" and saved["judge"]["model"] == "j"


def test_models_play_the_roles(server, tmp_path):
    [trace] = traces_of(evaluate(server.base_url, tmp_path, roles=model_roles(server.base_url)))
    assert trace.ok and dialogue_of(trace).cast == {"user": "user", "director": "director", "judge": "judge"}
    assert {body["model"] for body in server.bodies} == {"policy", "user", "director", "judge"}


def test_the_judge_is_asked_once_for_the_start_of_siblings():
    async def siblings(server):
        async with playing(server.base_url, roles=model_roles(server.base_url)) as (env, task, ctx):
            without_start_levels(env, task)
            return await asyncio.gather(*(env.run_episode(task, ctx) for _ in range(4)))

    with LoopbackServer(world(), record=True, latency=0.02) as server:
        episodes = asyncio.run(siblings(server))
    dialogues = [dialogue_of(trace) for trace in traces_of(episodes)]
    judged = [body for body in server.bodies if body["model"] == "judge"]
    assert len(dialogues) == 4 and all(episode.ok for episode in episodes)
    assert len(judged) == 1 + sum(len(dialogue.turns) for dialogue in dialogues)
    assert len({dialogue.start for dialogue in dialogues}) == 1


def without_start_levels(env, task):
    name = task.data.scenario
    env.taskset.scenarios[name] = replace(env.taskset.scenario(name), start_levels={})


# ---- faults and limits


def failing(role, when):
    """A fault for calls of a role whose number is one of `when`."""
    numbers = iter(range(1, 1000))
    return lambda _, body: "400" if body["model"] == role and next(numbers) in when else None


def judged_by_model(server):
    return {"retries": 0, "judge": {"model": "judge", "base_url": server.base_url, "key_env": ""}}


def test_a_failed_judgement_leaves_its_turn_unscored(tmp_path):
    with LoopbackServer(world(), fault=failing("judge", {2})) as server:
        [trace] = traces_of(evaluate(server.base_url, tmp_path, roles=judged_by_model(server)))
    rewards = trace.info["turn_rewards"]
    assert trace.ok and rewards[1] is None and None not in [rewards[0], *rewards[2:]]
    assert trace.reward == pytest.approx(sum(r for r in rewards if r is not None))
    assert trace.metrics["unscored"] == 1
    assert turn_advantages([trace])[0][1] is None


def test_a_judge_that_always_fails_is_an_error_and_no_reward(tmp_path):
    with LoopbackServer(world(), fault=failing("judge", range(1000))) as server:
        [episode] = evaluate(server.base_url, tmp_path, roles=judged_by_model(server))
    [trace] = episode.traces
    assert not episode.ok and not trace.ok and trace.last_error.type == "EnvError"
    assert "no turn was judged" in trace.last_error.message and trace.rewards == {}
    assert turn_advantages([trace]) == [None]


def test_a_judge_that_fails_at_the_start_is_an_error_and_asked_again():
    async def twice(server):
        async with playing(server.base_url, roles=model_roles(server.base_url)) as (env, task, ctx):
            without_start_levels(env, task)
            return [await env.run_episode(task, ctx) for _ in range(2)]

    with LoopbackServer(world(), fault=failing("judge", {1})) as server:
        broken, played = asyncio.run(twice(server))
    [trace] = broken.traces
    assert not broken.ok and (trace.last_error.type, trace.stop_condition) == ("EnvError", "env_error")
    assert "judge" in trace.last_error.message and played.ok


def test_a_broken_dialogue_is_an_error_and_its_siblings_go_on(tmp_path):
    with LoopbackServer(world(), fault=failing("user", {3})) as server:
        episodes = evaluate(server.base_url, tmp_path, r=3, roles=model_roles(server.base_url))
    traces = traces_of(episodes)
    [broken] = [trace for trace in traces if not trace.ok]
    assert broken.last_error.type == "EnvError" and "user" in broken.last_error.message
    assert dialogue_of(broken).ending.reason is StopReason.BROKEN and broken.rewards == {}
    assert sorted(episode.ok for episode in episodes) == [False, True, True]
    assert [a is None for a in turn_advantages(traces)] == [not trace.ok for trace in traces]


def test_a_policy_that_fails_is_the_error_of_its_provider(tmp_path):
    with LoopbackServer(world(), fault=failing("policy", range(3, 1000))) as server:
        [trace] = traces_of(evaluate(server.base_url, tmp_path))
    assert not trace.ok and trace.last_error.type == "ProviderError" and trace.rewards == {}
    assert dialogue_of(trace) is None and turn_advantages([trace]) == [None]


def test_a_limit_of_verifiers_ends_the_dialogue_and_its_turns_count(server, tmp_path):
    [trace] = traces_of(evaluate(server.base_url, tmp_path, agent={"max_turns": 3}))
    dialogue = dialogue_of(trace)
    assert trace.ok and dialogue.ending.reason is StopReason.LENGTH and trace.stop_condition == "max_turns"
    assert len(dialogue.turns) == 3 and trace.reward == pytest.approx(sum(dialogue.rewards))


def test_a_full_context_ends_the_dialogue(tmp_path):
    async def answer(request):
        body = await request.json()
        if len(body["messages"]) > 5:
            text = "This model's maximum context length is 4096 tokens. Please reduce the messages."
            return web.json_response({"error": {"message": text, "code": 400}}, status=400)
        message = {"role": "assistant", "content": "What happened then?"}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        return web.json_response(
            {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        )

    async def play_there():
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        try:
            async with playing(f"http://127.0.0.1:{port}/v1") as (env, task, ctx):
                return await env.run_episode(task, ctx)
        finally:
            await runner.cleanup()

    [trace] = asyncio.run(play_there()).traces
    dialogue = dialogue_of(trace)
    assert trace.ok and dialogue.ending.reason is StopReason.LENGTH and len(dialogue.turns) == 2
    assert [turn.reply.finish for turn in dialogue.turns] == ["length", "length"]


@asynccontextmanager
async def playing(url, **env):
    """An environment that is being served, its first row and the policy."""
    from verifiers.v1.clients import ModelContext

    made = vf.load_environment(vf.resolve_env_config(settings(url, **env)))
    client = vf.EvalClientConfig(base_url=url, api_key_var="NO_SUCH_KEY")
    async with made.serving():
        [task, *_] = made.taskset
        yield made, task, ModelContext(model="policy", client=client, sampling=vf.SamplingConfig())


@pytest.mark.parametrize("waits", ["policy", "judge"])
def test_a_dialogue_that_is_given_up_leaves_nothing_behind(tmp_path, waits):
    """It is cancelled while the policy, or the judge of its second turn, is asked."""
    traces = []

    async def give_up(server):
        async with playing(server.base_url, roles=judged_by_model(server)) as (env, task, ctx):
            before = asyncio.all_tasks()
            rollout = asyncio.create_task(env.run_episode(task, ctx, on_trace=traces.append))
            async with asyncio.timeout(60):
                while not server.faults["hang"]:
                    await asyncio.sleep(0.01)
            assert left_behind(traces)
            rollout.cancel()
            with pytest.raises(asyncio.CancelledError):
                await rollout
            names = [t.get_name() for t in asyncio.all_tasks() - before]
            assert not [name for name in names if name.startswith(task.data.scenario)]
        async with asyncio.timeout(10):
            while server.in_flight:
                await asyncio.sleep(0.01)
        return len(asyncio.all_tasks())

    numbers = {"policy": 0, "judge": 0}

    def fault(_, body):
        numbers[body["model"]] += 1
        return "hang" if body["model"] == waits and numbers[waits] == 2 else None

    with LoopbackServer(world(), fault=fault) as server:
        assert asyncio.run(give_up(server)) == 1
    assert len(traces) == 1 and left_behind(traces) == [] and dialogue_of(traces[0]) is None


def test_an_env_server_plays_rows_that_come_over_the_wire(server):
    """The way prime-rl takes: rows and traces go through an environment server."""

    async def serve():
        config = vf.resolve_env_config(settings(server.base_url))
        running = EnvServer(config, address="tcp://127.0.0.1:0")
        task = asyncio.create_task(running.run())
        client = EnvClient(running.address)
        try:
            async with asyncio.timeout(120):
                [row, *_] = vf.load_taskset(config.taskset)
                policy = vf.EvalClientConfig(base_url=server.base_url, api_key_var="NO_SUCH_KEY")
                return await client.run(
                    task_data=row.data.model_dump(mode="json"),
                    client=policy,
                    model="policy",
                    sampling=vf.SamplingConfig(),
                )
        finally:
            await client.close()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    episode = asyncio.run(serve())
    [trace] = episode.traces
    assert episode.ok and dialogue_of(trace).rewards == trace.info["turn_rewards"]
    assert trace.reward == pytest.approx(sum(dialogue_of(trace).rewards))


# ---- advantages


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """Two groups of three rollouts, one of them broken, read from the file of a run."""
    numbers = iter(range(10**6))
    levels = lambda _: next(numbers) % 3  # noqa: E731
    out = tmp_path_factory.mktemp("group")
    with LoopbackServer(world(progress=levels), fault=failing("user", {2})) as server:
        evaluate(server.base_url, out, n=2, r=3, roles=model_roles(server.base_url))
    [file] = out.rglob("traces.jsonl")
    lines = file.read_text("utf-8").splitlines()
    return traces_of(vf.WireEpisode.model_validate_json(line) for line in lines)


@pytest.mark.parametrize("method", ["mapo", "grpo", "mt_grpo", "gigpo", "gdpo"])
def test_turn_advantages_are_those_of_mapo(group, method):
    found = turn_advantages(group, method=method, gamma=0.9)
    assert sum(row is None for row in found) == 1
    assert [row is None for row in found] == [not trace.ok for trace in group]
    dialogues = [dialogue_of(trace) for trace in group if trace.ok]
    if method in ("mapo", "grpo"):
        expected = advantages(
            [d.rewards for d in dialogues],
            [d.group for d in dialogues],
            method=method,
            gamma=0.9,
            endings="continued",
        ).mixed
        for row, values in zip([row for row in found if row is not None], expected, strict=True):
            assert [v for v in row if v is not None] == pytest.approx(
                [v for v, mine in zip(values, row, strict=True) if mine is not None]
            )
    numbers = np.array([v for row in found for v in row or () if v is not None])
    assert np.isfinite(numbers).all() and numbers.std() > 0


def test_every_sampled_token_gets_the_advantage_of_its_turn(group):
    traces = [trace.model_copy(deep=True) for trace in group]
    for trace in traces:
        for node in trace.nodes:  # an evaluation has no token ids; a training has
            node.token_ids, node.mask = [1, 2, 3, 4], [False, False, node.sampled, node.sampled]
    found = assign_advantages(traces, method="mapo")
    for trace, row in zip(traces, found, strict=True):
        [branch] = trace.branches
        if row is None:
            assert branch.advantages is None
            continue
        expected = [value for value in row for _ in range(2)]
        sampled = [a for a, mine in zip(branch.advantages, branch.sampled_mask, strict=True) if mine]
        assert sampled == [0.0 if value is None else value for value in expected]
        assert math.isclose(sum(branch.advantages), sum(v for v in expected if v is not None), abs_tol=1e-9)


def test_rollouts_with_more_replies_than_turns_are_refused(group):
    trace = next(trace for trace in group if trace.ok).model_copy(deep=True)
    trace.nodes.append(trace.nodes[-1].model_copy(update={"sampled": True}))
    with pytest.raises(InputError, match="replies of the model but"):
        assign_advantages([trace])


def test_unknown_options_of_the_estimator_are_refused(group):
    with pytest.raises(InputError, match="gama"):
        turn_advantages(group, gama=1)


# ---- settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": "rank"}, "not available in verifiers"),
        ({"reward": "joy"}, "joy"),
        ({"roles": {"max_unscored": 0.1}}, "roles.max_unscored: this setting is not available"),
        (
            {"roles": {"agents": "llm", "everyone": {"model": "m"}, "prompts": "empa"}},
            "not available in verifiers",
        ),
        ({"max_turns": 0}, "max_turns is 0"),
        ({"scenarios": "nowhere"}, "nowhere"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_played(changes, message):
    with pytest.raises(InputError, match=message):
        vf.load_environment(vf.resolve_env_config(settings("", **changes)))


def test_scenarios_that_scripted_roles_cannot_play_are_refused_before_anything_is_played(tmp_path):
    plain = replace(load_scenarios("builtin:test")[0], guarded=(), start_levels={})
    (tmp_path / "plain.toml").write_text(dump_scenario(plain), encoding="utf-8")
    with pytest.raises(InputError, match="scripted roles cannot play 1 of 1 scenarios.*roles.agents"):
        vf.load_environment(vf.resolve_env_config(settings("", scenarios=str(tmp_path))))
    roles = model_roles("http://127.0.0.1:9/v1")
    assert vf.load_environment(vf.resolve_env_config(settings("", scenarios=str(tmp_path), roles=roles)))


def test_a_row_of_other_scenarios_is_an_error_of_its_rollout(server):
    async def wrong():
        async with playing(server.base_url) as (env, task, ctx):
            return await env.run_episode(task.with_data(scenario="nobody"), ctx)

    episode = asyncio.run(wrong())
    assert not episode.ok and "no scenario 'nobody'" in episode.last_error.message
