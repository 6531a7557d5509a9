"""EQ-Bench v2: recorded cases of the reference, and whole runs over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections import Counter

import pytest

from mapo.errors import InputError, RecordError
from mapo.evals.eqbench import v2
from mapo.evals.eqbench.data import EqBenchQuestion, read_v2
from mapo.evals.eqbench.v2 import score_v2
from mapo.testing.fakes import FakeChat
from mapo.testing.server import LoopbackServer
from support.command import mapo
from support.eqbench_files import fixture, made_up, shared  # noqa: F401


@pytest.fixture(scope="module")
def recorded() -> dict:
    return fixture("eqbench_v2.json")


@pytest.fixture
def published():
    return read_v2(shared("eqbench"))


# ---- recorded cases


def test_ratings_so_large_that_sums_overflow_have_no_score(recorded):
    reference = recorded["items"]["reference_answer_fullscale"]
    names = [reference[f"emotion{i}"] for i in range(1, 5)]
    assert score_v2(reference, "\n".join(f"{name}: 1{'0' * 307}" for name in names)) is None
    assert score_v2(reference, "\n".join(f"{name}: 1000" for name in names)) < -2000


def test_ratings_are_those_of_the_reference_pattern_and_take_linear_time():
    for text in ("a: 12b: 3", ": 1: 2", "a: 1: 2", "a:b: 4\nc:\n5", "x y: 6z_1: 07 q: -1", "a: 1.5b: 2"):
        expected = {word: float(number) for word, number in re.findall(r"(\w+):\s+(\d+)", text)}
        assert v2.ratings(text) == expected, text
    started = time.process_time()
    assert v2.ratings("a" * 60_000) == {}  # 10 seconds with the reference pattern
    assert time.process_time() - started < 1


def test_items_are_scored_as_recorded(recorded):
    reference = recorded["items"]["reference_answer_fullscale"]
    for case in recorded["items"]["cases"]:
        assert v2.ratings(case["text"]) == {k: float(n) for k, n in case["parsed"].items()}
        assert score_v2(reference, case["text"]) == case["v2"], case["text"]
        assert v2.accepted(reference, case["text"]) == case["counted"]


def test_the_distance_is_as_recorded(recorded):
    """s(d) = 0 at 0, 6.5 / (1 + exp(-1.2 (d - 4))) up to 5, d above; one emotion is off by d."""
    reference = {f"emotion{i}": f"E{i}" for i in range(1, 5)} | {f"emotion{i}_score": 0 for i in range(1, 5)}
    for d, score in recorded["curve_score_when_one_emotion_off_by_d"].items():
        assert score_v2(reference, f"E1: {d}, E2: 0, E3: 0, E4: 0") == score


def test_answers_that_cannot_be_read_are_asked_for_again_as_recorded(recorded):
    reference = recorded["items"]["reference_answer_fullscale"]
    question = EqBenchQuestion("1", "Rate.\nCritique: <your critique here>[End of answer]", reference)
    for case in recorded["retry"]:
        chat = FakeChat(case["outputs"])
        line = asyncio.run(v2.solve(question, 0, policy=lambda _, chat=chat: chat))
        assert line == {"answers": case["outputs"]}
        assert [r.temperature for r in chat.requests] == case["temps"]
        assert {r.max_tokens for r in chat.requests} == {case["max_tokens"]}
        [item] = v2.scored({"1": line}, [question])
        stored = case["stored"]
        assert item.scores == ({} if stored is None else {v2.NAME: 10 * stored["first_pass_score"]})


def test_aggregates_are_as_recorded(recorded):
    """The reference's own runs without revised scores, which we never ask for."""
    seen = 0
    for case in recorded["aggregate"]:
        for iteration, detail in zip(case["iterations"], case["detail"].values(), strict=True):
            if all(item["revised_score"] is None for item in iteration.values()):
                scores = [item["first_pass_score"] for item in iteration.values()]
                assert v2.mean_score([s for s in scores if s is not None]) == detail["final_score"]
                seen += 1
    assert seen


