"""Parts of examples/real_proof that need no model: settings, names, verdicts, numbers of replies."""

import asyncio
import contextlib
import hashlib
import importlib
import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mapo.errors import InputError
from mapo.evals.processes import locked
from mapo.records import encode_dialogue
from mapo.scenarios.scenario import Memory
from mapo.scenarios.sets import load_scenarios, read_set
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


def test_a_further_study_has_other_seeds(module, tmp_path):
    changes = ("seed=10", "tune.rates=[1e-4]", "data.official=false", "people.use=prompted")
    study = opened(module, tmp_path, *changes, model="m")
    stages, out = module("stages"), tmp_path / "runs"
    assert "run.seed=12" in stages._train(study, "train_mapo_2", out, "mapo", 1e-4, 2).arguments
    assert stages._eval_words(study, "m", "b", 2, ("m", "m"))[-2:] == ["--seed", 12]


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
    matches = module("commands").matches
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
    [row] = module("measures").differences({"base": base, "mapo": mapo}, [("mapo", "base"), ("mapo", "grpo")])
    assert (row["mean"], row["cases"]) == (2.0, 2)  # (1 + 3) / 2; over all cases it would be 7


def test_seeds_of_the_same_cases_do_not_narrow_the_interval_of_passes(module):
    one = scores(module, dict.fromkeys("abcdefghij", 0.0), passes=4)
    methods = module("measures").MethodScores
    once, thrice = methods("mapo", {0: one}), methods("mapo", {0: one, 1: one, 2: one})
    assert thrice.passes == (12, 30)
    assert thrice.passes_interval == pytest.approx(once.passes_interval)


def write_test(study, run, dialogues, planned, *, ended=True, repeats=1):
    """Write the files of a test: its dialogues, and what was planned."""
    folder = RunDir(study.test(run))
    manifest = {"schema": "mapo.empa/1", "scenarios": dict.fromkeys(planned, ""), "repeats": repeats}
    write_atomic(folder.manifest, json.dumps(manifest))
    write_atomic(folder.empa_dialogues, b"".join(encode_dialogue(d) + b"\n" for d in dialogues))
    if ended:
        write_atomic(folder.health, "{}")


def write_split(study, **parts):
    """Write built-in scenarios and the file that splits them: `parts` are their names."""
    files, split = read_set("builtin:all").files, {"train": {}, "validation": {}, "test": {}}
    for part, names in parts.items():
        for name in names:
            content = files[name].read_bytes()
            write_atomic(study.scenarios / f"{name}.toml", content)
            split[part][name] = hashlib.sha256(content).hexdigest()
    write_atomic(study.manifest, json.dumps(split))


@pytest.fixture
def played():
    """Return one judged dialogue per scenario, of six scenarios, with the ids of an evaluation."""
    dialogues = [r.dialogue for r in recordings(1, 6, turns=1)]
    return {d.scenario: replace(d, id=d.scenario) for d in dialogues}


def test_only_complete_tests_count_and_more_seeds_do_not_share_more_replies(module, tmp_path, played):
    study = opened(module, tmp_path)
    runs = study.tested[:3]  # the base model with three seeds
    for run in runs:
        write_test(study, run, played.values(), played, ended=False)
    assert module("measures").quality_of(study, runs) is None
    shared = []
    for run in runs:
        write_atomic(RunDir(study.test(run)).health, "{}")
        shared.append(module("measures").quality_of(study, runs)["shared_replies"])
    assert shared[0] == shared[1] == shared[2] < 1


def test_a_case_that_one_test_lost_counts_for_no_method(module, tmp_path, played):
    measures, study = module("measures"), opened(module, tmp_path)
    base, mapo = study.tested[0], next(run for run in study.tested if run.name == "mapo_0")
    lost, *others = played
    broken = replace(played[lost], error="its context is full")
    write_test(study, base, played.values(), played)
    write_test(study, mapo, [broken, *(played[case] for case in others)], played)
    assert measures.left_out(study) == {lost: ["mapo_0"]}
    scores = measures.method_scores(study, "b")
    assert {case for method in scores.values() for case, _ in method.seeds[0].jobs} == set(others)
    zeros = measures.scores_with_zeros(study)
    assert [len(zeros[name].seeds[0].jobs) for name in ("base", "mapo")] == [6, 6]
    assert zeros["mapo"].seeds[0].jobs[lost, lost] == 0


