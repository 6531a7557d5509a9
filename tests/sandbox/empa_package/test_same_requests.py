"""`mapo eval empa --prompts empa` sends what EMPA's own package sends, byte for byte.

The package's command line and ours play the same case against a server that answers both alike; every request
body must be equal. It runs with the published package (from MAPO_SHARED) and with a made-up miniature of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from mapo.measure.potential import PROFILES, goal_of
from mapo.measure.rubric import Rubric
from mapo.sandbox.empa_package.package import load_package
from mapo.store import read_dialogues
from mapo.testing.server import LoopbackServer
from support.cards import CARD, STORY, put_cards
from support.command import mapo
from support.miniature_empa import write_miniature
from support.published import published

EMPATHY = Rubric.load("empathy")
MODELS = {"policy": "policy", "user": "gemini-2.5-user", "director": "director", "judge": "judge"}
ASPECT = "情感共情"
DECISIONS = [
    ("select_and_reveal_fragment", {"stage_index": 1, "reason": "r", "actor_guidance": "慢一点"}),
    ("observe_and_wait", {"observation": "fine", "wait_reason": "later"}),
    ("continue_without_new_info", {"focus_suggestion": "the ferry", "reason": "r"}),
    ("reveal_memory", {"memory_period": "童年经历", "reason": "r"}),
    ("adjust_empathy_strategy", {"focus_aspect": ASPECT, "reason": "r", "actor_guidance": "说出来"}),
    ("introduce_turning_point", {"stage_index": 2, "empathy_aspect": ASPECT, "reason": "r"}),
    ("end_conversation", {"reason": "too early"}),
    ("select_and_reveal_fragment", {"stage_index": "one"}),
    ("no_such_function", {}),
    ("not json", None),
    None,
    ("reveal_memory", {"memory_period": "童年经历", "reason": "again"}),
    ("end_conversation", {"reason": "enough"}),
]
"""What the director decides after each turn; None is an answer without a function."""
ACTS = ["reveal_stage", "wait", "go_on", "release_memory", "shift_focus", "turning_point", "wait"]


class Server:
    """Answers like models in all roles. The answers depend only on the number of the call of that role."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def __call__(self, body: dict) -> str | dict:
        role = next(role for role, model in MODELS.items() if model == body["model"])
        number = self.calls[role] = self.calls.get(role, 0) + 1
        if role == "director":
            return self.decision(number)
        if role != "judge":
            return f"{role} 说了第 {number} 句。\n第二行"
        text = body["messages"][0]["content"]
        if "C.1_level" in text:
            keys = [f"{axis}.{n}" for axis in "CAP" for n in (1, 2, 3)]
            levels = {key: n % 4 for n, key in enumerate(keys)}
        else:
            levels = {f"{axis}_Prog": (number + n) % 3 for n, axis in enumerate("CAP")}
            levels |= {f"{axis}_Neg": -((number * n) % 3) for n, axis in enumerate("CAP")}
        texts = {f"{key}_{part}": f"{part} 证据" for key in levels for part in ("evidence", "reasoning")}
        return json.dumps({**{f"{key}_level": level for key, level in levels.items()}, **texts})

    def decision(self, number: int) -> str | dict:
        decision = DECISIONS[number - 1]
        if decision is None:
            return "I would rather wait."
        name, arguments = decision
        written = "{" if arguments is None else json.dumps(arguments, ensure_ascii=False)
        call = {"id": "1", "type": "function", "function": {"name": name, "arguments": written}}
        return {"content": None, "tool_calls": [call]}


def precomputed(case: str) -> dict:
    """A start file as EMPA's: levels, position and thresholds of one case."""
    levels = {item.key: 1 + n % 3 for n, item in enumerate(EMPATHY.indicators)}
    start = EMPATHY.start(levels)
    goal = goal_of(start, EMPATHY, PROFILES["published"])
    epm = {
        "v_star_0": list(goal.direction),
        "epsilon_distance": goal.distance,
        "epsilon_direction": goal.crossing,
        "epsilon_energy": goal.energy,
    }
    position = {key: int(x) for key, x in zip(EMPATHY.keys, start, strict=True)}
    return {case: {"status": "success", "P_0": position, "iedr": levels, "epm": epm}}


