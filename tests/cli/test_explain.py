"""mapo judge explain, as a person runs it."""

from __future__ import annotations

import json
import re

import pytest

from mapo.measure.rubric import Rubric
from mapo.store import JsonlWriter, RunDir
from mapo.testing.server import LoopbackServer
from support.builders import dialogue
from support.command import mapo

EMPATHY = Rubric.load("empathy")
FORMS = [EMPATHY.levels(C=(1, 0)), None, EMPATHY.levels(A=(2, -1))]


@pytest.fixture
def run(tmp_path):
    with JsonlWriter(RunDir(tmp_path).empa_dialogues) as writer:
        for name, forms in (("d1", FORMS), ("d2", FORMS[::-1])):
            writer.write_dialogue(dialogue(EMPATHY, forms, id=name, scenario="career-boat-shed"))
    return tmp_path


def explained(body) -> str:
    """The form that the request's schema asks for, with a reason for every level."""
    schema = body["response_format"]["json_schema"]["schema"]
    form = {
        key: {
            side: {
                "level": mark["properties"]["level"]["enum"][0],
                "evidence": "reply",
                "reason": f"why {key}\x1b[31m",
            }
            for side, mark in axis["properties"].items()
        }
        for key, axis in schema["properties"].items()
    }
    return json.dumps(form)


def test_reasons_are_written_shown_and_not_asked_for_again(run):
    records = RunDir(run).empa_dialogues.read_bytes()
    with LoopbackServer(explained) as server:
        asked = ("judge", "explain", run, "--dialogue", "d1", "--judge-model", f"m@{server.base_url}")
        done = mapo(*asked)
        assert done.returncode == 0, done.stderr
        again = mapo(*asked)
        assert server.calls == 2
    assert 'A progress +2: "reply" why A' in done.stdout
    assert "\x1b" not in done.stdout
    assert again.stdout == done.stdout
    assert len(RunDir(run).explanations.read_text().splitlines()) == 2
    assert RunDir(run).empa_dialogues.read_bytes() == records


def without_reasons(body) -> str:
    return re.sub(r'"reason": "[^"]*"', '"reason": ""', explained(body))


def test_a_form_without_reasons_explains_nothing(run):
    with LoopbackServer(without_reasons) as server:
        done = mapo("judge", "explain", run, "--dialogue", "d1", "--judge-model", f"m@{server.base_url}")
    assert done.returncode == 1 and "the model wrote no reasons" in done.stderr
    assert not RunDir(run).explanations.exists() or not RunDir(run).explanations.read_text()


def test_one_turn_and_a_limit(run):
    with LoopbackServer(explained) as server:
        judge = ("--judge", "m", "--base-url", server.base_url)
        one = mapo("judge", "explain", run, "--dialogue", "d2", "--turn", 3, *judge)
        limited = mapo("judge", "explain", run, "--most", 1, *judge)
        assert server.calls == 2
    assert one.stdout.count("turn 3") == 1
    assert "turn 1" not in one.stdout
    assert "turns left without reasons: 2;" in limited.stderr


def test_a_model_that_answers_otherwise_is_an_error(run):
    with LoopbackServer(lambda _: "I cannot.") as server:
        done = mapo(
            "judge", "explain", run, "--dialogue", "d1", "--judge", "m", "--base-url", server.base_url
        )
    assert done.returncode == 1
    assert "2 turns" in done.stderr
    assert "(no reason)" in done.stdout


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--dialogue", "nobody"), "there is no dialogue 'nobody'"),
        (("--dialogue", "d1", "--turn", 9), "there is no turn 9 of dialogue 'd1'"),
        (("--turn", 1), "--turn is given without --dialogue"),
        (("--dialogue", "d1", "--turn", 2), "no turn here has levels"),
    ],
)
def test_what_is_not_there_is_refused(run, options, problem):
    done = mapo("judge", "explain", run, "--judge", "m@http://127.0.0.1:9/v1", *options)
    assert done.returncode == 2
    assert problem in done.stderr


def test_a_folder_that_is_no_model_is_refused(run, tmp_path):
    done = mapo("judge", "explain", run, "--judge", f"local:{tmp_path / 'nothing'}")
    assert done.returncode == 2
    assert "nothing" in done.stderr
    assert not RunDir(run).explanations.exists() or not RunDir(run).explanations.read_bytes()


@pytest.mark.slow
def test_a_local_model_writes_reasons(run, tmp_path_factory):
    pytest.importorskip("torch")
    from support.local_cast import local_cast_folder

    model = local_cast_folder(tmp_path_factory.mktemp("model") / "tiny")
    judge = ("--judge", f"local:{model}", "--judge-max-tokens", 480)
    done = mapo("judge", "explain", run, "--dialogue", "d1", "--turn", 3, *judge)
    assert done.returncode == 0, done.stderr
    [line] = map(json.loads, RunDir(run).explanations.read_text().splitlines())
    assert line["levels"]["A"]["progress"]["level"] == 2
    assert line["levels"]["A"]["regression"]["level"] == -1