def test_lost_dialogues_of_a_repeated_test_score_zero(module, tmp_path, played):
    measures, study = module("measures"), opened(module, tmp_path)
    lost, *others = played
    repeated = [replace(played[case], id=f"{case}_{n}") for case in others for n in (1, 2)]
    write_test(study, study.tested[0], repeated[1:], played, repeats=2)
    jobs = measures.scores_with_zeros(study)["base"].seeds[0].jobs
    zeros = {job for job, score in jobs.items() if score == 0}
    assert zeros == {(lost, f"{lost}_1"), (lost, f"{lost}_2"), (others[0], f"{others[0]}_1")}
    assert len(jobs) == 12


def test_a_test_that_lost_many_cases_has_failed(module, tmp_path, played):
    study = opened(module, tmp_path)
    run = study.tested[0]
    write_test(study, run, list(played.values())[:4], played)  # a third is lost
    assert module("measures").complete_tests(study) == []
    assert not module("measures").has_ended(study.test(run))


ATTEMPT = """
import sys
from pathlib import Path

calls, health, ends, status = sys.argv[1:]
with open(calls, "a") as file:
    file.write("x")
if len(Path(calls).read_text()) <= int(ends):
    Path(health).write_text("{}")
sys.exit(int(status))
"""
"""An evaluation that dies before it has tried its dialogues after its first `ends` calls."""


@pytest.mark.parametrize(
    ("ends", "status", "attempts", "failed"),
    [(2, 1, 2, False), (2, 0, 2, False), (1, 1, 2, True), (0, 1, 1, True)],  # status 0: one was never judged
)
def test_an_evaluation_without_some_dialogues_is_tried_again_and_kept(
    module, tmp_path, played, monkeypatch, ends, status, attempts, failed
):
    commands, study = module("commands"), opened(module, tmp_path)
    run = study.tested[0]
    write_test(study, run, list(played.values())[:5], played)  # health.json is that of an earlier call
    calls, health = tmp_path / "calls.txt", RunDir(study.test(run)).health
    words = [sys.executable, "-c", ATTEMPT, str(calls), str(health), str(ends), str(status)]
    monkeypatch.setattr(commands, "_words", lambda _: words)
    runner, command = commands.Runner(tmp_path), commands.mapo("test_base_0", study.test(run), "eval")
    asyncio.run(runner.run([command]))
    assert len(calls.read_text()) == attempts
    assert (list(runner.failed), runner.finished(command)) == (["test_base_0"] * failed, not failed)
    assert module("measures").complete_tests(study) == [run] * (not failed)  # a failed one is in no table


def test_a_damaged_manifest_is_a_plain_error(module, tmp_path, monkeypatch):
    commands, study = module("commands"), opened(module, tmp_path)
    folder = RunDir(study.test(study.tested[0]))
    folder.root.mkdir(parents=True)
    program = "import sys; [open(file, 'w').write('{') for file in sys.argv[1:]]"
    words = [sys.executable, "-c", program, str(folder.manifest), str(folder.health)]
    monkeypatch.setattr(commands, "_words", lambda _: words)
    with pytest.raises(InputError, match=r"manifest\.json: cannot be read"):
        asyncio.run(commands.Runner(tmp_path).run([commands.mapo("test_base_0", folder.root, "eval")]))


def test_a_command_with_other_settings_is_a_plain_error(module, tmp_path):
    commands = module("commands")
    runner = commands.Runner(tmp_path)
    runner.files.write(commands.mapo("test_base_0", tmp_path, "eval"), finished=True, seconds=1.0)
    with pytest.raises(InputError, match="other settings"):
        asyncio.run(runner.run([commands.mapo("test_base_0", tmp_path, "eval", "--seed", 2)]))


