"""The sandbox as TRL's rollout: it learns, it keeps the tokens, and it fails as the local engine does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peft import LoraConfig

from mapo import Rules
from mapo.advantage import advantages
from mapo.config import Advantage
from mapo.credit import compute_credit
from mapo.engines.trl import MAPOTrainer, Sandbox, scenario_rows
from mapo.errors import AnswerError, InputError, JudgeError
from mapo.local_model.policy import load_policy
from mapo.models.endpoint import Endpoint
from mapo.rows import rows_of
from mapo.sandbox.model_cast import model_cast
from mapo.testing.server import LoopbackServer
from mapo.testing.world import ROLES, world
from support import small_run as small
from support import tiny
from support.trl_rollouts import RUBRIC, SCENARIOS, in_sandbox, rows, sandbox, settings


def test_siblings_cannot_be_ranked(tmp_path):
    unranked = Sandbox(SCENARIOS, sandbox().casting, Rules(RUBRIC, reward="rank"))
    with pytest.raises(InputError, match="no ranking judge"):
        in_sandbox(tmp_path / "run", unranked)


@pytest.mark.slow
def test_training_raises_the_reward_and_leaves_a_model_that_loads(tmp_path):
    trainer = in_sandbox(
        tmp_path / "run",
        sandbox(at_once=32),
        per_device_train_batch_size=32,
        num_generations=8,
        max_steps=10,
        learning_rate=1e-2,
    )
    trainer.train()
    first, last = trainer.state.log_history[0], trainer.state.log_history[9]
    error = max(first["reward_std"], last["reward_std"]) / np.sqrt(32)  # of the mean of 32 dialogues
    assert last["reward"] - first["reward"] > 6 * error > 0
    trainer.save_model(tmp_path / "saved")
    loaded = load_policy(str(tmp_path / "saved"), device="cpu")
    ids = torch.arange(3, 20)[None]
    trainer.model.eval()
    with torch.no_grad():
        assert torch.allclose(loaded.model(ids).logits, trainer.model(ids).logits, atol=1e-5)
    assert loaded.tokenizer.chat_template == tiny.tokenizer().chat_template


def test_adapters_train_and_load_too(tmp_path):
    base = small.model_folder(tmp_path / "base")
    trainer = MAPOTrainer(
        str(base),
        args=settings(tmp_path / "run"),
        train_dataset=scenario_rows(SCENARIOS),
        rollout_func=sandbox(),
        peft_config=LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()
    assert trainer.state.log_history[0]["grad_norm"] > 0
    trainer.save_model(tmp_path / "saved")
    assert load_policy(str(tmp_path / "saved"), device="cpu").lora


def test_the_trainer_gets_the_tokens_that_were_sampled(tmp_path):
    """Log-probabilities of the sampler are those of the trainer's own forward pass."""
    done = []
    played = sandbox(on_done=done.append, stream=False)
    trainer = in_sandbox(tmp_path, played)
    made = []
    plain = trainer._compute_loss

    def looked(model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        with torch.no_grad():
            width = inputs["completion_ids"].shape[1]
            now, _, _ = trainer._get_per_token_logps_and_entropies(model, ids, attended, width)
        mask = inputs["tool_mask"].bool()
        made.append((now - inputs["sampling_per_token_logps"])[mask].abs().max())
        return plain(model, inputs)

    trainer._compute_loss = looked
    trainer.train()
    assert made[0] < 1e-4
    assert trainer.model.training  # sampling turns it off, and the loss needs it on again
    assert not played._sampler.decoder.stream  # as was asked
    assert len(done) == 8 and {d.step for d in done} == {1}
    assert [t.reward for t in done[0].turns] and done[0].system == ""


@pytest.mark.parametrize("method", ["mapo", "mt_grpo", "gigpo", "gdpo"])
def test_faults_are_those_of_the_local_engine(method, tmp_path, caplog):
    def fault(who, turns, job):
        if who == "user" and job.id.endswith("_1") and len(turns) == 1:
            raise RuntimeError("the line is dead")
        if who == "judge" and job.id.endswith("_2") and len(turns) == 2:
            raise AnswerError("no form")

    done = []
    trainer = in_sandbox(tmp_path, sandbox(fault, on_done=done.append), method=method)
    made = []
    plain = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda rows: made.append(plain(rows)) or made[-1]
    trainer.train()
    by_place = {int(d.id.split("_")[1]) * 4 + int(d.id[-1]): d for d in done}
    dialogues = [by_place[i] for i in range(8)]
    assert [d.error is not None for d in dialogues] == [False, True, False, False] * 2
    usable = [d for d in dialogues if d.error is None]
    assert usable[1].rewards[1] is None
    credit = compute_credit(usable, Advantage(method=method).resolved("idr"), RUBRIC)
    expected = rows_of(usable, credit)
    places = [i for i in range(8) if i not in (1, 5)]
    for place, row in zip(places, expected, strict=True):
        start = int(np.argmax(row.turns >= 0))
        n = len(row.ids) - start
        assert made[0]["tool_mask"][place, :n].tolist() == row.mask[start:].astype(int).tolist()
        assert made[0]["advantages"][place, :n].tolist() == row.advantages[start:].tolist()
    assert not made[0]["tool_mask"][[1, 5]].any()


@pytest.mark.parametrize(
    ("reward", "told", "endings"),
    [
        ("adr", {}, "held"),
        ("idr", {}, "continued"),
        ("outcome", {}, "cut"),
        ("adr", {"endings": "cut"}, "cut"),
    ],
)
def test_the_sandboxs_reward_decides_about_endings_as_in_the_local_engine(reward, told, endings, tmp_path):
    played = sandbox()
    played.rules = replace(played.rules, reward=reward)
    trainer = in_sandbox(tmp_path, played, **told)
    rewards = [[2.0, 1.0, 3.0], [1.0] * 5]
    got = trainer.args.credit(rewards, [0, 0], trainer._reward)
    wanted = advantages(rewards, [0, 0], gamma=0.85, endings=endings)
    assert [row.tolist() for row in got.returns] == [row.tolist() for row in wanted.returns]
    assert trainer.args.endings == told.get("endings", "auto")  # the config can be used again


def test_a_deaf_judge_stops_the_run(tmp_path):
    def deaf(who, turns, job):
        if who == "judge":
            raise AnswerError("no form")

    trainer = in_sandbox(tmp_path, sandbox(deaf), per_device_train_batch_size=16)
    with pytest.raises(JudgeError):
        trainer.train()


def test_roles_may_be_models_whose_connections_stay_open(tmp_path):
    """Two batches, one event loop: what the first opened the second goes on with."""
    rules = Rules(RUBRIC, max_turns=2, max_tokens=8)
    with LoopbackServer(world(progress=lambda n: n % 3), models=ROLES) as server:
        user, director, judge = (Endpoint(name, server.base_url) for name in ("user", "director", "judge"))
        played = Sandbox(SCENARIOS, model_cast(user, director, judge, RUBRIC), rules, context=1024)
        trainer = in_sandbox(tmp_path, played, max_steps=2)
        trainer.train()
        played.disconnect(user, director, judge)
    lines = trainer.state.log_history[:2]
    assert [line["mapo/broken"] for line in lines] == [line["mapo/unscored"] for line in lines] == [0, 0]
    assert all(line["mapo/turns"] == 2 and line["mapo/advantage_std"] > 0 for line in lines)


def test_evaluation_meets_the_same_worlds_every_time_and_a_notebook_may_call_it(tmp_path):
    done = []
    trainer = in_sandbox(
        tmp_path,
        sandbox(on_done=done.append),
        more={"eval_dataset": scenario_rows(SCENARIOS[:2])},
        num_generations_eval=2,
        per_device_eval_batch_size=4,
    )

    async def notebook():
        return trainer.evaluate(), trainer.evaluate()

    first, second = asyncio.run(notebook())
    assert first["eval_mapo/turn_reward"] == second["eval_mapo/turn_reward"]
    assert len(done) == 8 and sorted(d.id for d in done[:4]) == sorted(d.id for d in done[4:])
    assert len({d.seed for d in done}) == 2 and not trainer.model.training
    trainer.train()
    assert trainer.model.training and {d.step for d in done[8:]} == {1}


def test_a_resumed_run_plays_what_an_undisturbed_one_would_have_played(tmp_path):
    changed = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2}
    whole = in_sandbox(tmp_path, sandbox(), **changed)
    whole.train()
    again = in_sandbox(tmp_path, sandbox(), **changed)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name in ("reward", "loss", "mapo/advantage_std"):
        assert again.state.log_history[2][name] == pytest.approx(whole.state.log_history[2][name], abs=1e-6)


