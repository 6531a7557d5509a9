"""mapo eval empa, as a person runs it."""

from __future__ import annotations

import json

import pytest

from mapo.errors import InputError
from mapo.evals.compare.comparison import compare
from mapo.players.casting import cast_from_options
from mapo.players.spec import PartialSpec
from mapo.report import build
from mapo.report.document.blocks import Heading
from mapo.scoring.folders import read_folders
from mapo.testing.server import LoopbackServer
from mapo.testing.world import ROLES, world
from mapo.view.index.files import find_runs
from mapo.view.pages.runs import health_of
from support import small_run as small
from support.cards import CARD, put_cards
from support.command import mapo

AGENTS = [f"--{role}-model={role}" for role in ("judge", "user", "director")]


def test_scripted_everything(tmp_path):
    done = mapo("eval", "empa", "--model", "scripted:honest", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "scripted:honest" in done.stdout and "EPM-Q" in done.stdout
    scored = mapo("score", tmp_path / "run", "--json", "--by", "category")
    assert scored.returncode == 0, scored.stderr
    [again] = json.loads(scored.stdout)
    assert again["n"] == 12 and again["passes"] >= 10 and len(again["by"]) == 6
    assert again["differences"] == []
    # the EMPA-format files say the same
    [files] = json.loads(mapo("score", tmp_path / "run" / "empa", "--json").stdout)
    assert files["epm_q"] == pytest.approx(again["epm_q"]) and files["differences"] == []
    # and nothing is played twice
    assert mapo("eval", "empa", "--model", "scripted:honest", "--out", tmp_path / "run").returncode == 2
    resumed = mapo("eval", "empa", "--model", "scripted:honest", "--out", tmp_path / "run", "--resume")
    assert resumed.returncode == 0
    lines = (tmp_path / "run" / "dialogues" / "empa.jsonl").read_text().splitlines()
    assert len(lines) == 12


def test_a_user_with_an_intent_leaves_and_is_not_directed(tmp_path):
    def answer(body):
        return "<|endconversation|>" if body["model"] == "user" else world()(body)

    with LoopbackServer(answer, models=ROLES) as server:
        urls = ("--base-url", server.base_url, "--agents-base-url", server.base_url)
        command = ("eval", "empa", "--model", "policy", *urls, *AGENTS, "--cases", "career-tied-up")
        done = mapo(*command, "--intent-user", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    (line,) = (tmp_path / "run" / "dialogues" / "empa.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record["ending"]["reason"] == "user" and len(record["turns"]) == 1
    assert record["cast"]["director"] == "none" and record["prompts"].startswith("mapo+intent ")
    assert "user left 1" in mapo("score", tmp_path / "run").stdout


def test_an_intent_is_for_models(tmp_path):
    done = mapo("eval", "empa", "--model", "scripted:honest", "--intent-user", "--out", tmp_path / "run")
    assert done.returncode == 2 and "--intent-user is for models" in done.stderr


def test_models_in_all_roles_with_prices_and_start_levels(tmp_path):
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({role: [1, 0.1, 2] for role in ROLES}))
    levels = tmp_path / "levels.json"
    case = "career-tied-up"
    levels.write_text(
        json.dumps({case: dict.fromkeys(["C.1", "C.2", "C.3", "A.1", "A.2", "A.3", "P.1", "P.2", "P.3"], 1)})
    )
    with LoopbackServer(world(), models=ROLES) as server:
        url = server.base_url
        done = mapo(
            *("eval", "empa", "--model", "policy", "--base-url", url, "--agents-base-url", url, *AGENTS),
            *("--out", tmp_path / "run", "--cases", case, "--repeats", 2, "--max-turns", 3),
            *("--start-levels", levels, "--prices", prices, "--requests-per-minute", 10_000),
        )
    assert done.returncode == 0, done.stderr
    records = [
        json.loads(x) for x in (tmp_path / "run" / "dialogues" / "empa.jsonl").read_text().splitlines()
    ]
    assert {r["id"] for r in records} == {f"{case}_1", f"{case}_2"}
    assert records[0]["start"] == [-7, -9, -9]
    assert records[0]["cast"] == {"user": "user", "director": "director", "judge": "judge"}
    assert records[0]["system"] and records[0]["max_turns"] == 3
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert sum(row["cost"] for row in ledger["rows"]) > 0
    assert "judge" in done.stdout and "cost" in done.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--model", "scripted:nobody"], "no scripted policy 'nobody'"),
        (["--model", "scripted:honest", "--scenarios", "builtin:none"], "no split 'none'"),
        (["--model", "scripted:honest", "--cases", "a,b"], "no scenario a, b"),
        (["--model", "scripted:honest", "--agents", "puppets"], "scripted or llm"),
        (
            ["--model", "scripted:honest", "--agents", "scripted", "--director-model", "x"],
            "Remove one of the two",
        ),
        (["--model", "scripted:honest", "--judge-model", "x"], "no model for the user"),
        (["--model", "scripted:honest", "--judge-base-url", "http://x/v1"], "no model for the user"),
        (["--model", "m", "--base-url", "ftp://x"], "not a valid address"),
        (["--model", "scripted:honest", "--cache", "nonsense"], "record, replay"),
        (["--model", "scripted:honest", "--resume"], "no run to resume"),
        (["--model", "scripted:honest", "--profile", "draft"], "unknown profile"),
        (["--model", "scripted:honest", "--prices", "/nowhere.json"], "/nowhere.json"),
        (["--model", "scripted:honest", "--start-levels", "/nowhere.json"], "/nowhere.json"),
    ],
)
def test_bad_options_cost_nothing(tmp_path, args, words):
    done = mapo("eval", "empa", "--out", tmp_path / "run", *args)
    assert done.returncode == 2 and words in done.stderr
    assert not (tmp_path / "run").exists()


