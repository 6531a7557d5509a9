"""Rates measured in a finished run, from its dialogues, ledgers and metrics.

Dialogues give turns and reply tokens; ledgers give calls, tokens and seconds per role; metrics give the
update times. Seconds are measured under that run's load and include queueing inside a busy server. The result
can therefore estimate other shapes of a step, but estimating the effect of more replicas also needs the
servers' speeds (a rates file).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mapo.config import Config, Roles
from mapo.errors import InputError
from mapo.models.ledger import Ledger
from mapo.planning.demand import AGENT_ROLES, POLICY
from mapo.planning.rates import EVERYONE, merged
from mapo.store import BadLine, RunDir, read_dialogues, read_steps
from mapo.types import Dialogue, StopReason

LEDGER_COUNTS = ("calls", "prompt", "cached", "completion", "seconds")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run recorded: `rates` in the form of a rates file, possibly incomplete, and `rollout_s`, the
    mean rollout time of its steps."""

    rates: dict[str, Any]
    rollout_s: float | None
    notes: tuple[str, ...]


def measure(run: Path, config: Config) -> Measured:
    """Return the rates measured in the run directory `run`, for training with `config`."""
    training_dialogues = list(_dialogues(RunDir(run).dialogues))
    all_dialogues = [*training_dialogues, *_dialogues(RunDir(run).evals)]
    if not training_dialogues:
        raise InputError(
            "there are no dialogues in it",
            where=str(run),
            fix="Give a run directory of mapo train or mapo eval empa",
        )
    totals = _ledger_totals(run)
    calls: dict[str, Any] = {POLICY: _policy_rates(all_dialogues, totals)}
    if any(role in totals for role in AGENT_ROLES):
        calls |= _agent_rates(all_dialogues, totals)
    steps = read_steps(RunDir(run).metrics)
    data: dict[str, Any] = {
        "servers": _servers(calls, config),
        "calls": calls,
        "dialogues": {"turns": [len(d.turns) for d in training_dialogues]},
    }
    updates = [step["update_s"] / step["dialogues"] for step in steps if step.get("dialogues")]
    notes = [f"measured in {run}: {len(all_dialogues)} dialogues; seconds per call are those under its load"]
    if updates:
        dialogues = config.rollout.scenarios * config.rollout.siblings
        data["update"] = {"seconds": dialogues * sum(updates) / len(updates)}
    if "seconds" not in calls[POLICY]:
        notes.append("the dialogues do not record how long the policy's replies took")
    return Measured(data, _mean([s["rollout_s"] for s in steps if "rollout_s" in s]), tuple(notes))


def merge_over(measured: dict[str, Any], stated: dict[str, Any]) -> dict[str, Any]:
    """Merge stated rates over measured ones. A stated server named after a role takes that role's calls, and
    a stated speed replaces the seconds measured under load."""
    servers, stated_calls = _table(stated, "servers"), _table(stated, "calls")
    calls = {}
    for role, call in measured["calls"].items():
        owner = "judge" if role == "start" else role
        name = owner if owner in servers else call.get("server", owner)
        name = _table(stated_calls, role).get("server", name)
        has_speed = "tokens_per_s" in _table(servers, name)
        calls[role] = {k: v for k, v in call.items() if k != "seconds" or not has_speed} | {"server": name}
    base = {key: value for key, value in measured.items() if key != "update" or "update" not in stated}
    return merged({**base, "calls": calls}, stated)