def rank(number, world, **changed):
    plain = {
        "state": SimpleNamespace(global_step=6),
        "args": SimpleNamespace(seed=3),
        "num_generations": 4,
        "num_generations_eval": 2,
        "accelerator": SimpleNamespace(process_index=number, num_processes=world),
    }
    return SimpleNamespace(**{**plain, **changed})


def test_two_processes_play_what_one_would_have_played():
    batch = [{"scenario": s.id} for s in SCENARIOS[:2] for _ in range(4)]
    alone = sandbox().jobs(rank(0, 1), batch, training=True)
    pair = [sandbox().jobs(rank(r, 2), batch[r * 4 : r * 4 + 4], training=True) for r in (0, 1)]
    assert alone == [*pair[0], *pair[1]]
    assert len({job.session for job in alone}) == 8 and len({job.group for job in alone}) == 2
    assert len({job.seed for job in alone}) == 1


def test_no_two_batches_are_alike():
    batch = [{"scenario": SCENARIOS[0].id}] * 4
    played = sandbox()
    first, again = (played.jobs(rank(0, 1), batch, training=True) for _ in range(2))
    later = rank(0, 1, state=SimpleNamespace(global_step=7))
    sessions = {
        job.session for jobs in (first, again, played.jobs(later, batch, training=True)) for job in jobs
    }
    assert len(sessions) == 12


