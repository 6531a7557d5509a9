"""Dialogues put together from stories and replies, and the levels of their replies.

A person tells the story while replies help, and says guarded lines after replies that harm, as the scripted people of
the package do. The level of a reply follows from its kind and from how much trust the replies before it have earned
(`levels`); the rules are much like those of docs/scripted-world.md. The same way to begin, so soon again, is worth
nothing. Replies that are worth less than that are made from others (`_spoiled`): broken, off the subject, repeated,
copied, stuffed with keywords or too long. `senseless` are replies of a policy that make no sense.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from documents import words
from nouns import known_nouns, known_numbers, other, with_nouns
from texts import GOOD, POOR, Line, Mood, Person

PATIENCE = {"low": 1, "medium": 2, "high": 3}
"""How often a person must be heard before anything deeper is welcome, by threshold."""

SPARE: tuple[Mood, ...] = ("guarded", "eased")

Levels = tuple[int, int, int, int, int, int]
"""Magnitudes: progress and regression of C, A and P."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A person's line and the reply to it."""

    line: str
    reply: str
    kind: str
    levels: Levels


HARM: dict[str, Levels] = {
    "advice": (0, 0, 0, 0, 0, 1),
    "order": (0, 0, 0, 0, 0, 2),
    "console": (0, 0, 0, 1, 0, 0),
    "self": (0, 1, 0, 1, 0, 0),
    "misread": (0, 2, 0, 1, 0, 0),
    "dismiss": (0, 1, 0, 2, 0, 0),
    "vague": (0, 1, 0, 0, 0, 0),
    "broken": (0, 2, 0, 1, 0, 0),
    "nonsense": (0, 2, 0, 1, 0, 0),
    "elsewhere": (0, 2, 0, 1, 0, 0),
    "repeated": (0, 1, 0, 1, 0, 0),
    "copied": (0, 1, 0, 0, 0, 0),
    "stuffed": (0, 2, 0, 1, 0, 0),
    "misfelt": (0, 1, 0, 2, 0, 0),
    "long": (0, 0, 0, 1, 0, 1),
    "senseless": (0, 2, 0, 1, 0, 0),
}
NOTHING: Levels = (0, 0, 0, 0, 0, 0)
FELT: Levels = (0, 0, 1, 0, 0, 0)
"""Of a fixed sentence that names the right feeling."""
SPOILED = ("broken", "nonsense", "elsewhere", "repeated", "copied", "stuffed", "misfelt", "long")
OFTEN = (2, 3, 3, 1.5, 1, 1, 4, 1)
"""How often each is drawn, relative to the others."""
FELT_SHARE = 0.06
"""Share of replies that name the person's feeling in a fixed sentence, if some replies are spoiled. `misfelt` replies name
another one in the same sentences, so that a judge has to read the line."""
SAME_OPENING = 0.2
"""How often a reply is chosen that begins as an earlier one did, where there is one, if some replies are spoiled."""
FROM_POLICY = 0.7
"""Share of a policy's replies to lines that have some."""
SMALL = frozenset(
    words(
        """
        the a an and or but so of to in on at for with from by as is are was were be been it its this that these
        those i you he she we they my your his her our their me him them what which who how when where why not no
        do does did have has had will would can could should about if then than there here just very too all one
        some any more most
        """
    )
)
COMMON = frozenset(
    words(
        """
        after again always am ask asked back before behind bit came can't come day didn't doesn't don't down each
        eight eleven even every feel felt first five forty four gave get give go going good got half he's hear
        heard hello hi i'd i'll i'm i've it's keep kept knew know last leave left let like little long look
        looked made make mean much must name never next nine nobody nothing now off often old once only other out
        over own people put quite read really right said same sat saw say says see seen she's since sit six small
        something soon stay still stood such sure take talk tell ten that's there's thing things think thirty
        thought three time today told took twenty two under up us used want wanted way well went whole wrong
        wrote year years yes yet
        """
    )
)
"""Words that many people say in many stories: to repeat one of them is not to take something up."""
_PLAIN = SMALL | COMMON


def content(text: str) -> set[str]:
    """Return the stems of the longer and rarer words of a text."""
    return {word[:5] for word in words(text) if word not in _PLAIN and len(word) > 2}


def names_something(reply: str, line: str) -> bool:
    """Return whether a reply contains a word of the line that few people say."""
    return bool(content(line) & content(reply))


