"""Our parts inside verl, without a cluster: its advantage path, its settings, its agent loop's contract."""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import json
import math
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("verl.protocol", reason="needs verl (make test-verl)")

with warnings.catch_warnings():  # theirs, on being imported
    warnings.simplefilter("ignore")
    import torch
    from hydra import compose, initialize_config_dir
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from msgspec import msgpack
    from omegaconf import OmegaConf
    from tensordict import NonTensorStack, TensorDict
    from transfer_queue import KVBatchMeta
    from verl import DataProto
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, DictConfigWrap
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
    from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
    from verl.trainer.ppo.ray_trainer import compute_advantage
    from verl.trainer.ppo.v1 import trainer_base
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine
    from verl.workers.rollout.replica import TokenOutput

from mapo import Rubric
from mapo.advantage import ENDINGS, SCALES
from mapo.config import Advantage, Optim, load_config, shipped_configs
from mapo.credit import compute_credit, credit_inputs
from mapo.engines.verl import records, trainer
from mapo.engines.verl import worker as workers
from mapo.engines.verl.dialogue import DialogueLoop, TurnRewards, loop_output
from mapo.engines.verl.estimator import UNSCORED
from mapo.engines.verl.launch import prepare
from mapo.engines.verl.row import response_row
from mapo.engines.verl.settings import METHODS, check_settings, hydra_value, learning_rate_at, schedule_end
from mapo.errors import AnswerError, InputError, JudgeError, RewardError, TrainError
from mapo.estimators.methods import ESTIMATORS
from mapo.local_model.shipped import POCKET
from mapo.sandbox.monitoring.judge_failures import JudgeMonitor
from mapo.scenarios.sets import load_scenarios
from mapo.store import JsonlWriter, RunDir, read_dialogues, write_stop_reason
from mapo.types import StopReason
from support import tiny
from support.verl_rows import Batch, dialogue, options, rows, same

pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("default")]

RUBRIC = Rubric.load("empathy")


# ---- advantages


ALONE = sorted(name for name, method in METHODS.items() if ESTIMATORS[method].needs is None)


@pytest.mark.parametrize("name", ALONE)
@settings(max_examples=40)
@given(made=rows, told=options)
def test_verls_own_path_gives_our_advantages(name, made, told):
    batch = Batch([*made, []])  # and a row to fill up the batch
    groups = [*batch.groups()[:-1], "pad"]
    algorithm = OmegaConf.create({"adv_estimator": name, "mapo": told})
    expected = batch.credit(METHODS[name], told, groups)
    for through in (compute_advantage, compute_advantage_for_multi_trajectories):
        tensors = {"token_level_rewards": batch.rewards, "response_mask": batch.mask}
        data = DataProto(batch=TensorDict(dict(tensors), batch_size=len(groups)))
        data.non_tensor_batch["uid"] = np.array(groups, dtype=object)
        keys = {} if through is compute_advantage else {"batch_keys": [f"{g}_0_0" for g in groups]}
        found = through(data, adv_estimator=name, config=algorithm, **keys).batch
        assert same(found["advantages"], batch.tokens(expected.mixed))
        assert same(found["returns"], batch.tokens(expected.returns))
        assert found["advantages"].dtype == torch.float32


@pytest.fixture
def data():
    batch = Batch([[{"gap": 1, "length": 1, "reward": 1.0, "kl": 0.0}]])
    return DataProto.from_single_dict(
        {"token_level_rewards": batch.rewards, "response_mask": batch.mask, "uid": np.array(["s"], object)}
    )


@pytest.mark.parametrize("name", sorted(set(METHODS) - set(ALONE)))
def test_a_method_that_needs_more_is_refused_where_verl_is_alone(name, data):
    with pytest.raises(RewardError, match=f"method '{METHODS[name]}' needs .*mapo train --engine verl"):
        compute_advantage(data, name, config=OmegaConf.create({}))


def test_an_unknown_option_is_refused_in_verl_too(data):
    with pytest.raises(ValueError, match=r"algorithm\.mapo\.gama"):
        compute_advantage(data, "mapo", config=OmegaConf.create({"mapo": {"gama": 1}}))


# ---- the plugin


def loaded(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("VERL_")}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**kept, **environment}
    )


SHOW = "import verl; from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as r; print(sorted(r))"


