"""mapo compare, as a person runs it: over runs that were really made."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil

import pytest

from mapo.evals.compare.tables import FORMS
from mapo.evals.emobench.data import load
from mapo.show.tables import latex_text
from mapo.store import JsonlWriter, read_dialogues, write_atomic
from mapo.testing.server import LoopbackServer
from support import small_run as small
from support.builders import empa_result
from support.command import mapo
from support.emobench_files import Student, form
from support.emobench_files import write as write_emobench
from support.eqbench_files import Script, made_up, marks_for, reply_to  # noqa: F401

NASTY = "[red]x[/red] | $(`id`) <b>&_#%{~^}\\ \x1b[2J=1+1"
"""A model's name that means something to a terminal, a shell, HTML, Markdown and LaTeX."""


def compared(*args: object, status: int = 0) -> dict:
    done = mapo("compare", *args, "--json")
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def score(found: dict, model: str, label: str) -> dict:
    [row] = [row for row in found["models"] if row["model"] == model]
    return row["scores"][label]


def score_labels(found: dict) -> list[str]:
    return [column["label"] for column in found["columns"]]


@pytest.fixture(scope="module")
def talks(tmp_path_factory):
    """Two scripted helpers through the built-in test scenarios, as `mapo eval empa` leaves them."""
    root = tmp_path_factory.mktemp("empa")
    for name in ("honest", "parrot"):
        done = mapo("eval", "empa", f"--model=scripted:{name}", "--max-turns=14", f"--out={root / name}")
        assert done.returncode == 0, done.stderr
    return root


def know_it_all(bench):
    """Right on two of three questions."""
    questions = {bench.user(q): q for q in bench.questions}

    def answer(body):
        q = questions[body["messages"][-1]["content"]]
        return form(q, q.labels if int(q.qid) % 3 else ["A"] * len(q.parts))

    return answer


# ---- the whole table


def test_three_benchmarks_of_two_models_in_one_table(talks, made_up, tmp_path):  # noqa: F811
    bench = load(write_emobench(tmp_path / "emobench", 8), allow_changed=True)
    answers = {"m-honest": know_it_all(bench), "m-parrot": Student(bench)}
    with LoopbackServer(lambda body: answers[body["model"]](body), models=tuple(answers)) as server:
        args = [f"--base-url={server.base_url}", f"--data={tmp_path / 'emobench'}", "--allow-changed-data"]
        for name in answers:
            out = tmp_path / f"{name}-emobench"
            assert mapo("eval", "emobench", f"--model={name}", *args, f"--out={out}").returncode == 0
    runs = []
    for name, marks in (
        ("honest", marks_for),
        ("parrot", lambda p: json.dumps({"pragmatic_ei": 3, "correctness": 4})),
    ):
        with LoopbackServer(Script(judge=marks)) as server:
            args = [f"--base-url={server.base_url}", "--judge-model=judge", f"--data={made_up}"]
            out = tmp_path / f"{name}-eqbench"
            assert mapo("eval", "eqbench", "--model=policy", *args, f"--out={out}").returncode == 0
        runs += [f"{name}={talks / name}", f"{name}={tmp_path / f'm-{name}-emobench'}", f"{name}={out}"]
    found = compared(*runs)
    assert [row["model"] for row in found["models"]] == ["honest", "parrot"]
    assert score_labels(found) == ["passes", "EPM-Q", "EA", "EU", "Overall", "EQ-Bench"]
    assert score(found, "honest", "EA")["cases"] == 8 and score(found, "honest", "Overall")["cases"] == 16
    [own] = json.loads(mapo("score", talks / "parrot", "--json").stdout)
    assert score(found, "parrot", "EPM-Q")["value"] == pytest.approx(own["epm_q"])
    assert score(found, "parrot", "passes")["passes"] == own["passes"]
    assert compared(talks)["differences"] == compared(talks / "honest", talks / "parrot")["differences"]
    eqbench = json.loads((tmp_path / "parrot-eqbench" / "result.json").read_text())
    assert score(found, "parrot", "EQ-Bench")["value"] == eqbench["scores"]["EQ-Bench"]
    assert {(d["model"], d["baseline"]) for d in found["differences"]} == {("parrot", "honest")}
    assert [d["cases"] for d in found["differences"]] == [12, 12, 8, 8, 16, 5]
    for d in found["differences"]:
        assert d["p"] <= d["p_holm"] <= 1
        if d["score"] == "EQ-Bench":
            assert d["interval"] is None  # five cases
        else:
            assert d["interval"][0] <= d["mean"] <= d["interval"][1]
        if d["score"] not in ("EQ-Bench",):  # that headline is rounded
            gap = score(found, "parrot", d["score"])["value"] - score(found, "honest", d["score"])["value"]
            assert d["mean"] == pytest.approx(gap)
    shown = mapo("compare", *runs)
    assert shown.returncode == 0 and "Differences from honest" in shown.stdout
    for word in ("EPM-Q", "Overall", "judge judge", "p (Holm)", "bootstrap over cases", "Note: "):
        assert word in shown.stdout


