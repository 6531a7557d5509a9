"""mapo play, as a person runs it."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest

from mapo.cli.play import _cast, _shipped_judge, _show
from mapo.errors import InputError
from mapo.local_model.shipped import ReplyDefaults, reply_defaults
from mapo.measure.rubric import Rubric
from mapo.players.spec import ModelSpec, PartialSpec
from mapo.scenarios.sets import domain_folder
from mapo.testing.server import LoopbackServer
from mapo.testing.world import world
from support.builders import dialogue, marks
from support.command import mapo

FOLDER = domain_folder("empathy") / "scenarios"
SCENE = ("play", "career-night-ward", "--scenarios", "builtin:all")
PLAIN = ("--judge-model", "scripted")


def test_being_the_policy():
    typed = "The ward again, and the tram on top of it.\nYou should try to sleep more.\n\n"
    done = mapo(*SCENE, *PLAIN, typed=typed)
    assert done.returncode == 0, done.stderr
    assert "Marta, 41" in done.stdout and "C +1  takes up what was said" in done.stdout
    assert "P -1  gives orders" in done.stdout and "distance" in done.stdout
    assert "Energy: movement towards the goal so far" in done.stdout and ", energy " in done.stdout


def test_being_the_user():
    done = mapo(*SCENE, *PLAIN, "--as", "user", typed="Hm.\n\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("them:") == 2 and "state (" in done.stdout


def test_the_shipped_judge_reads_what_is_typed_to_scripted_people():
    done = mapo(*SCENE, typed="The ward again, and the tram on top of it.\n\n")
    assert done.returncode == 0, done.stderr
    assert "Judge: pocket-judge" in done.stdout and "the judge is a small trained model" in done.stdout
    assert "state (" in done.stdout and "[not judged" not in done.stdout


def test_talking_with_the_shipped_policy():
    done = mapo(*SCENE, "--as", "user", "--model", "local:pocket", typed="I slept badly.\n\n")
    assert done.returncode == 0, done.stderr
    assert "Judge: pocket-judge" in done.stdout and done.stdout.count("them:") == 2
    assert "[not judged" not in done.stdout


def test_plain_code_judges_in_other_domains():
    done = mapo("play", "--domain", "tutoring", "--seed", "1", typed="\n")
    assert done.returncode == 0, done.stderr
    assert "user, director and judge are scripted" in done.stdout


def test_plain_code_judges_without_the_packages_of_local_models(monkeypatch, capsys):
    missing = InputError("this needs torch", fix="Run: pip install 'mapo-rl[train]'")
    monkeypatch.setattr("mapo.local_model.requirements.require_torch", Mock(side_effect=missing))
    assert _shipped_judge("empathy") is None
    assert "Using the plain-code judge" in capsys.readouterr().out


def test_playing_to_the_end():
    typed = "Hm, I see what you mean by that one.\n" * 50
    done = mapo(*SCENE, *PLAIN, typed=typed)
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


def test_the_policy_may_do_without_a_system_prompt():
    with LoopbackServer(lambda _: "I see.", record=True) as server:
        options = ("--as", "user", "--model", "small", "--base-url", server.base_url)
        for more in ((), ("--no-system", "--max-tokens", "9")):
            mapo("play", "career-night-ward", "--scenarios", "builtin:all", *options, *more, typed="\n")
    plain, short = server.bodies[0], server.bodies[-1]
    assert plain["messages"][0]["role"] == "system"
    assert short["messages"][0]["role"] == "user" and 9 in short.values()


def test_the_shipped_policy_replies_as_it_learned_to():
    assert reply_defaults("pocket") == ReplyDefaults(temperature=0.4, max_tokens=32, system=False)
    assert reply_defaults("models/other") == reply_defaults(None) == ReplyDefaults(1.0, 512, True)


def test_play_with_models_that_think():
    with LoopbackServer(world(), record=True) as server:
        done = mapo(
            *("play", "career-night-ward", "--scenarios", "builtin:all", "--agents-body", "thinking=false"),
            *("--agents-model", "judge", "--agents-base-url", server.base_url),
            typed="Hello there, you.\n\n",
        )
    assert done.returncode == 0, done.stderr
    assert {str(body.get("chat_template_kwargs")) for body in server.bodies} == {"{'enable_thinking': False}"}


@pytest.mark.parametrize("role", ["policy", "user"])
def test_a_model_judges_scripted_people(role):
    with LoopbackServer(world(), record=True) as server:
        who = ("--judge-model", "judge", "--judge-base-url", server.base_url)
        done = mapo(*SCENE, "--as", role, *who, "--agents-body", "thinking=false", typed="The ward.\n\n")
    assert done.returncode == 0, done.stderr
    assert "Judge: judge" in done.stdout and "state (" in done.stdout and "[not judged" not in done.stdout
    assert {body["model"] for body in server.bodies} == {"judge"}
    assert {str(body.get("chat_template_kwargs")) for body in server.bodies} == {"{'enable_thinking': False}"}


def test_a_judge_replaces_only_the_judge_of_the_agents():
    with LoopbackServer(world(), record=True) as server:
        who = ("--agents-model", "a", "--agents-base-url", server.base_url, "--judge-model", "j")
        done = mapo(*SCENE, *who, typed="The ward again.\nAnd the tram.\n\n")
    assert done.returncode == 0, done.stderr
    assert {body["model"] for body in server.bodies} == {"a", "j"} and "Judge: j" in done.stdout


def test_the_key_goes_to_a_lone_judge_but_not_to_another_address_than_that_of_the_agents():
    own = PartialSpec("j", "http://judge/v1")
    assert _cast(PartialSpec(None, None, "KEY"), own) == {"judge": ModelSpec("j", "http://judge/v1", "KEY")}
    cast = _cast(PartialSpec("a", "http://agents/v1", "KEY"), own)
    assert cast["judge"] == ModelSpec("j", "http://judge/v1", "")
    assert cast["user"] == cast["director"] == ModelSpec("a", "http://agents/v1", "KEY")
    assert _cast(PartialSpec(None, None, "KEY"), PartialSpec()) is None


def test_levels_that_were_read_out_show_their_probability(capsys):
    rubric = Rubric.load("empathy")
    (turn,) = dialogue(rubric, [marks(rubric, 2, 0)]).turns
    read = ((0.1, 0.2, 0.7), (0.9, 0.05, 0.05)) * 3
    _show(replace(turn, probabilities=read), "policy", rubric.keys)
    assert "  C +2  (70%)" in capsys.readouterr().out
    _show(turn, "policy", rubric.keys)
    assert "%" not in capsys.readouterr().out


def test_a_reply_without_any_level_says_so(capsys):
    rubric = Rubric.load("empathy")
    (turn,) = dialogue(rubric, [marks(rubric, 0, 0)]).turns
    _show(turn, "policy", rubric.keys)
    assert "level 0 on every axis" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--judge-base-url", "http://x/v1"], "Give --judge-model"),
        (["--agents-body", "thinking=false"], "which is scripted"),
        (["nobody"], "no scenario 'nobody'"),
        (["career-tied-up"], "--scenarios builtin:all includes the held-out ones"),
        (["--as", "judge"], "policy or user"),
        (["--as", "user", "--model", "local:pocket-judge"], "was trained to be a judge"),
        (["--judge-model", "scripted", "--agents-model", "m"], "knows only scripted people"),
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
        scene = ("play", "career-night-ward", "--scenarios", tmp_path, *PLAIN)
        done = mapo(*scene, "--as", role, typed="Hm.\n\n")
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
