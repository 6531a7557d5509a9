"""Read replies blind: draw them from a test, hide which policy wrote them, and count a reader's verdicts.

    .venv/bin/python benchmarks/blind_replies.py draw runs/mine/eval/after --out blind
    .venv/bin/python benchmarks/blind_replies.py count blind

`draw` picks replies of tested dialogues at random, at most two of a dialogue. In other dialogues, one reply
of each, it also lets the untrained policy answer the same line, without a system prompt. Give it the test's
temperature and longest reply; the defaults are those of the config `pocket`. 100 replies and pairs need 150
dialogues (`mapo eval empa --repeats 13`). The reader gets `replies.md` (by the tested policy, for grammar
and subject) and `pairs.md` (by both, in random order) and fills in `replies.txt` and `pairs.txt`.
`key.json` is for `count` alone, which prints the shares with Wilson intervals.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from mapo.errors import RecordError
from mapo.measure.stats import wilson
from mapo.models.chat import Request
from mapo.sampling.local import local_sampler
from mapo.sampling.sampler import LocalChat
from mapo.store import BadLine, read_dialogues
from mapo.types import Dialogue, Message

SHOWN = 3
"""Exchanges that the reader sees before the line."""

REPLIES = """# Replies

Each block ends with a line (**person**) and one reply (**reply**). Write one row per block into replies.txt:

    NUMBER GRAMMAR SUBJECT

GRAMMAR: y if the reply is grammatical and sounds like something a native speaker could write, else n.
SUBJECT: y if it is a sensible answer to what this person has just said or said before, else n. A reply that
would fit any person at any time is n; one that mentions things nobody spoke of is n.
"""
PAIRS = """# Pairs

