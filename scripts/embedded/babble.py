"""Collect what a policy says when it babbles: replies sampled at a high temperature, by line.

    PYTHONPATH=. python scripts/embedded/babble.py --model mapo/local_model/pocket --stories stories.jsonl.gz --out babble.json

A judge learns from them that well-formed sentences can mean nothing (`make_judge.py --babble`). The policy replies in
dialogues of the corpus, to a part of the lines of every person, held-out ones included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import defaultdict
from pathlib import Path

from corpus import generated_people, split
from dialogues import Talk

from mapo.models.chat import Request
from mapo.sampling.local import local_sampler
from mapo.sampling.sampler import LocalChat
from mapo.types import Message


async def babble(args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the replies by line."""
    written, generated, held = split("all", generated_people(args.stories))
    rng = random.Random(args.seed)
    people = [*written, *held, *rng.sample(generated, min(len(generated), args.generated))]
    sampler = local_sampler(args.model, slots=args.slots, context=1024)
    replies: dict[str, list[str]] = defaultdict(list)
    gate = asyncio.Semaphore(args.slots)

    async def one(number: int, lines: list[tuple[str, str]]) -> None:
        messages = [
            Message(role, text)
            for line, reply in lines
            for role, text in (("user", line), ("assistant", reply))
        ]
        temperature = (1.0, 1.2, 1.4)[number % 3]
        async with gate:
            chat = LocalChat(sampler, str(number))
            answer = await chat.reply(Request(tuple(messages[:-1]), temperature, max_tokens=48, seed=number))
            chat.end_dialogue()
        if answer.reply.text.strip():
            replies[lines[-1][0]].append(answer.reply.text.strip())

    played = [Talk(person, rng, people, 0.5).play(16) for person in people for _ in range(args.talks)]
    ends = [(talk, end) for talk in played for end in range(1, len(talk) + 1) if rng.random() < args.share]
    jobs = [[(x.line, x.reply) for x in talk[max(0, end - 4) : end]] for talk, end in ends]
    async with sampler:
        await asyncio.gather(*(one(number, lines) for number, lines in enumerate(jobs)))
    return replies


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of the policy")
    parser.add_argument("--stories", type=Path, help="file that write.py made")
    parser.add_argument("--out", type=Path, required=True, help="file to write (.json)")
    parser.add_argument("--generated", type=int, default=2000, help="generated people to reply to")
    parser.add_argument("--talks", type=int, default=2, help="dialogues per person")
    parser.add_argument("--share", type=float, default=0.5, help="share of the turns that are replied to")
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    replies = asyncio.run(babble(args))
    args.out.write_text(json.dumps(replies), encoding="utf-8")
    print(f"{sum(map(len, replies.values()))} replies to {len(replies)} lines")


if __name__ == "__main__":
    main()