@pytest.mark.parametrize(
    "how",
    [{}, {"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_USE_EXTERNAL_MODULES": "mapo.engines.verl.plugin"}],
)
def test_the_plugin_is_found_by_its_entry_point_and_by_its_name(how):
    done = loaded(SHOW, **how)
    assert done.returncode == 0, done.stderr
    assert all(f"'{name}'" in done.stdout for name in METHODS)


def test_without_the_plugin_there_is_none_of_ours():
    assert "'mapo'" not in loaded(SHOW, VERL_USE_EXTERNAL_PLUGINS="none").stdout


def test_what_goes_wrong_in_a_module_named_to_verl_is_raised(tmp_path):
    (tmp_path / "bad_plugin.py").write_text("raise RuntimeError('this must be seen')\n")
    done = loaded(SHOW, VERL_USE_EXTERNAL_MODULES="bad_plugin", PYTHONPATH=str(tmp_path))
    assert done.returncode and "this must be seen" in done.stderr


def test_the_plugin_may_be_loaded_twice():
    import mapo.engines.verl.plugin as plugin

    before = dict(ADV_ESTIMATOR_REGISTRY)
    importlib.reload(plugin)
    assert before == ADV_ESTIMATOR_REGISTRY and set(METHODS) <= set(before)


# ---- settings


def composed(command: list[str]):
    """The config as verl's own entry point would have it."""
    import verl.trainer

    folder = str(Path(verl.trainer.__file__).parent / "config")
    with initialize_config_dir(folder, version_base=None):
        given = [line for line in command[3:] if not line.startswith("hydra")]
        return compose("ppo_trainer", overrides=given)


WIDE = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 2**17}
"""Sizes that the groups and contexts of all shipped configs fit."""


@pytest.mark.parametrize("name", sorted(shipped_configs()))
def test_shipped_configs_make_a_config_of_verl(name, tmp_path):
    root = tmp_path / "a run=1, 'odd' ü"
    model = tmp_path / "model"  # theirs need not be here
    tiny.tokenizer().save_pretrained(model)
    tiny.model("llama", **WIDE).config.save_pretrained(model)
    builtin = [f"scenarios.{split}=builtin:{split}" for split in ("train", "validation", "test")]
    config = load_config(name, [f"model.source={model}", *builtin])  # EMPA's cards need not be here either
    command, environment = prepare(config, root, resume=False)
    OverridesParser.create().parse_overrides(command[3:])
    found = composed(command)
    actor, rollout = found.actor_rollout_ref.actor, found.actor_rollout_ref.rollout
    assert found.trainer.mapo_run == str(root) and found.data.train_files == str(root / "verl/train.parquet")
    assert rollout.agent.agent_loop_config_path == str(root / "verl" / "agent.yaml")
    assert found.actor_rollout_ref.model.path == str(model)
    # text, all of it, and in verl's own way to Ray
    assert dict(found.ray_kwargs.ray_init.runtime_env.env_vars) == environment
    assert found.ray_kwargs.ray_init.address == ("local" if config.verl.nodes == 1 else "auto")
    assert found.algorithm.adv_estimator == "mapo" and found.algorithm.mapo.gamma == config.advantage.gamma
    assert rollout.n == config.rollout.siblings and rollout.prompt_length + rollout.response_length == (
        config.rollout.context
    )
    assert actor.optim.lr == config.optim.lr
    assert actor.clip_ratio_high == config.optim.clip_high and actor.loss_agg_mode == "token-mean"
    assert list(found.trainer.logger) == ["console", *config.run.trackers]
    (loop,) = OmegaConf.load(root / "verl" / "agent.yaml")
    assert loop.run_dir == str(root)


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 0.25, 0.9])
@pytest.mark.parametrize("steps", [1, 7, 20])
def test_the_rates_we_tell_are_those_of_verls_scheduler(schedule, warmup, steps, tmp_path):
    told = [f"optim.schedule={schedule}", f"optim.warmup={warmup}", f"optim.steps={steps}", "optim.lr=0.5"]
    config = load_config(None, [*told, "run.trackers=[]", "roles.judge.model="])
    command, _ = prepare(config, tmp_path / "run", resume=False)
    given = composed(command).actor_rollout_ref.actor.optim
    given.total_training_steps = schedule_end(config)  # as the trainer does
    engine = SimpleNamespace(optimizer_config=omega_conf_to_dataclass(given), rank=1)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=given.lr)
    scheduler = FSDPEngine._build_lr_scheduler(engine, optimizer)
    for step in range(1, steps + 1):
        rate = learning_rate_at(config, step)
        assert rate
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)
        optimizer.step()
        scheduler.step()  # once a step, after its updates


