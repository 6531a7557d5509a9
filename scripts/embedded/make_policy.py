"""Train the embedded policy: a small Llama that replies to people in short sentences of kinds that differ in worth.

    PYTHONPATH=. python scripts/embedded/make_policy.py --base models/smollm2-135m-instruct --out made/policy

It learns the short replies to written people, good and poor ones in random order: it can say both and does not yet choose.

A model this small soon knows the replies by heart. A teacher shows it what else could be said: SmolLM2-135M-Instruct, which
has read much more, learns the replies first, and the policy then learns its probabilities of all next tokens:

    make_policy.py --base models/smollm2-135m-instruct --whole --lr 3e-4 --out made/teacher
    make_policy.py --base models/smollm2-135m-instruct --teacher made/teacher --out made/policy
"""

from __future__ import annotations

import argparse
import copy
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from corpus import in_parallel, sayable_replies, tokenizer_texts, with_replies
from dialogues import COMMON, SMALL, Talk
from documents import is_clean_reply
from nouns import exchanged
from patterns import reachable_people
from small import (
    ASSISTANT,
    END,
    MARKS,
    USER,
    Batch,
    add_dropout,
    attention,
    cut_embeddings,
    cut_tokenizer,
    load_teacher,
    mixed_precision,
    new_model,
    options_of,
    save,
    train,
    whole_model,
)
from texts import (
    Person,
    held_out_natural_people,
    held_out_people,
    known_people,
    natural_people,
)
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

GOODNESS = 0.4
"""Share of good replies."""
SHAPE = {"width": 320, "layers": 6, "vocab": 6000}
TURNS = (4, 8, 16, 32)
SHORT_ROW, LONG_ROW, SHORT_ROWS_UNTIL = 128, 512, 0.6
"""Tokens of a training row. The last part of the training has long rows, so that the model can reply late in a dialogue:
after a short training with few of them, the loss of replies at turn 36 was 2.9, and 2.3 with the last four exchanges alone."""
ALL_UNTIL = 0.4
"""Part of the training in which all replies are learned; then only those that stay with what was said."""
LINE_WEIGHT = 0.2
ECHO_WEIGHT = 2.0
"""Weight of the words of a reply that the person has just said."""
TEACHER_WEIGHT = 0.8
"""Weight of the teacher's probabilities in the loss; the rest is that of the texts."""


class Encoder:
    """Turns dialogues into ids, and marks what is learned: the tokens of replies, with their weights."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.pad, self.end, _, self.user, self.assistant = (tokenizer.token_to_id(mark) for mark in MARKS)
        plain = {form for word in SMALL | COMMON for form in (word, word.capitalize())}
        parts = sorted(part for word in plain for part in (f" {word}", word))
        common = {t for row in tokenizer.encode_batch(parts, add_special_tokens=False) for t in row.ids}
        letters = {n for text, n in tokenizer.get_vocab().items() if any(map(str.isalpha, text.lstrip("Ġ")))}
        self.telling = frozenset(letters - common - {self.pad, self.end, self.user, self.assistant})

    def encode(self, talk: Talk, turns: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of a dialogue and their weights in the loss."""
        text = "".join(f"{USER}{x.line}{END}{ASSISTANT}{x.reply}{END}" for x in talk.play(turns))
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        weights, line, replying = np.zeros(len(ids), dtype=np.float32), set[int](), False
        for place, token in enumerate(ids):
            if token in (self.user, self.assistant):
                replying = token == self.assistant
                line = line if replying else set()
            elif replying:
                weights[place] = ECHO_WEIGHT if token in line else 1.0
            else:
                weights[place] = LINE_WEIGHT
                if token in self.telling:
                    line.add(token)
        return np.array(ids, dtype=np.int64), weights


Text = tuple[np.ndarray, np.ndarray]
"""Ids and their weights in the loss."""