YOU = frozenset(words("you your yours you're you've you'd you'll yourself"))
FINITE = frozenset(
    words(
        """
        is was are were has had have do does did isn't wasn't don't didn't can can't could should would will won't must
        that's it's he's she's there's they're i'm i'd i'll i've said kept made came went took tell take let sounds left
        gave felt feel want wanted hurt hurts feels seem seems sound sounds sting stings take takes say says know knows
        knew think thought shouted come comes go goes get gets got make makes need needs weigh weighs cost costs mean
        means saw see sees heard hear knew looked look looks asked ask lost lose loved love loves miss misses missed
        carry carries carried held hold holds cried keep keeps stay stays stayed stood waited wait waits
        """
    )
)
"""Common verbs, which a sentence has and a string of fragments has not."""


def is_sentence(reply: str) -> bool:
    """Return whether a reply speaks to somebody, asks, or has a common verb: "Two rounds, and a break." does not."""
    said = {*words(reply)}
    return reply.endswith("?") or not said.isdisjoint(YOU) or not said.isdisjoint(FINITE)


def levels(kind: str, line: Line, reply: str, trust: int, threshold: str) -> Levels:
    """Return the levels of a reply that is meant as one of `kind`. What names nothing of the line could be said to
    anybody, and is worth nothing, except to leave room or the next step; fragments are worth nothing either."""
    if kind in HARM:
        return HARM[kind]
    patience = PATIENCE[threshold]
    deep, deeper = trust >= patience, trust > patience
    near = int(names_something(reply, line.text) and is_sentence(reply))
    if kind in ("detail", "ask"):
        return (near, 0, 0, 0, 0, 0)
    if kind == "link":
        return (2 if deeper else 1, 0, 0, 0, 0, 0)
    if kind == "feel":
        return (near, 0, near, 0, 0, 0)
    if kind == "beneath":
        if not deep:
            return (near, 0, near, int(threshold == "high"), 0, 0)
        return (near, 0, 2 * near, 0, 0, 0)
    if kind == "affirm":
        return (near, 0, 0, 0, near * (1 + deeper), 0)
    if kind == "step":
        return (near, 0, 0, 0, 1 + near * deeper, 0) if deep else (0, 0, 0, 0, 0, 1)
    return (0, 0, int(line.mood == "guarded"), 0, 0, 0)  # room


def opening(reply: str) -> str:
    """Return the first three words of a reply."""
    return " ".join(words(reply)[:3])


def merged(a: Levels, b: Levels) -> Levels:
    return tuple(map(max, a, b))  # type: ignore[return-value]


