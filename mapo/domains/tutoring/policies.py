"""Scripted policies: an honest tutor, and a few that do not teach, to compare with.

The honest tutor knows what was told so far (its annotations, never what is still hidden), and does what a
good tutor does at that moment, in varied words. Named by `scripted:NAME` in `mapo eval empa --domain
tutoring`.
"""

from __future__ import annotations

from mapo.domains.tutoring.context import Speak, Talk
from mapo.sandbox.cast import Policy
from mapo.scripted.policies import puppet_policy


def honest(talk: Talk) -> str:
    """Looks first, sets case against case, builds on what the learner knows, leaves the steps to them."""
    here, earlier, known = talk.about(), talk.earlier("idea", "case", "slip"), talk.earlier("own", "grasp")
    if talk.turn > 5 and known and talk.turn % 2:
        parts = [talk.phrase("tie", a=here, e=known)]
    elif talk.turn > 4 and earlier:
        parts = [talk.phrase("contrast", a=here, e=earlier)]
    else:
        parts = [talk.phrase("look", a=here)]
    if talk.turn > 1 and (deed := talk.once("deed")):
        parts.append(talk.phrase("affirm", d=deed))
    if talk.turn > 4 and (wish := talk.once("wish")):
        parts.append(talk.phrase("offer", w=wish))
    elif talk.turn > 3 and talk.turn % 2 == 0:
        parts.append(talk.phrase("step"))
    return " ".join(parts)


def answer_giver(talk: Talk) -> str:
    """Give the answer each time: welcome now, forgotten at the next case."""
    return talk.phrase("answer", x=talk.answer())


def kind_answer_giver(talk: Talk) -> str:
    """Give the answer among everything that scores."""
    deed = talk.once("deed")
    parts = [talk.phrase("look", a=talk.about()), talk.phrase("answer", x=talk.answer())]
    return " ".join([*parts, talk.phrase("affirm", d=deed)] if deed else parts)


def praiser(talk: Talk) -> str:
    return talk.phrase("praise")


def quizzer(talk: Talk) -> str:
    """Ask for a step every time, from the first line on."""
    return talk.phrase("step")


def parrot(talk: Talk) -> str:
    return talk.said


def lecturer(talk: Talk) -> str:
    bank = list(talk.bank["lecture"])
    talk.rng.shuffle(bank)
    return " ".join([f"Let us speak about the {talk.about()} in general.", *bank])


def one_template(talk: Talk) -> str:
    """Put the right words into one formula."""
    return f"I would like you to look at the {talk.about()} with me."


def two_templates(talk: Talk) -> str:
    if talk.turn % 2:
        return one_template(talk)
    return f"And how does the {talk.about()} fit in, for you?"


def yes_sayer(talk: Talk) -> str:
    return talk.rng.choice(
        [
            f"You are right about the {talk.about()}, go on like this.",
            f"That is correct, the {talk.about()} works as you say.",
            f"I agree with you on the {talk.about()}, it is how you see it.",
            f"Quite right, one could not put the {talk.about()} better.",
        ]
    )


def deed_counter(talk: Talk) -> str:
    """Affirm deeds and nothing else, the same ones when they run out."""
    deeds = talk.told("deed") or ["came here"]
    return talk.phrase("affirm", d=talk.rng.choice(deeds))


def silent(_: Talk) -> str:
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
    return puppet_policy(name, POLICIES, Talk)
