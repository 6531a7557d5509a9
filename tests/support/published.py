"""Published data. It lies outside the repository; tests that need it skip themselves without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("MAPO_SHARED", REPO.parent / "shared"))


def published(name: str) -> Path:
    """Return a file of the published EMPA data, or skip the test and say what is missing."""
    path = SHARED / "data" / "empa" / name
    if not path.exists():
        pytest.skip(f"published data absent: {path} (set MAPO_SHARED)")
    return path
