"""Measure whole training steps with all four roles played by local models, and where their time goes.

    .venv/bin/python benchmarks/whole_step.py [--shape 1.5B] [--json FILE] [KEY.PATH=VALUE ...]
    .venv/bin/python benchmarks/whole_step.py --shape 7B --lora 32
    .venv/bin/python benchmarks/whole_step.py --model models/qwen2.5-coder-1.5b-instruct
    .venv/bin/python benchmarks/whole_step.py --shape 2M --dialogues 64 --scenarios 8 --turns 10 --no-model

Runs `mapo train` itself on the config `one-card`: 64 dialogues of 10 turns, the judge's levels and the
director's acts read out, the user's messages sampled, all by the policy as it was before training. One step
warms up, the medians of the others are printed. Checkpoints are not written, and nothing is tested.

Without --model the weights are random. Random models never end a reply, so lengths are drawn for each:

- policy: the deciles of 3,000 replies of ten models to EMPA's users (first ten turns, tokens of
  Qwen2.5-Coder), 26 to 147 tokens, mean 69;
- user: 20 to 50 tokens, as many as mapo's prompt allows a person of the built-in scenarios.

The texts are random pieces of words, which re-encode to 1.09 times as many tokens. The tokenizer is learned
from prompts and scenarios; its prompts are 13 to 17 % longer than Qwen2.5's. So the work is that of a real
model of the same shape whose dialogues have these lengths; the rewards mean nothing. --draw-lengths gives a
real model the same lengths.

Columns: seconds of the step, share of the step, ids fed or sampled, ids per second. `rest` is the part of the
rollout in which no model computed: prompts, forms, records, the event loop. --no-model leaves out forward
passes and update, so that all that is left is this rest, at full size on any machine.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
import transformers
from shapes import CUDA, DTYPE, SHAPES, device_name
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from mapo.cli.training.train import train_locally
from mapo.config import Config, load_config
from mapo.local_model.policy import load_tokenizer
from mapo.rows import Row
from mapo.sampling.calls import SampleCall
from mapo.sampling.decoder import Decoder
from mapo.sampling.draw import PendingRead, PendingReply, SampledTokens
from mapo.sampling.sampler import Sampler
from mapo.scenarios.sets import load_scenarios
from mapo.store import RunDir, read_steps
from mapo.train import checkpoint, loop
from mapo.train.setup import Training
from mapo.types import Dialogue

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 8000
LENGTHS: dict[str, Callable[[random.Random], int]] = {
    "policy": lambda rng: rng.choice((26, 36, 43, 51, 58, 66, 75, 87, 104, 147)),
    "user": lambda rng: rng.randint(20, 50),
}


def texts() -> list[str]:
    """Return the texts that the tokenizer is learned from: scenarios and the prompts of the roles."""
    lines = [
        line
        for s in load_scenarios("builtin:train")
        for line in (s.opening, *(x for beat in s.beats for x in beat.says))
    ]
    prompts = Path(str(files("mapo") / "sandbox" / "prompts"))
    return lines + [file.read_text(encoding="utf-8") for file in sorted(prompts.rglob("*")) if file.is_file()]


def make_tokenizer(size: int) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer of at most `size` ids."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(texts(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHATML
    )


@torch.no_grad()
def write_random_model(shape: str, folder: Path) -> Path:
    """Write a model of random weights that samples only ids of its tokenizer, all about equally often."""
    config = SHAPES[shape]()
    tokenizer = make_tokenizer(min(VOCABULARY, config.vocab_size))
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    config.bos_token_id = None
    torch.manual_seed(0)
    with torch.device("cuda" if CUDA else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPE)
    # The last dimension is the same for all known ids and negative for the others. Layers that add little
    # leave it as it is, so the head gives the others a logit far below.
    for name, weight in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.mul_(0.1)
    for matrix in {id(m.weight): m.weight for m in (model.get_input_embeddings(), model.lm_head)}.values():
        matrix[: len(tokenizer), -1], matrix[len(tokenizer) :, -1] = 2.0, -2.0
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    del model, weight, matrix
    if CUDA:  # the memory plan of the run counts what is free
        gc.collect()
        torch.cuda.empty_cache()
    return folder


@contextmanager
def drawn_lengths() -> Iterator[None]:
    """Inside the block, a reply ends after a number of tokens that its seed determines."""
    ask = Sampler.ask

    async def ask_for_length(sampler: Sampler, call: Any) -> None:
        if isinstance(call, SampleCall) and call.guide is None:
            draw = LENGTHS.get(call.chat.role, lambda _: call.request.max_tokens)
            length = min(draw(random.Random(call.request.seed)), call.request.max_tokens)
            call.request = replace(call.request, max_tokens=length)
        await ask(sampler, call)

    with mock.patch.object(Sampler, "ask", ask_for_length):
        yield


@contextmanager
def host_seconds() -> Iterator[list[float]]:
    """Yield a list that gets the CPU seconds of the event loop's thread in the rollout of every step."""
    spent: list[float] = []
    play = loop.play_step

    async def play_timed(t: Training, step: int) -> list[Dialogue]:
        began = time.thread_time()
        dialogues = await play(t, step)
        spent.append(time.thread_time() - began)
        return dialogues

    with mock.patch.object(loop, "play_step", play_timed):
        yield spent