def test_bad_prices(tmp_path):
    (tmp_path / "p.json").write_text('{"m": 3}')
    done = mapo(
        "eval", "empa", "--model", "scripted:honest", "--out", tmp_path / "r", "--prices", tmp_path / "p.json"
    )
    assert done.returncode == 2 and "not a table of prices" in done.stderr


def test_cards_need_models(tmp_path):
    (tmp_path / "cards").mkdir()
    put_cards(tmp_path / "cards", CARD)
    done = mapo(
        *("eval", "empa", "--model", "scripted:honest", "--out", tmp_path / "run"),
        *("--scenarios", tmp_path / "cards"),
    )
    assert done.returncode != 0 and "--agents-model NAME" in done.stderr


def test_replay_of_a_recorded_run_needs_no_server(tmp_path):
    calls = tmp_path / "calls.sqlite"
    common = ["eval", "empa", "--model", "policy", *AGENTS, "--cases", "career-tied-up", "--max-turns", 2]
    common += ["--cache-file", calls]
    with LoopbackServer(world()) as server:
        url = server.base_url
        first = mapo(*common, "--base-url", url, "--agents-base-url", url, "--out", tmp_path / "one")
    dead = "http://127.0.0.1:9/v1"
    urls = ["--base-url", dead, "--agents-base-url", dead]
    again = mapo(*common, *urls, "--out", tmp_path / "two", "--cache", "replay")
    assert first.returncode == again.returncode == 0, again.stderr
    one, two = (json.loads((tmp_path / x / "dialogues" / "empa.jsonl").read_text()) for x in ("one", "two"))
    assert {**one, "seconds": 0} == {**two, "seconds": 0}
    assert "no dialogue can pass" in first.stderr


