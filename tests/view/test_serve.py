"""The command, the server and the thread that keeps the index fresh."""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

import pytest

from mapo import listening
from mapo.errors import InputError, StoreError
from mapo.view import serve as serving
from mapo.view.app import plotly_file
from support import view_runs


def test_only_loopback_goes_without_a_token(monkeypatch):
    monkeypatch.delenv("MAPO_VIEW_TOKEN", raising=False)
    assert [serving.token_for(host) for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9")] == [""] * 4
    one, other = serving.token_for("0.0.0.0"), serving.token_for("box.example")
    assert len(one) >= 30 and one != other
    monkeypatch.setenv("MAPO_VIEW_TOKEN", "a-token-of-my-own")
    assert serving.token_for("0.0.0.0") == "a-token-of-my-own"
    for odd in ("short", "has a space in it somewhere", "ümlaut-umlaut-umlaut"):
        monkeypatch.setenv("MAPO_VIEW_TOKEN", odd)
        with pytest.raises(InputError, match="MAPO_VIEW_TOKEN"):
            serving.token_for("0.0.0.0")


def test_the_index_is_kept_fresh_and_errors_do_not_end_it(index, root, monkeypatch):
    monkeypatch.setattr(serving, "EVERY", 0.01)
    told, seen = [], threading.Event()
    real = index.refresh

    def refresh(stop):
        if not told:
            raise OSError("the disk sneezed")
        real(stop)
        if index.runs:
            seen.set()

    monkeypatch.setattr(index, "refresh", refresh)
    with serving.kept_fresh(index, told.append):
        view_runs.training(root, steps=1)
        assert seen.wait(30)
    assert [str(error) for error in told] == ["the disk sneezed"]


def test_a_port_that_is_taken_is_said(tmp_path):
    taken = listening.listening("127.0.0.1", 0)
    with pytest.raises(
        StoreError, match=r"port \d+: the server cannot listen there: address already in use\. Choose"
    ):
        serving.serve(tmp_path, host="127.0.0.1", port=taken.getsockname()[1], say=lambda _: None)
    taken.close()


def test_a_host_that_is_unknown_is_said():
    with pytest.raises(StoreError, match="cannot listen there: the host name cannot be resolved. Choose"):
        listening.listening("no such host", 0)


def test_serve_says_where_and_cleans_up(tmp_path, monkeypatch):
    import uvicorn

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MAPO_VIEW_TOKEN", raising=False)
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    monkeypatch.setattr(listening, "_outgoing_address", lambda family: "10.1.2.3")
    said = []
    serving.serve(tmp_path, host="0.0.0.0", port=0, say=said.append)
    assert said[2] == f"{tmp_path} holds no runs yet; the page shows new ones as they appear."
    for name, line in zip(("box", r"10\.1\.2\.3"), said[:2], strict=True):
        assert re.fullmatch(rf"http://{name}:\d+/\?token=[\w-]{{32}}   \(press Ctrl-C to stop\)", line)
    serving.serve(tmp_path, host="::1", port=0, say=said.append)
    assert re.fullmatch(r"http://\[::1\]:\d+/   \(press Ctrl-C to stop\)", said[3])


def test_an_address_that_can_be_opened_is_said(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    monkeypatch.setattr(listening, "_outgoing_address", lambda family: "")
    for host, shown in (("0.0.0.0", "box"), ("::", "box"), ("10.0.0.9", "10.0.0.9"), ("box.example",) * 2):
        assert listening.addresses_of(host) == [shown]


def test_the_way_out_is_an_address_or_nothing(monkeypatch):
    found = listening._outgoing_address(socket.AF_INET)
    assert found == "" or ipaddress.ip_address(found)

    def refused(*_):
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", refused)
    assert listening._outgoing_address(socket.AF_INET) == ""


def test_the_command_serves_until_interrupted(root, tmp_path):
    view_runs.training(root, steps=1)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen(
        [sys.executable, "-m", "mapo", "view", str(root), "--port", "0"],
        env=env,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        line = process.stderr.readline()
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+/", line)[0]
            with urllib.request.urlopen(address, timeout=60) as answer:
                assert answer.status == 200 and b"<h1>Runs</h1>" in answer.read()
        finally:
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate(timeout=60)
    assert process.returncode in (0, 130, -signal.SIGINT) and "Traceback" not in rest
    assert sorted(p.name for p in (root / "first").iterdir()) == [
        "config.toml", "dialogues", "eval", "manifest.json", "metrics.jsonl", "summary.json"
    ]  # fmt: skip


def test_the_command_refuses_what_it_cannot_do(tmp_path, monkeypatch):
    import importlib.util

    from mapo.cli.view import view

    with pytest.raises(InputError, match="folder does not exist"):
        view(tmp_path / "none")
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(InputError, match=f"a file, not a folder.*mapo view {tmp_path}$"):
        view(tmp_path / "metrics.jsonl")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="mapo-rl\\[view\\]"):
        view(tmp_path)
    with pytest.raises(InputError, match="plotly is not installed"):
        plotly_file()


def test_the_command_hands_over_to_the_server(tmp_path, monkeypatch):
    from mapo.cli.view import view

    asked = {}
    monkeypatch.setattr(serving, "serve", lambda root, **kw: asked.update(kw, root=root))
    view(tmp_path, port=1234, host="127.0.0.1", allow_host=["runs.example"])
    assert asked["root"] == tmp_path and asked["port"] == 1234 and asked["names"] == ["runs.example"]
