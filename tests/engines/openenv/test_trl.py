"""TRL's trainers with a served sandbox: TRL's own environments, and mapo's trainer with turn rewards."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("openenv", reason="openenv is not installed (make test-openenv)")
pytest.importorskip("trl", reason="trl is not installed (make test-openenv)")

import trl
from datasets import Dataset
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from mapo import Rubric
from mapo.engines.openenv.environment import ServedSandbox
from mapo.engines.openenv.rules import rules_summary
from mapo.engines.openenv.trl import OVER, RemoteSandbox, conversations
from mapo.engines.trl import MAPOTrainer, Sandbox, scenario_rows
from mapo.errors import EndpointError, InputError
from support import tiny
from support.openenv_server import CASTING, RULES, SCENARIOS, sandbox, served
from support.trl_rollouts import model_of, settings

SHORT = replace(RULES, max_turns=3, max_tokens=8)


def calling():
    """A tokenizer with the template of a model that calls tools, and whole calls as single tokens."""
    tokenizer = tiny.tokenizer.__wrapped__()
    folder = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (folder / "qwen3.jinja").read_text(encoding="utf-8")
    texts = [
        f"<tool_call>\n{json.dumps({'name': 'say', 'arguments': {'message': said}})}\n</tool_call>"
        for said in ("What happened then?", "You must be so tired. Who knows about it?")
    ]
    tokenizer.add_tokens(texts)
    return tokenizer, [tokenizer.convert_tokens_to_ids(text) for text in texts]


def test_grpo_trainer_plays_in_the_environments(tmp_path, monkeypatch):
    """Two steps of TRL's own loop. The tiny model's calls are made likely by a bias on their tokens."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tokenizer, calls = calling()
    done = []
    bias = [[[token], 60.0] for token in (*calls, tokenizer.eos_token_id)]
    with served(sandbox(rules=SHORT, on_done=done.append)) as address:
        trainer = trl.GRPOTrainer(
            tiny.model("llama", vocab_size=len(tokenizer), max_position_embeddings=8192),
            args=trl.GRPOConfig(
                str(tmp_path),
                num_generations=4,
                per_device_train_batch_size=8,
                max_steps=2,
                max_completion_length=1024,
                logging_steps=1,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
                bf16=False,
                generation_kwargs={"sequence_bias": bias},
            ),
            train_dataset=Dataset.from_dict(
                {
                    "prompt": [[{"role": "user", "content": "Talk to this person with `say`: "}]] * 4,
                    "scenario": [scenario.id for scenario in SCENARIOS],
                    "seed": [1, 2, 3, 4],
                }
            ),
            environment_factory=conversations(address),
            processing_class=tokenizer,
        )
        trainer.train()
        pool = trainer._environment_pool[None]
        for environment in pool:
            environment._client.close()
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(log) == 2 and len(pool) == 8
    assert all(entry["tools/call_frequency"] > 0 and entry["tools/failure_frequency"] == 0 for entry in log)
    assert any(entry["reward"] != 0 and entry["reward_std"] > 0 for entry in log)
    assert done and all(2 <= len(d.turns) <= 3 and d.error is None for d in done)


def test_an_environment_of_trl_sums_the_turn_rewards():
    with served(sandbox(rules=SHORT)) as address:
        environment = conversations(address)()
        assert environment.get_reward() is None and environment.say("Hello") == OVER
        assert environment.reset(scenario=SCENARIOS[1].id, seed=1, prompt=[]) == SCENARIOS[1].opening
        answers = [environment.say("What happened then?") for _ in range(4)]
        rewards = environment._seen.rewards
        assert environment.get_reward() == sum(rewards) and len(rewards) == 3
        assert answers[2:] == [OVER, OVER] and OVER not in answers[:2]
        environment._client.close()


def test_a_dialogue_whose_server_is_gone_has_no_reward():
    """The sum so far would count half a dialogue as a whole one."""
    with served(sandbox(rules=SHORT)) as address:
        environment = conversations(address)()
        environment.reset(seed=1)
        environment.say("What happened then?")
        assert environment.get_reward() is not None
    with pytest.raises((OSError, ConnectionClosed)):
        environment.say("What happened then?")
    assert environment.get_reward() is None and environment.say("And then?") == OVER
    environment._client.close()


def trained(out, rollout, **changed):
    trainer = MAPOTrainer(
        model_of(),
        args=settings(out, max_steps=2, seed=5, **changed),
        train_dataset=scenario_rows(SCENARIOS),
        rollout_func=rollout,
        processing_class=tiny.tokenizer(),
    )
    trainer.train()
    return trainer