def test_what_verls_engine_reads_is_what_was_set(tmp_path):
    """Adapters, offload and sequence parallelism, in the dataclasses that its FSDP engine gets."""
    builtin = [f"scenarios.{split}=builtin:{split}" for split in ("train", "validation", "test")]
    model = tmp_path / "model"
    tiny.tokenizer().save_pretrained(model)
    tiny.model("llama", **WIDE).config.save_pretrained(model)
    config = load_config("paper-32b-one-node", [f"model.source={model}", *builtin])
    check_settings(config)
    command, _ = prepare(config, tmp_path / "run", resume=False)
    found = composed(command).actor_rollout_ref
    actor = omega_conf_to_dataclass(found.actor)
    assert actor.engine.strategy == "fsdp2"
    assert actor.engine.param_offload and actor.engine.optimizer_offload
    assert actor.engine.ulysses_sequence_parallel_size == 4
    assert actor.checkpoint.save_lora_only and actor.checkpoint.save_contents == [
        "model",
        "optimizer",
        "extra",
    ]
    assert (found.model.lora_rank, found.model.lora_alpha) == (32, 64)
    assert found.model.target_modules == "all-linear"
    assert found.model.use_remove_padding and not found.model.lora.merge
    assert found.rollout.load_format == "safetensors" and found.rollout.tensor_model_parallel_size == 4
    assert found.ref.ulysses_sequence_parallel_size == 4


WORDS = ["plain", "/a/b", "", "12", "1e5", "true", "NULL", "nan", "a b", "a=b,c", "{x: 1}", "[1]", "it's"]
WORDS += ['say "so"', "ends\\", 'a\\"b', "\\\\", "Größe/数", "~x", "$HOME", "a#b", "  padded "]


@pytest.mark.parametrize("value", WORDS)
def test_hydra_reads_any_text_back(value):
    (override,) = OverridesParser.create().parse_overrides([f"key={hydra_value(value)}"])
    assert override.value() == value and isinstance(override.value(), str)


# ---- the agent loop


class Server:
    """verl's token server, answering from a list; a reply ends with the end mark unless it is cut."""

    def __init__(self, replies, *, cut=(), log_probs=True) -> None:
        self.replies, self.cut, self.log_probs = cycle(replies), cut, log_probs
        self.asked: list[dict] = []

    async def generate(self, **request) -> TokenOutput:
        self.asked.append(request)
        said = list(next(self.replies))
        if said and len(self.asked) not in self.cut:
            said.append(request["sampling_params"]["stop_token_ids"][0])
        probs = [-0.5 - 0.001 * at for at in range(len(said))] if self.log_probs else None
        extra = {"min_global_steps": len(self.asked), "max_global_steps": len(self.asked)}
        return TokenOutput(token_ids=said, log_probs=probs, extra_fields=extra)


class FailingJudge:
    """Fails at the turns that `fails` names."""

    def __init__(self, judge, fails) -> None:
        self.judge_, self.fails = judge, fails

    async def start(self):
        return await self.judge_.start()

    async def judge(self, turns):
        if self.fails(len(turns)):
            raise AnswerError("no form")
        return await self.judge_.judge(turns)


@pytest.fixture(scope="module")
def tokenizer():
    import transformers

    return transformers.AutoTokenizer.from_pretrained(POCKET)


@pytest.fixture
def play(tmp_path, tokenizer, monkeypatch):
    """Play one dialogue as verl would; `meddle` may change the worker before it begins."""
    known: dict = {}
    monkeypatch.setattr(workers, "_workers", known)
    root = tmp_path / "run"
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in ("i hear you .", "that is hard .")]

    def go(*given, server=None, meddle=lambda _: None, split="train", sessions=1, words=tokenizer):
        server = server or Server(ids)
        config = load_config(
            None, ["roles.judge.model=", "rollout.max_turns=4", "eval.max_turns=4", "run.trackers=[]", *given]
        )
        command, _ = prepare(config, root, resume=root.exists())
        trainer = DictConfigWrap(composed(command))
        (loop,) = OmegaConf.load(root / "verl" / "agent.yaml")
        scenario = "builtin:train" if split == "train" else "builtin:test"
        row = {"extra_info": {"scenario": load_scenarios(scenario)[0].id, "split": split}, "uid": "ab" * 16}

        async def whole():
            meddle(await workers.get_worker(root, words, str(POCKET)))
            made = []
            for session in range(sessions):
                agent = DialogueLoop(
                    trainer, server, words, None, None, DictConfigWrap(trainer.config.data),
                    run_dir=loop.run_dir,
                )  # fmt: skip
                made.append(await agent.run({}, **row, global_steps=3, session_id=session))
            return made

        found = asyncio.run(whole())
        return SimpleNamespace(
            outputs=found,
            output=found[0],
            server=server,
            worker=workers._workers[root],
            dialogues=list(read_dialogues(root / "dialogues" / "step_00003.jsonl"))
            if split == "train"
            else [],
        )

    go.ids, go.root = ids, root
    yield go
    for worker in known.values():
        for writer in worker.writers.values():
            writer.close()


