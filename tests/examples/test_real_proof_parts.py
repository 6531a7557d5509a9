"""Parts of examples/real_proof that need no model: settings, names, verdicts, numbers of replies."""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mapo.errors import InputError
from mapo.records import encode_dialogue
from mapo.scenarios.scenario import Memory
from mapo.scenarios.sets import load_scenarios
from mapo.store import RunDir, write_atomic
from support.recordings import recordings

FOLDER = Path(__file__).parents[2] / "examples" / "real_proof"


@pytest.fixture
def module(monkeypatch):
    """Return a function that imports a module of the example; its modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(FOLDER)
    before = set(sys.modules)
    yield importlib.import_module
    for name in {path.stem for path in FOLDER.glob("*.py")} - before:
        sys.modules.pop(name, None)


def opened(module, work, *changes, **inputs):
    return module("study").open_study(work, None, changes, inputs)


def test_settings_of_the_study_and_of_its_trainings(module, tmp_path):
    study = opened(module, tmp_path, "tune.steps=7", "rollout.siblings=4", "rollout.siblings=6", model="m")
    assert study.settings.tune.steps == 7
    assert study.settings.train == ("rollout.siblings=6",)
    again = opened(module, tmp_path)
    assert (again.settings, again.inputs.model) == (study.settings, "m")


def test_unknown_settings_are_refused_and_the_earlier_ones_kept(module, tmp_path):
    opened(module, tmp_path, "tune.steps=7")
    with pytest.raises(InputError, match="tune.stepz"), module("study").kept_if_refused(tmp_path):
        opened(module, tmp_path, "tune.stepz=8")
    assert opened(module, tmp_path).settings.tune.steps == 7


def test_the_shipped_settings(module, tmp_path):
    study = opened(module, tmp_path)
    names = [run.name for run in study.trainings]
    assert names[:2] == ["grpo_0", "mapo_0"] and names[-2:] == ["grpo_2", "mapo_2"]
    assert [run.name for run in study.tested[:3]] == ["base_0", "base_1", "base_2"]
    assert study.settings.pairs.trained in names and set(study.settings.keep.models) <= set(names)


def test_only_names_a_run_or_a_command(module):
    matches = module("stages").matches
    names = ("train_mapo_0", "test_mapo_0", "train_mapo_10", "tune_mapo_0.0001")
    assert [name for name in names if matches(name, "mapo_0")] == ["train_mapo_0", "test_mapo_0"]
    assert [name for name in names if matches(name, "train_*")] == ["train_mapo_0", "train_mapo_10"]


@pytest.mark.parametrize(
    ("a", "b", "p"),
    [
        (5, 0, 2 / 32),  # 2 P(X = 5)
        (4, 1, 2 * (5 + 1) / 32),  # 2 P(X >= 4)
        (2, 2, 1.0),
        (0, 0, None),
    ],
)
def test_sign_test(module, a, b, p):
    assert module("pairs").sign_test(a, b) == p


def test_verdicts_are_counted_by_the_key(module, tmp_path):
    study = opened(module, tmp_path)
    sides = [("base", "trained"), ("trained", "base"), ("base", "trained")]
    key = {f"{n:02d}": {"case": "c", "1": a, "2": b} for n, (a, b) in enumerate(sides, 1)}
    (tmp_path / "pairs_key.json").write_text(json.dumps({"models": {}, "pairs": key}))
    (tmp_path / "read.csv").write_text("pair,verdict,reason\n1,2,warmer\n02,1,\n3,Tie,\n")
    result = module("pairs").count_verdicts(study, tmp_path / "read.csv")
    assert (result["trained"], result["base"], result["tie"], result["read"]) == (2, 0, 1, 3)
    assert result["first_preferred"] == 1
    (tmp_path / "read.csv").write_text("pair,verdict,reason\n1,2,\n1,1,\n")
    with pytest.raises(InputError, match="line 3"):
        module("pairs").count_verdicts(study, tmp_path / "read.csv")


@pytest.mark.parametrize(
    ("guidance", "act"),
    [
        (None, ("wait", "")),
        ("\n【阶段2：想起】\n内容", ("reveal_stage", "1")),
        ("【记忆片段释放】\n\n可以提到【少年经历】。", ("release_memory", "1")),
        ("【表演策略调整】\n\n聚焦方向：情感共情\n", ("shift_focus", "A")),
        ("【综合转折点】\n【剧情内容：阶段3】", ("turning_point", "")),
        ("【维持当前状态】\n聚焦：", ("go_on", "")),
        ("【记忆片段释放】\n\n可以提到【老年】。", None),
        ("调用失败", None),
    ],
)
def test_acts_of_a_director_in_result_files(module, guidance, act):
    memories = tuple(Memory(("她说",), period=period) for period in ("childhood", "youth"))
    scenario = replace(load_scenarios("builtin:test")[0], memories=memories)
    direction = module("acts").direction_of(guidance, scenario)
    assert (direction and (direction.act, direction.item)) == act


def test_distinct_bigrams(module):
    # bigrams: "a b", "b a", "a b" and "b c": three different ones of four
    assert module("measures").distinct(["a b a b", "b c"]) == 3 / 4


def scores(module, by_case, passes=0):
    return module("measures").Scores({(case, case): value for case, value in by_case.items()}, passes)


def test_differences_are_of_the_cases_that_both_sides_played(module):
    methods = module("measures").MethodScores
    base = methods("base", {0: scores(module, {"a": 10.0, "b": 20.0, "hard": 0.0})})
    mapo = methods("mapo", {0: scores(module, {"a": 11.0, "b": 23.0})})  # "hard" broke off
    [row] = module("measures").differences({"base": base, "mapo": mapo})
    assert (row["mean"], row["cases"]) == (2.0, 2)  # (1 + 3) / 2; over all cases it would be 7


def test_seeds_of_the_same_cases_do_not_narrow_the_interval_of_passes(module):
    one = scores(module, dict.fromkeys("abcdefghij", 0.0), passes=4)
    methods = module("measures").MethodScores
    once, thrice = methods("mapo", {0: one}), methods("mapo", {0: one, 1: one, 2: one})
    assert thrice.passes == (12, 30)
    assert thrice.passes_interval == pytest.approx(once.passes_interval)


def test_only_complete_tests_count_and_more_seeds_do_not_share_more_replies(module, tmp_path):
    study = opened(module, tmp_path)
    runs = study.tested[:3]  # the base model with three seeds
    lines = b"".join(encode_dialogue(r.dialogue) + b"\n" for r in recordings(1, 4, turns=1))
    for run in runs:
        write_atomic(RunDir(study.test(run)).empa_dialogues, lines)
    assert module("measures").quality_of(study, runs) is None
    shared = []
    for run in runs:
        write_atomic(RunDir(study.test(run)).health, "{}")
        shared.append(module("measures").quality_of(study, runs)["shared_replies"])
    assert shared[0] == shared[1] == shared[2] < 1


def test_verdicts_before_there_are_pairs(module, tmp_path):
    with pytest.raises(InputError, match="no pairs yet"):
        module("pairs").count_verdicts(opened(module, tmp_path))