def test_mapo_trainer_learns_the_same_from_a_server_as_in_its_own_process(tmp_path):
    """Same seeds, same persons, same replies: the rewards and gradients of two steps are equal."""
    here, there = [], []
    local = trained(tmp_path / "a", Sandbox(SCENARIOS, CASTING, SHORT, on_done=here.append, stream=False))
    with served(sandbox(rules=SHORT)) as address:
        remote = RemoteSandbox(address, SCENARIOS, SHORT, at_once=8, on_done=there.append, stream=False)
        served_trainer = trained(tmp_path / "b", remote)
    order = {d.id + str(d.step): d for d in there}
    assert len(here) == len(there) == 16
    for dialogue in here:
        twin = order[dialogue.id + str(dialogue.step)]
        assert twin.rewards == dialogue.rewards
        assert [t.reply.token_ids for t in twin.turns] == [t.reply.token_ids for t in dialogue.turns]
    for key in ("reward", "grad_norm"):
        one, other = ([e[key] for e in t.state.log_history if key in e] for t in (local, served_trainer))
        assert len(one) == 2 and one == pytest.approx(other)


def test_every_evaluation_plays_on_the_server(tmp_path):
    """Also with a scenario whose id fills an episode id."""
    long = replace(SCENARIOS[0], id="a" * 100)
    people = ServedSandbox([long], CASTING, SHORT)
    played = []
    with served(people) as address:
        trainer = MAPOTrainer(
            model_of(),
            args=settings(tmp_path, per_device_eval_batch_size=4),
            train_dataset=scenario_rows([long]),
            eval_dataset=scenario_rows([long]),
            rollout_func=RemoteSandbox(address, [long], SHORT, on_done=played.append, stream=False),
            processing_class=tiny.tokenizer(),
        )
        first, second = trainer.evaluate(), trainer.evaluate()
    assert first["eval_reward"] == second["eval_reward"]
    assert len(played) == 8 and all(dialogue.usable for dialogue in played)


def test_too_few_sessions_are_explained(tmp_path):
    with (
        served(sandbox(rules=SHORT), sessions=1) as address,
        pytest.raises(EndpointError, match="its --sessions must be at least at_once"),
    ):
        trained(tmp_path, RemoteSandbox(address, SCENARIOS, SHORT, at_once=8, stream=False))


def test_a_server_that_stops_in_the_middle_is_explained(tmp_path):
    def leave(socket):
        socket.recv()
        socket.close(1012)

    with serve(leave, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever).start()
        address = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        with pytest.raises(EndpointError, match="the server refused a dialogue or is gone"):
            trained(tmp_path, RemoteSandbox(address, SCENARIOS, SHORT, at_once=8, stream=False))


@pytest.mark.parametrize("method", ["gigpo", "gdpo"])
def test_methods_that_need_states_are_refused(method, tmp_path):
    with pytest.raises(InputError, match="which a server does not tell"):
        trained(tmp_path, RemoteSandbox("http://127.0.0.1:9", SCENARIOS, SHORT), method=method)


@pytest.mark.parametrize(
    ("changed", "difference", "fix"),
    [
        ({"max_turns": 14}, "max_turns: 14 there, 3 here", "Start `mapo serve` with --max-turns 3, or give"),
        ({"reward": "adr"}, "reward: adr there, idr here", "Start `mapo serve` with --reward idr, or give"),
        ({"profile": "released"}, "profile: released there, published here", "--profile published"),
        ({"distance": "origin"}, "distance: origin there, zone here", "Give RemoteSandbox rules with"),
        (
            {"rubric": replace(RULES.rubric, zone=2.0)},
            "rubric: empathy",
            "Use the same domain and version of its rubric on both sides",
        ),
        ({"rubric": Rubric.load("tutoring")}, "rubric: tutoring", "Use the same domain and version"),
    ],
)
def test_a_server_with_other_rules_is_refused_before_anything_is_played(changed, difference, fix, tmp_path):
    begun = []

    def casting(job):
        begun.append(job)
        return CASTING(job)

    with (
        served(sandbox(casting, replace(SHORT, **changed))) as address,
        pytest.raises(InputError, match=re.escape(difference)) as caught,
    ):
        trained(tmp_path, RemoteSandbox(address, SCENARIOS, SHORT, at_once=8, stream=False))
    assert caught.value.where == address and fix in caught.value.fix
    assert not begun


def test_rules_that_do_not_decide_about_rewards_may_differ(tmp_path):
    own = replace(SHORT, system=None, max_tokens=4, temperature=0.5, gamma=0.9)
    own = replace(own, rubric=replace(SHORT.rubric, difficulty=()))
    with served(sandbox(rules=SHORT)) as address:
        trained(tmp_path, RemoteSandbox(address, SCENARIOS, own, at_once=8, stream=False))


def test_turn_limits_are_those_that_apply():
    ending = RULES.rubric.ending
    explicit = replace(RULES, min_turns=ending.min_turns, max_turns=ending.max_turns)
    assert rules_summary(explicit) == rules_summary(replace(RULES, max_turns=None))


def test_a_server_that_does_not_report_its_rules_is_refused(tmp_path):
    people = sandbox(rules=SHORT)
    people.summary = {}
    with served(people) as address, pytest.raises(InputError, match="does not report its rules. Update mapo"):
        trained(tmp_path, RemoteSandbox(address, SCENARIOS, SHORT, at_once=8, stream=False))
