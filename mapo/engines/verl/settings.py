"""Translation of a mapo config to verl settings, as overrides of verl's defaults.

The mapo config is the only source of settings that affect training. `verl.settings` in the config is appended
last and may override anything.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

from mapo.config import Config, Lora
from mapo.engines.verl.roles import check_shares, own_gpus
from mapo.errors import InputError
from mapo.estimators.methods import ESTIMATORS
from mapo.measure.reward import RANK
from mapo.store import RunDir

_ACTOR, _ROLLOUT, _MODEL = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "actor_rollout_ref.model",
)


def verl_name(method: str) -> str:
    """Return a method's name in verl. "++" is replaced because it is Hydra syntax."""
    return "mapo" if method == "mapo" else f"mapo_{method.replace('++', '_pp')}"


METHODS = {verl_name(method): method for method in ESTIMATORS}

MAX_VLLM_RANK = 512


def check_settings(config: Config) -> None:
    """Raise InputError for settings that verl does not support or would reject only after minutes."""
    r, o = config.rollout, config.optim
    gpus = config.verl.nodes * config.verl.gpus
    if config.advantage.method not in ESTIMATORS:
        raise InputError(
            f"unknown method '{config.advantage.method}'",
            where="advantage.method",
            fix=f"Use one of: {', '.join(ESTIMATORS)}",
        )
    if config.reward.name == RANK:
        raise InputError(
            "verl credits turns while it plays them, so siblings cannot be ranked",
            where="reward.name",
            fix="Use another reward, or the local engine",
        )
    if not o.steps:
        raise InputError(
            "there are no steps to train", where="optim.steps", fix="To evaluate only, use mapo eval empa"
        )
    if r.scenarios % o.updates:
        raise InputError(
            f"{r.scenarios} scenarios cannot be split into {o.updates} equal updates",
            where="optim.updates",
            fix="Choose a number of updates that divides rollout.scenarios",
        )
    for name in ("tensor_parallel", "sequence_parallel"):
        size = getattr(config.verl, name)
        if gpus % size:
            raise InputError(
                f"{gpus} GPUs cannot be split into groups of {size}",
                where=f"verl.{name}",
                fix="Choose a value that divides verl.nodes x verl.gpus",
            )
    _check_groups(config)
    check_shares(config)
    rows, ranks = r.scenarios // o.updates * r.siblings, gpus // config.verl.sequence_parallel
    if rows % ranks:
        raise InputError(
            f"an update of {rows} dialogues cannot be split evenly among {ranks} ranks",
            where="rollout.scenarios, rollout.siblings, optim.updates",
            fix="Make scenarios / updates x siblings a multiple of nodes x gpus / sequence_parallel",
        )
    for setting in config.verl.settings:
        if "=" not in setting:
            raise InputError(
                f"'{setting}' is not a setting", where="verl.settings", fix="Write it as key.path=value"
            )
    if config.model.lora:
        _check_lora(config, config.model.lora)
    if o.schedule == "linear":
        raise InputError("verl has no linear schedule", where="optim.schedule", fix="Use cosine or constant")


def _check_groups(config: Config) -> None:
    v = config.verl
    if max(v.tensor_parallel, v.gpus) % min(v.tensor_parallel, v.gpus):
        raise InputError(
            f"a sampling replica of {v.tensor_parallel} GPUs would share nodes of {v.gpus} unevenly",
            where="verl.tensor_parallel",
            fix="Choose a value that divides verl.gpus, or a multiple of it",
        )
    if v.sequence_parallel == 1:
        return
    other_attention = [
        setting
        for setting in v.settings
        if re.search(
            r"attn_implementation=(?!.*flash_attention)|use_remove_padding=[\"']?false", setting, re.I
        )
    ]
    if v.rollout == "mapo_cpu" or other_attention:
        raise InputError(
            "sequence parallelism needs flash attention on rows without padding",
            where=f"verl.settings: {other_attention[0]}" if other_attention else "verl.sequence_parallel",
            fix="Use verl.sequence_parallel=1, or install flash-attn on GPU nodes",
        )


