"""Talks for the tests of the TRL engine: made-up dialogues with rewards, a small sandbox with plain roles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from datasets import Dataset

from mapo import Rubric, Rules
from mapo.engines.trl import MAPOConfig, MAPOTrainer, Sandbox, rollout_of, scenario_rows
from mapo.sandbox.cast import Cast
from mapo.scenarios.sets import load_scenarios
from mapo.train.loss import token_logprobs
from mapo.types import Dialogue, Direction, Ending, PotentialState, Reply, StopReason, Turn
from support import tiny
from support.builders import marks

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
    """A dialogue of random words and steps, whose turns earned `rewards`; None: it broke."""
    chance = np.random.default_rng([reply_seed, place])
    steps = np.random.default_rng([9, reply_seed, place])
    start = position = (-9.0, -6.0, -3.0)

    def words(low, high):
        return tuple(chance.integers(3, 200, chance.integers(low, high)).tolist())

    turns = []
    for reward in rewards or [1.0]:
        said = words(1, 7)
        step = steps.choice([-3.0, 0.0, 3.0], 3).tolist()
        position = tuple(x + d for x, d in zip(position, step, strict=True))
        state = PotentialState(len(turns) + 1, position, 0.0, False, 0.0, 0.0)
        reply = Reply("", "stop", words(2, 9), said, (0.0,) * len(said))
        turns.append(Turn("", reply, state=state, reward=reward))
    broke = "the user is gone" if rewards is None else None
    ending = Ending(StopReason.SUCCESS if place % 2 else StopReason.TIMEOUT)
    known = {"group": str(place // 4), "error": broke, "ending": ending}
    return Dialogue(str(place), "s", "m", "r", "p", {}, start, tuple(turns), **known)


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
        turns.append(replace(turn, reply=_with(turn.reply, tuple(logp.tolist()))))
    return Dialogue(**{**fields(dialogue), "turns": tuple(turns)})


def _with(reply, logprobs):
    return Reply(reply.text, reply.finish, reply.prompt_ids, reply.token_ids, logprobs)


def fields(dialogue):
    return {name: getattr(dialogue, name) for name in Dialogue.__dataclass_fields__}


def canned(dialogues):
    """A rollout that knows what was said: each process gets its own."""

    def rollout(prompts, trainer):
        first = trainer.accelerator.process_index * len(prompts)
        mine = dialogues[first : first + len(prompts)]
        return {**rollout_of(mine, filler=0), **trainer.args.credit_inputs(mine, RUBRIC)}

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
