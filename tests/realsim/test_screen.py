"""mapo scenarios screen: verdicts by hand, and whole runs of plain code, killed and resumed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter

import pytest

from mapo.domain_folders import domain_folder
from mapo.errors import InputError
from mapo.realsim.screen import Plays, Screened, agreement, judge, measure, plays_of, screen, sizes_of
from mapo.scenarios.sets import load_scenarios
from mapo.scoring.result import recompute
from mapo.store import read_dialogues
from mapo.testing.server import LoopbackServer
from mapo.testing.world import ROLES, world
from support.cards import CARD, put_cards
from support.command import mapo

FOLDER = domain_folder("empathy") / "scenarios"
FEW = ("career-elephant-house", "career-tied-up", "health-page-two-hundred", "leisure-postal-chess")


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    folder = tmp_path_factory.mktemp("few")
    for name in FEW:
        shutil.copy(FOLDER / f"{name}.toml", folder)
    return folder


def screened(few, out, *more: object):
    return mapo("scenarios", "screen", few, "--out", out, "--strong", "scripted:honest", "--plays", 2, *more)


MEASURED = {"difficulty": "easy", "axis": "A", "axis_moved": "C"}


def plays(passes: int, n: int) -> Plays:
    return Plays(n, passes, passes / n if n else None, (0.0, 1.0), 50.0, None)


@pytest.mark.parametrize(
    ("strong", "weak", "verdict"),
    [
        ((4, 4), (0, 4), "kept"),
        ((1, 4), (3, 4), "kept"),
        ((0, 4), (0, 4), "dropped"),
        ((4, 4), (4, 4), "dropped"),
        ((3, 3), (0, 4), "undecided"),
        ((4, 4), (0, 0), "undecided"),
        ((4, 4), None, "kept"),
        ((0, 4), None, "dropped"),
    ],
)
def test_verdicts(strong, weak, verdict):
    found = {"strong": plays(*strong), **({"weak": plays(*weak)} if weak is not None else {})}
    got, reason = judge(found, 4)
    assert got == verdict and bool(reason) == (verdict != "kept")


@pytest.mark.parametrize(
    ("shares", "n", "sizes"),
    [
        ("2/1/1", 13, [7, 3, 3]),
        ("2/1/1", 3, [1, 1, 1]),
        ("8/1/1", 12, [10, 1, 1]),
        ("1/1", 5, [3, 2]),
        ("168/12/12", 192, [168, 12, 12]),
    ],
)
def test_sizes_of_splits(shares, n, sizes):
    assert list(sizes_of(shares, n).values()) == sizes


@pytest.mark.parametrize(("shares", "n"), [("2", 9), ("a/b", 9), ("1/0/1", 9), ("1/1/1", 2), ("1/1/9", 3)])
def test_sizes_that_cannot_be(shares, n):
    with pytest.raises(InputError, match="--split"):
        sizes_of(shares, n)


def test_nothing_played_is_nothing_measured(empathy):
    [scenario] = [s for s in load_scenarios("builtin:test") if s.id == FEW[0]]
    [one] = screen([scenario], {"strong": [], "weak": []}, 2, empathy)
    assert one.verdict == "undecided" and one.measured["difficulty"] == ""
    assert plays_of([]).rate is None and agreement([one])["difficulty"] is None


def test_a_run_writes_drops_splits_and_measures(few, tmp_path, empathy):
    out = tmp_path / "out"
    done = screened(few, out, "--weak", "scripted:silent", "--split", "2/1")
    assert done.returncode == 0, done.stderr
    data = json.loads((out / "screen.json").read_text())
    rows = {row["id"]: row for row in data["scenarios"]}
    assert set(rows) == set(FEW) and data["policies"] == {
        "strong": "scripted:honest",
        "weak": "scripted:silent",
    }
    for case, row in rows.items():
        # by hand, from the records
        lines = [d for d in read_dialogues(out / "strong" / "dialogues" / "empa.jsonl") if d.scenario == case]
        results = [recompute(d, out / "strong", None, empathy, "x") for d in lines]
        passes = sum(r.passed for r in results)
        strong, weak = row["plays"]["strong"], row["plays"]["weak"]
        assert (strong["n"], strong["passes"], weak["passes"]) == (2, passes, 0)
        assert row["verdict"] == ("kept" if passes else "dropped")
        assert row["measured"]["difficulty"] == {0: "extreme", 1: "hard", 2: "medium"}[passes]
        assert row["measured"]["axis"] == row["declared"]["axis"]
        gained = [sum(r.path.now.position[i] - r.path.start[i] for r in results) for i in range(3)]
        assert row["measured"]["axis_moved"] == empathy.keys[gained.index(max(gained))]
    kept = {case for case, row in rows.items() if row["verdict"] == "kept"}
    assert len(kept) >= 2 and {f.stem for f in (out / "scenarios").iterdir()} == kept
    assert f"kept {len(kept)}" in done.stderr
    # the split is a source like any other
    parts = [load_scenarios(f"{out / 'splits.json'}:{name}") for name in ("train", "test")]
    assert {s.id for part in parts for s in part} == kept and all(parts)


def test_too_easy_is_dropped_and_nothing_is_played_twice(few, tmp_path):
    out = tmp_path / "out"
    done = screened(few, out, "--weak", "scripted:honest")
    assert done.returncode == 0, done.stderr
    data = json.loads((out / "screen.json").read_text())
    reasons = {row["reason"] for row in data["scenarios"] if row["plays"]["weak"]["passes"] == 2}
    assert reasons == {"too easy: the weak model passed all 2 plays"}
    assert "holds a run already" in screened(few, out, "--weak", "scripted:honest").stderr
    # cut off in the middle: what is finished stays, the rest is played, and the verdicts are the same
    file = out / "weak" / "dialogues" / "empa.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]) + lines[3][:100])
    strong = (out / "strong" / "dialogues" / "empa.jsonl").read_bytes()
    again = screened(few, out, "--weak", "scripted:honest", "--resume")
    assert again.returncode == 0, again.stderr
    assert (out / "strong" / "dialogues" / "empa.jsonl").read_bytes() == strong
    assert file.read_bytes().startswith(b"".join(lines[:3]))
    assert json.loads((out / "screen.json").read_text()) == data


def test_killed_and_resumed_the_verdicts_are_those_of_one_go(few, tmp_path):
    """kill -9 of the real program while models play; nothing that was finished is asked for again, and what
    comes out is what comes out of a run that nobody disturbed."""
    lines = ("That sounds hard.", "Tell me more about it.", "I am here, take your time.", "What hurts most?")

    def answer(body: dict) -> str:
        seen.append(json.dumps(body, sort_keys=True))
        return lines[zlib.crc32(seen[-1].encode()) % len(lines)]

    def command(out) -> list[str]:
        models = ["--strong", "big", "--weak", "small", "--base-url", server.base_url]
        more = ["--plays", "2", "--max-turns", "5", "--concurrency", "2"]
        return ["scenarios", "screen", str(few), "--out", str(out), *models, *more]

    seen: list[str] = []
    with LoopbackServer(answer, latency=0.02, models=("big", "small")) as server:
        whole = mapo(*command(tmp_path / "whole"))
        assert whole.returncode == 0, whole.stderr
        once, seen[:] = Counter(seen), []
        child = subprocess.Popen(
            [sys.executable, "-m", "mapo", *command(tmp_path / "cut")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        patience = time.monotonic() + 60
        while len(seen) < once.total() * 2 // 3 and time.monotonic() < patience:  # the weak one's turn
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert len(seen) < once.total() and not (tmp_path / "cut" / "screen.json").exists()
        done = mapo(*command(tmp_path / "cut"), "--resume")
        assert done.returncode == 0, done.stderr
    again = Counter(seen) - once
    assert not once - Counter(seen) and again.total() <= 2  # the calls under way, at most one a dialogue
    told = [(tmp_path / out / "screen.json").read_text() for out in ("whole", "cut")]
    assert told[0] == told[1]


def test_without_a_weak_model_only_the_hopeless_go(few, tmp_path):
    done = mapo(
        "scenarios", "screen", few, "--out", tmp_path / "out", "--strong", "scripted:silent", "--plays", 1
    )
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "out" / "screen.json").read_text())
    assert {row["verdict"] for row in data["scenarios"]} == {"dropped"}
    assert {row["measured"]["axis_moved"] for row in data["scenarios"]} == {""}
    assert not (tmp_path / "out" / "scenarios").exists()


def test_models_play_every_part_over_http(few, tmp_path):
    """Both policies and all roles behind one server."""
    agents = ("--agents-model", "judge", "--agents-base-url")
    with LoopbackServer(world(), models=ROLES) as server:
        done = mapo(
            *("scenarios", "screen", few, "--out", tmp_path / "out", "--strong", "policy", "--weak", "user"),
            *("--base-url", server.base_url, *agents, server.base_url, "--plays", 1, "--max-turns", 3),
        )
        assert not server.errors
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "out" / "screen.json").read_text())
    assert {row["reason"] for row in data["scenarios"]} == {
        "too hard: the strong model passed none of 1 plays"
    }


@pytest.mark.parametrize(
    "roles", [("--agents-model", "judge"), ("--agents-model", "user", "--judge-model", "judge")]
)
def test_roles_are_asked_where_the_policy_is(few, tmp_path, roles, monkeypatch):
    """Nothing made from private conversations goes to an endpoint that was not named."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("MY_KEY", "k")
    with LoopbackServer(world(), models=ROLES) as server:
        done = mapo(
            *("scenarios", "screen", few, "--out", tmp_path / "out", "--strong", "policy", *roles),
            *("--base-url", server.base_url, "--plays", 1, "--max-turns", 3, "--retries", 0),
            *("--key-env", "MY_KEY"),
        )
        assert not server.errors
    assert done.returncode == 0, done.stderr


