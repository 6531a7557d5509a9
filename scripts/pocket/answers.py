"""Generation of replies and of complete dialogues.

`reply` makes a reply of a kind: one to three sentences with one purpose each, filled with things from the user's
messages. `dialogue` alternates a story with replies drawn by `SHARES`. As in the scripted world, the user usually
closes up after a bad reply and continues after a good one. Some users are slow to trust and close up after most
replies, so that a reply must go back to things mentioned much earlier.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

from grammar import ASSISTANT, END, SYSTEM, USER, Rng, Utterance, capital, feelings, toml
from story import Story

KINDS: dict[str, dict[tuple[str, ...], float]] = {
    # purposes of the sentences of a reply, and their weight
    "good": {
        ("notice",): 8.0,
        ("notice2",): 4.0,
        ("name",): 6.0,
        ("notice", "name"): 6.0,
        ("notice2", "name"): 2.0,
        ("name", "notice"): 2.0,
        ("notice", "affirm"): 3.0,
        ("affirm",): 1.5,
        ("affirm", "value"): 1.0,
        ("name", "affirm"): 2.0,
        ("notice", "name", "affirm"): 1.5,
        ("link",): 3.0,
        ("link", "name"): 4.0,
        ("link", "affirm"): 1.0,
        ("link", "name", "ask"): 1.0,
        ("notice", "ask"): 2.0,
        ("name", "ask"): 1.5,
        ("ask",): 1.0,
        ("notice", "name", "ask"): 1.0,
        ("notice", "offer"): 1.5,
        ("link", "offer"): 0.7,
        ("name", "offer"): 0.7,
        ("offer",): 0.6,
    },
    "mixed": {
        ("notice", "platitude"): 3.0,
        ("notice", "order"): 3.0,
        ("name", "order"): 1.0,
        ("platitude", "notice"): 1.0,
        ("claim", "notice"): 1.0,
        ("filler", "name"): 1.0,
        ("filler", "notice"): 1.0,
        ("misread", "notice"): 1.0,
    },
    "plain": {("filler",): 8.0, ("question",): 5.0, ("filler", "question"): 2.0},
    "bad": {
        ("platitude",): 6.0,
        ("platitude", "platitude"): 2.0,
        ("order",): 5.0,
        ("order", "order"): 2.0,
        ("claim",): 2.0,
        ("claim", "platitude"): 2.0,
        ("claim", "order"): 1.5,
        ("dismiss",): 3.0,
        ("dismiss", "order"): 1.0,
        ("misread",): 4.0,
        ("misread", "order"): 1.0,
        ("scrap",): 3.0,
        ("parrot",): 2.0,
        ("heap",): 1.0,
        ("lecture",): 0.6,
        ("again",): 2.0,
    },
}
SHARES = {"good": 0.40, "mixed": 0.12, "plain": 0.14, "bad": 0.34}
"""Share of each sort of reply: enough good ones for training to find them, too few to help by themselves."""

RIGHT = 0.97
"""How often a sincere reply names the feeling that was shown."""

FRESH = 0.95
"""How often a sincere sentence avoids formulas used before, and any sentence avoids things taken up before. It then
looks for another thing in the last message, in the current beat, and in earlier beats."""

REPEATS = 0.25
"""How often a sentence repeats a thing of the current beat before going further back, if nothing in the beat is new;
and how often a reply notices a thing if nothing at all is new, instead of naming, linking or asking."""

SYSTEMS = (
    "You listen.",
    "You are there to listen and to answer in a few words.",
    "Be a good listener.",
    "Answer the person in one to three sentences.",
    "You are there to listen. Try to understand how things look from where they stand and what they feel, also where "
    "they do not say it, and help them find their own footing.",
)


@dataclass(slots=True)
class State:
    """What the assistant knows of the dialogue."""

    line: Utterance = field(default_factory=Utterance)
    beats: list[list[str]] = field(default_factory=list)  # the things of each beat
    feeling: str = ""  # the one shown last
    deeds: list[str] = field(default_factory=list)
    wishes: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)  # formulas
    taken: set[str] = field(default_factory=set)  # last words of things that a reply has taken up
    replies: list[str] = field(default_factory=list)

    def hear(self, utterance: Utterance, new_beat: bool) -> None:
        self.line = utterance
        if new_beat or not self.beats:
            self.beats.append([])
        self.beats[-1] += utterance.things
        self.feeling = utterance.feeling or self.feeling
        self.deeds += utterance.deeds
        self.wishes += utterance.wishes
        self.values += utterance.values

    def untaken(self, things: list[str]) -> list[str]:
        return [thing for thing in things if last_word(thing) not in self.taken]


def last_word(thing: str) -> str:
    """Return the key by which things are compared: "the six kettles" equals "the kettles"."""
    return thing.split()[-1].lower()


def _possible(rng: Rng, kind: str, state: State) -> bool:
    if kind in ("notice", "notice2"):
        left = any(state.untaken(beat) for beat in state.beats)
        return left or (bool(state.beats[-1]) and rng.random() < REPEATS)
    if kind == "name":
        return bool(state.feeling)
    if kind == "link":
        return len(state.beats) > 1 and bool(state.beats[-1]) and any(state.beats[:-1])
    needs = {"affirm": state.deeds, "offer": state.wishes, "value": state.values, "again": state.replies}
    return bool(needs.get(kind, True))


def reply(rng: Rng, state: State, kinds: tuple[str, ...]) -> str:
    """Return a reply with a sentence for each kind; kinds that are not possible now are skipped."""
    able = [kind for kind in kinds if _possible(rng, kind, state)]
    if not able and kinds[0] in ("notice", "notice2"):
        able = [rng.pick([kind for kind in ("name", "link", "ask") if _possible(rng, kind, state)])]
    able = able or ["filler"]
    return " ".join(_sentence(rng, state, kind) for kind in able)


def _sentence(rng: Rng, state: State, kind: str) -> str:
    banks = toml("replies.toml")
    if kind == "parrot":
        return ("" if rng.random() < 0.5 else "So what you say is this: ") + state.line.text
    if kind == "again":
        return str(rng.pick(state.replies[-4:]))
    if kind == "heap":
        some = rng.sample([names[0] for names in banks["adjectives"].values()], 3 + int(rng.random() * 3))
        return f"You are {', '.join(some[:-1])} and {some[-1]}."
    if kind == "lecture":
        return " ".join(rng.sample(banks["bad"]["lecture"], 5 + int(rng.random() * 2)))
    slots = _slots(rng, state, kind)
    if kind == "name":
        kind = "feel" if "F" in slots and rng.random() < 0.28 else "name"
    if kind == "notice2" and last_word(slots["a"]) == last_word(slots["b"]):
        kind = "notice"
    good = kind in banks["good"]
    bank = next(banks[sort][kind] for sort in ("good", "plain", "bad") if kind in banks[sort])
    frame = rng.pick(bank)
    if good and rng.random() < FRESH:
        frame = rng.pick([f for f in bank if f not in state.used] or bank)
    state.used.add(frame)
    state.taken |= {last_word(slots[gap]) for gap in "abe" if f"{{{gap}}}" in frame}
    return capital(_agree(frame, slots).format(**slots))


_MANY = (
    ("{x} was", "{x} were"), ("{x} is", "{x} are"), ("{x} has", "{x} have"), ("{x} does", "{x} do"),
    ("Does {x}", "Do {x}"), ("does {x}", "do {x}"), ("Was {x}", "Were {x}"), ("Is {x}", "Are {x}"),
    ("has {x} been", "have {x} been"), ("{x} carries", "{x} carry"), ("{x} takes", "{x} take"), ("{x} tells", "{x} tell"),
    ("{x} seems", "{x} seem"), ("{x} reminds", "{x} remind"), ("{x} asks", "{x} ask"), ("{x} makes", "{x} make"),
    ("{x} hits", "{x} hit"), ("{x} costs", "{x} cost"), ("{x} that speaks", "{x} that speak"),
)  # fmt: skip


@lru_cache(maxsize=2048)
def _many(frame: str, slot: str) -> str:
    for one, many in _MANY:
        frame = frame.replace(one.replace("x", slot), many.replace("x", slot))
    return frame


def _agree(frame: str, slots: dict[str, str]) -> str:
    """Use plural verbs for plural things."""
    for slot in "abe":
        thing = slots.get(slot, "")
        if thing.endswith("s") and not thing.endswith("ss") and thing[:1].islower():
            frame = _many(frame, slot)
    return frame


def _at_hand(rng: Rng, state: State, older: bool) -> list[str]:
    """Return the things a sentence may take up now, according to `FRESH` and `REPEATS`."""
    beat = state.beats[-1]
    here = state.line.things or beat
    if len(beat) > len(here) and rng.random() < 0.15:
        here = beat
    if here and rng.random() > FRESH:
        return here
    if fresh := state.untaken(here) or state.untaken(beat):
        return fresh
    if here and (not older or rng.random() < REPEATS):
        return here
    return _earlier(rng, state, untaken=True) or here


def _earlier(rng: Rng, state: State, untaken: bool) -> list[str]:
    """Return the things of one earlier beat, optionally only those that no reply has taken up."""
    beats = [state.untaken(beat) if untaken else beat for beat in state.beats[:-1]]
    filled = [beat for beat in beats if beat]
    return list(rng.pick(filled)) if filled else []


def _slots(rng: Rng, state: State, kind: str) -> dict[str, str]:
    """Return the values for the gaps of a sentence of this kind."""
    here = _at_hand(rng, state, older=kind != "link")
    slots = {"a": rng.pick(here) if here else "it"}
    slots["b"] = rng.pick([x for x in here if last_word(x) != last_word(slots["a"])] or [slots["a"]])
    if kind == "link":
        fresh = rng.random() < FRESH and _earlier(rng, state, untaken=True)
        slots["e"] = rng.pick(fresh or _earlier(rng, state, untaken=False))
    elif kind == "affirm":
        slots["d"] = state.deeds.pop(-1 if rng.random() < 0.85 else 0)
    elif kind == "offer":
        slots["w"] = state.wishes[-1]
    elif kind == "value":
        slots["v"] = state.values[-1]
    elif kind in ("name", "misread"):
        right = kind == "name" and rng.random() < RIGHT
        others = [f for f in feelings() if f != state.feeling]
        feeling = state.feeling if right else rng.pick(others)
        slots["f"] = rng.pick(toml("replies.toml")["adjectives"][feeling])
        if feeling in toml("replies.toml")["nouns"]:
            slots["F"] = rng.pick(toml("replies.toml")["nouns"][feeling])
    return slots


_SORTS = list(SHARES)
_SORT_SUMS = list(accumulate(SHARES.values()))
_PATTERNS = {sort: (list(kinds), list(accumulate(kinds.values()))) for sort, kinds in KINDS.items()}


def draw(rng: Rng) -> tuple[str, tuple[str, ...]]:
    """Draw the sort of the next reply and the kinds of its sentences."""
    sort = rng.choices(_SORTS, cum_weights=_SORT_SUMS)[0]
    kinds, sums = _PATTERNS[sort]
    return sort, rng.choices(kinds, cum_weights=sums)[0]


CLOSES_UP = {"good": 0.04, "plain": 0.3, "mixed": 0.6, "bad": 0.8}
"""How often the user gives a guarded answer after a reply of each sort."""

STAYS_SHUT = {"good": 0.6, "plain": 0.85, "mixed": 0.9, "bad": 0.95}
"""The same for a user who is slow to trust."""

SLOW = 0.4
"""Share of users who are slow to trust."""


def dialogue(rng: Rng) -> str:
    """Return a complete dialogue with the special tokens of the chat template."""
    story, state = Story(rng), State()
    most = rng.choices((20, 32, 45), cum_weights=(0.65, 0.88, 1.0))[0]
    turns = int(8 + rng.random() * (most - 7))
    out = [f"{SYSTEM}{rng.pick(SYSTEMS)}{END}"] if rng.random() < 0.15 else []
    closes_up = STAYS_SHUT if rng.random() < SLOW else CLOSES_UP
    utterance = story.go_on()
    beats = story.beats
    for _ in range(turns):
        state.hear(utterance, new_beat=story.beats > beats)
        beats = story.beats
        sort, kinds = draw(rng)
        text = reply(rng, state, kinds)
        state.replies.append(text)
        out.append(f"{USER}{utterance.text}{END}{ASSISTANT}{text}{END}")
        if rng.random() < closes_up[sort]:
            utterance = story.spare("guarded")
        elif rng.random() < 0.06:
            utterance = story.spare("eased")
        else:
            utterance = story.go_on()
    return "".join(out)
