"""How much of each prompt could a server's prefix cache have kept from the call before?

    .venv/bin/python benchmarks/prefix.py [turns]

Plays one dialogue of 20 turns with models that say made-up lines of ordinary length (25 words a line, 45 a
reply) and looks at the prompts. For each role: the tokens of all its calls, and the share of them that
repeats the beginning of the role's previous call; the first call of a dialogue counts as new throughout.
A token is a word or a sign here; real tokenisers cut finer, alike on both sides of the ratio.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
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


class Babbler:
    """A Chat that says `size` made-up words, or fixed text, and keeps the prompts it was given."""

    def __init__(self, name: str, size: int = 0, text: str = "") -> None:
        self.name, self.size, self.text = name, size, text
        self.random = random.Random(name)
        self.prompts: list[str] = []

    async def reply(self, request: Request) -> Answer:
        self.prompts.append("\n".join(f"{m.role}\n{m.content}" for m in request.messages))
        words = ("".join(self.random.choices(SYLLABLES, k=2)) for _ in range(self.size))
        return Answer(Reply(self.text or " ".join(words)))


def shared(before: list[str], after: list[str]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(before, after, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(before), len(after)))


def repeated(prompts: list[str]) -> tuple[int, float]:
    """Tokens of all prompts, and the share that repeats the previous prompt's beginning."""
    tokens = [TOKEN.findall(prompt) for prompt in prompts]
    total = sum(map(len, tokens))
    return total, sum(map(shared, tokens, tokens[1:])) / total


def measure(turns: int = 20) -> dict[str, tuple[int, int, float]]:
    """Role -> (calls, tokens, share repeated)."""
    scenario, rubric = read_scenario(SCENARIO), Rubric.load("empathy")
    mark = {"evidence": "words of the reply", "reason": "because of what was said", "level": 0}
    form = json.dumps({key: {"progress": mark, "regression": mark} for key in rubric.keys})
    chats = {
        "policy": Babbler("policy", 45),
        "user": Babbler("user", 25),
        "director": Babbler(
            "director", text='{"act": "go_on", "item": "", "reason": "there is more to this"}'
        ),
        "judge": Babbler("judge", text=form),
    }
    casting = model_cast(chats["user"], chats["director"], chats["judge"], rubric)
    rules = Rules(rubric, min_turns=turns, max_turns=turns, system=policy_system)
    job = Job(scenario, "prefix")
    dialogue = asyncio.run(play(job, chats["policy"], casting(job), rules))
    if dialogue.error or len(dialogue.turns) != turns:
        raise SystemExit(f"the dialogue broke: {dialogue.error or dialogue.ending}")
    return {role: (len(chat.prompts), *repeated(chat.prompts)) for role, chat in chats.items()}


def main() -> None:
    print(f"{'role':10}{'calls':>7}{'tokens':>9}{'repeated':>10}")
    for role, (calls, total, share) in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 20).items():
        print(f"{role:10}{calls:7}{total:9}{share:10.1%}")


if __name__ == "__main__":
    main()