@pytest.fixture(params=["miniature", "published"])
def package(request, tmp_path, monkeypatch) -> tuple[Path, str]:
    """A folder with the package and cards in its data, importable, and the name of a case."""
    folder = tmp_path / "package"
    if request.param == "miniature":
        case = "script_001"
        put_cards(write_miniature(folder) / "empa" / "data", CARD, stories=[STORY])
        (folder / "empa" / "data" / "official_cases.txt").write_text(case)
    else:
        case = "script_003"
        for archive, target in (("release", folder), ("cards", folder / "empa" / "data")):
            with tarfile.open(published(f"{archive}.tar.gz")) as tar:
                tar.extractall(target, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    importable(folder, monkeypatch)
    yield folder, case
    forget()


def importable(folder: Path, monkeypatch) -> None:
    forget()
    monkeypatch.syspath_prepend(str(folder))


def forget() -> None:
    load_package.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "empa"]:
        del sys.modules[name]


def played_by_the_package(folder: Path, case: str, turns: int, out: Path) -> list[dict]:
    with LoopbackServer(Server(), models=tuple(MODELS.values()), record=True) as server:
        command = [sys.executable, "-m", "empa.cli", "run", "--model", MODELS["policy"], "--api-key", "none"]
        command += ["--base-url", server.base_url, "--cases", case, "--max-turns", str(turns)]
        command += ["--actor-model", MODELS["user"], "--judger-model", MODELS["judge"]]
        command += ["--director-model", MODELS["director"], "--output-dir", str(out)]
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
    return server.bodies


def played_by_mapo(out: Path, turns: int, *options: object) -> list[dict]:
    with LoopbackServer(Server(), models=tuple(MODELS.values()), record=True) as server:
        url = server.base_url
        roles = [f"--{role}-model={MODELS[role]}" for role in ("user", "director", "judge")]
        done = mapo(
            *("eval", "empa", "--model", MODELS["policy"], "--base-url", url, "--agents-base-url", url),
            *(*roles, "--prompts", "empa", "--out", out, "--max-turns", turns, *options),
        )
    assert done.returncode == 0, done.stderr
    assert "miniature actor" not in done.stdout
    return server.bodies


@pytest.mark.parametrize("known_start", [False, True], ids=["judged start", "precomputed start"])
def test_all_requests_are_those_of_the_package(package, tmp_path, known_start):
    folder, case = package
    if known_start:
        file = folder / "empa" / "data" / "precomputed" / "iedr_batch_results.json"
        file.parent.mkdir()
        file.write_text(json.dumps(precomputed(case)))
    theirs = played_by_the_package(folder, case, 45, tmp_path / "theirs")
    ours = played_by_mapo(tmp_path / "ours", 45, "--cases", case)
    assert len(ours) == 4 * len(DECISIONS) + (not known_start)
    assert ours == theirs
    [dialogue] = read_dialogues(tmp_path / "ours" / "dialogues" / "empa.jsonl")
    assert [turn.direction.act for turn in dialogue.turns[1:8]] == ACTS
    assert dialogue.turns[5].direction.item == "A"
    assert dialogue.ending.reason == "director"
    assert dialogue.profile == "released"
    assert (dialogue.goal is not None) == known_start
    for folder, profile in ((tmp_path / "ours", ()), (tmp_path / "ours" / "empa", ("--profile", "released"))):
        [score] = json.loads(mapo("score", folder, "--json", *profile).stdout)
        assert score["differences"] == []


def test_at_the_turn_limit_nobody_is_asked_again(package, tmp_path):
    folder, case = package
    theirs = played_by_the_package(folder, case, 3, tmp_path / "theirs")
    ours = played_by_mapo(tmp_path / "ours", 3, "--cases", case)
    assert ours == theirs


def test_cards_may_lie_in_another_folder(package, tmp_path):
    folder, case = package
    cards = tmp_path / "cards"
    (folder / "empa" / "data").rename(folder / "moved")
    (folder / "empa" / "data").mkdir()
    for name in ("__init__.py", "loader.py"):
        (folder / "moved" / name).rename(folder / "empa" / "data" / name)
    (folder / "moved").rename(cards)
    bodies = played_by_mapo(tmp_path / "run", 2, "--scenarios", cards, "--cases", case)
    card = (cards / "cases" / f"{case}.md").read_text(encoding="utf-8")
    assert next(b for b in bodies if b["model"] == MODELS["user"])["messages"][0]["content"] == card
