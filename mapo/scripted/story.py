"""A story told without models: what the scripted users and directors of all domains have in common.

`Story` knows what a scenario holds and what was said of it. `StoryDirector` lets it on while replies meet the
person and holds it back while they harm; `StoryUser` says the lines. What meets and what harms is the
domain's judge's to say (`mapo/domains/*/scripted.py`). Deterministic given a seed.
"""

from __future__ import annotations

import random
from collections.abc import Container, Sequence

from mapo.errors import ScenarioError
from mapo.measure.potential import Trajectory
from mapo.scenarios.scenario import Beat, Scenario
from mapo.types import Direction, Levels, Turn


def check_marked(scenario: Scenario, cue: str, known: Container[str]) -> None:
    """What scripted roles need of a scenario, whatever the domain; `cue` is what its judge goes by."""
    unmarked = [b for b in scenario.beats if not b.about or b.cues.get(cue, "") not in known]
    parts = (scenario.stages, scenario.start_levels, scenario.guarded, scenario.eased)
    if unmarked or not all(parts):
        raise ScenarioError(
            f"'{scenario.id}' lacks what the scripted roles need: stages, start levels, guarded and "
            f"eased lines, and for each beat `about` and a known `cues.{cue}`",
            fix="Use models for its roles: --agents llm",
        )


class Story:
    """What can be told in one dialogue, and what has been."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.rng = random.Random(f"{scenario.id}/{seed}")  # noqa: S311 (a seeded world, no secret)
        self.beat_of = {line: beat for beat in scenario.beats for line in beat.says}
        self.order = _order(scenario)
        self.said: set[str] = set()
        self.spare = {"guarded": list(scenario.guarded), "eased": list(scenario.eased)}
        for lines in self.spare.values():
            self.rng.shuffle(lines)

    def told(self, turns: Sequence[Turn]) -> list[Beat]:
        """The beats behind what the user has said, oldest first, each once."""
        beats: list[Beat] = []
        for turn in turns:
            beat = self.beat_of.get(turn.user)
            if beat is not None and (not beats or beats[-1] is not beat):
                beats.append(beat)
        return beats

    def spare_line(self, kind: str) -> str:
        """A guarded or an eased line, each in its turn."""
        lines = self.spare[kind]
        lines.append(lines.pop(0))
        return lines[-1]


def _order(scenario: Scenario) -> list[tuple[str, int]]:
    """In which order things come out: the story, with memories rising up between its stages."""
    stages = [("reveal_stage", i) for i in range(len(scenario.stages))]
    memories = [("release_memory", i) for i in range(len(scenario.memories))]
    mixed = stages[:2]
    for stage in stages[2:]:
        if memories:
            mixed.append(memories.pop())
        mixed.append(stage)
    return mixed + memories


def harmed(levels: Levels) -> bool:
    return any(marks.regression.level < 0 for marks in levels.values())


def met(levels: Levels) -> bool:
    return any(marks.progress.level > 0 for marks in levels.values())


class StoryDirector:
    """Lets the story on while the person is met, and holds it back while they are not."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.next = 0
        self.waited = 0
        self.current: Beat | None = None

    async def direct(self, turns: Sequence[Turn], path: Trajectory) -> Direction:
        del path
        levels = turns[-1].levels
        if levels is not None and harmed(levels):
            return Direction("wait", reason="the last reply did harm")
        if levels is not None and not met(levels) and self.waited < 2:
            self.waited += 1
            return Direction("wait", reason="the last reply met nothing")
        return self.go_on("the last reply was met")

    def go_on(self, reason: str) -> Direction:
        """The rest of the beat at hand, then the next one."""
        self.waited = 0
        story = self.story
        if self.current and any(line not in story.said for line in self.current.says):
            return Direction("go_on", reason="there is more to this")
        if self.next >= len(story.order):
            return Direction("go_on", reason="everything is told")
        act, index = story.order[self.next]
        self.next += 1
        beats: Sequence[Beat] = story.scenario.stages if act == "reveal_stage" else story.scenario.memories
        self.current = beats[index]
        return Direction(act, str(index), reason)


class StoryUser:
    """Says the beat the director opened, line by line; otherwise keeps to the surface."""

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