def test_v2_is_a_column_of_its_own(made_up, tmp_path):  # noqa: F811
    def rate(body):
        number = re.search(r"Talk (\d)", body["messages"][0]["content"])[1]
        return "\n".join(f"E{number}{letter}: {i + int(number) % 3}" for i, letter in enumerate("abcd"))

    with LoopbackServer(rate) as server:
        args = ["--v2", "--model=m", f"--base-url={server.base_url}", f"--data={made_up}"]
        assert mapo("eval", "eqbench", *args, f"--out={tmp_path / 'two'}").returncode == 0
    with LoopbackServer(Script()) as server:
        args = ["--model=policy", f"--base-url={server.base_url}", f"--data={made_up}", "--judge-model=judge"]
        assert mapo("eval", "eqbench", *args, f"--out={tmp_path / 'three'}").returncode == 0
    found = compared(f"m={tmp_path / 'three'}", tmp_path / "two")
    assert score_labels(found) == ["EQ-Bench", "EQ-Bench v2"] and len(found["models"]) == 1
    assert (
        found["columns"][0]["settings"]["judge"] == "judge" and "judge" not in found["columns"][1]["settings"]
    )
    assert found["differences"] == []


def test_an_invalid_run_of_v2_has_no_figure(made_up, tmp_path):  # noqa: F811
    with LoopbackServer(lambda body: "I would rather not.") as server:
        args = ["--v2", "--model=m", f"--base-url={server.base_url}", f"--data={made_up}"]
        assert mapo("eval", "eqbench", *args, f"--out={tmp_path / 'run'}").returncode == 1
    found = compared(tmp_path / "run", status=1)
    cell = score(found, "m", "EQ-Bench v2")
    assert (cell["value"], cell["n"], cell["of"]) == (None, 6, 6)
    assert any("invalid: 0 of 6 answers can be parsed" in note for note in found["notes"])


def test_another_judge_is_another_column(made_up, tmp_path):  # noqa: F811
    for judge in ("strict", "mild"):
        with LoopbackServer(
            lambda b: reply_to(b["messages"]) if b["model"] == "m" else marks_for(str(b))
        ) as server:
            args = ["--model=m", f"--base-url={server.base_url}", f"--data={made_up}"]
            done = mapo("eval", "eqbench", *args, f"--judge-model={judge}", f"--out={tmp_path / judge}")
            assert done.returncode == 0, done.stderr
    found = compared(f"a={tmp_path / 'strict'}", f"b={tmp_path / 'mild'}")
    assert score_labels(found) == ["EQ-Bench, judge strict", "EQ-Bench, judge mild"]
    assert found["differences"] == [] and "'b': no score is comparable with one of 'a'" in found["notes"]
    runs = [f"a={tmp_path / 'strict'}", f"b={tmp_path / 'mild'}"]
    shown = mapo("compare", *runs).stdout
    assert "Differences" not in shown and re.search(r"\n  a +\d+\.\d\d +- ", shown)
    lines = list(csv.DictReader(io.StringIO(mapo("compare", *runs, "--csv").stdout)))
    assert [(line["model"], line["score"], line["baseline"]) for line in lines] == [
        ("a", "EQ-Bench, judge strict", ""),
        ("b", "EQ-Bench, judge mild", ""),
    ]
    # both judges of one model stand side by side in its row
    one = compared(tmp_path / "strict", tmp_path / "mild")
    assert [row["model"] for row in one["models"]] == ["m"] and len(one["models"][0]["scores"]) == 2


