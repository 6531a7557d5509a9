"""The folder `mapo fetch smollm2` makes, beside a llama.cpp server on the GGUF it was made from.

Two programs that share no code must agree on every token, on the chat template, and, but for the server's
arithmetic in eight bits, on what comes next.
"""

from __future__ import annotations

import json
import os
import random
import urllib.request
from pathlib import Path

import pytest
import torch

from mapo.local_model.fetch.catalog import SOURCES
from mapo.local_model.fetch.convert import convert
from mapo.local_model.policy import load_policy

pytestmark = pytest.mark.llm

TEXTS = [
    "In 2024 I paid 1,234.56 for a 3rd-rate 10km run",
    "  two  spaces\n\n\tand tabs \r\n",
    "I'm, don't, we'll, THEY'RE; ' s 's",
    "naïve café – “quoted” … 我很难过 😢👍🏽",
    "<|im_start|>user\nhi<|im_end|>\n",
    "² ½ Ⅷ ٣٤ १२ ① x=[1,22,333]",
    "\u00a0no break\u200bzero\u3000wide e\u0301",
    "\n\n\n",
    "12",
]
TALK = [{"role": "user", "content": "I lost my job after 12 years and feel useless."}]


@pytest.fixture(scope="module")
def ask(request):
    """POST to the server."""
    root = request.getfixturevalue("url").removesuffix("/v1")

    def post(path, **body):
        head = {"Content-Type": "application/json"}
        call = urllib.request.Request(root + path, json.dumps(body).encode(), head)
        with urllib.request.urlopen(call, timeout=300) as answer:
            return json.load(answer)

    return post


@pytest.fixture(scope="module")
def policy(ask, tmp_path_factory):
    out = tmp_path_factory.mktemp("models") / "smollm2"
    convert(Path(os.environ["MAPO_GGUF"]), out, SOURCES["smollm2"])
    return load_policy(str(out), device="cpu")


def test_every_token_is_the_servers(ask, policy):
    draw = random.Random(0)
    pool = "abc XYZ 0123456789 .,!?'\n\t  éßñ我你ö😀²½٣\u00a0\u3000—"
    noise = ["".join(draw.choices(pool, k=draw.randint(1, 60))) for _ in range(300)]
    for text in TEXTS + noise:
        ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert ids == ask("/tokenize", content=text, parse_special=True)["tokens"], repr(text)
        assert policy.tokenizer.decode(ids) == text


def test_the_template_is_the_servers(ask, policy):
    told = [
        {"role": "system", "content": "Be kind."},
        *TALK,
        {"role": "assistant", "content": "Oh no."},
        *TALK,
    ]
    for talk in (TALK, told):
        ours = policy.tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
        assert ours == ask("/apply-template", messages=talk)["prompt"]


def test_log_probs_are_close_to_the_servers(ask, policy):
    prompt = policy.tokenizer.apply_chat_template(TALK, add_generation_prompt=True, tokenize=False)
    plain = {"temperature": 0, "repeat_penalty": 1.0, "cache_prompt": False}
    said = ask("/completion", prompt=prompt, n_predict=40, n_probs=1, **plain)
    steps = said["completion_probabilities"]
    before = policy.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    ids = torch.tensor([before + [step["id"] for step in steps]])
    with torch.no_grad():
        logprobs = policy.model(input_ids=ids).logits[0, len(before) - 1 : -1].log_softmax(-1)
    ours = logprobs.gather(1, ids[0, len(before) :, None])[:, 0]
    gaps = (ours - torch.tensor([step["logprob"] for step in steps])).abs()
    # measured: mean 0.025, most 0.11; a wrong rotation or a swapped tensor is off by whole units
    assert gaps.mean() < 0.1 and gaps.max() < 0.5
    assert (logprobs.argmax(-1) == ids[0, len(before) :]).float().mean() > 0.9


def test_its_reply_reads_as_english(policy):
    prompt = policy.tokenizer.apply_chat_template(
        TALK, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = policy.model.generate(**prompt, max_new_tokens=60, do_sample=False)
    reply = policy.tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    common = " i you your to the a of and is it that for in have can with be are this feel job "
    words = "".join(letter if letter.isalpha() else " " for letter in reply.lower()).split()
    assert len(words) > 10 and sum(f" {word} " in common for word in words) / len(words) > 0.3, reply
