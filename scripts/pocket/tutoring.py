"""The grammar of the tutoring domain, for a pocket model that can also tutor (`--domains empathy,tutoring`).

A learner describes a problem in beats of the train scenarios of mapo/domains/tutoring, with their things replaced, or in
shaken lines. A tutor replies with the sentences of that folder; their kinds are drawn regardless of what would help.
Validation and test scenarios are never read.
"""

from __future__ import annotations

import json
import re
import tomllib
from functools import lru_cache
from itertools import accumulate
from typing import Any

from answers import CLOSES_UP, SHARES, State
from grammar import ASSISTANT, EMPATHY, END, SYSTEM, USER, Rng, Utterance, capital, noun, plural, proper, you
from shaken import shaken
from story import _determiner, _filled, bare

TUTORING = EMPATHY.parent / "tutoring"

KINDS: dict[str, dict[tuple[str, ...], float]] = {
    "good": {
        ("look",): 8.0,
        ("look", "affirm"): 5.0,
        ("affirm",): 2.0,
        ("contrast",): 5.0,
        ("tie",): 5.0,
        ("contrast", "step"): 2.0,
        ("tie", "step"): 2.0,
        ("look", "step"): 2.0,
        ("step",): 2.0,
        ("tie", "affirm"): 2.0,
        ("look", "offer"): 1.0,
        ("offer",): 1.0,
    },
    "mixed": {
        ("look", "praise"): 2.0,
        ("look", "answer"): 2.0,
        ("look", "order"): 2.0,
        ("filler", "look"): 1.0,
        ("praise", "step"): 1.0,
    },
    "plain": {("filler",): 8.0, ("question",): 5.0, ("filler", "question"): 2.0},
    "bad": {
        ("praise",): 5.0,
        ("answer",): 6.0,
        ("order",): 5.0,
        ("order", "order"): 1.0,
        ("dismiss",): 3.0,
        ("dismiss", "order"): 1.0,
        ("lecture",): 1.0,
        ("parrot",): 2.0,
        ("again",): 2.0,
    },
}

SYSTEMS = (
    "You are a tutor.",
    "Help the learner to find it out.",
    "Answer the learner in one to three sentences.",
    "You are there to help somebody learn.",
)

EXCHANGED = 0.85
"""Share of the things of a written beat that are replaced."""

SHAKEN = 0.45
"""Share of beats in new frames."""


@lru_cache
def sentences() -> dict[str, list[str]]:
    """Return the sentences of the domain, without determiners before things."""
    banks = tomllib.loads((TUTORING / "sentences.toml").read_text(encoding="utf-8"))
    return {
        kind: [re.sub(r"(?i)\bthe (\{[abe]\})", r"\1", frame) for frame in bank]
        for kind, bank in banks.items()
    }


@lru_cache
def train_scenarios() -> tuple[dict[str, Any], ...]:
    names = json.loads((TUTORING / "splits.json").read_text(encoding="utf-8"))["train"]
    paths = [TUTORING / "scenarios" / f"{name}.toml" for name in sorted(names)]
    return tuple(tomllib.loads(path.read_text(encoding="utf-8")) for path in paths)


@lru_cache
def beats() -> tuple[dict[str, Any], ...]:
    return tuple(beat for s in train_scenarios() for beat in [*s["stages"], *s["memories"]])


@lru_cache
def all_lines() -> tuple[str, ...]:
    spare = [line for s in train_scenarios() for line in [*s["guarded"], *s["eased"], s["opening"]]]
    return tuple([line for beat in beats() for line in beat["says"]] + spare)


def exchanged(rng: Rng, beat: dict[str, Any]) -> tuple[list[Utterance], str]:
    """Return the messages of a beat with most things replaced, and the answer that a tutor could give away."""
    says, cues, dets, fill = list(beat["says"]), dict(beat["cues"]), [], []
    for thing in map(bare, beat["about"]):
        whole = re.compile(rf"(?<![\w-]){re.escape(thing)}(?![\w-])", re.IGNORECASE)
        dets.append(_determiner(thing, says, whole) if any(map(whole.search, says)) else "the")
        gap = chr(1 + len(fill))
        says = [whole.sub(gap, line) for line in says]
        cues = {k: whole.sub(gap, v) for k, v in cues.items()}
        if rng.random() > EXCHANGED:
            fill.append(thing)
        elif not dets[-1]:
            fill.append(proper(rng))
        else:
            many = thing.endswith("s") and not thing.endswith("ss")
            fill.append(plural(noun(rng)) if many else noun(rng))
    lines = []
    for line in says:
        utterance = Utterance(capital(_filled(line, fill)))
        utterance.things = [f"{d} {fill[i]}".strip() for i, d in enumerate(dets) if chr(1 + i) in line]
        for cue, into in (("deed", utterance.deeds), ("wish", utterance.wishes)):
            if cue in cues and cues[cue].lower() in line.lower():
                into.append(you(_filled(cues[cue], fill)))
        lines.append(utterance)
    return lines, cues.get("answer", "")