# ---- EMPA: sets of cases, repeats, what is missing


def test_other_sets_of_cases_are_compared_where_they_meet(talks, tmp_path):
    cases = ["career-tied-up", "living-back-room", "career-tied-up"]
    out = tmp_path / "few"
    args = ["--model=scripted:parrot", "--max-turns=14", f"--cases={','.join(cases)}", f"--out={out}"]
    assert mapo("eval", "empa", *args).returncode == 0
    found = compared(talks / "honest", f"few={out}")
    labels = score_labels(found)
    assert [re.sub(r"\(.*\)", "()", label) for label in labels] == [
        "passes, 12 cases ()",
        "passes, 2 cases ()",
        "EPM-Q, 12 cases ()",
        "EPM-Q, 2 cases ()",
    ]
    assert [d["cases"] for d in found["differences"]] == [2, 2]
    assert any("2 cases in common (of 2 and 12); only those are compared" in note for note in found["notes"])
    other = tmp_path / "longer"
    args = ["--model=scripted:parrot", f"--cases={','.join(cases)}", f"--out={other}"]
    assert mapo("eval", "empa", *args).returncode == 0
    assert compared(talks / "honest", f"b={other}")["differences"] == []  # other rules: another turn limit


def test_repeats_are_one_case(talks, tmp_path):
    out = tmp_path / "twice"
    args = ["--model=scripted:parrot", "--max-turns=14", "--repeats=2", f"--out={out}"]
    assert mapo("eval", "empa", *args).returncode == 0
    found = compared(talks / "honest", out)
    assert [d["cases"] for d in found["differences"]] == [12, 12]
    assert score(found, "scripted:parrot", "EPM-Q")["n"] == 24
    assert "EMPA: repeats is 1 for scripted:honest, 2 for scripted:parrot" in found["notes"]


def test_an_incomplete_run_has_no_figure(talks, tmp_path):
    shutil.copytree(talks / "parrot", tmp_path / "part")
    file = tmp_path / "part" / "dialogues" / "empa.jsonl"
    kept = list(read_dialogues(file))[:7]
    file.unlink()
    with JsonlWriter(file) as out:
        for item in kept:
            out.write_dialogue(item)
    found = compared(talks / "honest", tmp_path / "part", status=1)
    cell = score(found, "scripted:parrot", "EPM-Q")
    assert (cell["value"], cell["interval"], cell["n"], cell["of"]) == (None, None, 7, 12)
    assert score_labels(found) == ["passes", "EPM-Q"]  # it was asked for the same cases
    assert found["differences"] == []
    assert any("(passes, EPM-Q): not compared, 'scripted:parrot' is incomplete" in n for n in found["notes"])
    done = mapo("compare", talks / "honest", tmp_path / "part")
    assert done.returncode == 1 and "no score (7/12)" in done.stdout
    assert "incomplete, 7 of 12 have a score: not shown" in " ".join(done.stdout.split())


def test_emobench_that_is_incomplete(tmp_path):
    folder = write_emobench(tmp_path / "emobench", 3)
    fault = lambda _, body: "500" if "number 2." in body["messages"][-1]["content"] else None  # noqa: E731
    with LoopbackServer(lambda body: '{"answer": "A"}', fault=fault) as server:
        args = ["--model=m", f"--base-url={server.base_url}", f"--data={folder}", "--allow-changed-data"]
        args.append("--concurrency=1")  # failed calls would end first, and most failing ends a run
        assert mapo("eval", "emobench", *args, f"--out={tmp_path / 'run'}", "--retries=0").returncode == 1
    found = compared(tmp_path / "run", status=1)
    assert score(found, "m", "EA")["value"] is None and (
        score(found, "m", "EA")["n"],
        score(found, "m", "EA")["of"],
    ) == (4, 6)
    assert (score(found, "m", "Overall")["n"], score(found, "m", "Overall")["of"]) == (8, 12)
    rows = list(csv.DictReader(io.StringIO(mapo("compare", tmp_path / "run", "--csv").stdout)))
    assert [(row["score"], row["n"], row["of"]) for row in rows] == [
        ("EA", "4", "6"),
        ("EU", "4", "6"),
        ("Overall", "8", "12"),
    ]


