"""A whole training, small: what it leaves, how it resumes, how it fails."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import tomllib

import pytest

from mapo.config import load_config
from mapo.errors import InputError, JudgeError, StoreError, TrainError
from mapo.sampling.sampler import Sampler
from mapo.sampling.tokens import longest_dialogue
from mapo.sandbox.cast import Cast
from mapo.sandbox.domain import scripted_cast
from mapo.store import JsonlWriter, read_dialogues, read_jsonl
from mapo.train import checkpoint
from mapo.train.callbacks import Callbacks, TrainingDisplay
from mapo.train.export import find_checkpoint
from mapo.train.run import run
from support import small_run as small


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small.model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """An undisturbed run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, small.trained(model, out, "eval.test_repeats=1")


def test_what_a_run_leaves(whole):
    out, found = whole
    lines = list(read_jsonl(out / "metrics.jsonl"))
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert ["validation" in line for line in lines] == [False, True, False, True]
    for line in lines:
        assert (
            line["dialogues"] == 8 and line["grad_norm_max"] >= line["grad_norm"] > 0 and line["tokens"] > 0
        )
        assert line["drift"] < 1e-4  # sampler and trainer agree about the policy
        assert line["entropy"] > 0
        assert 0 < line["model_s"] < line["rollout_s"]
        assert line["sampled_per_s"] * line["rollout_s"] == pytest.approx(line["sampled_tokens"])
        assert line["turn_part_std"] > 0 and line["batch_part_std"] > 0
    assert abs(lines[0]["kl_start"]) < 1e-6 < abs(lines[-1]["kl_start"])
    assert len(list(read_dialogues(out / "dialogues" / "step_00004.jsonl"))) == 8
    summary = json.loads((out / "summary.json").read_text())
    assert summary == json.loads(json.dumps(found.summary))
    assert {"method", "model", "steps", "dialogues", "seconds", "before", "after"} <= set(summary)
    assert summary["dialogues"] == 32 and summary["before"]["n"] == summary["after"]["n"] == 12
    best = json.loads((out / "best.json").read_text())
    assert best["step"] in (2, 4) and found.summary["chosen_step"] == best["step"]
    assert small.weights(out, 4) != small.weights(out, best["step"] if best["step"] == 2 else 3)


def test_without_validations_the_last_checkpoint_is_tested(model, whole, tmp_path):
    out = tmp_path / "run"
    found = small.trained(model, out, "eval.every=0", "eval.test_repeats=1", "run.checkpoint_every=3")
    assert not any("validation" in line for line in read_jsonl(out / "metrics.jsonl"))
    assert {place.name for place in (out / "eval").iterdir()} == {"before", "after"}
    assert found.summary["chosen_step"] == 4 and found.summary["validation"] is None
    assert found.after.n == 12 and not (out / "best.json").exists()
    assert small.weights(out, 4) == small.weights(whole[0], 4)  # looking changes nothing
    assert [c.step for c in checkpoint.all_steps(out / "checkpoints")] == [3, 4]
    assert find_checkpoint(out) == out / "checkpoints" / "step_00004"


def test_a_model_that_is_no_folder_here_is_announced_before_a_hub_is_asked(monkeypatch, tmp_path):
    told = []

    class Heard(Callbacks):
        message = staticmethod(told.append)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="give its folder"):
        small.trained("nobody/nothing-7b", tmp_path / "run", callbacks=Heard())
    assert len(told) == 1 and "nobody/nothing-7b from the Hugging Face hub" in told[0]
    assert not (tmp_path / "run").exists()


def test_siblings_share_a_world_and_every_token_is_accounted_for(whole):
    out, _ = whole
    dialogues = list(read_dialogues(out / "dialogues" / "step_00001.jsonl"))
    assert len({d.group for d in dialogues}) == 2 and len({d.seed for d in dialogues}) == 1
    for d in dialogues:
        assert d.step == 1 and d.turns[0].user == next(
            e.turns[0].user for e in dialogues if e.group == d.group
        )
        for turn in d.turns:
            assert len(turn.reply.token_ids) == len(turn.reply.logprobs) and turn.reply.prompt_ids


