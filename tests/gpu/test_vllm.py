"""vLLM as the sampler of the policy, on a real card (make test-gpu, in an environment with vLLM).

vLLM can be started once in a process, so one engine serves the tests here, and trainings are commands.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from mapo.local_model.policy import load_policy
from mapo.local_model.template import read_template
from mapo.sampling.sampler import Sampler
from mapo.sampling.vllm.engine import start_vllm
from mapo.sampling.vllm.sampler import VllmSampler
from support import tiny
from support.sampled import job, row_of, talk
from support.small_run import SMALL

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # drivers and compilers have their own
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]
CONTEXT = 1024
OFF = 0.05  # mean difference of log-probabilities that rounding to bfloat16 may cause
SHAPE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tiny model with heads that every attention kernel supports, and distributions of some shape."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = tiny.tokenizer("chatml")
    model = tiny.model("qwen2", vocab_size=len(tokenizer), max_position_embeddings=4096, **SHAPE)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(0.3)
    model.to(torch.bfloat16).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def policy(folder):
    return load_policy(str(folder), device="cuda")


@pytest.fixture(scope="module")
def engine(policy):
    return start_vllm(policy, slots=16, context=CONTEXT, memory=0.1)


def play(sampler, **how):
    """Play 12 dialogues of four turns at once."""

    async def go():
        talks = (talk(sampler.policy(job(str(i))), 4, seed=i, **how) for i in range(12))
        return await asyncio.gather(*talks)

    return asyncio.run(_inside(sampler, go))


async def _inside(sampler, work):
    """Run `work` while the loop of the sampler runs, and leave the engine open for the next test."""
    await sampler.__aenter__()
    try:
        return await work()
    finally:
        await sampler._loop.stop()


def sampler_of(policy, engine) -> VllmSampler:
    return VllmSampler(policy, read_template(policy.tokenizer), engine, context=CONTEXT)


@torch.no_grad()
def differences(model, dialogues, temperature=1.0) -> torch.Tensor:
    """Differences of sampled log-probabilities from log softmax(logits / temperature), for all tokens."""
    every = []
    for replies in dialogues:
        for upto in range(1, len(replies) + 1):
            ids, places = row_of(replies[:upto])
            start, reply = places[-1]
            logits = model(input_ids=torch.tensor([ids], device="cuda"), use_cache=False).logits[0].float()
            expected = torch.log_softmax(logits / temperature, -1)[
                range(start - 1, start - 1 + len(reply.token_ids)), list(reply.token_ids)
            ]
            every.append((torch.tensor(reply.logprobs) - expected.cpu()).abs())
    return torch.cat(every)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_the_model(policy, engine, temperature):
    dialogues = play(sampler_of(policy, engine), temperature=temperature)
    assert differences(policy.model, dialogues, temperature).mean() < OFF


def test_greedy_replies_are_those_of_the_own_decoder(policy, engine):
    ours = Sampler(policy.model, read_template(policy.tokenizer), name="tiny", slots=16, context=CONTEXT)
    pairs = zip(play(sampler_of(policy, engine), temperature=0.0), play(ours, temperature=0.0), strict=True)
    first = [(a[0], b[0]) for a, b in pairs]
    same = [a.token_ids[0] == b.token_ids[0] for a, b in first]
    assert sum(same) >= 10  # rounding may decide between two tokens
    off = [abs(a.logprobs[0] - b.logprobs[0]) for (a, b), equal in zip(first, same, strict=True) if equal]
    assert sum(off) / len(off) < OFF


def test_the_same_seed_gives_the_same_reply(policy, engine):
    once, again = (play(sampler_of(policy, engine)) for _ in range(2))
    same = [a[0].token_ids[0] == b[0].token_ids[0] for a, b in zip(once, again, strict=True)]
    assert sum(same) >= 10  # the second time prompts are cached, which rounds differently
    assert len({replies[0].token_ids for replies in once}) > 6


def test_replies_end_where_ours_do(policy, engine):
    replies = [reply for replies in play(sampler_of(policy, engine)) for reply in replies]
    ends = sampler_of(policy, engine).end_ids
    assert all((reply.token_ids[-1] in ends) == (reply.finish == "stop") for reply in replies)
    assert all(not ends & set(reply.token_ids[:-1]) for reply in replies)
    assert {len(reply.token_ids) for reply in replies if reply.finish == "length"} <= {12, 13, 14}


def test_memory_is_given_back_and_new_weights_are_used(policy, engine):
    sampler = sampler_of(policy, engine)
    torch.cuda.synchronize()
    awake, _ = torch.cuda.mem_get_info()
    sampler.make_room()
    asleep, _ = torch.cuda.mem_get_info()
    assert asleep > awake
    before = {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}
    try:
        with torch.no_grad():
            for weight in policy.model.parameters():
                weight.add_(torch.randn_like(weight) * 0.05)
        sampler.forget_all()
        assert differences(policy.model, play(sampler)).mean() < OFF
    finally:
        with torch.no_grad():
            for name, weight in policy.model.named_parameters():
                weight.copy_(before[name])
        sampler.forget_all()
    assert differences(policy.model, play(sampler_of(policy, engine))).mean() < OFF


# ---- whole trainings


def command(folder: Path, out: Path, *more: str) -> list[str]:
    settings = [*SMALL, f"model.source={folder}", "rollout.sampler=vllm", "rollout.vllm_memory=0.05"]
    settings += ["optim.steps=2", "optim.lr=2e-3", "eval.every=0", *more]
    return [sys.executable, "-m", "mapo", "train", *settings, "--out", str(out)]


def metrics(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def finish(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


@pytest.mark.parametrize("more", [(), ("model.lora.rank=8", "model.lora.alpha=16")], ids=["full", "lora"])
def test_two_steps_are_trained_on_policy(folder, tmp_path, more):
    finish(command(folder, tmp_path / "run", *more))
    lines = metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["drift"] < 2 * OFF for line in lines)  # in step 2 only with the weights of step 1
    assert "vLLM" in json.loads((tmp_path / "run" / "manifest.json").read_text())["decoding"][0]


def test_a_killed_run_is_resumed(folder, tmp_path):
    out = tmp_path / "run"
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(command(folder, out, "optim.steps=6"), stdout=log, stderr=log)
    until = time.monotonic() + 400
    while not (out / "checkpoints" / "step_00001").is_dir() and time.monotonic() < until:
        assert process.poll() is None, (tmp_path / "log").read_text()[-6000:]
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finish([*command(folder, out, "optim.steps=6"), "--resume"])
    assert [line["step"] for line in metrics(out)] == [1, 2, 3, 4, 5, 6]
    assert all(line["drift"] < 2 * OFF for line in metrics(out))
