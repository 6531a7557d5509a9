"""Train the embedded policy: a small Llama that replies to people in kinds that differ in worth.

    PYTHONPATH=. python scripts/embedded/make_policy.py --stories stories.jsonl.gz --out mapo/local_model/pocket

Reads the written texts and what `write.py` made. About a third of the replies it learns are good ones, in random order: it
can say both and does not yet choose. With --start and --policy-replies it goes on with its own replies, as far as `write.py kinds`
found sense in them.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from corpus import Draw, add_text_options, in_parallel, read_texts
from dialogues import COMMON, SMALL, Talk, names_something
from documents import NONSENSE
from nouns import exchanged
from small import (
    ASSISTANT,
    CONTEXT,
    END,
    PAD,
    SYSTEM,
    USER,
    add_dropout,
    batches,
    new_model,
    padded,
    save,
    train,
    train_tokenizer,
)
from texts import POOR
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

GOODNESS = 0.33
USER_WEIGHT = 0.2


def text_of(talk: Talk, turns: int) -> str:
    return "".join(f"{USER}{x.line}{END}{ASSISTANT}{x.reply}{END}" for x in talk.play(turns))


def tokenizer_texts(draw: Draw) -> list[str]:
    people = [*draw.written * 3, *draw.with_new_replies, *draw.generated[:3000]]
    rows = [t for p in people for line in p.lines for t in (line.text, *(r for _, r in line.replies))]
    form = "Trust: high\nperson: reply: C progress? C regression? A progress? A regression? P progress? P regression?"
    return [*rows, *[form] * 200]


@dataclass(slots=True)
class Row:
    """One dialogue as ids, and which of them belong to words of a reply that stand in the line before it."""

    ids: np.ndarray
    echoed: np.ndarray


class Encoder:
    """Turns dialogues into rows."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.marks = {mark: tokenizer.token_to_id(mark) for mark in (PAD, END, SYSTEM, USER, ASSISTANT)}
        plain = {form for word in SMALL | COMMON for form in (word, word.capitalize())}
        parts = [part for word in plain for part in (f" {word}", word)]
        encoded = tokenizer.encode_batch(sorted(parts), add_special_tokens=False)
        letters = {n for text, n in tokenizer.get_vocab().items() if any(map(str.isalpha, text.lstrip("Ġ")))}
        self.telling = frozenset(
            letters - {token for row in encoded for token in row.ids} - {*self.marks.values()}
        )

    def row(self, talk: Talk, turns: int) -> Row:
        ids = self.tokenizer.encode(text_of(talk, turns), add_special_tokens=False).ids[:CONTEXT]
        return Row(np.array(ids, dtype=np.uint16), self.echoed(ids))

    def echoed(self, ids: list[int]) -> np.ndarray:
        found, line, speaking = np.zeros(len(ids), dtype=bool), set[int](), ""
        for place, token in enumerate(ids):
            if token == self.marks[USER]:
                line, speaking = set(), USER
            elif token == self.marks[ASSISTANT]:
                speaking = ASSISTANT
            elif token in self.telling and speaking == USER:
                line.add(token)
            elif token in line and speaking == ASSISTANT:
                found[place] = True
        return found

    def batch(self, rows: Sequence[Row]) -> tuple[torch.Tensor, ...]:
        return padded([row.ids for row in rows]), padded([row.echoed for row in rows])

    def spoken(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which predicted tokens belong to replies, and which are no padding."""
        place = torch.arange(ids.shape[1], device=ids.device)
        mine = torch.where(ids == self.marks[ASSISTANT], place, -1).cummax(1).values
        other = (ids == self.marks[USER]) | (ids == self.marks[SYSTEM])
        speaking = mine > torch.where(other, place, -1).cummax(1).values
        real = ids[:, 1:] != self.marks[PAD]
        return speaking[:, :-1] & real, real


def makes_sense(line: str, kind: str, reply: str) -> bool:
    """Return whether a policy should go on saying this: good replies must name something of the line."""
    return kind != NONSENSE and (kind in (*POOR, "room", "link") or names_something(reply, line))


def losses(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Return the loss of each predicted token."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    each = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
    )
    return each.view(len(ids), -1)


def mean(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (values * weights).sum() / weights.sum().clamp(min=1)


def held_out_losses(model: LlamaForCausalLM, encoder: Encoder, rows: Sequence[Row]) -> tuple[float, float]:
    """Return the mean loss of replies, and that of the words in them that the person has just said."""
    ids, echoed = (tensor.to(model.device) for tensor in encoder.batch(rows))
    with torch.no_grad():
        each = losses(model, ids)
    replies, _ = encoder.spoken(ids)
    return mean(each, replies).item(), mean(each, echoed[:, 1:]).item()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_text_options(parser)
    parser.add_argument("--start", help="folder of a policy to go on from")
    parser.add_argument("--tokenizer", type=Path, help="use this tokenizer.json instead of training one")
    parser.add_argument("--exchanged", type=float, default=0.6, help="share of dialogues with other nouns")
    parser.add_argument("--echo-weight", type=float, default=2.0, help="weight of words that were just said")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--tokens", type=float, default=170e6, help="tokens to train on")
    parser.add_argument("--dialogues", type=int, default=150000, help="distinct dialogues")
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--vocab", type=int, default=5120)
    parser.add_argument("--batch", type=int, default=8192, help="tokens per step")
    parser.add_argument("--minutes", type=float, default=60.0, help="longest time of training")
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    return parser.parse_args()


def main() -> None:
    args = arguments()
    texts = read_texts(args, "all")
    written, generated, held = texts.written, texts.generated, texts.held_out
    draw = Draw(written, generated, args.exchanged)
    sensible = {line: [p for p in pairs if makes_sense(line, *p)] for line, pairs in texts.replies.items()}
    tokenizer = (
        Tokenizer.from_file(str(args.tokenizer))
        if args.tokenizer
        else train_tokenizer(tokenizer_texts(draw), args.vocab)
    )
    encoder = Encoder(tokenizer)

    def make(rng: random.Random) -> Row:
        talk = Talk(draw.person(rng), rng, draw.people, GOODNESS, policy_replies=sensible)
        return encoder.row(talk, rng.choice((2, 3, 4, 6, 8, 12, 20)))

    pool = in_parallel(make, args.dialogues, f"policy/{args.seed}")
    rng = random.Random("held")
    people = [*held, *(exchanged(person, rng, 0.5) for person in held)]
    test = [encoder.row(Talk(person, rng, held, GOODNESS), 20) for person in people]
    print(
        f"{len(written)} written and {len(generated)} generated people, "
        f"{sum(len(row.ids) for row in pool) / 1e6:.1f}M tokens",
        flush=True,
    )
    model = new_model(tokenizer.get_vocab_size(), args.width, args.layers, args.seed)
    if args.start:
        model.load_state_dict(LlamaForCausalLM.from_pretrained(args.start, dtype=torch.float32).state_dict())
    add_dropout(model, args.dropout)
    model = model.to(args.device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M weights", flush=True)
    stream = batches([len(row.ids) for row in pool], args.batch, np.random.default_rng(args.seed))

    def loss_of(batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        ids, echoed = batch
        each = losses(model, ids)
        replies, real = encoder.spoken(ids)
        weights = torch.where(replies, 1.0, USER_WEIGHT) * real
        weights = torch.where(echoed[:, 1:] > 0, args.echo_weight, weights)
        return mean(each, weights), {
            "replies": mean(each.detach(), replies),
            "echoed": mean(each.detach(), echoed[:, 1:]),
        }

    made = train(
        model,
        (),
        lambda: encoder.batch([pool[k] for k in next(stream)]),
        loss_of,
        tokens=args.tokens,
        minutes=args.minutes,
        lr=args.lr,
        device=args.device,
        check=lambda: "held out {:.3f}, echoed {:.3f}".format(*held_out_losses(model, encoder, test)),
    )
    loss, echoed = held_out_losses(model, encoder, test)
    made |= {
        "held_out_reply_loss": round(loss, 4),
        "held_out_loss_of_echoed_words": round(echoed, 4),
        "written": len(written),
        "generated": len(generated),
        "seed": args.seed,
        "dialogues": args.dialogues,
    }
    print(made)
    save(model, tokenizer, args.out, made)


if __name__ == "__main__":
    main()
