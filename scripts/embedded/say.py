"""Collect what a policy says: replies to a part of the lines of every person, sampled at several temperatures.

    PYTHONPATH=. python scripts/embedded/say.py --model policy --out said.jsonl

Each row holds the lines before a reply and the reply. With a verdict (`sense`: a kind of `texts.py`, or 0 for nonsense) it
belongs in sense.jsonl, from which the judges learn: most of all that well-formed sentences can be nonsense. The replies of
a policy that was trained against a judge are those that deceive it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from pathlib import Path

from dialogues import Exchange, Talk
from texts import known_people

from mapo.models.chat import Request
from mapo.sampling.local import local_sampler
from mapo.sampling.sampler import LocalChat
from mapo.types import Message

SHOWN = 4
"""Exchanges of the dialogue that the policy sees."""
BEFORE = 2
"""Lines that a row shows before the one that is replied to."""


async def say(args: argparse.Namespace) -> list[dict[str, object]]:
    """Return rows of lines and a reply to the last one."""
    rng = random.Random(args.seed)
    people = known_people()
    sampler = local_sampler(args.model, slots=args.slots, context=1024)
    gate = asyncio.Semaphore(args.slots)

    async def one(number: int, shown: list[Exchange], temperature: float) -> dict[str, object]:
        pairs = [pair for x in shown for pair in (("user", x.line), ("assistant", x.reply))][:-1]
        messages = tuple(Message(role, text) for role, text in pairs[-2 * SHOWN + 1 :])
        async with gate:
            chat = LocalChat(sampler, str(number))
            answer = await chat.reply(Request(messages, temperature, max_tokens=40, seed=number + args.seed))
            chat.end_dialogue()
        lines = [x.line for x in shown[-BEFORE - 1 :]]
        return {"lines": lines, "reply": " ".join(answer.reply.text.split()), "by": "policy"}

    played = [Talk(person, rng, people, 0.5).play(12) for person in people]
    places = [talk[:end] for talk in played for end in range(1, len(talk) + 1)]
    chosen = rng.sample(places, min(args.replies, len(places)))
    async with sampler:
        jobs = [one(k, shown, rng.choice(args.temperatures)) for k, shown in enumerate(chosen)]
        return await asyncio.gather(*jobs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of the policy")
    parser.add_argument("--out", type=Path, required=True, help="file to write (.jsonl)")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.5, 0.7, 1.0])
    parser.add_argument("--replies", type=int, default=4000)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows = [row for row in asyncio.run(say(args)) if row["reply"]]
    args.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} replies")


if __name__ == "__main__":
    main()