def test_a_call_that_fails_leaves_a_scenario_undecided(few, tmp_path):
    with LoopbackServer(models=("m",), fault=lambda number, _: "500" if number <= 1 else None) as server:
        options = ["--strong=m", "--plays=1", "--retries=0", "--max-turns=2", f"--base-url={server.base_url}"]
        done = mapo("scenarios", "screen", few, f"--out={tmp_path / 'out'}", *options)
    assert done.returncode == 1 and "undecided 1" in done.stderr, done.stderr
    data = json.loads((tmp_path / "out" / "screen.json").read_text())
    assert sorted(row["plays"]["strong"]["n"] for row in data["scenarios"]) == [0, 1, 1, 1]


def test_what_is_refused_is_refused_before_anything_is_written(few, tmp_path):
    out = tmp_path / "out"
    assert "--split" in screened(few, out, "--split", "x").stderr
    assert "no scripted policy" in screened(few, out, "--weak", "scripted:nobody").stderr
    assert "--agents is scripted" in screened(few, out, "--agents", "scripted", "--agents-model", "m").stderr
    (tmp_path / "cards").mkdir()
    cards = put_cards(tmp_path / "cards", CARD)
    assert "no cues for scripted roles" in screened(cards, out).stderr
    broken = tmp_path / "broken"
    shutil.copytree(few, broken)
    (broken / "x.toml").write_text("schema = 1")
    assert "1 scenarios cannot be read" in screened(broken, out).stderr
    assert not out.exists()