@pytest.mark.parametrize(("seconds", "begins"), [(100, True), (900, False), (2000, True)])
def test_a_test_that_would_not_end_in_time_waits_for_the_next_piece(
    module, tmp_path, monkeypatch, capsys, seconds, begins
):
    """A test that takes longer than a whole piece begins anyway: it could never begin otherwise."""
    commands, study = module("commands"), opened(module, tmp_path)
    first, second = (commands.mapo(f"test_{run.name}", study.test(run), "eval") for run in study.tested[:2])
    runner = commands.Runner(tmp_path, deadline=time.monotonic() + 600)
    runner.began -= 1000  # a piece of 1600 seconds, of which 600 are left
    runner.files.write(first, finished=True, seconds=seconds)
    monkeypatch.setattr(commands, "_words", lambda _: [sys.executable, "-c", ""])
    waits = contextlib.nullcontext() if begins else pytest.raises(commands.OutOfTimeError)
    with waits:
        asyncio.run(runner.run([first, second]))
    assert runner.finished(second) == begins
    assert (f"{second.name} postponed: not enough time left" in capsys.readouterr().out) != begins


def tuned(module, work, played, lost):
    """Choose among short trainings; `lost` maps method and rate to how many scenarios were not played."""
    study = opened(module, work, "data.official=false")
    write_split(study, validation=played)
    for (method, rate), count in lost.items():
        file = work / "tune" / f"{method}_{rate:g}" / "eval" / "validation_00004" / "dialogues.jsonl"
        write_atomic(file, b"".join(encode_dialogue(d) + b"\n" for d in list(played.values())[count:]))
    module("stages")._choose_rates(study, list(lost))
    return study, json.loads(study.rates_file.read_text())


def test_rates_are_chosen_on_the_scenarios_that_all_short_trainings_played(module, tmp_path, played):
    study, record = tuned(module, tmp_path, played, {("mapo", 1e-4): 0, ("mapo", 2e-4): 1})
    assert (record["scenarios"], record["left_out"]) == (5, 1)
    assert record["scores"][0]["epm_q"] == record["scores"][1]["epm_q"]  # the same five dialogues
    assert study.rate("mapo") == 1e-4


@pytest.mark.parametrize("lost", [2, 6])
def test_a_rate_with_which_many_scenarios_were_lost_is_not_chosen(module, tmp_path, played, lost):
    study, record = tuned(module, tmp_path, played, {("mapo", 2e-4): lost, ("mapo", 1e-4): 0})
    assert (record["scenarios"], study.rate("mapo")) == (6, 1e-4)
    [bad, good] = module("background").tuning(study)[2]
    assert (bad["lost"], "epm_q" in bad, good["chosen"]) == (lost, False, "yes")


def test_a_method_without_a_usable_rate_is_named(module, tmp_path, played):
    lost = {("grpo", 1e-4): 0, ("mapo", 1e-4): 3, ("mapo", 2e-4): 6}
    with pytest.raises(InputError, match=r"mapo_0\.0001: all short trainings of mapo .* 3 of 6.*lower"):
        tuned(module, tmp_path, played, lost)


# ---- the plan


def planned(module, work, *changes, cases=2):
    """Open a study with some test scenarios, and write its plan."""
    study = opened(module, work, "data.official=false", *changes)
    write_split(study, test=sorted(read_set("builtin:test").files)[:cases])
    module("plan").write_plan(study)
    return study


def test_the_primary_comparison_is_named_before_the_trainings(module, tmp_path):
    study = planned(module, tmp_path)
    plan = module("plan").read_plan(study)
    assert plan["comparisons"] == ["mapo - base", "mapo - grpo"]
    assert len(plan["runs"]) == 9 and plan["cases"]["count"] == 2
    planned(module, tmp_path, "primary.comparisons=['mapo - turn']")  # nothing is trained yet
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "train_mapo_0.json").write_text("{}")
    planned(module, tmp_path)
    with pytest.raises(InputError, match="named before"):
        planned(module, tmp_path, "primary.comparisons=['mapo - base']")


