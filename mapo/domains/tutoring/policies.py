"""Policies of plain code: an honest tutor, and many who only pretend (`games.py`).

The honest tutor knows what was told so far (its annotations, never what is still hidden), and does what a
good tutor does at that moment, in varied words. `scripted:NAME` in `mapo eval empa --domain tutoring`.
"""

from __future__ import annotations

from mapo.domains.tutoring.context import Speak, Talk
from mapo.domains.tutoring.games import GAMES
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


HONEST = "honest"
POLICIES: dict[str, Speak] = {HONEST: honest, **GAMES}


def scripted_policy(name: str) -> Policy:
    return puppet_policy(name, POLICIES, Talk)
