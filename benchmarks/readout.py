"""Measure judgements per second of a local judge whose levels are read out.

    .venv/bin/python benchmarks/readout.py [--model DIR] [--dialogues 64] [--turns 15] [--json FILE]

N dialogues are judged side by side, each after every turn, with the prompts and the form of `judging =
"readout"`. Compares kept KV caches with a prefill of everything each time. Without --model, the weights are
random, in the shape of a 1.5B model on a GPU and of a 2M model on a CPU. `host` is the time spent on
rendering and tokenising prompts, `read` that of the forward passes, `rest` the remaining time of the event
loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from pathlib import Path
from unittest import mock

import torch
from shapes import SHAPES
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from mapo.local_model.forms import form_tokens
from mapo.local_model.policy import load_policy
from mapo.local_model.template import Template, read_template
from mapo.measure.rubric import Rubric
from mapo.models.chat import ReadRequest
from mapo.sampling.calls import common_prefix
from mapo.sampling.draw import PendingRead
from mapo.sampling.sampler import Sampler
from mapo.sandbox.readout import judge_messages, turn_places
from mapo.scenarios.sets import load_scenarios
from mapo.types import Reply, Turn

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SCENARIOS = load_scenarios("builtin:train")
RUBRIC = Rubric.load("empathy")


def sentences() -> list[str]:
    return [line for s in SCENARIOS for line in (s.opening, *(x for beat in s.beats for x in beat.says))]


def own_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer learned from the scenarios, for random weights."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    special = ["<|im_start|>", "<|im_end|>"]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(sentences(), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", chat_template=CHATML)


def load(model: str | None, device: str):
    """Return model and template."""
    if model:
        policy = load_policy(model)
        return policy.model.to(device), read_template(policy.tokenizer)
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    config = SHAPES["2M" if device == "cpu" else "1.5B"]()
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval(), read_template(own_tokenizer())


def make_dialogues(count: int, turns: int, scenarios: int) -> list[list]:
    """Return the messages of every judgement, by dialogue: lines of the scenarios, put together anew."""
    pick, lines = random.Random(0), sentences()

    def text(low: int, high: int) -> str:
        words = " ".join(pick.choices(lines, k=8)).split()
        return " ".join(words[: pick.randint(low, high)])

    dialogues = []
    for number in range(count):
        played = [Turn(user=text(15, 50), reply=Reply(text=text(50, 120))) for _ in range(turns)]
        scenario = SCENARIOS[number % scenarios % len(SCENARIOS)]
        dialogues.append([judge_messages(scenario, RUBRIC, played[:n]) for n in range(1, turns + 1)])
    return dialogues


def judge_all(sampler: Sampler, dialogues: list[list], *, keep: bool) -> dict:
    """Judge all turns of all dialogues and return the measurements."""
    role, places = sampler.role("judge"), turn_places(RUBRIC)
    host, full_prompt = 0.0, Template.full_prompt

    def timed_prompt(template, messages):
        nonlocal host
        began = time.perf_counter()
        ids = full_prompt(template, messages)
        host += time.perf_counter() - began
        return ids

    async def judge(number: int, turns: list) -> None:
        session = f"d{number}/judge" if keep else ""
        for messages in turns:
            await role.read(ReadRequest(messages, places, session=session))
        role.end_session(f"d{number}")

    async def go() -> float:
        async with sampler:
            began = time.perf_counter()
            await asyncio.gather(*(judge(number, turns) for number, turns in enumerate(dialogues)))
            return time.perf_counter() - began

    sampler.stats.clear()
    sampler.template._pieces.clear()
    sampler.template._escaped.clear()
    with mock.patch.object(Template, "full_prompt", timed_prompt):
        wall, stats = asyncio.run(go()), sampler.stats
    return {
        "judgements_per_second": round(stats.reads / wall, 1),
        "seconds": round(wall, 3),
        "host_seconds": round(host, 3),
        "read_seconds": round(stats.read_seconds, 3),
        "rest_seconds": round(wall - host - stats.read_seconds, 3),
        "ids_prefilled": stats.prefilled,
        "ids_reused": stats.reused,
    }


def profile(sampler: Sampler, dialogues: list[list]) -> str:
    """Return the kernels and operators that take most of the time, without prompts and event loop."""
    form = form_tokens(sampler.template.tokenizer, turn_places(RUBRIC))
    before: list[list[int]] = [[] for _ in dialogues]
    rounds = []
    for turn in range(len(dialogues[0])):
        reads = []
        for slot, turns in enumerate(dialogues):
            prompt = sampler.template.full_prompt(turns[turn])
            start = common_prefix(prompt, before[slot])
            at = [len(prompt) + index - start for index in form.reads]
            before[slot] = [*prompt, *form.ids]
            reads.append(PendingRead(slot, start, before[slot][start:], at, form.options))
        rounds.append(reads)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if sampler.decoder.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as recorded:
        for reads in rounds:
            sampler.decoder.read(reads)
    began = time.perf_counter()
    for reads in rounds:
        sampler.decoder.read(reads)
    seconds = time.perf_counter() - began
    order = "self_cpu_time_total" if len(activities) == 1 else "self_device_time_total"
    table = recorded.key_averages().table(sort_by=order, row_limit=30, max_name_column_width=70)
    return f"{table}\nforward passes alone: {sum(map(len, rounds)) / seconds:.0f} judgements per second"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--dialogues", type=int, default=64)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--scenarios", type=int, default=8, help="dialogues of one share their beginning")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--attention", choices=("auto", "triton", "sdpa"), default="auto")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model, template = load(options.model, options.device)
    sampler = Sampler(
        model,
        template,
        name=options.model or "random weights",
        slots=options.dialogues,
        context=options.context,
        attention=options.attention,
    )
    decoder = sampler.decoder
    names = ("attention kernel", decoder.reads_with_kernel), ("packed layers", bool(decoder.packed_layers))
    print(", ".join(f"{name}: {'yes' if used else 'no'}" for name, used in names))
    dialogues = make_dialogues(options.dialogues, options.turns, options.scenarios)
    judge_all(sampler, [turns[:2] for turns in dialogues], keep=True)  # warm-up
    results = {}
    for name, keep in (("kept caches", True), ("everything prefilled", False)):
        results[name] = judge_all(sampler, dialogues, keep=keep)
        print(f"{name}: {json.dumps(results[name])}", flush=True)
    if options.profile:
        print(profile(sampler, dialogues))
    if options.json:
        shape = {
            name: getattr(options, name) for name in ("model", "device", "dialogues", "turns", "scenarios")
        }
        options.json.write_text(json.dumps({**shape, "results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