def test_spaces_in_a_comparison_do_not_matter(module, tmp_path):
    study = planned(module, tmp_path, "primary.comparisons=['mapo  -  base']")
    assert module("plan").read_plan(study)["comparisons"] == ["mapo - base"]


def test_a_primary_comparison_needs_known_methods(module, tmp_path):
    with pytest.raises(InputError, match="no method 'best'"):
        opened(module, tmp_path, "primary.comparisons=['mapo - best']")


def test_the_report_has_no_p_before_the_primary_comparison_is_complete(module, tmp_path, played):
    study = planned(module, tmp_path, "primary.comparisons=['mapo - base']", "test.base_seeds=1")
    runs = {run.name: run for run in study.tested}
    for name in ("base_0", "mapo_0"):
        write_test(study, runs[name], played.values(), played)
    module("report").write_results(study)
    [row] = json.loads((study.results / "primary.json").read_text())["rows"]
    assert row["verdict"] == "not complete: mapo_1, mapo_2" and "p" not in row
    page = (tmp_path / "report.md").read_text()
    assert page.index("## Primary comparison") < page.index("# Secondary results") < page.index("## Test")


def write_primary(module, work, played, lost):
    """Write the tests of base and mapo (the plan) and of grpo, and the report; `lost` maps runs to the cases
    that they could not play. Return the rows of the primary table, and the report."""
    changes = ("primary.comparisons=['mapo - base']", "test.base_seeds=1", "methods.mapo.seeds=1")
    study = planned(module, work, *changes, cases=len(played))
    for run in study.tested:
        if run.name in ("base_0", "mapo_0", "grpo_0"):
            dialogues = [d for case, d in played.items() if case not in lost.get(run.name, ())]
            write_test(study, run, dialogues, played)
    module("report").write_results(study)
    return json.loads((study.results / "primary.json").read_text())["rows"], (work / "report.md").read_text()


def test_cases_lost_in_other_tests_stay_in_the_primary_comparison(module, tmp_path, played):
    first, second, *_ = played
    [row], page = write_primary(module, tmp_path, played, {"grpo_0": [first], "mapo_0": [second]})
    assert (row["cases"], row["verdict"]) == (5, "undecided")
    assert "Left out: 1 of 6 cases" in page


def test_a_primary_comparison_that_lost_many_cases_has_failed(module, tmp_path, played):
    """Each of its tests lost a sixth of the cases, both together a third."""
    first, second, *_ = played
    [row], page = write_primary(module, tmp_path, played, {"base_0": [first], "mapo_0": [second]})
    assert row["verdict"] == "failed: too many cases are lost" and "p" not in row
    assert "The primary comparison has failed: its tests together could not play 2 of 6 cases" in page


@pytest.mark.parametrize(("other", "repeated"), [("grpo_0", True), ("base_0", False)])
def test_a_case_of_the_plan_is_tried_again_unless_a_planned_test_lost_it(
    module, tmp_path, played, other, repeated
):
    lost = next(iter(played))
    write_primary(module, tmp_path, played, {other: [lost], "mapo_0": [lost]})
    study = opened(module, tmp_path)
    command = module("commands").mapo("test_mapo_0", tmp_path / "test" / "mapo_0", "eval")
    assert module("stages")._is_worth_repeating(study, command) == repeated


# ---- several studies


def written_scores(module, work, played, changes=("methods.mapo.seeds=1",)):
    """Write a study with tests of base, mapo and grpo, and return the file of its scores."""
    fixed = ("primary.comparisons=['mapo - base']", "test.base_seeds=1")
    study = planned(module, work, *fixed, *changes, cases=len(played))
    for run in study.tested:
        if run.name in ("base_0", "mapo_0", "grpo_0"):
            write_test(study, run, played.values(), played)
    module("pooling").write_scores(study)
    return study.results / "scores.json"


