"""Measure a whole training step (rollout and update) of a small model on a CPU against plain transformers.

    .venv/bin/python benchmarks/cpu_step.py MODEL [--dialogues 16] [--turns 8] [--tokens 40] [--repeats 3]

Both sides play the same dialogues (random ids as prompts, replies of exactly --tokens ids) in float32:

- mapo: the sampler, which keeps the KV cache across turns, then `update` as in training.
- plain: `generate` on the full history with all dialogues in one batch, turn by turn; then forward and
  backward passes over four padded rows at a time, log_softmax over all logits, AdamW.

The sides alternate, and the ratios compare their fastest steps. Times are wall-clock seconds and, in
parentheses, CPU seconds; on a busy machine, trust the CPU seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from dataclasses import dataclass
from types import SimpleNamespace

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # stop OpenMP threads from busy-waiting

import numpy as np
import torch
from transformers import AutoConfig

from mapo.config import load_config
from mapo.local_model.policy import folder_of, load_policy
from mapo.models.chat import Request
from mapo.rows import Row
from mapo.sampling.sampler import Sampler
from mapo.train.optim import make_optimizer
from mapo.train.processes import ProcessGroup
from mapo.train.update import update
from mapo.types import Message, Reply

FIRST_PROMPT, NEXT_PROMPT = 80, 20
FIRST_ID, LAST_ID = 10, 40_000


@dataclass(frozen=True)
class Workload:
    """The dialogues that both sides play."""

    dialogues: int
    turns: int
    tokens: int
    vocabulary: int

    def prompts(self, turn: int) -> np.ndarray:
        """Return the ids that precede each dialogue's reply at a turn: [dialogues, ids]."""
        rng = np.random.default_rng(turn)
        high = min(LAST_ID, self.vocabulary)
        return rng.integers(FIRST_ID, high, (self.dialogues, NEXT_PROMPT if turn else FIRST_PROMPT))

    @property
    def context(self) -> int:
        return FIRST_PROMPT + self.turns * (NEXT_PROMPT + self.tokens)


class Clock:
    """(wall, CPU) seconds of each part of a step, and of the whole step."""

    def __init__(self) -> None:
        self.spent: dict[str, np.ndarray] = {"step": np.zeros(2)}
        self._at = self._now()

    def _now(self) -> np.ndarray:
        return np.array([time.perf_counter(), time.process_time()])

    def lap(self, name: str) -> None:
        self.spent[name] = self._now() - self._at
        self.spent["step"] = self.spent["step"] + self.spent[name]
        self._at = self._now()


class WorkloadTemplate:
    """A chat template that returns the workload's ids. A message names its dialogue and turn."""

    append_only, end_ids = True, frozenset()
    tokenizer = SimpleNamespace(decode=lambda *_, **__: "")

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def full_prompt(self, messages):
        return self.workload.prompts(0)[int(messages[-1].content)].tolist()

    def next_turn(self, _, text):
        dialogue, turn = map(int, text.split())
        return self.workload.prompts(turn)[dialogue].tolist()


class MapoStep:
    """A training step with mapo's sampler and update."""

    def __init__(self, folder: str, workload: Workload, dtype: str) -> None:
        self.workload, self.policy = workload, load_policy(folder, device="cpu", dtype=dtype)
        self.policy.model.generation_config.eos_token_id = None  # replies always have the full length
        self.sampler = Sampler(
            self.policy.model,
            WorkloadTemplate(workload),
            name="mapo",
            slots=workload.dialogues,
            context=workload.context,
        )
        self.training = SimpleNamespace(
            config=load_config("smollm2", ["run.reference=false", "optim.updates=1", "optim.tokens=4096"]),
            policy=self.policy,
            optimizer=make_optimizer(self.policy.model, weight_decay=0.0),
            processes=ProcessGroup(),
            done=0,
        )

    async def _play_one(self, number: int) -> list[Reply]:
        policy = self.sampler.policy(SimpleNamespace(id=str(number)))
        messages, replies = (Message("user", str(number)),), []
        for turn in range(self.workload.turns):
            request = Request(messages, max_tokens=self.workload.tokens, seed=number * 100 + turn)
            replies.append((await policy.reply(request)).reply)
            messages += (Message("assistant", ""), Message("user", f"{number} {turn + 1}"))
        policy.end_dialogue()
        return replies

    async def _play(self) -> list[list[Reply]]:
        async with self.sampler:
            return await asyncio.gather(*(self._play_one(n) for n in range(self.workload.dialogues)))

    def step(self) -> dict[str, np.ndarray]:
        self.sampler.stats.clear()
        clock = Clock()
        dialogues = asyncio.run(self._play())
        clock.lap("rollout")
        update(self.training, [row_of(replies, number) for number, replies in enumerate(dialogues)], step=1)
        self.sampler.forget_all()
        clock.lap("update")
        stats = self.sampler.stats
        assert stats.sampled == self.workload.dialogues * self.workload.turns * self.workload.tokens
        print(f"  rollout: prefill {stats.prefill_seconds:.1f} s, decode {stats.decode_seconds:.1f} s")
        return clock.spent