# ---- refusals


def test_a_template_that_rewrites_is_refused_before_training(tmp_path):
    tokenizer = tiny.tokenizer("qwen3")
    model = tiny.model("llama", vocab_size=len(tokenizer), max_position_embeddings=2048)
    with pytest.raises(InputError, match="rewrites earlier turns"):
        in_sandbox(tmp_path, sandbox(), model, tokenizer)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"use_vllm": True}, "use_vllm"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 20}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"temperature": 0.0}, "temperature"),
    ],
)
def test_sampling_that_the_sandbox_does_not_do_is_refused(changed, match):
    plain = {"use_vllm": False, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
    args = SimpleNamespace(**{**plain, "temperature": 1.0, **changed})
    with pytest.raises(InputError, match=match):
        sandbox().begin(SimpleNamespace(args=args))


@pytest.mark.parametrize("kind", ["is_fsdp_enabled", "is_deepspeed_enabled"])
def test_a_model_spread_over_processes_is_refused(kind, tmp_path):
    trainer = in_sandbox(tmp_path, sandbox())
    setattr(trainer, kind, True)
    with pytest.raises(InputError, match="sharded over processes"):
        sandbox().begin(trainer)


def test_a_context_the_model_cannot_read_is_refused(tmp_path):
    with pytest.raises(InputError, match="context is 4096"):
        in_sandbox(tmp_path, sandbox(context=4096))


def test_a_row_that_names_no_scenario_is_refused(tmp_path):
    trainer = in_sandbox(tmp_path, sandbox())
    trainer.train_dataset = rows()
    with pytest.raises(InputError, match="no scenario None"):
        trainer.train()
