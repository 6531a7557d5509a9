"""Spot checks in a training: metrics, the limit, a dead second judge, and resuming."""

from __future__ import annotations

import asyncio
import json

import pytest

from mapo import Rubric
from mapo.errors import EndpointError, InputError, JudgeError
from mapo.players.session import open_cast
from mapo.sandbox.domain import scripted_cast
from mapo.sandbox.monitoring.spot_check import with_check
from mapo.sandbox.panel import NamedJudge
from mapo.store import read_dialogues, read_jsonl
from mapo.testing.server import LoopbackServer
from mapo.train import checkpoint
from mapo.train.callbacks import Callbacks
from mapo.train.run import run
from support import small_run as small

RUBRIC = Rubric.load("empathy")
CHECK = 'roles.check={{model="second", share=1.0, window=24, limit={limit}}}'
SHORT = ("eval.every=0", "run.checkpoint_every=4")


class Second:
    """A second judge that says what the first says, the opposite, or nothing."""

    def __init__(self, job, how):
        self.first, self.how = scripted_cast("empathy")(job).judge, how

    async def judge(self, turns):
        if self.how == "gone":
            raise EndpointError("the second judge is gone")
        levels = await self.first.judge(turns)
        if self.how == "lies":
            return RUBRIC.levels(**{k: (0 if m.progress.level else 2, 0) for k, m in levels.items()})
        return levels


