"""Write dialogues of known levels as recordings, so that `mapo roles train` makes a judge of any model from them.

    PYTHONPATH=. python scripts/embedded/recordings.py --part even --dialogues 4000 \\
        --out even.jsonl.gz --held-out held-out.jsonl.gz
    mapo roles train --role judge --brief --from even.jsonl.gz --test held-out.jsonl.gz --model qwen --lora 32 \\
        --additions 0.05 --no-refit --out judge

The files are files of judged turns (docs/roles.md). A policy is how good its replies are meant to be and how many are
spoiled; `kind` of a turn says what its reply was meant as. Nobody in the held-out file is in any training file.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corpus import Corpus, Drawn, draw_dialogue, in_parallel, policy_replies, split
from dialogues import Exchange
from documents import new_rows
from kinds import train_namer

AXES = ("C", "A", "P")


def row_of(name: str, drawn: Drawn) -> dict[str, Any]:
    """Return a dialogue as a line of a file of judged turns."""
    return {
        "id": name,
        "model": drawn.policy,
        "case": drawn.person,
        "judge": "levels known by construction",
        "threshold": drawn.threshold,
        "language": "en",
        "turns": [_turn(exchange) for exchange in drawn.exchanges],
    }


def _turn(exchange: Exchange) -> dict[str, Any]:
    sides = zip(exchange.levels[::2], exchange.levels[1::2], strict=True)
    levels = {
        key: {"progress": {"level": up}, "regression": {"level": -down}}
        for key, (up, down) in zip(AXES, sides, strict=True)
    }
    return {"user": exchange.line, "reply": exchange.reply, "levels": levels, "kind": exchange.kind}


def write(path: Path, prefix: str, dialogues: Sequence[Drawn]) -> None:
    """Write dialogues; their ids begin with `prefix`."""
    with new_rows(path) as add:
        for number, drawn in enumerate(dialogues):
            add(row_of(f"{prefix}-{number}", drawn))
    turns = [x for drawn in dialogues for x in drawn.exchanges]
    people = {drawn.person for drawn in dialogues}
    common = ", ".join(
        f"{kind} {n / len(turns):.0%}" for kind, n in Counter(x.kind for x in turns).most_common(6)
    )
    print(f"{path}: {len(dialogues)} dialogues of {len(people)} people, {len(turns)} turns ({common}, ...)")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="file to write (.jsonl.gz)")
    parser.add_argument("--held-out", type=Path, help="file of dialogues with held-out people (.jsonl.gz)")
    parser.add_argument("--part", choices=("all", "even", "odd"), default="all", help="people to learn from")
    parser.add_argument("--dialogues", type=int, default=4000)
    parser.add_argument("--held-out-dialogues", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    for path in (args.out, args.held_out):
        if path and not path.name.endswith(".jsonl.gz"):
            parser.error(f"{path}: the name does not end in .jsonl.gz")
    people, held_out = split(args.part)
    replies = policy_replies(train_namer(people))
    corpus = Corpus(people, replies)
    prefix = f"{args.part}-{args.seed}"
    drawn = in_parallel(
        lambda rng: draw_dialogue(rng, corpus),
        args.dialogues,
        f"recordings/{prefix}",
        shard=100,
    )
    write(args.out, prefix, drawn)
    if args.held_out:
        rng = random.Random(f"held out/{args.seed}")
        others = Corpus(held_out, replies)
        tests = [draw_dialogue(rng, others) for _ in range(args.held_out_dialogues)]
        write(args.held_out, f"held-out-{args.seed}", tests)


if __name__ == "__main__":
    main()
