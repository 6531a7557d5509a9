"""Rates measured in a finished run, from its dialogues, ledgers and metrics.

Dialogues give turns and reply tokens; ledgers give calls, tokens and seconds per role; metrics give the
update times. Seconds are those under that run's load: a call that waited inside a busy server is a slow
call. The result can therefore estimate other shapes of a step, but the effect of more replicas only together
with the servers' own speeds (a rates file).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mapo.config import Config, Roles
from mapo.errors import InputError
from mapo.models.ledger import Ledger
from mapo.planning.demand import AROUND, POLICY
from mapo.planning.rates import EVERYONE, merged
from mapo.store import BadLine, RunDir, read_dialogues, read_steps
from mapo.types import Dialogue, StopReason

SUMMED = ("calls", "prompt", "cached", "completion", "seconds")


@dataclass(frozen=True, slots=True)
class Measured:
    """`rates` in the form of a rates file, as far as the run records them; `rollout_s`: the mean over its
    steps."""

    rates: dict[str, Any]
    rollout_s: float | None
    notes: tuple[str, ...]


def measure(run: Path, config: Config) -> Measured:
    """Return the rates of the run in that folder, for a training under `config`."""
    trained = list(_dialogues(RunDir(run).dialogues))
    everything = [*trained, *_dialogues(RunDir(run).evals)]
    if not trained:
        raise InputError(
            "no dialogues in it", where=str(run), fix="A run directory of mapo train or mapo eval empa"
        )
    spent = _spent(run)
    calls: dict[str, Any] = {POLICY: _policy(everything, spent)}
    if any(role in spent for role in AROUND):
        calls |= _around(everything, spent)
    steps = read_steps(RunDir(run).metrics)
    data: dict[str, Any] = {
        "servers": _servers(calls, config),
        "calls": calls,
        "dialogues": {"turns": [len(d.turns) for d in trained]},
    }
    updates = [step["update_s"] / step["dialogues"] for step in steps if step.get("dialogues")]
    notes = [f"measured in {run}: {len(everything)} dialogues; seconds per call are those under its load"]
    if updates:
        dialogues = config.rollout.scenarios * config.rollout.siblings
        data["update"] = {"seconds": dialogues * sum(updates) / len(updates)}
    if "seconds" not in calls[POLICY]:
        notes.append("the dialogues do not record how long the policy's replies took")
    return Measured(data, _mean([s["rollout_s"] for s in steps if "rollout_s" in s]), tuple(notes))


def over(measured: dict[str, Any], stated: dict[str, Any]) -> dict[str, Any]:
    """Merge stated rates over measured ones. A stated server named after a role takes that role's calls, and
    a stated speed replaces the seconds measured under load."""
    servers, own_calls = _table(stated, "servers"), _table(stated, "calls")
    calls = {}
    for role, call in measured["calls"].items():
        owner = "judge" if role == "start" else role
        name = owner if owner in servers else call.get("server", owner)
        name = _table(own_calls, role).get("server", name)
        known = "tokens_per_s" in _table(servers, name)
        calls[role] = {k: v for k, v in call.items() if k != "seconds" or not known} | {"server": name}
    kept = {key: value for key, value in measured.items() if key != "update" or "update" not in stated}
    return merged({**kept, "calls": calls}, stated)


def _table(data: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a table of `data`, or an empty one if it is missing or not a table."""
    found = data.get(key)
    return found if isinstance(found, dict) else {}


def _dialogues(folder: Path) -> Iterator[Dialogue]:
    """Yield each usable dialogue once, as it was last recorded."""
    found: dict[tuple[Path, str, str], Dialogue] = {}
    for path in sorted(folder.rglob("*.jsonl")):
        for item in read_dialogues(path):
            if not isinstance(item, BadLine) and item.usable and item.turns:
                found[path.parent, path.name.split(".")[0], item.id] = item
    yield from found.values()


def _spent(run: Path) -> dict[str, dict[str, float]]:
    """Return the totals of each role over all ledgers."""
    found: dict[str, dict[str, float]] = {}
    for path in RunDir(run).ledgers():
        for row in Ledger.load(path).as_rows():
            role = found.setdefault(row["role"], dict.fromkeys(SUMMED, 0.0))
            for key in SUMMED:
                role[key] += row[key]
    return {role: sums for role, sums in found.items() if sums["calls"]}


