"""Body fields from the command line: they reach the model they are meant for, and are recorded."""

from __future__ import annotations

import json

import pytest

from mapo.evals.emobench.data import load
from mapo.testing.judges import JudgeErrors, faulty_judges
from mapo.testing.server import LoopbackServer
from mapo.testing.thinking import Thinking
from mapo.testing.world import world
from support.command import mapo
from support.emobench_files import Student
from support.emobench_files import write as write_emobench
from support.eqbench_files import Script, made_up, shared  # noqa: F401
from support.writers import Writer, talk, write_jsonl

AGENTS = [f"--{role}-model={role}" for role in ("judge", "user", "director")]
OFF = {"chat_template_kwargs": {"enable_thinking": False}}


def empa(url, out, *more):
    where = ("--base-url", url, "--agents-base-url", url, "--out", out, "--max-turns", 3)
    return mapo("eval", "empa", "--model", "policy", *AGENTS, *where, "--cases", "career-tied-up", *more)


def fields_by_model(server: LoopbackServer) -> dict[str, list[dict]]:
    """The distinct body fields of the requests of each model, without those that mapo sets itself."""
    fields: dict[str, list[dict]] = {}
    for body in server.bodies:
        extra = {
            key: body[key] for key in ("chat_template_kwargs", "reasoning_effort", "top_k") if key in body
        }
        known = fields.setdefault(body["model"], [])
        if extra not in known:
            known.append(extra)
    return fields


def test_every_role_of_an_evaluation_has_its_fields(tmp_path):
    out = tmp_path / "run"
    bodies = ["--agents-body", "thinking=false", "--judge-body", '{"top_k": 5}']
    bodies += ["--user-body", "thinking=true,reasoning_effort=low"]
    with LoopbackServer(world(), record=True) as server:
        done = empa(server.base_url, out, *bodies, "--body", "reasoning_effort=high")
        other = empa(server.base_url, out, *bodies, "--body", "reasoning_effort=low", "--resume")
    assert done.returncode == 0, done.stderr
    assert fields_by_model(server) == {
        "policy": [{"reasoning_effort": "high"}],
        "user": [{"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "low"}],
        "director": [OFF],
        "judge": [{**OFF, "top_k": 5}],
    }
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["body"] == 'reasoning_effort="high"'
    assert manifest["cast"]["judge"] == "judge (body chat_template_kwargs.enable_thinking=false top_k=5)"
    assert other.returncode == 2 and "the run there is another one (body" in other.stderr


@pytest.mark.parametrize("option", ["--body", "--agents-body", "--judge-body"])
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ('{"messages": []}', "'messages' is set by mapo"),
        ('{"api_key": "x"}', "may hold a secret"),
        ("{", "not valid JSON"),
        ("thinking=off", "neither JSON nor a known setting"),
        ("reasoning_effort=", "is not a reasoning effort"),
        ("[" * 4000, "nested too deeply"),
    ],
)
def test_wrong_fields_cost_nothing_and_are_named_in_one_line(tmp_path, option, value, problem):
    with LoopbackServer(world()) as server:
        done = empa(server.base_url, tmp_path / "run", option, value)
    assert done.returncode == 2 and problem in done.stderr and f"{option}: " in done.stderr
    assert done.stderr.count("\n") == 1
    assert server.calls == 0 and not (tmp_path / "run").exists()


def test_fields_of_scripted_roles_and_policies_are_refused(tmp_path):
    common = ("eval", "empa", "--model", "scripted:honest", "--out", tmp_path / "run")
    assert "which is scripted" in mapo(*common, "--agents-body", "thinking=false").stderr
    assert "not at an endpoint" in mapo(*common, "--body", "thinking=false").stderr


def test_a_cast_that_thinks_for_1500_tokens_needs_no_option(tmp_path):
    with LoopbackServer(world(), thinking=Thinking(1500)) as server:
        done = empa(server.base_url, tmp_path / "run", "--max-tokens", 2048)
    assert done.returncode == 0, done.stderr


def test_thinking_beyond_the_limit_names_the_option_that_helps(tmp_path):
    with LoopbackServer(world(), thinking=Thinking(1500)) as server:
        short = ("--max-tokens", 2048, "--user-max-tokens", 1000)
        done = empa(server.base_url, tmp_path / "run", *short)
        off = empa(server.base_url, tmp_path / "off", *short, "--user-body", "thinking=false")
    assert done.returncode == 1 and "no text within max_tokens=1000" in done.stderr
    assert "Raise --user-max-tokens" in done.stderr and "--user-body thinking=false" in done.stderr
    assert off.returncode == 0, off.stderr