def test_temperatures_of_policy_user_and_judge(tmp_path):
    seen = {}

    def answer(body):
        seen.setdefault(body["model"], set()).add((body["temperature"], body.get("top_p")))
        return world()(body)

    with LoopbackServer(answer) as server:
        url = ["--base-url", server.base_url, "--agents-base-url", server.base_url]
        common = ["eval", "empa", "--model", "policy", *AGENTS, *url, "--cases", "career-tied-up"]
        common += ["--max-turns", 2, "--out", tmp_path / "run", "--temperature", 0.4, "--top-p", 0.9]
        done = mapo(*common, "--user-temperature", 0.7, "--judge-temperature", 0.1)
        other = mapo(*common, "--user-temperature", 0.6, "--judge-temperature", 0.1, "--resume")
    assert done.returncode == 0, done.stderr
    assert seen == {
        "policy": {(0.4, 0.9)}, "user": {(0.7, None)}, "director": {(0.0, None)}, "judge": {(0.1, None)}
    }  # fmt: skip
    assert other.returncode == 2 and "cast" in other.stderr
    none = mapo(
        "eval", "empa", "--model", "scripted:honest", "--out", tmp_path / "x", "--judge-temperature", 1
    )
    assert none.returncode == 2 and "which is scripted" in none.stderr


def test_keys_go_to_the_address_they_were_given_for(monkeypatch, tmp_path):
    monkeypatch.setenv("AGENTS_KEY", "sk-agents-agents")
    monkeypatch.setenv("JUDGE_KEY", "sk-judge-judge")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with (
        LoopbackServer(world(), key="sk-agents-agents") as agents,
        LoopbackServer(world(), key="sk-judge-judge") as judge,
    ):
        done = mapo(
            *("eval", "empa", "--model", "scripted:honest", "--out", tmp_path / "run", "--max-turns", 1),
            *("--cases", "career-tied-up", "--agents-model", "user", "--agents-base-url", agents.base_url),
            *("--agents-key-env", "AGENTS_KEY", "--judge-model", "judge", "--judge-base-url", judge.base_url),
            *("--judge-key-env", "JUDGE_KEY"),
        )
    assert done.returncode == 0, done.stderr
    assert judge.calls == 1


def test_a_policy_without_a_system_prompt_is_another_run(tmp_path):
    out = tmp_path / "run"
    given = ["eval", "empa", "--model", "scripted:honest", "--cases", "career-biscuit-tin"]
    given += ["--scenarios", "builtin:all", "--max-turns", "1", "--out", str(out)]
    assert mapo(*given, "--no-system").returncode == 0
    assert json.loads((out / "manifest.json").read_text())["system"] is False
    assert "--resume" in mapo(*given).stderr
    assert "system" in mapo(*given, "--resume").stderr


def test_an_evaluation_leaves_health_json(tmp_path):
    out = tmp_path / "run"
    asked = ("eval", "empa", "--model", "scripted:comforter", "--out", out, "--repeats", 2)
    done = mapo(*asked)
    assert done.returncode == 0, done.stderr
    told = json.loads((out / "health.json").read_text())
    assert told["schema"] == "mapo.health/1" and told["scripted"] and told["told_early"] == 0.0
    assert told["lines"] > 100 and 0 < told["repeated"] < 0.5 and told["misses"] > 20
    assert told["warnings"] and all(f"warning: {warning}" in done.stderr for warning in told["warnings"])
    [folder] = read_folders(out)
    assert folder.bad == [] and len(folder.results) == told["dialogues"]
    [run] = find_runs(tmp_path)
    assert run.other == [] and health_of(run)["rows"][0].value == told["repeated"]
    assert "Simulated users" in [b.text for b in build([str(out)]).blocks if isinstance(b, Heading)]


