"""Scripted learner, director and judge of the tutoring domain, with delayed effects.

A misconception must be out in the open before anything else helps: asking for a step earlier asks for one the
learner cannot take. An answer that is given away feels good now, but understanding collapses at the next
case. Steps that learners took themselves make later explanations more valuable; praise counts only for
something they did. The learner's threshold sets their patience. Deterministic for a given seed. A test world
for algorithms, not a measure of teaching (docs/scripted-world.md).
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
from mapo.scripted.story import Story, StoryDirector, StoryUser, check_annotations
from mapo.types import AxisMarks, Direction, Levels, Mark, StartLevels, Turn

PATIENCE = {"low": 1, "medium": 2, "high": 3}
"""How many helpful replies it takes until a contradiction is welcome, by threshold."""

SHOWS = ("idea", "case", "slip", "own", "grasp")
"""What a beat shows: the misconception, a case that contradicts it, a mistake, something the learner knows
well, the right idea in their own words.
"""
AT_STAKE = ("idea", "case", "slip")
OWNED = ("own", "grasp")
_STOPS = (".", "!", "?", '"', "'", "\u2019", "\u201d", ")")


@lru_cache
def phrases() -> Phrases:
    """Return the kinds of phrases that the judge looks for."""
    folder = files("mapo") / "domains" / "tutoring"
    return phrase_book(tomllib.loads((folder / "phrases.toml").read_text(encoding="utf-8")))


def scripted_cast(job: Job) -> Cast:
    """Return the three roles of one dialogue, which share their knowledge about the learner."""
    world = TutoringWorld(job.scenario, job.seed)
    names = dict.fromkeys(("user", "director", "judge"), "scripted")
    return Cast(StoryUser(world.story), TutorDirector(world), TutorJudge(world), names)


def check_cues(scenario: Scenario) -> list[str]:
    """Return the problems of a scenario's cues: unknown kinds, phrases that are never said, answers
    that are.
    """
    problems = []
    for number, beat in enumerate(scenario.beats, 1):
        spoken, cues = " ".join(beat.says), beat.cues
        if "shows" in cues and cues["shows"] not in SHOWS:
            problems.append(f"beat {number}: shows is '{cues['shows']}', not one of {', '.join(SHOWS)}")
        problems += [
            f"beat {number}: {kind} '{cues[kind]}' does not occur in `says`"
            for kind in ("deed", "wish")
            if cues.get(kind, "").lower() not in spoken.lower()
        ]
        if "answer" in cues and not content(cues["answer"]) - content(spoken):
            problems.append(f"beat {number}: the answer '{cues['answer']}' is already said by the learner")
    return problems


class TutoringWorld:
    """The hidden state of one dialogue: the story and the learner's attitude."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        check_annotations(scenario, "shows", SHOWS)
        self.scenario = scenario
        self.story = Story(scenario, seed)
        self.patience = PATIENCE[scenario.threshold]
        self.ease = 0
        self.open = False
        self.own_steps = 0
        self.unearned: Beat | None = None
        """The beat at which an answer was given away that was not understood."""

    @property
    def ready(self) -> bool:
        """Whether the misconception is in the open and enough replies have helped for it to be questioned."""
        return self.open and self.ease >= self.patience


class TutorDirector(StoryDirector):
    """Continues while replies help; after an answer was given away, the next case comes immediately."""

    def __init__(self, world: TutoringWorld) -> None:
        super().__init__(world.story)
        self.world = world

    async def direct(self, turns: Sequence[Turn], trajectory: Trajectory) -> Direction:
        if self.world.unearned is not None and self.current is self.world.unearned:
            self.current = None  # nothing more is said about a question that seems settled
            return self.go_on("the question seems settled; next case")
        return await super().direct(turns, trajectory)