def test_a_director_that_always_fails_is_a_warning(tmp_path):
    with LoopbackServer(world(), thinking=Thinking(1500)) as server:
        done = empa(server.base_url, tmp_path / "run", "--max-tokens", 2048, "--director-max-tokens", 1000)
    assert done.returncode == 0
    assert "warning: the director failed on 2 of 2 turns" in done.stderr
    assert "Raise --director-max-tokens" in done.stderr


def test_fields_of_a_benchmark_model_and_its_judge(made_up, tmp_path):  # noqa: F811
    data = write_emobench(tmp_path / "emobench")
    with LoopbackServer(Student(load(data, allow_changed=True)), record=True) as server:
        options = (f"--data={data}", "--allow-changed-data", f"--base-url={server.base_url}", "--limit=1")
        mapo("eval", "emobench", "--model=m", *options, f"--out={tmp_path / 'emo'}", "--body=thinking=false")
    assert fields_by_model(server) == {"m": [OFF]}
    assert (
        "enable_thinking=false"
        in json.loads((tmp_path / "emo" / "result.json").read_text())["settings"]["body"]
    )
    with LoopbackServer(Script(), record=True) as server:
        options = (f"--data={made_up}", "--judge-model=judge", f"--base-url={server.base_url}", "--limit=1")
        bodies = ("--body=thinking=false", "--judge-body=reasoning_effort=low")
        mapo("eval", "eqbench", "--model=policy", *options, f"--out={tmp_path / 'eq'}", *bodies)
    assert fields_by_model(server) == {"policy": [OFF], "judge": [{"reasoning_effort": "low"}]}
    settings = json.loads((tmp_path / "eq" / "result.json").read_text())["settings"]
    assert settings["judge_body"] == 'reasoning_effort="low"'


def test_fields_of_judges_that_judge_again(tmp_path):
    run = tmp_path / "run"
    mapo("eval", "empa", "--model", "scripted:honest", "--out", run, "--limit", 1, "--max-turns", 3)
    with LoopbackServer(faulty_judges({"it": JudgeErrors()}), models=("it",), record=True) as server:
        judge = ("--judge", "it", "--base-url", server.base_url, "--judge-body", "thinking=false")
        swap = mapo("judge", "swap", run, *judge, "--out", tmp_path / "swap", "--judge-max-tokens", 5000)
        small = ("--turns", 2, "--dialogues", 1, "--repeats", 2)
        audit = mapo("judge", "audit", run, *judge, "--out", tmp_path / "audit", *small)
    assert swap.returncode == audit.returncode == 0, swap.stderr + audit.stderr
    assert fields_by_model(server) == {"it": [OFF]}
    assert {body["max_tokens"] for body in server.bodies} == {5000, 4096}


def test_fields_of_a_screening(tmp_path):
    with LoopbackServer(world(), models=("s", "w", "user", "judge"), record=True) as server:
        mapo(
            *("scenarios", "screen", "builtin:test", "--strong", "s", "--weak", "w", "--plays", 1),
            *("--agents-model", "user", "--judge-model", "judge", "--base-url", server.base_url),
            *("--max-turns", 1, "--out", tmp_path / "screen", "--body", "thinking=false"),
            *("--weak-body", '{"top_k": 1}', "--agents-body", "reasoning_effort=low"),
            *("--judge-body", "reasoning_effort=high"),
        )
    fields = fields_by_model(server)
    assert (fields["s"], fields["w"]) == ([OFF], [{"top_k": 1}])
    assert fields["judge"] == [{"reasoning_effort": "high"}]
    policies = json.loads((tmp_path / "screen" / "manifest.json").read_text())["policies"]
    assert policies["weak"] == "w (body top_k=1)"


@pytest.mark.parametrize(
    ("judge", "fields"),
    [
        ([], {"m": [OFF]}),
        (["--judge-model", "judge"], {"m": [OFF], "judge": [{}]}),
        (["--judge-model", "judge", "--judge-body", "thinking=false"], {"m": [OFF], "judge": [OFF]}),
    ],
)
def test_fields_of_a_writer_are_not_those_of_another_judge(tmp_path, judge, fields):
    source = tmp_path / "talks.jsonl"
    lines = (
        "I cannot sleep since they moved me to the night shift.",
        "What happened?",
        "Nobody asked me.",
        "Oh.",
    )
    write_jsonl(source, [talk(*lines)])
    with LoopbackServer(Writer(), record=True) as server:
        where = ("--out", tmp_path / "out", "--model", "m", "--base-url", server.base_url)
        done = mapo("scenarios", "make", source, *where, "--body", "thinking=false", *judge)
    assert done.returncode == 0, done.stderr
    assert fields_by_model(server) == fields
