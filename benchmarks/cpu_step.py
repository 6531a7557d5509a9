"""A whole training step of a real small model on a CPU, beside plain transformers: dialogues, then an update.

    .venv/bin/python benchmarks/cpu_step.py FOLDER [--dialogues 16] [--turns 8] [--tokens 40] [--repeats 3]

Both sides hold the same talks (random ids as prompts, replies of exactly --tokens ids) in float32:

- ours: the sampler, which keeps every dialogue's cache from turn to turn; then `update`, as in training.
- plain: `generate` on the whole history, all dialogues at once, turn by turn; then forward and backward
  passes over padded rows, four at a time, log_softmax over all logits, AdamW.

The sides take turns, and the ratios are of their fastest steps. Seconds of the clock, and of the processor:
on a machine that has other work to do the second is the one to trust.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait do not spin

import numpy as np
import torch

from mapo.config import load_config
from mapo.local_model.policy import load_policy
from mapo.models.chat import Request
from mapo.rows import Row
from mapo.sampling.sampler import Sampler
from mapo.train.optim import make_optimizer
from mapo.train.processes import ProcessGroup
from mapo.train.update import update
from mapo.types import Message, Reply

OPENING, FOLLOWING = 80, 20


@dataclass(frozen=True)
class Talks:
    dialogues: int
    turns: int
    tokens: int

    def prompts(self, turn: int) -> np.ndarray:
        """What each dialogue's user says at a turn: [dialogues, ids]."""
        rng = np.random.default_rng(turn)
        return rng.integers(10, 40000, (self.dialogues, FOLLOWING if turn else OPENING))

    @property
    def context(self) -> int:
        return OPENING + self.turns * (FOLLOWING + self.tokens)


class Clock:
    """(wall, processor) seconds of each part of a step, and of the whole."""

    def __init__(self) -> None:
        self.spent: dict[str, np.ndarray] = {"step": np.zeros(2)}
        self._at = self._now()

    def _now(self) -> np.ndarray:
        return np.array([time.perf_counter(), time.process_time()])

    def lap(self, name: str) -> None:
        self.spent[name] = self._now() - self._at
        self.spent["step"] = self.spent["step"] + self.spent[name]
        self._at = self._now()


class Numbers:
    """A template of ids in place of words, one a dialogue."""

    append_only, end_ids = True, frozenset()
    tokenizer = SimpleNamespace(decode=lambda *_, **__: "")

    def __init__(self, talks: Talks) -> None:
        self.talks = talks

    def opening(self, messages):
        return self.talks.prompts(0)[int(messages[-1].content)].tolist()

    def following(self, _, said):
        dialogue, turn = map(int, said.split())
        return self.talks.prompts(turn)[dialogue].tolist()


class Ours:
    def __init__(self, folder: str, talks: Talks, dtype: str) -> None:
        self.talks, self.policy = talks, load_policy(folder, device="cpu", dtype=dtype)
        self.policy.model.generation_config.eos_token_id = None  # replies are as long as they may be
        self.sampler = Sampler(
            self.policy.model, Numbers(talks), name="ours", slots=talks.dialogues, context=talks.context
        )
        self.training = SimpleNamespace(
            config=load_config("smollm2", ["run.reference=false", "optim.updates=1", "optim.tokens=4096"]),
            policy=self.policy,
            optimizer=make_optimizer(self.policy.model, weight_decay=0.0),
            processes=ProcessGroup(),
            done=0,
        )

    async def _talk(self, at: int) -> list[Reply]:
        seat = self.sampler.policy(SimpleNamespace(id=str(at)))
        messages, replies = (Message("user", str(at)),), []
        for turn in range(self.talks.turns):
            request = Request(messages, max_tokens=self.talks.tokens, seed=at * 100 + turn)
            replies.append((await seat.reply(request)).reply)
            messages += (Message("assistant", ""), Message("user", f"{at} {turn + 1}"))
        seat.end_dialogue()
        return replies

    async def _play(self) -> list[list[Reply]]:
        async with self.sampler:
            return await asyncio.gather(*(self._talk(at) for at in range(self.talks.dialogues)))

    def step(self) -> dict[str, np.ndarray]:
        self.sampler.stats.clear()
        clock = Clock()
        played = asyncio.run(self._play())
        clock.lap("rollout")
        update(self.training, [row_of(replies, at) for at, replies in enumerate(played)], step=1)
        self.sampler.forget_all()
        clock.lap("update")
        stats = self.sampler.stats
        assert stats.sampled == self.talks.dialogues * self.talks.turns * self.talks.tokens
        print(f"  of the rollout: prefill {stats.prefill_seconds:.1f} s, decode {stats.decode_seconds:.1f} s")
        return clock.spent