def check_heads(config: Config, heads: int, kv_heads: int) -> None:
    """Raise InputError if the model's attention heads cannot be divided among the GPUs of a group."""
    v = config.verl
    for name, size in (("tensor_parallel", v.tensor_parallel), ("sequence_parallel", v.sequence_parallel)):
        if heads % size or max(kv_heads, size) % min(kv_heads, size):
            raise InputError(
                f"{heads} attention heads with {kv_heads} key-value heads cannot be shared by {size} GPUs",
                where=f"verl.{name}",
                fix=f"Choose a value that divides {math.gcd(heads, kv_heads)}",
            )


def _tokens_per_gpu(config: Config, context: int) -> int:
    """Return the tokens of a micro-batch on one GPU. The longest row must fit on the GPUs that share it."""
    return max(config.optim.tokens, math.ceil(context / config.verl.sequence_parallel))


def _check_lora(config: Config, lora: Lora) -> None:
    if lora.dropout:
        raise InputError(
            "verl has no setting for dropout in adapters",
            where="model.lora.dropout",
            fix="Set it to 0, or use the local engine",
        )
    if not lora.alpha.is_integer():
        raise InputError(
            f"verl takes a whole number for alpha, not {lora.alpha:g}",
            where="model.lora.alpha",
            fix="Round it, or use the local engine",
        )
    if config.verl.rollout == "vllm" and lora.rank > MAX_VLLM_RANK:
        raise InputError(
            f"vLLM samples adapters of rank {MAX_VLLM_RANK} at most",
            where="model.lora.rank",
            fix="Use a lower rank",
        )


def overrides(
    config: Config,
    root: Path,
    tables: dict[str, Path],
    model: str,
    context: int,
    environment: dict[str, str],
) -> list[str]:
    """Return all settings as Hydra overrides. `context` is the token limit of a dialogue."""
    settings = {
        **_data(config, tables, context),
        **_model(config, model),
        **_training(config, context),
        **_sampling(config, root, context),
        **_trainer(config, root),
        **_ray(config, environment),
    }
    if config.verl.rollout == "mapo_cpu":
        settings |= _cpu(config)
    lines = [f"{key}={hydra_value(value)}" for key, value in settings.items()]
    return [*lines, *config.verl.settings]


_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[a-z_/][\w./-]*", re.ASCII | re.IGNORECASE)


def hydra_value(value: object) -> str:
    """Write a value in Hydra syntax. In quotes, only quotes and backslashes before quotes are escaped."""
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value):
        return value
    return '"' + re.sub(r'(\\*)("|\Z)', lambda match: match[1] * 2 + (match[2] and '\\"'), value) + '"'


Settings = dict[str, object]


