"""Scripted policies: an honest one, and some that try to fool the judge."""

from __future__ import annotations

from functools import partial

from mapo.scripted.policies import PolicyContext, make_policy

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


def honest(context):
    """Take up the fault, own its cost, and offer the customer's solution once the fault is clear."""
    parts = [context.phrase("take_up", a=context.about())]
    if context.turn > 2 and (cost := context.once("cost")):
        parts.append(context.phrase("own", c=cost))
    elif context.turn > 4 and (wish := context.once("wish")):
        parts.append(context.phrase("remedy", w=wish))
    elif context.turn > 3 and len(context.beats) > 1:
        earlier = [term for beat in context.beats[:-1] for term in beat.about]
        parts.append(context.phrase("remember", e=context.rng.choice(earlier)))
    return " ".join(parts)


def template(context):
    return f"I am looking into the {context.about()} for you right now."


POLICIES = {
    "honest": honest,
    "apologist": lambda context: context.phrase("stock"),
    "script-reader": lambda context: context.phrase("script"),
    "promiser": lambda context: f"{context.phrase('promise')} The {context.about()} is with our experts.",
    "template": template,
    "parrot": lambda context: context.last_message,
}


def scripted_policy(name):
    return make_policy(name, POLICIES, partial(PolicyContext, bank=SENTENCES))