def _policy(dialogues: Sequence[Dialogue], spent: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return the policy's rates: from its calls or, if it was sampled locally, from the token ids and from
    the time that no other role took."""
    turns = sum(len(d.turns) for d in dialogues)
    if POLICY in spent:
        return _call(spent[POLICY], turns)
    replies = [turn.reply for d in dialogues for turn in d.turns]
    sampled = [len(reply.token_ids or ()) for reply in replies]
    output = sum(sampled) / turns or sum(len(reply.text) for reply in replies) / turns / 4
    contexts = [_contexts(d) for d in dialogues]
    later = [(c[-1] - c[0]) / (len(c) - 1) for c in contexts if len(c) > 1]
    whole = sum(map(sum, contexts))
    read = sum(len(reply.prompt_ids or ()) for reply in replies)
    found: dict[str, Any] = {
        "prompt": sum(c[0] for c in contexts) / len(contexts),
        "growth": max(0.0, _mean(later) or 0.0),
        "cached": 1 - read / whole if whole else 0.0,
        "output": max(output, 1.0),
    }
    rest = sum(d.seconds or 0.0 for d in dialogues) - sum(spent[role]["seconds"] for role in spent)
    return {**found, "seconds": rest / turns} if rest > 0 else found


def _contexts(dialogue: Dialogue) -> list[int]:
    """Return the number of tokens before each reply."""
    found, before = [], 0
    for turn in dialogue.turns:
        prompt, said = len(turn.reply.prompt_ids or ()), len(turn.reply.token_ids or ())
        found.append(prompt if turn.reply.whole_prompt else before + prompt)
        before = found[-1] + said
    return found


def _around(dialogues: Sequence[Dialogue], spent: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return the rates of the other roles. The judge is called every turn, director and user only where the
    dialogue goes on."""
    turns, talks = sum(len(d.turns) for d in dialogues), len(dialogues)
    ended = sum(d.ending is not None and d.ending.reason is StopReason.DIRECTOR for d in dialogues)
    asked = {
        d.scenario for d in dialogues if any(mark.evidence or mark.reason for mark in d.start_levels.values())
    }
    visits = {"judge": turns + len(asked), "director": turns - talks + ended, "user": turns - talks}
    found = {role: _call(spent[role], max(1, visits[role])) for role in AROUND if role in spent}
    if asked and "judge" in found:
        found["start"] = {**found["judge"], "again": 0.0}
    return found


def _call(spent: dict[str, float], visits: int) -> dict[str, Any]:
    calls = spent["calls"]
    return {
        "prompt": spent["prompt"] / calls,
        "cached": spent["cached"] / spent["prompt"] if spent["prompt"] else 0.0,
        "output": max(1.0, spent["completion"] / calls),
        "again": max(0.0, calls / visits - 1),
        "seconds": max(1e-6, spent["seconds"] / calls),
    }


def _servers(calls: dict[str, Any], config: Config) -> dict[str, Any]:
    """Return one server per address, with the concurrent calls that the config allows, and name each call's
    server in `calls`."""
    found: dict[str, Any] = {POLICY: {"streams": config.run.processes * config.rollout.at_once}}
    names = _names(config.roles)
    for role in calls:
        if role != POLICY:
            name = names["judge" if role == "start" else role]
            calls[role]["server"] = name
            found[name] = {"streams": config.roles.requests}
    return found


def _names(roles: Roles) -> dict[str, str]:
    """Return the server of each role: `everyone` if all share an address, else the first role that has it."""
    own = {"judge": next(iter(roles.judges), roles.judge), "director": roles.director, "user": roles.user}
    urls = {
        role: (given.base_url if given else None) or roles.everyone.base_url for role, given in own.items()
    }
    if len(set(urls.values())) == 1:
        return dict.fromkeys(urls, EVERYONE)
    first: dict[str | None, str] = {}
    return {role: first.setdefault(url, role) for role, url in urls.items()}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