class Talk:
    """One dialogue of a person. `goodness` is the chance of a good reply, `spoiled` that of a spoiled one.
    `policy_replies` are a model's replies to lines, with their kinds. With `repetitive`, most spoiled replies repeat an
    earlier one."""

    def __init__(
        self,
        person: Person,
        rng: random.Random,
        strangers: Sequence[Person],
        goodness: float,
        spoiled: float = 0.0,
        policy_replies: Mapping[str, Sequence[tuple[str, str]]] | None = None,
        repetitive: bool = False,
    ) -> None:
        self.repetitive = repetitive
        self.rng, self.strangers, self.goodness, self.spoiled = rng, strangers, goodness, spoiled
        self.policy_replies = policy_replies or {}
        self.threshold = rng.choice(tuple(PATIENCE))
        self.story = person.of_mood("story")
        self.spare = {mood: self._shuffled(person.of_mood(mood)) for mood in SPARE}
        self.trust = 0
        self.replies: list[str] = []
        self.kinds: list[str] = []
        self.lines: list[str] = []

    def _shuffled(self, lines: list[Line]) -> list[Line]:
        return self.rng.sample(lines, len(lines))

    def play(self, turns: int) -> list[Exchange]:
        """Return up to `turns` exchanges; a dialogue ends early where the person has nothing left to say."""
        exchanges: list[Exchange] = []
        harm = waited = 0
        for _ in range(turns):
            helped = not exchanges or any(exchanges[-1].levels[k] for k in (0, 2, 4))
            hold = harm or (not helped and waited < 2)
            waited = waited + 1 if hold and not harm else 0
            line = self._next("guarded" if exchanges and hold else "story")
            if line is None:
                break
            exchange = self._reply(line)
            exchanges.append(exchange)
            harm = max(exchange.levels[k] for k in (1, 3, 5))
            met = exchange.levels[0] or exchange.levels[2]
            self.trust = max(0, self.trust - harm) if harm else self.trust + bool(met)
            self.replies.append(exchange.reply)
            self.kinds.append(exchange.kind)
            self.lines.append(line.text)
        return exchanges

    def _next(self, mood: Mood) -> Line | None:
        if mood == "story" and self.story:
            return self.story.pop(0)
        lines = self.spare["guarded" if mood == "guarded" else "eased"]
        if not lines:
            return self.story.pop(0) if self.story else None
        lines.append(lines.pop(0))
        return lines[-1]

    def _reply(self, line: Line) -> Exchange:
        if line.text in self.policy_replies and self.rng.random() < FROM_POLICY:
            good = self.rng.random() < self.goodness
            options = [pair for pair in self.policy_replies[line.text] if pair[1] not in self.replies]
            options = [pair for pair in options if (pair[0] in GOOD) == good]
            if options:
                kind, text = self.rng.choice(options)
                kind = "senseless" if kind == "nonsense" else kind
                return Exchange(line.text, text, kind, self._levels(kind, line, text))
        if self.rng.random() < self.spoiled:
            repeats = self.repetitive and self.rng.random() < 0.8
            kind = "repeated" if repeats else self.rng.choices(SPOILED, OFTEN)[0]
            text = self._spoiled(kind, line)
            if text:
                return Exchange(line.text, text, kind, HARM[kind])
        if self.spoiled and line.feeling and self.rng.random() < FELT_SHARE:
            text = felt(line, line.feeling, self.rng)
            return Exchange(line.text, text, "felt", NOTHING if self._is_stale("felt", text) else FELT)
        options = [pair for pair in line.replies if pair[1] not in self.replies]
        wanted = GOOD if self.rng.random() < self.goodness else POOR
        options = [pair for pair in options if pair[0] in wanted] or options or self._borrowed(line, wanted)
        if self.spoiled and self.rng.random() < SAME_OPENING:
            options = [pair for pair in options if self._is_stale(*pair)] or options
        if wanted is GOOD and line.mood == "story":  # what is rare is drawn more often
            early = self.trust < PATIENCE[self.threshold]
            heavy = {
                "beneath": 1.0 if early else 1.5,
                "step": 0.7 if early else 2.0,
                "affirm": 1.3,
                "link": 1.3,
            }
            kind, text = self.rng.choices(options, [heavy.get(k, 1.0) for k, _ in options])[0]
        else:
            kind, text = self.rng.choice(options)
        value = self._levels(kind, line, text)
        if self.spoiled and self.rng.random() < 0.08:  # two replies in one
            other = self.rng.choice(line.replies) if line.replies else (kind, text)
            if other[1] != text and other[1] not in self.replies:
                text = f"{text} {other[1]}"
                value = merged(value, self._levels(other[0], line, other[1]))
                kind = f"{kind}+{other[0]}"
        return Exchange(line.text, text, kind, value)

    def _levels(self, kind: str, line: Line, text: str) -> Levels:
        value = levels(kind, line, text, self.trust, self.threshold)
        return NOTHING if not max(value[1::2]) and self._is_stale(kind, text) else value

    def _is_stale(self, kind: str, text: str) -> bool:
        """Return whether a reply begins as one of the last six did, or leaves room again so soon."""
        again = opening(text) in map(opening, self.replies[-6:])
        return again or (kind == "room" and "room" in self.kinds[-3:])

    def _borrowed(self, line: Line, wanted: Sequence[str]) -> list[tuple[str, str]]:
        """Return replies to a line of the same type of other people; only general ones fit."""
        kinds = {"room", "vague"} if line.mood == "guarded" else {"vague", "console", "step"}
        for _ in range(50):
            other = self.rng.choice(self.strangers)
            pairs = [
                p
                for x in other.of_mood(line.mood)
                for p in x.replies
                if p[0] in kinds and p[1] not in self.replies
            ]
            if pairs:
                return [pair for pair in pairs if pair[0] in wanted] or pairs
        return [("vague", "I see what you mean.")]

    def _spoiled(self, kind: str, line: Line) -> str:
        rng = self.rng
        text = rng.choice(line.replies)[1] if line.replies else ""
        if kind == "repeated":
            return rng.choice(self.replies) if self.replies else ""
        if kind == "copied":
            source = rng.choice([line.text, *self.lines[-3:]])
            return source if rng.random() < 0.6 else " ".join(source.split()[: rng.randint(5, 14)])
        stranger = rng.choice(self.strangers)
        theirs = [
            pair[1] for x in rng.sample(stranger.lines, min(6, len(stranger.lines))) for pair in x.replies
        ]
        if not theirs:
            return ""
        if kind == "elsewhere":
            good = [pair[1] for x in stranger.of_mood("story") for pair in x.replies if pair[0] in GOOD]
            known = set().union(*map(known_nouns, (line.text, *self.lines)))
            foreign = [reply for reply in good if known_nouns(reply) - known]
            return rng.choice(foreign) if foreign else ""
        if kind == "long":
            count = rng.randint(4, 7)
            mine = [pair[1] for pair in line.replies]
            return " ".join(rng.sample(mine + theirs, min(count, len(mine) + len(theirs))))
        if kind == "misfelt":
            wrong = [feeling for feeling in FEELING_WORDS if not _are_near(feeling, line.feeling)]
            return felt(line, rng.choice(wrong), rng) if line.feeling else ""
        if not text:
            return ""
        if kind == "stuffed":
            nouns = [w for w in words(line.text) if len(w) > 3 and w not in SMALL] or ["it"]
            if len(nouns) > 1 and rng.random() < 0.4:
                return scraps(nouns, rng)
            feelings = rng.sample(FEELINGS, rng.randint(2, 5))
            shape = rng.choice(STUFFED)
            return shape.format(
                n=", ".join(rng.sample(nouns, min(len(nouns), rng.randint(2, 5)))),
                f=", ".join(feelings),
                a=rng.choice(nouns),
                b=rng.choice(nouns),
            )
        if kind == "nonsense":
            if rng.random() < 0.3:
                return with_other_nouns(text, " ".join([*theirs, *self.lines[-4:], line.text]), rng)
            mentioned = sorted(known_nouns(text) | (known_numbers(text) & known_numbers(line.text)))
            changes = {
                noun: other(noun, rng)
                for noun in rng.sample(mentioned, rng.randint(min(1, len(mentioned)), len(mentioned)))
            }
            return with_nouns(text, changes) if changes else ""
        return broken(text, rng)