def changed(file, target, **values):
    """Write a scores file with other values."""
    target.write_text(json.dumps(json.loads(file.read_text()) | values))
    return target


def with_scores(tests, method, by):
    """Return tests in which a method scores more."""
    return [
        {**t, "dialogues": [[case, key, score + by, passed] for case, key, score, passed in t["dialogues"]]}
        if t["method"] == method
        else t
        for t in tests
    ]


def test_studies_are_pooled(module, tmp_path, played):
    file = written_scores(module, tmp_path / "one", played)
    assert not any(turn.user in file.read_text() for d in played.values() for turn in d.turns)
    tests = json.loads(file.read_text())["tests"]
    first = changed(file, tmp_path / "a.json", tests=with_scores(tests, "mapo", 2))
    second = changed(file, tmp_path / "b.json", tests=with_scores(tests, "mapo", 4), judge_seeds=[3, 4])
    page = module("pooling").pool([first, second], tmp_path / "pooled")
    [row] = json.loads((tmp_path / "pooled" / "primary.json").read_text())["rows"]
    assert (row["difference"], row["seeds"], row["cases"]) == ("mapo - base", 2, 6)
    assert row["mean"] == pytest.approx(3) and row["verdict"] == "higher"
    [base, *_] = json.loads((tmp_path / "pooled" / "methods.json").read_text())["rows"]
    assert (base["method"], base["seeds"]) == ("base", 2)
    assert "2 studies" in page.read_text()


def test_an_incomplete_study_decides_nothing(module, tmp_path, played):
    whole = written_scores(module, tmp_path / "one", played)
    part = written_scores(module, tmp_path / "two", played, ["methods.mapo.seeds=2", "judges.seeds=[3, 4]"])
    module("pooling").pool([whole, part], tmp_path / "pooled")
    [row] = json.loads((tmp_path / "pooled" / "primary.json").read_text())["rows"]
    assert row["verdict"] == "not complete: mapo_1 of study 2" and "p" not in row


def refused_pool(module, files, told):
    out = files[0].parent / "pooled"
    with pytest.raises(InputError, match=told) as error:
        module("pooling").pool(files, out)
    assert not out.exists() and error.value.where == str(files[-1])


def test_pooled_studies_must_have_planned_the_same(module, tmp_path, played):
    file = written_scores(module, tmp_path / "one", played)
    for values in ({"comparisons": ["mapo - grpo"]}, {"level": 0.1}, {"cases_digest": "0"}):
        other = changed(file, tmp_path / "other.json", judge_seeds=[3, 4], **values)
        refused_pool(module, [file, other], "planned comparisons")


def test_a_study_is_not_pooled_with_itself(module, tmp_path, played):
    file = written_scores(module, tmp_path / "one", played)
    refused_pool(module, [file, changed(file, tmp_path / "copy.json")], "judges' seeds of")


def test_studies_without_a_common_case_are_not_pooled(module, tmp_path, played):
    file = written_scores(module, tmp_path / "one", played)
    tests = json.loads(file.read_text())["tests"]
    others = [{**t, "dialogues": [["x" + row[0], *row[1:]] for row in t["dialogues"]]} for t in tests]
    other = changed(file, tmp_path / "other.json", judge_seeds=[3, 4], tests=others)
    with pytest.raises(InputError, match="no case was played in all tests"):
        module("pooling").pool([file, other], tmp_path / "pooled")
    assert not (tmp_path / "pooled").exists()


TEST = {"judge": "b", "method": "base", "seed": 0, "dialogues": [["case", "case", 30.0, False]]}