class NoModel:
    """Stands in for the forward passes: every reply is random ids, every answer equally likely, at once."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary, self.left, self.random = vocabulary, {}, random.Random(0)

    def round(self, decoder: Decoder, fresh: Sequence[PendingReply], going: Sequence[int]) -> dict:
        self.left |= {(decoder, f.slot): len(f.noise) for f in fresh}
        sampled = {}
        for slot in sorted([*going, *(f.slot for f in fresh)]):
            count = min(decoder.chunk + (slot not in going), self.left[decoder, slot])
            self.left[decoder, slot] -= count
            ids = self.random.choices(range(len(SPECIAL), self.vocabulary), k=count)
            sampled[slot] = SampledTokens(ids, [-1.0] * count, done=not self.left[decoder, slot])
        decoder.stats.sampled += sum(len(tokens.ids) for tokens in sampled.values())
        return sampled

    def finish_reads(self, decoder: Decoder, reads: Sequence[PendingRead]) -> dict:
        decoder.stats.reads += len(reads)
        return {r.slot: tuple((-1.0,) * len(options) for options in r.options) for r in reads}

    def update(self, t: Training, rows: Sequence[Row], step: int) -> dict[str, Any]:
        del t, step
        return {"tokens": sum(row.trained for row in rows), "drift": 0.0, "time": {}}

    @contextmanager
    def patched(self) -> Iterator[None]:
        work = {
            "round": lambda decoder, *calls: self.round(decoder, *calls),
            "begin_reads": lambda _, reads: reads,
            "finish_reads": lambda decoder, reads: self.finish_reads(decoder, reads),
            "copy_prefixes": lambda *_: None,
        }
        with mock.patch.multiple(Decoder, **work), mock.patch.object(loop, "update", self.update):
            yield


def config_of(model: Path, args: argparse.Namespace) -> Config:
    turns = args.turns
    lora = [f"model.lora.rank={args.lora}", f"model.lora.alpha={2 * args.lora}"] if args.lora else []
    config = load_config(
        "one-card",
        [
            f"model.source={model}",
            f"roles.everyone.model=local:{model}",
            "model.checkpointing=false",
            f"model.compile={'true' if CUDA else 'false'}",
            *lora,
            f"rollout.scenarios={args.scenarios}",
            f"rollout.siblings={args.dialogues // args.scenarios}",
            f"rollout.at_once={args.dialogues}",
            f"rollout.min_turns={turns}",
            f"rollout.max_turns={turns}",
            "rollout.max_tokens=160",
            f"rollout.context={256 * -(-(512 + turns * 256) // 256)}",
            f"roles.context={256 * -(-(3072 + turns * 300) // 256)}",
            f"optim.steps={1 + args.steps}",
            "eval.every=0",
            "eval.test_repeats=0",
            "run.trackers=[]",
            *args.settings,
        ],
    )
    if not args.lora and not any(text.startswith("model.lora") for text in args.settings):
        config = config.model_copy(update={"model": config.model.model_copy(update={"lora": None})})
    return config


def parts_of(step: dict[str, Any]) -> dict[str, tuple[float, int]]:
    """Return the parts of a step that do not overlap: seconds and ids."""
    spent, ids = step["time"], step["ids"]
    roles = [role for role in ("policy", "user", "director", "judge") if role in spent]
    parts = {
        f"{role} {kind}": (spent[role][kind], ids[role][kind])
        for role in roles
        for kind in ("prefill", "decode", "read")
        if kind in spent[role]
    }
    parts["rest of rollout"] = (spent["rest"], 0)
    parts["credit"] = (step["credit_s"], 0)
    trained = int(step["tokens"])
    for name in ("reference", "forward", "backward", "optimizer"):
        parts[name] = (spent.get(name, 0.0), trained if name in ("forward", "backward") else 0)
    measured = sum(spent.get(name, 0.0) for name in ("reference", "forward", "backward", "optimizer"))
    parts["rest of update"] = (max(0.0, step["update_s"] - measured), 0)
    parts["metrics"] = (step["step_s"] - step["rollout_s"] - step["credit_s"] - step["update_s"], 0)
    return parts


def summarise(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians over steps."""
    every = [parts_of(step) for step in steps]

    def middle(key: str) -> float:
        return median(float(step[key]) for step in steps)

    return {
        "step_s": middle("step_s"),
        "all_step_s": [step["step_s"] for step in steps],
        "rollout_s": middle("rollout_s"),
        "update_s": middle("update_s"),
        "sampled_tokens": middle("sampled_tokens"),
        "sampled_per_s": middle("sampled_per_s"),
        "trained_tokens": middle("tokens"),
        "trained_per_s": middle("trained_per_s"),
        "memory_gb": max(step["memory_gb"] for step in steps),
        "turns": middle("turns"),
        "broken": sum(step["broken"] for step in steps),
        "unscored": middle("unscored"),
        "drift": middle("drift"),
        "parts": {
            name: {
                "seconds": median(parts[name][0] for parts in every),
                "ids": int(median(parts[name][1] for parts in every)),
            }
            for name in every[0]
        },
    }


