"""A real small model on a real server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    pytest.importorskip("xllamacpp")
    gguf = os.environ.get("MAPO_GGUF")
    if not gguf:
        pytest.skip("MAPO_GGUF names no model (run: make test-llm)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("llm") / "server.log"
    command = [sys.executable, str(Path(__file__).parents[1] / "support" / "llm_server.py"), gguf, str(port)]
    with open(log, "wb") as errors:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        for line in server.stdout:
            if line.startswith("address "):
                break
        else:
            pytest.fail(f"the server did not start:\n{log.read_text(errors='replace')[-2000:]}")
        yield line.split()[1] + "/v1"
        server.kill()
        server.communicate()
