"""mapo score, as a person runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mapo import Ending, Reply, Rubric, StopReason, Trajectory, __version__
from mapo.measure.reward import rewards_of
from mapo.store import JsonlWriter
from mapo.types import Mark, Turn
from support.builders import dialogue, empa_result, marks
from support.command import mapo
from support.published import published

RUBRIC = Rubric.load("empathy")
KEYS = {"model", "n", "passes", "indices", "outcome", "efficiency", "stability", "epm_q"}


def scored(*args: object) -> list[dict]:
    done = mapo("score", *args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def put(folder: Path, *dialogues) -> Path:
    with JsonlWriter(folder / "dialogues" / "step_00001.jsonl") as out:
        for item in dialogues:
            out.write_dialogue(item)
    return folder


def good(n=12, **kw):
    return dialogue(RUBRIC, [marks(RUBRIC, 2)] * n, **kw)


def test_two_published_models_from_their_raw_files(two_models):
    want = json.loads(published("epmq_expected.json").read_text(encoding="utf-8"))["models"]
    got = {m["model"]: m for m in scored(two_models)}
    assert set(got) == {"claude-3.5-sonnet", "llama-3.3-70b-instruct"}
    for name, model in got.items():
        assert set(model) >= KEYS
        assert (model["n"], model["passes"]) == (30, want[name]["n_success"])
        for key, value in model["indices"].items():
            assert round(value, 2) == want[name]["published"][f"Idx_{key}"]
        assert round(model["epm_q"], 2) == want[name]["published"]["EPM-Q Score"]
        assert model["differences"] == []
        lo, hi = model["intervals"]["epm_q"]
        assert lo < model["epm_q"] < hi
    assert got["llama-3.3-70b-instruct"]["notes"][0].endswith("turn 8: no 'P_Neg_level', counted as level 0")
    # one model's folder by itself gives the same
    [alone] = scored(two_models / "claude-3.5-sonnet")
    assert alone == got["claude-3.5-sonnet"]


def test_breakdowns_of_published_files(two_models):
    for by, keys in (("axis", {"A", "C", "P"}), ("category", None), ("case", None)):
        for model in scored(two_models, "--by", by):
            assert sum(row["n"] for row in model["by"]) == 30
            assert sum(row["passes"] for row in model["by"]) == model["passes"]
            assert keys is None or {row["key"] for row in model["by"]} == keys
    assert {row["key"] for row in scored(two_models, "--by", "category")[0]["by"]} != {"unknown"}


def test_released_profile_uses_the_precomputed_goals(two_models):
    for model in scored(two_models, "--profile", "released"):
        # no early stop for stagnation in that profile: those dialogues were cut short by other rules
        assert model["endings"].get("stagnation", 0) == 0
        assert model["n"] == 30
        assert all("ending is" in d for d in model["differences"])


def put_empa(folder: Path, *results: dict) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for data in results:
        (folder / f"{data['script_id']}_result.json").write_text(json.dumps(data), encoding="utf-8")
    return folder


def test_empa_files_with_their_table_of_categories(tmp_path):
    folder = put_empa(tmp_path / "some-model", empa_result("script_001"), empa_result("script_002", forms=9))
    (folder / "descriptive_statistics.csv").write_text(
        "\ufeffCase_ID,Dominant_Axis,Category\nscript_001,P,Health\n", encoding="utf-8"
    )
    [model] = scored(folder, "--by", "category")
    assert (model["model"], model["n"], model["passes"]) == ("some-model", 2, 1)
    assert model["unscored_turns"] == 2 and model["endings"] == {"success": 1, "unfinished": 1}
    assert {row["key"]: row["n"] for row in model["by"]} == {"Health": 1, "unknown": 1}
    assert {row["key"] for row in scored(folder, "--by", "axis")[0]["by"]} == {"P", "A"}
    (folder / "descriptive_statistics.csv").write_bytes(b"\xff\xfe")
    done = mapo("score", folder, "--by", "category")
    assert done.returncode == 1 and "descriptive_statistics.csv: cannot be read" in done.stderr


def test_a_failed_judgement_in_an_empa_file_is_no_movement(tmp_path):
    [model] = scored(put_empa(tmp_path / "m", empa_result()))
    # 12 turns of which 11 moved by ||(3,3,3)||; Rho = 100 E/T/2.5 counts all 12
    path = Trajectory(RUBRIC, RUBRIC.start({i.key: 2 for i in RUBRIC.indicators}))
    energy = [path.advance((3.0, 3.0, 3.0)).energy for _ in range(11)][-1]
    assert model["indices"]["Rho"] == pytest.approx(100 * energy / 12 / 2.5)


def test_the_released_profile_takes_precomputed_goals_if_they_are_usable(tmp_path):
    folder = put_empa(tmp_path / "m", empa_result())
    with_goal = scored(folder, "--profile", "released")
    data = empa_result()
    data["epj"]["epm_params"]["epsilon_energy"] = 10_000.0
    assert scored(put_empa(folder, data), "--profile", "released")[0]["passes"] == 0
    assert scored(folder)[0]["passes"] == 1  # the published profile computes its own
    data["epj"]["epm_params"]["epsilon_energy"] = "much"
    without = scored(put_empa(folder, data), "--profile", "released")
    assert with_goal[0]["passes"] == without[0]["passes"] == 1
    assert with_goal[0]["differences"] == []


def test_a_misspelt_level_key_counts_as_zero_and_is_noted(tmp_path):
    data = empa_result()
    form = data["epj"]["trajectory"][5]["mdep_analysis"]
    form["PNeg_level"] = form.pop("P_Neg_level")
    [model] = scored(put_empa(tmp_path / "m", data))
    assert model["differences"] == []
    assert "turn 5: no 'P_Neg_level', counted as level 0" in model["notes"][0]
    assert "1 x irregular judgement forms" in mapo("score", tmp_path / "m").stdout


def test_a_changed_file_is_reported(tmp_path):
    data = empa_result()
    data["epj"]["trajectory"][3]["P_t"][0] += 1
    data["epj"]["trajectory"][4]["epm"]["E_total"] = 99.0
    data["epj"]["trajectory"][5]["distance"] = 0.0
    data["epj"]["P_0_initial_deficit"][1] = 7
    data["termination_reason"] = "Reached max turns (45), timeout"
    folder = put_empa(tmp_path / "m", data)
    [model] = scored(folder)
    told = "\n".join(model["differences"])
    for words in (
        "P_0 is [-14, 7, -18], its start levels give [-14.0, -18.0, -18.0]",
        "turn 3: P_t is",
        "turn 4: E_total is 99.0",
        "turn 5: distance is 0.0",
        "ending is timeout, the rules of 'published' give success",
    ):
        assert words in told
    assert len(model["differences"]) == 5
    text = mapo("score", folder)
    assert "5 x recorded numbers differ from the recomputed ones" in text.stdout and text.returncode == 0


def test_long_lists_of_differences_are_cut_short(tmp_path):
    data = empa_result()
    for entry in data["epj"]["trajectory"][1:]:
        entry["distance"] = -1.0
    text = mapo("score", put_empa(tmp_path / "m", data)).stdout
    assert "12 x recorded" in text and "and 2 more (--json lists all)" in text


@pytest.mark.parametrize(
    ("words", "told"),
    [("Failure: Vector Oscillation", "stagnation"), ("Failure: collapse", "failure"), ("EPM Success", None)],
)
def test_recorded_endings_are_understood(tmp_path, words, told):
    data = {**empa_result(), "termination_reason": words}
    [model] = scored(put_empa(tmp_path / "m", data))
    assert model["differences"] == [] if told is None else f"ending is {told}" in model["differences"][0]


def broken_files() -> dict[str, tuple[bytes, str]]:
    data = empa_result()
    whole = json.dumps(data).encode()

    def changed(path: list, value) -> bytes:
        copy = json.loads(whole)
        at = copy
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        return json.dumps(copy).encode()

    turn = ["epj", "trajectory", 3]
    form = [*turn, "mdep_analysis"]
    filled = ["epj", "iedr_details", "filled_iedr", "P.2"]
    bare = {**data["epj"], "iedr_details": None, "P_0_initial_deficit": None}
    return {
        "not_json": (b"hello", "not JSON"),
        "truncated": (whole[: len(whole) // 2], "not JSON"),
        "deep": (b"[" * 100_000, "not JSON"),
        "empty": (b"", "not JSON"),
        "binary": (b"\xff\xfe\x00", "not JSON"),
        "list": (b"[]", "not a JSON object"),
        "no_epj": (json.dumps({"script_id": "x"}).encode(), "'epj' is missing"),
        "no_case": (json.dumps({"epj": data["epj"]}).encode(), "'script_id' is missing"),
        "no_turns": (changed(["epj", "trajectory"], []), "epj.trajectory has no turn"),
        "turns_text": (changed(["epj", "trajectory"], "x"), "'trajectory' is a str, expected a list"),
        "odd_turn": (changed(turn, 5), "epj.trajectory[3]: the entry is not an object"),
        "level_3": (changed([*form, "C_Prog_level"], 3), "turn 3: turn form, C.progress: level 3"),
        "level_text": (changed([*form, "A_Neg_level"], "-1"), "turn 3, A_Neg_level: level '-1'"),
        "level_nan": (changed([*form, "A_Neg_level"], float("nan")), "turn 3, A_Neg_level: level nan"),
        "level_inf": (changed([*form, "A_Neg_level"], float("-inf")), "turn 3, A_Neg_level: level -inf"),
        "level_half": (changed([*form, "A_Neg_level"], -0.5), "turn 3, A_Neg_level: level -0.5"),
        "level_true": (changed([*form, "A_Prog_level"], True), "turn 3, A_Prog_level: level True"),
        "form_text": (changed(form, "none"), "turn 3: mdep_analysis is not an object"),
        "start_9": (changed(filled, 9), "start form, P.2: level 9"),
        "start_none": (changed(filled, None), "filled_iedr.P.2"),
        "no_start": (changed(["epj"], bare), "neither start levels nor"),
        "k_2": (changed(["epj", "K"], 2), "judged every 2 turns"),
        "epsilon": (changed(["epj", "epsilon"], "wide"), "epsilon is 'wide'"),
        "short_start": (
            changed(["epj"], {**bare, "P_0_initial_deficit": [-1, -2]}),
            "start position [-1, -2] does not fit",
        ),
    }


def test_each_bad_file_is_named_and_the_rest_is_scored(tmp_path):
    put_empa(tmp_path, empa_result())
    cases = broken_files()
    for name, (content, _) in cases.items():
        (tmp_path / f"{name}_result.json").write_bytes(content)
    (tmp_path / "folder_result.json").mkdir()
    (tmp_path / "dangling_result.json").symlink_to(tmp_path / "nowhere")
    done = mapo("score", tmp_path, "--json")
    assert done.returncode == 1
    [model] = json.loads(done.stdout)
    assert model["n"] == 1
    lines = done.stderr.splitlines()
    assert len(lines) == len(cases) + 2
    for name, (_, words) in cases.items():
        [line] = [x for x in lines if f"{name}_result.json" in x]
        assert words in line, (name, line)
    for name in ("folder", "dangling"):
        assert any(f"{name}_result.json: cannot be read" in x for x in lines)


def test_only_bad_files(tmp_path):
    (tmp_path / "x_result.json").write_text("{")
    done = mapo("score", tmp_path)
    assert done.returncode == 2 and done.stdout == "" and "x_result.json: the file is not JSON" in done.stderr
    assert "no dialogue in the folder could be scored" in done.stderr


def test_start_may_be_the_position_alone(tmp_path):
    data = empa_result()
    del data["epj"]["iedr_details"]
    [model] = scored(put_empa(tmp_path / "m", data))
    assert model["passes"] == 1 and model["differences"] == []


def test_own_records(tmp_path):
    put(
        tmp_path / "run",
        good(id="a", tags={"category": "career", "axis": "A"}),
        good(id="b", scenario="s2"),
        dialogue(RUBRIC, [marks(RUBRIC, 1), None] * 6, id="c"),
        good(id="d", ending=Ending(StopReason.BROKEN), error="endpoint died"),
    )
    [model] = scored(tmp_path / "run", "--by", "category")
    assert (model["model"], model["n"], model["passes"], model["unscored_turns"]) == ("m", 3, 2, 6)
    assert model["endings"] == {"success": 2, "unfinished": 1}
    assert {row["key"]: row["n"] for row in model["by"]} == {"career": 1, "unknown": 2}
    text = mapo("score", tmp_path / "run")
    assert "Excluded: 1 broken dialogues" in text.stdout and text.returncode == 0


def test_several_runs_below_one_folder(tmp_path):
    put(tmp_path / "one", good())
    put(tmp_path / "two", good(), good(model="other"))
    (tmp_path / "figures").mkdir()
    assert [m["model"] for m in scored(tmp_path)] == ["one/m", "two/m", "other"]


def test_a_recorded_position_that_does_not_follow_is_reported(tmp_path):
    item = good()
    turns = list(item.turns)
    turns[2] = replace(turns[2], state=replace(turns[2].state, position=(0.0, 0.0, 0.0)))
    wrong = replace(item, turns=tuple(turns), start=(-1.0, -1.0, -1.0), ending=Ending(StopReason.TIMEOUT))
    [model] = scored(put(tmp_path / "run", wrong))
    assert len(model["differences"]) == 3
    assert "line 1, turn 3: position is (0.0, 0.0, 0.0)" in model["differences"][1]


def test_every_recorded_number_is_checked(tmp_path):
    item = rewarded(good())
    wrong = replace(
        item.turns[-1], reward=99.0, state=replace(item.turns[-1].state, energy=77.0, in_zone=False)
    )
    ended = Ending(StopReason.SUCCESS, ("zone",))
    [model] = scored(put(tmp_path / "run", replace(item, turns=(*item.turns[:-1], wrong), ending=ended)))
    told = "\n".join(model["differences"])
    for words in ("in_zone is False", "energy is 77.0", "reward is 99.0", "ending is zone"):
        assert words in told
    assert len(model["differences"]) == 4
    assert scored(put(tmp_path / "fine", item))[0]["differences"] == []


def overdone():
    """From (-15, -21, -3), twelve turns of A +3 and nothing else, a positional success at (-15, 15, -3)."""
    levels = {"C.1": 3, "C.3": 3, "A.2": 3, "A.3": 3, "P.3": 1}
    start = {i.key: Mark(levels.get(i.key, 0)) for i in RUBRIC.indicators}
    path = Trajectory(RUBRIC, RUBRIC.start(start))
    form = RUBRIC.levels(C=(0, 0), A=(2, 0), P=(0, 0))
    turns = tuple(Turn(f"line {n}", Reply(f"reply {n}"), form, path.judge(form)) for n in range(12))
    return replace(good(), start_levels=start, start=path.start, turns=turns, ending=path.ending())


def test_passes_that_leave_an_axis_unmet_are_counted_and_alignment_is_also_dynamic(tmp_path):
    run = put(tmp_path / "run", overdone())
    [model] = scored(run)
    assert (model["passes"], model["passes_unmet"]) == (1, 1)
    assert model["alignment"] == pytest.approx(0.8083)
    # mean over A = -21, -18, ... 12 of -A / sqrt(15^2 + A^2 + 3^2)
    want = sum(-a / (234 + a * a) ** 0.5 for a in range(-21, 13, 3)) / 12
    assert model["dynamic_alignment"] == pytest.approx(want)
    done = mapo("score", run, "--all")
    assert "1 unmet" in done.stdout and "+0.81" in done.stdout and f"{want:+.2f}" in done.stdout
    assert "leave an axis unmet" in done.stdout
    [fine] = scored(put(tmp_path / "fine", good()))
    assert fine["passes_unmet"] == 0


def rewarded(item):
    path = Trajectory(RUBRIC, item.start)
    for turn in item.turns:
        path.judge(turn.levels)
    turns = zip(item.turns, rewards_of(path), strict=True)
    return replace(item, reward="idr/zone", turns=tuple(replace(t, reward=r) for t, r in turns))


def test_the_records_own_turn_limits_hold(tmp_path):
    short = [marks(RUBRIC, 1)] * 5
    [model] = scored(put(tmp_path / "run", dialogue(RUBRIC, short, max_turns=5, min_turns=3)))
    assert model["endings"] == {"timeout": 1}


def put_training(folder: Path, *, tested: bool = True) -> Path:
    """Two steps that name their dialogues alike; of the second, a part another process wrote."""
    for name in ("step_00001", "step_00002", "step_00002.1"):
        with JsonlWriter(folder / "dialogues" / f"{name}.jsonl") as out:
            out.write_dialogue(good(id="000_pram_0" if "." not in name else "001_lift_0"))
    (folder / "manifest.json").write_text("{}")
    if tested:
        with JsonlWriter(folder / "eval" / "after" / "dialogues.jsonl") as out:
            out.write_dialogue(good(id="test_1"))
    return folder


def test_each_step_of_a_training_names_its_dialogues_anew(tmp_path):
    run = put_training(tmp_path / "run")
    done = mapo("score", run, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)[0]["n"] == 3
    assert "twice" not in done.stderr
    again = run / "dialogues" / "step_00002.1.jsonl"
    with JsonlWriter(again) as out:  # after a resume another process plays it
        out.write_dialogue(good(id="000_pram_0"))
    done = mapo("score", run, "--json")
    assert (
        done.returncode == 1 and json.loads(done.stdout)[0]["n"] == 3 and "is recorded twice" in done.stderr
    )


def test_scores_of_training_dialogues_have_a_note(tmp_path):
    run = put_training(tmp_path / "run")
    done = mapo("score", run)
    assert "training dialogues of 2 steps, not a held-out result" in done.stderr
    assert f"mapo score {run / 'eval' / 'after'}, or mapo compare {run}" in done.stderr
    assert "training" not in mapo("score", run / "eval" / "after").stderr
    bare = mapo("score", put(tmp_path / "bare", good())).stderr
    assert "of 1 step," in bare and "there is none yet (eval/after)" in bare


def test_a_part_of_a_run_is_scored_by_the_runs_rubric(tmp_path, monkeypatch):
    from importlib.resources import files

    text = (files("mapo") / "domains" / "tutoring" / "rubric.toml").read_text(encoding="utf-8")
    run = tmp_path / "run"
    with JsonlWriter(run / "eval" / "after" / "dialogues.jsonl") as out:
        out.write_dialogue(replace(tutored(), rubric="cooking"))
    (run / "rubric.toml").write_text(text.replace('name = "tutoring"', 'name = "cooking"'), encoding="utf-8")
    assert "rubric 'cooking' is not shipped" in mapo("score", run / "eval" / "after").stderr  # no run above
    (run / "manifest.json").write_text("{}")
    assert scored(run / "eval" / "after")[0]["n"] == 1
    monkeypatch.chdir(run / "eval")
    assert scored("after")[0]["n"] == 1
    (run / "eval" / "after" / "manifest.json").write_text("{}")  # a run of its own asks none above
    assert mapo("score", run / "eval" / "after").returncode == 2


def test_the_same_dialogue_twice_counts_once(tmp_path):
    done = mapo("score", put(tmp_path / "run", good(), good()), "--json")
    assert done.returncode == 1 and json.loads(done.stdout)[0]["n"] == 1
    assert "line 2: dialogue 'd1' of 'm' is recorded twice" in done.stderr


def test_other_rubrics_and_profiles_are_never_pooled(tmp_path):
    folder = put(tmp_path / "run", good(id="a"), good(id="b", profile="released"), replace(tutored(), id="c"))
    names = [m["model"] for m in scored(folder)]
    assert names == ["run/m (empathy, published)", "run/m (empathy, released)", "run/m (tutoring, published)"]


def test_a_director_may_end_a_dialogue(tmp_path):
    item = dialogue(RUBRIC, [marks(RUBRIC, 1)] * 4, ending=Ending(StopReason.DIRECTOR))
    [model] = scored(put(tmp_path / "run", item))
    assert model["endings"] == {"director": 1} and model["differences"] == []


def test_unfinished_dialogues_are_counted(tmp_path):
    text = mapo("score", put(tmp_path / "run", dialogue(RUBRIC, [marks(RUBRIC, 1)] * 4)))
    assert "(the record ends before the dialogue does): 1" in text.stdout


def test_stray_json_beside_model_folders_is_ignored(tmp_path):
    put_empa(tmp_path / "m1", empa_result())
    (tmp_path / "leaderboard.json").write_text("{}")
    assert [m["model"] for m in scored(tmp_path)] == ["m1"]


def test_nothing_but_regular_files_is_opened(tmp_path):
    put_empa(tmp_path, empa_result())
    os.mkfifo(tmp_path / "pipe_result.json")
    done = mapo("score", tmp_path)
    assert done.returncode == 1 and "pipe_result.json: cannot be read (not a regular file)" in done.stderr


def test_control_characters_never_reach_the_terminal(tmp_path):
    text = mapo(
        "score",
        put(tmp_path / "run", good(model="\x1b[31mred\x1b]0;title\x07"), dialogue(RUBRIC, [], id="\x1bx")),
    )
    assert "\x1b" not in text.stdout + text.stderr and "red" in text.stdout


def test_long_lists_of_errors_are_cut_short(tmp_path):
    folder = put(tmp_path / "run", good())
    with open(folder / "dialogues" / "step_00001.jsonl", "ab") as file:
        file.write(b"zzz\n" * 70)
    done = mapo("score", folder)
    assert done.stderr.count("error: ") == 51 and "... and 20 more" in done.stderr


@pytest.mark.parametrize("content", [b"", b"{", b"\n"])
def test_a_run_that_has_not_begun(tmp_path, content):
    (tmp_path / "d.jsonl").write_bytes(content)
    done = mapo("score", tmp_path)
    assert done.returncode == 2 and "no dialogue in the folder could be scored" in done.stderr


def test_turns_after_the_end_are_ignored_and_reported(tmp_path):
    [model] = scored(put(tmp_path / "run", good(n=15)))
    assert model["turns"] == 12
    assert "ends at turn 12 (success); 3 later turns are ignored" in model["differences"][0]


def test_a_torn_last_line_is_a_warning(tmp_path):
    folder = put(tmp_path / "run", good(), good(id="b"))
    file = folder / "dialogues" / "step_00001.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    done = mapo("score", folder, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)[0]["n"] == 1
    assert "warning" in done.stderr and "line 2: torn" in done.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"turns": ()}, "no judged turn"),
        ({"rubric": "cooking"}, "rubric 'cooking' is not shipped"),
        ({"profile": "draft"}, "unknown profile 'draft'"),
        ({"start_levels": {}}, "start form: missing"),
    ],
)
def test_bad_records_are_named_with_their_line(tmp_path, change, words):
    done = mapo("score", put(tmp_path / "run", good(), replace(good(), id="other", **change)), "--json")
    assert done.returncode == 1 and json.loads(done.stdout)[0]["n"] == 1
    assert "step_00001.jsonl, line 2: " in done.stderr and words in done.stderr


def test_bad_levels_in_a_record_name_the_turn(tmp_path):
    item = good()
    wrong = replace(item.turns[4], levels=marks(RUBRIC, 5))
    done = mapo("score", put(tmp_path / "run", replace(item, turns=(*item.turns[:4], wrong))))
    assert done.returncode == 2 and "line 1, turn 5: turn form, C.progress: level 5" in done.stderr


def test_a_run_may_bring_its_own_rubric(tmp_path):
    from importlib.resources import files

    text = (files("mapo") / "domains" / "tutoring" / "rubric.toml").read_text(encoding="utf-8")
    folder = put(tmp_path / "run", replace(tutored(), rubric="cooking"))
    (folder / "rubric.toml").write_text(
        text.replace('name = "tutoring"', 'name = "cooking"'), encoding="utf-8"
    )
    assert scored(folder)[0]["n"] == 1
    named = put(tmp_path / "named", replace(tutored(), rubric="elsewhere"))
    assert scored(named, "--rubric", folder / "rubric.toml")[0]["n"] == 1


def tutored():
    rubric = Rubric.load("tutoring")
    return dialogue(rubric, [marks(rubric, 2)] * 10)


def test_four_axes_score_like_three(tmp_path):
    [model] = scored(put(tmp_path / "run", tutored(), replace(tutored(), id="t2")), "--by", "axis")
    assert model["passes"] == 2 and model["by"][0]["key"] in "MUSG"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p / "missing", "the folder does not exist"),
        (lambda p: p, "holds no result files"),
        (lambda p: (p / "f.txt").write_text("x") and p / "f.txt", "this is a file, not a folder"),
    ],
)
def test_nothing_to_score(tmp_path, make, words):
    done = mapo("score", make(tmp_path))
    assert done.returncode == 2 and words in done.stderr and done.stdout == ""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--profile", "draft"], "published, released"),
        (["--by", "mood"], "case, category, axis"),
        (["--rubric", "none"], "the rubric does not exist"),
    ],
)
def test_bad_options(args, words):
    done = mapo("score", *args)
    assert done.returncode == 2 and words in done.stderr


def test_examples_are_scored_by_default():
    models = {m["model"]: m for m in scored()}
    assert len(models) == 2 and all(m["n"] >= 5 for m in models.values())
    assert all(m["differences"] == [] for m in models.values())
    text = mapo("score", "--by", "axis")
    assert "EPM-Q" in text.stdout and "Sproj" not in text.stdout and text.returncode == 0


def test_sub_indices_are_shown_with_all():
    assert all(name in mapo("score", "--all").stdout for name in ("Sproj", "Pen", "sub-indices"))


def test_the_notice_of_the_test_world_stands_directly_above_the_numbers():
    lines = [line.strip() for line in mapo("score").stdout.splitlines() if line.strip(" ─")]
    assert lines[0].startswith("Judge, user and director: scripted; scenarios: builtin:train (6 of 168")
    assert lines[1].startswith("Test world, not a measure of empathy")
    assert lines[2].split()[:2] == ["model", "EPM-Q"]
    assert any(line.startswith("reference: honest helper") and "89.06" in line for line in lines)


def test_output_fits_a_terminal_of_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = mapo("score", "--all", "--by", "axis").stdout
    assert max(map(len, out.splitlines())) <= 80


def test_as_a_process():
    command = [sys.executable, "-m", "mapo", "score", "/nowhere"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: /nowhere: the folder does not exist")
    assert "Traceback" not in done.stderr


def test_a_full_disk_behind_standard_output():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mapo", "score"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode != 0 and "Traceback" not in done.stderr


def test_version_and_help():
    assert mapo("--version").stdout.strip() == __version__
    assert "score" in mapo("--help").stdout
    assert "Exit status" in mapo("score", "--help").stdout


def test_the_folder_of_a_model_is_refused_with_the_command_that_evaluates_it(tmp_path):
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        (tmp_path / name).write_text("{}")
    done = mapo("score", tmp_path)
    assert done.returncode == 2 and done.stderr.count("error:") == 1
    assert f"mapo eval empa --model local:{tmp_path}" in done.stderr


def test_only_the_first_reasons_are_listed_where_nothing_can_be_scored(tmp_path):
    for number in range(9):
        (tmp_path / f"{number}_result.json").write_text("{}")
    done = mapo("score", tmp_path)
    assert done.returncode == 2 and "error: ... and 6 more" in done.stderr


def test_scores_have_the_movement_per_axis_and_regression_of_every_dialogue(tmp_path):
    harmful = dialogue(RUBRIC, [marks(RUBRIC, 1, -1)] * 12, id="harm")
    [model] = scored(put(tmp_path / "run", good(id="good"), harmful), "--by", "dialogue")
    rows = {row["key"]: row for row in model["by"]}
    assert set(rows) == {"good", "harm"}
    assert rows["good"]["regression"] == 0 and rows["good"]["regressed"] == 0
    # level -1 is worth -2 on each of three axes
    assert rows["harm"]["regression"] == -6 and rows["harm"]["regressed"] == 1
    assert set(model["axis_rewards"]) == {"C", "A", "P"}
    assert model["regression"] == -3 and model["regressed"] == 0.5
    assert rows["good"]["axis_rewards"]["C"] > 0 > rows["harm"]["axis_rewards"]["C"]


def test_the_folder_of_a_trained_role_is_not_scored(tmp_path):
    for name in ("config.json", "mapo_role.json", "metrics.jsonl", "predictions.jsonl"):
        (tmp_path / name).write_text("{}\n")
    done = mapo("score", tmp_path)
    assert done.returncode == 2 and "this is the folder of a model" in done.stderr
