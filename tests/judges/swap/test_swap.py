"""Runs judged again: the same judge changes nothing, another one what it should; the order is told."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from mapo.errors import AnswerError, ContextError, InputError, RecordError
from mapo.judges.sample import Recording
from mapo.judges.swap.order import compare_judges, tables, write
from mapo.judges.swap.swap import (
    Rejudgement,
    SwapSource,
    evaluations,
    has_fixed_start,
    judge_name,
    judged_again,
    rejudgement_solver,
    rejudgements,
    write_run,
)
from mapo.records import encode_dialogue
from mapo.sandbox.panel import NamedJudge, PanelJudge
from mapo.scenarios.sets import load_scenarios
from mapo.store import read_dialogues
from mapo.testing.judges import JudgeErrors, faulty_judges
from mapo.testing.server import LoopbackServer
from mapo.types import Ending, Mark, StopReason
from support.builders import dialogue, marks
from support.command import mapo
from support.judging import EMPATHY
from support.roles import boat_shed

SCENARIO = boat_shed()


class Steady:
    """Gives the same levels to every reply, and starts where told; `deaf` turns get no form."""

    def __init__(self, up=1, down=0, start=1, deaf=()):
        self.up, self.down, self.level, self.deaf = up, down, start, deaf

    async def start(self):
        return {item.key: Mark(self.level) for item in EMPATHY.indicators}

    async def judge(self, turns):
        assert all(turn.levels is None and turn.state is None for turn in turns)  # nobody's levels are shown
        if len(turns) in self.deaf:
            raise AnswerError("no form")
        return marks(EMPATHY, self.up, self.down)


def talk(n=15, **kw):
    forms = [marks(EMPATHY, 2)] * n
    known = {"id": "d1", "scenario": SCENARIO.id, "cast": {"judge": "first", "user": "u", "director": "d"}}
    return Recording("run", dialogue(EMPATHY, forms, **{**known, **kw}), SCENARIO, EMPATHY)


def swapped_record(judge, each=None, start=False):
    item = Rejudgement(each or talk(), start)
    named = NamedJudge("new", lambda _: judge)
    line = asyncio.run(rejudgement_solver(named)(item, 0))
    return judged_again(item, json.loads(json.dumps(line)), judge_name("new", "first"))


def test_a_slower_judge_leaves_the_dialogue_unfinished():
    before = talk().dialogue
    assert before.ending.reason is StopReason.SUCCESS
    found = swapped_record(Steady(up=1))
    assert found.ending is None and len(found.turns) == 15
    assert found.cast == {"judge": "new, on dialogues steered by first", "user": "u", "director": "d"}
    assert found.turns[0].reply == before.turns[0].reply and found.turns[0].reward < 3
    assert found.start == before.start


def test_of_a_swap_of_a_swap_the_first_judge_steered():
    assert judge_name("third", judge_name("second", "first")) == "third, on dialogues steered by first"


def test_a_harsher_judge_ends_it_earlier_and_the_rest_is_cut():
    found = swapped_record(Steady(up=0, down=-2))
    assert found.ending.reason is StopReason.FAILURE and len(found.turns) == 12


def test_a_deaf_turn_is_unscored_and_a_panel_is_told():
    found = swapped_record(Steady(deaf=(2,)))
    assert found.turns[1].levels is None and found.turns[1].unscored == "no form"
    panel = swapped_record(PanelJudge({"a": Steady(), "b": Steady(up=2), "c": Steady(up=2)}))
    assert panel.turns[0].panel == {"a": (1, 0) * 3, "b": (2, 0) * 3, "c": (2, 0) * 3}
    assert panel.ending == talk().dialogue.ending


def test_a_turn_beyond_the_context_of_the_judge_is_unscored():
    class Short(Steady):
        async def judge(self, turns):
            if len(turns) > 3:
                raise ContextError("the prompt is too long")
            return await super().judge(turns)

    turns = swapped_record(Short()).turns
    assert [turn.unscored for turn in turns[2:4]] == [None, "the prompt is too long"]


def test_start_forms_are_judged_again_only_where_a_judge_made_them():
    bare = replace(talk(), scenario=replace(SCENARIO, start_levels={}))
    assert [item.start for item in rejudgements([talk(), bare], {})] == [False, True]
    assert [item.start for item in rejudgements([bare], {"run": True})] == [False]
    found = swapped_record(Steady(start=3), bare, start=True)
    assert {m.level for m in found.start_levels.values()} == {3} and sum(found.start) < sum(
        bare.dialogue.start
    )


def test_endings_outside_the_rules_stand_and_rewards_keep_their_kind():
    ended = talk(n=3, ending=Ending(StopReason.DIRECTOR), reward="adr/origin")
    found = swapped_record(Steady(), ended)
    assert found.ending.reason is StopReason.DIRECTOR and found.turns[0].reward < 0
    assert swapped_record(Steady(), talk(n=3, reward="own")).turns[0].reward > 0


def test_a_line_that_is_no_dialogue_is_refused():
    for line in ({}, {"start": None, "turns": []}, {"start": None, "turns": [{"levels": {"C": 1}}] * 15}):
        with pytest.raises(RecordError, match="rejudged dialogue"):
            judged_again(Rejudgement(talk(), False), line, "x")


def test_of_a_training_its_tests_are_judged_again(tmp_path):
    step = replace(talk(step=3), run="t")
    after = replace(talk(), run="t/after")
    assert evaluations([step, after]) == [after]
    source = SwapSource.of(after, {"t": tmp_path})
    assert (source.model, source.root) == ("t, after", tmp_path) and source.folder.startswith("t_after-")
    assert not has_fixed_start(tmp_path)
    manifest = {"schema": "mapo.train/1", "scenarios": {"test": {SCENARIO.id: "abc"}}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    item = Rejudgement(after, False)
    line = asyncio.run(rejudgement_solver(NamedJudge("new", lambda _: Steady()))(item, 0))
    folder = write_run(tmp_path / "out", source, [item], {item.id: line}, "new")
    told = json.loads((folder / "manifest.json").read_text())
    assert told["model"] == "t, after" and told["scenarios"] == {SCENARIO.id: "abc"} and told["repeats"] == 1
    assert told["cast"]["judge"] == "new, on dialogues steered by first"
    [record] = read_dialogues(folder / "dialogues" / "empa.jsonl")
    assert record.cast["judge"] == told["cast"]["judge"]
    # read as any other evaluation, and only with its like
    old = replace(after.dialogue, model="t/after")
    eval_run(tmp_path / "old", "t/after", cases=0)
    (tmp_path / "old" / "dialogues" / "empa.jsonl").write_bytes(encode_dialogue(old) + b"\n")
    found = compare_judges([("t", tmp_path / "old", folder)])
    assert found.runs[0].new.judge == "new, on dialogues steered by first" and found.rank_correlation is None
    assert found.same_order and found.neighbours == []


def eval_run(root, model, up=2, cases=7, judge="first"):
    """A made-up evaluation of several cases."""
    file = root / "dialogues" / "empa.jsonl"
    file.parent.mkdir(parents=True)
    records = []
    for n in range(cases):
        cast = {"judge": judge, "user": "u", "director": "d"}
        forms = [marks(EMPATHY, up if t % (n + 2) else 1) for t in range(12)]
        records.append(dialogue(EMPATHY, forms, id=f"c{n}", scenario=f"c{n}", model=model, cast=cast))
    file.write_bytes(b"".join(encode_dialogue(r) + b"\n" for r in records))
    return root


def test_the_order_is_told_and_kept_or_not(tmp_path, capsys):
    folders = {
        name: eval_run(tmp_path / f"{name}-{judge}", name, up, judge=judge)
        for judge in ("first", "second")
        for name, up in (("a", 2 if judge == "first" else 1), ("b", 1 if judge == "first" else 2))
    }
    assert folders
    pairs = [(name, tmp_path / f"{name}-first", tmp_path / f"{name}-second") for name in "ab"]
    found = compare_judges(pairs)
    assert (
        not found.same_order
        and found.neighbours[0].upper == "a"
        and found.neighbours[0].new < 0 < found.neighbours[0].old
    )
    assert found.runs[0].difference < 0 < found.runs[1].difference and found.runs[0].interval
    write(found, tmp_path / "out")
    text = (tmp_path / "out" / "swap.md").read_text()
    assert "in a different order" in text and "reversed" in text
    data = json.loads((tmp_path / "out" / "swap.json").read_text())
    assert data["same_order"] is False and data["runs"][0]["old"]["judge"] == "first"
    same = compare_judges([(name, tmp_path / f"{name}-first", tmp_path / f"{name}-first") for name in "ab"])
    assert same.same_order and "in the same order" in tables(same)[2].note
    third = compare_judges([*pairs, ("c", tmp_path / "a-first", tmp_path / "a-first")])
    assert third.rank_correlation is not None and "Rank correlation" in tables(third)[2].note
    eval_run(tmp_path / "other", "x", cases=1)
    (tmp_path / "other" / "dialogues" / "empa.jsonl").write_bytes(
        encode_dialogue(replace(talk().dialogue, scenario="elsewhere", id="z")) + b"\n"
    )
    with pytest.raises(InputError, match="no case in common"):
        compare_judges([("a", tmp_path / "a-first", tmp_path / "other")])


def test_several_models_in_one_folder_are_not_one_result(tmp_path):
    root = tmp_path / "two"
    eval_run(root, "m1", cases=2)
    with open(root / "dialogues" / "empa.jsonl", "ab") as file:
        file.write(encode_dialogue(replace(talk().dialogue, model="m2")) + b"\n")
    with pytest.raises(InputError, match="one result"):
        compare_judges([("two", root, root)])


CASES = ",".join(sorted(s.id for s in load_scenarios("builtin:test"))[:3])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for policy in ("honest", "adviser"):
        out = folder / policy
        done = mapo(
            "eval", "empa", "--model", f"scripted:{policy}", "--out", out, "--cases", CASES, "--max-turns", 12
        )
        assert done.returncode == 0, done.stderr
    return folder


def test_swap_over_http_resumes_and_compares(runs, tmp_path):
    habits = {"plain": JudgeErrors(), "noisy": JudgeErrors(noise=0.2)}
    out = tmp_path / "again"
    with LoopbackServer(faulty_judges(habits), models=tuple(habits)) as server:
        where = ("--base-url", server.base_url, "--out", out)
        done = mapo("judge", "swap", runs / "honest", runs / "adviser", "--judge", "plain", *where)
        assert done.returncode == 0, done.stderr
        calls = server.calls
        resumed = mapo(
            "judge", "swap", runs / "honest", runs / "adviser", "--judge", "plain", *where, "--resume"
        )
        assert resumed.returncode == 0 and server.calls == calls
        other = mapo(
            "judge", "swap", runs / "honest", runs / "adviser", "--judge", "noisy", *where, "--resume"
        )
        assert other.returncode == 2 and "another one" in other.stderr
    assert "in the same order" in done.stdout
    data = json.loads((out / "swap.json").read_text())
    # the same plain code behind HTTP: not a level differs
    assert [row["difference"] for row in data["runs"]] == pytest.approx([0, 0])
    folders = [f for f in sorted(out.iterdir()) if f.is_dir()]
    compared = json.loads(mapo("compare", runs / "honest", *folders, "--json").stdout)
    labels = {column["label"] for column in compared["columns"]}
    assert "EPM-Q, judge scripted" in labels
    assert "EPM-Q, judge plain, on dialogues steered by scripted" in labels


def test_swap_by_plain_code_a_panel_and_nobody(runs, tmp_path):
    done = mapo("judge", "swap", f"h={runs / 'honest'}", "--judge", "scripted", "--out", tmp_path / "s")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "s" / "swap.json").read_text())["runs"][0]["run"] == "h"
    with LoopbackServer(
        faulty_judges({"a": JudgeErrors(), "b": JudgeErrors(), "c": JudgeErrors(noise=0.9)}),
        models=("a", "b", "c"),
    ) as server:
        panel = [part for name in "abc" for part in ("--judge", f"{name}@{server.base_url}")]
        done = mapo("judge", "swap", runs / "honest", *panel, "--out", tmp_path / "p", "--temperature", 0.5)
    assert done.returncode == 0, done.stderr
    [row] = json.loads((tmp_path / "p" / "swap.json").read_text())["runs"]
    assert row["difference"] == pytest.approx(0)  # two of three agree: the third moves nothing
    assert row["new"]["judge"].startswith("panel of a (temperature 0.5), b")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "no judge given"),
        (["--judge", "scripted", "--judge", "m"], "the scripted judge cannot be part of a panel"),
        (["--judge", "local:./x"], "there is no such folder"),
    ],
)
def test_swaps_that_cannot_be_meant_are_refused(runs, tmp_path, given, told):
    done = mapo("judge", "swap", runs / "honest", *given, "--out", tmp_path / "x")
    assert done.returncode == 2 and told in done.stderr, done.stderr


def test_two_runs_of_one_name_and_trainings_without_a_test(runs, tmp_path):
    twice = mapo(
        "judge", "swap", runs / "honest", runs / "honest", "--judge", "scripted", "--out", tmp_path / "x"
    )
    assert twice.returncode == 2 and "the same name" in twice.stderr
    [line, *_] = read_dialogues(runs / "honest" / "dialogues" / "empa.jsonl")
    file = tmp_path / "train" / "dialogues" / "step_00001.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(encode_dialogue(replace(line, step=1)) + b"\n")
    done = mapo("judge", "swap", tmp_path / "train", "--judge", "scripted", "--out", tmp_path / "y")
    assert done.returncode == 2 and "no finished evaluation" in done.stderr


def test_an_endpoint_that_is_gone_leaves_nothing_but_a_word(runs, tmp_path):
    done = mapo(
        *("judge", "swap", runs / "honest", "--judge", "x@http://127.0.0.1:9/v1", "--retries", 0),
        *("--out", tmp_path / "gone"),
    )
    assert done.returncode == 2 and "no connection" in done.stderr


def test_an_order_that_neither_judge_separates_is_said_to_be_uncertain():
    from mapo.judges.swap.order import Neighbours

    unclear = Neighbours("a", "b", 1.0, (-2.0, 4.0), 0.5, (-3.0, 4.0))
    assert unclear.stays and not unclear.separated
    assert Neighbours("a", "b", 1.0, (0.5, 4.0), 0.5, None).separated


def test_a_swap_takes_the_judge_s_prompts_from_a_folder(runs, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "judge_turn_ask.md").write_text("My question. Fill in turn $turn.")
    with LoopbackServer(faulty_judges({"plain": JudgeErrors()}), models=("plain",), record=True) as server:
        where = ("--judge", "plain", "--base-url", server.base_url, "--prompts", tmp_path / "mine")
        mapo("judge", "swap", runs / "honest", *where, "--out", tmp_path / "again")
    asked = [body["messages"][1]["content"] for body in server.bodies if len(body["messages"]) > 1]
    assert any("My question." in text for text in asked)
    manifest = json.loads((tmp_path / "again" / "manifest.json").read_text())
    assert manifest["prompts"].startswith("mine ")


def test_a_judge_that_is_read_out_leaves_its_probabilities():
    class Read(Steady):
        probabilities = ((0.25, 0.5, 0.25), (1.0, 0.0, 0.0)) * 3

    before = talk()
    expected = replace(before, dialogue=replace(before.dialogue, steps="expected"))
    record = swapped_record(Read(), expected)
    assert {turn.probabilities for turn in record.turns} == {Read.probabilities}
    assert record.steps == ""
    assert record.turns[0].state.step == (1.0, 1.0, 1.0)


def test_a_judge_that_writes_leaves_no_probabilities_of_the_one_before():
    before = talk()
    read = tuple(replace(t, probabilities=((1.0, 0.0, 0.0),) * 6) for t in before.dialogue.turns)
    record = swapped_record(Steady(), replace(before, dialogue=replace(before.dialogue, turns=read)))
    assert all(turn.probabilities is None for turn in record.turns)