FEELINGS = (
    "exhausted", "lonely", "ashamed", "afraid", "angry", "guilty", "sad", "envious", "disappointed", "helpless", "hurt",
    "overwhelmed", "empty", "torn", "proud", "happy", "nervous", "bitter",
)  # fmt: skip
STUFFED = (
    "You feel {f} about {n}.", "{n}: {f}.", "The {a} and the {b} make you {f}.", "I hear {n}, {f}.", "{a}, {b}, {a}.",
    "You are {f}, because of the {a} in the {b}.", "There is something like the {a} in your {b}, is there not?",
    "The {a}. The {b}. You are {f}.", "Ah, the {a}. And your {b}. So {f}.", "Your {a}, your {b}, then {a} again.",
    "That {a}! This {b}, also.", "{a} and {b}. I see {f}.", "Such {a}, such {b}. The {a}, well.",
)  # fmt: skip


FEELING_WORDS = {
    "longing": ("full of longing",),
    "lonely": ("lonely", "alone"),
    "empty": ("empty",),
    "grieving": ("sad", "full of grief"),
    "hurt": ("hurt",),
    "torn": ("torn",),
    "afraid": ("afraid", "scared", "frightened"),
    "helpless": ("helpless",),
    "overwhelmed": ("overwhelmed",),
    "exhausted": ("exhausted", "tired"),
    "ashamed": ("ashamed", "embarrassed"),
    "guilty": ("guilty",),
    "proud": ("proud",),
    "happy": ("happy", "glad"),
    "angry": ("angry", "bitter"),
    "disappointed": ("disappointed",),
    "envious": ("envious", "jealous"),
}
"""The feelings of lines, and words for them."""
_NEAR = (
    ("longing", "lonely", "empty", "grieving", "hurt"),
    ("torn", "overwhelmed", "helpless", "afraid"),
    ("exhausted", "overwhelmed", "helpless", "empty"),
    ("ashamed", "guilty", "torn"),
    ("angry", "disappointed", "envious", "hurt"),
    ("disappointed", "hurt", "grieving"),
    ("proud", "happy"),
)
"""Feelings that are often there together."""
FELT_SENTENCES = (
    "You feel {f} about {n}.", "You feel {f} about {n}, I think.", "You must be {f} about {n}.", "You must feel {f}, with {n}.",
    "You were {f} because of {n}.", "You're {f} about {n}, maybe.", "It sounds like {n} made you {f}.", "So {f}, with {n}.",
    "You must have been {f} when it came to {n}.", "I think you are {f} about {n}.", "You felt {f} over {n}.",
    "Maybe you're {f}.", "You must be so {f}.", "That must have made you {f}.", "You were {f} then, I think.",
)  # fmt: skip


