"""Dialogues with tiny models, and what a plain forward pass says of them."""

from __future__ import annotations

import asyncio

import torch

from mapo.local_model.template import read_template
from mapo.models.chat import Request
from mapo.sampling.sampler import Sampler
from mapo.sandbox.cast import Job
from mapo.scenarios.sets import load_scenarios
from mapo.types import Message
from support import tiny

SCENARIOS = load_scenarios("builtin:train")
LINES = ["Hello there.", "Nobody listens to me at work.", "It rains.", "What now?", "I am tired, " * 4]


def sampler(family="chatml", kind="llama", *, slots=4, context=512, model=None, **more) -> Sampler:
    template = read_template(tiny.tokenizer(family))
    return Sampler(model or tiny.model(kind), template, name="tiny", slots=slots, context=context, **more)


def job(name="d") -> Job:
    return Job(SCENARIOS[0], name)


async def talk(seat, turns, *, seed=0, max_tokens=12, temperature=1.0, top_p=1.0, pause=None):
    """A dialogue with a user who reads lines; what the seat answered."""
    messages = [Message("system", "Be kind.")]
    replies = []
    for turn in range(turns):
        messages.append(Message("user", LINES[(turn + seed) % len(LINES)]))
        request = Request(tuple(messages), temperature, top_p, max_tokens + turn % 3, seed=seed * 1000 + turn)
        replies.append((await seat.reply(request)).reply)
        messages.append(Message("assistant", replies[-1].text))
        if pause:
            await pause(turn)
    seat.end_dialogue()
    return replies


def together(made: Sampler, *talks):
    """Run the coroutines `talks` make of the sampler, all at once."""

    async def go():
        async with made:
            return await asyncio.gather(*(one(made) for one in talks))

    return asyncio.run(go())


def row_of(replies):
    """The dialogue's ids, and where its sampled ids stand: all prompt_ids and token_ids in order."""
    ids, places = [], []
    for reply in replies:
        if reply.whole_prompt:
            ids, places = [], []
        ids += reply.prompt_ids
        places.append((len(ids), reply))
        ids += reply.token_ids
    return ids, places


def teacher_forced(model, ids, temperature=1.0):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
    return torch.log_softmax(logits / temperature, -1)


def check_against(model, replies, temperature=1.0):
    """logprobs[k] = log softmax(logits / temperature) at the id before token k, given all ids before it."""
    for upto in range(1, len(replies) + 1):
        ids, places = row_of(replies[:upto])
        start, reply = places[-1]
        expected = teacher_forced(model, ids, temperature)[
            range(start - 1, start - 1 + len(reply.token_ids)), list(reply.token_ids)
        ]
        assert torch.tensor(reply.logprobs).sub(expected).abs().max() < 1e-4


class Recordings(dict):
    """Stands in for CUDA graphs: work recorded under a key is done again on the same static inputs."""

    def record(self, key, work, *, warm):
        for _ in range(warm):
            work()
        self[key] = work

    def replay(self, key, times=1):
        for _ in range(times):
            self[key]()
