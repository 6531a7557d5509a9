"""One small model for all tests of roles."""

from __future__ import annotations

import pytest

from mapo.models.chat import Sampling


@pytest.fixture(scope="session")
def model_folder(cast_model):
    return cast_model


@pytest.fixture(autouse=True)
def short_lines(monkeypatch):
    """A random model never ends a line by itself."""
    monkeypatch.setattr("mapo.roles.replay.SAMPLING", Sampling(max_tokens=8))
