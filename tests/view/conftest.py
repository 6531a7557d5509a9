"""A folder of runs, an index of it in a folder of its own, and a browser-like client."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from mapo.view.app import make_app
from mapo.view.index.index import Index
from support import view_runs


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def index(root, tmp_path):
    made = Index(root, tmp_path / "cache")
    yield made
    made.close()


@pytest.fixture
def client(index):
    with TestClient(make_app(index), base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as made:
        yield made


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A client over one of everything; nobody changes it."""
    folder = tmp_path_factory.mktemp("shown")
    view_runs.training(folder / "runs")
    view_runs.training(folder / "runs", "second", method="grpo", done=False)
    view_runs.benchmark(folder / "runs")
    view_runs.questions(folder / "runs")
    index = Index(folder / "runs", folder / "cache")
    index.refresh()
    with TestClient(make_app(index), base_url="http://127.0.0.1:8765") as made:
        yield made
    index.close()
