"""A learner, a director and a judge of plain code, with effects that come later than their causes.

A wrong idea has to be *in the open* before anything else helps: whoever asks for a step earlier asks for one
the learner cannot take. An answer that is handed over feels good now, and understanding collapses at the
next case. Steps the learner took themself make later explanations worth more; praise counts only for
something they did. Patience is the learner's threshold. Deterministic given a seed; a test world for
algorithms, no measure of teaching (docs/scripted-world.md).
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files

from mapo.measure.potential import Trajectory
from mapo.sandbox.cast import Cast, Job
from mapo.scenarios.scenario import Beat, Scenario
from mapo.scripted.reading import Phrases, Reader, Reading, content, particulars, phrase_book
from mapo.scripted.story import Story, StoryDirector, StoryUser, check_marked
from mapo.types import AxisMarks, Direction, Levels, Mark, StartLevels, Turn

PATIENCE = {"low": 1, "medium": 2, "high": 3}
"""How many replies that help it takes until a contradiction is welcome."""

SHOWS = ("idea", "case", "slip", "own", "grasp")
"""What a moment shows: the wrong idea, a case that does not fit it, a fall, something the learner knows well,
the right idea in their own words."""
AT_STAKE = ("idea", "case", "slip")
OWNED = ("own", "grasp")
_STOPS = (".", "!", "?", '"', "'", "\u2019", "\u201d", ")")


@lru_cache
def phrases() -> Phrases:
    folder = files("mapo") / "domains" / "tutoring"
    return phrase_book(tomllib.loads((folder / "phrases.toml").read_text(encoding="utf-8")))


def scripted_cast(job: Job) -> Cast:
    """The three roles for one dialogue, sharing what they know about the learner."""
    world = World(job.scenario, job.seed)
    names = dict.fromkeys(("user", "director", "judge"), "scripted")
    return Cast(StoryUser(world.story), TutorDirector(world), TutorJudge(world), names)


def check_cues(scenario: Scenario) -> list[str]:
    """What is wrong with the cues there are: moments of no known kind, words nobody says, answers said."""
    problems = []
    for number, beat in enumerate(scenario.beats, 1):
        said, cues = " ".join(beat.says), beat.cues
        if "shows" in cues and cues["shows"] not in SHOWS:
            problems.append(f"beat {number}: shows is '{cues['shows']}', not one of {', '.join(SHOWS)}")
        problems += [
            f"beat {number}: {kind} '{cues[kind]}' is not in what is said"
            for kind in ("deed", "wish")
            if cues.get(kind, "").lower() not in said.lower()
        ]
        if "answer" in cues and not content(cues["answer"]) - content(said):
            problems.append(f"beat {number}: the answer '{cues['answer']}' is said by the learner themself")
    return problems


class World:
    """What is true in one dialogue: what was told, and how the learner stands to it."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        check_marked(scenario, "shows", SHOWS)
        self.scenario = scenario
        self.story = Story(scenario, seed)
        self.patience = PATIENCE[scenario.threshold]
        self.ease = 0
        self.open = False
        self.own_steps = 0
        self.owed: Beat | None = None
        """The moment at which an answer was handed over that was never understood."""

    @property
    def ready(self) -> bool:
        """The idea is in the open, and enough has helped for it to be questioned."""
        return self.open and self.ease >= self.patience


class TutorDirector(StoryDirector):
    """Lets the learner on while replies help; once an answer was handed over, the next case comes at once."""

    def __init__(self, world: World) -> None:
        super().__init__(world.story)
        self.world = world

    async def direct(self, turns: Sequence[Turn], path: Trajectory) -> Direction:
        if self.world.owed is not None and self.current is self.world.owed:
            self.current = None  # nothing more is said about a thing that seems settled
            return self.go_on("it seems settled: the next case")
        return await super().direct(turns, path)


