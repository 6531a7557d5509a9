"""Measure how much of each prompt a server's prefix cache can reuse from the previous call.

    .venv/bin/python benchmarks/prefix.py [turns]

Plays one dialogue with models that answer in made-up words of typical length (25 words per user message, 45
per reply) and compares the prompts. Prints for each role the tokens of all its calls, and the share of them
that repeats the beginning of the role's previous call. The first call of a dialogue counts as new. A token is
a word, a space or a punctuation mark; real tokenizers split further, but on both sides of the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
from importlib.resources import files
from pathlib import Path

from mapo.measure.rubric import Rubric
from mapo.models.chat import Answer, Request
from mapo.sandbox.model_cast import model_cast, policy_system
from mapo.sandbox.rollout import Job, Rules, play
from mapo.scenarios.scenario import read_scenario
from mapo.types import Reply

SCENARIO = Path(str(files("mapo") / "domains" / "empathy" / "scenarios" / "career-boat-shed.toml"))
TOKEN = re.compile(r"\w+|[^\w\s]|\s")
SYLLABLES = ["ka", "lo", "mi", "ren", "sta", "vo", "pel", "dun", "shi", "bar", "tev", "nao", "fli", "gor"]


class RandomTextChat:
    """A Chat that answers with `size` made-up words, or with fixed text, and records its prompts."""

    def __init__(self, name: str, size: int = 0, text: str = "") -> None:
        self.name, self.size, self.text = name, size, text
        self.random = random.Random(name)
        self.prompts: list[str] = []

    async def reply(self, request: Request) -> Answer:
        self.prompts.append("\n".join(f"{m.role}\n{m.content}" for m in request.messages))
        words = ("".join(self.random.choices(SYLLABLES, k=2)) for _ in range(self.size))
        return Answer(Reply(self.text or " ".join(words)))


def common_prefix(before: list[str], after: list[str]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(before, after, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(before), len(after)))


def repeated(prompts: list[str]) -> tuple[int, float]:
    """Return the tokens of all prompts, and the share that repeats the previous prompt's beginning."""
    tokens = [TOKEN.findall(prompt) for prompt in prompts]
    total = sum(map(len, tokens))
    return total, sum(map(common_prefix, tokens, tokens[1:])) / total


def measure(turns: int) -> dict[str, tuple[int, int, float]]:
    """Play a dialogue; return (calls, tokens, repeated share) by role."""
    scenario, rubric = read_scenario(SCENARIO), Rubric.load("empathy")
    mark = {"evidence": "words of the reply", "reason": "because of what was said", "level": 0}
    form = json.dumps({key: {"progress": mark, "regression": mark} for key in rubric.keys})
    chats = {
        "policy": RandomTextChat("policy", 45),
        "user": RandomTextChat("user", 25),
        "director": RandomTextChat(
            "director", text='{"act": "go_on", "item": "", "reason": "there is more to this"}'
        ),
        "judge": RandomTextChat("judge", text=form),
    }
    casting = model_cast(chats["user"], chats["director"], chats["judge"], rubric)
    rules = Rules(rubric, min_turns=turns, max_turns=turns, system=policy_system)
    job = Job(scenario, "prefix")
    dialogue = asyncio.run(play(job, chats["policy"], casting(job), rules))
    if dialogue.error or len(dialogue.turns) != turns:
        raise SystemExit(f"the dialogue did not finish: {dialogue.error or dialogue.ending}")
    return {role: (len(chat.prompts), *repeated(chat.prompts)) for role, chat in chats.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("turns", type=int, nargs="?", default=20, help="turns of the dialogue (default: 20)")
    turns = parser.parse_args().turns
    if turns < 2:
        parser.error("turns must be at least 2")
    print(f"{'role':10}{'calls':>7}{'tokens':>9}{'repeated':>10}")
    for role, (calls, total, share) in measure(turns).items():
        print(f"{role:10}{calls:7}{total:9}{share:10.1%}")


if __name__ == "__main__":
    main()