Each block ends with a line (**person**) and two replies, A and B. Which would you rather have heard, as this
person? Write one row per block into pairs.txt: NUMBER, then A, B or = (no difference).
"""


Place = tuple[Dialogue, int]
"""A dialogue and a turn of it, from 0."""


def drawn_places(
    dialogues: list[Dialogue], count: int, rng: random.Random
) -> tuple[list[Place], list[Place]]:
    """Return `count` places for single replies, at most two of a dialogue, and `count` for pairs, each of
    another dialogue: what a block shows before its line would give away other pairs of the dialogue. Too few
    dialogues end the program.
    """
    shuffled = rng.sample(dialogues, len(dialogues))
    of_pairs, of_replies = shuffled[:count], shuffled[count:]
    pairs = [(dialogue, rng.randrange(len(dialogue.turns))) for dialogue in of_pairs]
    replies = [
        (dialogue, turn)
        for dialogue in of_replies
        for turn in rng.sample(range(len(dialogue.turns)), min(2, len(dialogue.turns)))
    ]
    if len(replies) < count:
        sys.exit(
            f"{count} replies and {count} pairs need about {count + (count + 1) // 2} dialogues with "
            f"replies; there are {len(dialogues)}. Test with more --repeats, or draw fewer with --count."
        )
    rng.shuffle(replies)
    return replies[:count], pairs


def context(dialogue: Dialogue, turn: int) -> list[tuple[str, str]]:
    """Return what was said until the line that is replied to."""
    said = [pair for t in dialogue.turns[:turn] for pair in (("person", t.user), ("reply", t.reply.text))]
    return [*said, ("person", dialogue.turns[turn].user)]


async def answers(
    model: str, prompts: list[list[tuple[str, str]]], temperature: float, tokens: int
) -> list[str]:
    """Let a policy answer each prompt."""
    sampler = local_sampler(model.removeprefix("local:"), slots=16, context=4096)

    async def one(number: int, said: list[tuple[str, str]]) -> str:
        chat = LocalChat(sampler, str(number))
        messages = tuple(Message("user" if who == "person" else "assistant", text) for who, text in said)
        answer = await chat.reply(Request(messages, temperature, max_tokens=tokens, seed=number))
        chat.end_dialogue()
        return answer.reply.text

    async with sampler:
        return await asyncio.gather(*(one(n, said) for n, said in enumerate(prompts)))


def block(number: int, said: list[tuple[str, str]], replies: dict[str, str]) -> str:
    shown = [f"{who}: {text}" for who, text in said[-2 * SHOWN - 1 : -1]]
    shown += [f"**{who}:** {text}" for who, text in (said[-1], *replies.items())]
    return f"\n## {number}\n\n" + "\n\n".join(" ".join(row.split()) for row in shown) + "\n"


def replied_dialogues(run: Path) -> list[Dialogue]:
    """Return the dialogues of a folder that have a reply. Without one, the program ends and says why."""
    files = sorted(run.rglob("*.jsonl"))
    try:
        lines = [line for file in files for line in read_dialogues(file)]
    except RecordError as error:
        sys.exit(str(error))
    dialogues = [line for line in lines if isinstance(line, Dialogue)]
    replied = [dialogue for dialogue in dialogues if dialogue.turns]
    if replied:
        return replied
    bad = [line for line in lines if isinstance(line, BadLine)]
    if not run.is_dir():
        sys.exit(f"{run} is not a folder")
    if not files:
        sys.exit(f"{run} has no dialogues: there are no .jsonl files in it")
    if not lines:
        sys.exit(f"{run} has no dialogues: its .jsonl files are empty")
    if dialogues:
        unreadable = f"; unreadable lines: {len(bad)}, the first: {bad[0]}" if bad else ""
        sys.exit(f"{run}: none of its {len(dialogues)} dialogues has a reply{unreadable}")
    sys.exit(f"{run}: none of the {len(bad)} lines in its .jsonl files can be read, the first: {bad[0]}")


def draw(args: argparse.Namespace) -> None:
    rng = random.Random(args.seed)
    single, paired = drawn_places(replied_dialogues(args.run), args.count, rng)
    prompts = [context(*place) for place in paired]
    theirs = asyncio.run(answers(args.untrained, prompts, args.temperature, args.max_tokens))
    replies = [
        block(number, context(dialogue, turn), {"reply": dialogue.turns[turn].reply.text})
        for number, (dialogue, turn) in enumerate(single, 1)
    ]
    pairs, better = [PAIRS], {}
    for number, (said, (dialogue, turn), other) in enumerate(zip(prompts, paired, theirs, strict=True), 1):
        mine = dialogue.turns[turn].reply.text
        better[str(number)] = "=" if mine == other else rng.choice("AB")
        first, second = (other, mine) if better[str(number)] == "B" else (mine, other)
        pairs.append(block(number, said, {"A": first, "B": second}))
    key = {"replies": len(single), "pairs": better}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "replies.md").write_text(REPLIES + "".join(replies), encoding="utf-8")
    (args.out / "pairs.md").write_text("".join(pairs), encoding="utf-8")
    (args.out / "key.json").write_text(json.dumps(key, indent=1) + "\n", encoding="utf-8")
    print(f"{len(single)} replies and {len(paired)} pairs from {args.run}: {args.out}")


def verdicts(file: Path, allowed: str, columns: int, numbers: Collection[str]) -> dict[str, list[str]]:
    """Return the verdicts of a file by number. A row that cannot be counted ends the program: it
    must not pass for a judgement."""
    rows = [row.split() for row in file.read_text(encoding="utf-8").splitlines() if row.strip()]
    for row in rows:
        if len(row) != columns + 1 or not all(verdict in tuple(allowed) for verdict in row[1:]):
            sys.exit(f"{file}: expected a number and {columns} of {' '.join(allowed)}: {' '.join(row)}")
    if sorted(row[0] for row in rows) != sorted(numbers):
        sys.exit(f"{file}: expected the numbers 1 to {len(numbers)}, once each")
    return {row[0]: row[1:] for row in rows}


def share(name: str, hits: int, n: int) -> dict[str, Any]:
    if not n:
        print(f"{name}: no verdicts")
        return {"hits": 0, "n": 0}
    low, high = wilson(hits, n)
    print(f"{name}: {hits} of {n} ({hits / n:.0%}, {low:.0%} to {high:.0%})")
    return {"hits": hits, "n": n, "low": round(low, 3), "high": round(high, 3)}


def count(args: argparse.Namespace) -> None:
    names = ("key.json", "replies.txt", "pairs.txt")
    if missing := [name for name in names if not (args.out / name).is_file()]:
        sys.exit(f"{args.out} has no {', '.join(missing)}: draw writes key.json, the reader the verdicts")
    key = json.loads((args.out / "key.json").read_text(encoding="utf-8"))
    tested = key["pairs"]
    read = verdicts(args.out / "replies.txt", "yn", 2, [str(n + 1) for n in range(key["replies"])])
    pairs = verdicts(args.out / "pairs.txt", "AB=", 1, tested)
    result = {
        "natural": share("grammatical and natural", sum(r[0] == "y" for r in read.values()), len(read)),
        "on_subject": share("on the subject", sum(r[1] == "y" for r in read.values()), len(read)),
    }
    differ = {n: v[0] for n, v in pairs.items() if tested[n] != "=" and v[0] != "="}
    better = sum(v == tested[n] for n, v in differ.items())
    result["preferred"] = share("preferred to the untrained reply", better, len(differ))
    print(f"no difference: {len(pairs) - len(differ)}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tasks = parser.add_subparsers(required=True)
    task = tasks.add_parser("draw", help="write what the reader reads")
    task.add_argument("run", type=Path, help="folder of an evaluation (`mapo eval empa`, or RUN/eval/after)")
    task.add_argument("--untrained", default="local:pocket", help="the policy to compare with")
    task.add_argument("--count", type=int, default=100, help="replies, and as many pairs")
    task.add_argument("--temperature", type=float, default=0.4)
    task.add_argument("--max-tokens", type=int, default=32)
    task.add_argument("--seed", type=int, default=0)
    task.add_argument("--out", type=Path, required=True)
    task.set_defaults(run_task=draw)
    task = tasks.add_parser("count", help="count the verdicts")
    task.add_argument("out", type=Path)
    task.add_argument("--json", type=Path, help="result file to write")
    task.set_defaults(run_task=count)
    args = parser.parse_args()
    args.run_task(args)


if __name__ == "__main__":
    main()