def show(result: dict[str, Any]) -> None:
    total = result["step_s"]
    print("| part | seconds | share | ids | ids/s |\n|---|---|---|---|---|")
    for name, part in result["parts"].items():
        seconds, ids = part["seconds"], part["ids"]
        rates = [f"{ids:,}", f"{ids / seconds:,.0f}"] if ids and seconds else ["", ""]
        print(f"| {name} | {seconds:.2f} | {seconds / total:.1%} | {' | '.join(rates)} |")
    steps = ", ".join(f"{seconds:.2f}" for seconds in result["all_step_s"])
    print(f"| **step** | **{total:.2f}** | | | |\n")
    print(
        f"steps: {steps} s; sampled {result['sampled_per_s']:,.0f} tokens/s, trained "
        f"{result['trained_per_s']:,.0f} tokens/s; peak {result['memory_gb']:.1f} GiB; "
        f"{result['turns']:.1f} turns, {result['broken']} broken dialogues, drift {result['drift']:.2g}\n"
        f"CPU time of the rollout's Python code: {result['host_s']:.2f} s per step"
    )


def measure(model: Path, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    config = config_of(model, args)
    out = folder / "run"
    # CPU seconds of the event loop's thread: forward passes run in others.
    profiler = cProfile.Profile(time.thread_time) if args.profile else None
    with ExitStack() as stack:
        if not args.model or args.no_model or args.draw_lengths:
            stack.enter_context(drawn_lengths())
        if args.no_model:
            stack.enter_context(NoModel(len(load_tokenizer(str(model)))).patched())
        for name in ("save", "remove_old"):
            stack.enter_context(mock.patch.object(checkpoint, name))
        host = stack.enter_context(host_seconds())
        if profiler:
            profiler.enable()
        train_locally(config, out, resume=False)
        if profiler:
            profiler.disable()
    steps = read_steps(RunDir(out).metrics)
    if profiler:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(40).sort_stats("cumtime").print_stats(80)
    decoding = json.loads(RunDir(out).manifest.read_text(encoding="utf-8")).get("decoding")
    first = {"decoding": decoding, "first_step_s": steps[0]["step_s"], "host_s": median(host[1:])}
    return {**first, **summarise(steps[1:])}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="*", metavar="KEY.PATH=VALUE", help="settings of the training run")
    parser.add_argument("--shape", choices=SHAPES, default="1.5B" if CUDA else "2M")
    parser.add_argument("--model", type=Path, help="folder of a real model, instead of a shape")
    parser.add_argument("--draw-lengths", action="store_true", help="with --model: end replies as above")
    parser.add_argument("--lora", type=int, metavar="RANK", help="train adapters (default: all weights)")
    parser.add_argument("--dialogues", type=int, default=64 if CUDA else 8)
    parser.add_argument(
        "--scenarios", type=int, default=8 if CUDA else 2, help="dialogues / scenarios are siblings"
    )
    parser.add_argument("--turns", type=int, default=10 if CUDA else 3)
    parser.add_argument("--steps", type=int, default=3, help="measured steps, after one more to warm up")
    parser.add_argument("--no-model", action="store_true", help="replace forward passes: time Python alone")
    parser.add_argument("--profile", action="store_true", help="profile the Python code of the event loop")
    parser.add_argument("--keep", type=Path, help="keep run and random model in this new folder")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    if args.dialogues % args.scenarios or args.dialogues // args.scenarios < 2 or args.steps < 1:
        parser.error(
            "--dialogues must be a multiple of --scenarios, at least twice as many; --steps at least 1"
        )
    what = f"{args.model or args.shape}{f', LoRA rank {args.lora}' if args.lora else ''}"
    setup = f"{device_name()}, torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{setup}\n{what}: {args.dialogues} dialogues of {args.turns} turns", flush=True)
    folder = args.keep or Path(tempfile.mkdtemp(prefix="whole-step-"))
    try:
        model = args.model or write_random_model(args.shape, folder / "model" / args.shape)
        result = {"what": what, "setup": setup, "dialogues": args.dialogues, "turns_planned": args.turns}
        result |= {"settings": args.settings, **measure(model, args, folder)}
        show(result)
        if args.json:
            args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    finally:
        if not args.keep:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