def test_a_run_is_a_function_of_its_seed(model, whole, tmp_path):
    small.trained(model, tmp_path / "again")
    assert small.weights(tmp_path / "again", 4) == small.weights(whole[0], 4)
    small.trained(model, tmp_path / "other", "run.seed=1")
    assert small.weights(tmp_path / "other", 4) != small.weights(whole[0], 4)


class StopError(Exception):
    pass


class StopsAt:
    """Somebody who watches, and pulls the plug at one moment."""

    def __init__(self, moment, count=1):
        self.moment, self.left = moment, count

    def __getattr__(self, name):
        def called(*_):
            if name == self.moment:
                self.left -= 1
                if self.left == 0:
                    raise StopError

        return called


@pytest.mark.parametrize(
    ("moment", "count"),
    [
        ("step_begins", 3),
        ("dialogue_done", 12),
        ("eval_begins", 1),
        pytest.param("step_begins", 1, marks=pytest.mark.slow),
        pytest.param("step_ends", 2, marks=pytest.mark.slow),
        pytest.param("dialogue_done", 3, marks=pytest.mark.slow),
    ],
)
def test_a_run_cut_off_and_resumed_ends_as_if_undisturbed(model, whole, tmp_path, moment, count):
    out = tmp_path / "run"
    with pytest.raises(StopError):
        small.trained(model, out, callbacks=StopsAt(moment, count))
    small.trained(model, out, resume=True)
    assert small.weights(out, 4) == small.weights(whole[0], 4)
    assert (out / "best.json").read_text() == (whole[0] / "best.json").read_text()