@pytest.mark.parametrize(
    "values",
    [
        {"schema": "mapo.real_proof.scores/2"},
        {"level": 5},
        {"cases": 0},
        {"tests": []},
        {"tests": [TEST, TEST]},
        {"tests": [{**TEST, "dialogues": TEST["dialogues"] * 2}]},
        {"tests": [{**TEST, "dialogues": []}]},
        {"tests": [{**TEST, "dialogues": [["case", "case", 1e308, False]]}]},
        {"tests": [{**TEST, "dialogues": [["case", "case", float("nan"), False]]}]},
        {"tests": [{**TEST, "judge": "c"}]},
    ],
    ids=str,
)
def test_scores_that_cannot_be_are_refused(module, tmp_path, played, values):
    file = written_scores(module, tmp_path / "one", played)
    refused_pool(module, [changed(file, tmp_path / "scores.json", **values)], "scores cannot be read")


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000, b" " * (17 << 20)], ids=len)
def test_damaged_scores_are_a_plain_error(module, tmp_path, content):
    (tmp_path / "scores.json").write_bytes(content)
    refused_pool(module, [tmp_path / "scores.json"], "scores cannot be read")
    refused_pool(module, [tmp_path / "nowhere.json"], "scores cannot be read")


# ---- archives


def test_an_archive_in_parts(module, tmp_path):
    packing, study = module("packing"), opened(module, tmp_path / "work")
    finished, open_run = study.run(study.trainings[0]), study.run(study.trainings[1])
    content = random.Random(0).randbytes(5000)
    for folder in (finished, open_run):
        write_atomic(RunDir(folder).checkpoint(1) / "optimizer.safetensors", content)
        write_atomic(RunDir(folder).dialogues / "step_00001.jsonl", "{}")
    write_atomic(RunDir(open_run).checkpoint(0) / "optimizer.safetensors", content)  # an earlier one
    write_atomic(RunDir(finished).summary, "{}")
    parts = packing.pack(study, tmp_path / "proof.tar.gz", part_bytes=2000)
    assert len(parts) > 2 and max(part.stat().st_size for part in parts) <= 2000
    packing.unpack(tmp_path / "new", tmp_path / "proof.tar.gz")
    new = module("study").open_study(tmp_path / "new", None, (), {})
    open_run = RunDir(new.run(new.trainings[1]))
    assert (open_run.checkpoint(1) / "optimizer.safetensors").read_bytes() == content
    assert not open_run.checkpoint(0).exists()
    assert not RunDir(new.run(new.trainings[0])).checkpoints.exists()
    assert not RunDir(new.run(new.trainings[0])).dialogues.exists()
    with pytest.raises(InputError, match="not empty"):
        packing.unpack(tmp_path / "new", tmp_path / "proof.tar.gz")
    parts[1].write_bytes(b"x")
    with pytest.raises(InputError, match="damaged"):
        packing.unpack(tmp_path / "other", tmp_path / "proof.tar.gz")
    parts[1].unlink()
    with pytest.raises(InputError, match="cannot be unpacked"):
        packing.unpack(tmp_path / "other", tmp_path / "proof.tar.gz")
    assert not (tmp_path / "other").exists()


def test_no_archive_is_unpacked_while_a_stage_is_running(module, tmp_path, monkeypatch, capsys):
    packing, study = module("packing"), opened(module, tmp_path / "work")
    packing.pack(study, tmp_path / "proof.tar.gz")
    new = tmp_path / "new"
    words = ["proof.py", "unpack", "--work", str(new), "--file", str(tmp_path / "proof.tar.gz")]
    monkeypatch.setattr(sys, "argv", words)
    with locked(new, "stage"):
        assert module("proof").main() == 2
    assert "another stage is running in this folder" in capsys.readouterr().err
    assert [path.name for path in new.iterdir()] == [".lock"]
    assert module("proof").main() == 0


@pytest.mark.parametrize("moment", ["extractall", "replace"])
def test_an_archive_is_unpacked_by_one_call_at_a_time(module, tmp_path, monkeypatch, moment):
    """Until it ends, unpacking keeps out another call and every other stage: also when the folder, and the
    lock in it, have just been replaced."""
    packing, study = module("packing"), opened(module, tmp_path / "work")
    new, file, problems = tmp_path / "new", tmp_path / "proof.tar.gz", []
    packing.pack(study, file)
    owner = {"extractall": packing.tarfile.TarFile, "replace": Path}[moment]
    original = getattr(owner, moment)

    def meanwhile(*args, **kw):
        result = original(*args, **kw)
        for other in (lambda: packing.unpack(new, file), lambda: locked(new, "stage").__enter__()):
            with pytest.raises(InputError) as caught:
                other()
            problems.append(caught.value.problem)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, moment, meanwhile)
        packing.unpack(new, file)
    assert problems == ["another stage is running in this folder"] * 2
    assert (new / "study.json").read_bytes() == (study.work / "study.json").read_bytes()
    with locked(new, "stage"):  # released
        pass