def _are_near(a: str, b: str) -> bool:
    return a == b or any(a in group and b in group for group in _NEAR)


def felt(line: Line, feeling: str, rng: random.Random) -> str:
    """Return a fixed sentence that names a feeling, mostly with a noun of the line."""
    nouns = sorted(known_nouns(line.text))
    shapes = [shape for shape in FELT_SENTENCES if nouns or "{n}" not in shape]
    noun = f"{rng.choice(('the', 'your', 'that'))} {rng.choice(nouns)}" if nouns else ""
    return rng.choice(shapes).format(f=rng.choice(FEELING_WORDS.get(feeling, (feeling,))), n=noun)


SCRAPS = (
    "Ah, {a}.", "{a}, I see.", "So, the {a}.", "This {a}, again.", "Always the {a}.", "Only {a}, really.", "Well, {a}.",
    "{a} indeed.", "First the {a}.", "Now {a}.", "Some {a}, I think.", "Yes, your {a}.", "Even the {a}.", "{a}, oh.",
)  # fmt: skip
SCRAP_ENDS = ("You feel {f}.", "So {f}.", "You must be {f}.", "{f}, I think.", "You were {f}.", "How {f}.")


def scraps(nouns: Sequence[str], rng: random.Random) -> str:
    """Return two to five scraps with a word of the line in each, often with a feeling at the end."""
    chosen = rng.sample(nouns, min(len(nouns), rng.randint(2, 5)))
    shapes = rng.sample(SCRAPS, len(chosen)) if rng.random() < 0.7 else [rng.choice(SCRAPS)] * len(chosen)
    parts = [shape.format(a=noun) for shape, noun in zip(shapes, chosen, strict=True)]
    if rng.random() < 0.6:
        parts.append(rng.choice(SCRAP_ENDS).format(f=rng.choice(FEELINGS)))
    return " ".join(part[:1].upper() + part[1:] for part in parts)


def with_other_nouns(text: str, source: str, rng: random.Random) -> str:
    """Return a reply with most of its longer words replaced by others."""
    others = [w for w in words(source) if len(w) > 3 and w not in SMALL] or ["lamp"]
    out, changed = [], 0
    for word in text.split():
        bare = word.strip(".,?!;:'\"").lower()
        if len(bare) > 3 and bare not in SMALL and rng.random() < 0.7:
            new = rng.choice(others)
            out.append(word.lower().replace(bare, new))
            changed += 1
        else:
            out.append(word)
    sentence = " ".join(out)
    return sentence[:1].upper() + sentence[1:] if changed >= 2 else ""


def broken(text: str, rng: random.Random) -> str:
    """Return a reply that is no longer good English: words are shuffled, missing or out of place, or a clause comes twice."""
    tokens = text.split()
    if len(tokens) < 5:
        return ""
    way = rng.randrange(8)
    if way == 0:
        rng.shuffle(tokens)
    elif way == 1:
        start = rng.randrange(len(tokens) - 3)
        part = tokens[start : start + 5]
        rng.shuffle(part)
        tokens[start : start + 5] = part
    elif way == 2:
        tokens = [t for t in tokens if t.lower() not in SMALL or rng.random() < 0.35]
    elif way == 3:
        tokens = tokens[: rng.randint(2, max(3, len(tokens) * 2 // 3))]
        tokens[-1] = tokens[-1].rstrip(".?!,")
    elif way == 4:
        at = rng.randrange(1, len(tokens) - 1)
        tokens[at:at] = tokens[max(0, at - 3) : at] * rng.randint(1, 3)
    elif way == 5:
        at = rng.randrange(2, len(tokens) - 1)
        small = rng.sample(sorted(SMALL), 3)
        tokens[at:at] = small
    elif way == 6:  # its last words twice
        end = " ".join(tokens[-rng.randint(1, 3) :])
        tokens[-1] = tokens[-1].rstrip(".?!,") + ("," if rng.random() < 0.5 else ", and")
        tokens.append(end)
    else:  # its first clause twice
        clause = re.split(r"[.?!,;:]", text, maxsplit=1)[0]
        if not 1 < len(clause.split()) < 8:
            return ""
        again = clause if re.match(r"I\b", clause) else clause[0].lower() + clause[1:]
        tokens = [f"{clause}, {rng.choice(('and', 'and', 'so', 'but'))} {again}."]
    result = " ".join(tokens)
    return result if result != text else ""