def row_of(replies: list[Reply], dialogue: int) -> Row:
    """Every reply's tokens train; half of the dialogues were better than the rest."""
    parts = [(r.prompt_ids, [0.0] * len(r.prompt_ids), False) for r in replies]
    said = [(r.token_ids, r.logprobs, True) for r in replies]
    both = [part for pair in zip(parts, said, strict=True) for part in pair]
    mask = np.concatenate([np.full(len(ids), trained) for ids, _, trained in both])
    return Row(
        ids=np.concatenate([ids for ids, _, _ in both]).astype(np.int64),
        mask=mask,
        advantages=np.where(mask, 1.0 if dialogue % 2 else -1.0, 0.0).astype(np.float32),
        logprobs=np.concatenate([logprobs for _, logprobs, _ in both]).astype(np.float32),
        turns=np.zeros(len(mask), np.int32),
        dialogue=dialogue,
    )


class Plain:
    ROWS = 4
    """Rows a forward pass: the logits of more would not fit beside their gradients."""

    def __init__(self, folder: str, talks: Talks) -> None:
        self.talks, self.model = talks, load_policy(folder, device="cpu").model
        self.model.generation_config.eos_token_id = None
        self.adam = torch.optim.AdamW(self.model.parameters(), lr=1e-6, weight_decay=0.0)

    def _play(self) -> tuple[torch.Tensor, torch.Tensor]:
        n, ids, mask = self.talks.tokens, torch.empty(self.talks.dialogues, 0, dtype=torch.long), []
        for turn in range(self.talks.turns):
            asked = torch.from_numpy(self.talks.prompts(turn))
            ids = torch.cat([ids, asked], 1)
            with torch.no_grad():
                ids = self.model.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, pad_token_id=0,
                    max_new_tokens=n, min_new_tokens=n,
                )  # fmt: skip
            mask += [False] * asked.shape[1] + [True] * n
        return ids, torch.tensor(mask)

    def step(self) -> dict[str, np.ndarray]:
        self.model.eval()
        clock = Clock()
        ids, mask = self._play()
        clock.lap("rollout")
        self.model.train()
        advantage = torch.where(torch.arange(len(ids)) % 2 == 1, 1.0, -1.0)[:, None]
        total = len(ids) * int(mask.sum())
        for rows, worth in zip(ids.split(self.ROWS), advantage.split(self.ROWS), strict=True):
            logits = self.model(input_ids=rows, attention_mask=torch.ones_like(rows), use_cache=False).logits
            logp = logits[:, :-1].float().log_softmax(-1).gather(-1, rows[:, 1:, None]).squeeze(-1)
            loss = -(worth * torch.exp(logp - logp.detach()))[:, mask[1:]].sum() / total
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        self.adam.zero_grad()
        clock.lap("update")
        return clock.spent


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("model", type=Path)
    ask.add_argument("--dialogues", type=int, default=16)
    ask.add_argument("--turns", type=int, default=8)
    ask.add_argument("--tokens", type=int, default=40)
    ask.add_argument("--repeats", type=int, default=3)
    ask.add_argument("--dtype", default="float32", help="ours; plain stays in float32")
    args = ask.parse_args()
    talks = Talks(args.dialogues, args.turns, args.tokens)
    sides = {"ours": Ours(str(args.model), talks, args.dtype), "plain": Plain(str(args.model), talks)}
    print(f"{talks}, {torch.get_num_threads()} threads, torch {torch.__version__}", flush=True)
    best: dict[str, dict[str, np.ndarray]] = {}
    for _ in range(args.repeats):
        for name, side in sides.items():
            spent = side.step()
            told = "  ".join(f"{key} {wall:.1f} s ({cpu:.1f} s)" for key, (wall, cpu) in spent.items())
            print(f"  {name:6} {told}", flush=True)
            kept = best.setdefault(name, spent)
            best[name] = {key: np.minimum(spent[key], kept[key]) for key in spent}
    for key in ("rollout", "update", "step"):
        ours, plain = best["ours"][key], best["plain"][key]
        wall, cpu = plain / ours
        print(f"{key:8} plain over ours: {wall:.2f} by the clock, {cpu:.2f} by the processor")


if __name__ == "__main__":
    main()
