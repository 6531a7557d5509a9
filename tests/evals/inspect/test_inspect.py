"""The tasks for inspect_ai give what `mapo eval` gives for the same replies. Run by `make test-inspect`."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("inspect_ai", reason="inspect_ai is not installed (make test-inspect)")

from inspect_ai import eval as inspect_eval
from inspect_ai.log import read_eval_log
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessageAssistant,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.tool import ToolCall as InspectCall

from mapo.errors import EndpointError, InputError
from mapo.evals.emobench.data import load
from mapo.evals.emobench.questions import parse_answer
from mapo.evals.eqbench.data import read_v2
from mapo.evals.inspect import emobench, empa, eqbench3, eqbench_v2
from mapo.evals.inspect.chat import InspectChat
from mapo.models.chat import Request, Tool
from mapo.testing.server import LoopbackServer
from mapo.testing.world import world
from mapo.types import Message
from support.command import mapo
from support.emobench_files import Student, form, write
from support.eqbench_files import Script, made_up, marks_for, question, reply_to  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore")  # inspect_ai's own are not ours to fix


USED = ModelUsage(input_tokens=3, output_tokens=2, total_tokens=5)  # else it would be counted by a download


def saying(text: str, **kw) -> ModelOutput:
    return ModelOutput.from_content("mockllm", text, **kw).model_copy(update={"usage": USED})


def model(answer, name="m"):
    """A model of inspect's that answers as a loopback server would: from a request's body."""

    def outputs(messages, tools, tool_choice, config):
        body = {"model": name, "messages": [{"role": m.role, "content": m.text} for m in messages]}
        if config.response_schema:
            shape = config.response_schema.json_schema.model_dump(exclude_none=True)
            body["response_format"] = {"json_schema": {"schema": shape}}
        if tools:
            body["tools"] = [tool.name for tool in tools]
        said = answer(body)
        if isinstance(said, str):
            return saying(said)
        [call] = said["tool_calls"]
        made = InspectCall(
            id="1", function=call["function"]["name"], arguments=json.loads(call["function"]["arguments"])
        )
        message = ChatMessageAssistant(content=said["content"] or "", tool_calls=[made])
        return ModelOutput(model="mockllm", choices=[ChatCompletionChoice(message=message)], usage=USED)

    return get_model("mockllm/model", custom_outputs=outputs, memoize=False)


def run(task, chat, tmp_path, **kw):
    [log] = inspect_eval(task, model=chat, log_dir=str(tmp_path / "logs"), display="none", **kw)
    return log


def metrics(log) -> dict[str, float]:
    assert log.status == "success", log.error
    [score] = log.results.scores
    return {name: found.value for name, found in score.metrics.items()}


def result_of(out) -> dict:
    return json.loads((out / "result.json").read_text(encoding="utf-8"))


# ---- EmoBench


@pytest.mark.parametrize("more", [{}, {"shuffle": True, "seed": 3}, {"language": "zh", "reasoning": True}])
def test_emobench_scores_as_our_own_command(tmp_path, more):
    folder = write(tmp_path / "emobench", 12)
    student = Student(load(folder, allow_changed=True))
    if more.get("shuffle"):
        student = lambda body: '{"answer": "B", "answer_q1": "A", "answer_q2": "C"}'  # noqa: E731
    flags = [f"--{key}" if value is True else f"--{key}={value}" for key, value in more.items()]
    with LoopbackServer(student) as server:
        args = ["--model=m", f"--base-url={server.base_url}", f"--data={folder}", "--allow-changed-data"]
        done = mapo("eval", "emobench", *args, f"--out={tmp_path / 'run'}", *flags)
    assert done.returncode == 0, done.stderr
    log = run(emobench(data=str(folder), allow_changed_data=True, **more), model(student), tmp_path)
    ours = result_of(tmp_path / "run")
    assert metrics(log) == pytest.approx(ours["scores"])
    assert set(metrics(log)) == {"EA", "EU", "Overall", "EA_lenient", "EU_lenient", "Overall_lenient"}
    theirs = {sample.id: sample.scores["emobench"].metadata["scores"] for sample in log.samples}
    assert theirs == {item["id"]: item["scores"] for item in ours["items"]}
    [first, *_] = log.samples
    assert first.store["mapo_line"]["replies"][0]["text"] and first.output.completion


def test_emobench_asks_with_its_own_settings_and_refuses_others(tmp_path):
    folder = write(tmp_path / "emobench", 1)
    seen = []

    def outputs(messages, tools, tool_choice, config):
        seen.append((config.temperature, config.max_tokens, [m.role for m in messages]))
        return saying('{"answer": "A"}', stop_reason="max_tokens")

    chat = get_model("mockllm/model", custom_outputs=outputs, memoize=False)
    task = emobench(data=str(folder), language="en", votes=2, allow_changed_data=True)
    log = run(task, chat, tmp_path, temperature=0.0)
    assert seen == [(0.6, 2048, ["system", "user"])] * 4
    assert log.samples[0].store["mapo_line"]["replies"][1]["finish"] == "length"
    with pytest.raises(InputError, match="language is 'fr'"):
        emobench(data=str(folder), language="fr")
    with pytest.raises(InputError, match="is not that of EmoBench"):
        emobench(data=str(folder))


# ---- EQ-Bench


def own_eqbench(folder, out, url, *more):
    judge = [] if "--v2" in more else ["--judge-model=judge"]
    done = mapo(
        *("eval", "eqbench", "--model=policy", f"--base-url={url}", f"--data={folder}", f"--out={out}"),
        *judge,
        *more,
    )
    return done, result_of(out)


def test_eqbench3_scores_as_our_own_command(made_up, tmp_path):  # noqa: F811
    with LoopbackServer(Script()) as server:
        done, ours = own_eqbench(made_up, tmp_path / "run", server.base_url)
    assert done.returncode == 0, done.stderr
    judge = model(lambda body: marks_for(body["messages"][0]["content"]))
    policy = model(lambda body: reply_to(body["messages"]))
    log = run(eqbench3(data=str(made_up)), policy, tmp_path, model_roles={"judge": judge})
    assert metrics(log) == {"EQ-Bench": pytest.approx(ours["scores"]["EQ-Bench"]), "scored": 5}
    theirs = {sample.id: sample.scores["eqbench3"].value for sample in log.samples}
    assert theirs == {item["id"]: pytest.approx(item["scores"]["EQ-Bench"]) for item in ours["items"]}
    # another number of scenarios has no headline, and neither has a judge who cannot be read
    part = run(eqbench3(data=str(made_up)), policy, tmp_path, model_roles={"judge": judge}, limit=2)
    assert math.isnan(metrics(part)["EQ-Bench"]) and metrics(part)["scored"] == 2
    deaf = model(lambda body: "no marks today")
    lost = run(eqbench3(data=str(made_up)), policy, tmp_path, model_roles={"judge": deaf})
    assert lost.status == "success" and lost.results.scores[0].unscored_samples == 5
    assert (
        "the judge's answer contains no valid JSON object" in lost.samples[0].scores["eqbench3"].explanation
    )
    kept = lost.samples[0].store["mapo_line"]
    assert kept["replies"] and kept["judge"] == "no marks today" and lost.samples[0].output.completion

    def dead(body):
        raise RuntimeError("the judge is not at home")

    gone = run(eqbench3(data=str(made_up)), policy, tmp_path, model_roles={"judge": model(dead)})
    assert gone.status == "success" and gone.results.scores[0].unscored_samples == 5
    assert "not at home" in gone.samples[0].scores["eqbench3"].explanation
    assert gone.samples[0].store["mapo_line"]["replies"]


def test_eqbench3_needs_a_judge(made_up, tmp_path):  # noqa: F811
    log = run(eqbench3(data=str(made_up)), model(lambda body: reply_to(body["messages"])), tmp_path)
    assert log.status == "error" and "judge" in log.error.message


def ratings(known, unreadable=()):
    """An answer by rule to each question; no answer in form to some."""
    texts = {q.prompt.split(".")[0]: q for q in known}

    def answer(body) -> str:
        q = texts[body["messages"][0]["content"].split(".")[0]]
        if q.id in unreadable:
            return "I feel nothing."
        return "\n".join(f"{q.reference[f'emotion{i}']}: {(int(q.id) + i) % 10}" for i in range(1, 5))

    return answer


@pytest.mark.parametrize(("unreadable", "valid"), [((), True), (("3",), True), (("1", "3"), False)])
def test_eqbench_v2_scores_as_our_own_command(made_up, tmp_path, unreadable, valid):  # noqa: F811
    answer = ratings(read_v2(made_up), unreadable)
    if unreadable == ("3",):  # 5 of 6 is exactly what is needed, 83.33 %
        assert 5 / 6 >= 0.8333
    with LoopbackServer(answer) as server:
        _, ours = own_eqbench(made_up, tmp_path / "run", server.base_url, "--v2")
    log = run(eqbench_v2(data=str(made_up)), model(answer), tmp_path)
    found = metrics(log)
    assert found["readable"] == ours["details"]["readable"] == 6 - len(unreadable)
    if valid:
        assert found["EQ-Bench v2"] == pytest.approx(ours["scores"]["EQ-Bench v2"])
    else:
        assert ours["scores"] == {} and math.isnan(found["EQ-Bench v2"])
    for name in unreadable:
        [sample] = [s for s in log.samples if s.id == name]
        assert sample.scores["eqbench_v2"].value == "unreadable"
        assert len(sample.store["mapo_line"]["answers"]) == 5


# ---- several epochs


def by_turns(*answers):
    """A model that answers otherwise every time."""
    count = itertools.count()
    return lambda body: answers[next(count) % len(answers)](body)


def test_epochs_are_averaged(made_up, tmp_path):  # noqa: F811
    folder = write(tmp_path / "emobench", 2)
    bench = load(folder, allow_changed=True)
    known = {bench.user(q): q for q in bench.questions}

    def right(body):
        q = known[body["messages"][-1]["content"]]
        return form(q, q.labels)

    task = emobench(data=str(folder), allow_changed_data=True)
    moody = model(by_turns(right, right, lambda _: "?"))
    log = run(task, moody, tmp_path, epochs=3, max_connections=1, max_samples=1)
    each = [s.scores["emobench"].metadata["scores"]["EA"] for s in log.samples if s.id.startswith("EA")]
    assert len(each) == 12 and metrics(log)["EA"] == pytest.approx(sum(each) / 12) and 0 < sum(each) < 12
    answer = ratings(read_v2(made_up))
    flat = lambda body: re.sub(r": \d+", ": 5", answer(body))  # noqa: E731
    moody = model(by_turns(*[answer] * 5, *[flat] * 7))
    log = run(eqbench_v2(data=str(made_up)), moody, tmp_path, epochs=2, max_samples=1)
    scores = [s.scores["eqbench_v2"].value for s in log.samples]
    assert metrics(log)["EQ-Bench v2"] == pytest.approx(sum(scores) / 12, abs=0.01)
    first = [s.scores["eqbench_v2"].value for s in log.samples if s.epoch == 1]
    assert sum(first) / 6 != pytest.approx(sum(scores) / 12, abs=0.1) and metrics(log)["readable"] == 6


def test_one_epoch_without_a_score_leaves_no_headline(made_up, tmp_path):  # noqa: F811
    policy = model(lambda body: reply_to(body["messages"]))
    judge = lambda body: marks_for(body["messages"][0]["content"])  # noqa: E731
    two = eqbench3(data=str(made_up))
    log = run(two, policy, tmp_path, model_roles={"judge": model(judge)}, epochs=2)
    assert metrics(log)["scored"] == 5 and metrics(log)["EQ-Bench"] > 0
    judges = {"judge": model(by_turns(*[judge] * 9, lambda _: "no marks"))}
    log = run(two, policy, tmp_path, model_roles=judges, epochs=2)
    assert metrics(log)["scored"] == 4.5 and math.isnan(metrics(log)["EQ-Bench"])


def test_empa_counts_the_dialogues_of_all_epochs(tmp_path):
    log = run(empa(max_turns=2), model(lambda body: "I hear you."), tmp_path, limit=2, epochs=3)
    assert metrics(log)["dialogues"] == 6 and metrics(log)["EPM-Q"] > 0


# ---- EMPA


def test_empa_with_plain_code_scores_as_our_own_command(tmp_path):
    line = "You sound worn out by all of it, and that makes sense to me. What was the hardest part?"
    with LoopbackServer(lambda body: line) as server:
        args = ["--model=m", f"--base-url={server.base_url}", f"--out={tmp_path / 'run'}"]
        done = mapo("eval", "empa", *args, "--max-turns=14", "--repeats=2", "--seed=4")
    assert done.returncode == 0, done.stderr
    [ours] = json.loads(mapo("score", tmp_path / "run", "--json").stdout)
    log = run(empa(max_turns=14, repeats=2, seed=4), model(lambda body: line), tmp_path)
    found = metrics(log)
    assert found["EPM-Q"] == pytest.approx(ours["epm_q"]) and found["passes"] == ours["passes"]
    assert (found["dialogues"], found["Stability"]) == (ours["n"], pytest.approx(ours["stability"]))
    assert log.samples[0].scores["empa"].answer in ours["endings"]


def test_empa_with_models_in_every_role(tmp_path):
    cast = {role: model(world(), role) for role in ("user", "director", "judge")}
    task = empa(agents="llm", max_turns=3)
    log = run(task, model(world(), "policy"), tmp_path, model_roles=cast, limit=2)
    found = metrics(log)
    assert found["dialogues"] == 2 and found["EPM-Q"] > 0
    record = log.samples[0].store["mapo_dialogue"]
    assert len(record["turns"]) == 3 and record["cast"]["judge"].startswith("mockllm")
    assert record["turns"][1]["direction"]["act"] == "go_on"


def test_a_broken_dialogue_is_an_error_and_no_score(tmp_path):
    def broken(body):
        raise RuntimeError("the line is dead")

    log = run(empa(max_turns=2), model(broken), tmp_path, limit=1)
    assert log.status == "error" and "the line is dead" in log.error.message
    with pytest.raises(InputError, match="agents is 'me'"):
        empa(agents="me")


# ---- the seam


def asked(chat, **kw):
    request = Request((Message("system", "s"), Message("user", "u"), Message("assistant", "a")), **kw)
    return asyncio.run(chat.reply(request))


def test_an_empty_answer_is_asked_for_once_more():
    said = iter(["", "well", "", "", "", ""])
    silent = model(lambda body: next(said))
    assert asked(InspectChat(silent)).text == "well"
    assert asked(InspectChat(silent)).text == ""  # the policy is judged for its silence
    with pytest.raises(EndpointError, match="judge mockllm/model: the answer is empty"):
        asked(InspectChat(silent, "judge"))


@pytest.mark.parametrize("said", ['{"answer": "B"}', 'So.\n```json\n{"answer": "B"}\n```'])
def test_thinking_aloud_is_read_as_our_own_command_reads_it(monkeypatch, said):
    for thought in ("<think>hm</think>\n", "<think>\n```json\n{}\n```\n</think>\n\n", ""):
        with LoopbackServer(lambda body, text=thought + said: text) as server:
            monkeypatch.setenv("LOOP_BASE_URL", server.base_url)
            monkeypatch.setenv("LOOP_API_KEY", "none")
            got = asked(InspectChat(get_model("openai-api/loop/m", memoize=False))).text
        assert parse_answer("EA", got) == parse_answer("EA", thought + said)
        assert ("hm" in got) == ("hm" in thought)


def test_thinking_that_was_sent_apart_is_no_part_of_the_reply():
    parts = [ContentReasoning(reasoning="hm", internal="reasoning_content"), ContentText(text="B")]
    message = ChatMessageAssistant(content=parts)
    output = ModelOutput(model="mockllm", choices=[ChatCompletionChoice(message=message)], usage=USED)
    chat = get_model("mockllm/model", custom_outputs=[output], memoize=False)
    assert asked(InspectChat(chat)).text == "B"


def test_requests_arrive_as_they_were_meant():
    seen = []

    def outputs(messages, tools, tool_choice, config):
        seen.append((messages, tools, config))
        return saying("yes")

    chat = InspectChat(get_model("mockllm/model", custom_outputs=outputs, memoize=False))
    shape = {"type": "object", "properties": {"level": {"enum": [0, 1]}}, "required": ["level"]}
    tool = Tool("go_on", "Go on.", {"type": "object", "properties": {"reason": {"type": "string"}}})
    assert asked(chat, top_p=0.5, min_p=0.1, schema=shape, tools=(tool,)).text == "yes"
    [(messages, tools, config)] = seen
    assert [(m.role, m.text) for m in messages] == [("system", "s"), ("user", "u"), ("assistant", "a")]
    assert (config.top_p, config.extra_body) == (0.5, {"min_p": 0.1})
    assert config.response_schema.json_schema.properties["level"].enum == [0, 1]
    assert tools[0].name == "go_on" and "reason" in tools[0].parameters.properties
    asked(chat)
    assert seen[-1][2].top_p is None and seen[-1][2].response_schema is None and not seen[-1][1]


def test_the_command_finds_the_tasks_by_name_and_asks_over_http(tmp_path):
    folder = write(tmp_path / "emobench", 5)
    student = Student(load(folder, allow_changed=True))
    logs = tmp_path / "logs"
    with LoopbackServer(student) as server:
        args = [f"--base-url={server.base_url}", f"--data={folder}", "--allow-changed-data"]
        assert mapo("eval", "emobench", "--model=m", *args, f"--out={tmp_path / 'run'}").returncode == 0
        done = subprocess.run(
            [
                *(sys.executable, "-m", "inspect_ai", "eval", "mapo/emobench", "--model=openai-api/loop/m"),
                *("-T", f"data={folder}", "-T", "allow_changed_data=true", f"--log-dir={logs}"),
                "--display=plain",
            ],
            env={**os.environ, "LOOP_BASE_URL": server.base_url, "LOOP_API_KEY": "none"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        assert server.calls == 2 * 20
    [file] = logs.iterdir()
    assert metrics(read_eval_log(str(file))) == pytest.approx(result_of(tmp_path / "run")["scores"])
