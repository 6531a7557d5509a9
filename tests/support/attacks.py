"""Scripted policies of a domain together with the attacks on its judge."""

from __future__ import annotations

from mapo.domains.empathy.context import EmpathyContext
from mapo.domains.tutoring.context import TutoringContext
from mapo.sandbox.cast import Policy
from mapo.sandbox.domain import scripted_policies, scripted_policy
from mapo.scripted.policies import make_policy
from support import empathy_attacks, tutoring_attacks


def policies_of(domain: str) -> dict[str, Policy]:
    """Return the policies that the domain ships and, for the built-in domains, the attacks, by name."""
    found = {name: scripted_policy(domain, name) for name in scripted_policies(domain)}
    if domain == "empathy":
        attacks = empathy_attacks.ATTACKS
        found |= {name: make_policy(name, attacks, EmpathyContext) for name in attacks}
    elif domain == "tutoring":
        own = tutoring_attacks.ATTACKS
        found |= {name: make_policy(name, own, TutoringContext) for name in own}
    return found
