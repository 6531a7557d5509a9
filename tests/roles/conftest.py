"""One small model and its recordings for all tests of roles."""

from __future__ import annotations

import pytest

from support.role_model import role_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    return role_model(tmp_path_factory.mktemp("role") / "model")