def test_rows_are_the_ids_that_went_over_the_wire(play):
    done = play(sessions=2)
    output, talk = done.output, done.dialogues[0]
    assert [d.id[-2:] for d in done.dialogues] == ["_0", "_1"]
    assert {d.group for d in done.dialogues} == {f"abababab_{talk.scenario}"} and talk.step == 3
    assert len(talk.turns) == output.num_turns == 4 and talk.model == "pocket"
    asked = done.server.asked[:4]
    whole = output.prompt_ids + output.response_ids
    assert asked[0]["prompt_ids"] == output.prompt_ids
    for request, turn in zip(asked, talk.turns, strict=True):
        sent = request["prompt_ids"]
        assert whole[: len(sent)] == sent  # what the server saw is a prefix of what is trained
        assert tuple(whole[len(sent) : len(sent) + len(turn.reply.token_ids)]) == turn.reply.token_ids
        assert request["request_id"] == "ab" * 16 + "/0"
        assert request["sampling_params"]["temperature"] == 1.0
    trained = [t for t, m in zip(output.response_ids, output.response_mask, strict=True) if m]
    assert trained == [t for turn in talk.turns for t in turn.reply.token_ids]
    paid = [r for r, m in zip(output.token_rewards, output.response_mask, strict=True) if m and r]
    assert paid == [turn.reward for turn in talk.turns if turn.reward]
    assert output.reward_score == pytest.approx(sum(turn.reward for turn in talk.turns))
    assert output.extra_fields["min_global_steps"] == 1 and output.extra_fields["max_global_steps"] == 4
    assert output.extra_fields["reward_extra_info"] == {"turns": 4, "unscored": 0}


def test_rows_only_grow_where_the_template_would_rewrite(play):
    words = tiny.tokenizer("qwen3")  # an empty thought stands before each reply, and goes from earlier ones
    done = play(words=words, server=Server([words.encode("It rains.")]))
    whole = done.output.prompt_ids + done.output.response_ids
    sent = [request["prompt_ids"] for request in done.server.asked]
    assert len(sent) == 4 and all(whole[: len(ids)] == ids for ids in sent)
    assert words.decode(whole).count("</think>") == 4


def test_a_test_is_played_by_its_own_rules_and_kept_elsewhere(play):
    done = play("eval.temperature=0.25", "eval.top_p=0.5", "eval.max_turns=2", split="test")
    assert {a["sampling_params"]["temperature"] for a in done.server.asked} == {0.25}
    assert {a["sampling_params"]["top_p"] for a in done.server.asked} == {0.5}
    (talk,) = read_dialogues(play.root / "eval" / "test_00003" / "dialogues.jsonl")
    assert len(talk.turns) == 2 and talk.step is None


def test_a_reply_that_was_cut_gets_no_end_mark_of_ours_in_training(play):
    done = play(server=Server(play.ids, cut=(2,)))
    talk, output = done.dialogues[0], done.output
    assert [turn.reply.finish for turn in talk.turns] == ["stop", "length", "stop", "stop"]
    cut = talk.turns[1].reply
    ends = done.worker.end_ids
    assert cut.token_ids == tuple(play.ids[1]) and not ends & set(cut.token_ids)
    assert talk.turns[2].reply.prompt_ids[0] in ends  # the mark comes with the next prompt, untrained
    trained = [t for t, m in zip(output.response_ids, output.response_mask, strict=True) if m]
    assert sum(t in ends for t in trained) == 3