def test_a_stage_that_begins_while_the_folder_is_replaced_keeps_it(module, tmp_path, monkeypatch):
    packing, study = module("packing"), opened(module, tmp_path / "work")
    new, file = tmp_path / "new", tmp_path / "proof.tar.gz"
    packing.pack(study, file)
    replace_folder = Path.replace

    def after_a_stage_has_begun(draft, work):
        (work / ".lock").touch()
        return replace_folder(draft, work)

    monkeypatch.setattr(Path, "replace", after_a_stage_has_begun)
    with pytest.raises(InputError, match="cannot be replaced"):
        packing.unpack(new, file)
    assert [path.name for path in new.iterdir()] == [".lock"]


def test_an_earlier_archive_is_kept_until_the_new_one_is_written(module, tmp_path, monkeypatch):
    """It may lie in the work folder, but not in the new archive."""
    packing, study = module("packing"), opened(module, tmp_path)
    parts = packing.pack(study, tmp_path / "proof.tar.gz")

    def wanted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(packing, "_wanted", wanted)
        with pytest.raises(KeyboardInterrupt):
            packing.pack(study, tmp_path / "proof.tar.gz")
    assert all(part.exists() for part in parts)
    packing.pack(study, tmp_path / "proof.tar.gz")
    packing.unpack(tmp_path / "new", tmp_path / "proof.tar.gz")
    assert not list((tmp_path / "new").glob("proof.tar.gz*"))


def test_inputs_travel_whatever_their_names_are(module, tmp_path):
    """The result files of `mapo eval empa` are in a folder "empa", which is left out of evaluations."""
    packing, study = module("packing"), opened(module, tmp_path)
    recorded = study.recordings / "results" / "empa" / "model" / "case.json"
    exported = study.test(study.tested[0]) / "empa" / "model" / "case.json"
    for file in (recorded, exported):
        write_atomic(file, "{}")
    wanted = packing._wanted(study)
    assert recorded in wanted and exported not in wanted


@pytest.mark.parametrize("chosen", ["prompted", "learned"])
def test_a_learned_user_travels_if_it_was_chosen(module, tmp_path, chosen):
    packing, study = module("packing"), opened(module, tmp_path / "work", model="m")
    adapters = study.work / "people" / "user" / "adapter_model.safetensors"
    write_atomic(adapters, b"weights")
    assert adapters in packing._wanted(study)  # it is not decided yet
    write_atomic(study.people_file, json.dumps({"chosen": chosen, "casts": {}}))
    assert (adapters in packing._wanted(study)) == (chosen == "learned")


def test_adapters_travel_until_they_are_tested(module, tmp_path):
    study, commands = opened(module, tmp_path, emobench="data"), module("commands")
    tested, kept_too = (next(r for r in study.trainings if r.name == name) for name in ("grpo_0", "mapo_0"))

    def needed(run, *done):
        for name in done:
            command = commands.mapo(f"{name}_{run.name}", tmp_path / name)
            commands.Runner(tmp_path).files.write(command, finished=True, seconds=1.0)
        return module("stages").needs_policy(study, run)

    assert [needed(tested), needed(tested, "test")] == [True, False]
    assert [needed(kept_too), needed(kept_too, "test"), needed(kept_too, "emobench")] == [True, True, False]


def test_verdicts_before_there_are_pairs(module, tmp_path):
    with pytest.raises(InputError, match="no pairs yet"):
        module("pairs").count_verdicts(opened(module, tmp_path))
