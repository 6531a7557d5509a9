"""Play a model in the scripted world and print its scores.

    PYTHONPATH=. python scripts/pocket/probe.py mapo/local_model/pocket [--split builtin:validation] [--seeds 2]
        [--turns 15] [--temperature 1.0] [--device cpu]

Prints EPM-Q, passes, levels by axis, the share of faulty replies, the frequency of kinds of replies, and one dialogue.
Uses plain `generate` on all waiting dialogues: simple and slow.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mapo import Rubric
from mapo.domains.empathy.reading import EmpathyReader
from mapo.domains.empathy.scripted import scripted_cast
from mapo.measure.epmq import composite
from mapo.models.chat import Answer, Request
from mapo.sandbox.cast import Job
from mapo.sandbox.rollout import Rules, play_all
from mapo.scenarios.sets import load_scenarios
from mapo.scoring.result import recompute
from mapo.types import Dialogue, Reply


class GenerateChat:
    """A Chat that collects the requests of all waiting dialogues and samples them in one batch."""

    def __init__(self, folder: str, device: str) -> None:
        self.name = folder
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
        self.waiting: list[tuple[Request, asyncio.Future[str]]] = []

    async def reply(self, request: Request) -> Answer:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        if not self.waiting:
            loop.call_later(0.01, self.flush)
        self.waiting.append((request, future))
        return Answer(Reply(await future))

    @torch.no_grad()
    def flush(self) -> None:
        batch, self.waiting = self.waiting, []
        texts = [
            self.tokenizer.apply_chat_template(
                [{"role": m.role, "content": m.content} for m in request.messages],
                tokenize=False,
                add_generation_prompt=True,
            )
            for request, _ in batch
        ]
        inputs = self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        inputs.pop("token_type_ids", None)
        outputs = self.model.generate(
            **inputs.to(self.model.device),
            do_sample=batch[0][0].temperature > 0,
            temperature=batch[0][0].temperature or None,
            top_k=0,
            top_p=1.0,
            max_new_tokens=batch[0][0].max_tokens,
        )
        start = inputs["input_ids"].shape[1]
        for (_, future), ids in zip(batch, outputs[:, start:], strict=True):
            if not future.done():
                future.set_result(self.tokenizer.decode(ids, skip_special_tokens=True))


def report(dialogues: list[Dialogue], rubric: Rubric) -> None:
    results = [recompute(d, Path("none"), None, rubric, d.id) for d in dialogues if not d.error]
    turns = [t for d in dialogues for t in d.turns]
    print(f"EPM-Q {composite([r.indices for r in results]).epm_q:.1f}, passes {sum(r.passed for r in results)}/{len(results)}, "
          f"{len(turns) / len(dialogues):.1f} turns, broken {sum(bool(d.error) for d in dialogues)}")  # fmt: skip
    for axis in ("C", "A", "P"):
        marks = [t.levels[axis] for t in turns if t.levels]
        up = sum(m.progress.level > 0 for m in marks) / len(marks)
        deep = sum(m.progress.level > 1 for m in marks) / len(marks)
        down = sum(m.regression.level < 0 for m in marks) / len(marks)
        print(f"  {axis}: progress in {up:.0%} of turns (level 2 in {deep:.0%}), harm in {down:.0%}")
    count: Counter[str] = Counter()
    for dialogue in dialogues:
        reader = EmpathyReader()
        for turn in dialogue.turns:
            reader.user_said(turn.user)
            reading = reader.read(turn.reply.text)
            for fault in ("degenerate", "copied", "stale", "long"):
                count[fault] += getattr(reading, fault)
            for kind in ("orders", "platitude", "dismisses", "claims", "links", "affirms", "asks_agency"):
                count[kind] += bool(getattr(reading, kind)())
            count["words"] += len(reading.words)
    print("  " + ", ".join(f"{k} {n / len(turns):.1%}" for k, n in count.items() if k != "words")
          + f", {count['words'] / len(turns):.1f} words")  # fmt: skip
    for turn in dialogues[len(dialogues) // 2].turns:
        levels = {k: (m.progress.level, m.regression.level) for k, m in (turn.levels or {}).items()}
        print(f"\n  user:   {turn.user}\n  model:  {turn.reply.text}\n          {levels}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="folder of the model")
    parser.add_argument("--split", default="builtin:validation")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--turns", type=int, default=None)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    rubric = Rubric.load("empathy")
    rules = Rules(rubric, temperature=args.temperature, max_tokens=96, max_turns=args.turns)
    chat = GenerateChat(args.folder, args.device)
    jobs = [Job(s, f"{s.id}-{k}", seed=k) for s in load_scenarios(args.split) for k in range(args.seeds)]
    dialogues = asyncio.run(play_all(jobs, lambda _: chat, scripted_cast, rules, concurrency=512))
    report(dialogues, rubric)


if __name__ == "__main__":
    main()
