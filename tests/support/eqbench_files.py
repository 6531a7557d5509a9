"""Made-up files with the layout of EQ-Bench's own, and models that answer by rule, for its tests."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from mapo.evals.eqbench import data
from support.published import SHARED

SCENARIOS = """\
a line that belongs to nothing
######## 1 | Work | The shared desk
nor does this one
####### Prompt1
Somebody has moved your things
  again. What do you do?

####### Prompt2
They say it was not them.
####### Prompt3
####### Prompt4
They were lying # all along.

######## 2 | Home | The plant
####### Prompt1
The plant you gave away is dying.
####### Prompt2
They ask whether you noticed {it}.
######## 208 | Letter | To a neighbour
####### Prompt1
Write to your neighbour about the noise.
####### Prompt2
Now shorter.
######## 401 | Analysis | The desk
####### Prompt1
# Act one
Somebody's things were moved.
######## 409 | Analysis | The plant
####### 1
Nobody ever reads this.
######## 402 | Analysis | The plant
####### Prompt1
A plant was given away.
"""

V3_FILES = {
    "debrief_prompt.txt": "Look back now.",
    "rubric_scoring_criteria.txt": "# marks\npragmatic_ei\ndepth_of_insight\n\nwarmth\n",
    "rubric_scoring_criteria_analysis.txt": "correctness\ntheory_of_mind",
    "rubric_scoring_prompt.txt": "ACTED *all of it*\n{transcript}\nLATER\n{debrief}\nFORM {output_format}",
    "rubric_scoring_prompt_analysis.txt": "ANALYSED\n{transcript}\nFORM {output_format}",
    "scenario_master_prompt.txt": "{scenario_prompt}\n# I'm thinking & feeling ...",
    "scenario_master_prompt_analysis.txt": "[{scenario_prompt}] Explain.",
    "scenario_master_prompt_message_drafting.txt": "{scenario_prompt}\n# Draft ...",
    "scenario_prompts.txt": SCENARIOS,
}
CALLS = 3 + 1 + 2 + 1 + 2 + 1 + 1 + 1
"""What the model is asked in all: turns, and a look back after the first three scenarios."""


def question(number: int) -> dict:
    names = [f"E{number}{letter}" for letter in "abcd"]
    form = "\n".join(f"{name}: <score>" for name in names)
    revised = form.replace("<score>", "<revised score>")
    reference = {f"emotion{i}": name for i, name in enumerate(names, 1)}
    return {
        "prompt": (
            f"Talk {number}. Rate each from 0-10. Then critique it and give your revised scores.\n\n"
            f"First pass scores:\n{form}\n\nCritique: <your critique here>\n\nRevised scores:\n{revised}\n\n"
            "[End of answer]\n\nZero is fine.\n"
        ),
        "reference_answer_fullscale": {**reference, **{f"emotion{i}_score": str(2 * i) for i in range(1, 5)}},
    }


V2_FILES = {"eq_bench_v2_questions_171.json": json.dumps({str(n): question(n) for n in range(1, 7)})}


def write(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """The files in `folder`, and the sha256 of each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}


@pytest.fixture
def made_up(tmp_path, monkeypatch) -> Path:
    """A folder of both benchmarks' made-up files, known to the package for as long as the test runs."""
    for place, files in ((data.V3_FILES, V3_FILES), (data.V2_FILES, V2_FILES)):
        for name, digest in write(tmp_path / "files", files).items():
            monkeypatch.setitem(place, name, digest)
    return tmp_path / "files"


def shared(*parts: str) -> Path:
    """A file or folder beside the repository, or a skip that says what is missing."""
    path = SHARED.joinpath("data", *parts)
    if not path.exists():
        pytest.skip(f"published data absent: {path} (set MAPO_SHARED)")
    return path


def fixture(name: str) -> dict:
    return json.loads(shared("fixtures", name).read_text(encoding="utf-8"))


_CHILD = """
import json, sys
from mapo.evals.eqbench import data
known = json.loads(sys.argv[1])
data.V3_FILES.update(known["three"])
sys.argv = ["mapo", *sys.argv[2:]]
from mapo.cli import run
run()
"""


def child(*args: object) -> subprocess.Popen:
    """The command in a process of its own, which knows the same files as this one."""
    known = json.dumps({"three": data.V3_FILES})
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, known, *map(str, args)],
        env={**os.environ, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def reply_to(messages: list[dict]) -> str:
    """A reply that follows from what was said: thinking, then sections long enough to judge."""
    mark = hashlib.sha256(json.dumps(messages).encode()).hexdigest()
    sections = [
        f"# {title}\n{mark} *{len(messages)}*\n" for title in ("I'm thinking & feeling", "My response")
    ]
    return f"<think>{mark}</think>\n" + "\n".join(sections) + "\n--"


def marks_for(prompt: str) -> str:
    """Marks that follow from the judge's prompt."""
    mark = hashlib.sha256(prompt.encode()).digest()
    names = ("pragmatic_ei", "depth_of_insight", "warmth", "correctness", "theory_of_mind")
    return json.dumps({"chain_of_thought_reasoning": "so"} | {n: mark[i] % 21 for i, n in enumerate(names)})


class Script:
    """Answers of the models "policy" and "judge"; after `hold` of them nothing is answered until released."""

    def __init__(self, *, judge=marks_for, policy=reply_to, hold: int | None = None) -> None:
        self.judge, self.policy, self.hold = judge, policy, hold
        self.answered: Counter[str] = Counter()
        self.held: list[dict] = []
        self.by_model: Counter[str] = Counter()

    async def __call__(self, body: dict) -> str:
        if self.hold is not None and self.answered.total() >= self.hold:
            self.held.append(body)
            while self.hold is not None:
                await asyncio.sleep(0.01)
            return "nobody hears this: the client is dead"
        self.answered[json.dumps(body, sort_keys=True)] += 1
        self.by_model[body["model"]] += 1
        if body["model"] == "judge":
            return self.judge(body["messages"][0]["content"])
        return self.policy(body["messages"])
