"""What the Configuration tab shows: how a run was started, its settings, and how its judge was called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mapo.text import printable

LONGEST = 400
"""Characters of a value that are shown."""
ENTRIES = 400
"""Settings per section that are shown."""
_ROLES = ("judge", "user", "director")
_SAMPLING = ("temperature", "top_p", "max_tokens")
_APART = {"command", "git_commit", "versions", "settings", "scenarios"}


def start_of(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return command line, git commit and versions. Runs of earlier versions lack some of them."""
    versions = manifest.get("versions")
    rows = [
        ("Command", _text(manifest.get("command"))),
        ("Git commit", _text(manifest.get("git_commit"))),
        *((f"{name} version", value) for name, value in _flat(versions, 1)),
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
    """Return who judged and how: from the manifest of an evaluation, or the config of a training run."""
    cast = manifest.get("cast")
    if isinstance(cast, str):
        cast = dict.fromkeys(_ROLES, cast)
    players = cast if isinstance(cast, dict) else {}
    roles = config.get("roles")
    rows = [(role.capitalize(), _text(players.get(role))) for role in _ROLES]
    rows += [(f"{role.capitalize()} address", v) for role, v in _flat(manifest.get("addresses"), 1)]
    rows += [(f"{role.capitalize()} weights", v) for role, v in _flat(manifest.get("weights"), 1)]
    rows += [(f"Role setting {name}", value) for name, value in _flat(roles, 3)]
    names = {
        "rubric": "Rubric",
        "profile": "Rules",
        "reward": "Reward",
        "repeats": "Dialogues per scenario",
        "min_turns": "Fewest turns",
        "max_turns": "Most turns",
        "sampling": "Sampling of the roles",
        "start_levels": "Given start levels",
        **{f"{key}": f"Policy {key}" for key in _SAMPLING},
    }
    if players:
        rows += [(title, _text(manifest.get(key))) for key, title in names.items()]
    return [(printable(name)[:120], value) for name, value in rows if value]


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
    if isinstance(value, bool):
        return "true" if value else "false"
    text = ", ".join(map(str, value[:50])) if isinstance(value, list) else str(value)
    text = printable(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