def test_what_is_found_on_disk_is_not_called_sampled(model, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(StopError):
        small.trained(
            model, out, "optim.steps=2", callbacks=StopsAt("dialogue_done", 8)
        )  # all of the first step
    small.trained(model, out, "optim.steps=2", resume=True)
    speeds = [line["sampled_per_s"] for line in read_jsonl(out / "metrics.jsonl")]
    assert speeds[0] == 0 and all(speeds[1:])


def test_decoding_that_changes_on_the_way_is_kept(model, tmp_path, monkeypatch):
    ways = ["streamed weights", "the model's own layers"]
    monkeypatch.setattr(Sampler, "decoding", property(lambda self: ways[self.stats.sampled > 0]))
    small.trained(model, tmp_path / "run", "optim.steps=1")
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["decoding"] == ways


def test_with_top_p_the_ratio_begins_at_the_probability_of_what_could_be_drawn(model, tmp_path):
    """Old log-probs are of the few tokens drawn from, new ones of the whole policy. Before the first step
    ratio = P(those few), top_p <= ratio <= 1, so 0 < mean |log ratio| <= -log top_p."""
    small.trained(model, tmp_path / "run", "rollout.top_p=0.9", "eval.top_p=0.5", "optim.steps=1")
    (line,) = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert 1e-3 < line["drift"] < -math.log(0.9) + 1e-5
    assert line["ratio_max"] < 1 + 1e-4 and line["clip_fraction"] == 0


def test_how_a_role_is_sampled_is_part_of_the_run_and_where_it_is_is_not(model, tmp_path):
    llm = ("roles.agents=llm", "roles.everyone.model=m", "roles.judge.model=m", "optim.steps=0")
    llm += ("roles.judge.temperature=0.2",)
    small.trained(model, tmp_path / "run", *llm)
    small.trained(model, tmp_path / "run", *llm, "roles.judge.base_url=http://elsewhere/v1", resume=True)
    with pytest.raises(InputError, match=r"started with other settings: roles\.judge"):
        small.trained(model, tmp_path / "run", *llm[:-1], "roles.judge.temperature=0.3", resume=True)


def test_a_panel_judge_may_move_but_not_change_its_model(model, tmp_path):
    def panel(second):
        return (
            "roles.agents=llm",
            "roles.everyone.model=m",
            "optim.steps=0",
            f"roles.judges=[{{}}, {second}]",
        )

    small.trained(model, tmp_path / "run", *panel('{model="b", base_url="http://here/v1"}'))
    moved = panel('{model="b", base_url="http://there/v1", key_env="OTHER"}')
    small.trained(model, tmp_path / "run", *moved, resume=True)
    with pytest.raises(InputError, match=r"started with other settings: roles\.judges"):
        small.trained(model, tmp_path / "run", *panel('{model="c"}'), resume=True)


def test_trackers_are_given_no_address(model, tmp_path, monkeypatch):
    secret = 'base_url="http://secret/v1", key_env="SECRET_KEY"'
    roles = [f"roles.{name}={{model='m', {secret}}}" for name in ("everyone", "user", "director")]
    judges = f'roles.judges=[{{model="a", temperature=0.2, {secret}}}, {{model="b", {secret}}}]'
    given = []
    monkeypatch.setattr("mapo.train.run.open_trackers", lambda *args: given.append(args[-1]) or [])
    small.trained(model, tmp_path / "run", "roles.agents=llm", *roles, judges, "optim.steps=0")
    (settings,) = given
    assert settings["roles"]["judges"][0]["temperature"] == 0.2
    assert settings["roles"]["user"]["model"] == "m"
    assert "secret" not in json.dumps(settings).lower()


def test_another_run_is_not_resumed(model, whole, tmp_path):
    with pytest.raises(InputError, match=r"started with other settings: optim\.lr"):
        small.trained(model, whole[0], "eval.test_repeats=1", "optim.lr=1e-3", resume=True)
    with pytest.raises(InputError, match="holds a run already"):
        small.trained(model, whole[0])
    with pytest.raises(InputError, match="no run to resume"):
        small.trained(model, tmp_path / "none", resume=True)


def test_a_finished_run_can_be_resumed_and_stays_as_it_is(model, whole):
    before = small.weights(whole[0], 4)
    found = small.trained(model, whole[0], "eval.test_repeats=1", resume=True)
    assert small.weights(whole[0], 4) == before and found.summary["after"] == whole[1].summary["after"]


@pytest.mark.parametrize(
    ("moment", "count", "told"),
    [
        ("step_begins", 1, "resumed at step 1"),
        ("step_ends", 1, "resumed at step 2"),
        ("eval_begins", 4, "resumed after step 2, the last"),
    ],
)
def test_a_resumed_run_says_where_it_goes_on(model, tmp_path, capsys, moment, count, told):
    """Its evaluations are the test before, those of steps 1 and 2, the test after."""
    out, short = tmp_path / "run", ("optim.steps=2", "eval.every=1", "eval.test_repeats=1")
    with pytest.raises(StopError):
        small.trained(model, out, *short, callbacks=StopsAt(moment, count))
    for lines in ([told], []):  # a finished run goes on nowhere
        display = TrainingDisplay(2, resume=True)
        small.trained(model, out, *short, resume=True, callbacks=display)
        display.close()
        said = capsys.readouterr().err.splitlines()
        assert [line for line in said if line.startswith("resumed")] == lines


def test_a_checkpoint_that_was_making_room_is_resumed_from(model, whole, tmp_path, capsys):
    out = tmp_path / "run"
    with pytest.raises(StopError):
        small.trained(model, out, callbacks=StopsAt("step_ends", 3))
    (out / "checkpoints" / "step_00003").rename(out / "checkpoints" / ".step_00003.old.tmp")
    display = TrainingDisplay(4, resume=True)
    small.trained(model, out, resume=True, callbacks=display)
    display.close()
    assert "resumed at step 4\n" in capsys.readouterr().err
    assert small.weights(out, 4) == small.weights(whole[0], 4)


def test_a_second_process_leaves_nothing_in_a_run_that_is_being_trained(model, whole, tmp_path):
    out = shutil.copytree(whole[0], tmp_path / "run")
    (out / "summary.json").unlink()
    with JsonlWriter(out / "metrics.jsonl"), pytest.raises(StoreError, match="another process"):
        small.trained(model, out, "eval.test_repeats=1", resume=True)
    assert not (out / "stopped.txt").exists()


def test_a_damaged_checkpoint_costs_one_step(model, whole, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(StopError):
        small.trained(model, out, callbacks=StopsAt("step_ends", 3))
    file = out / "checkpoints" / "step_00003" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert checkpoint.latest(out / "checkpoints").name == "step_00002"
    small.trained(model, out, resume=True)
    assert small.weights(out, 4) == small.weights(whole[0], 4)


def test_a_sampler_that_dies_ends_the_run(model, whole, tmp_path, monkeypatch):
    from mapo.sampling.decoder import Decoder

    real, left = Decoder.round, [20]

    def dying(self, *args):
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("out of memory")
        return real(self, *args)

    monkeypatch.setattr(Decoder, "round", dying)
    out = tmp_path / "run"
    with pytest.raises(TrainError, match="out of memory"):
        small.trained(model, out, "eval.test_repeats=1")
    monkeypatch.setattr(Decoder, "round", real)
    small.trained(model, out, "eval.test_repeats=1", resume=True)
    assert small.weights(out, 4) == small.weights(whole[0], 4)


def test_before_is_played_by_the_policy_one_started_from(model, whole, tmp_path):
    """Also when its dialogues are lost and played again after training has begun."""
    out = tmp_path / "run"
    with pytest.raises(StopError):
        small.trained(model, out, "eval.test_repeats=1", callbacks=StopsAt("step_ends", 3))
    (out / "eval" / "before" / "dialogues.jsonl").unlink()
    (out / "best.json").unlink()
    found = small.trained(model, out, "eval.test_repeats=1", resume=True)
    assert found.summary["before"] == whole[1].summary["before"]
    assert found.summary["after"] == whole[1].summary["after"]
    assert (out / "best.json").read_text() == (whole[0] / "best.json").read_text()


def test_a_context_the_model_cannot_read_is_refused(model, tmp_path):
    with pytest.raises(InputError, match=r"rollout\.context is 9999, but the model's context is 4096"):
        small.trained(model, tmp_path / "run", "rollout.context=9999")
    assert not (tmp_path / "run").exists()


def test_without_a_context_a_dialogue_may_fill_what_the_model_reads(model, tmp_path):
    (tmp_path / "own.toml").write_text('[scenarios]\ndomain = "empathy"\n')
    told = [o for o in small.SMALL if "context" not in o] + [f"model.source={model}", "optim.steps=1"]
    chosen = load_config(tmp_path / "own.toml", told)
    for resume in (False, True):
        asyncio.run(run(chosen, tmp_path / "run", scripted_cast("empathy"), resume=resume))
    assert "context" not in tomllib.loads((tmp_path / "run" / "config.toml").read_text())["rollout"]
    assert [line["step"] for line in read_jsonl(tmp_path / "run" / "metrics.jsonl")] == [1]


@pytest.mark.parametrize(
    ("asked", "reads", "found"),
    [(None, 4096, 4096), (None, 32768, 8192), (None, None, 8192), (512, 4096, 512)],
)
def test_how_long_a_dialogue_may_grow(asked, reads, found):
    assert longest_dialogue(asked, reads, "m") == found


@pytest.mark.parametrize("family", ["llama3", "qwen3", "gemma"])
def test_other_templates_train_too(family, tmp_path):
    """Where a template rewrites earlier turns, every turn is a row; what was sampled is what is trained."""
    folder = small.model_folder(tmp_path / "model", family)
    small.trained(folder, tmp_path / "run", "optim.steps=2")
    lines = list(read_jsonl(tmp_path / "run" / "metrics.jsonl"))
    assert all(line["drift"] < 1e-4 and line["tokens"] > 0 for line in lines)
    turns = [t for d in read_dialogues(tmp_path / "run" / "dialogues" / "step_00001.jsonl") for t in d.turns]
    assert {t.reply.whole_prompt for t in turns} == {family == "qwen3"}


class Deaf:
    """A judge that dies half-way and comes back when told to."""

    def __init__(self, after):
        self.left = after

    def casting(self, job):
        cast = scripted_cast("empathy")(job)
        inner = cast.judge

        class Judge:
            async def start(_):
                return await inner.start()

            async def judge(_, turns):
                from mapo.errors import EndpointError

                self.left -= 1
                if self.left < 0:
                    raise EndpointError("the judge is gone")
                return await inner.judge(turns)

        return Cast(cast.user, cast.director, Judge(), cast.names)


def test_a_judge_that_dies_stops_the_run_and_it_resumes(model, tmp_path):
    wide = ("rollout.scenarios=4", "rollout.at_once=8", "roles.max_unscored=0.2", "optim.steps=2")
    with pytest.raises(JudgeError, match="the judge is gone"):
        small.trained(model, tmp_path / "run", *wide, casting=Deaf(72).casting, paid=True)
    kept = len(list(read_dialogues(tmp_path / "run" / "dialogues" / "step_00002.jsonl")))
    word = tmp_path / "run" / "stopped.txt"
    assert "the judge is gone" in word.read_text()
    found = small.trained(model, tmp_path / "run", *wide, resume=True, paid=True)
    assert kept and found.summary["steps"] == 2 and not word.exists()


def broken_casting(which):
    def casting(job):
        if which(job):
            raise InputError("this scenario cannot be played")
        return scripted_cast("empathy")(job)

    return casting


def test_a_scenario_that_always_breaks_leaves_the_others_to_learn_from(model, tmp_path):
    first = {}

    def which(job):
        return job.scenario.id == first.setdefault("id", job.scenario.id)

    small.trained(model, tmp_path / "run", "optim.steps=1", casting=broken_casting(which))
    (line,) = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert line["broken"] == 4 and line["endings"]["broken"] == 4 and line["grad_norm"] > 0


def test_nothing_to_learn_from_is_an_error_that_says_where_to_look(model, tmp_path):
    with pytest.raises(TrainError, match=r"step_00001.*no dialogue of step 1"):
        small.trained(model, tmp_path / "run", casting=broken_casting(lambda job: job.step is not None))


def test_a_gradient_that_is_not_finite_stops_before_it_does_harm(model, whole, tmp_path, monkeypatch):
    from mapo.train import update

    real = update.policy_loss

    def poisoned(model_, micro, **kw):
        loss, stats = real(model_, micro, **kw)
        return (loss * float("nan") if poisoned.on else loss), stats

    poisoned.on = False
    monkeypatch.setattr(update, "policy_loss", poisoned)
    callbacks = StopsAt("never")
    callbacks.step_ends = lambda record: setattr(poisoned, "on", record["step"] == 2)
    out = tmp_path / "run"
    with pytest.raises(TrainError, match="gradient of step 3 is not finite"):
        small.trained(model, out, callbacks=callbacks)
    monkeypatch.setattr(update, "policy_loss", real)
    small.trained(model, out, resume=True)
    assert small.weights(out, 4) == small.weights(whole[0], 4)


@pytest.mark.parametrize("method", ["turn", "batch", "grpo", "reinforce++", "reinforce++_turn"])
def test_every_method_trains(model, tmp_path, method):
    wide = (
        "rollout.siblings=6",
        "rollout.max_turns=6",
        "rollout.max_tokens=8",
        "optim.steps=1",
        "eval.every=0",
    )
    found = small.trained(model, tmp_path / "run", f"advantage.method={method}", *wide)
    assert found.summary["method"] == method
    (line,) = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert line["grad_norm"] > 0


def test_lora_updates_twice_a_batch_and_with_both_penalties(model, tmp_path):
    more = ("model.lora.rank=2", "optim.updates=2", "optim.kl=0.01", "optim.entropy=0.01", "optim.steps=2")
    small.trained(model, tmp_path / "run", *more)
    lines = list(read_jsonl(tmp_path / "run" / "metrics.jsonl"))
    assert lines[-1]["kl_start"] > 0
    assert (tmp_path / "run" / "checkpoints" / "step_00002" / "adapter_model.safetensors").is_file()


def test_scenarios_may_not_be_in_two_splits(model, tmp_path):
    with pytest.raises(InputError, match="in both train and test"):
        small.trained(model, tmp_path / "run", "scenarios.test=builtin:train")