def casting(how: str):
    second = NamedJudge("second", lambda job: Second(job, how))
    return with_check(scripted_cast("empathy"), second, share=1.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small.model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def plain(model, tmp_path_factory):
    """The same run without checks."""
    out = tmp_path_factory.mktemp("plain") / "run"
    small.trained(model, out, *SHORT)
    return out


@pytest.fixture(scope="module")
def honest(model, tmp_path_factory):
    """A run whose second judge agrees."""
    out = tmp_path_factory.mktemp("honest") / "run"
    small.trained(model, out, *SHORT, CHECK.format(limit=0.9), casting=casting("agrees"))
    return out


def checks(out):
    return [line.get("check") for line in read_jsonl(out / "metrics.jsonl")]


def test_every_step_reports_the_agreement_of_its_window(honest):
    lines = checks(honest)
    assert [(line["asked"], line["answered"]) for line in lines] == [(24, 24)] * 4
    assert [line["window"]["kappa"] for line in lines] == [1.0] * 4
    assert [line["window"]["answered"] for line in lines] == [24] * 4


def test_checks_do_not_change_the_training(honest, plain):
    assert small.weights(honest, 4) == small.weights(plain, 4)
    assert checks(plain) == [None] * 4
    assert b"check" not in (plain / "dialogues" / "step_00001.jsonl").read_bytes()


def test_a_run_below_its_limit_stops_with_a_checkpoint_and_goes_on_with_a_lower_one(model, plain, tmp_path):
    out, lies = tmp_path / "run", casting("lies")
    with pytest.raises(JudgeError, match="may be gaming its judge"):
        small.trained(model, out, *SHORT, CHECK.format(limit=0.5), casting=lies)
    assert "below the limit of 0.5" in (out / "stopped.txt").read_text()
    assert len(checks(out)) == 1
    assert [saved.step for saved in checkpoint.all_steps(out / "checkpoints")] == [1]
    with pytest.raises(JudgeError, match="below the limit"):  # before another step is played
        small.trained(model, out, *SHORT, CHECK.format(limit=0.5), casting=lies, resume=True)
    assert not (out / "dialogues" / "step_00002.jsonl").exists()
    small.trained(model, out, *SHORT, CHECK.format(limit=-1.0), casting=lies, resume=True)
    assert small.weights(out, 4) == small.weights(plain, 4)
    small.trained(model, out, *SHORT, CHECK.format(limit=0.5), casting=lies, resume=True)  # finished already


def test_the_limit_holds_in_the_last_step_too(model, tmp_path):
    out, one = tmp_path / "run", (*SHORT, "optim.steps=1")
    with pytest.raises(JudgeError, match="below the limit"):
        small.trained(model, out, *one, CHECK.format(limit=0.5), casting=casting("lies"))
    assert not (out / "summary.json").exists()
    small.trained(model, out, *one, CHECK.format(limit=-1.0), casting=casting("lies"), resume=True)
    assert json.loads((out / "summary.json").read_text())["steps"] == 1


class Messages(Callbacks):
    def __init__(self):
        self.texts = []

    def message(self, text):
        self.texts.append(text)


def test_a_dead_second_judge_is_a_warning_and_with_a_limit_the_end(model, plain, tmp_path):
    heard = Messages()
    no_limit = 'roles.check={model="second", share=1.0, window=24}'
    small.trained(model, tmp_path / "warned", *SHORT, no_limit, casting=casting("gone"), callbacks=heard)
    warning = "step 1: none of the 24 spot checks was answered, last error: the second judge is gone"
    assert any(warning in text for text in heard.texts)
    assert small.weights(tmp_path / "warned", 4) == small.weights(plain, 4)
    with pytest.raises(JudgeError, match="only 0 of the last 24 spot checks were answered"):
        small.trained(model, tmp_path / "ended", *SHORT, CHECK.format(limit=-1.0), casting=casting("gone"))


class StopError(Exception):
    pass


class StopsAtStep(Callbacks):
    def __init__(self, step):
        self.left = step

    def update_begins(self, step):
        if step == self.left:
            raise StopError


def test_a_killed_run_resumes_with_the_window_it_had(model, honest, tmp_path):
    out, every = tmp_path / "run", ("eval.every=0", "run.checkpoint_every=1", CHECK.format(limit=0.9))
    with pytest.raises(StopError):
        small.trained(model, out, *every, casting=casting("agrees"), callbacks=StopsAtStep(3))
    small.trained(model, out, *every, casting=casting("agrees"), resume=True)
    assert checks(out) == checks(honest)


def answered(config, out):
    async def work():
        async with open_cast(config, out) as (cast, _, _):
            await run(config, out, cast)

    asyncio.run(work())


def test_a_second_judge_behind_an_endpoint_and_answers_that_do_not_fit(model, tmp_path):
    def answer(body):
        return "I would rather not say." if len(body["messages"]) % 2 else "{}"

    out = tmp_path / "run"
    with LoopbackServer(answer, models=("second",)) as server:
        check = f'roles.check={{model="second", base_url="{server.base_url}", share=1.0}}'
        answered(small.config(model, *SHORT, "optim.steps=1", check, "roles.retries=0"), out)
        assert server.calls > 24
    dialogues = list(read_dialogues(out / "dialogues" / "step_00001.jsonl"))
    assert all(turn.unchecked and turn.check is None and turn.levels for d in dialogues for turn in d.turns)
    assert dialogues[0].cast["check"] == "second"
    ledger = json.loads((out / "ledger.json").read_text())
    assert "check" in json.dumps(ledger)


def test_the_judge_of_training_cannot_check_itself(model):
    judge = ("roles.agents=llm", 'roles.everyone={model="m", base_url="http://localhost:1/v1"}')
    with pytest.raises(InputError, match=r"roles\.check is the judge of training"):
        small.config(model, *judge, 'roles.check={model="m", base_url="http://localhost:1/v1/"}')
    other = small.config(model, *judge, 'roles.check={model="m", base_url="http://localhost:2/v1"}')
    assert other.roles.check.share == 0.02


def test_the_second_judge_takes_nothing_from_everyone(model):
    everyone = ("roles.agents=llm", 'roles.everyone={model="m", base_url="http://localhost:1/v1"}')
    with pytest.raises(InputError, match=r"roles\.check\.model"):
        small.config(model, *everyone, "roles.check={share=0.1}")
    from mapo.players.casting import check_from_config, every_model

    config = small.config(model, *everyone, 'roles.check={model="other"}')
    assert check_from_config(config).base_url is None
    assert every_model(config)["check"].model == "other"
