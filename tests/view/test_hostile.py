"""What anybody could put into a record, a name or a request: shown as text, or refused."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from mapo import Rubric
from mapo.types import Direction, Mark
from mapo.view.app import make_app
from mapo.view.index.files import key_of, name_of
from support import view_runs

EMPATHY = Rubric.load("empathy")
EVIL = (
    "</script><script>alert(1)</script><svg onload=alert(2)><img src=x onerror=alert(3)>"
    "\"'><a href=javascript:alert(4)>"
)


def hostile_talk(text: str, name: str = "evil_1"):
    said = view_runs.talk(EMPATHY, name, step=1)
    marks = {
        k: replace(m, progress=Mark(1, evidence=text, reason=text)) for k, m in said.turns[0].levels.items()
    }
    turn = replace(
        said.turns[0],
        user=text,
        reply=replace(said.turns[0].reply, text=text),
        levels=marks,
        direction=Direction(text, text, text),
    )
    return replace(
        said,
        turns=(turn, *said.turns[1:]),
        system=text,
        model=text,
        scenario=text,
        group="g",
        tags={"category": text, text: text},
        error=None,
    )


def pages(client, file: str = "dialogues:step_00001.jsonl", line: int = 7):
    one = f"/run/first/d/{file}/{line}"
    for path in (
        "/",
        "/run/first",
        "/dialogues",
        f"/dialogues?q=alert&scenario={EVIL}",
        one,
        "/benchmarks",
        "/compare",
        f"/compare?a={EVIL}&b={EVIL}",
        "/overlay?run=first",
        f"/?q={EVIL}&state={EVIL}",
        f"/dialogues?run={EVIL}",
        f"/run/{EVIL.replace('/', '')}",
    ):
        yield path, client.get(path)


def test_markup_is_text_everywhere(index, root, client):
    run = view_runs.training(root, steps=1)
    said = [hostile_talk(EVIL), hostile_talk(EVIL, EVIL + "_2")]
    view_runs.write_lines(run / "dialogues" / "step_00001.jsonl", said)
    view_runs.write_lines(run / "eval" / "before" / "dialogues.jsonl", said)
    view_runs.write_lines(run / "eval" / "after" / "dialogues.jsonl", said)
    (run / "stopped.txt").write_text(EVIL)
    (run / "notes<script>").write_text("x")
    index.refresh()
    for path, answer in pages(client):
        assert answer.status_code in (200, 404), path
        assert "<script>alert" not in answer.text and "<svg onload" not in answer.text, path
        assert "<img" not in answer.text and 'href="javascript' not in answer.text, path
        for script in re.findall(r"<script[^>]*>(.*?)</script>", answer.text, re.S):
            assert script == "", path  # every script is a file of our own
        assert not re.search(r"<[^>]+\son\w+=", re.sub(r'"[^"]*"', '""', answer.text)), path
        assert not re.search(r"<[^>]+\sstyle=", re.sub(r'"[^"]*"', '""', answer.text)), path
    assert "&lt;svg onload" in client.get("/run/first/d/dialogues:step_00001.jsonl/7").text


def test_a_whole_text_is_plain(index, root, client):
    run = view_runs.training(root, steps=1)
    view_runs.write_lines(run / "dialogues" / "step_00001.jsonl", [hostile_talk(EVIL * 1000)])
    index.refresh()
    page = client.get("/run/first/d/dialogues:step_00001.jsonl/7").text
    assert "more characters" in page and len(page) < 200_000
    answer = client.get("/run/first/d/dialogues:step_00001.jsonl/7/text/1/reply")
    assert answer.text == EVIL * 1000 and answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_long_turns_do_not_make_endless_pages(index, root, client):
    run = view_runs.training(root, steps=1)
    view_runs.write_lines(run / "dialogues" / "step_00001.jsonl", [hostile_talk("好" * 100_000)])
    index.refresh()
    for path, answer in pages(client):
        assert len(answer.content) < 400_000, path


def test_text_from_right_to_left_stays_in_its_place(index, root, client):
    run = view_runs.training(root, steps=1)
    view_runs.write_lines(
        run / "dialogues" / "step_00001.jsonl", [hostile_talk("abc \u202e gnp.exe \u2066 \u200f שלום")]
    )
    index.refresh()
    page = client.get("/run/first/d/dialogues:step_00001.jsonl/7").text
    body = page.partition("<main")[2]
    for at in (m.start() for m in re.finditer("\u202e", body)):
        before = body[:at]
        opening = before[before.rindex("<") :]
        assert 'dir="auto"' in opening or opening.startswith("<bdi"), opening


def test_letters_that_are_no_letters(index, root, client):
    """Lone surrogates come out of JSON escapes; they are refused as records or shown as marks."""
    run = view_runs.training(root, steps=1)
    line = (run / "dialogues" / "step_00001.jsonl").read_bytes().splitlines()[0]
    with open(run / "dialogues" / "step_00001.jsonl", "ab") as file:
        file.write(line.replace(b"line 1 of", b"\\ud800 \\u0000 of") + b"\n")
    index.refresh()
    assert client.get("/run/first").status_code == 200
    assert client.get("/run/first/d/dialogues:step_00001.jsonl/7").status_code in (200, 404)
    assert client.get("/dialogues", params={"q": "of"}).status_code == 200
    assert client.get("/dialogues?q=%ff%fe%00&scenario=%ed%a0%80").status_code == 200


# ---- names and paths


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "x..",
        "x:y~z",
        "名字",
        "a%2e%2e",
        "<b>",
        "q?x=1#y",
        "\u202ename",
        "back\\slash",
        "~",
        "semi;colon&amp",
    ],
)
def test_odd_names_of_runs_have_addresses(index, root, client, name):
    view_runs.training(root, name, steps=1)
    index.refresh()
    (link,) = set(re.findall(r'href="(/run/[^"?]+)"', client.get("/").text))
    answer = client.get(link)
    assert answer.status_code == 200 and re.fullmatch(r"/run/[\w.:~-]+", link)
    assert client.get(f"{link}/d/dialogues:step_00001.jsonl/1").status_code == 200


def test_names_that_are_no_utf8(index, root, client):
    view_runs.training(root / os.fsdecode(b"caf\xe9"), os.fsdecode(b"in\xffner"), steps=1)
    index.refresh()
    assert "caf\ufffd/in\ufffdner" in client.get("/").text
    assert client.get("/run/caf~E9:in~FFner/d/dialogues:step_00001.jsonl/1").status_code == 200
    assert name_of(os.fsdecode(b"\xff")) == "\ufffd" and key_of("a/b:c") == "a:b~3Ac"


@pytest.mark.parametrize(
    "path",
    [
        "/run/..:..:etc",
        "/run/%2e%2e%2fetc",
        "/run/first/d/..:secret.jsonl/1",
        "/run/first/d/..%2f..%2fsecret.jsonl/1",
        "/static/..%2fapp.py",
        "/static/%2e%2e%2fapp.py",
        "/static/..\\app.py",
        "/run/first/d/~2E~2E:secret.jsonl/1",
        "/static//etc/passwd",
    ],
)
def test_paths_lead_nowhere_else(index, root, client, path):
    view_runs.training(root, steps=1)
    view_runs.write_lines(root.parent / "secret.jsonl", [view_runs.talk(EMPATHY, "secret_1")])
    index.refresh()
    answer = client.get(path, follow_redirects=False)
    assert answer.status_code == 404 and "secret_1" not in answer.text and "root:" not in answer.text


def test_links_are_named_and_never_followed(index, root, client):
    outside = view_runs.training(root.parent / "outside", steps=1)
    run = view_runs.training(root, steps=1)
    (root / "linked").symlink_to(outside)
    (run / "dialogues" / "step_00009.jsonl").symlink_to(outside / "dialogues" / "step_00001.jsonl")
    (run / "eval" / "stolen").symlink_to(outside / "dialogues")
    (run / "manifest.json").unlink()
    (run / "manifest.json").symlink_to("/etc/hostname")
    (run / "checkpoints").symlink_to(outside)
    index.refresh()
    assert set(index.runs) == {"first"}
    page = client.get("/run/first").text
    assert "Links, not followed" in page and "eval/stolen" in page and "step_00009" in page
    with index.reading() as db:
        assert db.execute("SELECT count(*) FROM dialogues").fetchone()[0] == 15
    (run / "dialogues" / "step_00001.jsonl").rename(run / "moved")
    (run / "dialogues" / "step_00001.jsonl").symlink_to(run / "moved")
    assert client.get("/run/first/d/dialogues:step_00001.jsonl/1").status_code == 409


def test_a_tokenizer_outside_the_run_is_not_read(index, root, client):
    run = view_runs.training(root, steps=1)
    (root.parent / "tok").mkdir()
    (root.parent / "tok" / "tokenizer.json").write_text("{}")
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step_00001").symlink_to(root.parent / "tok")
    index.refresh()
    assert (
        client.get("/api/run/first/d/dialogues:step_00001.jsonl/1/tokens/1").json()["tokens"][0]["text"]
        == "#5"
    )


def test_pipes_devices_and_locked_files_hold_nobody_up(index, root, client):
    run = view_runs.training(root, steps=1)
    os.mkfifo(run / "rubric.toml")
    os.mkfifo(run / "dialogues" / "pipe.jsonl")
    (run / "summary.json").unlink()
    os.mkfifo(run / "summary.json")
    (run / "result.json").mkdir()
    (run / "dialogues" / "folder.jsonl").mkdir()
    index.refresh()
    assert client.get("/run/first").status_code == 200


def test_a_file_that_turned_into_something_else_is_a_problem(index, root, client, monkeypatch):
    from mapo.view.index import index as indexing

    view_runs.training(root, steps=1)

    def refused(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(indexing, "open_plain", refused)
    index.refresh()
    assert "cannot be read (Permission denied)" in client.get("/run/first").text


# ---- requests


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "[::1]:8765", "192.168.1.5:80"])
def test_hosts_that_are_this_machine(shown, host):
    assert shown.get("/api/version", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8765",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::1",
        "a b",
        "127.0.0.1:port",
    ],
)
def test_a_foreign_host_is_refused(shown, host):
    answer = shown.get("/", headers={"host": host})
    assert answer.status_code == 421 and "first" not in answer.text


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://127.0.0.1:9999",
        "http://localhost:8765",
        "http://[::",
        "http://[",
    ],
)
def test_a_foreign_origin_is_refused(shown, origin):
    assert shown.get("/api/version", headers={"origin": origin}).status_code == 403


def test_our_own_origin_and_a_link_from_elsewhere_are_welcome(shown):
    assert shown.get("/api/version", headers={"origin": "http://127.0.0.1:8765"}).status_code == 200
    cross = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert shown.get("/", headers=cross).status_code == 200
    assert (
        shown.get("/api/figures?run=first", headers={**cross, "sec-fetch-mode": "no-cors"}).status_code == 403
    )


def test_nothing_can_be_written(shown):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert shown.request(method, "/").status_code == 405


def test_the_policy_allows_no_inline_script_and_nothing_from_elsewhere(shown):
    for path in ("/", "/nothing", "/static/page.js", "/api/version"):
        headers = shown.get(path).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'" and policy["script-src"] == "'self'"
        assert "unsafe" not in policy["style-src"] and policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'" and headers["x-content-type-options"] == "nosniff"
    assert shown.get("/").headers["cache-control"] == "no-store"


def test_a_token_is_asked_for_where_there_is_one(index, root):
    view_runs.training(root, steps=1)
    index.refresh()
    app = make_app(index, names=["box"], token="x" * 20)
    with TestClient(app, base_url="http://box:8765") as client:
        for query in ("", "?token=wrong", "?token=%ff", "?token="):
            assert client.get(f"/{query}").status_code == 401
        assert client.get("/", headers={"authorization": f"Bearer {'x' * 20}"}).status_code == 200
        assert client.get("/", headers={"authorization": "Bearer no"}).status_code == 401
        assert client.get("/", headers={"cookie": "mapo_view=wrong; =;;"}).status_code == 401
        answer = client.get(f"http://box:8765//evil.example/x?token={'x' * 20}&a=1", follow_redirects=False)
        assert answer.headers["location"] == "/evil.example/x?a=1"
        client.cookies.clear()
        answer = client.get(f"/?token={'x' * 20}", follow_redirects=False)
        assert answer.status_code == 303 and answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=lax" in cookie and cookie.startswith("mapo_view_8765=")
        assert client.get("/").status_code == 200
        assert client.get("/", headers={"authorization": "Basic eDp5"}).status_code == 200
        client.cookies.clear()
        odd = f'a={{x}}; b[]=1; $Version=; mapo_view_8765={"x" * 20}; c="half'
        assert client.get("/", headers={"cookie": odd}).status_code == 200
        other = odd.replace("_8765", "_8766")
        assert client.get("/", headers={"cookie": other}).status_code == 401


def test_a_mistake_of_ours_is_a_page_without_details(index, root, client, monkeypatch):
    from mapo.view.pages import runs

    def broken(*_):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(runs.queries, "runs", broken)
    answer = client.get("/")
    assert answer.status_code == 500 and "secret detail" not in answer.text
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-frame-options"] == "DENY" and answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("number", ["9" * 16, "9" * 5000, "-1", "٣"])
def test_numbers_of_any_length_are_addresses_of_nothing(shown, number):
    for path in (
        f"/run/first/d/dialogues:step_00001.jsonl/{number}",
        f"/api/run/first/d/x/1/tokens/{number}",
    ):
        assert shown.get(path).status_code == 404


def test_markup_in_the_labels_of_figures_is_text(index, root, client):
    evil = '<a href="http://evil.example">x</a>&lt;b>'
    view_runs.training(root, "<b>&", steps=1)
    view_runs.training(root, "b" * 100, steps=1)
    rubric = Rubric.load("empathy")
    tags = [{"category": f"{evil} {i}", "difficulty": f"{i}" + "d" * 200} for i in range(3)]
    made = [view_runs.talk(rubric, f"{evil}_{i}", step=1, tags=own, group="g") for i, own in enumerate(tags)]
    view_runs.write_lines(root / "r" / "dialogues" / "step_00001.jsonl", made)
    view_runs.write_lines(root / "r" / "dialogues" / "empa.jsonl", made)
    index.refresh()
    shown = client.get("/api/run/r/d/dialogues:step_00001.jsonl/1/trajectory").text
    shown += client.get("/api/radar?set=r|empa").text
    shown += client.get(f"/api/figures?run=~3Cb~3E~26&run={'b' * 100}").text
    assert "<" not in shown and ">" not in shown and "&amp;lt;b&gt;" in shown and "&lt;a href=" in shown
    assert "d" * 26 in shown
    assert "d" * 80 not in shown and "b" * 80 not in shown