def test_a_turn_without_a_score_is_marked_and_trains_nothing(play):
    def meddle(worker):
        usual = worker.casting
        worker.casting = lambda job: _judged_by(usual(job), lambda turn: turn == 2)

    done = play(meddle=meddle)
    talk, output = done.dialogues[0], done.output
    assert [turn.reward is None for turn in talk.turns] == [False, True, False, False]
    quiet = len(talk.turns[1].reply.token_ids)
    first = len(talk.turns[0].reply.token_ids) + len(talk.turns[1].reply.prompt_ids)
    assert output.response_mask[first : first + quiet] == [0] * quiet
    assert output.token_rewards[first + quiet - 1] == UNSCORED
    assert output.extra_fields["reward_extra_info"] == {"turns": 4, "unscored": 1}


def _judged_by(cast, fails):
    return replace(cast, judge=FailingJudge(cast.judge, fails))


@pytest.mark.parametrize(
    ("server", "told"),
    [(Server([[]]), "returned no tokens"), (Server([[9]], log_probs=False), "returned no log-probabilities")],
)
def test_a_dialogue_that_broke_gives_no_row_but_a_record(server, told, play):
    done = play(server=server)
    assert done.output == []
    (talk,) = done.dialogues
    assert told in talk.error and talk.ending.reason is StopReason.BROKEN
    assert not RunDir(play.root).stopped.exists()


def test_a_full_context_ends_the_dialogue(play):
    done = play("rollout.context=128", "rollout.max_tokens=48")
    (talk,) = done.dialogues
    assert talk.ending.reason is StopReason.LENGTH and 1 <= len(talk.turns) < 4
    assert len(done.output.prompt_ids + done.output.response_ids) <= 128


def test_a_deaf_judge_ends_the_run(play):
    def meddle(worker):
        usual = worker.casting
        worker.casting = lambda job: _judged_by(usual(job), lambda _: True)
        worker.monitors["train", 3] = JudgeMonitor(worker.config.roles.max_unscored, turns=38, unscored=38)

    with pytest.raises(JudgeError, match="the judge failed on 40 of 40 turns"):
        play(meddle=meddle)
    assert "the judge failed on 40 of 40 turns" in RunDir(play.root).stopped.read_text()


def test_what_keeps_a_site_from_opening_ends_the_run_and_is_told(play, tokenizer):
    prepare(load_config(None, ["run.trackers=[]", "roles.judge.model="]), play.root, resume=False)
    RunDir(play.root).verl_config.write_text("[rollout]\nturns = 4\n")
    agent = object.__new__(DialogueLoop)
    agent.run_dir, agent.tokenizer, agent.model = play.root, tokenizer, str(POCKET)
    with pytest.raises(InputError, match="turns"):
        asyncio.run(agent.run({}, extra_info={}, global_steps=1))
    assert "turns" in RunDir(play.root).stopped.read_text()


def test_every_turns_reward_reaches_the_trainer():
    made = TurnRewards(
        prompt_ids=[1],
        response_ids=[2, 3, 4],
        response_mask=[1, 0, 1],
        response_logprobs=[-0.5, 0.0, -0.25],
        token_rewards=[1.5, 0.0, -2.0],
        reward_score=-0.5,
        num_turns=2,
        metrics=AgentLoopMetrics(),
    ).as_dict()
    assert made["rm_scores"].tolist() == [1.5, 0.0, -2.0] and made["rm_scores"].dtype == torch.float32
    assert "token_rewards" not in made and "reward_score" not in made
    assert made["responses"].tolist() == [2, 3, 4] and made["rollout_log_probs"].tolist() == [-0.5, 0, -0.25]


# ---- the trainer


def test_rejection_of_tokens_is_refused(tmp_path):
    root = tmp_path / "run"
    told = "algorithm.rollout_correction.rollout_rs=token_k1"
    config = load_config(None, ["run.trackers=[]", "roles.judge.model=", f'verl.settings=["{told}"]'])
    command, _ = prepare(config, root, resume=False)
    with pytest.raises(InputError, match="rollout_rs. is not supported"):
        trainer.MapoTrainer(composed(command))