def _table(data: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a table of `data`, or an empty one if it is missing or not a table."""
    table = data.get(key)
    return table if isinstance(table, dict) else {}


def _dialogues(folder: Path) -> Iterator[Dialogue]:
    """Yield each usable dialogue once, in its last recorded version."""
    dialogues: dict[tuple[Path, str, str], Dialogue] = {}
    for path in sorted(folder.rglob("*.jsonl")):
        for item in read_dialogues(path):
            if not isinstance(item, BadLine) and item.usable and item.turns:
                dialogues[path.parent, path.name.split(".")[0], item.id] = item
    yield from dialogues.values()


def _ledger_totals(run: Path) -> dict[str, dict[str, float]]:
    """Return the totals of each role over all ledgers."""
    totals: dict[str, dict[str, float]] = {}
    for path in RunDir(run).ledgers():
        for row in Ledger.load(path).as_rows():
            role = totals.setdefault(row["role"], dict.fromkeys(LEDGER_COUNTS, 0.0))
            for key in LEDGER_COUNTS:
                role[key] += row[key]
    return {role: sums for role, sums in totals.items() if sums["calls"]}


def _policy_rates(dialogues: Sequence[Dialogue], totals: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return the policy's rates: from its calls or, if it was sampled locally, from the token ids and from
    the time that no other role took."""
    turns = sum(len(d.turns) for d in dialogues)
    if POLICY in totals:
        return _call_rates(totals[POLICY], turns)
    replies = [turn.reply for d in dialogues for turn in d.turns]
    sampled = [len(reply.token_ids or ()) for reply in replies]
    output = sum(sampled) / turns or sum(len(reply.text) for reply in replies) / turns / 4
    contexts = [_contexts(d) for d in dialogues]
    later = [(c[-1] - c[0]) / (len(c) - 1) for c in contexts if len(c) > 1]
    context_tokens = sum(map(sum, contexts))
    prefilled = sum(len(reply.prompt_ids or ()) for reply in replies)
    rates: dict[str, Any] = {
        "prompt": sum(c[0] for c in contexts) / len(contexts),
        "growth": max(0.0, _mean(later) or 0.0),
        "cached": 1 - prefilled / context_tokens if context_tokens else 0.0,
        "output": max(output, 1.0),
    }
    rest = sum(d.seconds or 0.0 for d in dialogues) - sum(sums["seconds"] for sums in totals.values())
    return {**rates, "seconds": rest / turns} if rest > 0 else rates


def _contexts(dialogue: Dialogue) -> list[int]:
    """Return the number of tokens before each reply."""
    lengths, before = [], 0
    for turn in dialogue.turns:
        prompt, reply = len(turn.reply.prompt_ids or ()), len(turn.reply.token_ids or ())
        lengths.append(prompt if turn.reply.whole_prompt else before + prompt)
        before = lengths[-1] + reply
    return lengths


def _agent_rates(dialogues: Sequence[Dialogue], totals: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return the rates of the other roles. The judge is called every turn, director and user only where the
    dialogue continues."""
    turns, n = sum(len(d.turns) for d in dialogues), len(dialogues)
    reasons = Counter(d.ending.reason for d in dialogues if d.ending is not None)
    left = reasons[StopReason.USER]
    directed = turns - n + reasons[StopReason.DIRECTOR] + left
    start_forms = {
        d.scenario for d in dialogues if any(mark.evidence or mark.reason for mark in d.start_levels.values())
    }
    needed = {"judge": turns + len(start_forms), "director": directed, "user": turns - n + left}
    rates = {role: _call_rates(totals[role], max(1, needed[role])) for role in AGENT_ROLES if role in totals}
    if start_forms and "judge" in rates:
        rates["start"] = {**rates["judge"], "again": 0.0}
    return rates


def _call_rates(totals: dict[str, float], needed: int) -> dict[str, Any]:
    """Return the averages per call. Calls beyond the `needed` ones were repetitions."""
    calls = totals["calls"]
    return {
        "prompt": totals["prompt"] / calls,
        "cached": totals["cached"] / totals["prompt"] if totals["prompt"] else 0.0,
        "output": max(1.0, totals["completion"] / calls),
        "again": max(0.0, calls / needed - 1),
        "seconds": max(1e-6, totals["seconds"] / calls),
    }


def _servers(calls: dict[str, Any], config: Config) -> dict[str, Any]:
    """Return one server per address, with the concurrent calls that the config allows, and set each call's
    server in `calls`."""
    servers: dict[str, Any] = {POLICY: {"streams": config.run.processes * config.rollout.at_once}}
    names = _names(config.roles)
    for role in calls:
        if role != POLICY:
            name = names["judge" if role == "start" else role]
            calls[role]["server"] = name
            servers[name] = {"streams": config.roles.requests}
    return servers


def _names(roles: Roles) -> dict[str, str]:
    """Return the server of each role: `everyone` if all share an address, else the first role that has it."""
    models = {"judge": next(iter(roles.judges), roles.judge), "director": roles.director, "user": roles.user}
    urls = {
        role: (model.base_url if model else None) or roles.everyone.base_url for role, model in models.items()
    }
    if len(set(urls.values())) == 1:
        return dict.fromkeys(urls, EVERYONE)
    first: dict[str | None, str] = {}
    return {role: first.setdefault(url, role) for role, url in urls.items()}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
