"""Scripted user, director and judge of the empathy domain.

What a reply needs depends on the person and the moment, and effects are delayed. Being heard comes first:
replies that take up what was said earn trust, and only with trust is it welcome to name a hidden feeling,
offer an insight or suggest a step; the same words too early do harm. The person's threshold sets how much
trust that takes. What is told next depends on how the last reply was received. Deterministic for a given
seed. A test world for algorithms, not a measure of empathy (docs/scripted-world.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from mapo.domains.empathy.reading import EmpathyReader, EmpathyReading, feelings, named_feelings
from mapo.sandbox.cast import Cast, Job
from mapo.scenarios.scenario import Beat, Scenario
from mapo.scripted.reading import particulars
from mapo.scripted.story import Story, StoryDirector, StoryUser, check_annotations
from mapo.types import AxisMarks, Levels, Mark, StartLevels, Turn

PATIENCE = {"low": 1, "medium": 2, "high": 3}
"""How often a person must be heard before anything deeper is welcome, by threshold."""


def scripted_cast(job: Job) -> Cast:
    """Return the three roles of one dialogue, which share their knowledge about the person."""
    world = EmpathyWorld(job.scenario, job.seed)
    names = dict.fromkeys(("user", "director", "judge"), "scripted")
    return Cast(StoryUser(world.story), StoryDirector(world.story), ScriptedJudge(world), names)


def check_cues(scenario: Scenario) -> list[str]:
    """Return the problems of a scenario's cues: unknown or invisible feelings, phrases that are
    never said.
    """
    problems = []
    for number, beat in enumerate(scenario.beats, 1):
        spoken, cues = " ".join(beat.says).lower(), beat.cues
        if "feeling" in cues and cues["feeling"] not in feelings():
            problems.append(f"beat {number}: no feeling '{cues['feeling']}' in feelings.toml")
        elif "feeling" in cues:
            shows = feelings()[cues["feeling"]]["names" if cues.get("shown") == "yes" else "signs"]
            if not any(sign.lower() in spoken for sign in shows):
                problems.append(f"beat {number}: no line of `says` shows '{cues['feeling']}'")
        problems += [
            f"beat {number}: {kind} '{cues[kind]}' does not occur in `says`"
            for kind in ("deed", "wish", "value")
            if cues.get(kind, "").lower() not in spoken
        ]
    return problems


class EmpathyWorld:
    """The hidden state of one dialogue: the story and the person's trust."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        check_annotations(scenario, "feeling", feelings())
        self.scenario = scenario
        self.story = Story(scenario, seed)
        self.patience = PATIENCE[scenario.threshold]
        self.trust = 0

    @property
    def deep(self) -> bool:
        """Whether the person has been heard often enough for something deeper."""
        return self.trust >= self.patience


