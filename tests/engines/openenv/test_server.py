"""The sandbox behind OpenEnv's protocol, over real sockets. Run by `make test-openenv`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from socket import SHUT_RDWR

import pytest

pytest.importorskip("openenv", reason="openenv is not installed (make test-openenv)")

from pydantic import ValidationError
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from mapo import Job, Turn, play
from mapo.engines.openenv import DialogueClient, PolicyReply
from mapo.engines.openenv.environment import SPLIT, DialogueEnvironment
from mapo.engines.openenv.messages import MAX_REPLY
from mapo.engines.openenv.server import MAX_MESSAGE
from mapo.errors import AnswerError, EndpointError
from mapo.sandbox.cast import world_seed
from mapo.sandbox.domain import scripted_policy
from mapo.scoring.score import score
from mapo.store import RunDir, read_dialogues
from mapo.testing.server import LoopbackServer
from mapo.testing.world import world
from support.openenv_server import CASTING, RULES, SCENARIOS, sandbox, served

SCENARIO = SCENARIOS[0]
QUESTION = PolicyReply(reply="What happened then?")


def client(address, **options):
    return DialogueClient(address, **options).sync()


def talk(env, replies, **reset):
    """Play a dialogue with given replies and return all results."""
    results = [env.reset(**reset)]
    for reply in replies:
        if results[-1].done:
            break
        results.append(env.step(PolicyReply(reply=reply)))
    return results


def played(reward="idr", seed=3, name="one"):
    """The dialogue of a scripted policy, as play() plays it."""
    job = Job(SCENARIO, name, f"{SCENARIO.id}_{seed}", seed=world_seed(7, seed))
    policy = scripted_policy("empathy", "honest")(job)
    return asyncio.run(play(job, policy, CASTING(job), replace(RULES, reward=reward)))


def ask(address, message, **options):
    """Send one message on a new connection and return the answer."""
    with connect(f"ws{address[4:]}/ws", **options) as socket:
        with suppress(ConnectionClosed):  # a server without a free session answers at once
            socket.send(message if isinstance(message, str) else json.dumps(message))
        return json.loads(socket.recv(timeout=30))


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return value


def has_place(address):
    """Whether the server takes one more session."""
    return ask(address, {"type": "state"})["type"] == "state"


@pytest.mark.parametrize("reward", ["idr", "adr", "outcome"])
def test_rewards_and_record_are_those_of_play(reward):
    known, done = played(reward), []
    people = sandbox(rules=replace(RULES, reward=reward), seed=7, model=known.model, on_done=done.append)
    with served(people) as address, client(address) as env:
        replies = [turn.reply.text for turn in known.turns]
        results = talk(env, replies, scenario=SCENARIO.id, seed=3, episode_id="one")
        state = env.state()
    seen = [result.observation for result in results]
    assert len(known.turns) > 3 and [replace(d, seconds=known.seconds) for d in done] == [known]
    assert [result.reward for result in results[1:]] == known.rewards == seen[-1].rewards
    assert [o.levels["C"]["progress"] for o in seen[1:]] == [
        t.levels["C"].progress.level for t in known.turns
    ]
    assert [o.user for o in seen] == [*(turn.user for turn in known.turns), None]
    assert [o.done for o in seen] == [False] * len(known.turns) + [True]
    assert seen[-1].ending == known.ending.reason.value and seen[-1].error is None
    assert seen[0].messages[0]["content"] == known.system and seen[0].reward is None
    assert [m["content"] for m in seen[-1].messages[1:]] == [
        text for turn in known.turns for text in (turn.user, turn.reply.text)
    ]
    assert (state.episode_id, state.step_count, state.done) == ("one", len(known.turns), True)
    assert state.position == list(known.turns[-1].state.position)


def test_siblings_meet_the_same_person_side_by_side():
    """Eight sessions at once: two seeds of four siblings each."""
    done = []

    def one(k):
        with client(address) as env:
            return talk(env, [QUESTION.reply] * 20, scenario=SCENARIO.id, seed=k % 2)

    with served(sandbox(on_done=done.append)) as address, ThreadPoolExecutor(8) as pool:
        results = list(pool.map(one, range(8)))
    assert len({str(results[k][-1].observation.messages) for k in (0, 2, 4, 6)}) == 1
    assert len({d.id for d in done}) == 8
    assert {d.group for d in done} == {f"{SCENARIO.id}_0", f"{SCENARIO.id}_1"}
    assert all(result[-1].done for result in results)


def test_without_a_scenario_the_seed_chooses_one():
    with served(sandbox()) as address, client(address) as env:
        found = []
        for seed in (0, 1, 5):
            env.reset(seed=seed)
            found.append(env.state().scenario)
    assert found == [SCENARIOS[0].id, SCENARIOS[1].id, SCENARIOS[1].id]


class Judge:
    """A judge that fails in its second turn."""

    def __init__(self, judge, error):
        self.judge_, self.error = judge, error

    async def start(self):
        return await self.judge_.start()

    async def judge(self, turns: list[Turn]):
        levels = await self.judge_.judge(turns)
        if len(turns) == 2:
            raise self.error
        return levels


def judged(error):
    def casting(job):
        cast = CASTING(job)
        return replace(cast, judge=Judge(cast.judge, error))

    return casting


def test_an_unscored_turn_has_no_reward_and_the_dialogue_goes_on():
    with served(sandbox(judged(AnswerError("no form")))) as address, client(address) as env:
        results = talk(env, [QUESTION.reply] * 3)
    assert [result.reward is None for result in results] == [True, False, True, False]
    assert results[2].observation.unscored == "no form" and results[2].observation.levels is None
    assert results[2].observation.rewards[1] is None and not results[2].done


def test_a_judge_that_fails_too_often_is_logged(caplog):
    class Failing:
        async def judge(self, turns):
            raise EndpointError("the judge is gone")

    people = sandbox(lambda job: replace(CASTING(job), judge=Failing()))
    with served(people) as address, client(address) as env:
        for _ in range(3):
            talk(env, [QUESTION.reply] * 14)
    assert [record.message for record in caplog.records] == [
        "the judge failed on 40 of 40 turns, last error: the judge is gone. Check the judge with "
        "`mapo doctor`. Finished dialogues are kept"
    ]


def test_a_broken_dialogue_says_so():
    class Gone:
        async def direct(self, turns, trajectory):
            raise EndpointError("the director is gone")

    done = []
    people = sandbox(lambda job: replace(CASTING(job), director=Gone()), on_done=done.append)
    with served(people) as address, client(address) as env:
        last = talk(env, [QUESTION.reply])[-1].observation
    assert last.done and (last.ending, last.error) == ("broken", "the director is gone")
    assert [d.error for d in done] == ["the director is gone"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"scenario": "nobody"}, "there is no scenario 'nobody' here. Use one of the 4 that are served"),
        ({"scenario": ["a"]}, "the scenario is not a string"),
        ({"seed": -1}, "Use an integer from 0 to"),
        ({"seed": "1"}, "Use an integer from 0 to"),
        ({"seed": True}, "Use an integer from 0 to"),
        ({"episode_id": "../../etc"}, "Use up to 100 letters"),
        ({"turns": 3}, "unknown options: turns"),
    ],
)
def test_wrong_resets_are_explained(options, problem):
    with served(sandbox()) as address, client(address) as env:
        with pytest.raises(RuntimeError, match=re.escape(problem)):
            env.reset(**options)
        assert env.reset().observation.user  # the session goes on


def test_an_id_is_used_once():
    with served(sandbox(taken=["old"])) as address, client(address) as env:
        env.reset(episode_id="new")
        for name in ("old", "new"):
            with pytest.raises(RuntimeError, match=f"there was an episode '{name}' already"):
                env.reset(episode_id=name)


def test_steps_outside_a_dialogue_are_refused():
    with served(sandbox()) as address, client(address) as env:
        with pytest.raises(RuntimeError, match="no dialogue has begun in this session. Call reset first"):
            env.step(QUESTION)
        talk(env, [QUESTION.reply] * 20, episode_id="one")
        with pytest.raises(RuntimeError, match="one: it has ended. Call reset first"):
            env.step(QUESTION)


def test_wrong_messages_are_answered_or_end_only_their_session():
    with served(sandbox()) as address:
        answers = [
            ask(address, message)["data"]
            for message in (
                "{",
                {"type": "dance"},
                {"type": "step", "data": {"reply": 3}},
                {"type": "step", "data": {"reply": "a", "more": 1}},
                {"type": "step", "data": {"reply": "a" * (MAX_REPLY + 1)}},
                {"type": "mcp", "data": {"jsonrpc": "2.0", "method": "tools/list", "id": 1}},
                "[]",
            )
        ]
        assert [answer.get("code") for answer in answers] == [
            "INVALID_JSON",
            "UNKNOWN_TYPE",
            *["VALIDATION_ERROR"] * 3,
            None,
            "SESSION_ERROR",
        ]
        assert "at most 32768 characters" in answers[4]["errors"][0]["msg"]
        with pytest.raises(ConnectionClosed, match="message too big|1009"):
            ask(address, "a" * (MAX_MESSAGE + 1))
        assert has_place(address)
    with pytest.raises(ValidationError, match="at most 32768 characters"):
        PolicyReply(reply="a" * (MAX_REPLY + 1))


def test_the_longest_reply_of_any_characters_fits():
    with served(sandbox()) as address, client(address) as env:
        env.reset()
        assert env.step(PolicyReply(reply="\U0001f600" * MAX_REPLY)).observation.turn == 1


def test_characters_that_a_record_cannot_hold_are_replaced():
    step = '{"type": "step", "data": {"reply": "Oh\\ud83d\\u0000"}}'
    with served(sandbox()) as address, connect(f"ws{address[4:]}/ws") as socket:
        for message in (json.dumps({"type": "reset"}), step):
            socket.send(message)
            answer = json.loads(socket.recv(timeout=30))
    assert answer["data"]["observation"]["messages"][-2]["content"] == "Oh\ufffd\ufffd"
    assert PolicyReply(reply="Oh\ud83d").reply == "Oh\ufffd"


def test_sessions_are_limited_and_freed():
    with served(sandbox(), sessions=2) as address:
        with client(address) as one, client(address) as two:
            one.reset()
            two.reset()
            assert ask(address, {"type": "state"})["data"]["code"] == "CAPACITY_REACHED"
        assert until(lambda: has_place(address))


def waiting_roles():
    """Return a casting whose director never answers, and the events `asked` and `freed`."""
    asked, freed = threading.Event(), threading.Event()

    class Slow:
        async def direct(self, turns, trajectory):
            asked.set()
            await asyncio.sleep(600)

    return (lambda job: replace(CASTING(job), director=Slow(), close=freed.set)), asked, freed


def test_a_client_that_disappears_during_a_step_frees_session_and_roles():
    casting, asked, freed = waiting_roles()
    with served(sandbox(casting), sessions=1) as address, connect(f"ws{address[4:]}/ws") as socket:
        socket.send(json.dumps({"type": "reset"}))
        socket.recv(timeout=30)
        socket.send(json.dumps({"type": "step", "data": {"reply": "Hello"}}))
        assert asked.wait(30)
        assert not has_place(address)
        socket.socket.shutdown(SHUT_RDWR)  # no closing handshake
        assert freed.wait(30)
        assert until(lambda: has_place(address))


def test_a_client_that_sends_ahead_is_disconnected():
    """Otherwise the messages that wait would hide that a client is gone."""
    casting, asked, freed = waiting_roles()
    with served(sandbox(casting), sessions=1) as address, connect(f"ws{address[4:]}/ws") as socket:
        socket.send(json.dumps({"type": "reset"}))
        socket.recv(timeout=30)
        for _ in range(3):
            socket.send(json.dumps({"type": "step", "data": {"reply": "Hello"}}))
        with pytest.raises(ConnectionClosed, match="wait for the answer"):
            socket.recv(timeout=30)
        assert not asked.is_set() or freed.wait(30)
        assert until(lambda: has_place(address))


def test_a_client_that_disappears_while_its_session_is_created_frees_it(monkeypatch):
    creating, finish = threading.Event(), threading.Event()

    class Slow(DialogueEnvironment):
        def __init__(self, people):
            creating.set()
            assert finish.wait(30)
            super().__init__(people)

    monkeypatch.setattr("mapo.engines.openenv.server.DialogueEnvironment", Slow)
    finish.set()
    with served(sandbox(), sessions=1) as address:
        creating.clear()
        finish.clear()
        with connect(f"ws{address[4:]}/ws") as socket:
            assert creating.wait(30)
            socket.socket.shutdown(SHUT_RDWR)
            assert [status_of(address, "/health") for _ in range(5)] == [200] * 5  # the server has noticed
        finish.set()
        assert until(lambda: has_place(address))


def test_every_dialogue_that_is_given_up_frees_its_roles():
    """Clients end their session and are gone while the server is closing it."""
    begun, freed = [], []

    def casting(job):
        begun.append(job.id)
        return replace(CASTING(job), close=lambda: freed.append(job.id))

    def leave(_):
        with connect(f"ws{address[4:]}/ws") as socket:
            socket.send(json.dumps({"type": "reset"}))
            socket.recv(timeout=30)
            socket.send(b"no text")
            socket.socket.shutdown(SHUT_RDWR)

    with served(sandbox(casting), sessions=100) as address:
        with ThreadPoolExecutor(40) as pool:
            list(pool.map(leave, range(200)))
        assert until(lambda: len(freed) == 200, seconds=10)
    assert sorted(begun) == sorted(freed)


def test_a_silent_client_loses_its_session():
    with served(sandbox(), sessions=1, idle=0.5) as address:
        with connect(f"ws{address[4:]}/ws") as socket:
            socket.send(json.dumps({"type": "reset"}))
            socket.recv(timeout=30)
            with pytest.raises(ConnectionClosed, match=r"nothing was received for 0\.5 seconds"):
                socket.recv(timeout=30)
        assert until(lambda: has_place(address))


def test_a_slow_step_is_not_idle():
    class Slow:
        async def direct(self, turns, trajectory):
            await asyncio.sleep(1.5)
            return await director.direct(turns, trajectory)

    director = CASTING(Job(SCENARIO, "d")).director
    people = sandbox(lambda job: replace(CASTING(job), director=Slow()))
    with served(people, idle=0.5) as address, client(address) as env:
        env.reset(scenario=SCENARIO.id)
        assert env.step(QUESTION).observation.turn == 1


def status_of(address, path, data=None, **headers):
    request = urllib.request.Request(f"{address}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_nothing_else_is_exposed():
    json_type = {"Content-Type": "application/json"}
    with served(sandbox()) as address:
        for path in ("/health", "/schema", "/metadata", "/list_environments", "/mapo/splits"):
            assert status_of(address, path) == 200
        split = json.dumps({"split": SPLIT}).encode()
        assert status_of(address, "/mapo/tasks", split, **json_type) == 200
        assert status_of(address, "/mapo/tasks", b" " * 5000, **json_type) == 413
        for path in ("/", "/web", "/docs", "/openapi.json", "/state", "/mapo/tasks", "/../etc/passwd"):
            assert status_of(address, path) == 404
        for path in ("/reset", "/step", "/mcp"):
            assert status_of(address, path, b"{}", **json_type) == 404
        assert status_of(address, "/health", Host="rebound.example") == 421
        assert status_of(address, "/health", Origin="http://page.example") == 403
        for path, headers in (
            ("/mcp", {}),
            ("/ws?session_id=1", {}),
            ("/ws", {"Origin": "http://a.example"}),
        ):
            with pytest.raises(InvalidStatus):
                connect(f"ws{address[4:]}{path}", additional_headers=headers).close()


def test_the_tasks_are_the_scenarios():
    with served(sandbox()) as address:
        data = json.dumps({"split": SPLIT, "index": 1}).encode()
        request = urllib.request.Request(f"{address}/mapo/task", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer) == {"task": {"scenario": SCENARIOS[1].id}}


def test_a_token_is_required_where_there_is_one():
    token = {"Authorization": "Bearer one-token-of-mine"}
    with served(sandbox(), token="one-token-of-mine") as address:
        assert [status_of(address, "/health", **h) for h in ({}, {"Authorization": "Bearer x"}, token)] == [
            401, 401, 200
        ]  # fmt: skip
        assert status_of(address, "/health", Host="trainer.cluster.example", **token) == 200
        assert status_of(address, "/health", Host="trainer.cluster.example") == 401
        with pytest.raises(ConnectionError, match="401"):
            client(address).connect()
        with client(address, headers=token) as env:
            assert env.reset().observation.user


def serve_command(*options):
    return subprocess.Popen(
        [sys.executable, "-m", "mapo", "serve", "--port", "0", *map(str, options)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_the_command_records_a_run_that_is_scored_and_goes_on_with_it(tmp_path):
    out, known = tmp_path / "run", played(name="a")
    for name, more in (("a", []), ("b", ["--resume"])):
        with serve_command("--out", out, "--seed", 7, "--max-turns", 14, "--model", "mine", *more) as process:
            line = process.stderr.readline()
            try:
                with client(re.search(r"http://127\.0\.0\.1:\d+", line)[0]) as env:
                    replies = [turn.reply.text for turn in known.turns]
                    talk(env, replies, scenario=SCENARIO.id, seed=3, episode_id=name)
                    if name == "b":
                        with pytest.raises(RuntimeError, match="there was an episode 'a' already"):
                            env.reset(episode_id="a")
                    env.reset()  # given up
                    process.send_signal(signal.SIGINT)
                    _, rest = process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode == 0 and "stopped; 1 dialogue ended" in rest and "Traceback" not in rest
    scoring = score(out)
    assert [(m.score.name, m.score.n) for m in scoring.models] == [("mine", 2)] and not scoring.bad
    assert (out / "health.json").exists() and (out / "empa/mine/a_result.json").exists()


def test_models_play_the_roles(tmp_path):
    answer, out = world(progress=lambda n: n % 3), tmp_path / "run"
    with LoopbackServer(answer) as models:
        roles = [f"--{role}-{key}" for role in ("user", "director", "judge") for key in ("model", "base-url")]
        values = [x for role in ("user", "director", "judge") for x in (role, models.base_url)]
        options = [x for pair in zip(roles, values, strict=True) for x in pair]
        with serve_command("--out", out, "--max-turns", 2, *options) as process:
            lines = iter(process.stderr.readline, "")
            address = next(found[0] for line in lines if (found := re.search(r"http://127\S+(?=   )", line)))
            try:
                for _ in range(2):
                    with client(address) as env:
                        last = talk(env, ["Hello", "I see"], scenario=SCENARIO.id)[-1].observation
                        assert last.done and last.error is None and len(last.rewards) == 2
                process.send_signal(signal.SIGTERM)
                _, rest = process.communicate(timeout=60)
            finally:
                process.kill()
    assert process.returncode == 0 and "stopped; 2 dialogues ended" in rest
    one, two = read_dialogues(RunDir(out).empa_dialogues)
    assert one.start == two.start  # that of the scenario
    assert one.cast["judge"].startswith("judge") and (out / "ledger.json").exists()


def test_the_command_refuses_what_it_cannot_do(tmp_path):
    for options, problem in (
        (["--reward", "rank"], "a server sees dialogues one by one"),
        (["--reward", "joy"], "joy"),
        (["--scenarios", "builtin:none"], "there is no split 'none'"),
        (["--agents", "nobody"], "Use scripted or llm"),
    ):
        with serve_command(*options) as process:
            _, rest = process.communicate(timeout=60)
        assert process.returncode == 2 and problem in rest and "Traceback" not in rest