def test_a_context_that_is_too_small_is_announced_counted_and_recorded(tmp_path):
    model, out = small.model_folder(tmp_path / "model"), tmp_path / "run"
    args = ["--model", f"local:{model}", "--limit=2", "--max-turns=12", "--max-tokens=16", "--context=700"]
    done = mapo("eval", "empa", *args, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "12 turns usually need more than the context of 700 tokens" in done.stderr
    assert "2 of 2 dialogues ended because the policy's context (700) was full" in done.stderr
    assert json.loads((out / "manifest.json").read_text())["context"] == 700
    other = mapo("eval", "empa", *args[:-1], "--context=900", "--out", out, "--resume")
    assert other.returncode == 2 and "context: 700 there, 900 here" in other.stderr


def with_prompts(folder, prompts=()):
    """An evaluation of one dialogue with models in all roles."""
    with LoopbackServer(world(), models=ROLES) as server:
        url = server.base_url
        done = mapo(
            *("eval", "empa", "--model", "policy", "--base-url", url, "--agents-base-url", url, *AGENTS),
            *("--out", folder, "--cases", "career-tied-up", "--max-turns", 1, *prompts),
        )
    assert done.returncode == 0, done.stderr
    return done


def without_fingerprint(folder):
    """Make a run one of an earlier version, which did not record its prompts."""
    for file, key in (
        (folder / "manifest.json", "prompts"),
        (folder / "dialogues" / "empa.jsonl", "prompts"),
    ):
        record = json.loads(file.read_text())
        del record[key]
        file.write_text(json.dumps(record) + "\n")


def test_runs_with_different_prompts_have_different_columns(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "transcript.md").write_text("Quoted. $mark")
    own = with_prompts(tmp_path / "own")
    with_prompts(tmp_path / "same")
    with_prompts(tmp_path / "other", ("--prompts", tmp_path / "mine"))
    assert "mapo's own, which judge more mildly than EMPA's" in " ".join(own.stdout.split())
    manifest = json.loads((tmp_path / "other" / "manifest.json").read_text())
    assert manifest["prompts"].startswith("mine ")
    assert columns(tmp_path / "own", tmp_path / "same") == {""}
    assert len(columns(tmp_path / "own", tmp_path / "other")) == 2
    for name in ("own", "other"):
        without_fingerprint(tmp_path / name)
    assert columns(tmp_path / "own", tmp_path / "other") == {""}
    assert len(columns(tmp_path / "own", tmp_path / "same")) == 2


def columns(*runs):
    """What distinguishes the columns of EPM-Q in a comparison of runs."""
    found = compare([f"run{n}={run}" for n, run in enumerate(runs)])
    return {", ".join(column.distinctions) for column in found.columns if column.name == "EPM-Q"}


def test_a_run_without_a_fingerprint_can_be_resumed(tmp_path):
    with_prompts(tmp_path / "run")
    without_fingerprint(tmp_path / "run")
    with_prompts(tmp_path / "run", ("--resume",))


def test_a_run_is_not_resumed_with_other_prompts(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "transcript.md").write_text("Quoted. $mark")
    run = (
        "eval",
        "empa",
        "--model",
        "scripted:honest",
        "--agents-base-url",
        "http://127.0.0.1:9/v1",
        *AGENTS,
    )
    with_prompts(tmp_path / "run")
    done = mapo(*run, "--out", tmp_path / "run", "--resume", "--prompts", tmp_path / "mine")
    assert done.returncode == 2 and "prompts:" in done.stderr


def test_the_prompts_of_a_run_are_shown_in_report_and_viewer(tmp_path):
    with_prompts(tmp_path / "run")
    assert "mapo's own, which judge more mildly" in build([str(tmp_path / "run")]).caution


def test_a_judge_is_no_policy(tmp_path):
    done = mapo("eval", "empa", "--model", "local:pocket-judge", "--out", tmp_path / "run")
    assert done.returncode == 2 and "was trained to be a judge and cannot hold a dialogue" in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_scripted_judge_is_not_an_endpoint():
    nobody = PartialSpec()
    assert cast_from_options("scripted", nobody, judge=PartialSpec("scripted")) is None
    assert cast_from_options(None, nobody, judge=PartialSpec("scripted")) is None
    with pytest.raises(InputError, match="knows only scripted people"):
        cast_from_options("llm", PartialSpec("some-model"), judge=PartialSpec("scripted"))
    with pytest.raises(InputError, match="no effect on a scripted judge"):
        cast_from_options(None, nobody, judge=PartialSpec("scripted", "http://127.0.0.1:9"))
