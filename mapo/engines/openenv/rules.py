"""The rules that rewards depend on: a server reports them, and a client compares them with its own."""

from __future__ import annotations

from collections.abc import Mapping

from mapo.errors import InputError
from mapo.runs.claim import digest
from mapo.sandbox.rollout import Rules

_OPTIONS = {"profile": "--profile", "reward": "--reward", "max_turns": "--max-turns"}


def rules_summary(rules: Rules) -> dict[str, str]:
    """Return what rewards depend on. The rubric's name, which is that of its domain, is followed by a hash of
    its content. How replies are sampled is left out: that is up to the client."""
    ending = rules.rubric.ending
    summary = {
        "rubric": f"{rules.rubric.name} {digest(rules.rubric.measure)}",
        "profile": rules.profile,
        "reward": rules.reward,
        "distance": rules.distance,
        "steps": rules.steps,
        "min_turns": str(ending.min_turns if rules.min_turns is None else rules.min_turns),
        "max_turns": str(ending.max_turns if rules.max_turns is None else rules.max_turns),
    }
    return {**summary, "gamma": f"{rules.gamma:g}"} if rules.reward == "potential" else summary


def check_rules(client: Mapping[str, str], server: Mapping[str, str], address: str) -> None:
    """Raise InputError if two summaries differ: the rewards would not be those that the client asks for."""
    if not server:
        raise InputError(
            "the server does not report its rules", where=address, fix="Update mapo where `mapo serve` runs"
        )
    different = [name for name in {**client, **server} if client.get(name) != server.get(name)]
    if not different:
        return
    values = "; ".join(
        f"{name[:20]}: {server.get(name, 'none')[:60]} there, {client.get(name, 'none')} here"
        for name in different[:8]
    )
    wanted = " ".join(f"{_OPTIONS[name]} {client[name]}" for name in different if name in _OPTIONS)
    fixes = [f"start `mapo serve` with {wanted}"] if wanted else []
    if "rubric" in different:
        fixes.append("use the same domain and version of its rubric on both sides")
    fixes.append("give RemoteSandbox rules with the server's values")
    fix = ", or ".join(fixes)
    raise InputError(
        f"the server's rules are not those of this trainer ({values})",
        where=address,
        fix=fix[0].upper() + fix[1:],
    )
