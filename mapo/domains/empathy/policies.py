"""Scripted policies of the empathy domain: an honest helper, and several unhelpful ones for comparison.

The honest helper knows the annotations of what has been told so far (never what is still hidden) and does
what a good listener would do at that moment, in varied words. `mapo eval empa --model scripted:NAME` selects
a policy.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

from mapo.domains.empathy.context import EmpathyContext, Speak
from mapo.domains.empathy.reading import feelings, function_words
from mapo.sandbox.cast import Policy
from mapo.scripted.policies import longest, make_policy


def honest(context: EmpathyContext) -> str:
    """Notice particulars, name feelings and affirm deeds; link and suggest steps only later."""
    if len(context.beats) > 3 and context.turn % 3 == 0:
        earlier = context.rng.choice(context.beats[:-1]).about[0]
        parts = [context.phrase("link", a=context.about(), e=earlier)]
    else:
        parts = [context.phrase("notice", a=context.about())]
    if context.feeling() and context.met and context.turn > 4:
        parts.append(context.phrase("name", f=context.feeling()))
    if context.turn > 2 and (deed := context.once("deed")):
        parts.append(context.phrase("affirm", d=deed))
        if value := context.cues("value"):
            parts.append(context.phrase("value", v=value[-1]))
    elif context.turn > 6 and context.turn % 2 and (wish := context.once("wish")):
        parts.append(context.phrase("offer", w=wish))
    elif context.turn > 5 and context.turn % 4 == 0:
        parts.append(context.phrase("ask"))
    return " ".join(parts)


DEEP = ("link", "beneath", "step", "affirm", "feel")
"""Kinds of written replies that are better later in a dialogue."""


@lru_cache
def written_replies() -> dict[str, list[tuple[str, str]]]:
    """Return the replies written to lines of the test scenarios: pairs of kind and text, by line."""
    replies: dict[str, list[tuple[str, str]]] = {}
    text = (files("mapo") / "domains" / "empathy" / "listener.tsv").read_text(encoding="utf-8")
    for row in text.splitlines():
        kind, line, reply = row.split("\t")
        replies.setdefault(line, []).append((kind, reply))
    return replies


def listener(context: EmpathyContext) -> str:
    """Say what a person wrote to this line of a test scenario; in other scenarios, what `honest` says."""
    replies = written_replies().get(context.last_message)
    if replies is None:
        return honest(context)
    used = context.used.setdefault("written", [])
    fresh = [pair for pair in replies if pair[1] not in used] or replies
    _, reply = min(fresh, key=lambda pair: (pair[0] in DEEP) != (context.turn > 5))
    used.append(reply)
    return reply


def comforter(context: EmpathyContext) -> str:
    return context.rng.choice(
        [
            "I'm so sorry you are going through this, I'm here for you.",
            "That must be so hard. Sending you a big hug.",
            "Hang in there, it gets better, you are not alone.",
            "I understand. Everything will be all right in the end.",
            "Oh no, that sounds really tough. Stay strong.",
        ]
    )


def adviser(context: EmpathyContext) -> str:
    return context.rng.choice(
        [
            f"You should make a plan about the {context.about()} and start by writing it down.",
            "Have you tried talking to a professional about it? You need to get help.",
            "First of all, get enough sleep. Then make a list and go through it.",
            f"Why don't you just let the {context.about()} go and focus on something else?",
            "You have to set clear limits, that is the best thing to do.",
        ]
    )


def silent(_: EmpathyContext) -> str:
    return "..."


def nonsense(context: EmpathyContext) -> str:
    return " ".join(context.rng.choices(_WORDS, k=15))


_WORDS = ["lamp", "river", "seven", "because", "under", "green", "talk", "of", "it", "so", "never"]


def nodder(context: EmpathyContext) -> str:
    return context.rng.choice(["Yes, exactly.", "You are right.", "I see.", "Of course.", "True, very true."])


def stuffer(context: EmpathyContext) -> str:
    """Name every feeling, every time."""
    return (
        "You feel "
        + ", ".join(words["names"][0] for words in feelings().values())
        + f" about {context.about()}."
    )


def parrot(context: EmpathyContext) -> str:
    return context.last_message


def early_adviser(context: EmpathyContext) -> str:
    """Suggest a fitting step, but immediately and every time."""
    wishes = context.cues("wish") or ["take a small step"]
    return f"Maybe you could {wishes[-1]}, what if you did that tonight about the {context.about()}?"


def salad(context: EmpathyContext) -> str:
    """Put the right keywords among random function words."""
    small = context.rng.choices(sorted(function_words()), k=12)
    small.insert(4, context.about())
    small.insert(9, context.feeling() or "so")
    return " ".join(small).capitalize() + "."


def noun_templates(context: EmpathyContext) -> str:
    """Put nouns of the last message into a few longer sentences, repeatedly."""
    first, *rest = longest(context.last_message)
    other = rest[0] if rest else first
    sentence = context.phrase("cheap", a=first, b=other)
    feeling = signalled(context.last_message)
    return f"{sentence} It may be that you are {feeling} there." if feeling else sentence


def one_template(context: EmpathyContext) -> str:
    """Put the right words into one sentence template."""
    return f"It sounds like you feel {context.feeling() or 'a lot'} about the {context.about()}."


def two_templates(context: EmpathyContext) -> str:
    if context.turn % 2:
        return one_template(context)
    return f"The {context.about()} must leave you {context.feeling() or 'unsure'}, I think."


def signalled(line: str) -> str:
    """Return the feeling whose signs occur in a line, or an empty string."""
    lower = line.lower()
    matches = (w["names"][0] for w in feelings().values() if any(s.lower() in lower for s in w["signs"]))
    return next(matches, "")


HONEST = "honest"
POLICIES: dict[str, Speak] = {
    HONEST: honest,
    "listener": listener,
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
    """Return the scripted policy of that name."""
    return make_policy(name, POLICIES, EmpathyContext)
