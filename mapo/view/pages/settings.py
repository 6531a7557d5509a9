"""What the Configuration tab shows: how a run was started, its settings, and how its judge was called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mapo.sandbox.judge import MAX_TOKENS
from mapo.text import printable

LONGEST = 400
"""Characters of a value that are shown."""
ENTRIES = 400
"""Settings per section that are shown."""
_ROLES = ("judge", "user", "director")
_EVALUATION = {
    "rubric": "Rubric",
    "profile": "Scoring rules",
    "reward": "Reward",
    "repeats": "Dialogues per scenario",
    "min_turns": "Minimum turns",
    "max_turns": "Turn limit",
    "start_levels": "Known start levels",
    "temperature": "Policy temperature",
    "top_p": "Policy top-p",
    "max_tokens": "Policy max tokens",
    "body": "Policy body fields",
}
"""Settings of an evaluation in its manifest, and their labels."""
_APART = {"command", "git_commit", "versions", "settings", "scenarios"}


def start_of(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return command line, git commit and versions. Runs of earlier versions lack some of them."""
    versions = ", ".join(f"{name} {value}" for name, value in _flat(manifest.get("versions"), 1))
    rows = [
        ("Command", _text(manifest.get("command"))),
        ("Git commit", _text(manifest.get("git_commit"))),
        ("Versions", _text(versions)),
        ("Engine", _text(manifest.get("engine"))),
        ("Decoding", _text(manifest.get("decoding"))),
    ]
    return [(printable(name)[:80], value) for name, value in rows if value]


def settings_of(data: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return sections with their settings; settings outside a section come first."""
    top = [(str(k), v) for k, v in data.items() if not isinstance(v, dict) and k not in _APART]
    sections = [("", [(printable(k)[:120], _text(v)) for k, v in top[:ENTRIES]])] if top else []
    for name, section in list(data.items())[:100]:
        if isinstance(section, dict) and name not in _APART and section:
            sections.append((printable(str(name))[:80], _flat(section, 3)[:ENTRIES]))
    return sections


def judge_settings(manifest: Mapping[str, Any], config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the players of judge, user and director and their settings.

    They come from the manifest of an evaluation, an audit or a swap, or from the config of a training run.
    Empty for runs without a judge.
    """
    cast = manifest.get("cast")
    if isinstance(cast, str):
        cast = dict.fromkeys(_ROLES, cast)
    players = cast if isinstance(cast, dict) else {}
    rows = [(role.capitalize(), _text(players.get(role))) for role in _ROLES]
    judges = manifest.get("judges") or (not players and manifest.get("judge"))
    rows.append(
        ("Judges" if isinstance(judges, list) and len(judges) > 1 else "Judge", _text(judges or None))
    )
    if any(value for _, value in rows):
        rows += [(_of_role(role, "address"), v) for role, v in _flat(manifest.get("addresses"), 1)]
        rows += [(_of_role(role, "weights"), v) for role, v in _flat(manifest.get("weights"), 1)]
    if players:
        rows.append(("Judge sampling", _judge_sampling(_text(players.get("judge")))))
        rows += [(title, _text(manifest.get(key))) for key, title in _EVALUATION.items()]
    rows += [(f"roles.{name}", value) for name, value in _flat(config.get("roles"), 3)]
    return [(printable(name)[:120], value) for name, value in rows if value]


def _judge_sampling(judge: str) -> str:
    """Return the parameters of judgements. A manifest records other values as part of the judge's name."""
    if judge in ("", "scripted") or "temperature" in judge or "max_tokens" in judge:
        return ""
    return f"temperature 0, max tokens {MAX_TOKENS} (defaults)"


def _of_role(role: str, what: str) -> str:
    """Return the label of a role's setting; an audit has the names of judges in place of roles."""
    if role in (*_ROLES, "model"):
        return f"{'Policy' if role == 'model' else role.capitalize()} {what}"
    return f"{what.capitalize()} of {role}"


def _flat(data: object, depth: int, prefix: str = "") -> list[tuple[str, str]]:
    """Return nested settings as ("section.key", value)."""
    if not isinstance(data, dict):
        return []
    rows: list[tuple[str, str]] = []
    for key, value in list(data.items())[:ENTRIES]:
        name = printable(f"{prefix}{key}")[:120]
        if isinstance(value, dict) and depth > 1:
            rows += _flat(value, depth - 1, f"{name}.")
        else:
            rows.append((name, _text(value)))
    return rows


def _text(value: object) -> str:
    if value is None:
        return ""
    if value in ([], {}):
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = ", ".join(map(str, value[:50])) if isinstance(value, list) else str(value)
    text = printable(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
