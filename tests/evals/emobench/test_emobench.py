"""EmoBench: recorded cases of both references, whole runs over HTTP, killed, resumed and spoilt."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo.cli.evaluate.emobench import print_result
from mapo.errors import EndpointError, InputError, RecordError
from mapo.evals.emobench import data
from mapo.evals.emobench.data import LETTERS, TASKS, load
from mapo.evals.emobench.lenient import choice_in, lenient_choices
from mapo.evals.emobench.questions import (
    KEYS,
    EmoBenchSettings,
    majority,
    manifest,
    orders,
    parse_answer,
    parse_replies,
    solver,
)
from mapo.evals.emobench.score import accuracies, best_constant, constants, score
from mapo.evals.items import run_items
from mapo.testing.fakes import FakeChat
from mapo.testing.server import LoopbackServer
from support import small_run as small
from support.command import mapo
from support.emobench_files import PROMPTS, RESPONSE, Student, ea, eu, fixture, form, shared, write

PLAIN = EmoBenchSettings()


@pytest.fixture(scope="module")
def recorded() -> dict:
    return fixture("emobench.json")


@pytest.fixture(scope="module")
def recorded_2024() -> dict:
    return fixture("emobench2024.json")


@pytest.fixture(scope="module")
def official():
    return load(shared("emobench"))


@pytest.fixture
def made_up(tmp_path):
    return load(write(tmp_path / "emobench"), allow_changed=True)


# ---- recorded cases


def test_replies_are_read_as_recorded(recorded):
    """The reference crashes on JSON that is no object; here that is a reply in another form."""
    stored = {"EA": {"answer": "answer"}, "EU": {"emo_answer": "answer_q1", "cause_answer": "answer_q2"}}
    right = {"EA": {"answer": "B"}, "EU": {"answer_q1": "B", "answer_q2": "C"}}
    for case in recorded["parse"]:
        found = parse_answer(case["task"], case["raw"])
        if "crash" in case:
            assert found == dict.fromkeys(KEYS[case["task"]], "")
            continue
        assert found == case["parsed"], case["raw"]
        kept = {name: found.get(key, "") for name, key in stored[case["task"]].items()}
        assert kept == case["stored"]
        hit = {key: found.get(key, "") for key in KEYS[case["task"]]} == right[case["task"]]
        assert float(hit) == case["accuracy"]
    assert len(recorded["parse"]) == 32 and sum("crash" in case for case in recorded["parse"]) == 2


def test_rows_are_counted_as_recorded(recorded):
    names = {
        "EA": [("label", "answer")],
        "EU": [("emo_label", "emo_answer"), ("cause_label", "cause_answer")],
    }
    for case in recorded["scoring"]:
        category = "category" if case["task"] == "EA" else "coarse_category"
        marks = [
            (row[category], all(row[label] == row[answer] for label, answer in names[case["task"]]))
            for row in case["rows"]
            if row["lang"] == case["lang"]
        ]
        assert accuracies(marks) == case["expected"], case["name"]
    assert len(recorded["scoring"]) == 13


def test_constant_answers_score_as_recorded(recorded, official):
    for name, expected in recorded["constant_baselines"].items():
        task, language, letters = name.split("-")
        asked = [q for q in official.questions if (q.task, q.language) == (task, language)]
        marks = [(q.category, q.labels == tuple(letters)) for q in asked]
        assert accuracies(marks) == pytest.approx(expected, abs=1e-12), name
        assert constants(asked, PLAIN)[letters] == pytest.approx(expected["Overall"], abs=1e-12)
    best = {
        (task, language): best_constant(
            [q for q in official.questions if (q.task, q.language) == (task, language)], PLAIN
        )
        for task in TASKS
        for language in ("en", "zh")
    }
    assert best["EA", "en"] == best["EA", "zh"] == ("C", 0.37)
    assert best["EU", "zh"] == ("AA", 0.245)


def test_prompts_are_as_recorded_to_the_byte(recorded, official):
    def sha(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    hashes = recorded["prompt_hashes"]
    for name, expected in hashes.items():
        if name.startswith("qwen"):
            continue
        task, language, how = name.split("-")
        asked = [official.user(q) for q in official.questions if (q.task, q.language) == (task, language)]
        system = official.system(task, language, reasoning=how == "cot")
        assert sha(system) == expected["system_sha256"]
        assert len(asked) == expected["n"] and sha(asked[0]) == expected["first_user_sha256"]
        assert sha("\0".join(asked)) == expected["user_all_sha256"]
    assert len(hashes) == 10
    assert official.system("EA", "en", no_think=True).startswith(hashes["qwen_prefix_no_cot"])
    assert official.system("EA", "en", reasoning=True).startswith(hashes["qwen_prefix_cot"])


def test_votes_of_2024_are_counted_as_recorded(recorded_2024):
    for case in recorded_2024["majority_vote"]:
        votes = [None if vote < 0 else str(vote) for vote in case["preds"]]
        expected = None if case["vote"] < 0 else str(case["vote"])
        assert majority(votes) == expected, case
    assert len(recorded_2024["majority_vote"]) == 20


def test_free_text_of_2024_is_read_as_recorded(recorded_2024):
    known = recorded_2024["process_output"]
    for case in known["cases"]:
        found = choice_in(case["text"], known[f"choices_{case['task']}"], case["lang"])
        assert (-1 if found is None else found) == case["index"], case
    assert len(known["cases"]) == 75


# ---- reading


def test_the_lenient_reading_finds_what_was_meant():
    choices = ["Joy", "Relief & Joy", "Anger.", "Shame"]
    for reply, meant in {
        "```\n{'answer': 'B'}\n```": 1,
        '{"answer": "b) Relief & Joy"}': 1,
        '{"answer": "Relief & Joy"}': 1,
        '{"answer": "Relief and Joy"}': 1,
        '{"answer": "Ｃ"}': 2,
        '{"answer": ["D"]}': 3,
        '{"answer": "anger"}': 2,
        "The best is **option d**.": 3,
        "<think>(a) or (b)?</think>\nAnswer: C": 2,
        "<think>(a), surely": None,
        '{"reasoning": "(a) is kind", "answer": "Z"}': None,
        '{"answer": ""}': None,
        "“answer”: “A”": 0,
        "": None,
    }.items():
        assert lenient_choices("EA", reply, [choices], "en") == [meant], reply
    assert lenient_choices("EA", None, [choices], "en") == [None]
    for reply in ("答案：选项 B", "答案：B", "我选（B）", "答案：B，因为"):
        assert lenient_choices("EA", reply, [choices], "zh") == [1], reply


def test_the_lenient_reading_of_two_questions():
    parts = [["Joy", "Anger", "Shame", "Pride"], ["rain", "sun", "snow"]]
    for reply, meant in {
        "```\n{'answer_q1': 'b', 'answer_q2': 'c.'}\n```": [1, 2],
        "B, C": [1, 2],
        "(b) and (c)": [None, None],  # which is which?
        "EmoBenchQuestion 1: B) Anger\nQuestion 2: snow": [1, 2],
        "问题1：B\n问题2：C": [1, 2],
        "答案1：B，答案2：C": [1, 2],
        '{"answer_q1": "B"}': [1, None],
        "A, D": [0, None],
        "": [None, None],
    }.items():
        assert lenient_choices("EU", reply, parts, "en") == meant, reply


@given(st.data())
def test_whatever_counts_strictly_counts_leniently(data):
    question = load_made_up().questions[data.draw(st.integers(0, 23))]
    settings = EmoBenchSettings(shuffle=data.draw(st.booleans()), votes=data.draw(st.integers(1, 3)))
    letters = st.sampled_from([*LETTERS[:7], "b", "", "B)", None, 3])
    given = st.fixed_dictionaries(dict.fromkeys(KEYS[question.task], letters)).map(json.dumps)
    texts = data.draw(st.lists(given | st.text(), min_size=settings.votes, max_size=settings.votes))
    found = parse_replies(question, texts, settings)
    if settings.votes == 1:
        for strict, loose in zip(found.strict, found.lenient, strict=True):
            assert strict is None or strict == loose
    assert found.parsed <= found.parsed_lenient <= settings.votes


_LOADED = {}


def load_made_up():
    """One copy for all examples of a property."""
    if not _LOADED:
        import tempfile
        from pathlib import Path

        with tempfile.TemporaryDirectory() as folder:
            _LOADED["bench"] = load(write(Path(folder)), allow_changed=True)
    return _LOADED["bench"]


@given(st.text() | st.recursive(st.none() | st.text(), lambda x: st.lists(x)).map(json.dumps))
def test_no_reply_breaks_the_parser(raw):
    for task in TASKS:
        assert isinstance(parse_answer(task, raw), dict)
        parts = [["Joy", "Anger"]] * len(KEYS[task])
        assert len(lenient_choices(task, raw, parts, "zh")) == len(KEYS[task])


_PIECES = ["```json", "```", "`", '{"answer": "B"}', "\n", " ", "\t", "\u3000", "\xa0", "\x0b", "\u2028", "x"]


@given(st.lists(st.sampled_from(_PIECES), max_size=12).map("".join))
def test_a_block_is_cut_out_as_the_reference_cuts(raw):
    """Its rule: where there is a label, what counts is all that stands between the first one that a fence
    closes and that fence; json.loads takes four kinds of white space around it and no other."""
    meant = raw
    if "```json" in raw:
        start = raw.index("```json") + len("```json")
        end = raw.find("```", start)
        meant = raw[start:end] if end >= 0 else ""
    try:
        want = json.loads(meant)
    except ValueError:
        want = {"answer": ""}
    assert parse_answer("EA", raw) == want


def test_white_space_that_json_does_not_know_is_a_wrong_answer():
    assert parse_answer("EA", '```json \n\t{"answer": "B"}\r\n```') == {"answer": "B"}
    for space in "\u3000\xa0\x0b\x0c\u2028\x85":
        assert parse_answer("EA", f'```json{space}{{"answer": "B"}}```') == {"answer": ""}


def test_a_fence_that_never_closes_is_looked_through_once():
    # once from every line break on would be 10^11 steps
    assert parse_answer("EA", "```json" + "\n" * 500_000) == {"answer": ""}


def test_nesting_without_end_is_a_wrong_answer():
    assert parse_answer("EA", "[" * 100_000) == {"answer": ""}


# ---- shuffled choices, votes


def test_shuffled_letters_are_mapped_back(made_up):
    settings = EmoBenchSettings(shuffle=True, votes=3, seed=4)
    moved = 0
    for question in made_up.questions:
        replies = []
        for vote in range(3):
            shown = orders(question, settings, vote)
            assert [sorted(order) for order in shown] == [list(range(len(p.choices))) for p in question.parts]
            asked = made_up.user(question, shown)
            right = [LETTERS[o.index(p.correct)] for o, p in zip(shown, question.parts, strict=True)]
            for letter, part in zip(right, question.parts, strict=True):
                assert f"{letter}) {part.choices[part.correct]}" in asked.split("\n")
            moved += tuple(right) != question.labels
            replies.append(form(question, right))
        found = parse_replies(question, replies, settings)
        assert found.strict == found.lenient == question.labels and found.parsed == 3
    assert moved > len(made_up.questions)
    assert orders(question, settings, 0) == orders(question, settings, 0) != orders(question, settings, 1)
    assert orders(question, replace(settings, seed=5), 0) != orders(question, settings, 0)
    assert orders(question, PLAIN, 0) == [list(range(len(p.choices))) for p in question.parts]


def test_a_constant_answer_is_measured_as_the_choices_were_shown(made_up):
    """Its score is what a model scores that says the same letters every time."""
    for settings in (PLAIN, EmoBenchSettings(shuffle=True, votes=3, seed=1)):
        asked = [q for q in made_up.questions if q.task == "EU"]
        letters, best = best_constant(asked, settings)
        replies = {q.id: [form(q, letters)] * settings.votes for q in asked}
        right = [parse_replies(q, replies[q.id], settings).strict == q.labels for q in asked]
        assert best == sum(right) / len(right) == max(constants(asked, settings).values())


def test_the_majority_of_votes_counts(made_up):
    question = next(q for q in made_up.questions if q.task == "EA")
    right, wrong = form(question, question.labels), form(question, "D")
    settings = EmoBenchSettings(votes=3)
    assert parse_replies(question, [wrong, right, right], settings).strict == question.labels
    assert parse_replies(question, [wrong, right, "nothing"], settings).strict == (
        "D",
    )  # the earlier of equals
    assert parse_replies(question, ["", right, "nothing"], settings) == (
        (question.labels),
        question.labels,
        1,
        1,
    )
    assert parse_replies(question, ["", "", ""], settings).strict == (None,)


# ---- asking


def test_a_question_is_asked_as_the_reference_asks(made_up):
    chat = FakeChat(lambda request: '{"answer": "A"}')
    solve = solver(made_up, PLAIN, lambda name: chat)
    asyncio.run(solve(made_up.questions[0], 0))
    [request] = chat.requests
    assert request.temperature == 0.6 and [m.role for m in request.messages] == ["system", "user"]
    assert request.messages[0].content == made_up.system("EA", "en")
    assert request.messages[1].content == made_up.user(made_up.questions[0])


def test_votes_are_calls_of_their_own_and_a_later_attempt_repeats_none(made_up):
    chat = FakeChat(lambda request: '{"answer": "A"}')
    solve = solver(made_up, EmoBenchSettings(votes=3, reasoning=True, no_think=True), lambda name: chat)
    line = asyncio.run(solve(made_up.questions[0], 0))
    asyncio.run(solve(made_up.questions[0], 1))
    assert len(line["replies"]) == 3
    assert len({r.nonce for r in chat.requests}) == len({r.seed for r in chat.requests}) == 3
    assert chat.requests[:3] == chat.requests[3:]
    system = chat.requests[0].messages[0].content
    assert system.startswith("/no_think\n\nRead this.") and "Think, then JSON" in system


def test_another_setting_is_another_run(made_up):
    there = manifest(made_up, PLAIN, "m")
    for other in ({"seed": 1}, {"reasoning": True}, {"votes": 2}, {"languages": ("en",)}, {"no_think": True}):
        assert manifest(made_up, replace(PLAIN, **other), "m") != there
    assert json.loads(json.dumps(there)) == there  # or no resume would ever agree with it


# ---- scores


def lines_for(bench, says):
    return {q.id: {"id": q.id, "replies": [{"text": says(q), "finish": "stop"}]} for q in bench.questions}


def test_scores_by_hand(tmp_path):
    """EA en 2/3, zh 1/3; EU en 1/3, zh 1/3: EA = 1/2, EU = 1/3, Overall = 5/12."""
    bench = load(write(tmp_path, 3), allow_changed=True)
    right = {"EA-en-1", "EA-en-2", "EA-zh-1", "EU-en-1", "EU-zh-3"}
    found = score(bench, PLAIN, lines_for(bench, lambda q: form(q, q.labels) if q.id in right else "?"))
    expected = {"EA": 1 / 2, "EU": 1 / 3, "Overall": 5 / 12}
    for name, value in expected.items():
        assert found.scores[name] == found.scores[f"{name}_lenient"] == pytest.approx(value)
    assert found.details["languages"]["en"]["EA"] == {
        "Personal-Self": 1.0,  # number 2
        "Social-Others": 0.5,  # numbers 1 and 3
        "Overall": pytest.approx(2 / 3),
    }
    assert found.details["parse_rate"] == {"strict": 5 / 12, "lenient": 5 / 12}
    assert found.items[0] == ("EA-en-1", {"EA": 1.0, "EA_lenient": 1.0}, "EA-1", "EA")
    assert found.intervals["EA"] is None  # three questions are too few
    # labels of EA 1, 2, 3 are B, C, A: every constant answer has a third
    assert found.details["baselines"]["all"]["EA"] == {"answer": "A", "score": pytest.approx(1 / 3)}
    assert "changed data" in found.notes[0] and any(
        "EU is not above always answering" in n for n in found.notes
    )


def test_the_lenient_column_forgives_the_form_alone(made_up):
    found = score(made_up, PLAIN, lines_for(made_up, lambda q: f"Answer: {q.labels[0]}"))
    assert found.scores["EA"] == 0.0 and found.scores["EA_lenient"] == 1.0
    assert found.scores["EU"] == found.scores["EU_lenient"] == 0.0


def test_what_is_not_there_has_no_score(made_up):
    lines = {k: v for k, v in lines_for(made_up, lambda q: "").items() if k.startswith("EU")}
    found = score(made_up, PLAIN, lines)
    assert "EA" not in found.scores and "Overall" not in found.scores and found.scores["EU"] == 0.0
    assert score(made_up, PLAIN, {}).scores == {} == score(made_up, PLAIN, {}).details["parse_rate"]


def test_a_line_that_holds_no_replies_is_refused(made_up):
    name = made_up.questions[0].id
    for spoilt in ({}, {"replies": 3}, {"replies": [{"text": None}]}, {"replies": []}, {"replies": ["x"]}):
        with pytest.raises(RecordError, match=f"items.jsonl, item {name}: the item does not have 1 replies"):
            score(made_up, PLAIN, {name: {"id": name, **spoilt}})


# ---- the data


def test_the_checkout_is_known_by_its_hashes(official):
    assert not official.changed and len(official.questions) == 800
    assert (
        len({q.id for q in official.questions}) == 800 and len({q.group for q in official.questions}) == 400
    )


def test_other_bytes_are_refused_by_name(tmp_path):
    folder = tmp_path / "emobench"
    for name in data.FILES:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(shared("emobench", *name.split("/")).read_bytes())
    assert len(load(folder, ("zh",)).questions) == 400
    for name in data.FILES:
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole.replace(b"\n", b"\r\n"))
        with pytest.raises(InputError, match=f"{name}: the file is not that of EmoBench 3b4f843") as told:
            load(folder)
        assert "git checkout 3b4f843" in str(told.value)
        (folder / name).write_bytes(whole)


def test_a_missing_file_and_the_old_release_have_different_messages(tmp_path):
    with pytest.raises(InputError, match="data/EA.jsonl: the file cannot be read"):
        load(tmp_path / "nowhere")
    write(tmp_path / "some")
    (tmp_path / "some" / data.RESPONSE).unlink()
    with pytest.raises(InputError, match="response.yaml: the file cannot be read"):
        load(tmp_path / "some", allow_changed=True)
    (tmp_path / "old" / "data" / "EA").mkdir(parents=True)
    with pytest.raises(InputError, match="the release of 2024"):
        load(tmp_path / "old")


@pytest.mark.parametrize(
    ("spoilt", "told"),
    [
        ({"EA": "{"}, "EA.jsonl, line 1: the line is not a question of EA"),
        ({"EA": "[]"}, "EA.jsonl, line 1"),
        ({"EA": json.dumps(ea(1)) + "\n\n" + json.dumps(ea(2, label="no such"))}, "EA.jsonl, line 3"),
        ({"EA": json.dumps(ea(1, language="fr"))}, "language is 'fr'"),
        ({"EA": json.dumps(ea(1, scenario=None))}, "texts and lists of texts"),
        ({"EU": json.dumps(eu(1, cause_choices=["x"] * 27, cause_label="x"))}, "EU.jsonl, line 1"),
        ({"EU": json.dumps(eu(1, cause_choices=7))}, "EU.jsonl, line 1"),
        ({"EA": json.dumps({k: v for k, v in ea(1).items() if k != "subject"})}, "'subject'"),
        ({"EA": json.dumps(ea(1)) + "\n" + json.dumps(ea(1))}, "two with the same qid"),
        ({"EA": "", "EU": ""}, "there are no questions"),
        ({"prompts": "a: [1"}, "prompts.yaml: the file is not valid YAML"),
        ({"prompts": "[" * 600}, "prompts.yaml: the file is not valid YAML"),
        ({"prompts": "- a"}, "there is no text under EA.en"),
        ({"prompts": PROMPTS.replace("{q_type}", "{mood}")}, "the prompt contains '{mood}'"),
        ({"response": RESPONSE.replace("reasoning:", "other:")}, "there is no text under reasoning.en"),
        ({"prompts": "!!python/object/apply:os.getpid []"}, "prompts.yaml: the file is not valid YAML"),
    ],
)
def test_bad_data_is_refused_with_its_place(tmp_path, spoilt, told):
    with pytest.raises(InputError) as error:
        load(write(tmp_path, **spoilt), allow_changed=True)
    assert told in str(error.value)


def test_braces_in_the_data_are_text(tmp_path):
    bench = load(write(tmp_path, EA=json.dumps(ea(1, scenario="{subject} {0}"))), allow_changed=True)
    assert bench.user(bench.questions[0]).startswith("{subject} {0}\n")


# ---- the command


def options(out, folder, url, *more):
    return [
        *("eval", "emobench", "--model=m", f"--base-url={url}", f"--data={folder}", f"--out={out}"),
        *more,
    ]


def result_of(out) -> dict:
    return json.loads((out / "result.json").read_text(encoding="utf-8"))


def kill_in_the_middle(args, out, at: int) -> None:
    env = {**os.environ, "NO_COLOR": "1"}
    process = subprocess.Popen([sys.executable, "-m", "mapo", *args], env=env, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    file = out / "items.jsonl"
    while time.monotonic() < deadline and process.poll() is None:
        if file.exists() and file.read_bytes().count(b"\n") >= at:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    _, told = process.communicate()
    assert process.returncode == -signal.SIGKILL, told


@pytest.mark.slow
def test_800_questions_over_http_killed_and_resumed(tmp_path, official):
    """The score is that of an undisturbed run, and nothing that was answered is paid for again."""
    folder = shared("emobench")
    student, out = Student(official), tmp_path / "run"
    with LoopbackServer(student, latency=0.002) as server:
        args = options(out, folder, server.base_url, "--concurrency=8")
        kill_in_the_middle(args, out, 300)
        finished = {json.loads(line)["id"] for line in (out / "items.jsonl").read_bytes().split(b"\n")[:300]}
        before = len(student.asked)
        assert len(finished) == 300 and before < 800
        done = mapo(*args, "--resume")
        assert done.returncode == 0, done.stderr
        assert not finished & set(student.asked[before:])  # finished items are not asked again
        assert len(set(student.asked)) == 800 <= server.calls <= 800 + 8  # only those in flight, once more
    assert {type(error).__name__ for error in server.errors} <= {"ClientDisconnect"}  # by the kill
    found = result_of(out)
    assert found["complete"] and found["n"] == found["of"] == 800 and found["notes"] == []
    expected = score(official, PLAIN, lines_for(official, Student.says))  # what an undisturbed run records
    assert found["scores"] == expected.scores and found["details"] == expected.details
    assert found["items"] == [{"id": item.id, "scores": item.scores} for item in expected.items]
    assert 0.4 < found["scores"]["EA"] < found["scores"]["EA_lenient"] < 0.8
    assert [row["hits"] for row in json.loads((out / "ledger.json").read_text())["rows"]] == [
        # calls that were answered before the kill, and whose item was not yet written
        pytest.approx(0, abs=8)
    ]


def test_a_small_run_killed_and_resumed_is_the_undisturbed_one(tmp_path):
    folder = write(tmp_path / "emobench", 25)
    student = Student(load(folder, allow_changed=True))
    with LoopbackServer(student, latency=0.01) as server:
        more = ["--allow-changed-data", "--concurrency=4"]
        whole = mapo(*options(tmp_path / "whole", folder, server.base_url, *more))
        assert whole.returncode == 0 and server.calls == 100, whole.stderr
        args = options(tmp_path / "torn", folder, server.base_url, *more)
        kill_in_the_middle(args, tmp_path / "torn", 30)
        done = mapo(*args, "--resume")
        assert done.returncode == 0 and 200 <= server.calls <= 200 + 4, done.stderr
    one, two = result_of(tmp_path / "whole"), result_of(tmp_path / "torn")
    assert one == two and one["n"] == 100
    assert whole.stdout.splitlines()[:20] == done.stdout.splitlines()[:20]
    assert "best constant answer" in done.stdout and "changed data" in done.stderr


def test_a_kill_between_two_votes_pays_for_neither_twice(tmp_path):
    folder = write(tmp_path / "emobench", 2)
    failing = True

    def fault(number, body):
        return "503" if failing and number % 3 == 0 else None

    with LoopbackServer(lambda body: '{"answer": "A"}', fault=fault) as server:
        args = options(tmp_path / "run", folder, server.base_url, "--allow-changed-data", "--votes=4")
        args += ["--retries=0", "--shuffle", "--language=en", "--concurrency=1"]
        first = mapo(*args)
        answered = server.calls - server.faults["503"]
        assert (
            first.returncode == 1
            and "failed: " in first.stderr
            and "EA-en-1" in first.stderr
            and 0 < answered < 16
        )
        failing = False
        assert mapo(*args, "--resume").returncode == 0
        assert server.calls - server.faults["503"] == 16  # 4 items of 4 votes, each answer once


def test_failed_calls_are_missing_not_wrong(tmp_path):
    folder = write(tmp_path / "emobench", 10)
    student = Student(load(folder, allow_changed=True))
    broken = True

    def fault(_, body):
        return "500" if broken and "number 3." in body["messages"][-1]["content"] else None

    with LoopbackServer(student, fault=fault) as server:
        args = options(tmp_path / "run", folder, server.base_url, "--allow-changed-data", "--retries=0")
        first = mapo(*args)
        assert first.returncode == 1 and "failed: 4 items (" in first.stderr
        part = result_of(tmp_path / "run")
        assert not part["complete"] and (part["n"], part["of"]) == (36, 40)
        assert part["notes"][0].startswith("incomplete: 4 of 40") and "incomplete" in first.stdout
        assert not any(item["id"].endswith("-3") for item in part["items"])
        broken = False
        assert mapo(*args, "--resume").returncode == 0
        assert server.calls == 44
    assert result_of(tmp_path / "run")["complete"]


@pytest.mark.parametrize("said", ["", "I cannot help with that.", "\ud83d{", "[" * 2000])
def test_a_model_that_says_nothing_usable_scores_nothing(tmp_path, said):
    folder = write(tmp_path / "emobench", 2)
    message = {"content": said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")}
    with LoopbackServer(lambda body: message) as server:
        args = options(tmp_path / "run", folder, server.base_url, "--allow-changed-data")
        done = mapo(*args, "--retries=1")
    found = result_of(tmp_path / "run")
    assert done.returncode == 0 and found["complete"] and found["scores"]["Overall"] == 0.0
    assert found["details"]["parse_rate"] == {"strict": 0.0, "lenient": 0.0}
    assert any("is not above always answering" in note for note in found["notes"])


def test_replies_cut_off_are_noted(tmp_path):
    folder = write(tmp_path / "emobench", 1)
    answer = {"content": '{"answer": "A', "finish_reason": "length"}
    with LoopbackServer(lambda body: answer, record=True) as server:
        args = options(tmp_path / "run", folder, server.base_url, "--allow-changed-data", "--max-tokens=7")
        done = mapo(*args, "--language=zh", "--temperature=0.1")
    assert "2 replies were cut off at the token limit" in done.stderr
    assert {(b["max_tokens"], b["temperature"]) for b in server.bodies} == {(7, 0.1)}


def test_one_task_alone_has_no_overall(tmp_path):
    """Changed data may hold EU only: what is not there is neither scored nor compared."""
    folder = write(tmp_path / "emobench", 2, EA="")
    prices = tmp_path / "prices.json"
    prices.write_text('{"m": [1, 1, 1]}')
    with LoopbackServer(Student(load(folder, allow_changed=True))) as server:
        args = options(tmp_path / "run", folder, server.base_url, "--allow-changed-data")
        done = mapo(*args, f"--prices={prices}")
    found = result_of(tmp_path / "run")
    assert done.returncode == 0 and set(found["scores"]) == {"EU", "EU_lenient"}
    assert set(found["details"]["baselines"]["all"]) == {"EU"}
    row = next(line for line in done.stdout.splitlines() if "Overall" in line)
    assert row.split() == ["Overall", *["-"] * 4]


def test_a_dead_endpoint_stops_the_run_before_anything_is_written(tmp_path):
    folder, out = write(tmp_path / "emobench", 25), tmp_path / "run"
    dead = mapo(*options(out, folder, "http://127.0.0.1:9/v1", "--allow-changed-data", "--retries=0"))
    assert dead.returncode == 2 and "Is a server running at http://127.0.0.1:9/v1?" in dead.stderr
    assert not out.exists()


def test_an_endpoint_that_fails_ends_the_run_and_loses_nothing(tmp_path):
    folder = write(tmp_path / "emobench", 25)
    bench = load(folder, allow_changed=True)
    out = tmp_path / "run"
    more = ["--allow-changed-data", "--retries=0"]
    with LoopbackServer(fault=lambda _number, _body: "500") as server:
        failed = mapo(*options(out, folder, server.base_url, *more))
    assert failed.returncode == 2 and "items failed, the last one with: " in failed.stderr
    assert "--resume" in failed.stderr and not (out / "result.json").exists()
    with LoopbackServer(Student(bench)) as server:
        done = mapo(*options(out, folder, server.base_url, *more, "--resume"))
    assert done.returncode == 0 and server.calls == 100, done.stderr


def test_what_cannot_be_run_is_refused_before_anything_is_written(tmp_path):
    folder, out = write(tmp_path / "emobench", 1), tmp_path / "run"
    url = "http://127.0.0.1:9/v1"
    for more, told in {
        ("--language=fr", "--allow-changed-data"): "language 'fr' is unknown",
        (): "data/EA.jsonl: the file is not that of EmoBench 3b4f843",
        ("--data=/nowhere",): "EA.jsonl: the file cannot be read",
        ("--allow-changed-data", "--model=scripted:honest"): "'scripted:honest' is not a model",
        ("--allow-changed-data", "--base-url=nonsense"): "base URL 'nonsense'",
        ("--allow-changed-data", "--cache=maybe"): "--cache is 'maybe'",
        ("--allow-changed-data", "--resume"): "no run to resume",
    }.items():
        done = mapo(*options(out, folder, url, *more))
        assert done.returncode == 2 and told in done.stderr and not out.exists(), (more, done.stderr)


def test_a_resume_with_other_settings_or_data_is_refused(tmp_path):
    folder, out = write(tmp_path / "emobench", 1), tmp_path / "run"
    with LoopbackServer(lambda body: "?") as server:
        args = options(out, folder, server.base_url, "--allow-changed-data")
        assert mapo(*args).returncode == 0
        other = mapo(*args, "--resume", "--seed=1")
        assert other.returncode == 2 and "seed: 0 there, 1 here" in other.stderr
        write(folder, 2)
        assert "the run there is another one (data:" in mapo(*args, "--resume").stderr


def test_other_weights_under_the_same_name_are_another_run(tmp_path):
    model = small.model_folder(tmp_path / "model")
    folder = write(tmp_path / "emobench", 1)
    args = ["--allow-changed-data", "--language=en", f"--data={folder}", f"--out={tmp_path / 'run'}"]
    args += [f"--model=local:{model}", "--max-tokens=4"]
    assert mapo("eval", "emobench", *args).returncode == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["weights"]["model"] and result["addresses"] == {}
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "trained": "further"}))
    done = mapo("eval", "emobench", *args, "--resume")
    assert done.returncode == 2 and "the run there is another one (weights:" in done.stderr
    done = mapo("eval", "emobench", *args[:3], *args[4:5], f"--out={tmp_path / 'x'}", "--context=2000")
    assert (
        done.returncode == 2
        and "One reply of up to 2048 tokens does not fit into a context of 2000" in done.stderr
    )


def test_a_local_model_answers_the_same_twice(tmp_path):
    """The embedded model knows nothing of JSON; it is asked through the sampler like any policy."""
    pytest.importorskip("torch")
    folder = write(tmp_path / "emobench", 2)
    said = []
    for name in ("one", "two"):
        args = ["eval", "emobench", "--model=local:pocket", f"--data={folder}", f"--out={tmp_path / name}"]
        done = mapo(*args, "--allow-changed-data", "--max-tokens=12", "--language=en", "--concurrency=2")
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / name / "items.jsonl").read_text(encoding="utf-8").splitlines()
        said.append({line["id"]: line["replies"] for line in map(json.loads, lines)})
    assert said[0] == said[1] and len(said[0]) == 4
    assert result_of(tmp_path / "one")["scores"]["Overall"] <= 1.0


def test_an_endpoint_that_fails_in_the_middle_is_no_models_fault(tmp_path, made_up):
    chat = FakeChat(lambda request: EndpointError("gone"))
    lines = asyncio.run(run_items(tmp_path, made_up.questions[:3], solver(made_up, PLAIN, lambda name: chat)))
    assert lines == {}


def test_a_category_may_hold_any_signs(capsys):
    print_result(
        {
            "details": {
                "baselines": {"en": {"EA": {"answer": "A", "score": 0.5}}},
                "languages": {"en": {"EA": {"x[/b]:smile:": 1.0, "Overall": 1.0}, "EU": {}}},
                "parse_rate": {"strict": 1.0, "lenient": 1.0},
            },
            "settings": {"languages": ["en"]},
            "n": 1,
            "of": 1,
            "complete": True,
            "intervals": {},
            "scores": {"EA": 1.0},
        }
    )
    assert "EA x[/b]:smile:" in capsys.readouterr().out
