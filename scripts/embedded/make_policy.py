"""Train the embedded policy: a small Llama that replies to people in kinds that differ in worth.

    PYTHONPATH=. python scripts/embedded/make_policy.py --stories stories.jsonl.gz --out mapo/local_model/pocket

Reads the written texts and what `write.py` made. About a third of the replies it learns are good ones, in random order: it
can say both and does not yet choose. With --start and --babble it goes on with its own replies, as far as `write.py kinds`
found sense in them.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from corpus import Draw, babble, generated_people, in_parallel, split, told_again
from dialogues import Talk
from documents import NONSENSE
from nouns import exchanged, nouns
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
from transformers import LlamaForCausalLM

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


def copied(ids: np.ndarray, marks: dict[str, int], noun_ids: frozenset[int]) -> np.ndarray:
    """Return which predicted tokens are nouns of a reply that stand in the line before it."""
    found, line, speaking = np.zeros(len(ids) - 1, dtype=bool), set[int](), ""
    for place, token in enumerate(ids.tolist()):
        if token == marks[USER]:
            line, speaking = set(), USER
        elif token == marks[ASSISTANT]:
            speaking = ASSISTANT
        elif token in noun_ids and speaking == USER:
            line.add(token)
        elif token in line and speaking == ASSISTANT:
            found[place - 1] = True
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stories", type=Path, help="file that `write.py stories` made")
    parser.add_argument("--replies", type=Path, help="file that `write.py replies` made")
    parser.add_argument("--babble", type=Path, nargs="+", default=[], help="files that `write.py kinds` made")
    parser.add_argument("--start", help="folder of a policy to go on from")
    parser.add_argument("--tokenizer", type=Path, help="use this tokenizer.json instead of training one")
    parser.add_argument("--exchanged", type=float, default=0.6, help="share of dialogues with other nouns")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--tokens", type=float, default=120e6, help="tokens to train on; more than three passes overfit"
    )
    parser.add_argument("--dialogues", type=int, default=120000, help="distinct dialogues")
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--vocab", type=int, default=5120)
    parser.add_argument("--batch", type=int, default=8192, help="tokens per step")
    parser.add_argument("--minutes", type=float, default=60.0, help="longest time of training")
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    written, generated, held = split("all", [*told_again(args.replies), *generated_people(args.stories)])
    draw = Draw(written, generated, args.exchanged)
    said = {
        line: sense
        for line, pairs in babble(args.babble).items()
        if (sense := [p for p in pairs if p[0] != NONSENSE])
    }
    texts = tokenizer_texts(draw)
    tokenizer = (
        Tokenizer.from_file(str(args.tokenizer)) if args.tokenizer else train_tokenizer(texts, args.vocab)
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out.with_name(args.out.name + ".tokenizer.json")))
    marks = {mark: tokenizer.token_to_id(mark) for mark in (PAD, END, SYSTEM, USER, ASSISTANT)}

    def make(rng: random.Random) -> np.ndarray:
        talk = Talk(draw.person(rng), rng, draw.everybody, GOODNESS, babble=said)
        turns = rng.choice((2, 3, 4, 6, 8, 12, 20))
        ids = tokenizer.encode(text_of(talk, turns), add_special_tokens=False).ids
        return np.array(ids[:CONTEXT], dtype=np.uint16)

    noun_ids = frozenset(
        ids[0]
        for noun in set().union(*nouns())
        if len(ids := tokenizer.encode(f" {noun}", add_special_tokens=False).ids) == 1
    )
    pool = in_parallel(make, args.dialogues, f"policy/{args.seed}")
    rng = random.Random("held")
    people = [*held, *(exchanged(person, rng, 0.5) for person in held)]
    talks = [text_of(Talk(person, rng, held, GOODNESS), 20) for person in people]
    test = [np.array(tokenizer.encode(talk, add_special_tokens=False).ids[:CONTEXT]) for talk in talks]
    print(
        f"{len(written)} written and {len(generated)} generated people, {sum(map(len, pool)) / 1e6:.1f}M tokens",
        flush=True,
    )
    model = new_model(tokenizer.get_vocab_size(), args.width, args.layers, args.seed)
    if args.start:
        model.load_state_dict(LlamaForCausalLM.from_pretrained(args.start, dtype=torch.float32).state_dict())
    model = model.to(args.device)
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

    def held_out_loss() -> tuple[float, float]:
        """Return the mean loss of replies, and that of the nouns in them that the person has just said."""
        ids = padded(test).to(args.device)
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
            each = torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:].flatten(), reduction="none")
        weight = weights(ids, marks).flatten()
        taken_up = torch.from_numpy(np.stack([copied(row, marks, noun_ids) for row in ids.cpu().numpy()]))
        return each[weight == 1.0].mean().item(), each[taken_up.flatten().to(args.device)].mean().item()

    made = train(
        model,
        (),
        batch_of,
        loss_of,
        tokens=args.tokens,
        minutes=args.minutes,
        lr=args.lr,
        device=args.device,
        check=lambda: "held out {:.3f}, taken up {:.3f}".format(*held_out_loss()),
    )
    loss, taken_up = held_out_loss()
    made |= {
        "held_out_reply_loss": round(loss, 4),
        "held_out_loss_of_nouns_taken_up": round(taken_up, 4),
        "written": len(written),
        "generated": len(generated),
        "seed": args.seed,
        "dialogues": args.dialogues,
    }
    print(made)
    save(model, tokenizer, args.out, made)


if __name__ == "__main__":
    main()
