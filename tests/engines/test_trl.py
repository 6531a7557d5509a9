"""MAPO on TRL's trainer: the local engine's gradients, groups across processes, learning, refusals.

Run as a program (by torchrun) it is one of several processes that train a step together.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOConfig

import small
import tiny
from helpers import marks
from mapo import Rubric, Rules
from mapo.advantage import METHODS, advantages
from mapo.engines.trl import MAPOConfig, MAPOTrainer, Sandbox, rollout_of, scenario_rows
from mapo.engines.trl.contract import checked, dialogue_return
from mapo.errors import AnswerError, InputError, JudgeError, RewardError, TrainError
from mapo.rows import rows_of
from mapo.sandbox.cast import Cast
from mapo.sandbox.scenarios import load_scenarios
from mapo.train.batch import micro_batches
from mapo.train.loss import policy_loss, token_logprobs
from mapo.train.policy import load_policy
from mapo.types import Dialogue, Direction, Reply, Turn

RUBRIC = Rubric.load("empathy")
SCENARIOS = load_scenarios("builtin:train")[:4]
# Two groups of four, ragged: unscored turns, one without any scored turn, one that broke (None).
REWARDS = (
    [1.0, -0.5, 2.0],
    [0.2, None, 0.1, 3.0],
    [0.4, 0.9],
    [-1.0, 0.3, 0.0, 1.5, -2.0],
    [2.0, 1.0],
    None,
    [None, None],
    [0.5, None, 1.0],
)


def model_of(seed=0):
    return tiny.model("llama", seed, vocab_size=len(tiny.tokenizer()), max_position_embeddings=2048)


def settings(out, **changed):
    plain = {
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "max_steps": 1,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "weight_decay": 0.0,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "shuffle_dataset": False,
        "use_cpu": True,
        "bf16": False,
    }
    return MAPOConfig(str(out), **{**plain, **changed})


def told(reply_seed, place, rewards):
    """A dialogue of random words, whose turns earned `rewards`; None: it broke."""
    chance = np.random.default_rng([reply_seed, place])

    def words(low, high):
        return tuple(chance.integers(3, 200, chance.integers(low, high)).tolist())

    turns = []
    for reward in rewards or [1.0]:
        said = words(1, 7)
        turns.append(Turn("", Reply("", "stop", words(2, 9), said, (0.0,) * len(said)), reward=reward))
    broke = "the user is gone" if rewards is None else None
    return Dialogue(str(place), "s", "m", "r", "p", {}, (), tuple(turns), group=str(place // 4), error=broke)


def scored(model, dialogue, noise=0.0):
    """The dialogue with its log-probabilities under the model, `noise` off."""
    chance = np.random.default_rng(len(dialogue.turns))
    ids, turns = [], []
    for turn in dialogue.turns:
        ids += turn.reply.prompt_ids
        start = len(ids)
        ids += turn.reply.token_ids
        mask = torch.zeros(1, len(ids), dtype=torch.bool)
        mask[0, start:] = True
        with torch.no_grad():
            logp = token_logprobs(model, torch.tensor([ids]), mask).logprobs.numpy()
        logp = logp + noise * chance.standard_normal(len(logp))
        turns.append(Turn("", _with(turn.reply, tuple(logp.tolist())), reward=turn.reward))
    return Dialogue(**{**_fields(dialogue), "turns": tuple(turns)})


def _with(reply, logprobs):
    return Reply(reply.text, reply.finish, reply.prompt_ids, reply.token_ids, logprobs)


def _fields(dialogue):
    return {name: getattr(dialogue, name) for name in Dialogue.__dataclass_fields__}


def canned(dialogues):
    """A rollout that knows what was said: each process gets its own."""

    def rollout(prompts, trainer):
        first = trainer.accelerator.process_index * len(prompts)
        return rollout_of(dialogues[first : first + len(prompts)], filler=0)

    return rollout


def rows(count=2):
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": f"s{i}"}] for i in range(count)]})


def trainer_of(out, dialogues, model, **changed):
    """A trainer of canned dialogues, and the batch it will make of them."""
    trainer = MAPOTrainer(
        model,
        args=settings(out, **changed),
        train_dataset=rows(),
        rollout_func=canned(dialogues),
        processing_class=tiny.tokenizer(),
    )
    made = []
    plain = trainer._generate_and_score_completions

    def kept(inputs):
        made.append(plain(inputs))
        return made[-1]

    trainer._generate_and_score_completions = kept
    return trainer, made


class Gradients(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.found = {name: p.grad.clone() for name, p in model.named_parameters()}


def local_gradients(model, dialogues, options, **clips):
    """What the local engine makes of the same dialogues."""
    usable = [d for d in dialogues if d.error is None]
    credit = advantages([[t.reward for t in d.turns] for d in usable], [d.group for d in usable], **options)
    found = rows_of(usable, credit)
    model.zero_grad()
    total = sum(row.trained for row in found)
    for micro in micro_batches(found, 64):
        policy_loss(model, micro, total=total, **clips)[0].backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return gradients, total


def distance(a, b):
    a, b = (torch.cat([x.flatten() for x in g.values()]) for g in (a, b))
    return float((a - b).norm() / b.norm())


OPTIONS = [
    {"method": "mapo", "gamma": 0.85, "turn_weight": 0.3},
    {"method": "mapo", "gamma": 1.0, "scope": "batch", "horizon": "shortest"},
    *({"method": method, "gamma": 0.9} for method in METHODS if method != "mapo"),
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: f"{o['method']}-{o.get('horizon', '')}")
def test_gradients_are_the_local_engines(options, tmp_path):
    """One optimizer step of two micro-batches, as TRL takes it."""
    model = model_of()
    dialogues = [scored(model, told(0, i, r)) for i, r in enumerate(REWARDS)]
    expected, total = local_gradients(model, dialogues, options)
    trainer, made = trainer_of(
        tmp_path, dialogues, model, per_device_train_batch_size=4, gradient_accumulation_steps=2, **options
    )
    seen = Gradients()
    trainer.add_callback(seen)
    trainer.train()
    assert distance(seen.found, expected) < 1e-5
    assert (
        made[0]["num_items_in_batch"]
        == total
        < sum(len(t.reply.token_ids) for d in dialogues for t in d.turns)
    )


def test_gradients_are_the_local_engines_off_policy_with_every_clip_at_work(tmp_path):
    """ratio = exp(logp - old) with old far off: both clips and the dual clip cut tokens off."""
    model = model_of()
    dialogues = [scored(model, told(1, i, r), noise=2.0) for i, r in enumerate(REWARDS)]
    clips = {"low": 0.2, "high": 0.28, "dual": 10.0}
    expected, _ = local_gradients(model, dialogues, {"gamma": 0.85}, **clips)
    free, _ = local_gradients(model, dialogues, {"gamma": 0.85}, **{**clips, "dual": 1e9})
    assert distance(free, expected) > 1e-2  # the dual clip does something
    trainer, _ = trainer_of(tmp_path, dialogues, model)
    trainer.current_gradient_accumulation_steps = 1
    model.train()
    batch = trainer._generate_and_score_completions([dict(row) for row in rows() for _ in range(4)])
    batch["old_per_token_logps"] = batch["sampling_per_token_logps"]
    trainer._compute_loss(model, batch).backward()
    assert distance({name: p.grad for name, p in model.named_parameters()}, expected) < 1e-5


def test_unscored_turns_and_broken_dialogues_leave_loss_and_statistics(tmp_path):
    dialogues = [told(0, i, r) for i, r in enumerate(REWARDS)]
    trainer, made = trainer_of(tmp_path, dialogues, model_of(), gamma=1.0)
    trainer.train()
    mask, credit = made[0]["tool_mask"], made[0]["advantages"]
    # The scored turns of unbroken dialogues, turn 5 of dialogue 3 apart (nobody else reaches it), and turn 3
    # of dialogue 7 (the one sibling left has two turns).
    taken = {0: [0, 1, 2], 1: [0, 2, 3], 2: [0, 1], 3: [0, 1, 2, 3], 4: [0, 1], 7: [0]}
    expected = [sum(len(dialogues[i].turns[t].reply.token_ids) for t in taken.get(i, [])) for i in range(8)]
    assert mask.sum(1).tolist() == expected
    assert not credit[mask == 0].any()
    line = trainer.state.log_history[0]
    assert line["mapo/broken"] == 1 / 8
    assert line["mapo/unscored"] == pytest.approx(4 / 21)
    assert line["mapo/turns"] == pytest.approx(3.0)
    assert line["mapo/turns_trained"] == 15
    whole = [
        sum(r for r in row if r is not None) for row in REWARDS if row and any(r is not None for r in row)
    ]
    assert line["reward"] == pytest.approx(np.mean(whole))
    shown = list(trainer._logs["advantages"])
    assert len(shown) == 8 and shown[5] == shown[6] == 0.0 and shown[0] != 0.0


def test_a_batch_in_which_everything_broke_ends_the_run(tmp_path):
    dialogues = [told(0, i, None) for i in range(8)]
    trainer, _ = trainer_of(tmp_path, dialogues, model_of())
    with pytest.raises(TrainError, match="not one dialogue of step 1"):
        trainer.train()


# ---- two processes


def step_of(out, processes):
    """One step of this process's share, in the folder `out`: its advantages, and the weights afterwards."""
    torch.set_num_threads(1)
    dialogues = [told(0, i, r) for i, r in enumerate(REWARDS)]
    trainer, made = trainer_of(
        out, dialogues, model_of(), per_device_train_batch_size=8 // processes, num_generations=8, optim="sgd"
    )
    trainer.train()
    sizes = [sum(len(t.reply.token_ids) + len(t.reply.prompt_ids) for t in d.turns) for d in dialogues]
    batch = {key: made[0][key].tolist() for key in ("advantages", "tool_mask")}
    assert max(map(len, batch["advantages"])) <= max(sizes)
    weights = [float(p.detach().double().abs().sum()) for p in trainer.model.parameters()]
    told_ = {**batch, "items": int(made[0]["num_items_in_batch"]), "weights": weights}
    (Path(out) / f"{trainer.accelerator.process_index}.json").write_text(json.dumps(told_))


