"""One small model and its recordings for all tests of roles."""

from __future__ import annotations

import pytest

from mapo.models.chat import Sampling
from support.role_model import role_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    return role_model(tmp_path_factory.mktemp("role") / "model")


@pytest.fixture(autouse=True)
def short_lines(monkeypatch):
    """A random model never ends a line by itself."""
    monkeypatch.setattr("mapo.roles.replay.SAMPLING", Sampling(max_tokens=8))
