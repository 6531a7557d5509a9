"""Collect what a policy says: a few replies to a part of the lines of every person, sampled at several temperatures.

    PYTHONPATH=. python scripts/embedded/say.py --model policy --out said.jsonl.gz

`write.py kinds` names their kinds, and a judge learns from them (`make_judge.py --policy-replies`): most of all that well-formed
sentences can be nonsense. With a policy that was trained against a judge, these are the replies that deceive it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path

from corpus import generated_people
from dialogues import Exchange, Talk
from documents import BEFORE, new_rows
from texts import held_out_people, known_people, train_scenarios

from mapo.models.chat import Request
from mapo.sampling.local import local_sampler
from mapo.sampling.sampler import LocalChat
from mapo.types import Message

SHOWN = 4
"""Exchanges of the dialogue that the policy sees."""


async def say(args: argparse.Namespace) -> list[dict[str, list[str]]]:
    """Return the lines before each place and the replies to the last one."""
    rng = random.Random(args.seed)
    people = [*known_people(), *held_out_people(), *train_scenarios()]
    strangers = generated_people(args.stories)
    people += rng.sample(strangers, min(args.generated, len(strangers)))
    sampler = local_sampler(args.model, slots=args.slots, context=1024)
    gate = asyncio.Semaphore(args.slots)

    async def one(number: int, shown: list[Exchange]) -> dict[str, list[str]]:
        pairs = [pair for x in shown for pair in (("user", x.line), ("assistant", x.reply))][:-1]
        messages = tuple(Message(role, text) for role, text in pairs[-2 * SHOWN + 1 :])
        replies = []
        for k, temperature in enumerate(args.temperatures):
            async with gate:
                chat = LocalChat(sampler, f"{number}/{k}")
                answer = await chat.reply(
                    Request(messages, temperature, max_tokens=40, seed=10 * number + k + args.seed)
                )
                chat.end_dialogue()
            replies.append(" ".join(answer.reply.text.split()))
        lines = [x.line for x in shown[-BEFORE - 1 :]]
        return {"lines": lines, "replies": [*dict.fromkeys(reply for reply in replies if reply)]}

    played = [Talk(person, rng, people, 0.5).play(16) for person in people]
    places = [talk[:end] for talk in played for end in range(1, len(talk) + 1) if rng.random() < args.share]
    async with sampler:
        return await asyncio.gather(*(one(number, shown) for number, shown in enumerate(places)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of the policy")
    parser.add_argument("--out", type=Path, required=True, help="file to write (.jsonl.gz)")
    parser.add_argument(
        "--stories", type=Path, nargs="+", default=[], help="files that `write.py stories` made"
    )
    parser.add_argument("--generated", type=int, default=1500, help="people drawn from --stories")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 0.9, 1.0, 1.0, 1.2])
    parser.add_argument("--share", type=float, default=0.3, help="share of the turns that are replied to")
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows = asyncio.run(say(args))
    with new_rows(args.out) as add:
        for row in rows:
            if row["replies"]:
                add(row)
    print(f"{sum(len(row['replies']) for row in rows)} replies to {len(rows)} lines")


if __name__ == "__main__":
    main()
