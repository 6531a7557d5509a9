"""Audits and swaps of judges among the runs: what they left, shown and escaped."""

from __future__ import annotations

import json

import pytest

from mapo.view.index.files import find_runs
from mapo.view.index.judging import judging_of
from support import view_runs
from support.command import mapo

pytest.importorskip("matplotlib")
EVIL = "<script>alert(1)</script>\u202e"


def row(index, key):
    with index.reading() as db:
        found = db.execute("SELECT state, dialogues, facts FROM runs WHERE key = ?", (key,)).fetchone()
    return found["state"], found["dialogues"], json.loads(found["facts"])


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """What the commands themselves leave: two evaluations, an audit and a swap, long ago."""
    root = tmp_path_factory.mktemp("judged") / "runs"
    for name in ("honest", "praiser"):
        given = ("--domain", "tutoring", "--model", f"scripted:{name}", "--out", root / name)
        assert mapo("eval", "empa", *given).returncode == 0
    judge = ("--judge", "scripted", "--domain", "tutoring")
    small = ("--turns", "6", "--dialogues", "2", "--repeats", "2")
    done = mapo("judge", "audit", root / "honest", *judge, *small, "--out", root / "audit")
    assert done.returncode == 0, done.stderr
    done = mapo("judge", "swap", root / "honest", root / "praiser", *judge, "--out", root / "swap")
    assert done.returncode == 0, done.stderr
    for folder in (root, *(f for f in root.rglob("*") if f.is_dir())):
        view_runs.age(folder)
    return root


@pytest.fixture
def root(judged):
    return judged


def test_an_audit_is_finished_with_its_verdict_and_its_figure(index, client):
    index.refresh()
    state, dialogues, facts = row(index, "audit")
    assert (state, facts["kind"], facts["model"], dialogues) == ("finished", "judge audit", "scripted", 0)
    assert not facts["other"] and not facts["problems"]
    page = client.get("/run/audit").text
    assert "judge audit" in page and "<h2>Verdict</h2>" in page and "For evaluation" in page
    verdict = json.loads((index.root / "audit" / "audit.json").read_text())["judges"][0]["verdict"]
    assert f'data-label="For training">{verdict["training"]}</td>' in page
    assert "turns asked again" in page and "Not written by mapo" not in page
    figure = client.get("/run/audit/audit.png")
    assert figure.headers["content-type"] == "image/png"
    assert figure.content == (index.root / "audit" / "audit.png").read_bytes()
    assert "/run/audit/audit.png?v=" in page


def test_a_swap_is_finished_and_the_runs_in_it_are_runs(index, client):
    index.refresh()
    state, dialogues, facts = row(index, "swap")
    assert (state, facts["kind"], facts["model"], dialogues) == ("finished", "judge swap", "scripted", 0)
    assert not facts["other"]
    page = client.get("/run/swap").text
    assert "<h2>Judge swap</h2>" in page and "The order of the runs is the same." in page
    told = json.loads((index.root / "swap" / "swap.json").read_text())["runs"][0]
    assert f"{told['new']['epm_q']:.1f}" in page and f"{told['new']['passes']} of {told['new']['n']}" in page
    inside = [key for key in index.runs if key.startswith("swap:")]
    assert len(inside) == 2
    for key in inside:
        state, dialogues, facts = row(index, key)
        assert state == "finished" and dialogues and facts["domain"] == "tutoring"
    assert client.get("/run/swap/audit.png").status_code == 404


def test_another_domain_goes_by_its_name_and_no_set_of_it_is_called_empa(index, client):
    index.refresh()
    page = client.get("/run/honest").text
    assert "domain <bdi>tutoring</bdi>" in page and "EMPA" not in page and ">evaluation " in page
    assert "EMPA" not in client.get("/benchmarks").text
    assert "tutoring" in client.get("/?q=tutoring").text and "audit" not in client.get("/?q=tutoring").text


# ---- files that anybody may have written


