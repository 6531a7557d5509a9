"""Train the embedded policy: a small Llama that replies to people in kinds that differ in worth.

    PYTHONPATH=. python scripts/embedded/make_policy.py --stories stories.jsonl.gz --out mapo/local_model/pocket

Reads the written texts and, with --stories, those of `write.py`. About a third of the replies it learns are good ones,
in random order: it can say both and does not yet choose.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from corpus import EXCHANGED, Draw, generated_people, in_parallel, split, told_again
from dialogues import Talk
from small import (
    ASSISTANT,
    CONTEXT,
    END,
    PAD,
    SYSTEM,
    USER,
    batches,
    new_model,
    padded,
    save,
    train,
    train_tokenizer,
)
from tokenizers import Tokenizer

GOODNESS = 0.33
USER_WEIGHT = 0.2


def text_of(talk: Talk, turns: int) -> str:
    return "".join(f"{USER}{x.line}{END}{ASSISTANT}{x.reply}{END}" for x in talk.play(turns))


def tokenizer_texts(draw: Draw) -> list[str]:
    people = [*draw.written * 3, *draw.told, *draw.new[:3000]]
    rows = [t for p in people for line in p.lines for t in (line.text, *(r for _, r in line.replies))]
    form = "Trust: high\nperson: reply: C progress? C regression? A progress? A regression? P progress? P regression?"
    return [*rows, *[form] * 200]


def weights(ids: torch.Tensor, marks: dict[str, int]) -> torch.Tensor:
    """Return the loss weight of each predicted token: 1 in replies, USER_WEIGHT elsewhere, 0 in padding."""
    place = torch.arange(ids.shape[1], device=ids.device)
    mine = torch.where(ids == marks[ASSISTANT], place, -1).cummax(1).values
    other = torch.where((ids == marks[USER]) | (ids == marks[SYSTEM]), place, -1).cummax(1).values
    weight = torch.where((mine > other)[:, :-1], 1.0, USER_WEIGHT)
    return weight * (ids[:, 1:] != marks[PAD])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stories", type=Path, help="file that `write.py stories` made")
    parser.add_argument("--replies", type=Path, help="file that `write.py replies` made")
    parser.add_argument("--tokenizer", type=Path, help="use this tokenizer.json instead of training one")
    parser.add_argument(
        "--exchanged", type=float, default=EXCHANGED, help="share of dialogues with other nouns"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--tokens", type=float, default=80e6, help="tokens to train on; more than three passes overfit"
    )
    parser.add_argument("--dialogues", type=int, default=40000, help="distinct dialogues")
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--vocab", type=int, default=5120)
    parser.add_argument("--batch", type=int, default=65536, help="tokens per step")
    parser.add_argument("--minutes", type=float, default=60.0, help="longest time of training")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    written, generated, held = split("all", [*told_again(args.replies), *generated_people(args.stories)])
    draw = Draw(written, generated, args.exchanged)
    texts = tokenizer_texts(draw)
    tokenizer = (
        Tokenizer.from_file(str(args.tokenizer)) if args.tokenizer else train_tokenizer(texts, args.vocab)
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out.with_name(args.out.name + ".tokenizer.json")))
    marks = {mark: tokenizer.token_to_id(mark) for mark in (PAD, END, SYSTEM, USER, ASSISTANT)}

    def make(rng: random.Random) -> np.ndarray:
        talk = Talk(draw.person(rng), rng, draw.everybody, GOODNESS)
        turns = rng.choice((4, 8, 12, 16, 20, 28, 40))
        ids = tokenizer.encode(text_of(talk, turns), add_special_tokens=False).ids
        return np.array(ids[:CONTEXT], dtype=np.uint16)

    pool = in_parallel(make, args.dialogues, f"policy/{args.seed}")
    rng = random.Random("held")
    test = [
        np.array(
            tokenizer.encode(text_of(Talk(p, rng, held, GOODNESS), 20), add_special_tokens=False).ids[
                :CONTEXT
            ]
        )
        for p in held
    ]
    print(
        f"{len(written)} written and {len(generated)} generated people, {sum(map(len, pool)) / 1e6:.1f}M tokens",
        flush=True,
    )
    model = new_model(args.vocab, args.width, args.layers, args.seed).to(args.device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M weights", flush=True)
    stream = batches([len(ids) for ids in pool], args.batch, np.random.default_rng(args.seed))

    def batch_of() -> tuple[torch.Tensor]:
        return (padded([pool[k] for k in next(stream)]).to(args.device, non_blocking=True),)

    def loss_of(batch: tuple[torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        (ids,) = batch
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        each = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
        )
        weight = weights(ids, marks).flatten()
        mine = weight == 1.0
        return (each * weight).sum() / weight.sum(), {"replies": each.detach()[mine].mean()}

    def held_out_loss() -> float:
        with torch.no_grad():
            return loss_of((padded(test).to(args.device),))[1]["replies"].item()

    made = train(
        model,
        (),
        batch_of,
        loss_of,
        tokens=args.tokens,
        minutes=args.minutes,
        lr=args.lr,
        device=args.device,
        check=lambda: f"held out {held_out_loss():.3f}",
    )
    made |= {
        "held_out_reply_loss": round(held_out_loss(), 4),
        "written": len(written),
        "generated": len(generated),
        "seed": args.seed,
        "dialogues": args.dialogues,
    }
    print(made)
    save(model, tokenizer, args.out, made)


if __name__ == "__main__":
    main()
