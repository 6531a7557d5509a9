"""The models that come with the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mapo.domain_folders import SHIPPED_JUDGE

_HERE = Path(__file__).parent
POCKET = _HERE / "pocket"
POCKET_JUDGE = _HERE / "pocket_judge"
SHIPPED = {
    "pocket": POCKET,
    SHIPPED_JUDGE: POCKET_JUDGE,
}
"""The folders of shipped models by name."""


@dataclass(frozen=True, slots=True)
class ReplyDefaults:
    """How a policy replies unless options say otherwise."""

    temperature: float = 1.0
    max_tokens: int = 512
    system: bool = True
    """Whether it gets a system prompt."""


_SHIPPED_REPLIES = {"pocket": ReplyDefaults(temperature=0.4, max_tokens=32, system=False)}


def local_folder(source: str) -> Path:
    """Return the folder that `source` names: a shipped model's, or a path."""
    return SHIPPED.get(source) or Path(source).expanduser()


def reply_defaults(source: str | None) -> ReplyDefaults:
    """Return how a policy replies by default; `source` is that of a local model. The shipped one learned
    short replies without a system prompt."""
    return _SHIPPED_REPLIES.get(source or "", ReplyDefaults())
