"""EQ-Bench 3: recorded cases of the reference, and whole runs over HTTP, killed, resumed and spoilt."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo.errors import AnswerError, InputError
from mapo.evals.eqbench import v3 as eqbench3
from mapo.evals.eqbench.data import EqBenchScenario, read_v3, scenarios_of
from mapo.evals.eqbench.parse import parse_scores, reply_for_judge, sections, without_reasoning
from mapo.evals.items import PartialItemError, prepare, run_items
from mapo.runs.claim import claim
from mapo.testing.fakes import FakeChat
from mapo.testing.server import LoopbackServer
from support.command import mapo
from support.eqbench_files import CALLS, Script, child, fixture, made_up, marks_for, reply_to, shared, write  # noqa: F401


@pytest.fixture(scope="module")
def recorded() -> dict:
    return fixture("eqbench3.json")


def kind(scenario: str):
    return EqBenchScenario(scenario, ()).kind


# ---- recorded cases


def test_judges_answers_are_read_as_recorded(recorded):
    for case in recorded["judge_parse"]:
        if case["scores"] is None:
            with pytest.raises(ValueError, match="judge"):
                parse_scores(case["raw"])
        else:
            assert parse_scores(case["raw"]) == case["scores"], case["raw"]
    assert len(recorded["judge_parse"]) == 20


def test_sections_are_read_as_recorded(recorded):
    for case in recorded["sections"]:
        assert {**sections(case["type"], case["raw"]), "raw": case["raw"]} == case["parsed"]


def test_the_gate_is_as_recorded(recorded):
    for case in recorded["gate"]:
        assert eqbench3.scoreable(["x" * n for n in case["assistant_lens"]]) == case["scoreable"]


def test_aggregates_are_as_recorded(recorded):
    for case in recorded["aggregate"]:
        tasks = [
            (kind(scenario), task["rubric_scores"])
            for repetition in case["scenario_tasks"].values()
            for scenario, task in repetition.items()
        ]
        found = eqbench3.total(tasks)
        assert found == case["score_0_20"], case["name"]
        if found is not None:
            assert eqbench3.headline(found) == case["score_0_100"]


def test_the_whole_benchmark_over_http_is_as_recorded(recorded, tmp_path):
    """All 45 scenarios, the recorded marks from the judge: calls, their settings and the score."""
    folder, then = shared("eqbench"), recorded["e2e"]
    files = read_v3(folder)
    assert files.dropped == ("409",) and {s.id for s in files.scenarios} == set(then["judge_prompt_sha256"])

    def plain(text: str) -> str:
        return text.replace("*", "").replace("#", "")

    def beginning(scenario):
        head = files.rubric[scenario.kind].partition("{transcript}")[0]
        words = files.master[scenario.kind].format(scenario_prompt=scenario.turns[0])
        return plain(f"{head}User:\n{words}\n---\nAssistant:\n")

    judged: Counter[str] = Counter()

    def judge(prompt: str) -> str:
        [scenario] = [s for s in files.scenarios if prompt.startswith(beginning(s))]
        judged[scenario.id] += 1
        return json.dumps({"chain_of_thought_reasoning": "r", **then["scores"][scenario.id]})

    with LoopbackServer(Script(judge=judge), record=True) as server:
        done = mapo(*command(folder, tmp_path / "run", server.base_url))
    assert done.returncode == 0 and server.errors == [], done.stderr
    assert set(judged) == set(then["scores"]) and max(judged.values()) == 1

    asked = {"gen": Counter(), "judge": Counter()}
    for body in server.bodies:
        shown = {k: v for k, v in body.items() if k in ("max_tokens", "temperature", "min_p")}
        asked["judge" if body["model"] == "judge" else "gen"][json.dumps(shown, sort_keys=True)] += 1
        assert not any("<think>" in m["content"] for m in body["messages"])
    for who, wanted in then["params"].items():
        ways = {
            json.dumps({k: v for k, v in way.items() if k != "count"}, sort_keys=True): way["count"]
            for way in wanted
        }
        assert asked[who] == ways
    assert asked["gen"].total() == then["generation_calls"] == 118
    assert asked["judge"].total() == then["judge_calls"] == 45

    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["complete"] and (result["n"], result["of"]) == (45, 45)
    assert result["scores"] == {"EQ-Bench": eqbench3.headline(then["score_0_20"])}
    for item in result["items"]:
        assert {k: v for k, v in item["scores"].items() if k != "EQ-Bench"} == then["scores"][item["id"]]
    assert "52.15" in done.stdout and "45/45" in done.stdout and "judge judge" in done.stdout
    assert "scenario 409 is not played" in done.stderr


def test_prompts_are_as_long_as_recorded(recorded):
    """The recorded run's replies are not on record, but the characters of all prompts are.

    They fit replies of 206 characters, six of them marks that the judge does not see, 125 under the headings
    of a role-play (in a draft, under none it is read for). The model's calls of one scenario share one list
    in the reference, so the record counts each of them with the whole talk in it.
    """
    files, then = read_v3(shared("eqbench")), recorded["e2e"]["prompt_chars"]
    titles = ("I'm thinking & feeling", "They're thinking & feeling", "My response")
    reply = "".join(f"## {t}\n{'x' * n}\n\n" for t, n in zip(titles, (40, 40, 45), strict=True)) + "--\n\n"
    assert len(reply) == 206 and reply.count("#") == 6
    asked = judged = 0
    for scenario in files.scenarios:
        count = len(scenario.turns)
        words = (files.master[scenario.kind].format(scenario_prompt=turn) for turn in scenario.turns)
        talk = sum(map(len, words)) + count * len(reply)
        debrief = None if scenario.kind == "analysis" else "D" * 120
        asked += count * talk + (talk + len(files.debrief) if debrief else 0)
        judged += len(eqbench3.judge_prompt(scenario, files, [reply] * count, debrief))
    assert (asked, judged) == (then["gen_in"], then["judge_in"])


@pytest.mark.parametrize(
    ("state", "had", "judged"),
    [
        ("rubric_scored (complete run)", 4, True),
        ("error after turn 1", 1, False),
        ("scenario_completed", 3, False),
        ("completed", 4, False),
        ("error in rubric", 4, False),
    ],
)
def test_what_is_asked_after_an_interruption_is_as_recorded(recorded, tmp_path, state, had, judged):
    """EqBenchScenario 1 with `had` of its four replies in the cache, its marks perhaps on record.

    The reference also has states it never leaves ("running_..."): a run killed there is lost. Ours has none.
    """
    from mapo.models.cache import Cache
    from mapo.models.endpoint import Endpoint

    files = read_v3(shared("eqbench"))
    scenario = files.scenarios[0]
    script = Script(judge=lambda _: '{"pragmatic_ei": 5}')

    async def once(server, calls):
        cache = Cache(tmp_path / "cache.sqlite")
        kept = prepare(tmp_path / "run", {"a": 1}, resume=(tmp_path / "run").exists())
        claim(tmp_path / "run", {"a": 1})
        async with (
            Endpoint("policy", server.base_url, cache=cache, retries=0) as policy,
            Endpoint("judge", server.base_url, cache=cache, retries=0, role="judge") as judge,
        ):
            count = 0

            class Mortal:
                name = "policy"

                async def reply(self, request):
                    nonlocal count
                    count += 1
                    if calls is not None and count > calls:
                        raise AnswerError("killed")
                    return await policy.reply(request)

            async def solve(item, attempt):
                talker = lambda _: Mortal()  # noqa: E731
                if calls == 4 and not judged:  # all that was missing is the judge
                    await eqbench3.play_scenario(item, files, Mortal())
                    raise AnswerError("killed before the judge")
                return await eqbench3.solve(item, attempt, files=files, policy=talker, judge=judge)

            lines = await run_items(tmp_path / "run", [scenario], solve, previous=kept)
        cache.close()
        return lines

    with LoopbackServer(script) as server:
        asyncio.run(once(server, had))
        script.by_model.clear()
        lines = asyncio.run(once(server, None))
    then = recorded["resume"][state]
    assert (script.by_model["policy"], script.by_model["judge"]) == (then["gen_calls"], then["judge_calls"])
    assert list(lines) == ["1"]


# ---- reading what the recorded cases do not show


def test_quotes_and_breaks_inside_strings_are_mended():
    assert parse_scores('{"why": "she said "no" to\nhim", "correctness": 7}') == {"correctness": 7}
    assert parse_scores('{"why": "a \\"good\\" one \\\\", "correctness": 7}') == {"correctness": 7}
    assert parse_scores('{"why": "a \\" b "c" d", "correctness": 7}') == {"correctness": 7}
    with pytest.raises(InputError, match="the judge's answer contains no valid JSON object"):
        parse_scores('{"why": "a\tb", "correctness": 7}')  # only line breaks are mended
    with pytest.raises(InputError, match="no object is complete"):
        parse_scores('} {"correctness": 7}')
    with pytest.raises(InputError, match="no object is complete"):
        parse_scores('"never closed {"correctness": 7}\\')


def test_numbers_that_are_none_are_no_scores():
    assert parse_scores('{"a": NaN, "b": 1e999, "c": 3, "d": null}') == {"c": 3}
    assert parse_scores('{"a": "%s", "c": 3}' % ("9" * 400)) == {"c": 3}
    assert parse_scores('{"a": %s, "c": 3}' % ("9" * 400)) == {"c": 3}
    with pytest.raises(InputError, match="contains no scores"):
        parse_scores('{"a": Infinity}')
    with pytest.raises(InputError):
        parse_scores('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")


@given(st.text(alphabet='{}"\\ \n`json:,1[]ab', max_size=60))
def test_any_answer_gives_numbers_or_a_value_error(raw):
    try:
        found = parse_scores(raw)
    except ValueError:
        return
    assert found and all(type(v) is float and abs(v) < 1e300 for v in found.values())


def test_thinking_is_cut_where_both_ends_are_marked():
    assert without_reasoning("<think>a</think> b ") == "b"
    assert without_reasoning("<reasoning>a</reasoning> b") == "b"
    assert without_reasoning("a</think> b ") == "a</think> b "
    assert without_reasoning("<think>a") == "<think>a"


def test_the_judge_reads_sections_and_no_headings_of_its_own():
    assert reply_for_judge("roleplay", "before # My response\nI go.\n-- after") == (
        "# I'm thinking & feeling\n\n\n# They're thinking & feeling\n\n\n# My response\nI go.\n\n--"
    )
    assert reply_for_judge("drafting", "# Perspective taking\nP # Draft\nDear") == (
        "# Perspective-taking\nP\n\n# Draft brainstorming\n\n\n# Draft\nDear\n\n--"
    )


# ---- made-up files


def test_scenarios_are_turns_under_headings(made_up):  # noqa: F811
    files = read_v3(made_up)
    assert [(s.id, s.kind, len(s.turns)) for s in files.scenarios] == [
        ("1", "roleplay", 3),
        ("2", "roleplay", 2),
        ("208", "drafting", 2),
        ("401", "analysis", 1),
        ("402", "analysis", 1),
    ]
    assert files.dropped == ("409",)
    assert files.scenarios[0].turns[0] == "Somebody has moved your things\n  again. What do you do?"
    assert files.scenarios[0].turns[2] == "They were lying # all along."
    assert files.criteria["drafting"] == ("pragmatic_ei", "depth_of_insight", "warmth")
    again, _ = scenarios_of("######## 1\n####### Prompt1\na\n######## 1\n####### Prompt1\nb")
    assert again == (EqBenchScenario("1", ("b",)),)  # what is said last about a scenario counts


def test_the_judges_prompt(made_up):  # noqa: F811
    files = read_v3(made_up)
    replies = ["# My response\nI *ask*.", "x"]
    assert eqbench3.judge_prompt(files.scenarios[1], files, replies, "Later.") == (
        "ACTED all of it\n"
        "User:\nThe plant you gave away is dying.\n I'm thinking & feeling ...\n---\n"
        "Assistant:\n I'm thinking & feeling\n\n\n They're thinking & feeling\n\n\n My response\nI ask.\n\n--"
        "\n---\n"
        "User:\nThey ask whether you noticed {it}.\n I'm thinking & feeling ...\n---\n"
        "Assistant:\n I'm thinking & feeling\n\n\n They're thinking & feeling\n\n\n My response\n\n\n--\n"
        "\nLATER\nLater.\nFORM {\n"
        '  "chain_of_thought_reasoning": '
        '"detailed chain of thought reasoning about the coming scoring decisions",\n'
        '  "pragmatic_ei": 0-20,\n  "depth_of_insight": 0-20,\n  "warmth": 0-20\n}'
    )
    prompt = eqbench3.judge_prompt(files.scenarios[3], files, ["# raw *text*"], None)
    assert "Assistant:\n raw text\n" in prompt and "LATER" not in prompt


def test_a_conversation_holds_earlier_replies_and_ends_with_a_debrief(made_up):  # noqa: F811
    files = read_v3(made_up)
    chat = FakeChat(["<think>hm</think> one ", "two", " back "])
    replies, debrief = asyncio.run(
        eqbench3.play_scenario(files.scenarios[1], files, chat, max_tokens=99, min_p=0.2)
    )
    assert (replies, debrief) == (["one", "two"], "back")
    assert [[m.content[:9] for m in r.messages] for r in chat.requests] == [
        ["The plant"],
        ["The plant", "one", "They ask "],
        ["The plant", "one", "They ask ", "two", "Look back"],
    ]
    assert [(r.temperature, r.min_p, r.max_tokens) for r in chat.requests] == [
        (0.7, 0.2, 99),
        (0.7, 0.2, 99),
        (0.5, 0.0, 99),
    ]
    assert len({r.seed for r in chat.requests}) == 3


def test_files_that_are_missing_or_others_are_refused(made_up, tmp_path):  # noqa: F811
    for place in ("data", "eqbench3/data", "eqbench/eqbench3/data"):
        write(tmp_path / place.replace("/", "_") / place, {f.name: f.read_text() for f in made_up.iterdir()})
        assert len(read_v3(tmp_path / place.replace("/", "_")).scenarios) == 5
    with pytest.raises(InputError, match="folder does not exist. Run git clone .*eqbench3"):
        read_v3(tmp_path / "nowhere")
    broken = mock.patch("mapo.evals.eqbench.data.read_file", side_effect=OSError(5, "disk on fire"))
    with broken, pytest.raises(InputError, match="the file cannot be read .disk on fire"):
        read_v3(made_up)
    (made_up / "debrief_prompt.txt").write_text("Look back, now.")
    with pytest.raises(InputError, match="debrief_prompt.txt: the file is not the published one"):
        read_v3(made_up)
    (made_up / "debrief_prompt.txt").unlink()
    with pytest.raises(InputError, match=r"lacks debrief_prompt.txt\."):
        read_v3(made_up)


# ---- whole runs


def command(folder, out, url, *more):
    return (
        *("eval", "eqbench", f"--data={folder}", "--model=policy", f"--base-url={url}"),
        *("--judge-model=judge", f"--judge-base-url={url}", f"--out={out}", "--concurrency=3", *more),
    )


def result_of(out):
    return json.loads((out / "result.json").read_text())


@pytest.mark.parametrize("source", ["made up", pytest.param("published", marks=pytest.mark.slow)])
def test_killed_in_the_middle_of_a_scenario_and_resumed(made_up, tmp_path, monkeypatch, source):  # noqa: F811
    """The same score as a run nobody killed, and no call is answered twice."""
    folder, out = made_up, tmp_path / "run"
    if source == "published":
        monkeypatch.undo()
        folder = shared("eqbench")
    script = Script(hold=7)
    with LoopbackServer(script) as server:
        process = child(*command(folder, out, server.base_url))
        deadline = time.monotonic() + 60
        # All three workers wait for an answer, so all that was answered before is on disk.
        while len(script.held) < 3 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert len(script.held) == 3 and any(len(body["messages"]) > 1 for body in script.held)
        script.hold = None
        before = script.answered.total()
        resumed = child(*command(folder, out, server.base_url, "--resume"))
        told, problem = resumed.communicate(timeout=120)
        assert resumed.returncode == 0, problem
        assert before == 7 and script.answered.total() > 10
        assert max(script.answered.values()) == 1
        paid = dict(script.answered)

        script.answered.clear()
        other = mapo(*command(folder, tmp_path / "other", server.base_url))
        assert other.returncode == 0 and script.answered == paid
        finished = mapo(*command(folder, out, server.base_url, "--resume"))
        assert finished.returncode == 0 and script.answered == paid  # nothing was left to ask
        assert finished.stdout.splitlines()[0] == told.splitlines()[0] == other.stdout.splitlines()[0]
    assert result_of(out) == result_of(tmp_path / "other")
    assert result_of(out)["complete"] and result_of(out)["judge"] == "judge"
    score = result_of(out)["scores"]["EQ-Bench"]
    assert f"{score:.2f}" in told and sum(paid.values()) == (CALLS + 5 if source == "made up" else 163)
    ends = result_of(out)["intervals"]["EQ-Bench"]
    assert ends is None if source == "made up" else ends[0] <= score <= ends[1]  # five scenarios are too few


def test_a_judge_that_never_answers_in_form_leaves_no_score_and_loses_nothing(made_up, tmp_path):  # noqa: F811
    out = tmp_path / "run"
    script = Script(judge=lambda _: "I would rather not.")
    with LoopbackServer(script) as server:
        done = mapo(*command(made_up, out, server.base_url))
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert "no score, 0/5 scenarios" in done.stdout
        assert "failed: 5 items (" in done.stderr and "contains no valid JSON object" in done.stderr
        assert "I would rather not." in done.stderr and "--resume to ask the judge again" in done.stderr
        result = result_of(out)
        assert (result["scores"], result["intervals"], result["items"]) == ({}, {}, [])
        assert not result["complete"] and result["details"] == {"criteria": {}}
        assert script.by_model == {"policy": CALLS, "judge": 5}

        script.judge = lambda prompt: marks_for(prompt) if "ACTED" in prompt else '{"warmth": 3}'
        done = mapo(*command(made_up, out, server.base_url, "--resume"))
        assert (
            done.returncode == 1
            and "has no mark of a counted criterion" in done.stderr
            and "3/5" in done.stdout
        )
        assert "no score" in done.stdout and result_of(out)["scores"] == {}
        assert len(result_of(out)["items"]) == 3

        script.judge = lambda _: '{"correctness": 31, "EQ-Bench": 9, "warmth": 2}'
        done = mapo(*command(made_up, out, server.base_url, "--resume"))
        assert done.returncode == 0 and "2 marks are outside of 0 to 20" in done.stderr
    assert script.by_model == {"policy": CALLS, "judge": 5 + 5 + 2}  # the policy was never asked again
    scores = {item["id"]: item["scores"] for item in result_of(out)["items"]}
    assert scores["401"] == {"EQ-Bench": 155, "correctness": 31}


def test_a_model_that_says_next_to_nothing_is_not_judged(made_up, tmp_path):  # noqa: F811
    script = Script(
        policy=lambda messages: "Hm." if "plant" in messages[0]["content"] else reply_to(messages)
    )
    with LoopbackServer(script) as server:
        done = mapo(*command(made_up, tmp_path / "run", server.base_url))
    assert done.returncode == 1 and "no score, 3/5" in done.stdout
    assert (
        done.stderr.count("no reply is long enough to be judged: the longest has 3 characters, not 100") == 1
    )
    assert script.by_model["judge"] == 3 and result_of(tmp_path / "run")["scores"] == {}


def test_a_model_that_says_nothing_at_all_is_not_judged(made_up):  # noqa: F811
    files = read_v3(made_up)
    judge = FakeChat([])
    with pytest.raises(PartialItemError, match="longest has 0 characters"):
        asyncio.run(
            eqbench3.solve(files.scenarios[3], 0, files=files, policy=lambda _: FakeChat([""]), judge=judge)
        )
    assert judge.requests == []


@pytest.mark.parametrize("cache", ["off", "refresh", "record"])
def test_replies_whose_judge_failed_are_kept_and_taken_up(made_up, tmp_path, cache):  # noqa: F811
    out, script = tmp_path / "run", Script(judge=lambda _: "No marks.")
    dead = lambda _, body: "500" if body["model"] == "judge" and "ACTED" in str(body) else None  # noqa: E731
    with LoopbackServer(script, fault=dead) as server:
        args = [*command(made_up, out, server.base_url, f"--cache={cache}", "--retries=0")]
        assert mapo(*args).returncode == 1
        lines = [json.loads(line) for line in (out / "items.jsonl").read_text().splitlines()]
        assert {line["judge"] for line in lines} == {"No marks.", None}
        assert all(line["error"] and line["replies"] for line in lines)
        assert sum(line["debrief"] is not None for line in lines) == 3
        asked = script.by_model["policy"]
    script.judge = marks_for
    with LoopbackServer(script) as server:
        args = [*command(made_up, out, server.base_url, f"--cache={cache}", "--resume")]
        assert mapo(*args).returncode == 0 and script.by_model["policy"] == asked == CALLS
        assert mapo(*command(made_up, tmp_path / "whole", server.base_url)).returncode == 0
    assert result_of(out)["scores"] == result_of(tmp_path / "whole")["scores"]


def test_another_judge_on_the_same_replies_as_the_message_says(made_up, tmp_path):  # noqa: F811
    script = Script(judge=lambda _: "No marks.")
    with LoopbackServer(script) as server:
        done = mapo(*command(made_up, tmp_path / "run", server.base_url))
        assert "reuse the replies with --cache-file OLD/cache.sqlite" in done.stderr
        more = ["--judge-model=other", f"--cache-file={tmp_path / 'run' / 'cache.sqlite'}"]
        script.policy = lambda messages: marks_for(messages[0]["content"])  # "other" answers here
        asked = script.by_model["policy"]
        assert mapo(*command(made_up, tmp_path / "new", server.base_url), *more).returncode == 0
        assert (
            script.by_model["policy"] == asked and script.by_model["other"] == 6
        )  # the preflight check is one call


def test_names_are_shown_as_they_are(made_up, tmp_path):  # noqa: F811
    with LoopbackServer(
        lambda body: marks_for(str(body)) if "judge" in body["model"] else reply_to(body["messages"])
    ) as server:
        args = [a for a in command(made_up, tmp_path / "run", server.base_url) if "model=" not in a]
        done = mapo(*args, "--model=a[b]:smile:", "--judge-model=judge:free:")
    assert done.returncode == 0 and "EQ-Bench 3, judge judge:free:: a[b]:smile:: " in done.stdout
    assert "a[b]:smile:" in mapo("compare", tmp_path / "run").stdout


def test_half_a_line_is_taken_up_only_if_all_replies_are_there(made_up):  # noqa: F811
    files = read_v3(made_up)
    scenario = next(s for s in files.scenarios if s.kind == "roleplay")
    good = {"replies": ["x"] * len(scenario.turns), "debrief": "d"}
    assert eqbench3._replies_in(good, scenario) == (good["replies"], "d")
    for bad in (None, {}, {**good, "debrief": None}, {**good, "replies": good["replies"][1:]}):
        assert eqbench3._replies_in(bad, scenario) is None
    for wrong in ("x", [1] * len(scenario.turns)):
        assert eqbench3._replies_in({**good, "replies": wrong}, scenario) is None


def test_a_finished_line_in_another_form(made_up, tmp_path):  # noqa: F811
    with LoopbackServer(Script()) as server:
        args = command(made_up, tmp_path / "run", server.base_url)
        assert mapo(*args).returncode == 0
        file = tmp_path / "run" / "items.jsonl"
        first, *rest = [json.loads(line) for line in file.read_text().splitlines()]

        def resumed(line):
            file.write_text("".join(json.dumps(each) + "\n" for each in (line, *rest)))
            return mapo(*args, "--resume")

        for wrong in ({**first, "judge": None}, {k: v for k, v in first.items() if k != "judge"}):
            done = resumed(wrong)
            assert done.returncode == 2 and "Traceback" not in done.stderr
            assert f"items.jsonl, item {first['id']}: the item has no judge's answer" in done.stderr
        done = resumed({**first, "judge": "no marks in here"})
        assert done.returncode == 1 and "no score, 4/5" in done.stdout
        assert f"the recorded judgement of scenario {first['id']} cannot be parsed" in done.stderr


def test_an_endpoint_that_does_not_know_min_p_is_asked_without(made_up, tmp_path):  # noqa: F811
    with LoopbackServer(Script(), record=True) as server:
        server._unsupported = lambda body: "Unrecognized argument: min_p" if "min_p" in body else ""
        done = mapo(*command(made_up, tmp_path / "run", server.base_url, "--concurrency=1"))
    assert done.returncode == 0 and sum("min_p" in body for body in server.bodies) == 1


def test_what_an_endpoint_refused_is_in_the_result_for_good(made_up, tmp_path):  # noqa: F811
    out, script = tmp_path / "run", Script(judge=lambda _: "No marks.")
    picky = lambda body: "temperature and min_p are not supported" if "temperature" in body else ""  # noqa: E731
    with LoopbackServer(script) as server:
        server._unsupported = picky
        assert mapo(*command(made_up, out, server.base_url)).returncode == 1
        script.judge = marks_for
        done = mapo(*command(made_up, out, server.base_url, "--resume"))
        assert done.returncode == 0
        again = mapo(*command(made_up, out, server.base_url, "--resume"))  # asks nobody
        cached = [
            *command(made_up, tmp_path / "new", server.base_url),
            f"--cache-file={out / 'cache.sqlite'}",
        ]
        assert mapo(*cached).returncode == 1  # the first judgements, from the record
    for told in (done.stderr, again.stderr):
        assert "the model was sampled without temperature: its endpoint refuses it" in told
        assert "the judge was sampled without temperature" in told
    for folder in (out, tmp_path / "new"):
        settings = result_of(folder)["settings"]
        assert (settings["left_out"], settings["judge_left_out"]) == (["temperature"], ["temperature"])
    with LoopbackServer(Script()) as server:
        assert mapo(*command(made_up, tmp_path / "plain", server.base_url)).returncode == 0
        server._unsupported = lambda body: "Unrecognized argument: min_p" if "min_p" in body else ""
        assert mapo(*command(made_up, tmp_path / "no_min_p", server.base_url)).returncode == 0
    shown = mapo("compare", f"a={tmp_path / 'plain'}", f"b={tmp_path / 'no_min_p'}", f"c={out}").stdout
    assert "left_out is none for a, min_p for b" in shown and "judge_left_out temperature" in shown


def test_addresses_are_printed_and_a_changed_address_warns(made_up, tmp_path):  # noqa: F811
    with LoopbackServer(Script()) as one, LoopbackServer(Script()) as two:
        for server, name in ((one, "a"), (two, "b")):
            assert mapo(*command(made_up, tmp_path / name, server.base_url)).returncode == 0
            assert result_of(tmp_path / name)["addresses"] == dict.fromkeys(
                ("model", "judge"), server.base_url
            )
        done = mapo(*command(made_up, tmp_path / "a", two.base_url, "--resume"))
        assert done.returncode == 0
        assert f"judge was at {one.base_url}, and is now at {two.base_url}" in done.stderr
        found = mapo("compare", f"a={tmp_path / 'b'}", f"b={tmp_path / 'b'}").stdout
        assert "judge's address" not in found


def test_what_cannot_be_run_is_refused_before_anything_is_reply_for_judge(made_up, tmp_path):  # noqa: F811
    out = tmp_path / "run"
    without = [a for a in command(made_up, out, "http://127.0.0.1:9/v1") if not a.startswith("--judge")]
    for args, told in [
        (without, "needs a judge"),
        ([*without, "--judge-model=local:pocket"], "'local:pocket' cannot be the judge"),
        ([*without, "--judge-model=judge", "--v2"], "EQ-Bench v2 has no judge"),
        (
            [*without, "--judge-model=judge", "--model=local:pocket"],
            "replies of up to 12000 tokens do not fit into a context of 4096",
        ),
        (
            [*without, "--judge-model=judge", "--model=local:pocket", "--max-tokens=2000"],
            "replies of up to 2000 tokens",
        ),
        ([*without, "--judge-model=judge", f"--data={tmp_path / 'nowhere'}"], "the folder does not exist"),
    ]:
        done = mapo(*args)
        assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr
        assert not out.exists()


def test_another_judge_is_another_run(made_up, tmp_path):  # noqa: F811
    with LoopbackServer(Script()) as server:
        args = command(made_up, tmp_path / "run", server.base_url)
        assert mapo(*args).returncode == 0
        done = mapo(*args, "--resume", "--judge-model=policy")
    assert done.returncode == 2 and "judge: 'judge' there, 'policy' here" in done.stderr


def test_not_one_of_the_45_scored_is_a_result_too(tmp_path):
    script = Script(judge=lambda _: "No.")
    with LoopbackServer(script) as server:
        done = mapo(*command(shared("eqbench"), tmp_path / "run", server.base_url))
    assert done.returncode == 1 and "no score, 0/45 scenarios" in done.stdout
    assert script.by_model == {"policy": 118, "judge": 45} and result_of(tmp_path / "run")["scores"] == {}


def test_marks_so_large_that_sums_overflow_are_ignored():
    assert parse_scores('{"a": 1e308, "b": -1e308, "c": 120, "d": "1%s"}' % ("0" * 300)) == {"c": 120.0}
