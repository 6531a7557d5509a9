"""The acts of EMPA's director, which its result files hold as guidance to the user, as mapo's acts.

A guidance stands with the reply after which it was given, so it belongs to the next turn. Its first heading
names the act. Guidance that cannot be read is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mapo.measure.rubric import Rubric
from mapo.records import encode_dialogue
from mapo.scenarios.scenario import Scenario
from mapo.scoring.empa_files import read_dialogue
from mapo.store import RunDir, write_atomic
from mapo.types import Dialogue, Direction

STAGE = re.compile(r"【阶段(\d)：")
MEMORY = re.compile(r"【记忆片段释放】.*?【(\w+)】", re.DOTALL)
FOCUS = re.compile(r"【表演策略调整】\s*聚焦方向：\s*(认知|情感|动机)")
AXES = {"认知": "C", "情感": "A", "动机": "P"}
PERIODS = {"童年经历": "childhood", "少年经历": "youth", "青年经历": "adulthood", "角色现状": "recent"}
TURNING, STAYING = "【综合转折点】", "【维持当前状态】"


def direction_of(guidance: str | None, scenario: Scenario) -> Direction | None:
    """Return the act behind a guidance; without guidance the director waited."""
    if guidance is None:
        return Direction("wait")
    text = guidance.lstrip()
    if found := STAGE.match(text):
        return Direction("reveal_stage", str(int(found[1]) - 1))
    if found := MEMORY.match(text):
        period = PERIODS.get(found[1])
        periods = [memory.period for memory in scenario.memories]
        return Direction("release_memory", str(periods.index(period))) if period in periods else None
    if found := FOCUS.match(text):
        return Direction("shift_focus", AXES[found[1]])
    acts = {TURNING: "turning_point", STAYING: "go_on"}
    return next((Direction(act) for heading, act in acts.items() if text.startswith(heading)), None)


def directed(file: Path, scenarios: Mapping[str, Scenario], rubric: Rubric) -> Dialogue | None:
    """Return the dialogue of a result file with the director's acts; None if its scenario is unknown."""
    dialogue = read_dialogue(file, rubric)
    scenario = scenarios.get(dialogue.scenario)
    if scenario is None:
        return None
    history: list[dict[str, Any]] = json.loads(file.read_bytes())["history"]
    replies = [message for message in history if message.get("role") == "test_model"]
    acts = [direction_of(message.get("director_guidance"), scenario) for message in replies]
    turns = [replace(turn, direction=act) for turn, act in zip(dialogue.turns[1:], acts, strict=False)]
    return replace(dialogue, turns=(dialogue.turns[0], *turns))


def write_acts(results: Path, scenarios: Mapping[str, Scenario], out: Path) -> list[Path]:
    """Write the dialogues of all result files as run directories, one per policy, and return them."""
    rubric = Rubric.load("empathy")
    runs: dict[str, list[Dialogue]] = {}
    for file in sorted(results.rglob("*_result.json")):
        if (dialogue := directed(file, scenarios, rubric)) is not None:
            runs.setdefault(dialogue.model, []).append(dialogue)
    folders = [out / re.sub(r"[^\w.-]", "_", model) for model in runs]
    for folder, dialogues in zip(folders, runs.values(), strict=True):
        lines = b"".join(encode_dialogue(dialogue) + b"\n" for dialogue in dialogues)
        write_atomic(RunDir(folder).empa_dialogues, lines)
    return folders
