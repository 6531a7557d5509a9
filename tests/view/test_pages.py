"""What each page says, over runs as they really are."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest

from mapo import Rubric, advantages
from mapo.measure.axes import regressions
from mapo.report import build
from mapo.report.document import numbers
from mapo.report.document.page import html_page
from mapo.scoring.score import score as score_of
from mapo.show.figures import Picture
from mapo.store import read_steps
from mapo.types import Ending, StopReason, ending_label
from mapo.view.index import queries, sets
from mapo.view.pages import charts, transcript
from support import view_runs

EMPATHY = Rubric.load("empathy")
ONE = "/run/first/d/dialogues:step_00002.jsonl/2"


def text(answer) -> str:
    assert answer.status_code == 200, answer.text[:500]
    return answer.text


def test_the_list_of_runs_tells_what_each_is_and_how_it_stands(shown):
    page = text(shown.get("/"))
    rows = {
        name: row
        for row in re.findall(r"<tr>.*?</tr>", page, re.S)
        for name in re.findall(r"<bdi>([\w]+)</bdi></a>", row)
    }
    assert set(rows) == {"first", "second", "bench", "quiz"}
    assert "finished" in rows["first"] and "35.5" in rows["first"] and "<polyline" in rows["first"]
    assert "running" in rows["second"] and "grpo" in rows["second"] and ">33.0<" in rows["second"]
    assert "finished" in rows["bench"] and "evaluation" in rows["bench"]
    assert "EmoBench" in rows["quiz"] and "37.5" in rows["quiz"]


@pytest.mark.parametrize(
    ("query", "there"), [("q=SECOND", {"second"}), ("state=running", {"second"}), ("q=nothing", set())]
)
def test_runs_can_be_filtered(shown, query, there):
    page = text(shown.get(f"/?{query}"))
    assert set(re.findall(r'href="/run/(\w+)"', page)) == there


def test_a_training_run_has_its_tests_parts_and_curves(shown):
    page = text(shown.get("/run/first"))
    assert "+5.5" in page and "28.0 to 32.0" in page and "1 of 3 passed" in page
    assert "validation, step 2" in page and 'data-figure="endings"' in page
    figures = shown.get("/api/figures?run=first").json()
    assert set(figures) == {
        "reward", "epm_q", "grad_norm", "entropy", "kl", "clip", "speed", "length", "endings", "unscored"
    }  # fmt: skip
    (line,) = figures["reward"]["data"]  # two scenarios: too few for an interval
    assert line["x"] == [1, 2, 3] and line["y"] == [0.1, 0.2, 0.3]  # as metrics.jsonl has it
    assert {trace["name"] for trace in figures["epm_q"]["data"]} >= {"training", "validation"}
    assert [trace["name"] for trace in figures["kl"]["data"]] == ["from start", "from sampler"]
    assert sum(trace["y"][0] for trace in figures["endings"]["data"]) == 1.0


def test_the_mean_reward_is_that_of_the_turns(index, root, client):
    rubric = Rubric.load("empathy")
    talks = {step: view_runs.step_talks(rubric, step, scenarios=7) for step in (1, 2)}
    for step, made in talks.items():
        view_runs.write_lines(root / "r" / "dialogues" / f"step_0000{step}.jsonl", made)
    index.refresh()
    band, line = client.get("/api/figures?run=r").json()["reward"]["data"]
    rewards = [turn.reward for d in talks[2] for turn in d.turns]
    assert line["y"][1] == pytest.approx(sum(rewards) / len(rewards))
    assert band["fill"] == "toself" and len(band["x"]) == 4
    assert band["y"][2] < line["y"][1] < band["y"][1]


def test_what_was_played_again_or_broke_counts_nowhere(index, root, client):
    rubric = Rubric.load("empathy")
    broken = {"error": "endpoint down", "ending": Ending(StopReason.BROKEN)}
    held = [view_runs.talk(rubric, f"case-{i}", turns=5) for i in range(7)]
    again = [replace(d, turns=d.turns[:2]) for d in held[:2]]
    lost = replace(view_runs.talk(rubric, "lost"), **broken)
    run = root / "r"
    view_runs.write_lines(run / "eval" / "after" / "dialogues.jsonl", [*again, *held, lost])
    step = view_runs.step_talks(rubric, 1)
    view_runs.write_lines(run / "dialogues" / "step_00001.jsonl", [*step, replace(step[0], **broken)])
    (run / "config.toml").write_text("[advantage]\nmethod = 'mapo'\n")
    index.refresh()
    with index.reading() as db:
        (found,) = sets.sets(db)
        ends = queries.endings_by_step(db, "r")
    alone = root.parent / "alone"
    view_runs.write_lines(alone / "dialogues" / "empa.jsonl", held)
    score = score_of(alone).models[0].score
    assert (found["n"], found["passes"], found["turns"]) == (7, score.passes, 5.0)
    assert found["scores"]["epm_q"][0] == pytest.approx(score.composite.epm_q)
    assert found["scores"]["epm_q"][1:3] == pytest.approx(score.intervals["epm_q"])
    assert ends == {"timeout": {1: 6}}
    page = client.get("/run/r/d/dialogues:step_00001.jsonl/7").text
    assert "this record was not used for training." in page and "Turn-level<" not in page
    assert '<a href="/run/r/d/dialogues:step_00001.jsonl/1">Show the record that was used</a>' in page
    page = client.get("/run/r/d/dialogues:step_00001.jsonl/1").text
    assert "played again" not in page and "Turn-level<" in page
    page = client.get("/run/r/d/eval:after:dialogues.jsonl/1").text
    assert "this record does not count" in page and "eval:after:dialogues.jsonl/3" in page
    assert client.get("/dialogues?run=r").text.count("superseded") == 3


def test_sets_go_by_the_rules_and_the_deepest_axis(index, root, client):
    """A record that calls itself a success is none if its levels say otherwise."""
    rubric = Rubric.load("empathy")
    said = view_runs.talk(rubric, "case-1", turns=2, ending=Ending(StopReason.SUCCESS))
    view_runs.write_lines(root / "r" / "dialogues" / "empa.jsonl", [said])
    index.refresh()
    with index.reading() as db:
        (found,) = sets.sets(db)
        axes = sets.by_group(db, "r|empa", "axis")
    assert found["passes"] == 0 and list(axes) == [rubric.keys[said.start.index(min(said.start))]]


def test_huge_rewards_break_no_figure(index, root, client):
    rubric = Rubric.load("empathy")
    made = view_runs.step_talks(rubric, 1, scenarios=7)
    turns = made[0].turns
    made[0] = replace(made[0], turns=(replace(turns[0], reward=1e160), *turns[1:]))
    view_runs.write_lines(root / "r" / "dialogues" / "step_00001.jsonl", made)
    (root / "r" / "config.toml").write_text("[advantage]\nmethod = 'mapo'\n")
    index.refresh()
    assert client.get("/api/figures?run=r").json()["reward"]["data"]
    page = text(client.get("/run/r/d/dialogues:step_00001.jsonl/1"))
    assert "+1.00e+160" in page and "Credit cannot be computed" in page


def test_runs_are_laid_over_each_other(shown):
    page = text(shown.get("/overlay?run=first&run=second&run=gone"))
    assert "Overlay of 2 runs" in page and "run=first&amp;run=second" in page
    figures = shown.get("/api/figures?run=first&run=second").json()
    assert {t["name"] for t in figures["grad_norm"]["data"]} == {"first", "second"}
    assert {t["name"] for t in figures["speed"]["data"]} >= {"first: sampled", "second: trained"}
    dashes = [t["line"]["dash"] for t in figures["grad_norm"]["data"]]
    assert len(set(dashes)) == 2
    assert "No training run is selected" in text(shown.get("/overlay"))
    assert "2 more runs selected" in text(shown.get("/overlay?" + "&".join(f"run={i}" for i in range(8))))


def test_costs_are_those_of_the_ledger(shown):
    page = text(shown.get("/run/bench"))
    assert "big-judge" in page and "0.25" in page and "no price" in page and "4,000" in page


def test_dialogues_can_be_filtered(shown):
    def found(query: str) -> list[str]:
        page = text(shown.get(f"/dialogues?{query}"))
        return re.findall(r'class="name"><a href="[^"]*"><bdi>([^<]+)', page)

    assert len(found("run=first")) == 27
    assert len(found("run=first&part=train&step=2")) == 6
    assert set(found("run=first&part=after")) == {"held-0_1", "held-1_1", "held-2_1"}
    assert len(found("run=first&scenario=SCENARIO-1")) == 9
    assert found("run=first&ending=success") == []
    rewards = [d.turns for d in view_runs.step_talks(Rubric.load("empathy"), 1)]
    means = sorted(sum(t.reward for t in turns) / len(turns) for turns in rewards)
    assert len(found(f"run=first&part=train&step=1&low={means[2] - 1e-9}&high={means[4] + 1e-9}")) == 3
    assert (
        found("run=first&part=train&step=1&sort=reward")[0]
        != found("run=first&part=train&step=1&sort=reward-up")[0]
    )
    assert "step is not an integer" in shown.get("/dialogues?step=1.5").text
    assert "low is not a number" in shown.get("/dialogues?low=nan&high=x").text


def test_text_is_searched_in_any_script(index, root, client):
    rubric = Rubric.load("empathy")
    run = view_runs.training(root, steps=1)
    said = view_runs.talk(rubric, "zh_1", step=1)
    turn = said.turns[0]
    said = replace(said, turns=(replace(turn, user="我今天很难过，睡不着"), *said.turns[1:]))
    view_runs.write_lines(run / "dialogues" / "step_00001.jsonl", [said])
    index.refresh()

    def names(words: str) -> list[str]:
        return re.findall(
            r"<bdi>(zh_1|\d{3}_[\w-]+)</bdi>", client.get("/dialogues", params={"q": words}).text
        )

    assert names("难过") == ["zh_1"] and names("睡不着") == ["zh_1"] and names("过难") == []
    assert len(names("repl")) == 7 and names("reply nowhere") == []
    assert names('"') == [] and names("''") == [] and names("* OR NOT (") == []
    page = client.get("/dialogues", params={"q": "难过"}).text
    assert "很<mark>难过</mark>" in page


def test_a_dialogue_shows_the_credit_the_trainer_gave(shown):
    rubric = Rubric.load("empathy")
    talks = view_runs.step_talks(rubric, 2)
    rewards = [[t.reward for t in d.turns] for d in talks]
    harm = regressions(talks[1], rubric)
    groups = [d.group for d in talks]
    credit = advantages(rewards, groups, "mapo", gamma=0.85, endings="cut")  # a run of an earlier version
    page = text(shown.get(ONE))
    assert "001_scenario" not in page.partition("<h2")[0]
    for t in range(len(rewards[1])):
        panel = page.split('<div class="credit"')[t + 1].partition("</table>")[0]
        numbers = re.findall(r'<td class="n[^"]*">([^<]+)</td>', panel)
        wanted = [
            rewards[1][t],
            harm[t],
            credit.returns[1][t],
            credit.turn[1][t],
            credit.batch[1][t],
            credit.mixed[1][t],
        ]
        if credit.mask[1][t]:
            shown_numbers = [float(n.replace("−", "-")) for n in numbers]
            assert shown_numbers == pytest.approx(wanted, abs=0.0051)
        else:
            assert "masked in the loss" in panel
    assert (
        "3 siblings at turn 1, including this one, have a mean return" in page and "All 11 turns" in page
    )  # 3, 4 and 4: the fifth has no peer
    assert "words 1" in page and "it takes up what was said" in page and "too early" in page


def test_other_methods_show_their_own_parts(shown):
    page = text(shown.get("/run/second/d/dialogues:step_00001.jsonl/1"))
    assert "Advantage" in page and "Turn-level<" not in page and "Batch-level<" not in page


def test_a_test_dialogue_has_no_advantage(shown):
    page = text(shown.get("/run/first/d/eval:after:dialogues.jsonl/1"))
    assert "not used for training" in page and "Mixed" not in page


def test_siblings_stand_side_by_side_by_turn(shown):
    page = text(shown.get(ONE)).partition('id="siblings"')[2]
    assert page.count('<th scope="row">') == 5  # the longest sibling has five turns
    assert page.count(">ended<") == 2 + 1
    assert page.count("this dialogue</span>") == 1


def test_the_path_is_drawn_in_space_and_in_pairs(shown):
    figures = shown.get(f"/api{ONE}/trajectory").json()
    assert set(figures) == {"space", "pair_0_1", "pair_0_2", "pair_1_2"}
    assert figures["space"]["data"][-3]["x"][0] < 0 and len(figures["space"]["data"]) == 5


def test_a_rubric_of_four_axes_has_six_pairs_and_its_deepest_three_in_space(index, root, client):
    rubric = Rubric.load("tutoring")
    view_runs.write_lines(root / "r" / "dialogues" / "empa.jsonl", [view_runs.talk(rubric, "d_1")])
    index.refresh()
    figures = client.get("/api/run/r/d/dialogues:empa.jsonl/1/trajectory").json()
    assert len(figures) == 7
    scene = figures["space"]["layout"]["scene"]  # the start is at (-10, -12, -12, -10)
    assert [scene[f"{n}axis"]["title"]["text"] for n in "xyz"] == [
        "Misconception",
        "Understanding",
        "Confidence",
    ]
    assert client.get("/run/r/d/dialogues:empa.jsonl/1").text.count('data-figure="pair_') == 6


def test_an_unknown_rubric_is_shown_without_titles(index, root, client):
    odd = replace(view_runs.talk(Rubric.load("empathy"), "d_1"), rubric="mine")
    view_runs.write_lines(root / "r" / "dialogues" / "x.jsonl", [odd])
    (root / "r" / "rubric.toml").write_text("half a rub")
    index.refresh()
    assert "reply 1 of d_1" in client.get("/run/r/d/dialogues:x.jsonl/1").text
    figures = client.get("/api/run/r/d/dialogues:x.jsonl/1/trajectory").json()
    assert figures["pair_0_1"]["layout"]["xaxis"]["title"]["text"] == "axis 1"


def test_tokens_come_on_demand(shown):
    told = shown.get(f"/api{ONE}/tokens/1").json()["tokens"]
    assert [t["logprob"] for t in told] == [-0.05, -1.5, -6.0] and told[0]["text"] == "#5"
    assert shown.get(f"/api{ONE}/tokens/99").status_code == 404
    assert shown.get(f"/api{ONE}/tokens/0").status_code == 404


def test_tokens_are_words_where_the_run_kept_its_tokenizer(index, root, client):
    tokenizers = pytest.importorskip("tokenizers")
    run = view_runs.training(root, steps=1)
    words = {f"w{i}": i for i in range(10)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    for step in ("step_00001", "step_00002"):
        (run / "checkpoints" / step).mkdir(parents=True)
    made.save(str(run / "checkpoints" / "step_00001" / "tokenizer.json"))
    index.refresh()
    where = "/api/run/first/d/dialogues:step_00001.jsonl/1/tokens/1"
    assert [t["text"] for t in client.get(where).json()["tokens"]] == ["w5", "w6", "w7"]
    (run / "checkpoints" / "step_00002" / "tokenizer.json").write_text("{")
    assert [t["text"] for t in client.get(where).json()["tokens"]] == ["#5", "#6", "#7"]


def test_tokens_of_one_sign_stand_together_and_long_turns_come_in_pages(index, root, client, monkeypatch):
    tokenizers = pytest.importorskip("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(letters)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    ids = made.encode("a难🙂b").ids
    assert len(ids) == 9
    run = view_runs.training(root, steps=1)
    (run / "checkpoints" / "step_00001").mkdir(parents=True)
    made.save(str(run / "checkpoints" / "step_00001" / "tokenizer.json"))
    said = view_runs.talk(Rubric.load("empathy"), "new_1", step=1)
    reply = replace(said.turns[0].reply, token_ids=tuple(ids), logprobs=(-1.0,) * 9)
    said = replace(said, turns=(replace(said.turns[0], reply=reply), *said.turns[1:]))
    view_runs.write_lines(run / "dialogues" / "step_00001.jsonl", [said])
    index.refresh()
    where = "/api/run/first/d/dialogues:step_00001.jsonl/7/tokens/1"
    whole = client.get(where).json()
    assert [(t["text"], len(t["ids"]), t["logprob"]) for t in whole["tokens"]] == [
        ("a", 1, -1.0),
        ("难", 3, -3.0),
        ("🙂", 4, -4.0),
        ("b", 1, -1.0),
    ]
    monkeypatch.setattr(transcript, "TOKENS", 6)
    page = client.get(where).json()
    assert [t["text"] for t in page["tokens"]] == ["a", "难"] and page["next"] == 4
    page = client.get(f"{where}?from=4").json()
    assert [t["text"] for t in page["tokens"]] == ["🙂", "b"] and page["next"] is None


def test_states_of_other_axes_are_no_place_on_the_path(index, root, client):
    said = view_runs.talk(Rubric.load("empathy"), "a_1", step=1)
    flat = replace(said.turns[1], state=replace(said.turns[1].state, position=(1.0,)))
    said = replace(said, turns=(said.turns[0], flat, *said.turns[2:]))
    view_runs.write_lines(root / "r" / "dialogues" / "step_00001.jsonl", [said])
    index.refresh()
    figures = json.loads(text(client.get("/api/run/r/d/dialogues:step_00001.jsonl/1/trajectory")))
    x = figures["pair_0_1"]["data"][0]["x"]
    assert len(x) == 5 and x[2] == x[1]
    assert "turn-2" in text(client.get("/run/r/d/dialogues:step_00001.jsonl/1"))


def test_the_same_scenario_is_compared_before_and_after(shown):
    page = text(shown.get("/compare?run=first"))
    assert "first</bdi>, before training" in page and "first</bdi>, after training" in page
    assert page.count('class="result ') >= 3 and page.count('class="bubble user"') == 8
    other = text(
        shown.get("/compare", params={"a": "first|after", "b": "second|after", "scenario": "held-2_1"})
    )
    assert "<bdi>held-2</bdi>" in other
    assert "no dialogue in common" in text(
        shown.get("/compare", params={"a": "first|after", "b": "bench|empa"})
    )
    assert "Choose two sets" in text(shown.get("/compare", params={"a": "first|nope", "b": "x"}))
    assert "Choose two sets" in text(shown.get("/compare?run=bench"))


def test_benchmarks_by_category_axis_and_difficulty(shown):
    page = text(shown.get("/benchmarks", params={"set": ["first|before", "bench|empa"]}))
    for word in (
        "EPM-Q by category",
        "EPM-Q by axis",
        "EPM-Q by difficulty",
        "career",
        "extreme",
        "EmoBench",
        "EU is not above",
    ):
        assert word in page
    figures = shown.get("/api/radar", params={"set": ["first|before", "bench|empa"]}).json()
    assert set(figures) == {"category", "axis", "difficulty"}
    assert figures["difficulty"]["data"][0]["theta"] == ["easy", "hard", "extreme", "easy"]
    assert len(figures["axis"]["data"]) == 2
    assert text(shown.get("/benchmarks")).count("checked") >= 1


def test_a_question_benchmark_has_a_page(shown):
    page = text(shown.get("/run/quiz"))
    assert "40.0 to 60.0" in page and "languages / en / EA" in page and "parse_rate" in page


def test_nothing_there_is_said_in_words(index, client):
    index.refresh()
    for path in ("/", "/dialogues", "/compare", "/benchmarks"):
        assert text(client.get(path))
    assert "No runs yet" in client.get("/").text and client.get("/api/radar").json() == {}


def test_a_broken_and_an_unscored_dialogue(index, root, client):
    rubric = Rubric.load("empathy")
    run = view_runs.training(root, steps=1)
    whole = view_runs.talk(rubric, "000_scenario-0_8", step=1)
    deaf = replace(whole.turns[1], levels=None, reward=None, unscored="the judge answered nothing")
    view_runs.write_lines(
        run / "dialogues" / "step_00001.1.jsonl",
        [
            replace(whole, turns=(whole.turns[0], deaf, *whole.turns[2:])),
            replace(whole, id="000_scenario-0_9", turns=(), error="the user is gone", ending=None),
        ],
    )
    index.refresh()
    page = text(client.get("/run/first/d/dialogues:step_00001.1.jsonl/1"))
    assert "the judge answered nothing" in page and "unscored" in page
    page = text(client.get("/run/first/d/dialogues:step_00001.1.jsonl/2"))
    assert "the user is gone" in page and "This dialogue has no turns" in page


def test_rewards_no_estimator_can_take_are_said_so(index, root, client):
    run = view_runs.training(root, steps=1)
    huge = view_runs.talk(Rubric.load("empathy"), "000_scenario-0_8", step=1)
    huge = replace(huge, turns=tuple(replace(turn, reward=1e308) for turn in huge.turns))
    view_runs.write_lines(run / "dialogues" / "step_00001.jsonl", [huge])
    index.refresh()
    page = text(client.get("/run/first/d/dialogues:step_00001.jsonl/7"))
    assert "Credit cannot be computed" in page and "+1.00e+308" in page
    assert json.loads(client.get("/api/figures?run=first").text)


@pytest.mark.parametrize("settings", ["[advantage]\ngamma = 'much'\n", "[optim]\nsteps = 1\n", None])
def test_without_settings_no_credit_is_made_up(index, root, client, settings):
    run = view_runs.training(root, steps=1)
    (run / "config.toml").unlink()
    if settings:
        (run / "config.toml").write_text(settings)
    index.refresh()
    page = client.get("/run/first/d/dialogues:step_00001.jsonl/1").text
    assert "so the credit is unknown" in page and "Turn-level<" not in page


def test_what_is_not_there_is_a_404_with_a_page(shown):
    for path in (
        "/run/gone",
        "/run/first/d/dialogues:step_00009.jsonl/1",
        "/run/first/d/dialogues:step_00001.jsonl/99",
        "/nothing",
        "/static/nothing.js",
        f"{ONE}/text/1/nobody",
        f"{ONE}/text/77/user",
        "/api/figures?run=gone",
        f"/run/first/d/dialogues:step_00001.jsonl/{10**30}",
    ):
        answer = shown.get(path)
        assert answer.status_code == 404 and "This page cannot be shown" in answer.text, path


def test_a_file_that_changed_under_the_page_is_said_so(index, root, client):
    run = view_runs.training(root, steps=1)
    index.refresh()
    (run / "dialogues" / "step_00001.jsonl").write_text("gone\n")
    answer = client.get("/run/first/d/dialogues:step_00001.jsonl/2")
    assert answer.status_code == 409 and "has changed since" in answer.text
    assert client.get("/dialogues?q=reply").status_code == 200
    (run / "eval" / "after" / "dialogues.jsonl").unlink()
    assert "cannot be read" in client.get("/compare?run=first").text
    assert client.get("/api/run/first/d/eval:before:dialogues.jsonl/1/trajectory").status_code == 200


def test_static_files_are_packed_and_kept(shown):
    plain = shown.get("/static/plotly.js", headers={"accept-encoding": "identity"})
    assert (
        plain.status_code == 200
        and b"plotly" in plain.content[:2000]
        and "immutable" in plain.headers["cache-control"]
    )
    packed = shown.get("/static/style.css")
    assert packed.headers["content-encoding"] == "gzip" and "text/css" in packed.headers["content-type"]


def test_every_page_has_what_keyboards_and_readers_need(shown):
    for path in (
        "/",
        "/run/first",
        "/dialogues",
        ONE,
        "/compare?run=first",
        "/benchmarks",
        "/overlay?run=first",
    ):
        page = text(shown.get(path))
        assert page.count("<h1>") == 1 and 'href="#main"' in page and 'lang="en"' in page, path
        for table in re.findall(r"<table.*?</table>", page, re.S):
            assert "scope=" in table, path
        for field in re.findall(r"<input[^>]*>", page):
            named = "aria-label" in field or 'type="hidden"' in field
            assert named or re.search(rf"<label[^>]*>[^<]*{re.escape(field)}", page), field


def test_endings_are_drawn_as_the_report_draws_them(index, root, client):
    """As metrics.jsonl says, without broken ones; of a step it does not hold yet, as far as it was played."""
    run = view_runs.training(root, steps=2, done=False)
    lines = [{**view_runs.metrics_line(n), "endings": {"success": 1, "timeout": 3, "broken": 4, "<b>": 9}}
             for n in (1, 2)]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    view_runs.write_lines(run / "dialogues" / "step_00003.jsonl", view_runs.step_talks(EMPATHY, 3))
    index.refresh()
    drawn = client.get("/api/figures?run=first").json()["endings"]["data"]
    shares = {trace["name"]: trace["y"] for trace in drawn}
    assert shares == {"success": [0.25, 0.25, 0.0], "turn limit": [0.75, 0.75, 1.0]}
    told = numbers.endings(read_steps(run / "metrics.jsonl"))
    assert {ending_label(k): [p.y for p in line] for k, line in told.items()} == {
        k: v[:2] for k, v in shares.items()
    }


def test_long_names_around_a_radar_stay_apart():
    long = [f"a category with a very long name that ends in {i}" for i in range(3)]
    figure = charts.radar(long, [("set", lambda group: 1.0)])
    around = figure["data"][0]["theta"]
    assert len(set(around)) == 3 and around[0] == around[-1] and max(map(len, around)) <= 32
    assert charts.distinct(["a", "a", "a (2)", "a"]) == ["a", "a (2)", "a (2) (2)", "a (3)"]


def test_every_page_of_a_rubric_of_four_axes(index, root, client):
    rubric = Rubric.load("tutoring")
    talks = [view_runs.talk(rubric, f"g{g}_{k}", step=1, tags={"axis": rubric.keys[g]}) for g in range(4)
             for k in range(2)]  # fmt: skip
    run = view_runs.training(root, steps=1)
    shutil.rmtree(run / "eval")
    (run / "dialogues" / "step_00001.jsonl").unlink()
    view_runs.write_lines(run / "dialogues" / "step_00001.jsonl", talks)
    for part in ("before", "after"):
        view_runs.write_lines(run / "eval" / part / "d.jsonl", [replace(t, step=None) for t in talks])
    index.refresh()
    one = "/run/first/d/dialogues:step_00001.jsonl/1"
    for page in (
        "/",
        "/run/first",
        "/dialogues?run=first",
        "/compare",
        "/benchmarks",
        "/overlay?run=first",
        one,
    ):
        assert client.get(page).status_code == 200, page
    shown = client.get(one).text
    assert all(axis.title in shown for axis in rubric.axes) and "three axes with the largest deficit" in shown
    radar = client.get("/api/radar").json()["axis"]["data"][0]
    assert set(radar["theta"]) == {axis.title for axis in rubric.axes} and all(
        r is not None for r in radar["r"]
    )
    report = build([str(run)])
    names = {block.name for block in report.blocks if isinstance(block, Picture)}
    assert {"fig_trajectories", "fig_reward_by_turn"} <= names
    page = html_page(report)
    assert "cannot be drawn" not in page and all(f"{key} " in page for key in rubric.keys)


def test_simulated_people_of_the_last_step_or_of_a_benchmark(index, root, client):
    run, bench_run = view_runs.training(root, steps=1), view_runs.benchmark(root)
    odd = {"dialogues": 30, "lines": 300, "as_assistant": 0.4, "repeated": "<b>", "endings": {"success": 30}}
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({**view_runs.metrics_line(2), "health": odd}) + "\n")
    (bench_run / "health.json").write_text(
        json.dumps({"schema": "mapo.health/1", **odd, "as_assistant": 0.0})
    )
    index.refresh()
    page = text(client.get("/run/first"))
    assert "Users speak like an assistant: 40%, usual maximum 2%." in page and "Step 2. If a number" in page
    page = text(client.get("/run/bench"))
    assert (
        "like an assistant:" not in page
        and "All dialogues. If a number" in page
        and "most frequent ending (success)" in page
    )
    (bench_run / "health.json").write_text("[1]")
    index.refresh()
    assert "simulated people" not in text(client.get("/run/bench"))


def test_laid_over_each_other_endings_are_successes_and_a_line_at_zero_stays_there(shown):
    alone = shown.get("/api/figures?run=first").json()
    both = shown.get("/api/figures?run=first&run=second").json()
    assert alone["endings"]["layout"]["yaxis"]["title"]["text"] == "share of dialogues"
    assert both["endings"]["layout"]["yaxis"]["title"]["text"] == "share ending in success"
    assert (
        alone["unscored"]["layout"]["yaxis"]["range"] == [0, 0.05]
        and "range" not in alone["clip"]["layout"]["yaxis"]
    )


def test_an_evaluation_dialogue_has_no_credit_and_explains_its_ending(index, root, client):
    run = root / "bench"
    view_runs.benchmark(root)
    won = replace(view_runs.talk(EMPATHY, "won"), ending=Ending(StopReason.SUCCESS, ("positional",)))
    (run / "dialogues" / "empa.jsonl").unlink()
    view_runs.write_lines(run / "dialogues" / "empa.jsonl", [won, view_runs.talk(EMPATHY, "late")])
    index.refresh()
    page = client.get("/run/bench/d/dialogues:empa.jsonl/1").text
    assert 'title="The state advanced far enough' in page
    assert "Reward of turn 1" in page
    assert "Reward and credit" not in page
    assert ">turn limit</span>" in client.get("/run/bench/d/dialogues:empa.jsonl/2").text
