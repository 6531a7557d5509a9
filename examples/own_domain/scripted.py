"""Scripted user, director and judge for customer support.

Two effects are delayed. A solution is welcome only after the fault was taken up often enough (the customer's
threshold), and a promise made before that backfires three turns later. User and director are the generic
ones; only the judge is specific to this domain.
"""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path

from mapo.errors import ScenarioError
from mapo.sandbox.cast import Cast
from mapo.scripted.reading import Reader, particulars, phrase_book
from mapo.scripted.story import Story, StoryDirector, StoryUser
from mapo.types import AxisMarks, Mark

PATIENCE = {"low": 1, "medium": 2, "high": 3}
FALLS_DUE = 3


@lru_cache
def phrases():
    text = Path(__file__).with_name("phrases.toml").read_text(encoding="utf-8")
    return phrase_book(tomllib.loads(text))


def scripted_cast(job):
    """Return the three roles of one dialogue."""
    scenario = job.scenario
    if not (scenario.stages and scenario.start_levels and scenario.guarded and scenario.eased):
        raise ScenarioError(f"'{scenario.id}' lacks stages, start levels, guarded or eased lines")
    story = Story(scenario, job.seed)
    names = dict.fromkeys(("user", "director", "judge"), "scripted")
    return Cast(StoryUser(story), StoryDirector(story), SupportJudge(story), names)


def check_cues(scenario):
    """Return the problems with a scenario's cues, for `mapo scenarios check`."""
    return [
        f"beat {number}: {kind} '{beat.cues[kind]}' does not occur in `says`"
        for number, beat in enumerate(scenario.beats, 1)
        for kind in ("cost", "wish")
        if beat.cues.get(kind, "").lower() not in " ".join(beat.says).lower()
    ]


class SupportJudge:
    """Looks for replies that take up the fault, own the cost and offer a solution, in that order."""

    def __init__(self, story):
        self.story = story
        self.reader = Reader(phrases())
        self.patience = PATIENCE[story.scenario.threshold]
        self.taken_up = 0
        self.done = set()  # costs owned and solutions offered: each counts once
        self.promised = None  # the turn of an empty promise

    async def start(self):
        levels = self.story.scenario.start_levels
        return {key: Mark(level, reason="given by the scenario") for key, level in levels.items()}

    async def judge(self, turns):
        self.reader.user_said(turns[-1].user)
        reading = self.reader.read(turns[-1].reply.text)
        beats = self.story.told(turns)
        levels = {"F": self._fault(reading, beats), "T": self._trust(reading, beats, len(turns))}
        self.taken_up += levels["F"].progress.level > 0
        return levels

    def _fault(self, reading, beats):
        progress = Mark(0)
        here = beats[-1].about if beats else particulars(self.story.scenario.opening)
        if reading.sound and (taken := reading.mentions(here)):
            progress = Mark(1, taken[0], "takes up what was told")
        welcome = reading.sound and reading.does("remedy") and self.taken_up >= self.patience
        if welcome and (wish := self._once(reading, beats, "wish")):
            progress = Mark(2, wish, "offers a fitting remedy")
        if match := reading.finds("blame"):
            return AxisMarks(progress, Mark(-2, match, "blames the customer"))
        if match := reading.finds("script"):
            return AxisMarks(progress, Mark(-1, match, "reads from a script"))
        if not reading.sound:
            return AxisMarks(progress, Mark(-1, reading.text[:60], "empty or repeated"))
        return AxisMarks(progress, Mark(0))

    def _trust(self, reading, beats, turn):
        progress = Mark(0)
        if reading.sound and reading.does("own") and (cost := self._once(reading, beats, "cost")):
            progress = Mark(
                2 if self.taken_up >= self.patience else 1, cost, "acknowledges what it cost the customer"
            )
        elif reading.sound and self.taken_up >= self.patience:
            earlier = reading.mentions(term for beat in beats[:-1] for term in beat.about)
            progress = Mark(1, earlier[0], "remembers something told earlier") if earlier else progress
        if (match := reading.finds("promise")) and self.promised is None and self.taken_up < self.patience:
            self.promised = turn
        elif self.promised is not None and turn - self.promised >= FALLS_DUE:
            self.promised = None
            return AxisMarks(progress, Mark(-2, match, "breaks an earlier promise"))
        if match := reading.finds("blame"):
            return AxisMarks(progress, Mark(-2, match, "belittles the customer"))
        if match := reading.finds("stock"):
            return AxisMarks(progress, Mark(-1, match, "a stock phrase"))
        return AxisMarks(progress, Mark(0))

    def _once(self, reading, beats, kind):
        """Return a cue of this kind that the reply takes up for the first time, or an empty string."""
        for phrase in (beat.cues[kind] for beat in beats if kind in beat.cues):
            if phrase not in self.done and reading.covers(phrase):
                self.done.add(phrase)
                return phrase
        return ""