# ---- a training run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    model = small.model_folder(tmp_path_factory.mktemp("model"))
    out = tmp_path_factory.mktemp("runs") / "mine"
    given = [*small.SMALL, f"model.source={model}", "optim.steps=1", "eval.test_repeats=2"]
    done = mapo("train", "pocket", *given, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def test_a_training_run_is_two_rows(trained, tmp_path):
    found = compared(trained)
    assert [row["model"] for row in found["models"]] == ["mine, before", "mine, after"]
    summary = json.loads((trained / "summary.json").read_text())
    for when in ("before", "after"):
        cell = score(found, f"mine, {when}", "EPM-Q")
        assert cell["value"] == pytest.approx(summary[when]["epm_q"]) and cell["n"] == summary[when]["n"]
    assert found["columns"][0]["settings"]["judge"] == "scripted"
    [_, d] = found["differences"]
    assert d["mean"] == pytest.approx(summary["after"]["epm_q"] - summary["before"]["epm_q"])
    assert compared(f"x={trained}")["models"][1]["model"] == "x, after"
    # a run of mapo eval by the same rules on the same scenarios stands in the same column
    out = tmp_path / "honest"
    args = ["--model=scripted:honest", "--max-turns=3", "--repeats=2", f"--out={out}"]
    assert mapo("eval", "empa", *args).returncode == 0
    three = compared(trained, out)
    assert score_labels(three) == ["passes", "EPM-Q"] and len(three["models"]) == 3
    assert [d["cases"] for d in three["differences"]] == [12] * 4
    assert any("max_tokens is 7 for mine, before" in note for note in three["notes"])
    # the test after it is missing, and half of the one before: incomplete
    shutil.copytree(trained, tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "eval" / "after")
    file = tmp_path / "part" / "eval" / "before" / "dialogues.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[: len(lines) // 2]))
    (tmp_path / "part" / "rubric.toml").unlink()  # then the shipped one
    [only] = compared(tmp_path / "part", status=1)["models"]
    assert only["scores"]["EPM-Q"]["of"] == len(lines)
    shutil.rmtree(tmp_path / "part" / "eval")
    refused(tmp_path / "part", told="the training run has no results of the held-out test")
    (tmp_path / "part" / "config.toml").write_text("[run]\nnonsense = 1\n")
    refused(tmp_path / "part", told="nonsense")
    (tmp_path / "part" / "config.toml").unlink()
    refused(tmp_path / "part", told="config.toml: the file does not exist")


# ---- what is refused


def refused(*runs: object, told: str, more: tuple[str, ...] = ()) -> None:
    done = mapo("compare", *runs, *more)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert told in done.stderr, done.stderr


def test_what_cannot_be_compared_is_refused_with_its_place(talks, tmp_path):
    refused(tmp_path / "nowhere", told="the folder does not exist")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", told="holds no result files")
    for name, content, told in (
        ("torn", "{", "result.json: the file is not JSON"),
        ("other", '{"schema": "someone.else/1"}', "schema is 'someone.else/1'"),
    ):
        write_atomic(tmp_path / name / "result.json", content)
        refused(tmp_path / name, told=told)
    write_atomic(tmp_path / "early" / "manifest.json", '{"schema": "mapo.emobench/1"}')
    refused(
        tmp_path / "early", told="the run is not finished: it has no result.json. Finish it with --resume"
    )
    refused(talks / "honest", f"scripted:honest={talks / 'parrot'}", told="has two different results")
    refused(f"={talks}", told="is not a run")
    refused(f"all={talks}", told="holds several models")
    shutil.copytree(talks / "honest", tmp_path / "odd")
    write_atomic(tmp_path / "odd" / "manifest.json", '{"schema": "mapo.empa/1", "cast": 3}')
    refused(tmp_path / "odd", told="is not the manifest of an EMPA run")
    refused(talks / "honest", told="--latex and --json cannot be combined", more=("--json", "--latex"))
    refused(talks / "honest", told="--out needs a format", more=("--out=x.md",))
    (tmp_path / "locked" / "result.json").mkdir(parents=True)
    refused(tmp_path / "locked", told="cannot be read")


def test_a_run_without_a_finished_dialogue_is_incomplete(talks, tmp_path):
    shutil.copytree(talks / "parrot", tmp_path / "part")
    (tmp_path / "part" / "dialogues" / "empa.jsonl").unlink()
    found = compared(talks / "honest", tmp_path / "part", status=1)
    cell = score(found, "scripted:parrot", "EPM-Q")
    assert (cell["value"], cell["n"], cell["of"]) == (None, 0, 12) and found["differences"] == []
    assert any("0 of 12 have a score: not shown; finish the run with --resume" in n for n in found["notes"])


def test_result_files_of_empa_with_a_bad_one_among_them(tmp_path):
    cast = {"actor_model": "big", "director_model": "big", "judger_model": "big"}
    for model, forms in (("one", 14), ("two", 9)):
        for case in ("script_001", "script_002", "script_003"):
            data = {**empa_result(case, forms), **cast}
            write_atomic(tmp_path / "all" / model / f"{case}_result.json", json.dumps(data))
    found = compared(tmp_path / "all")
    assert [d["cases"] for d in found["differences"]] == [3, 3] and found["differences"][0]["mean"] == -100.0
    assert compared(f"x={tmp_path / 'all' / 'one'}")["models"][0]["model"] == "x"
    (tmp_path / "all" / "two" / "script_002_result.json").write_text("{")
    found = compared(tmp_path / "all", status=1)
    assert score_labels(found) == ["passes", "EPM-Q"] and score(found, "two", "EPM-Q")["of"] == 3
    assert found["differences"] == []
    assert any("excluded: " in note and "script_002" in note for note in found["notes"])


# ---- forms


def test_names_do_no_harm_in_any_form(talks):
    runs = [f"{NASTY.replace('=1+1', '')}={talks / 'honest'}", f"@cmd|'/c calc'={talks / 'parrot'}"]
    shown = mapo("compare", *runs)
    assert shown.returncode == 0, shown.stderr
    assert "\x1b[2J" not in shown.stdout and "[red]x[/red]" in shown.stdout.replace("\n", "")
    text = mapo("compare", *runs, "--markdown").stdout
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows[:4]}) == 1  # no bar more than columns have
    assert "<b>" not in text and "&lt;b&gt;" in text and r"\[red\]" in text and "\x1b" not in text
    lines = list(csv.reader(io.StringIO(mapo("compare", *runs, "--csv").stdout)))
    assert {len(line) for line in lines} == {len(lines[0])} and len(lines) == 5
    assert lines[2][0].startswith("'@cmd") and "\x1b" not in lines[1][0]
    latex = mapo("compare", *runs, "--latex").stdout
    body = [line for line in latex.splitlines() if not line.startswith("%")]
    bare = re.sub(r"\\textbackslash\{\}|\\text[a-z]+\{\}|\\[&%$#_{}]", "", "\n".join(body))
    assert not re.search(r"[$#_%~^<>|]", bare) and "\x1b" not in latex
    assert bare.count("\\\\") == len([line for line in body if line.startswith("{}")]) == 6
    assert json.loads(mapo("compare", *runs, "--json").stdout)["models"][1]["model"].startswith("@cmd")


