"""mapo play, as a person runs it."""

from __future__ import annotations

import pytest

from mapo.scenarios.sets import domain_folder
from mapo.testing.server import LoopbackServer
from mapo.testing.world import world
from support.command import mapo

FOLDER = domain_folder("empathy") / "scenarios"


def test_being_the_policy():
    typed = "The ward again, and the tram on top of it.\nYou should try to sleep more.\n\n"
    done = mapo("play", "career-night-ward", "--scenarios", "builtin:all", typed=typed)
    assert done.returncode == 0, done.stderr
    assert "Marta, 41" in done.stdout and "C +1  takes up what was said" in done.stdout
    assert "P -1  gives orders" in done.stdout and "distance" in done.stdout
    assert "Energy: movement towards the goal so far" in done.stdout and ", energy " in done.stdout


def test_being_the_user():
    done = mapo("play", "career-night-ward", "--scenarios", "builtin:all", "--as", "user", typed="Hm.\n\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("them:") == 2 and "state (" in done.stdout


def test_playing_to_the_end():
    typed = "Hm, I see what you mean by that one.\n" * 50
    done = mapo("play", "career-night-ward", "--scenarios", "builtin:all", typed=typed)
    assert "The dialogue ended: failure" in done.stdout


def test_play_with_models_and_a_judge_that_fails():
    def answer(body):
        return "no form" if body["model"] == "judge" else world()(body)

    with LoopbackServer(answer) as server:
        done = mapo(
            *("play", "career-night-ward", "--scenarios", "builtin:all"),
            *("--agents-model", "judge", "--agents-base-url", server.base_url),
            typed="Hello there, you.\n\n",
        )
    assert done.returncode == 0 and "[not judged:" in done.stdout


def test_play_with_models_that_think():
    with LoopbackServer(world(), record=True) as server:
        done = mapo(
            *("play", "career-night-ward", "--scenarios", "builtin:all", "--agents-body", "thinking=false"),
            *("--agents-model", "judge", "--agents-base-url", server.base_url),
            typed="Hello there, you.\n\n",
        )
    assert done.returncode == 0, done.stderr
    assert {str(body.get("chat_template_kwargs")) for body in server.bodies} == {"{'enable_thinking': False}"}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--agents-body", "thinking=false"], "which is scripted"),
        (["nobody"], "no scenario 'nobody'"),
        (["career-tied-up"], "--scenarios builtin:all includes the held-out ones"),
        (["--as", "judge"], "policy or user"),
    ],
)
def test_play_refuses(args, words):
    done = mapo("play", *args)
    assert done.returncode == 2 and words in done.stderr


@pytest.mark.parametrize("hostile", ["\x1b]0;pwned\x07", "\x1b[2J"])
def test_nothing_a_scenario_or_model_says_steers_the_terminal(tmp_path, hostile):
    text = (FOLDER / "career-night-ward.toml").read_text(encoding="utf-8")
    escaped = hostile.replace("\x1b", "\\u001b").replace("\x07", "\\u0007")
    text = text.replace('topic = "', f'topic = "{escaped}').replace('opening = "', f'opening = "{escaped}')
    (tmp_path / "career-night-ward.toml").write_text(text, encoding="utf-8")
    for role in ("policy", "helper", "user"):
        done = mapo("play", "career-night-ward", "--scenarios", tmp_path, "--as", role, typed="Hm.\n\n")
        assert done.returncode == 0 and "\x1b" not in done.stdout


def test_play_fails_where_the_model_cannot_be_reached():
    done = mapo("play", "--as", "user", "--model", "m", "--base-url", "http://127.0.0.1:9/v1", typed="Hm.\n")
    assert done.returncode == 2 and "no connection" in done.stderr


def test_a_seed_chooses_the_scenario_also_if_it_is_zero(monkeypatch):
    monkeypatch.setattr("builtins.input", lambda _: "")
    shown = {mapo("play", "--seed", "0").stdout.splitlines()[0] for _ in range(3)}
    assert len(shown) == 1


def test_the_scripted_helper_says_that_it_does_not_read_what_is_typed(monkeypatch):
    monkeypatch.setattr("builtins.input", lambda _: "")
    shown = mapo("play", "--as", "user", "--seed", "1").stdout
    assert "reads the scenario, not what you type" in shown and "the opening of this scenario" in shown
