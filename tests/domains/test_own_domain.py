"""A domain outside the package: found by its folder, its Python run from there; its page's commands work."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from mapo import Rubric
from mapo import domain_folders as places
from mapo.config import load_config
from mapo.errors import InputError, RubricError, ScenarioError
from mapo.measure.epmq import composite
from mapo.sandbox.domain import check_cues, scripted_cast, scripted_policies, scripted_policy
from mapo.sandbox.prompting import fragment
from mapo.sandbox.rollout import Job, Rules, play_all
from mapo.scenarios.sets import load_scenarios, read_set
from mapo.scoring.result import recompute
from mapo.types import Reply, Turn
from support.command import mapo
from support.published import REPO

EXAMPLE = REPO / "examples" / "own_domain"
PAGE = REPO / "docs" / "own-domain.md"


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    """Each test names its own folders."""
    monkeypatch.setattr(places, "_by_path", {})
    for name in [name for name in sys.modules if name.startswith("mapo_domain_")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def support(tmp_path, monkeypatch) -> Path:
    """A copy of the example, in the folder one works in."""
    shutil.copytree(EXAMPLE, tmp_path / "support")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "support"


def commands() -> list[list[str]]:
    lines = [line.strip() for line in PAGE.read_text(encoding="utf-8").splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("mapo ")]


def test_the_commands_of_the_page_that_do_not_train_work(support):
    for command in commands():
        if command[0] != "train" and "runs/support" not in " ".join(command):
            done = mapo(*command, typed="So it is the kettle that gives you trouble.\n\n")
            assert done.returncode == 0, (command, done.stdout, done.stderr)


@pytest.mark.slow
def test_every_command_of_the_page_works(support):
    short = ["optim.steps=2", "optim.updates=1", "eval.every=1", "eval.repeats=1", "eval.test_repeats=1"]
    short += ["rollout.scenarios=2", "rollout.siblings=2", "rollout.max_turns=6", "rollout.max_tokens=24"]
    short += ["run.checkpoint_every=2", "run.threads=1", "run.trackers=[]"]
    asked = commands()
    assert {c[0] for c in asked} == {"scenarios", "play", "eval", "compare", "train", "score", "report"}
    for command in asked:
        extra = short if command[0] == "train" else []
        done = mapo(*command, *extra, typed="So it is the kettle that gives you trouble.\n\n")
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert "Fault" in (support / "rubric.toml").read_text() == Path("runs/support/rubric.toml").read_text()
    assert Path("runs/support/report.html").is_file()


def test_the_page_shows_the_whole_config():
    [shown] = re.findall(r"```toml\n(\[scenarios\]\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert tomllib.loads(shown) == tomllib.loads((EXAMPLE / "config.toml").read_text(encoding="utf-8"))


def test_a_config_that_names_only_the_domain_is_enough(support):
    (support / "config.toml").write_text('[scenarios]\ndomain = "."\n', encoding="utf-8")
    short = ["optim.steps=1", "eval.every=1", "eval.test_repeats=0", "run.threads=1", "run.trackers=[]"]
    short += ["rollout.scenarios=1", "rollout.siblings=2", "rollout.max_turns=2", "rollout.max_tokens=16"]
    short += ["rollout.at_once=4"]
    done = mapo("train", support / "config.toml", "--out", "runs/bare", *short)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("part", "given", "says"),
    [
        ("policies", ("--model", "scripted:honest"), "has no policies.py: it has no scripted policies"),
        ("scripted", ("--model", "local:pocket"), "has no scripted.py: it has no scripted user"),
    ],
)
def test_a_file_the_domain_lacks_is_named(support, part, given, says):
    (support / f"{part}.py").unlink()
    done = mapo("eval", "empa", "--domain", "support", *given, "--out", "runs/x")
    assert done.returncode == 2 and says in done.stderr and "roles. Use models" not in done.stderr


def test_the_readme_of_the_example_names_its_folder():
    told = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    assert len(re.findall(r"mapo .*examples/own_domain", told)) >= 4


def test_a_run_needs_the_folder_no_more(support):
    given = ["--domain", "support", "--model", "scripted:honest", "--out", "runs/honest"]
    assert mapo("eval", "empa", *given).returncode == 0
    shutil.rmtree(support)
    places._by_path.clear()
    assert "scripted:honest" in mapo("score", "runs/honest").stdout


def judge_of(scenario):
    return scripted_cast("support")(Job(scenario, "d")).judge


def judged(scenario, *replies):
    lines = [line for stage in scenario.stages for line in stage.says]
    turns, out = [], []
    judge = judge_of(scenario)
    for line, text in zip(lines, replies, strict=False):
        turns.append(Turn(line, Reply(text)))
        out.append(asyncio.run(judge.judge(turns)))
    return [{k: (m.progress.level, m.regression.level) for k, m in levels.items()} for levels in out]


def test_a_promise_falls_due_when_nothing_is_behind_it(support):
    pram = next(s for s in load_scenarios("builtin:all", support) if s.id == "pram-wheel")
    later = ["And then it came off there.", "It is what one hears about.", "So that is how it went then."]
    kept = judged(pram, "I promise that it will be fixed soon.", *later)
    assert [levels["T"] for levels in kept] == [(0, 0), (0, 0), (0, 0), (0, -2)]


def test_the_honest_agent_wins_in_the_example_and_no_game_passes(support):
    rubric, scenarios = Rubric.load(support), load_scenarios("builtin:all", "support")
    scores = {}
    for name in scripted_policies("support"):
        jobs = [Job(s, s.id) for s in scenarios]
        talks = asyncio.run(
            play_all(jobs, scripted_policy("support", name), scripted_cast("support"), Rules(rubric))
        )
        rows = [recompute(d, Path("none"), None, rubric, d.id) for d in talks]
        scores[name] = composite([r.indices for r in rows]).epm_q, sum(r.passed for r in rows)
    honest = scores.pop("honest")
    assert honest[0] > 80 and honest[1] >= 6 and len(scores) >= 3
    assert all(score < 40 and passed == 0 for score, passed in scores.values()), scores


def test_a_domain_is_known_by_its_folder_and_then_by_its_name(support):
    with pytest.raises(ScenarioError, match=r"no domain 'elsewhere'.*or the path of a folder"):
        places.domain_folder("elsewhere")
    assert places.known_folder("support") is None  # a name, and nobody has said where
    assert fragment("support", "policy") == ""
    assert places.domain_name(support) == "support" and places.known_folder("support") == support
    assert places.domain_folder("support") == support == places.domain_folder(Path("support"))
    assert "small firm" in fragment("support", "policy") and fragment("support", "director") == ""
    assert Rubric.load("support") == Rubric.load(support) == Rubric.load(support / "rubric.toml")


def test_a_shipped_domain_may_be_named_by_its_folder():
    folder = places.domain_folder("tutoring")
    assert places.domain_name(folder) == "tutoring" == places.domain_name("tutoring")


def test_two_domains_do_not_share_a_name(support, tmp_path):
    places.domain_folder(support)
    shutil.copytree(support, tmp_path / "again")
    with pytest.raises(ScenarioError, match=r"'support' is already used by"):
        places.domain_folder(tmp_path / "again")
    (tmp_path / "again" / "rubric.toml").write_text(
        (support / "rubric.toml").read_text().replace('name = "support"', 'name = "empathy"')
    )
    with pytest.raises(ScenarioError, match="'empathy' is already used"):
        places.domain_folder(tmp_path / "again")


@pytest.mark.parametrize(
    ("text", "says"), [("name = ", "not a readable TOML"), ("zone = 1.0", "has no name")]
)
def test_a_folder_whose_rubric_cannot_be_used(tmp_path, text, says):
    (tmp_path / "rubric.toml").write_text(text)
    with pytest.raises(ScenarioError, match=says):
        places.domain_folder(tmp_path)


def test_a_domain_without_python_is_for_models_alone(support):
    (support / "scripted.py").unlink()
    (support / "policies.py").unlink()
    scenarios = load_scenarios("builtin:train", "support")
    assert check_cues("support", scenarios[0]) == []
    with pytest.raises(InputError, match="--agents llm"):
        scripted_cast("support")
    with pytest.raises(InputError, match=r"has no policies\.py.*Use a model"):
        scripted_policy("support", "honest")


def test_a_domain_need_not_check_its_cues(support):
    text = (support / "scripted.py").read_text()
    (support / "scripted.py").write_text(text.replace("def check_cues", "def _unused"))
    scenarios = load_scenarios("builtin:train", "support")
    assert check_cues("support", scenarios[0]) == []


def test_what_a_domain_says_of_its_cues_is_told_by_the_check(support):
    file = support / "scenarios" / "pram-wheel.toml"
    file.write_text(file.read_text().replace('cost = "wrote three mails"', 'cost = "flew to the moon"'))
    done = mapo("scenarios", "check", support / "scenarios", "--domain", "support")
    assert done.returncode == 1 and "cost 'flew to the moon' does not occur in" in done.stderr


def test_scenarios_say_their_domain_where_nobody_else_does(support):
    folder = support / "scenarios"
    done = mapo("scenarios", "check", folder)  # a file cannot choose whose code is run
    assert done.returncode == 1 and "no domain 'support'" in done.stderr
    places.domain_folder(support)
    assert {s.domain for s in load_scenarios(folder)} == {"support"}
    shutil.copy(places.domain_folder("tutoring") / "scenarios" / "music-loud-high.toml", folder)
    with pytest.raises(ScenarioError, match="other scenarios of the set"):
        read_set(folder)
    with pytest.raises(ScenarioError, match="'support' was requested"):
        read_set(folder, "support")


def test_a_path_in_a_config_is_seen_from_its_file(support, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    assert load_config(support / "config.toml").scenarios.domain == str(support)
    monkeypatch.chdir(tmp_path)
    assert load_config(None, ["scenarios.domain=./support"]).scenarios.domain == str(support)
    assert load_config(None, ["scenarios.domain=tutoring"]).scenarios.domain == "tutoring"
    assert load_config("tutoring").scenarios.domain == "tutoring"
    with pytest.raises(InputError):
        load_config(None, ["scenarios=tutoring"])


def test_bounds_of_difficulty_are_checked(support):
    text = (support / "rubric.toml").read_text()
    for bounds in ("[1.0]", "[3.0, 2.0, 9.0]"):
        (support / "rubric.toml").write_text(text.replace("zone = 1.0", f"zone = 1.0\ndifficulty = {bounds}"))
        with pytest.raises(RubricError, match="increasing bounds"):
            Rubric.load(support)
    rubric = Rubric.load("tutoring")
    assert "difficulty" not in rubric.measure and rubric.measure["name"] == "tutoring"