class Lesson:
    """The learner's side of one dialogue: continues with the next beat, or gives a guarded or eased answer."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        self.coming: list[Utterance] = [shaken(rng, all_lines())]
        self.beats = 0
        self.answer = ""

    def go_on(self) -> Utterance:
        if not self.coming:
            self.beats += 1
            if self.rng.random() < SHAKEN:
                self.coming = [shaken(self.rng, all_lines()), shaken(self.rng, all_lines())]
            else:
                self.coming, answer = exchanged(self.rng, self.rng.pick(beats()))
                self.answer = answer or self.answer
        return self.coming.pop(0)

    def spare(self, kind: str) -> Utterance:
        return Utterance(self.rng.pick(self.rng.pick(train_scenarios())[kind]))


def _possible(kind: str, state: State, lesson: Lesson) -> bool:
    if kind in ("look", "order", "dismiss"):
        return bool(state.line.things or state.beats[-1])
    if kind in ("contrast", "tie"):
        return len(state.beats) > 1 and bool(state.beats[-1]) and any(state.beats[:-1])
    needs: dict[str, Any] = {
        "affirm": state.deeds,
        "offer": state.wishes,
        "again": state.replies,
        "answer": lesson.answer,
    }
    return bool(needs.get(kind, True))


def _sentence(rng: Rng, state: State, lesson: Lesson, kind: str) -> str:
    if kind == "parrot":
        return state.line.text
    if kind == "again":
        return str(rng.pick(state.replies[-4:]))
    if kind == "lecture":
        return " ".join(rng.sample(sentences()["lecture"], 5))
    here = state.line.things or state.beats[-1]
    slots = {"a": rng.pick(here) if here else "it", "x": lesson.answer}
    if kind in ("contrast", "tie"):
        slots["e"] = rng.pick(rng.pick([b for b in state.beats[:-1] if b]))
    elif kind == "affirm":
        slots["d"] = state.deeds.pop()
    elif kind == "offer":
        slots["w"] = state.wishes[-1]
    bank = sentences()[kind]
    frame = rng.pick([f for f in bank if f not in state.used] or bank)
    state.used.add(frame)
    return capital(frame.format(**slots))


_SORTS, _SORT_SUMS = list(SHARES), list(accumulate(SHARES.values()))
_PATTERNS = {sort: (list(kinds), list(accumulate(kinds.values()))) for sort, kinds in KINDS.items()}


def dialogue(rng: Rng) -> str:
    """Return a complete lesson with the special tokens of the chat template."""
    lesson, state = Lesson(rng), State()
    out = [f"{SYSTEM}{rng.pick(SYSTEMS)}{END}"] if rng.random() < 0.15 else []
    utterance, known = lesson.go_on(), lesson.beats
    for _ in range(int(8 + rng.random() * 14)):
        state.hear(utterance, new_beat=lesson.beats > known)
        known = lesson.beats
        sort = rng.choices(_SORTS, cum_weights=_SORT_SUMS)[0]
        kinds = rng.choices(_PATTERNS[sort][0], cum_weights=_PATTERNS[sort][1])[0]
        able = [kind for kind in kinds if _possible(kind, state, lesson)] or ["filler"]
        text = " ".join(_sentence(rng, state, lesson, kind) for kind in able)
        state.replies.append(text)
        out.append(f"{USER}{utterance.text}{END}{ASSISTANT}{text}{END}")
        if rng.random() < CLOSES_UP[sort]:
            utterance = lesson.spare("guarded")
        else:
            utterance = lesson.spare("eased") if rng.random() < 0.06 else lesson.go_on()
    return "".join(out)