def audit_folder(root, **told):
    folder = root / "a"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"schema": "mapo.audit/1", "judges": [EVIL, 3]}))
    for name, data in told.items():
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        (folder / name.replace("_", ".")).write_bytes(raw)
    view_runs.age(folder)
    return folder


@pytest.fixture
def hostile(tmp_path):
    return tmp_path / "hostile"


def opened(root):
    [run] = find_runs(root)
    return run


def test_an_audit_without_a_verdict_has_stopped(hostile, tmp_path):
    from mapo.view.index.index import Index

    audit_folder(hostile)
    index = Index(hostile, tmp_path / "cache")
    index.refresh()
    assert row(index, "a")[0] == "stopped"
    index.close()


def test_why_a_verdict_is_open_is_shown(hostile):
    said = {"training": "unknown", "open_training": ["too few"], "against_evaluation": ["it is blind"]}
    audit_folder(hostile, audit_json={"judges": [{"verdict": {**said, "open_evaluation": ["also few"]}}]})
    [[_, training, _, because]] = judging_of(opened(hostile)).rows
    assert training == "unknown" and because == "too few; it is blind"


def test_words_of_an_audit_are_escaped(hostile, tmp_path):
    from starlette.testclient import TestClient

    from mapo.view.app import make_app
    from mapo.view.index.index import Index

    said = {"judge": EVIL, "training": EVIL, "evaluation": 3, "against_training": [EVIL], "unknown": EVIL}
    data = {"judges": [{"verdict": said}, 7], "runs": [EVIL], "sample": {EVIL: 2, "x": "y"}, "notes": {}}
    audit_folder(hostile, audit_json=data, audit_png=b"<svg onload=alert(1)>")
    index = Index(hostile, tmp_path / "cache")
    index.refresh()
    with TestClient(make_app(index), base_url="http://127.0.0.1:8765") as client:
        page = client.get("/run/a").text
        assert "<script>alert" not in page and "&lt;script&gt;" in page and "\u202e" not in page
        assert client.get("/run/a/audit.png").status_code == 404  # no picture, whatever it is called
        assert client.get("/run/b/audit.png").status_code == 404
    index.close()


@pytest.mark.parametrize(
    "data", [{"judges": 3}, {"judges": [{"verdict": []}], "runs": ["r"]}, {"runs": [1]}, {"notes": ["n"]}]
)
def test_an_audit_of_other_shapes_says_what_it_can(hostile, data):
    audit_folder(hostile, audit_json=data)
    told = judging_of(opened(hostile))
    assert told is not None and told.title == "Verdict" and not told.figure
    assert told.notes == [
        *(f"Sample from {r}" for r in data.get("runs", ()) if r == "r"),
        *data.get("notes", ()),
    ]


def test_a_swap_of_other_shapes_says_what_it_can(hostile):
    whole = {"judge": "x", "epm_q": 50.04, "interval": [40.0, 60.0], "passes": 1, "n": 2}
    odd = {"judge": 3, "epm_q": "NaN", "interval": [1], "passes": True}
    runs = [{"run": "r", "old": whole, "new": odd, "difference": 1.0, "difference_interval": [0, "x"]}, 5]
    folder = audit_folder(hostile, swap_json={"runs": runs, "same_order": False})
    told = judging_of(opened(hostile))
    assert told.rows == [("r", "50.0 (40.0 to 60.0)", "–", "+1.0", "1 of 2", "–")]
    assert told.notes == ["Old judge: x. New judge: unknown."]  # of one run there is no order
    (folder / "swap.json").write_text(json.dumps({"runs": runs[:1] * 2, "same_order": False}))
    assert judging_of(opened(hostile)).notes[-1] == "The order of the runs changes."


def test_a_link_in_place_of_a_figure_is_not_followed(hostile, tmp_path):
    from mapo.view.index.judging import figure_of

    folder = audit_folder(hostile)
    (tmp_path / "secret.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (folder / "audit.png").symlink_to(tmp_path / "secret.png")
    assert figure_of(opened(hostile)) is None and judging_of(opened(hostile)) is None
