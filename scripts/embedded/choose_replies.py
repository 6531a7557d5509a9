"""Let a policy reply to known people, and keep the replies that a judge finds most sensible, for the policy to learn from.

    PYTHONPATH=. python scripts/embedded/choose_replies.py --policy made/policy_1 --judge made/judge_teacher --out made/chosen.jsonl
    PYTHONPATH=. python scripts/embedded/make_policy.py --start made/policy_1 --chosen made/chosen.jsonl ...

Most of what a small policy can say makes no sense, and it cannot tell. A judge that has read verdicts on such replies can, to
some degree. Only sense counts here, not worth: poor replies that make sense are kept as good ones are.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from corpus import in_parallel, on_all_cores, sayable_replies, stays_with
from dialogues import NOTHING, Exchange, Talk, opening
from documents import is_clean_reply, is_short
from make_judge import STEPS, Encoder, Row
from make_policy import GOODNESS, TURNS
from small import ASSISTANT, END, PAD, USER, mixed_precision
from texts import natural_people
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

SEEN = 3
"""Exchanges before the line that policy and judge read."""
SAMPLES, TEMPERATURE, LONGEST = 16, 0.8, 24
AT_ONCE = {"cuda": 256, "cpu": 16}
"""Lines that are answered in one batch."""
ROW_TOKENS = {"cuda": 65536, "cpu": 4096}
"""Tokens that are judged in one batch."""
ENCODED_AT_ONCE = 500
OF_AN_OPENING = 0.02
"""Largest share of replies that begin with the same three words."""
MISUNDERSTOOD = 1, slice(2, None)
"""Where the levels say that a reply has nothing to do with the line: regression of C, the second place, by 2 or more."""
GOOD_ABOVE = -1.0
"""Expected step of a good reply: some good ones, as leaving room, move nothing."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A reply at a place, how likely it makes sense, and whether it is worth something."""

    place: int
    line: str
    reply: str
    sense: float
    good: bool


def places(dialogues: int, seed: int) -> list[list[Exchange]]:
    """Return the last exchanges of parts of dialogues that end with a line of a story; the reply to it is to be replaced.
    Where a person is wary, the policy finds something sensible by itself."""
    people = sayable_replies(natural_people())

    def play(rng: random.Random) -> list[Exchange]:
        return Talk(rng.choice(people), rng, people, GOODNESS).play(rng.choice(TURNS))

    talks = in_parallel(play, dialogues, f"choose/{seed}")
    story = {line.text for person in people for line in person.of_mood("story")}
    return [
        talk[max(0, n - SEEN) : n + 1]
        for talk in talks
        for n, exchange in enumerate(talk)
        if exchange.line in story
    ]


