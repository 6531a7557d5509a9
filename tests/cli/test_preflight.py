"""Commands that call models check them first and print an estimate."""

from __future__ import annotations

import json

import pytest

from mapo.testing.server import LoopbackServer
from support.cards import CARD, put_cards
from support.command import mapo

DEAD = "http://127.0.0.1:9/v1"
TURNS = [
    {"role": role, "content": f"{role} says something about the garden, number {n}"}
    for n in range(4)
    for role in ("user", "assistant")
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "honest"
    done = mapo("eval", "empa", "--model=scripted:honest", "--limit=2", f"--out={out}")
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def cards(tmp_path):
    (tmp_path / "cards").mkdir()
    return put_cards(tmp_path / "cards", CARD)


def conversations(folder):
    file = folder / "chats.jsonl"
    file.write_text(json.dumps({"messages": TURNS}) + "\n", encoding="utf-8")
    return file


def arguments(name, folder, run, url):
    out = f"--out={folder / 'out'}"
    return {
        "make": ["scenarios", "make", conversations(folder), "--model=m", f"--base-url={url}", out],
        "screen": [
            *("scenarios", "screen", "builtin:validation", "--strong=m", "--agents-model=m", "--plays=1"),
            *(f"--base-url={url}", out),
        ],
        "audit": ["judge", "audit", run, f"--judge=m@{url}", out],
        "swap": ["judge", "swap", run, f"--judge=m@{url}", out],
    }[name]


@pytest.mark.parametrize("name", ["make", "screen", "audit", "swap"])
def test_a_dead_endpoint_with_a_cache_names_the_mode_that_needs_none(tmp_path, run, name):
    cache = tmp_path / "calls.sqlite"
    without = mapo(*arguments(name, tmp_path, run, DEAD), f"--cache-file={cache}")
    assert without.returncode == 2 and "--cache replay" not in without.stderr
    cache.touch()
    done = mapo(*arguments(name, tmp_path, run, DEAD), f"--cache-file={cache}")
    assert done.returncode == 2 and "no connection" in done.stderr
    assert f"? If {cache} holds every answer, --cache replay runs without the endpoint" in done.stderr


@pytest.mark.parametrize("name", ["make", "screen", "audit", "swap"])
def test_a_dead_endpoint_is_reported_once_before_anything_is_written(tmp_path, run, name):
    done = mapo(*arguments(name, tmp_path, run, DEAD))
    assert done.returncode == 2 and done.stderr.count("no connection") == 1, done.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("name", ["make", "screen", "audit", "swap"])
def test_an_estimate_comes_before_the_first_call(tmp_path, run, name):
    with LoopbackServer(lambda _: "no JSON", fault=lambda *_: "500") as server:
        done = mapo(*arguments(name, tmp_path, run, server.base_url), "--retries=0")
    assert "preflight: checking " in done.stderr and "estimate: " in done.stderr, done.stderr
    assert " model calls, about " in done.stderr


def test_screen_stops_if_all_dialogues_of_a_policy_break(tmp_path, run):
    with LoopbackServer(fault=lambda *_: "500") as server:
        done = mapo(*arguments("screen", tmp_path, run, server.base_url), "--weak=m", "--retries=0")
    assert done.returncode == 2 and "dialogues of the strong policy broke" in done.stderr
    assert "undecided" not in done.stdout and done.stderr.count("broken: ") == 1


def test_screen_says_that_nothing_is_too_easy_without_a_weak_policy(tmp_path, run):
    done = mapo(*arguments("screen", tmp_path, run, DEAD))
    assert "without --weak, no scenario counts as too easy" in done.stderr


def test_a_trial_with_limit_is_resumed_with_all_scenarios(tmp_path):
    command = ["eval", "empa", "--model=scripted:honest", f"--out={tmp_path / 'run'}"]
    assert mapo(*command, "--limit=1").returncode == 0
    done = mapo(*command, "--limit=3", "--resume")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert len(manifest["scenarios"]) == 3
    fewer = mapo(*command, "--limit=2", "--resume")
    assert fewer.returncode == 2 and "scenarios: 3 entries there, 2 entries here" in fewer.stderr


def test_scenarios_that_scripted_roles_cannot_play_are_refused_once(tmp_path, cards):
    done = mapo(
        "eval", "empa", "--model=scripted:honest", f"--scenarios={cards}", f"--out={tmp_path / 'run'}"
    )
    assert done.returncode == 2 and "scripted roles cannot play 1 of 1 scenarios" in done.stderr
    assert "--agents-model" in done.stderr and not (tmp_path / "run").exists()


def test_a_missing_folder_of_eqbench_is_named_with_the_command_that_fetches_it(tmp_path):
    done = mapo("eval", "eqbench", "--model=m", f"--data={tmp_path / 'none'}", "--judge-model=m")
    assert done.returncode == 2 and "the folder does not exist" in done.stderr
    assert "git clone https://github.com/EQ-bench/eqbench3" in done.stderr


def test_redacting_into_the_same_folder_again_says_what_it_holds(tmp_path):
    command = ["scenarios", "make", conversations(tmp_path), "--local", f"--out={tmp_path / 'out'}"]
    assert mapo(*command).returncode == 0
    again = mapo(*command)
    assert again.returncode == 2 and "holds redacted conversations of an earlier run" in again.stderr