def test_a_group_may_span_two_processes(tmp_path):
    """All eight dialogues are siblings; each process plays four of them."""
    (tmp_path / "two").mkdir()
    (tmp_path / "one").mkdir()
    tests = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": f"{tests}:{tests / 'train'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    command += ["--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", __file__]
    done = subprocess.run(
        [*command, str(tmp_path / "two")], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    step_of(tmp_path / "one", processes=1)
    alone = json.loads((tmp_path / "one" / "0.json").read_text())
    pair = [json.loads((tmp_path / "two" / f"{rank}.json").read_text()) for rank in (0, 1)]
    for key in ("advantages", "tool_mask"):
        together = [_bare(row) for part in pair for row in part[key]]
        assert together == [_bare(row) for row in alone[key]]
    assert [part["items"] for part in pair] == [alone["items"]] * 2
    for part in pair:
        assert part["weights"] == pytest.approx(alone["weights"], rel=1e-6)
    start = [float(p.detach().double().abs().sum()) for p in model_of().parameters()]
    assert alone["weights"] != pytest.approx(start, rel=1e-6)


def _bare(row):
    """Without the padding, which depends on who is in the batch."""
    return row[: max((at + 1 for at, x in enumerate(row) if x), default=0)]


# ---- the sandbox


class Roles:
    """A user with a few lines and a judge who likes lower-case letters; `fault(turns, job)` may raise."""

    def __init__(self, job, fault=None):
        self.job, self.fault = job, fault or (lambda who, turns, job: None)

    async def speak(self, turns, direction):
        self.fault("user", turns, self.job)
        return f"And {len(turns)}?"

    async def direct(self, turns, path):
        return Direction("go_on")

    async def start(self):
        raise AssertionError("the scenarios know their start levels")

    async def judge(self, turns):
        self.fault("judge", turns, self.job)
        text = turns[-1].reply.text
        share = sum(c.islower() and c.isascii() for c in text) / max(1, len(text))
        return marks(RUBRIC, int(share > 0.3) + int(share > 0.5), -int(share < 0.15))


def sandbox(fault=None, **changed):
    rules = Rules(RUBRIC, max_turns=3, max_tokens=8)
    plain = {"context": 1024, "at_once": 16}
    return Sandbox(SCENARIOS, lambda job: _cast(Roles(job, fault)), rules, **{**plain, **changed})


def _cast(roles):
    return Cast(roles, roles, roles, {"user": "u", "director": "d", "judge": "j"})


def in_sandbox(out, played, model=None, tokenizer=None, more=None, **changed):
    return MAPOTrainer(
        model or model_of(),
        args=settings(out, **changed),
        train_dataset=scenario_rows(SCENARIOS),
        rollout_func=played,
        processing_class=tokenizer or tiny.tokenizer(),
        **(more or {}),
    )


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
    trainer = in_sandbox(tmp_path, sandbox(on_done=done.append))
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
    assert len(done) == 8 and {d.step for d in done} == {1}
    assert [t.reward for t in done[0].turns] and done[0].system == ""


def test_faults_are_those_of_the_local_engine(tmp_path, caplog):
    def fault(who, turns, job):
        if who == "user" and job.id.endswith("_1") and len(turns) == 1:
            raise RuntimeError("the line is dead")
        if who == "judge" and job.id.endswith("_2") and len(turns) == 2:
            raise AnswerError("no form")

    done = []
    trainer = in_sandbox(tmp_path, sandbox(fault, on_done=done.append))
    made = []
    plain = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda rows: made.append(plain(rows)) or made[-1]
    trainer.train()
    by_place = {int(d.id.split("_")[1]) * 4 + int(d.id[-1]): d for d in done}
    dialogues = [by_place[i] for i in range(8)]
    assert [d.error is not None for d in dialogues] == [False, True, False, False] * 2
    usable = [d for d in dialogues if d.error is None]
    rewards = [[t.reward for t in d.turns] for d in usable]
    assert rewards[1][1] is None
    credit = advantages(rewards, [d.group for d in usable], gamma=0.85)
    expected = rows_of(usable, credit)
    places = [i for i in range(8) if i not in (1, 5)]
    for place, row in zip(places, expected, strict=True):
        start = int(np.argmax(row.turns >= 0))
        n = len(row.ids) - start
        assert made[0]["tool_mask"][place, :n].tolist() == row.mask[start:].astype(int).tolist()
        assert made[0]["advantages"][place, :n].tolist() == row.advantages[start:].tolist()
    assert not made[0]["tool_mask"][[1, 5]].any()


def test_a_deaf_judge_stops_the_run(tmp_path):
    def deaf(who, turns, job):
        if who == "judge":
            raise AnswerError("no form")

    trainer = in_sandbox(tmp_path, sandbox(deaf), per_device_train_batch_size=16)
    with pytest.raises(JudgeError):
        trainer.train()


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


def test_siblings_are_needed(tmp_path):
    with pytest.raises(InputError, match="num_generations is 1"):
        settings(tmp_path, num_generations=1)


@pytest.mark.parametrize(
    "options",
    [{"method": "ppo"}, {"scope": "world"}, {"horizon": "far"}, {"gamma": 2.0}, {"turn_weight": -1.0}],
)
def test_options_no_estimator_knows_are_refused_before_anything_is_loaded(options, tmp_path):
    with pytest.raises(RewardError, match=next(iter(options))):
        settings(tmp_path, **options)


def test_a_template_that_rewrites_is_refused_before_training(tmp_path):
    tokenizer = tiny.tokenizer("qwen3")
    model = tiny.model("llama", vocab_size=len(tokenizer), max_position_embeddings=2048)
    with pytest.raises(InputError, match="rewrites earlier turns"):
        in_sandbox(tmp_path, sandbox(), model, tokenizer)


def test_a_dialogue_of_several_rows_is_refused():
    whole = told(0, 0, [1.0, 2.0])
    turns = [
        Turn("", Reply("", "stop", (1, 2), (3,), (0.0,), whole_prompt=True), reward=1.0) for _ in whole.turns
    ]
    with pytest.raises(InputError, match="several rows"):
        rollout_of([Dialogue(**{**_fields(whole), "turns": tuple(turns)})], filler=0)


def test_a_dialogue_without_words_is_one_token_of_which_nothing_is_learnt():
    silent = told(0, 0, [1.0])
    turn = Turn("", Reply("", "stop", (1, 2), (), ()), reward=1.0)
    found = rollout_of([Dialogue(**{**_fields(silent), "turns": (turn,)})], filler=7)
    assert (
        found["completion_ids"] == [[7]] and found["turn_ids"] == [[-1]] and found["turn_rewards"] == [[1.0]]
    )


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
    with pytest.raises(InputError, match="spread over processes"):
        sandbox().begin(trainer)


def test_a_context_the_model_cannot_read_is_refused(tmp_path):
    with pytest.raises(InputError, match="context is 4096"):
        in_sandbox(tmp_path, sandbox(context=4096))


def test_a_row_that_names_no_scenario_is_refused(tmp_path):
    trainer = in_sandbox(tmp_path, sandbox())
    trainer.train_dataset = rows()
    with pytest.raises(InputError, match="no scenario None"):
        trainer.train()


def test_rewards_and_settings_of_another_kind_are_refused(tmp_path):
    plain = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    with pytest.raises(InputError, match="GRPOConfig"):
        MAPOTrainer(model_of(), args=plain, train_dataset=rows(), rollout_func=canned([]))
    with pytest.raises(InputError, match="reward_funcs given"):
        in_sandbox(tmp_path, sandbox(), more={"reward_funcs": len})


GOOD = {
    "prompt_ids": [[1], [1, 2]],
    "completion_ids": [[3, 4, 5], [6]],
    "logprobs": [[0.0, 0.0, -1.0], [-2.0]],
    "turn_ids": [[0, -1, 1], [0]],
    "turn_rewards": [[1, None], np.array([0.5])],
}


def test_what_a_rollout_of_ones_own_returns():
    found = checked({**GOOD, "mood": ["good", "bad"]}, 2)
    assert found["env_mask"] == [[1, 0, 1], [1]]
    assert found["turn_rewards"] == [[1.0, None], [0.5]] and found["mood"] == ["good", "bad"]
    assert checked({**GOOD, "logprobs": None}, 2)["logprobs"] is None
    assert checked({**GOOD, "turn_rewards": [None, [1.0]]}, 2)["turn_rewards"] == [None, [1.0]]
    assert dialogue_return([[1.0, None, 2.0], [None], None, []]) == [3.0, None, None, None]


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"turn_ids": None}, "turn_ids is a NoneType"),
        ({"turn_rewards": [[1.0]]}, "a list of 1 for 2"),
        ({"prompt_ids": [[], [1]]}, "dialogue 0: prompt_ids or"),
        ({"completion_ids": [[3, 4, 5], []]}, "dialogue 1"),
        ({"turn_ids": [[0, 1], [0]]}, "3 completion_ids but 2 turn_ids"),
        ({"logprobs": [[0.0], [0.0]]}, "3 completion_ids but 1 logprobs"),
        ({"turn_ids": [[0, -1, 2], [0]]}, "turn_ids from -1 to 2, but 2"),
        ({"turn_ids": [[0, -2, 1], [0]]}, "turn_ids from -2"),
        ({"turn_rewards": [[1.0, "2"], [1.0]]}, "'2' is no number"),
        ({"turn_rewards": [[1.0, True], [1.0]]}, "True is no number"),
        ({"turn_rewards": [3.0, [1.0]]}, r"turn_rewards\[0\]: a float"),
    ],
)
def test_a_rollout_that_breaks_the_contract_is_refused(changed, match):
    with pytest.raises(InputError, match=match):
        checked({**GOOD, **changed}, 2)


def test_a_rollout_that_forgets_the_turns_is_refused():
    with pytest.raises(InputError, match="no turn_ids, turn_rewards was returned"):
        checked({key: GOOD[key] for key in ("prompt_ids", "completion_ids", "logprobs")}, 2)


if __name__ == "__main__":
    step_of(sys.argv[1], processes=2)