@torch.no_grad()
def sample(
    model: LlamaForCausalLM, tokenizer: Tokenizer, contexts: Sequence[Sequence[Exchange]], device: str
) -> Iterator[tuple[int, str]]:
    """Yield the number of a context and a reply to its last line, SAMPLES for each."""
    pad, end = tokenizer.token_to_id(PAD), tokenizer.token_to_id(END)
    prompts = []
    for exchanges in contexts:
        said = "".join(f"{USER}{x.line}{END}{ASSISTANT}{x.reply}{END}" for x in exchanges[:-1])
        text = f"{said}{USER}{exchanges[-1].line}{END}{ASSISTANT}"
        prompts.append(tokenizer.encode(text, add_special_tokens=False).ids)
    order = sorted(range(len(prompts)), key=lambda n: len(prompts[n]))
    count = AT_ONCE[device]
    for some in (order[k : k + count] for k in range(0, len(order), count)):
        width = max(len(prompts[n]) for n in some)
        ids = torch.full((len(some), width), pad)
        for row, n in enumerate(some):
            ids[row, width - len(prompts[n]) :] = torch.tensor(prompts[n])
        replies = model.generate(
            ids.to(device),
            attention_mask=(ids != pad).long().to(device),
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=0,
            max_new_tokens=LONGEST,
            num_return_sequences=SAMPLES,
            eos_token_id=end,
            pad_token_id=pad,
        )[:, width:].tolist()
        for row, reply in enumerate(replies):
            if end in reply:  # whole ones alone
                yield some[row // SAMPLES], tokenizer.decode(reply[: reply.index(end)]).strip()


def candidates(
    sampled: Iterator[tuple[int, str]], contexts: Sequence[Sequence[Exchange]]
) -> list[tuple[int, str]]:
    """Return the different replies that are short and clean, stay with the line and were not said just before."""
    kept = dict[tuple[int, str], None]()
    for place, reply in sampled:
        line = contexts[place][-1].line
        said = {x.reply for x in contexts[place][:-1]}
        if is_short(reply) and is_clean_reply(reply, line) and stays_with(line, reply) and reply not in said:
            kept[place, reply] = None
    return list(kept)


@torch.no_grad()
def judged(
    judge: Path,
    contexts: Sequence[Sequence[Exchange]],
    replies: Sequence[tuple[int, str]],
    device: str,
) -> list[Choice]:
    """Return the replies with the judge's view of them."""
    encoder = Encoder(Tokenizer.from_file(str(judge / "tokenizer.json")))
    model = LlamaForCausalLM.from_pretrained(judge, dtype=torch.float32).to(device).eval()
    head = model.lm_head.weight[torch.tensor(encoder.form.options[0], device=device)].float()
    steps = torch.tensor(STEPS)

    def rows_from(first: int) -> list[Row]:
        some = replies[first : first + ENCODED_AT_ONCE]
        shown = ((contexts[place], reply) for place, reply in some)
        return [
            encoder.row("medium", [*before, Exchange(last.line, reply, "vague", NOTHING)])
            for (*before, last), reply in shown
        ]

    rows = on_all_cores(rows_from, range(0, len(replies), ENCODED_AT_ONCE))
    order = sorted(range(len(rows)), key=lambda n: len(rows[n].ids))
    choices: list[Choice] = []
    while order:
        some = order[: max(1, ROW_TOKENS[device] // len(rows[order[-1]].ids))]
        order = order[len(some) :]
        ids = torch.zeros(len(some), max(len(rows[n].ids) for n in some), dtype=torch.long)
        for row, n in enumerate(some):
            ids[row, : len(rows[n].ids)] = torch.from_numpy(rows[n].ids.astype(np.int64))
        at = torch.from_numpy(np.stack([rows[n].at[-1] for n in some])).to(device)
        with mixed_precision(device):
            hidden = model.model(input_ids=ids.to(device), use_cache=False).last_hidden_state
        read = hidden[torch.arange(len(some), device=device)[:, None], at].float()
        levels = (read @ head.T).softmax(-1).cpu()  # [replies, places, levels]
        worth = (levels * steps).sum((1, 2))
        for n, each, step in zip(some, levels, worth, strict=True):
            place, reply = replies[n]
            sense = 1 - float(each[MISUNDERSTOOD].sum())
            choices.append(
                Choice(place, contexts[place][-1].line, reply, sense, good=float(step) > GOOD_ABOVE)
            )
    return choices


def best(choices: Sequence[Choice], share: float) -> list[Choice]:
    """Return a reply for that share of the places where the best reply is most sensible. No reply to a line is there twice,
    and few begin alike: a judge finds the same safe sentences best everywhere."""
    count = round(len({choice.place for choice in choices}) * share)
    kept: dict[tuple[str, str], Choice] = {}
    done: set[int] = set()
    begun = Counter[str]()
    for choice in sorted(choices, key=lambda choice: -choice.sense):
        key, start = (choice.line, choice.reply), opening(choice.reply)
        again = choice.place in done or key in kept or begun[start] > count * OF_AN_OPENING
        if len(kept) < count and not again:
            kept[key] = choice
            done.add(choice.place)
            begun[start] += 1
    return list(kept.values())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", type=Path, required=True, help="folder of the policy that replies")
    parser.add_argument("--judge", type=Path, required=True, help="folder of a judge of make_judge.py")
    parser.add_argument("--out", type=Path, required=True, help="file to write (.jsonl)")
    parser.add_argument("--dialogues", type=int, default=5000, help="dialogues in which the policy replies")
    parser.add_argument("--share", type=float, default=0.6, help="share of the lines to keep a reply of")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    for folder in (args.policy, args.judge):
        if not (folder / "tokenizer.json").is_file():
            parser.error(f"{folder} is not the folder of a model")
    return args


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    contexts = places(args.dialogues, args.seed)
    tokenizer = Tokenizer.from_file(str(args.policy / "tokenizer.json"))
    model = LlamaForCausalLM.from_pretrained(args.policy, dtype=torch.float32).to(args.device).eval()
    replies = candidates(sample(model, tokenizer, contexts, args.device), contexts)
    print(f"{len(contexts)} places, {len(replies)} clean replies", flush=True)
    kept = best(judged(args.judge, contexts, replies, args.device), args.share)
    part = args.out.with_name(args.out.name + ".part")
    rows = (
        {
            "line": x.line,
            "kind": "detail" if x.good else "vague",
            "reply": x.reply,
            "sense": round(x.sense, 3),
        }
        for x in kept
    )
    part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    part.rename(args.out)
    print(f"{len(kept)} replies kept, the least sensible at {min((x.sense for x in kept), default=0):.2f}")


if __name__ == "__main__":
    main()