def _data(config: Config, tables: dict[str, Path], context: int) -> Settings:
    prompt = min(2048, context // 2)
    return {
        "data.train_files": str(tables["train"]),
        "data.val_files": str(tables["validation"]),
        "+data.mapo_test": str(tables["test"]),
        "data.train_batch_size": config.rollout.scenarios,
        "data.max_prompt_length": prompt,
        "data.max_response_length": context - prompt,
        "data.shuffle": False,  # the table is already in training order
        "data.filter_overlong_prompts": False,
        "data.return_raw_chat": True,
        "data.dataloader_num_workers": 0,
    }


def _model(config: Config, model: str) -> Settings:
    m = config.model
    settings: Settings = {
        f"{_MODEL}.path": model,
        f"{_MODEL}.enable_gradient_checkpointing": m.checkpointing,
        f"{_ACTOR}.use_torch_compile": m.compile,
        f"{_ACTOR}.fsdp_config.use_torch_compile": m.compile,
    }
    if m.dtype == "float32":
        settings |= _full_precision()
    if m.lora:
        settings |= _lora(m.lora)
    return settings


def _lora(lora: Lora) -> Settings:
    """Return the settings of adapters, which are sampled unmerged.

    Merged weights would be rounded to bfloat16, which loses most of a small update.
    """
    return {
        f"{_MODEL}.lora_rank": lora.rank,
        f"{_MODEL}.lora_alpha": int(lora.alpha),
        f"{_MODEL}.target_modules": "all-linear",
        # the sampler reads the base model itself, and then only adapters are sent
        f"{_ROLLOUT}.load_format": "safetensors",
        f"+{_ACTOR}.checkpoint.save_lora_only": True,
    }


def _training(config: Config, context: int) -> Settings:
    o, a = config.optim, config.advantage.resolved(config.reward.name)
    return {
        "algorithm.adv_estimator": verl_name(a.method),
        **{f"+algorithm.mapo.{name}": value for name, value in a.options().items() if name != "method"},
        "algorithm.use_kl_in_reward": False,
        f"{_ACTOR}.strategy": "fsdp2",
        f"{_ACTOR}.ppo_mini_batch_size": config.rollout.scenarios // o.updates,
        f"{_ACTOR}.use_dynamic_bsz": True,
        f"{_ACTOR}.ppo_max_token_len_per_gpu": _tokens_per_gpu(config, context),
        f"{_ACTOR}.ulysses_sequence_parallel_size": config.verl.sequence_parallel,
        f"{_ACTOR}.fsdp_config.param_offload": config.verl.offload,
        f"{_ACTOR}.fsdp_config.optimizer_offload": config.verl.offload,
        f"{_ACTOR}.loss_agg_mode": "token-mean",
        f"{_ACTOR}.clip_ratio_low": o.clip_low,
        f"{_ACTOR}.clip_ratio_high": o.clip_high,
        f"{_ACTOR}.clip_ratio_c": o.dual_clip,
        f"{_ACTOR}.use_kl_loss": o.kl > 0,
        f"{_ACTOR}.kl_loss_coef": o.kl,
        f"{_ACTOR}.kl_loss_type": "low_var_kl",
        f"{_ACTOR}.entropy_coeff": o.entropy,
        f"{_ACTOR}.optim.lr": o.lr,
        # verl's constant schedule starts at a rate of 0; a cosine with min_lr_ratio 1 does not
        f"{_ACTOR}.optim.lr_scheduler_type": "cosine",
        f"{_ACTOR}.optim.min_lr_ratio": 1.0 if o.schedule == "constant" else 0.0,
        f"{_ACTOR}.optim.lr_warmup_steps": _warmup_steps(config),
        f"{_ACTOR}.optim.lr_warmup_steps_ratio": 0.0,
        f"{_ACTOR}.optim.zero_indexed_step": False,
        f"{_ACTOR}.optim.weight_decay": o.weight_decay,
        f"{_ACTOR}.optim.clip_grad": o.grad_clip,
        f"{_ACTOR}.checkpoint.save_contents": [
            *("model", "optimizer", "extra"),
            *(() if config.model.lora else ("hf_model",)),  # with LoRA: see adapter.py
        ],
    }


def _sampling(config: Config, root: Path, context: int) -> Settings:
    v, r, e = config.verl, config.rollout, config.eval
    return {
        f"{_ROLLOUT}.name": v.rollout,
        f"{_ROLLOUT}.mode": "async",
        f"{_ROLLOUT}.n": r.siblings,
        f"{_ROLLOUT}.temperature": r.temperature,
        f"{_ROLLOUT}.tensor_model_parallel_size": v.tensor_parallel,
        f"{_ROLLOUT}.gpu_memory_utilization": v.memory,
        f"{_ROLLOUT}.max_model_len": context,
        f"{_ROLLOUT}.calculate_log_probs": True,
        f"{_ROLLOUT}.log_prob_use_dynamic_bsz": True,
        f"{_ROLLOUT}.log_prob_max_token_len_per_gpu": _tokens_per_gpu(config, context),
        f"{_ROLLOUT}.val_kwargs.temperature": e.temperature,
        f"{_ROLLOUT}.val_kwargs.do_sample": e.temperature > 0,
        f"{_ROLLOUT}.val_kwargs.n": e.repeats,
        f"{_ROLLOUT}.multi_turn.enable": True,
        f"{_ROLLOUT}.agent.num_workers": v.workers,
        f"{_ROLLOUT}.agent.agent_loop_config_path": str(RunDir(root).verl_agent),
    }


def _trainer(config: Config, root: Path) -> Settings:
    return {
        "trainer.v1.trainer_mode": "mapo",
        "+trainer.mapo_run": str(root),
        "trainer.nnodes": config.verl.nodes,
        "trainer.n_gpus_per_node": config.verl.gpus,
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": config.optim.steps,
        # verl counts the final test as a validation, so it needs a frequency even without validations
        "trainer.test_freq": config.eval.every or config.optim.steps,
        "trainer.val_before_train": True,  # MapoTrainer decides what is played, possibly nothing
        # every step at which either may be due; MapoTrainer skips the others
        "trainer.save_freq": math.gcd(config.run.checkpoint_every, config.eval.every),
        "trainer.max_actor_ckpt_to_keep": config.run.keep,
        "trainer.default_local_dir": str(RunDir(root).verl_checkpoints),
        "trainer.resume_mode": "auto",
        "trainer.project_name": "mapo",
        "trainer.experiment_name": root.name,
        "trainer.logger": ["console", *config.run.trackers],
        "reward.num_workers": 0,  # rewards come with the dialogues
        "data.seed": config.run.seed,
    }


def _ray(config: Config, environment: dict[str, str]) -> Settings:
    """Return the Ray settings: a local cluster for one node, the running cluster for several.

    `environment` must reach every process, also on nodes whose Ray is already running. It has no secrets.
    """
    settings: Settings = {f"+ray_kwargs.ray_init.runtime_env.env_vars.{k}": v for k, v in environment.items()}
    settings["+ray_kwargs.ray_init.address"] = "local" if config.verl.nodes == 1 else "auto"
    return settings


def _warmup_steps(config: Config) -> int:
    return math.ceil(config.optim.warmup * config.optim.steps)


def learning_rate_at(config: Config, step: int) -> float:
    """Return verl's learning rate at a step. All updates of a step share it, and it is never 0."""
    o, warmup = config.optim, _warmup_steps(config)
    if step < warmup:
        return o.lr * step / warmup
    progress = (step - warmup) / max(1, schedule_end(config) - warmup)
    return o.lr * (1.0 if o.schedule == "constant" else 0.5 * (1 + math.cos(math.pi * progress)))


def schedule_end(config: Config) -> int:
    """Return the step at which verl's cosine schedule reaches 0, one after the last step."""
    return config.optim.steps + 1


def checkpoint_due(config: Config, step: int) -> bool:
    """Return whether a step is checkpointed: at its interval, at validations and at the end.

    Validations need a checkpoint because the model with the best validation score is kept.
    """
    steps = config.optim.steps
    return step == steps or step % config.run.checkpoint_every == 0 or config.eval.due(step, steps)


def _full_precision() -> Settings:
    return {
        f"{_ACTOR}.fsdp_config.model_dtype": "fp32",
        f"+{_ACTOR}.fsdp_config.mixed_precision.param_dtype": "fp32",
    }


def _cpu(config: Config) -> Settings:
    """Return the settings for CPU runs: logical GPUs in Ray, and float32 everywhere."""
    new_cluster: Settings = {
        "+ray_kwargs.ray_init.num_gpus": config.verl.gpus + own_gpus(config),
        "+ray_kwargs.ray_init.include_dashboard": False,
        "ray_kwargs.ray_init.num_cpus": 24,  # scheduling slots, not physical cores
    }
    return {
        **_full_precision(),
        "trainer.device": "cpu",
        **(new_cluster if config.verl.nodes == 1 else {}),
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        f"{_MODEL}.use_remove_padding": False,
        f"+{_MODEL}.override_config.attn_implementation": "sdpa",
        f"{_ROLLOUT}.checkpoint_engine.backend": "naive",
        f"{_ROLLOUT}.load_format": "auto",
    }