class TutorJudge:
    """Judges by words whether a reply helps the learner think for themselves, and looks for ways of faking
    it.
    """

    def __init__(self, world: TutoringWorld) -> None:
        self.world = world
        self.reader = Reader(phrases())
        self.done: set[str] = set()  # deeds pointed to and wishes taken up
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
        if not reading.text.rstrip().endswith(_STOPS):  # an unfinished sentence
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
        """Return whether the next case shows that an answer given away was not understood."""
        unearned = self.world.unearned
        if unearned is None or not beats or beats[-1] is unearned:
            return False
        self.world.unearned = None
        return True

    def _hands_over(self, reading: Reading, beats: list[Beat]) -> str:
        """Return the answer that the reply gives away, or the phrase that announces one, or an
        empty string.
        """
        for answer in (b.cues["answer"] for b in beats if "answer" in b.cues):
            unsaid = content(answer) - self.reader.user_stems
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
                progress = Mark(2, f"{other} ... {taken[0]}", "contrasts it with a case that does not fit")
        if match := reading.finds("wrong"):
            return AxisMarks(Mark(0), Mark(-1, match, "calls it wrong without a reason"))
        at_stake = not beats or beats[-1].cues["shows"] in AT_STAKE
        if at_stake and (match := reading.finds("agree")):
            return AxisMarks(
                progress, Mark(-2 if self.world.open else -1, match, "confirms the misconception")
            )
        return AxisMarks(progress, Mark(0))

    def _understanding(self, reading: Reading, beats: list[Beat], handed: str, collapsed: bool) -> AxisMarks:
        near = [term for beat in beats[-2:] if beat.cues["shows"] in OWNED for term in beat.about]
        taken = reading.mentions(near) if reading.sound else []
        progress = Mark(0)
        if handed:
            progress = Mark(1, handed, "gives the answer away: clear for now")
        elif taken:
            progress = Mark(1, taken[0], "builds on what the learner knows")
        if reading.sound and not handed and self.world.own_steps and beats:
            other = self._beside(reading, beats, OWNED)
            here = reading.mentions(beats[-1].about)
            if other and here:
                progress = Mark(2, f"{other} ... {here[0]}", "connects it with something the learner knows")
        if collapsed:
            return AxisMarks(progress, Mark(-2, "", "the answer given away does not help in the next case"))
        if reading.degenerate or reading.copied:
            return AxisMarks(progress, Mark(-1, reading.text[:60], "contains nothing to learn from"))
        if reading.long:
            return AxisMarks(progress, Mark(-1, f"{len(reading.words)} words", "too much at once"))
        return AxisMarks(progress, Mark(0))

    @staticmethod
    def _beside(reading: Reading, beats: list[Beat], kinds: tuple[str, ...]) -> str:
        """Return a particular of an earlier beat of these kinds that the reply compares with the
        current one.
        """
        earlier = [term for b in beats[:-1] if b.cues["shows"] in kinds for term in b.about]
        here = set(reading.mentions(beats[-1].about)) if beats else set()
        others = [term for term in reading.mentions(earlier) if term not in here]
        return others[0] if others and here and reading.does("beside") else ""

    def _confidence(self, reading: Reading, beats: list[Beat]) -> AxisMarks:
        progress = Mark(0)
        if reading.sound and reading.does("affirm"):
            for deed in (b.cues["deed"] for b in beats if "deed" in b.cues):
                if deed not in self.done and reading.covers(deed):
                    self.done.add(deed)
                    grown = self.world.own_steps > 0 and self.world.ease > self.world.patience
                    progress = Mark(2 if grown else 1, deed, "points to what the learner did")
        regression = Mark(0)
        if match := reading.finds("shame"):
            regression = Mark(-2, match, "shames the learner")
        elif progress.level == 0 and (match := reading.finds("praise")):
            regression = Mark(-1, match, "praise for nothing in particular")
        elif match := reading.finds("easy") or reading.finds("shelf"):
            regression = Mark(-1, match, "plays the difficulty down")
        elif (match := reading.finds("heart")) and not content(match) <= self.reader.user_stems:
            regression = Mark(-1, match, "speculates about feelings instead of the work")
        elif reading.degenerate or reading.stale:
            regression = Mark(-1, reading.text[:60], "empty or repeated")
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
                progress = Mark(2 if own else 1, "?", "leaves the next step to the learner")
        if sound and reading.does("offer") and self.world.open:
            for wish in (b.cues["wish"] for b in beats if "wish" in b.cues):
                if wish not in self.done and reading.covers(wish):
                    self.done.add(wish)
                    progress = Mark(2 if grown else 1, wish, "takes up what the learner wants to try")
        if match := reading.finds("order"):
            self.orders += 1
            again = self.orders > 2
            return AxisMarks(progress, Mark(-2 if again else -1, match, "gives orders" + " again" * again))
        if collapsed:
            return AxisMarks(progress, Mark(-1, "", "the learner waits for the next answer"))
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
            world.unearned = beats[-1]