def test_cards_cannot_be_copied_one_by_one(tmp_path, capsys):
    """The split of what is kept of EMPA's cards says where it belongs."""
    from mapo.cli.scenarios.screen import _split, _write
    from mapo.scenarios.sets import read_set

    (tmp_path / "cards").mkdir()
    found = read_set(
        put_cards(tmp_path / "cards", CARD, CARD.replace("渡船", "火车").replace("码头", "站台"))
    )
    rows = [
        Screened(s.id, "kept", "", {"strong": plays(1, 1)}, {"difficulty": "", "axis": ""}, MEASURED)
        for s in found.scenarios
    ]
    _write(tmp_path / "out", {}, rows, found)
    assert not (tmp_path / "out" / "scenarios").exists()
    assert not _split(tmp_path / "out", found, rows, "1/1", 0)
    assert "2 near-identical scenarios" in capsys.readouterr().err  # the two are one card but for two words


def test_declared_and_measured_are_compared():
    def one(case: str, declared: str, measured: str, passes: int) -> Screened:
        return Screened(
            case,
            "kept",
            "",
            {"strong": plays(passes, 4)},
            {"difficulty": declared, "axis": "A"},
            {"difficulty": measured, "axis": "A", "axis_moved": "C"},
        )

    rows = [one("a", "easy", "easy", 4), one("b", "medium", "hard", 2), one("c", "hard", "extreme", 0)]
    assert agreement(rows) == {
        "difficulty": 1 / 3,
        "axis": 1.0,
        "axis_moved": 0.0,
        "rank": pytest.approx(1.0),
    }
    assert agreement([one("a", "", "easy", 4)])["rank"] is None


def test_measure_needs_no_strong_play(empathy, few, tmp_path):
    assert measure({"strong": [], "weak": []}, empathy)["axis"] == ""


def test_too_few_for_a_split_leave_the_screening_as_it_is(few, tmp_path):
    (tmp_path / "one").mkdir()
    file = sorted(few.glob("*.toml"))[0]
    shutil.copy(file, tmp_path / "one")
    done = screened(tmp_path / "one", tmp_path / "b", "--split", "2/1")
    assert done.returncode == 1 and "were not split: --split: " in done.stderr
    assert (tmp_path / "b" / "screen.json").is_file() and not (tmp_path / "b" / "splits.json").exists()
