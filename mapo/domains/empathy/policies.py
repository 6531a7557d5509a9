"""Policies of plain code: an honest helper, and many who only pretend (`games.py`).

The honest helper knows what was told so far (its annotations, never what is still hidden), and does what
a good listener does at that moment, in varied words. `scripted:NAME` in `mapo eval empa`.
"""

from __future__ import annotations

from mapo.domains.empathy.context import Speak, Talk
from mapo.domains.empathy.games import GAMES
from mapo.sandbox.cast import Policy
from mapo.scripted.policies import puppet_policy


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


HONEST = "honest"
POLICIES: dict[str, Speak] = {HONEST: honest, **GAMES}


def scripted_policy(name: str) -> Policy:
    return puppet_policy(name, POLICIES, Talk)
