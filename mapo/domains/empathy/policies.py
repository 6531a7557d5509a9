"""Scripted policies: an honest helper, and a few that do not help, to compare with.

The honest helper knows what was told so far (its annotations, never what is still hidden), and does what a
good listener does at that moment, in varied words. Named by `scripted:NAME` in `mapo eval empa`.
"""

from __future__ import annotations

from mapo.domains.empathy.context import Speak, Talk
from mapo.domains.empathy.reading import feelings, function_words
from mapo.sandbox.cast import Policy
from mapo.scripted.policies import longest, puppet_policy


def honest(talk: Talk) -> str:
    """Notices, names what is felt, affirms what was done; links and offers only later."""
    if len(talk.beats) > 3 and talk.turn % 3 == 0:
        earlier = talk.rng.choice(talk.beats[:-1]).about[0]
        parts = [talk.phrase("link", a=talk.about(), e=earlier)]
    else:
        parts = [talk.phrase("notice", a=talk.about())]
    if talk.feeling() and talk.met and talk.turn > 4:
        parts.append(talk.phrase("name", f=talk.feeling()))
    if talk.turn > 2 and (deed := talk.once("deed")):
        parts.append(talk.phrase("affirm", d=deed))
        if value := talk.told("value"):
            parts.append(talk.phrase("value", v=value[-1]))
    elif talk.turn > 6 and talk.turn % 2 and (wish := talk.once("wish")):
        parts.append(talk.phrase("offer", w=wish))
    elif talk.turn > 5 and talk.turn % 4 == 0:
        parts.append(talk.phrase("ask"))
    return " ".join(parts)


def comforter(talk: Talk) -> str:
    return talk.rng.choice(
        [
            "I'm so sorry you are going through this, I'm here for you.",
            "That must be so hard. Sending you a big hug.",
            "Hang in there, it gets better, you are not alone.",
            "I understand. Everything will be all right in the end.",
            "Oh no, that sounds really tough. Stay strong.",
        ]
    )


def adviser(talk: Talk) -> str:
    return talk.rng.choice(
        [
            f"You should make a plan about the {talk.about()} and start by writing it down.",
            "Have you tried talking to a professional about it? You need to get help.",
            "First of all, get enough sleep. Then make a list and go through it.",
            f"Why don't you just let the {talk.about()} go and focus on something else?",
            "You have to set clear limits, that is the best thing to do.",
        ]
    )


def silent(_: Talk) -> str:
    return "..."


def nonsense(talk: Talk) -> str:
    return " ".join(talk.rng.choices(_WORDS, k=15))


_WORDS = ["lamp", "river", "seven", "because", "under", "green", "talk", "of", "it", "so", "never"]


def nodder(talk: Talk) -> str:
    return talk.rng.choice(["Yes, exactly.", "You are right.", "I see.", "Of course.", "True, very true."])


def stuffer(talk: Talk) -> str:
    """Name every feeling there is, every time."""
    return (
        "You feel "
        + ", ".join(words["names"][0] for words in feelings().values())
        + f" about {talk.about()}."
    )


def parrot(talk: Talk) -> str:
    return talk.said


def early_adviser(talk: Talk) -> str:
    """Suggest a fitting step, but at once and always."""
    wishes = talk.told("wish") or ["take a small step"]
    return f"Maybe you could {wishes[-1]}, what if you did that tonight about the {talk.about()}?"


def salad(talk: Talk) -> str:
    """Put the right keywords among function words in no order."""
    small = talk.rng.choices(sorted(function_words()), k=12)
    small.insert(4, talk.about())
    small.insert(9, talk.feeling() or "so")
    return " ".join(small).capitalize() + "."


def noun_templates(talk: Talk) -> str:
    """Put the last line's nouns into a few longer sentences, over and over."""
    first, *rest = longest(talk.said)
    other = rest[0] if rest else first
    told = talk.phrase("cheap", a=first, b=other)
    feeling = signalled(talk.said)
    return f"{told} It may be that you are {feeling} there." if feeling else told


def one_template(talk: Talk) -> str:
    """Put the right words into one formula."""
    return f"It sounds like you feel {talk.feeling() or 'a lot'} about the {talk.about()}."


def two_templates(talk: Talk) -> str:
    if talk.turn % 2:
        return one_template(talk)
    return f"The {talk.about()} must leave you {talk.feeling() or 'unsure'}, I think."


def signalled(line: str) -> str:
    """Return the feeling whose signs are in a line, or nothing."""
    lower = line.lower()
    found = (w["names"][0] for w in feelings().values() if any(s.lower() in lower for s in w["signs"]))
    return next(found, "")


HONEST = "honest"
POLICIES: dict[str, Speak] = {
    HONEST: honest,
    "comforter": comforter,
    "adviser": adviser,
    "silent": silent,
    "random": nonsense,
    "nodder": nodder,
    "stuffer": stuffer,
    "parrot": parrot,
    "early-adviser": early_adviser,
    "salad": salad,
    "noun-templates": noun_templates,
    "two-templates": two_templates,
}


def scripted_policy(name: str) -> Policy:
    return puppet_policy(name, POLICIES, Talk)