def row_of(replies: list[Reply], dialogue: int) -> Row:
    """Return a row that trains the tokens of all replies, with advantage 1 or -1 by dialogue."""
    prompts = [(r.prompt_ids, [0.0] * len(r.prompt_ids), False) for r in replies]
    sampled = [(r.token_ids, r.logprobs, True) for r in replies]
    parts = [part for pair in zip(prompts, sampled, strict=True) for part in pair]
    mask = np.concatenate([np.full(len(ids), trained) for ids, _, trained in parts])
    return Row(
        ids=np.concatenate([ids for ids, _, _ in parts]).astype(np.int64),
        mask=mask,
        advantages=np.where(mask, 1.0 if dialogue % 2 else -1.0, 0.0).astype(np.float32),
        logprobs=np.concatenate([logprobs for _, logprobs, _ in parts]).astype(np.float32),
        turns=np.zeros(len(mask), np.int32),
        dialogue=dialogue,
    )


class PlainStep:
    """A training step with plain transformers."""

    ROWS = 4
    """Rows per forward pass: the logits of more rows and their gradients would not fit in memory."""

    def __init__(self, folder: str, workload: Workload) -> None:
        self.workload, self.model = workload, load_policy(folder, device="cpu").model
        self.model.generation_config.eos_token_id = None
        self.adam = torch.optim.AdamW(self.model.parameters(), lr=1e-6, weight_decay=0.0)

    def _play(self) -> tuple[torch.Tensor, torch.Tensor]:
        n, ids, mask = self.workload.tokens, torch.empty(self.workload.dialogues, 0, dtype=torch.long), []
        for turn in range(self.workload.turns):
            prompts = torch.from_numpy(self.workload.prompts(turn))
            ids = torch.cat([ids, prompts], 1)
            with torch.no_grad():
                ids = self.model.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, pad_token_id=0,
                    max_new_tokens=n, min_new_tokens=n,
                )  # fmt: skip
            mask += [False] * prompts.shape[1] + [True] * n
        return ids, torch.tensor(mask)

    def step(self) -> dict[str, np.ndarray]:
        self.model.eval()
        clock = Clock()
        ids, mask = self._play()
        clock.lap("rollout")
        self.model.train()
        advantage = torch.where(torch.arange(len(ids)) % 2 == 1, 1.0, -1.0)[:, None]
        total = len(ids) * int(mask.sum())
        for rows, weight in zip(ids.split(self.ROWS), advantage.split(self.ROWS), strict=True):
            logits = self.model(input_ids=rows, attention_mask=torch.ones_like(rows), use_cache=False).logits
            logp = logits[:, :-1].float().log_softmax(-1).gather(-1, rows[:, 1:, None]).squeeze(-1)
            loss = -(weight * torch.exp(logp - logp.detach()))[:, mask[1:]].sum() / total
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        self.adam.zero_grad()
        clock.lap("update")
        return clock.spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="folder or name of a model")
    parser.add_argument("--dialogues", type=int, default=16)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=40, help="tokens per reply (default: 40)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="float32", help="of mapo's side; the plain side uses float32")
    args = parser.parse_args()
    vocabulary = AutoConfig.from_pretrained(folder_of(args.model) or args.model).vocab_size
    if vocabulary <= FIRST_ID:
        parser.error(f"{args.model} has a vocabulary of {vocabulary}, but at least {FIRST_ID + 1} is needed")
    workload = Workload(args.dialogues, args.turns, args.tokens, vocabulary)
    sides = {"mapo": MapoStep(args.model, workload, args.dtype), "plain": PlainStep(args.model, workload)}
    print(f"{workload}, {torch.get_num_threads()} threads, torch {torch.__version__}", flush=True)
    best: dict[str, dict[str, np.ndarray]] = {}
    for _ in range(args.repeats):
        for name, side in sides.items():
            spent = side.step()
            times = "  ".join(f"{key} {wall:.1f} s ({cpu:.1f} s)" for key, (wall, cpu) in spent.items())
            print(f"  {name:6} {times}", flush=True)
            fastest = best.setdefault(name, spent)
            best[name] = {key: np.minimum(spent[key], fastest[key]) for key in spent}
    for key in ("rollout", "update", "step"):
        wall, cpu = best["plain"][key] / best["mapo"][key]
        print(f"{key:8} plain / mapo: {wall:.2f} (wall clock), {cpu:.2f} (CPU time)")


if __name__ == "__main__":
    main()
