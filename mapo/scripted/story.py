"""Scripted users and directors: telling a scenario's story without models.

`Story` keeps track of what a scenario contains and what has been told. `StoryDirector` continues the story
while replies help and holds it back while they harm; `StoryUser` says the lines. The domain's judge decides
what helps and what harms (`mapo/domains/*/scripted.py`). Deterministic for a given seed.
"""

from __future__ import annotations

import random
from collections.abc import Container, Sequence

from mapo.errors import ScenarioError
from mapo.measure.potential import Trajectory
from mapo.scenarios.scenario import Beat, Scenario
from mapo.types import Direction, Levels, Turn


def check_annotations(scenario: Scenario, cue: str, known: Container[str]) -> None:
    """Raise ScenarioError unless the scenario has everything that scripted roles need. `cue` is the cue that
    the domain's judge relies on.
    """
    incomplete = [b for b in scenario.beats if not b.about or b.cues.get(cue, "") not in known]
    parts = (scenario.stages, scenario.start_levels, scenario.guarded, scenario.eased)
    if incomplete or not all(parts):
        raise ScenarioError(
            f"'{scenario.id}' cannot be played with scripted roles: they need stages, start levels, guarded "
            f"and eased lines, and for each beat `about` and a known `cues.{cue}`",
            fix="Use models for its roles (--agents llm)",
        )


class Story:
    """The story of one dialogue: what can be told, and what has been told."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.rng = random.Random(f"{scenario.id}/{seed}")  # noqa: S311 (reproducible, not security)
        self.beat_of = {line: beat for beat in scenario.beats for line in beat.says}
        self.order = _order(scenario)
        self.said: set[str] = set()
        self.spare = {"guarded": list(scenario.guarded), "eased": list(scenario.eased)}
        for lines in self.spare.values():
            self.rng.shuffle(lines)

    def told(self, turns: Sequence[Turn]) -> list[Beat]:
        """Return the beats behind the user's messages, oldest first, each once."""
        beats: list[Beat] = []
        for turn in turns:
            beat = self.beat_of.get(turn.user)
            if beat is not None and (not beats or beats[-1] is not beat):
                beats.append(beat)
        return beats

    def spare_line(self, kind: str) -> str:
        """Return the next guarded or eased line, in rotation."""
        lines = self.spare[kind]
        lines.append(lines.pop(0))
        return lines[-1]


def _order(scenario: Scenario) -> list[tuple[str, int]]:
    """Return the order in which beats are told: the stages, with memories between them."""
    stages = [("reveal_stage", i) for i in range(len(scenario.stages))]
    memories = [("release_memory", i) for i in range(len(scenario.memories))]
    mixed = stages[:2]
    for stage in stages[2:]:
        if memories:
            mixed.append(memories.pop())
        mixed.append(stage)
    return mixed + memories


def harmed(levels: Levels) -> bool:
    """Return whether a reply earned a regression on any axis."""
    return any(marks.regression.level < 0 for marks in levels.values())


def helped(levels: Levels) -> bool:
    """Return whether a reply earned progress on any axis."""
    return any(marks.progress.level > 0 for marks in levels.values())


class StoryDirector:
    """Continues the story after helpful replies and holds it back after others."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.next = 0
        self.waited = 0
        self.current: Beat | None = None

    async def direct(self, turns: Sequence[Turn], trajectory: Trajectory) -> Direction:
        del trajectory
        levels = turns[-1].levels
        if levels is not None and harmed(levels):
            return Direction("wait", reason="the last reply was harmful")
        if levels is not None and not helped(levels) and self.waited < 2:
            self.waited += 1
            return Direction("wait", reason="the last reply did not help")
        return self.go_on("the last reply helped")

    def go_on(self, reason: str) -> Direction:
        """Continue the current beat, then move on to the next."""
        self.waited = 0
        story = self.story
        if self.current and any(line not in story.said for line in self.current.says):
            return Direction("go_on", reason="this part of the story continues")
        if self.next >= len(story.order):
            return Direction("go_on", reason="the story is complete")
        act, index = story.order[self.next]
        self.next += 1
        beats: Sequence[Beat] = story.scenario.stages if act == "reveal_stage" else story.scenario.memories
        self.current = beats[index]
        return Direction(act, str(index), reason)


class StoryUser:
    """Says the lines of the current beat; while the director waits, says guarded lines."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.beat: Beat | None = None

    async def speak(self, turns: Sequence[Turn], direction: Direction) -> str:
        del turns
        scenario = self.story.scenario
        if direction.act in ("reveal_stage", "release_memory"):
            beats: Sequence[Beat] = scenario.stages if direction.act == "reveal_stage" else scenario.memories
            self.beat = beats[int(direction.item)]
        if direction.act != "wait" and self.beat:
            for line in self.beat.says:
                if line not in self.story.said:
                    self.story.said.add(line)
                    return line
        return self.story.spare_line("guarded" if direction.act == "wait" else "eased")
