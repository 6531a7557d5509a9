"""Agents of plain code: an honest one, and some that only pretend, to see what the judge falls for."""

from __future__ import annotations

from functools import partial

from mapo.scripted.policies import Talk, puppet_policy

SENTENCES = {
    "take_up": [
        "So it is the {a} that gives you trouble.",
        "What exactly does the {a} do when it happens?",
        "I have the {a} in front of me now, as you tell it.",
        "The {a} is where I would begin.",
        "Since when has the {a} been like that?",
        "That the {a} does this is not how it was meant.",
        "Then we are not done before the {a} works.",
        "Let me make sure that I have the {a} right.",
        "It keeps coming back to the {a}, I see.",
    ],
    "remember": [
        "You spoke of the {e} before, I have not lost it.",
        "It goes together with the {e}, if I follow you.",
        "First the {e}, and then this on top.",
        "I keep the {e} in mind as well, because it belongs to it.",
    ],
    "own": [
        "You {c}, and that is on us.",
        "That you {c} is our doing, and nobody else's.",
        "Nobody should have to, and you {c}: we owe you for it.",
        "We let you down there, and you {c}.",
    ],
    "remedy": [
        "If you like, we could do just that: {w}.",
        "Perhaps the best way out is yours, {w}.",
        "What if we arrange it so that you {w}?",
    ],
    "stock": [
        "We apologise for any inconvenience this may have caused.",
        "Your patience is very important to us, thank you for it.",
        "I fully understand how you must see this.",
    ],
    "script": [
        "Have you tried to turn it off and on again?",
        "First of all I need your order number once more.",
        "You need to update it and restart it twice.",
    ],
    "promise": [
        "I promise that it will be fixed by tomorrow.",
        "It will be there very soon, I guarantee it.",
        "Everything will be done before you know it.",
    ],
}


def honest(talk):
    """Takes up the fault, owns the cost, and offers the customer's own way out when the fault is clear."""
    parts = [talk.phrase("take_up", a=talk.about())]
    if talk.turn > 2 and (cost := talk.once("cost")):
        parts.append(talk.phrase("own", c=cost))
    elif talk.turn > 4 and (wish := talk.once("wish")):
        parts.append(talk.phrase("remedy", w=wish))
    elif talk.turn > 3 and len(talk.beats) > 1:
        earlier = [term for beat in talk.beats[:-1] for term in beat.about]
        parts.append(talk.phrase("remember", e=talk.rng.choice(earlier)))
    return " ".join(parts)


def template(talk):
    return f"I am looking into the {talk.about()} for you right now."


POLICIES = {
    "honest": honest,
    "apologist": lambda talk: talk.phrase("stock"),
    "script-reader": lambda talk: talk.phrase("script"),
    "promiser": lambda talk: f"{talk.phrase('promise')} The {talk.about()} is with our experts.",
    "template": template,
    "parrot": lambda talk: talk.said,
}


def scripted_policy(name):
    return puppet_policy(name, POLICIES, partial(Talk, bank=SENTENCES))
