"""Roles on a real card (make test-gpu): forms follow their schema, answers equal a plain forward pass."""

from __future__ import annotations

import json

import pytest
import torch

from mapo.local_model.forms import form_tokens
from mapo.local_model.memory import available_memory
from mapo.models.chat import Place, ReadRequest, Request
from mapo.types import Message
from support import tiny
from support.sampled import LINES, job, sampler, talk, together

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # drivers and compilers have their own
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
PLACES = (Place("\nC progress:", ("0", "1", "2")), Place("\nact:", ("a", "b")))
SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "level": {"type": "integer", "enum": [0, 1, 2]}},
    "required": ["text", "level"],
    "additionalProperties": False,
}


def transcript(turns, seed):
    lines = "\n".join(LINES[(seed + at) % len(LINES)] for at in range(turns))
    return (Message("system", "Judge the reply."), Message("user", f"{lines}\nWhich level?"))


@torch.no_grad()
def expected(made, messages):
    form = form_tokens(made.template.tokenizer, PLACES)
    prompt = made.template.full_prompt(messages)
    ids = torch.tensor([[*prompt, *form.ids]], device="cuda")
    logits = made.decoder.model(input_ids=ids, use_cache=False).logits[0].float()
    return [
        torch.log_softmax(logits[len(prompt) + at, options], -1).tolist()
        for at, options in zip(form.reads, form.options, strict=True)
    ]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral"])
@pytest.mark.parametrize("slots", [3, 16])
def test_answers_equal_a_plain_forward_pass_beside_other_dialogues(kind, slots):
    made = sampler(model=tiny.model(kind).cuda(), slots=slots, context=900)
    judge = made.role("judge")

    async def judge_all(i):
        read = []
        for turn in range(1, 6):
            messages = transcript(turn, i)
            read.append((messages, await judge.read(ReadRequest(messages, PLACES, session=f"d{i}"))))
        return read

    judged = [lambda _, i=i: judge_all(i) for i in range(6)]
    talks = [lambda s, i=i: talk(s.policy(job(str(i))), 3, seed=i) for i in range(3)]
    for read in together(made, *judged, *talks)[: len(judged)]:
        for messages, answers in read:
            for answer, logprobs in zip(answers, expected(made, messages), strict=True):
                assert answer == pytest.approx(logprobs, abs=2e-3)


def test_forms_follow_their_schema_beside_other_dialogues():
    pytest.importorskip("llguidance")
    made = sampler(model=tiny.model().cuda(), slots=16, context=900)
    role = made.role("director")

    async def fill_in(i):
        texts = []
        for turn in range(1, 4):
            request = Request(transcript(turn, i), max_tokens=120, schema=SCHEMA, session=f"d{i}", seed=i)
            texts.append((await role.reply(request)).text)
        return texts

    forms = [lambda _, i=i: fill_in(i) for i in range(6)]
    talks = [lambda s, i=i: talk(s.policy(job(str(i))), 3, seed=i) for i in range(3)]
    filled = together(made, *forms, *talks)
    for texts in filled[: len(forms)]:
        for text in texts:
            assert json.loads(text)["level"] in (0, 1, 2)
    alone = sampler(model=tiny.model().cuda(), slots=16, context=900)
    replies = together(alone, *talks)
    assert [[r.text for r in talked] for talked in filled[len(forms) :]] == [
        [r.text for r in talked] for talked in replies
    ]


def test_memory_above_the_limit_of_the_process_is_not_planned():
    _, total = torch.cuda.mem_get_info(0)
    torch.cuda.set_per_process_memory_fraction(0.25)
    try:
        available, _ = available_memory("cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert 0 < available <= total // 4
