"""Scripted policies of a domain together with the attacks on its judge."""

from __future__ import annotations

from mapo.domains.empathy.context import Talk as EmpathyTalk
from mapo.domains.tutoring.context import Talk as TutoringTalk
from mapo.sandbox.cast import Policy
from mapo.sandbox.domain import scripted_policies, scripted_policy
from mapo.scripted.policies import puppet_policy
from support import empathy_attacks, tutoring_attacks


def policies_of(domain: str) -> dict[str, Policy]:
    """Return the policies that the domain ships and, for the built-in domains, the attacks, by name."""
    found = {name: scripted_policy(domain, name) for name in scripted_policies(domain)}
    if domain == "empathy":
        attacks = empathy_attacks.ATTACKS
        found |= {name: puppet_policy(name, attacks, EmpathyTalk) for name in attacks}
    elif domain == "tutoring":
        own = tutoring_attacks.ATTACKS
        found |= {name: puppet_policy(name, own, TutoringTalk) for name in own}
    return found
