"""What the tests of the model-driven roles share: a model that answers as told, turns, attacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from mapo.judges.audit import attacks
from mapo.judges.audit.attacks import ATTACKS as ATTACKS
from mapo.measure.rubric import Rubric
from mapo.models.chat import Answer, Request, ToolCall
from mapo.scenarios.scenario import Scenario, read_scenario
from mapo.types import Direction, Reply, Turn

SCENARIOS = Path(str(files("mapo") / "domains" / "empathy" / "scenarios"))


class Told:
    """A Chat that gives the answers it was told, in order; an exception is raised, a function is asked."""

    name = "told"

    def __init__(self, *answers: str | Answer | Exception | Callable[[Request], str]) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []

    async def reply(self, request: Request) -> Answer:
        self.requests.append(request)
        given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(given, Exception):
            raise given
        if isinstance(given, Answer):
            return given
        return Answer(Reply(given if isinstance(given, str) else given(request)))


def calls(*named: tuple[str, str], text: str = "") -> Answer:
    """An answer that calls tools."""
    return Answer(Reply(text), tuple(ToolCall(name, arguments) for name, arguments in named))


def boat_shed() -> Scenario:
    return read_scenario(SCENARIOS / "career-boat-shed.toml")


def turn_form(rubric: Rubric, up: int = 0, down: int = 0) -> str:
    def mark(level: int) -> dict:
        return {"level": level, "evidence": "his own words", "reason": "it fits him"}

    return json.dumps({key: {"progress": mark(up), "regression": mark(down)} for key in rubric.keys})


def start_form(rubric: Rubric, level: int = 1) -> str:
    mark = {"level": level, "evidence": "e", "reason": "r"}
    return json.dumps({item.key: mark for item in rubric.indicators})


def turns_of(*pairs: tuple[str, str], directions: tuple[Direction | None, ...] = ()) -> list[Turn]:
    given = [*directions, *[None] * len(pairs)]
    return [Turn(said, Reply(reply), direction=given[i]) for i, (said, reply) in enumerate(pairs)]


def prompt(request: Request) -> str:
    return "\n".join(f"[{message.role}]\n{message.content}" for message in request.messages)


def attack(name: str, mark: str) -> str:
    return attacks.attack(name, mark, Rubric.load("empathy"))