def test_prompts_are_as_recorded(recorded, published):
    prompts = [v2.prompt_of(question) for question in published]
    then = recorded["prompts"]

    def digest(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    assert len(prompts) == then["n"] and digest(prompts[0]) == then["first_sha256"]
    assert digest("\0".join(prompts)) == then["all_sha256"]


def test_constant_answers_score_as_recorded(recorded, published):
    for number, score in recorded["constant_baselines_v2"].items():
        assert round(v2.constant(published, int(number)), 4) == score


def test_a_perfect_model_over_http_scores_as_recorded(recorded, published, tmp_path):
    answers = {v2.prompt_of(q): perfect(q) for q in published}
    with LoopbackServer(lambda body: answers[body["messages"][0]["content"]], record=True) as server:
        done = mapo(*command(shared("eqbench"), tmp_path / "run", server.base_url))
    assert done.returncode == 0 and server.calls == 171, done.stderr
    assert {(b["temperature"], b["max_tokens"]) for b in server.bodies} == {(0.01, 60)}
    result = result_of(tmp_path / "run")
    assert result["scores"] == {"EQ-Bench v2": recorded["exact_answer_score"]}
    assert (result["benchmark"], result["judge"], result["n"]) == ("eqbench_v2", None, 171)
    assert "EQ-Bench v2" in done.stdout and "100.00" in done.stdout and "171/171" in done.stdout
    assert "rating every emotion 3 scores 38.9" in done.stderr


# ---- made-up files


def command(folder, out, url, *more):
    return (
        *("eval", "eqbench", "--v2", f"--data={folder}", "--model=policy", f"--base-url={url}"),
        *(f"--out={out}", *more),
    )


def result_of(out):
    return json.loads((out / "result.json").read_text())


def perfect(question: EqBenchQuestion) -> str:
    r = question.reference
    return "\n".join(f"{r[f'emotion{i}']}: {r[f'emotion{i}_score']}" for i in range(1, 5))


def test_a_prompt_asks_for_first_thoughts_only(made_up):  # noqa: F811
    [first, *_] = read_v2(made_up)
    assert v2.prompt_of(first) == (
        "Talk 1. Rate each from 0-10.\n\nE1a: <score>\nE1b: <score>\nE1c: <score>\nE1d: <score>\n\n"
        "\n[End of answer]\n\nZero is fine.\n\nYour answer:\n"
    )


def test_numbers_beyond_all_bounds_are_no_ratings(made_up):  # noqa: F811
    [first, *_] = read_v2(made_up)
    assert score_v2(first.reference, perfect(first)) == 10
    assert score_v2(first.reference, perfect(first).replace(": 8", ": " + "9" * 5000)) is None


@pytest.mark.parametrize(("readable", "status"), [(6, 0), (5, 0), (4, 1)])
def test_with_too_few_readable_answers_there_is_no_score(made_up, tmp_path, readable, status):  # noqa: F811
    """5 of 6 are 83.33 %, just enough; a question that no answer to can be read is left out of the mean."""
    questions = read_v2(made_up)
    answers = {v2.prompt_of(q): perfect(q) for q in questions[:readable]}
    with LoopbackServer(lambda body: answers.get(body["messages"][0]["content"], "no idea")) as server:
        done = mapo(*command(made_up, tmp_path / "run", server.base_url))
        again = mapo(*command(made_up, tmp_path / "run", server.base_url, "--resume"))
    assert done.returncode == status and server.calls == readable + 5 * (6 - readable)
    assert again.returncode == status and again.stdout.splitlines()[0] == done.stdout.splitlines()[0]
    result = result_of(tmp_path / "run")
    assert result["scores"] == ({} if status else {"EQ-Bench v2": 100})
    assert result["complete"] and result["n"] == 6 and result["details"]["readable"] == readable
    assert sum(item["scores"] == {} for item in result["items"]) == 6 - readable
    assert ("invalid: 4 of 6 answers can be parsed; at least 83.33% are required" in done.stderr) == bool(
        status
    )
    assert ("no score" in done.stdout) == bool(status)


def test_questions_whose_calls_failed_are_asked_again(made_up, tmp_path):  # noqa: F811
    answers = {v2.prompt_of(q): perfect(q) for q in read_v2(made_up)}
    asked: Counter[str] = Counter()
    broken = True

    def answer(body):
        text = body["messages"][0]["content"]
        asked[text] += 1
        return answers[text]

    def fault(_, body):
        return "400" if broken and re.match("Talk [12]", body["messages"][0]["content"]) else None

    with LoopbackServer(answer, fault=fault) as server:
        done = mapo(*command(made_up, tmp_path / "run", server.base_url))
        assert done.returncode == 1 and "no score, 4/6 questions" in done.stdout
        assert "incomplete: 2 of 6" in done.stderr and result_of(tmp_path / "run")["scores"] == {}
        broken = False
        done = mapo(*command(made_up, tmp_path / "run", server.base_url, "--resume"))
    assert done.returncode == 0 and set(asked.values()) == {1} and len(asked) == 6


def test_a_changed_file_is_refused(made_up, tmp_path):  # noqa: F811
    [name] = ["eq_bench_v2_questions_171.json"]
    (made_up / name).write_text((made_up / name).read_text().replace("Talk 1", "Talk one"))
    with pytest.raises(InputError, match="is not the published one"):
        read_v2(made_up)
    done = mapo(*command(made_up, tmp_path / "run", "http://127.0.0.1:9/v1"))
    assert done.returncode == 2 and "sha256" in done.stderr and not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", [{}, {"answers": []}, {"answers": "x"}, {"answers": [1]}])
def test_a_finished_line_in_another_form_is_refused(made_up, wrong):  # noqa: F811
    [first, *_] = questions = read_v2(made_up)
    with pytest.raises(RecordError, match=f"item {first.id}: the item has no answers. Remove that line"):
        v2.scored({first.id: {"id": first.id, **wrong}}, questions)
