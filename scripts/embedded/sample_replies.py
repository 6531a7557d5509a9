"""Collect what a policy says: replies to the lines of people, in dialogues that came before with written replies.

    PYTHONPATH=. python scripts/embedded/sample_replies.py --model policy --out sampled.jsonl.gz

The people are those that models may learn from; held-out people are never replied to, because the replies are trained on.
Each row holds the lines up to the one that is replied to, and replies to it. `writer.py read` rates them; sensible ones are
learned from by the next policy (`make_policy.py --read`), nonsense by the judges (`make_judge.py --read`). With a verdict of
a reader on each, replies belong in sense.jsonl.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from corpus import in_parallel, with_replies
from dialogues import Exchange, Talk
from documents import is_clean_reply, is_short, new_rows
from reply_files import load_written, with_written
from small import ASSISTANT, END, USER
from speaker import Speaker, padded
from texts import Person, known_people, natural_people, train_scenarios
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

SHOWN = 3
"""Exchanges of the dialogue that the policy sees before the line."""
BEFORE = 2
"""Lines that a row shows before the one that is replied to."""
LEAST = 0.85
"""Probability of sense from which on a written reply may come before the line."""
LONGEST = 28
"""Tokens of a reply, at most; longer ones are dropped."""


def people_of(folders: Sequence[Path]) -> list[Person]:
    """Return the people to reply to, with the short, clean replies that may come before a line: natural ones alone, and all,
    those in `folders` of writer.py included."""
    known = [*known_people(), *train_scenarios()]
    if folders:
        known = with_written(known, load_written(folders), LEAST)
    wanted = with_replies(
        [*natural_people(), *known], lambda reply, line: is_short(reply) and is_clean_reply(reply, line)
    )
    return [person for person in wanted if any(line.replies for line in person.lines)]


def prompts_of(played: list[Exchange], tokenizer: Tokenizer) -> list[tuple[list[str], list[int]]]:
    """Return the lines and the ids of the prompt of each reply of a dialogue."""
    result = []
    for end in range(1, len(played) + 1):
        shown = played[max(0, end - SHOWN - 1) : end]
        rows = [f"{USER}{x.line}{END}{ASSISTANT}{x.reply}{END}" for x in shown[:-1]]
        text = "".join(rows) + f"{USER}{shown[-1].line}{END}{ASSISTANT}"
        lines = [x.line for x in played[max(0, end - BEFORE - 1) : end]]
        result.append((lines, tokenizer.encode(text, add_special_tokens=False).ids))
    return result


@torch.inference_mode()
def sample(args: argparse.Namespace) -> None:
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    people = people_of(args.written)

    def make(rng: random.Random) -> list[tuple[list[str], list[int]]]:
        played = Talk(rng.choice(people), rng, people, 0.5).play(10)
        return prompts_of(played, tokenizer)

    places = [p for some in in_parallel(make, args.dialogues, f"say/{args.seed}", 50) for p in some]
    random.Random(args.seed).shuffle(places)
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    model = LlamaForCausalLM.from_pretrained(args.model, dtype=dtype).to(args.device).eval()
    speaker = Speaker(model, range(model.config.vocab_size))
    end = tokenizer.token_to_id(END)
    torch.manual_seed(args.seed)
    began, lines_done, count = time.monotonic(), 0, 0
    at_once = max(1, args.at_once // args.each)
    with new_rows(args.out) as add:
        for start in range(0, len(places), at_once):
            some = places[start : start + at_once]
            prompts, sizes = padded([ids for _, ids in some], args.device)
            sampled, _ = speaker.speak(
                prompts,
                sizes,
                None,
                args.each,
                LONGEST,
                end,
                temperature=args.temperatures[start // at_once % len(args.temperatures)],
                top_p=1.0,
            )
            texts = tokenizer.decode_batch(sampled, skip_special_tokens=True)
            for n, (lines, _) in enumerate(some):
                mine = dict.fromkeys(" ".join(t.split()) for t in texts[n * args.each : (n + 1) * args.each])
                replies = [text for text in mine if text]
                add({"lines": lines, "replies": replies})
                lines_done, count = lines_done + 1, count + len(replies)
            if time.monotonic() - began > 60 * args.minutes:
                break
    print(f"{count} replies to {lines_done} of {len(places)} lines, {time.monotonic() - began:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="folder of the policy")
    parser.add_argument("--out", type=Path, required=True, help="file to write (.jsonl.gz)")
    parser.add_argument(
        "--written", type=Path, nargs="+", default=[], help="folders of writer.py: replies that come before"
    )
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.5, 0.7, 1.0])
    parser.add_argument("--dialogues", type=int, default=1000)
    parser.add_argument("--each", type=int, default=4, help="replies to each line")
    parser.add_argument("--at-once", type=int, default=4096)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    sample(parser.parse_args())


if __name__ == "__main__":
    main()