def windows(every: Text, sayable: Text, all_until: float, budget: int, seed: int) -> Callable[[float], Batch]:
    """Return a function that draws the batch at a part of the training: rows from anywhere in the text, with weights."""
    rng = np.random.default_rng(seed)

    def batch_of(done: float) -> Batch:
        ids, weights = every if done < all_until else sayable
        width = SHORT_ROW if done < SHORT_ROWS_UNTIL else LONG_ROW
        places = rng.integers(0, len(ids) - width, budget // width)[:, None] + np.arange(width)
        return torch.from_numpy(ids[places]), torch.from_numpy(weights[places])

    return batch_of


def loss_of_held_out(model: LlamaForCausalLM, encoder: Encoder, people: Sequence[Person]) -> float:
    """Return the mean loss of the tokens of replies to held-out people."""
    rng, total, count = random.Random("held out"), 0.0, 0
    with torch.no_grad(), mixed_precision(model.device.type):
        for person in people:
            ids, weights = encoder.encode(Talk(person, rng, people, GOODNESS), 8)
            if not len(ids):  # a person without a story
                continue
            row = torch.from_numpy(ids)[None].to(model.device)
            learned = torch.from_numpy(weights[1:] >= 1)
            logits = model(input_ids=row, use_cache=False).logits[0, :-1].float().cpu()
            each = torch.nn.functional.cross_entropy(logits, row[0, 1:].cpu(), reduction="none")
            total, count = total + each[learned].sum().item(), count + int(learned.sum())
    return total / count


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--base", type=Path, help="start from the word embeddings of SmolLM2-135M-Instruct")
    start.add_argument("--start", type=Path, help="go on with a policy")
    parser.add_argument(
        "--whole",
        action="store_true",
        help="train all layers of SmolLM2-135M-Instruct, as a teacher (--base)",
    )
    parser.add_argument(
        "--teacher",
        type=Path,
        help="folder of a policy with the same tokenizer, whose probabilities are learned",
    )
    parser.add_argument(
        "--natural", type=float, default=0.0, help="share of dialogues with natural replies alone"
    )
    parser.add_argument(
        "--reachable",
        type=float,
        metavar="CHANCE",
        help="of the natural replies, only those whose pattern makes sense with this probability, and those of pieces",
    )
    parser.add_argument(
        "--all-until", type=float, default=ALL_UNTIL, help="part in which all replies are learned"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--tokens", type=float, default=24e6, help="tokens to train on")
    parser.add_argument("--minutes", type=float, default=120.0, help="longest time of training")
    parser.add_argument("--dialogues", type=int, default=50000, help="distinct dialogues")
    parser.add_argument("--exchanged", type=float, default=0.6, help="share of dialogues with other nouns")
    for name, default in SHAPE.items():
        parser.add_argument(f"--{name}", type=int, help=f"of a new model, with --base (default: {default})")
    parser.add_argument("--batch", type=int, default=4096, help="tokens per step")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.reachable is not None and not 0 <= args.reachable <= 1:
        parser.error(f"--reachable is a probability, not {args.reachable}.")
    if args.reachable is not None and not args.natural:
        parser.error("--reachable selects natural replies: it needs --natural.")
    of_whole = {
        "--width": args.width,
        "--layers": args.layers,
        "--start": args.start,
        "--teacher": args.teacher,
    }
    if args.whole and (conflicting := [name for name, value in of_whole.items() if value is not None]):
        parser.error(f"{', '.join(conflicting)} cannot be used with --whole.")
    if args.teacher and args.vocab is not None:
        parser.error("--vocab cannot be used with --teacher: the policy has the teacher's tokenizer.")
    if args.teacher and not (args.teacher / "tokenizer.json").is_file():
        parser.error(
            f"{args.teacher} is not the folder of a policy. Make one with: make_policy.py --base DIR --whole"
        )
    if args.base:
        fixed = {"width", "layers"} if args.whole else {"vocab"} if args.teacher else set()
        for name, default in SHAPE.items():
            if getattr(args, name) is None and name not in fixed:
                setattr(args, name, default)
        if not (args.base / "tokenizer.json").is_file():
            parser.error(f"{args.base} is not the folder of a model. Get it with: mapo fetch smollm2")
    elif unused := [f"--{name}" for name in SHAPE if getattr(args, name) is not None]:
        parser.error(
            f"{', '.join(unused)} cannot be used with --start: the policy keeps its shape and tokenizer."
        )
    elif not (args.start / "tokenizer.json").is_file():
        parser.error(f"{args.start} is not the folder of a policy. Make one with: make_policy.py --base")
    return args


def starting_model(args: argparse.Namespace, people: Sequence[Person]) -> tuple[LlamaForCausalLM, Tokenizer]:
    """Return the model to train and its tokenizer."""
    if args.start:
        model = LlamaForCausalLM.from_pretrained(args.start, dtype=torch.float32)
        return model, Tokenizer.from_file(str(args.start / "tokenizer.json"))
    if args.teacher:
        tokenizer = Tokenizer.from_file(str(args.teacher / "tokenizer.json"))
    else:
        tokenizer = cut_tokenizer(args.base, tokenizer_texts(people), args.vocab)
    if args.whole:
        return whole_model(args.base, tokenizer), tokenizer
    model = new_model(tokenizer.get_vocab_size(), args.width, args.layers, args.seed)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(cut_embeddings(args.base, tokenizer, args.width))
    return model, tokenizer


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    everybody = with_replies(known_people(), is_clean_reply)
    people = sayable_replies(known_people())
    held = {
        "held_out_loss": sayable_replies(held_out_people()),
        "held_out_natural_loss": sayable_replies(held_out_natural_people()),
    }
    if args.reachable is None:
        natural = sayable_replies(natural_people())
    else:
        natural = reachable_people(args.reachable)
    model, tokenizer = starting_model(args, everybody)
    teacher = load_teacher(args.teacher, tokenizer, args.device) if args.teacher else None
    encoder = Encoder(tokenizer)

    def text_of(people: Sequence[Person], count: int) -> Text:
        def make(rng: random.Random) -> Text:
            others = natural if rng.random() < args.natural else people
            person = rng.choice(others)
            if rng.random() < args.exchanged:
                person = exchanged(person, rng, rng.uniform(0.3, 0.9))
            return encoder.encode(Talk(person, rng, others, GOODNESS), rng.choice(TURNS))

        ids, weights = zip(*in_parallel(make, count, f"policy/{args.seed}/{count}"), strict=True)
        return np.concatenate(ids), np.concatenate(weights)

    every = text_of(everybody, args.dialogues // 4) if args.all_until else None
    sayable = text_of(people, args.dialogues)
    every = every or sayable
    add_dropout(model, args.dropout)
    model.set_attn_implementation(attention(args.device))
    model.to(args.device)
    size = sum(p.numel() for p in model.parameters())
    print(
        f"{len(people)} people, {len(every[0]) / 1e6:.1f}M and {len(sayable[0]) / 1e6:.1f}M tokens, {size / 1e6:.2f}M weights",
        flush=True,
    )

    def with_teacher(batch: Batch) -> Batch:
        """Add the teacher's probabilities of the next tokens to a batch."""
        if teacher is None:
            return batch
        with torch.no_grad(), mixed_precision(args.device):
            logits = teacher(input_ids=batch[0], use_cache=False).logits[:, :-1]
            return (*batch, logits.flatten(0, 1).float().softmax(-1).to(torch.bfloat16))

    def loss_of(
        ids: torch.Tensor, weights: torch.Tensor, teacher_probabilities: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1).float()
        each = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
        weights = weights[:, 1:].flatten()
        replies = weights >= 1
        shown = {"replies": (each * replies).sum() / replies.sum()}
        if teacher_probabilities is not None:
            from_teacher = torch.nn.functional.cross_entropy(
                logits, teacher_probabilities.float(), reduction="none"
            )
            shown["teacher"] = (from_teacher * replies).sum() / replies.sum()
            each = (1 - TEACHER_WEIGHT) * each + TEACHER_WEIGHT * from_teacher
        return (each * weights).sum() / weights.sum(), shown

    def held_out_losses() -> dict[str, float]:
        return {name: round(loss_of_held_out(model, encoder, some), 4) for name, some in held.items() if some}

    def check() -> str:
        save(copy.deepcopy(model), tokenizer, args.out.with_name(args.out.name + "_so_far"), {})
        return " ".join(f"{name} {loss:.3f}" for name, loss in held_out_losses().items())

    made = train(
        model,
        (),
        windows(every, sayable, args.all_until, args.batch, args.seed),
        loss_of,
        tokens=args.tokens,
        minutes=args.minutes,
        lr=args.lr,
        check=check,
        extend_batch=with_teacher,
    )
    made |= {
        **held_out_losses(),
        "people": len(people),
        "weights": size,
        "options": options_of(args),
    }
    print(made)
    save(model, tokenizer, args.out, made)


if __name__ == "__main__":
    main()