class Queue:
    """verl's queue: rows by key, whose tensors are nested when they are read."""

    def __init__(self, rows: dict[str, dict]) -> None:
        self.rows = rows

    def kv_batch_get(self, keys, partition_id, select_fields):
        assert partition_id == "train"
        columns = {
            name: [self.rows[key][name] for key in keys]
            for name in select_fields
            if name in self.rows[keys[0]]
        }
        stacked = {
            name: torch.nested.as_nested_tensor(column, layout=torch.jagged)
            if isinstance(column[0], torch.Tensor)
            else NonTensorStack(*column)
            for name, column in columns.items()
        }
        return TensorDict(stacked, batch_size=len(keys))

    def kv_batch_put(self, keys, partition_id, fields):
        for at, key in enumerate(keys):
            self.rows[key] |= {name: value[at] for name, value in fields.items()}
        return KVBatchMeta(keys=keys, tags=[{}] * len(keys), partition_id=partition_id)


def attached(told: Advantage, talk) -> dict:
    """A dialogue as it is found in the queue."""
    policy = SimpleNamespace(versions={}, seconds=0.0)
    inputs = credit_inputs([talk], told, RUBRIC)
    row = loop_output(response_row(talk), talk, policy, inputs).as_dict()
    row["uid"] = talk.group
    row["extra_fields"] = msgpack.decode(msgpack.encode(row["extra_fields"]))
    row["old_log_probs"] = row["rollout_log_probs"]
    return row


@pytest.mark.parametrize("endings", ENDINGS)
@pytest.mark.parametrize("name", sorted(METHODS))
@settings(max_examples=10, deadline=None)
@given(made=rows, scale=st.sampled_from([None, *SCALES]), states=st.sampled_from(["binned", "exact"]))
def test_the_trainer_gives_verl_our_advantages_and_mask(name, endings, made, scale, states):
    talks = [dialogue(row, f"d{i}", f"s{i // 4}") for i, row in enumerate(made) if row]
    assume(talks)
    told = Advantage(method=METHODS[name], endings=endings, scale=scale, states=states)
    ours = object.__new__(trainer.MapoTrainer)
    algorithm = {"adv_estimator": name, "use_kl_in_reward": False, "gamma": 1.0, "lam": 1.0}
    algorithm |= {"mapo": {k: v for k, v in told.options().items() if k != "method"}}
    ours.config = OmegaConf.create({"algorithm": algorithm, "actor_rollout_ref": {"rollout": {"n": 4}}})
    ours.mapo_config = load_config(None, ["roles.judge.model="])
    played = {f"{talk.id}_0_0": attached(told, talk) for talk in talks}
    template, _ = construct_minimal_padding_template(next(iter(played.values())), {}, eos_token_id=0)
    padding = {**template, "uid": "pad", "old_log_probs": template["rollout_log_probs"]}
    queue = Queue({**played, "pad_0_0": padding})
    with pytest.MonkeyPatch.context() as patch:
        for module in (trainer, trainer_base):
            patch.setattr(module, "tq", queue)
        patch.setitem(ADV_ESTIMATOR_REGISTRY, name, None)
        ours._compute_advantage(KVBatchMeta(list(queue.rows), [{}] * len(queue.rows), "train"), {})
    credit = compute_credit(talks, told, RUBRIC)
    for talk, advantage, mask in zip(talks, credit.mixed, credit.mask, strict=True):
        row = queue.rows[f"{talk.id}_0_0"]
        turn_of = [t for t, turn in enumerate(talk.turns) for _ in turn.reply.token_ids]
        sampled = [i for i, x in enumerate(row["responses"].tolist()) if x in _sampled_ids(talk)]
        assert same(row["advantages"][sampled], torch.tensor(advantage[turn_of]))
        assert row["response_mask"][sampled].tolist() == mask[turn_of].tolist()
        assert int(row["response_mask"].sum()) == int(mask[turn_of].sum())
        assert torch.equal(row["response_mask"], row["loss_mask"])
    assert not queue.rows["pad_0_0"]["response_mask"].any()


def _sampled_ids(talk) -> set[int]:
    return {i for turn in talk.turns for i in turn.reply.token_ids}