def test_latex_sets_every_sign_as_it_is():
    undone = {
        r"\textbackslash{}": "\\",
        r"\textasciitilde{}": "~",
        r"\textasciicircum{}": "^",
        r"\textless{}": "<",
        r"\textgreater{}": ">",
        r"\textbar{}": "|",
        r"\textquotedbl{}": '"',
        **{f"\\{sign}": sign for sign in "&%$#_{}"},
    }
    text = "".join(map(chr, range(33, 127)))
    pattern = "|".join(sorted(map(re.escape, undone), key=len, reverse=True))
    assert re.sub(pattern, lambda m: undone[m[0]], latex_text(text)) == text


@pytest.mark.parametrize("form", list(FORMS))
def test_a_form_goes_to_standard_output_or_into_a_file(talks, tmp_path, form):
    runs = [talks / "honest", talks / "parrot"]
    printed = mapo("compare", *runs, f"--{form}")
    out = tmp_path / "deep" / f"table.{form}"
    written = mapo("compare", *runs, f"--{form}", f"--out={out}")
    assert printed.returncode == written.returncode == 0
    assert written.stdout == "" and str(out) in written.stderr
    assert out.read_text(encoding="utf-8") == printed.stdout and "scripted:parrot" in printed.stdout
    alone = mapo("compare", talks / "honest", f"--{form}")
    assert alone.returncode == 0 and "Differences" not in alone.stdout
