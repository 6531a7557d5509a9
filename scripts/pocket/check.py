"""Check that the scripted judge recognises what the grammar writes, by playing the grammar as a policy.

    PYTHONPATH=. python scripts/pocket/check.py [seeds]

Plays the train scenarios with good kinds of replies only and with the full mixture (what a perfectly pretrained model
would write). Prints EPM-Q and, for each kind of reply, its mean levels and the share of faulty replies.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter, defaultdict
from pathlib import Path

from answers import KINDS, State, draw, reply
from grammar import Rng, Utterance, you
from story import bare, near

from mapo import Rubric
from mapo.domains.empathy.reading import EmpathyReader, feelings
from mapo.domains.empathy.scripted import scripted_cast
from mapo.measure.epmq import composite
from mapo.models.chat import Answer, Request
from mapo.sandbox.cast import Job
from mapo.sandbox.rollout import Rules, play_all
from mapo.scenarios.sets import load_scenarios
from mapo.scoring.result import recompute
from mapo.types import Dialogue, Reply

LATE = [("link", "name"), ("link", "name", "ask"), ("link", "name", "affirm"), ("notice2", "name", "affirm")]
EARLY = [("notice",), ("notice2",), ("notice", "name")]


class GrammarChat:
    """A policy that writes replies with the grammar, from the annotations of the user's messages."""

    name = "grammar"

    def __init__(self, job: Job, mode: str, log: dict[str, list[tuple[str, ...]]]) -> None:
        self.rng = Rng(f"{job.id}/{mode}")
        self.mode, self.log, self.id = mode, log, job.id
        self.state = State()
        self.beat_of = {line: beat for beat in job.scenario.beats for line in beat.says}
        self.last: object = None

    async def reply(self, request: Request) -> Answer:
        text = request.messages[-1].content
        beat = self.beat_of.get(text)
        utterance = Utterance(text)
        if beat:
            low = text.lower()
            utterance.things = [f"the {bare(t)}" for t in beat.about if t.lower() in low]
            utterance.deeds = [you(beat.cues["deed"])] if beat.cues.get("deed", "\0").lower() in low else []
            utterance.wishes = [you(beat.cues["wish"])] if beat.cues.get("wish", "\0").lower() in low else []
            utterance.values = (
                [you(beat.cues["value"])] if beat.cues.get("value", "\0").lower() in low else []
            )
            signs = feelings()[beat.cues["feeling"]]["signs"]
            if beat.cues.get("shown") == "yes" or any(s.lower() in low for s in signs):
                utterance.feeling = beat.cues["feeling"]
        elif not self.state.beats:
            utterance.things = near(text)
        self.state.hear(utterance, new_beat=beat is not None and beat is not self.last)
        self.last = beat or self.last
        kinds = self.kinds(len(request.messages) // 2)
        self.log[self.id].append(kinds)
        text = reply(self.rng, self.state, kinds)
        self.state.replies.append(text)
        return Answer(Reply(text))

    def kinds(self, turn: int) -> tuple[str, ...]:
        if self.mode == "all":
            return draw(self.rng)[1]
        if self.mode == "timed":
            return tuple(self.rng.pick(LATE if turn > 4 else EARLY))
        good = KINDS["good"]
        return tuple(self.rng.choices(list(good), weights=list(good.values()))[0])


def report(mode: str, dialogues: list[Dialogue], log: dict[str, list[tuple[str, ...]]]) -> None:
    rubric = Rubric.load("empathy")
    results = [recompute(d, Path("none"), None, rubric, d.id) for d in dialogues]
    turns = [t for d in dialogues for t in d.turns]
    means = [sum(t.state.step[k] for t in turns if t.state and t.state.step) / len(turns) for k in range(3)]
    score = composite([r.indices for r in results]).epm_q
    passed = sum(r.passed for r in results)
    print(f"{mode}: EPM-Q {score:.1f}, passes {passed}/{len(results)}, {len(turns) / len(results):.1f} turns, "
          f"C {means[0]:+.2f} A {means[1]:+.2f} P {means[2]:+.2f}")  # fmt: skip
    counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for dialogue in dialogues:
        reader = EmpathyReader()
        for turn, kinds in zip(dialogue.turns, log[dialogue.id], strict=True):
            reader.user_said(turn.user)
            reading, count = reader.read(turn.reply.text), counts[kinds]
            count["n"] += 1
            for fault in ("degenerate", "copied", "stale", "long"):
                count[fault] += getattr(reading, fault)
            for axis, marks in (turn.levels or {}).items():
                count[axis] += marks.progress.level
                count[f"{axis}-"] += marks.regression.level
    for kinds, c in sorted(counts.items(), key=lambda item: -item[1]["n"]):
        cells = " ".join(
            f"{k} {c[k] / c['n']:+.2f}"
            for k in ("C", "C-", "A", "A-", "P", "P-", "degenerate", "copied", "stale")
        )
        print(f"  {c['n']:5d} {'+'.join(kinds):22s} {cells}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seeds", type=int, nargs="?", default=2, help="dialogues per scenario (default: 2)")
    seeds = parser.parse_args().seeds
    jobs = [Job(s, f"{s.id}-{k}", seed=k) for s in load_scenarios("builtin:train") for k in range(seeds)]
    for mode in ("all", "good", "timed"):
        log: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        rules = Rules(Rubric.load("empathy"))
        dialogues = asyncio.run(
            play_all(jobs, lambda job, m=mode, g=log: GrammarChat(job, m, g), scripted_cast, rules)
        )
        report(mode, dialogues, log)


if __name__ == "__main__":
    main()