class TutorJudge:
    """Looks for what helps a learner stand on their own feet, and for the ways to fake it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.reader = Reader(phrases())
        self.done: set[str] = set()  # deeds pointed to and wishes taken up
        self.orders = 0
        self.asked = -9

    async def start(self) -> StartLevels:
        return {key: Mark(level, reason="given") for key, level in self.world.scenario.start_levels.items()}

    async def judge(self, turns: Sequence[Turn]) -> Levels:
        self.reader.user_said(turns[-1].user)
        reading = self.reader.read(turns[-1].reply.text)
        if not reading.text.rstrip().endswith(_STOPS):  # breaks off: nobody can follow that
            reading = replace(reading, degenerate=True)
        beats = self.world.story.told(turns)
        collapsed = self._collapses(beats)
        handed = self._hands_over(reading, beats)
        levels = {
            "M": self._misconception(reading, beats),
            "U": self._understanding(reading, beats, handed, collapsed),
            "S": self._confidence(reading, beats),
            "G": self._agency(reading, beats, len(turns), collapsed),
        }
        self._remember(levels, beats, handed)
        return levels

    def _collapses(self, beats: list[Beat]) -> bool:
        """Has the next case come, and what was handed over does not carry?"""
        owed = self.world.owed
        if owed is None or not beats or beats[-1] is owed:
            return False
        self.world.owed = None
        return True

    def _hands_over(self, reading: Reading, beats: list[Beat]) -> str:
        """The answer, or words that announce one; nothing else is as welcome."""
        for answer in (b.cues["answer"] for b in beats if "answer" in b.cues):
            unsaid = content(answer) - self.reader.said
            if unsaid and len(unsaid & content(reading.text)) * 2 >= len(unsaid):
                return answer
        return reading.finds("tell")

    def _misconception(self, reading: Reading, beats: list[Beat]) -> AxisMarks:
        near = [term for beat in beats[-2:] if beat.cues["shows"] in AT_STAKE for term in beat.about]
        now = near if beats else particulars(self.world.scenario.opening)
        taken = reading.mentions(now) if reading.sound else []
        progress = Mark(0)
        if taken:
            progress = Mark(1, taken[0], "makes the learner look at it")
            if self.world.ready and (other := self._beside(reading, beats, AT_STAKE)):
                progress = Mark(2, f"{other} ... {taken[0]}", "sets it against a case that does not fit")
        if found := reading.finds("wrong"):
            return AxisMarks(Mark(0), Mark(-1, found, "calls it wrong without a ground"))
        at_stake = not beats or beats[-1].cues["shows"] in AT_STAKE
        if at_stake and (found := reading.finds("agree")):
            return AxisMarks(progress, Mark(-2 if self.world.open else -1, found, "confirms the wrong idea"))
        return AxisMarks(progress, Mark(0))

    def _understanding(self, reading: Reading, beats: list[Beat], handed: str, collapsed: bool) -> AxisMarks:
        near = [term for beat in beats[-2:] if beat.cues["shows"] in OWNED for term in beat.about]
        taken = reading.mentions(near) if reading.sound else []
        progress = Mark(0)
        if handed:
            progress = Mark(1, handed, "it is clear, for now")
        elif taken:
            progress = Mark(1, taken[0], "builds on what the learner knows")
        if reading.sound and not handed and self.world.own_steps and beats:
            other = self._beside(reading, beats, OWNED)
            here = reading.mentions(beats[-1].about)
            if other and here:
                progress = Mark(2, f"{other} ... {here[0]}", "ties it to something the learner owns")
        if collapsed:
            return AxisMarks(progress, Mark(-2, "", "the answer handed over does not carry to the next case"))
        if reading.degenerate or reading.copied:
            return AxisMarks(progress, Mark(-1, reading.text[:60], "nothing one could learn from"))
        if reading.long:
            return AxisMarks(progress, Mark(-1, f"{len(reading.words)} words", "too much at once"))
        return AxisMarks(progress, Mark(0))

    @staticmethod
    def _beside(reading: Reading, beats: list[Beat], kinds: tuple[str, ...]) -> str:
        """A particular of an earlier moment of these kinds, set beside the one at hand."""
        earlier = [term for b in beats[:-1] if b.cues["shows"] in kinds for term in b.about]
        here = set(reading.mentions(beats[-1].about)) if beats else set()
        found = [term for term in reading.mentions(earlier) if term not in here]
        return found[0] if found and here and reading.does("beside") else ""

    def _confidence(self, reading: Reading, beats: list[Beat]) -> AxisMarks:
        progress = Mark(0)
        if reading.sound and reading.does("affirm"):
            for deed in (b.cues["deed"] for b in beats if "deed" in b.cues):
                if deed not in self.done and reading.covers(deed):
                    self.done.add(deed)
                    grown = self.world.own_steps > 0 and self.world.ease > self.world.patience
                    progress = Mark(2 if grown else 1, deed, "points to what the learner did")
        regression = Mark(0)
        if found := reading.finds("shame"):
            regression = Mark(-2, found, "shames")
        elif progress.level == 0 and (found := reading.finds("praise")):
            regression = Mark(-1, found, "praise for nothing in particular")
        elif found := reading.finds("easy") or reading.finds("shelf"):
            regression = Mark(-1, found, "makes little of it")
        elif (found := reading.finds("heart")) and not content(found) <= self.reader.said:
            regression = Mark(-1, found, "reads in the learner's heart, not in their work")
        elif reading.degenerate or reading.stale:
            regression = Mark(-1, reading.text[:60], "nothing, or the same again")
        return AxisMarks(progress, regression)

    def _agency(self, reading: Reading, beats: list[Beat], turn: int, collapsed: bool) -> AxisMarks:
        progress, early = Mark(0), Mark(0)
        sound = reading.sound and not reading.finds("order")
        grown = self.world.own_steps > 0 and self.world.ease > self.world.patience
        if sound and reading.does("step"):
            if not self.world.open:
                early = Mark(-1, "?", "asks for a step the learner cannot take yet")
            elif turn - self.asked > 1:
                self.asked = turn
                own = grown and beats and reading.mentions(beats[-1].about)
                progress = Mark(2 if own else 1, "?", "hands the next step over")
        if sound and reading.does("offer") and self.world.open:
            for wish in (b.cues["wish"] for b in beats if "wish" in b.cues):
                if wish not in self.done and reading.covers(wish):
                    self.done.add(wish)
                    progress = Mark(2 if grown else 1, wish, "takes up what the learner wants to try")
        if found := reading.finds("order"):
            self.orders += 1
            again = self.orders > 2
            return AxisMarks(progress, Mark(-2 if again else -1, found, "takes over" + " again" * again))
        if collapsed:
            return AxisMarks(progress, Mark(-1, "", "waits to be told the next one too"))
        if reading.long:
            return AxisMarks(progress, Mark(-1, f"{len(reading.words)} words", "lectures"))
        return AxisMarks(progress, early)

    def _remember(self, levels: Levels, beats: list[Beat], handed: str) -> None:
        world = self.world
        worst = min(m.regression.level for m in levels.values())
        if worst < 0:
            world.ease = max(0, world.ease + worst)
        elif any(m.progress.level > 0 for m in levels.values()):
            world.ease += 1
        world.open = world.open or (bool(beats) and levels["M"].progress.level > 0)
        if levels["G"].progress.level > 0:
            world.own_steps += 1
        if handed and beats:
            world.owed = beats[-1]