def test_token_metrics_cover_only_trained_tokens():
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 0]]).bool()
    advantages = torch.tensor([[2.0, -1.0, 9.0, 9.0], [-9.0, 9.0, 0.5, 9.0]])
    now = torch.tensor([[-1.0, -2.0, 5.0, 5.0], [5.0, 5.0, -3.0, 5.0]])
    sampled = torch.tensor([[-1.5, -1.75, 0.0, 0.0], [0.0, 0.0, -3.0, 0.0]])
    clips = Optim(clip_low=0.2, clip_high=0.28)
    assert trainer.token_metrics(mask, advantages, now, sampled, clips) == {
        "mapo/tokens": 3.0,
        # ratios exp(0.5) with advantage 2 and exp(-0.25) = 0.78 with -1 are clipped, 1 is not
        "mapo/first_drift": 0.25,
        "mapo/first_ratio_max": pytest.approx(math.exp(0.5)),
        "mapo/first_clip_fraction": pytest.approx(2 / 3),
        "mapo/advantage_max": 2.0,
        "mapo/advantage_min": -1.0,
        "mapo/advantage_mean": 0.5,  # (2 - 1 + 0.5) / 3
        "mapo/drift": 0.25,  # (0.5 + 0.25 + 0) / 3
    }
    assert trainer.token_metrics(mask & False, advantages, now, sampled, clips) == {}


def test_a_trainer_waits_for_the_lock_of_another(tmp_path, monkeypatch):
    file = tmp_path / "trainer.lock"
    first = trainer.wait_for_lock(file)
    waited = []

    def ends(seconds):
        waited.append(seconds)
        fcntl.flock(first, fcntl.LOCK_UN)

    monkeypatch.setattr(trainer.time, "sleep", ends)
    second = trainer.wait_for_lock(file)
    assert waited == [1.0]
    monkeypatch.setattr(trainer, "LOCK_SECONDS", -1)
    with pytest.raises(TrainError, match="another process is training this run"):
        trainer.wait_for_lock(file)
    assert waited == [1.0]
    first.close()
    second.close()


@pytest.fixture
def training(tmp_path, monkeypatch):
    """Our trainer after step 2 of 2, with nothing of verl but what it would play: every scenario once."""
    told = ["optim.steps=2", "eval.repeats=1", "eval.test_repeats=1", "eval.every=2"]
    ours = object.__new__(trainer.MapoTrainer)
    ours.run, ours.mapo_config, ours.global_steps = RunDir(tmp_path), load_config(None, told), 2
    ours.held_out = {"validation": "validation", "test": "test"}
    ours.played = []

    def plays(self):
        self.played.append(self.val_dataloader)
        file = workers.dialogue_file(self.run, self.val_dataloader, self.global_steps, 2, 0)
        with JsonlWriter(file) as writer:
            for scenario in load_scenarios(getattr(self.mapo_config.scenarios, self.val_dataloader)):
                said = [{"gap": 1, "length": 1, "reward": 1.0}]
                writer.write_dialogue(replace(dialogue(said, f"{scenario.id}_1"), scenario=scenario.id))
        return {"theirs": 1.0}

    monkeypatch.setattr(PPOTrainerSync, "_validate", plays)
    score = {"epm_q": 50.0, "passes": 1, "n": 3}

    def scored(run, config, step):
        (run.root / "best.json").write_text(json.dumps({"step": step, **score}))
        return score

    monkeypatch.setattr(records, "score_validation", scored)
    records.append_metrics(ours.run, {"step": 2, "reward": 1.0})
    return ours


def test_what_is_due_is_played_once_and_joins_its_steps_line(training):
    assert training._validate() == {"mapo/validated": 2.0, "theirs": 1.0}
    assert training.played == ["validation", "test"] and training.val_dataloader == "validation"
    line = records.step_line(training.run, 2)
    assert line["reward"] == 1.0 and line["validation"]["epm_q"] == 50.0
    assert training._validate() == {"mapo/validated": 2.0}  # as after a resume
    assert training.played == ["validation", "test"] and records.step_line(training.run, 2) == line


def test_a_kill_between_the_last_dialogue_and_the_score_loses_no_score(training, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(training, "_record_validation", lambda _: None)
        training._validate()
    assert "validation" not in records.step_line(training.run, 2)
    training._validate()
    assert training.played == ["validation", "test"]
    assert records.step_line(training.run, 2)["validation"]["epm_q"] == 50.0


def test_a_word_that_was_left_stops_a_validation_and_a_step(training, monkeypatch):
    write_stop_reason(training.run, "the judge failed too often", keep_first=True)
    with pytest.raises(TrainError, match="the judge failed too often"):
        training._validate()
    assert training.played == ["validation"] and training.val_dataloader == "validation"
    monkeypatch.setattr(PPOTrainerSync, "step", lambda *_: "batch")
    with pytest.raises(TrainError, match="the judge failed too often"):
        training.step({}, {})
