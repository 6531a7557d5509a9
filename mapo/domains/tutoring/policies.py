"""Scripted policies of the tutoring domain: an honest tutor, and several poor ones for comparison.

The honest tutor knows the annotations of what has been told so far (never what is still hidden) and does what
a good tutor would do at that moment, in varied words. `mapo eval empa --domain tutoring --model
scripted:NAME` selects a policy.
"""

from __future__ import annotations

from mapo.domains.tutoring.context import Speak, TutoringContext
from mapo.sandbox.cast import Policy
from mapo.scripted.policies import make_policy


def honest(context: TutoringContext) -> str:
    """Look at the case first, contrast cases, build on what the learner knows, leave the steps to them."""
    here, earlier, known = (
        context.about(),
        context.earlier("idea", "case", "slip"),
        context.earlier("own", "grasp"),
    )
    if context.turn > 5 and known and context.turn % 2:
        parts = [context.phrase("tie", a=here, e=known)]
    elif context.turn > 4 and earlier:
        parts = [context.phrase("contrast", a=here, e=earlier)]
    else:
        parts = [context.phrase("look", a=here)]
    if context.turn > 1 and (deed := context.once("deed")):
        parts.append(context.phrase("affirm", d=deed))
    if context.turn > 4 and (wish := context.once("wish")):
        parts.append(context.phrase("offer", w=wish))
    elif context.turn > 3 and context.turn % 2 == 0:
        parts.append(context.phrase("step"))
    return " ".join(parts)


def answer_giver(context: TutoringContext) -> str:
    """Give the answer every time: welcome now, forgotten at the next case."""
    return context.phrase("answer", x=context.answer())


def kind_answer_giver(context: TutoringContext) -> str:
    """Give the answer, surrounded by everything else that scores."""
    deed = context.once("deed")
    parts = [context.phrase("look", a=context.about()), context.phrase("answer", x=context.answer())]
    return " ".join([*parts, context.phrase("affirm", d=deed)] if deed else parts)


def praiser(context: TutoringContext) -> str:
    return context.phrase("praise")


def quizzer(context: TutoringContext) -> str:
    """Ask for a step every time, from the first message on."""
    return context.phrase("step")


def parrot(context: TutoringContext) -> str:
    return context.last_message


def lecturer(context: TutoringContext) -> str:
    bank = list(context.bank["lecture"])
    context.rng.shuffle(bank)
    return " ".join([f"Let us speak about the {context.about()} in general.", *bank])


def one_template(context: TutoringContext) -> str:
    """Put the right words into one sentence template."""
    return f"I would like you to look at the {context.about()} with me."


def two_templates(context: TutoringContext) -> str:
    if context.turn % 2:
        return one_template(context)
    return f"And how does the {context.about()} fit in, for you?"


def yes_sayer(context: TutoringContext) -> str:
    return context.rng.choice(
        [
            f"You are right about the {context.about()}, go on like this.",
            f"That is correct, the {context.about()} works as you say.",
            f"I agree with you on the {context.about()}, it is how you see it.",
            f"Quite right, one could not put the {context.about()} better.",
        ]
    )


def deed_counter(context: TutoringContext) -> str:
    """Affirm deeds and nothing else, repeating them if necessary."""
    deeds = context.cues("deed") or ["came here"]
    return context.phrase("affirm", d=context.rng.choice(deeds))


def silent(_: TutoringContext) -> str:
    return "..."


HONEST = "honest"
POLICIES: dict[str, Speak] = {
    HONEST: honest,
    "answer-giver": answer_giver,
    "kind-answer-giver": kind_answer_giver,
    "praiser": praiser,
    "quizzer": quizzer,
    "parrot": parrot,
    "lecturer": lecturer,
    "two-templates": two_templates,
    "yes-sayer": yes_sayer,
    "deed-counter": deed_counter,
    "silent": silent,
}


def scripted_policy(name: str) -> Policy:
    """Return the scripted policy of that name."""
    return make_policy(name, POLICIES, TutoringContext)