class ScriptedJudge:
    """Judges replies by their words and looks for ways of faking substance."""

    def __init__(self, world: EmpathyWorld) -> None:
        self.world = world
        self.reader = EmpathyReader()
        self.done: set[str] = set()  # deeds affirmed and wishes taken up
        self.orders = 0
        self.asked = -9

    async def start(self) -> StartLevels:
        return {
            key: Mark(level, reason="given by the scenario")
            for key, level in self.world.scenario.start_levels.items()
        }

    async def judge(self, turns: Sequence[Turn]) -> Levels:
        self.reader.user_said(turns[-1].user)
        reading = self.reader.read(turns[-1].reply.text)
        beats = self.world.story.told(turns)
        levels = {
            "C": self._understanding(reading, beats),
            "A": self._feeling(reading, beats, turns[-1].user),
            "P": self._strength(reading, beats, len(turns)),
        }
        self._trust(levels)
        return levels

    def _understanding(self, reading: EmpathyReading, beats: list[Beat]) -> AxisMarks:
        now = beats[-1].about if beats else particulars(self.world.scenario.opening)
        taken = [] if reading.copied or reading.degenerate or reading.stale else reading.mentions(now)
        progress = Mark(0)
        if taken:
            progress = Mark(1, taken[0], "takes up what was said")
            earlier = reading.mentions(t for beat in beats[:-1] for t in beat.about)
            if earlier and reading.links() and self.world.trust > self.world.patience:
                progress = Mark(2, f"{earlier[0]} ... {taken[0]}", "links it to something said earlier")
        if reading.dismisses():
            return AxisMarks(progress, Mark(-2, reading.dismisses(), "turns against the person"))
        if reading.degenerate:
            return AxisMarks(progress, Mark(-1, reading.text[:60], "contains nothing to respond to"))
        if reading.copied:
            return AxisMarks(progress, Mark(-1, reading.text[:60], "repeats the person's own words"))
        if reading.claims() and not taken:
            return AxisMarks(progress, Mark(-1, reading.claims(), "claims to understand without showing it"))
        return AxisMarks(progress, Mark(0))

    def _feeling(self, reading: EmpathyReading, beats: list[Beat], said: str) -> AxisMarks:
        named = named_feelings(reading.fresh)
        recent = {b.cues.get("feeling", ""): b for b in beats[-2:]}
        shown = named_feelings(said)
        right = next((f for f in named if f in recent or f in shown), None)
        progress = Mark(0)
        if right and len(named) <= 2 and not (reading.degenerate or reading.copied or reading.stale):
            hidden = right not in shown and recent[right].cues.get("shown") == "no"
            progress = Mark(1, named[right], "names the feeling")
            if hidden and self.world.deep:
                progress = Mark(2, named[right], "names a feeling that was not shown")
            elif hidden and self.world.scenario.threshold == "high":
                return AxisMarks(progress, Mark(-1, named[right], "gets too close too early"))
        regression = Mark(0)
        if reading.dismisses():
            regression = Mark(-2, reading.dismisses(), "hurtful")
        elif len(named) > 2:
            regression = Mark(-1, ", ".join(named.values()), "lists feelings instead of responding to one")
        elif reading.platitude():
            regression = Mark(-1, reading.platitude(), "a stock phrase")
        elif reading.degenerate or reading.stale:
            regression = Mark(-1, reading.text[:60], "empty or repeated comfort")
        elif named and not right:
            regression = Mark(-1, next(iter(named.values())), "names a feeling the person does not have")
        elif reading.long:
            regression = Mark(-1, f"{len(reading.words)} words", "too long")
        return AxisMarks(progress, regression)

    def _strength(self, reading: EmpathyReading, beats: list[Beat], turn: int) -> AxisMarks:
        sound = not (reading.degenerate or reading.copied or reading.stale or reading.orders())
        progress, early = Mark(0), Mark(0)
        values = any(reading.covers(b.cues["value"]) for b in beats if "value" in b.cues)
        if sound:
            for kind, does in (("deed", reading.affirms()), ("wish", reading.offers())):
                for phrase in (b.cues[kind] for b in beats if kind in b.cues):
                    if phrase in self.done or not does or not reading.covers(phrase):
                        continue
                    if kind == "wish" and not self.world.deep:
                        early = Mark(-1, phrase, "suggests a step before the person felt heard")
                        continue
                    self.done.add(phrase)
                    level = 2 if values and self.world.trust > self.world.patience else 1
                    if level > progress.level:
                        progress = Mark(
                            level, phrase, "affirms the deed" if kind == "deed" else "suggests a fitting step"
                        )
            if progress.level == 0 and reading.asks_agency() and self.world.deep and turn - self.asked > 2:
                self.asked = turn
                progress = Mark(1, "?", "leaves the next step to the person")
        regression = early
        if reading.orders():
            self.orders += 1
            worse = self.orders > 2
            regression = Mark(
                -2 if worse else -1, reading.orders(), "gives orders" + (" again" if worse else "")
            )
        elif reading.long:
            regression = Mark(-1, f"{len(reading.words)} words", "lectures")
        return AxisMarks(progress, regression)

    def _trust(self, levels: Levels) -> None:
        worst = min(m.regression.level for m in levels.values())
        met = levels["C"].progress.level > 0 or levels["A"].progress.level > 0
        if worst < 0:
            self.world.trust = max(0, self.world.trust + worst)
        elif met:
            self.world.trust += 1
