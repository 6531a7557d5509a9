"""Settings of a training run: a TOML file plus `key.path=value` overrides from the command line.

Every key has a default, a one-line description and a check. Unknown keys and values of the wrong type are
rejected with their location. A file may extend another one (`extends = "NAME"`). The complete config is
written to the run directory, so that a run can be inspected, repeated and resumed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mapo.body_fields import check_body, check_effort, parse_body, with_thinking
from mapo.domain_folders import DEFAULT, SHIPPED_JUDGE
from mapo.errors import InputError
from mapo.untrusted import parse_toml, read_file

MAX_INTEGER = 2**53
MAX_EXTENDS = 8
"""How many files may extend one another."""
EMPA_PROMPTS = "empa"
"""The name of the prompts of EMPA's published package."""
_T = TypeVar("_T")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @field_validator("*")
    @classmethod
    def _within_reason(cls, value: Any) -> Any:
        """Refuse numbers that no run can reach and that would fill the memory with plans for them."""
        if type(value) is int and abs(value) > MAX_INTEGER:
            raise ValueError(f"the largest number is {MAX_INTEGER}")
        return value


class Lora(_Section):
    """Low-rank adapters on all linear layers, instead of training every weight."""

    rank: int = Field(default=32, ge=1)
    alpha: float = Field(default=64.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)


class Model(_Section):
    """The policy: the embedded model, a Hugging Face folder, or a model name on the Hugging Face hub."""

    source: str = "pocket"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 on a GPU, float32 otherwise."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    lora: Lora | None = None
    checkpointing: bool = False
    """Gradient checkpointing: recompute activations instead of storing them. Less memory, about a third
    slower.
    """
    compile: bool = False
    """Compile the layers with torch.compile: takes a minute at the start, then faster steps on a GPU."""
    stream: bool = True
    """Sample with streamed weights if the model and the GPU support it; false: always use the model's own
    layers.
    """
    thinking: bool = False
    """Enable thinking, for chat templates that have this option."""


class Scenarios(_Section):
    """Scenario sets: builtin:train|validation|test|all (of the domain), a folder, a file,
    manifest.json:SPLIT, or EMPA's cards as CARDS:train|test|published-727.
    """

    domain: str = "empathy"
    """A shipped domain, or a folder with a rubric.toml; paths in a config file are relative to that file."""
    train: str = "builtin:train"
    validation: str = "builtin:validation"
    test: str = "builtin:test"
    start_levels: str | None = None
    """Start levels by scenario, so that no judge fills in start forms: a JSON file, EMPA result files, or
    EMPA's precomputed start file.
    """
    contaminated: bool = False
    """Allow training on test scenarios; every result is then marked. For the papers' own training set."""


class Role(_Section):
    """A model and its endpoint. Omitted keys are taken from `roles.everyone`."""

    model: str | None = None
    """A name at the endpoint, or local:FOLDER."""
    base_url: str | None = None
    key_env: str | None = None
    """Environment variable with the API key; the key itself is never stored."""
    temperature: float | None = Field(default=None, ge=0)
    """Default: 1 for the user, 0 for director and judge."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum length of an answer (default: 4096)."""
    judging: Literal["form", "readout"] | None = None
    """How a local judge or director answers: it writes a form, or its answers are read out in one forward
    pass (default: form, and readout for a model that was trained for the role).
    """
    reasoning_effort: str | None = None
    """How long a reasoning model thinks, in a word that its server knows (none, low, medium, high)."""
    thinking: bool | None = None
    """Switch thinking on or off, as chat_template_kwargs.enable_thinking in the request body."""
    body: dict[str, Any] | None = None
    """Further fields of the request body, for parameters that only some servers know. They are added to those
    of `roles.everyone`.
    """

    @field_validator("reasoning_effort")
    @classmethod
    def _check_effort(cls, value: str | None) -> str | None:
        return _in_config(lambda: None if value is None else check_effort(value))

    @field_validator("body", mode="before")
    @classmethod
    def _check_body(cls, value: object) -> object:
        if isinstance(value, str):  # JSON, as in options of the command line
            return _in_config(lambda: parse_body(value, "body"))
        return _in_config(lambda: None if value is None else check_body(value))

    @model_validator(mode="after")
    def _check_thinking(self) -> Role:
        _in_config(lambda: with_thinking(self.body, self.thinking))
        if self.reasoning_effort is not None and "reasoning_effort" in (self.body or {}):
            raise ValueError("reasoning_effort is also a body field: set one of the two")
        return self


class SpotCheck(Role):
    """A second judge that is asked about a share of the turns of a training, to see whether it still agrees
    with the first. It takes no keys from `roles.everyone`.
    """

    model: str
    share: float = Field(default=0.02, gt=0, le=1)
    """Share of the turns."""
    window: int = Field(default=200, ge=20, le=100_000)
    """Latest checks over which agreement is computed."""
    limit: float | None = Field(default=None, ge=-1, le=1)
    """The run stops if kappa over a window falls below this, or if hardly any check of a window is answered.
    """


def _in_config(check: Callable[[], _T]) -> _T:
    """Run a check whose errors pydantic and `read_config` complete with their location and a fix."""
    try:
        return check()
    except InputError as error:
        raise ValueError(error.problem) from None


def _player(model: str | None, base_url: str | None) -> tuple[str | None, str]:
    return model, (base_url or "").rstrip("/")


class Roles(_Section):
    """User, director and judge: scripted, or models, local or behind OpenAI-compatible endpoints. The
    judge of scripted `agents` is a model if `roles.judge.model` names one.
    """

    agents: Literal["scripted", "llm"] = "scripted"
    everyone: Role = Role()
    """Default model and endpoint for all roles."""
    user: Role | None = None
    director: Role | None = None
    judge: Role | None = None
    """With an empty `model`, it counts as not set."""
    judges: tuple[Role, ...] = ()
    """Several judges instead of one; omitted keys are taken from `roles.everyone`."""
    ranker: Role | None = None
    """Compares the replies of siblings, for the reward `rank`; omitted keys are taken from
    `roles.everyone`.
    """
    prompts: str = ""
    """Prompts of the roles: "" are mapo's own, "empa" those of EMPA's package, which must be installed; or a
    folder of templates (paths in a config file are relative to that file).
    """
    user_kind: Literal["prompted", "intent"] = "prompted"
    """intent: a model that was trained to be a user. It gets the person's intent only, may leave, and no
    director is asked.
    """
    check: SpotCheck | None = None
    """A second judge for spot checks in training: agreement that falls is what gaming looks like."""
    judging: Literal["panel", "alternate"] = "panel"
    """panel: all judge every reply and the median of each level counts; alternate: one judge per scenario and
    step.
    """
    context: int = Field(default=8192, ge=64)
    """Longest prompt and answer of a local model, in tokens; at most the model's own context."""
    requests: int = Field(default=64, ge=1)
    """Concurrent calls per address. All processes of a run share this limit and the next two."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1)
    timeout: float = Field(default=120.0, gt=0)
    retries: int = Field(default=5, ge=0)
    max_unscored: float = Field(default=0.5, ge=0, le=1)
    """The run stops if more than this fraction of turns is unscored."""

    @field_validator("judge")
    @classmethod
    def _unset_judge(cls, value: Role | None) -> Role | None:
        return None if value is not None and value.model == "" else value

    @model_validator(mode="after")
    def _check_role_models(self) -> Roles:
        several = [(f"judge {n}", role) for n, role in enumerate(self.judges, 1)]
        one = [] if several else [("judge", self.judge)]
        directors = [("director", self.director)] if self.user_kind == "prompted" else []
        for name, role in (("user", self.user), *directors, *one, *several):
            if self.agents == "llm" and not (self.everyone.model or (role and role.model)):
                raise ValueError(f"no model for the {name}: set roles.everyone.model")
        return self

    @model_validator(mode="after")
    def _check_spot_check(self) -> Roles:
        """A judge that checks itself always agrees."""
        judges = self.judges or (self.judge or Role(),)
        known = {
            _player(role.model or self.everyone.model, role.base_url or self.everyone.base_url)
            for role in judges
        }
        if self.check and self.agents == "llm" and _player(self.check.model, self.check.base_url) in known:
            raise ValueError("roles.check is the judge of training: name another model")
        return self

    @model_validator(mode="after")
    def _check_judges(self) -> Roles:
        if self.judges and (self.judge is not None or len(self.judges) < 2):
            raise ValueError(
                "roles.judges needs at least two judges and replaces roles.judge: set only one of them"
            )
        if self.judges and self.agents != "llm":
            raise ValueError("roles.judges are models: set roles.agents = 'llm'")
        if self.user_kind == "intent" and self.agents != "llm":
            raise ValueError("roles.user_kind = 'intent' is for models: set roles.agents = 'llm'")
        if self.user_kind == "intent" and self.director is not None:
            raise ValueError("an intent user is not directed: remove roles.director")
        if self.prompts == EMPA_PROMPTS and self.agents != "llm":
            raise ValueError("roles.prompts = 'empa' is for models: set roles.agents = 'llm'")
        return self


class Rollout(_Section):
    """How the dialogues of a training step are played and sampled."""

    scenarios: int = Field(default=16, ge=1, le=10_000)
    """Scenarios per step."""
    siblings: int = Field(default=4, ge=2, le=1_000)
    """Dialogues per scenario: the size of a group."""
    min_turns: int | None = Field(default=None, ge=1)
    max_turns: int = Field(default=15, ge=1, le=1_000)
    max_tokens: int = Field(default=256, ge=1)
    """Maximum length of a reply, in tokens."""
    context: int | None = Field(default=None, ge=64)
    """Maximum length of a dialogue, in tokens; a longer dialogue ends there. Default: 8192, or the model's
    limit.
    """
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling: sample from the most likely tokens with this total probability, at least 1 -
    optim.clip_low.
    """
    at_once: int = Field(default=64, ge=1, le=100_000)
    """Concurrent dialogues: the number of rows of the KV cache."""
    system: bool = True
    """Whether the policy gets the domain's system prompt."""
    sampler: Literal["own", "vllm"] = "own"
    """What samples the policy in the local engine: mapo's own decoder, or vLLM on one GPU, for models and
    GPUs that the decoder is not made for.
    """
    vllm_memory: float = Field(default=0.4, gt=0, lt=1)
    """Largest share of the GPU's memory for the KV cache of the sampler vllm."""


class Reward(_Section):
    """The turn reward (`mapo.measure.reward`)."""

    name: str = "idr"
    distance: Literal["zone", "origin"] = "zone"
    steps: Literal["likely", "expected"] = "likely"
    """What moves the state in training: the levels, or the expected step of the probabilities of a judge that
    is read out. Evaluations use the levels.
    """


class Advantage(_Section):
    """The advantage estimator (`mapo.advantage`)."""

    method: str = "mapo"
    gamma: float = Field(default=0.85, ge=0, le=1)
    turn_weight: float = Field(default=0.5, ge=0, le=1)
    scope: Literal["group", "batch"] = "group"
    horizon: Literal["available", "shortest"] = "available"
    endings: Literal["auto", "continued", "held", "cut"] = "auto"
    """What a dialogue that ends before its siblings earns up to their length, in the statistics: its pace
    ("continued"), its last reward ("held"), or nothing, as in the paper ("cut"). "auto" is "held" for the
    reward `adr`, which is a level, "cut" for `outcome`, which is paid once, and "continued" for the others.
    """
    scale: Literal["std", "none", "batch"] | None = None
    """How differences from the peers are scaled (default: as in the method's paper)."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """Lambda of turn_gae."""
    step_weight: float = Field(default=1.0, ge=0, le=1_000)
    """Weight of the second part of mt_grpo and gigpo."""
    states: Literal["binned", "exact"] = "binned"
    """States that gigpo takes as equal: the same bin of positions, or the same position and user message."""

    mask_faults: bool = False
    """Do not train replies to user messages that are at fault (`Turn.faults`). They remain in the returns of
    earlier turns but are no peers.
    """

    def resolved(self, reward: str) -> Advantage:
        """Return the settings for a reward, with `endings` chosen."""
        if self.endings != "auto":
            return self
        chosen = {"adr": "held", "outcome": "cut"}.get(reward, "continued")
        return self.model_copy(update={"endings": chosen})

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments for `mapo.advantages`; the settings must be resolved."""
        return self.model_dump(exclude={"states", "mask_faults"})


class Optim(_Section):
    """Optimizer and policy loss."""

    steps: int = Field(default=40, ge=0, le=100_000)
    """Training steps. With `epochs`, the steps of that many passes."""
    epochs: float | None = Field(default=None, gt=0, le=1_000)
    """Passes over the training scenarios, instead of `steps`."""
    updates: int = Field(default=1, ge=1, le=1_000)
    """Optimizer steps per batch; 1 is on-policy."""
    lr: float = Field(default=1e-6, gt=0)
    warmup: float = Field(default=0.05, ge=0, lt=1)
    """Fraction of the steps over which the learning rate rises."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    weight_decay: float = Field(default=0.1, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.28, gt=0)
    dual_clip: float = Field(default=10.0, gt=1)
    kl: float = Field(default=0.0, ge=0)
    """Weight of the KL penalty against the initial model (k3 estimator: its gradient is that of KL(initial ||
    policy)).
    """
    entropy: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    tokens: int = Field(default=16384, ge=1)
    """Tokens per micro-batch, including padding. On a CPU one row at a time (about its length) is fastest."""

    @model_validator(mode="after")
    def _check_epochs(self) -> Optim:
        if self.epochs is not None and "steps" in self.model_fields_set:
            raise ValueError("steps and epochs are both set: set only one of them")
        return self


class Eval(_Section):
    """Validation during training, and the tests before and after it."""

    every: int = Field(default=10, ge=0)
    """Steps between validations. The checkpoint with the best validation score is kept and tested. With 0
    there is no validation, and the last checkpoint is tested.
    """
    repeats: int = Field(default=1, ge=1, le=1_000)
    """Dialogues per validation scenario."""
    test_repeats: int = Field(default=2, ge=0, le=1_000)
    """Dialogues per test scenario, before and after training; 0 skips the tests."""
    min_turns: int | None = Field(default=None, ge=1)
    """Turns before a dialogue may end in validation and test (default: the rubric's)."""
    max_turns: int | None = Field(default=None, ge=1)
    """Turn limit in validation and test (default: that of the rollout)."""
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    judge: Role | None = None
    """Judge of validation and test (default: that of training); omitted keys are taken from
    `roles.everyone`.
    """

    def due(self, step: int, last: int) -> bool:
        """Return whether a validation follows step `step` of `last`."""
        return bool(self.every) and (step % self.every == 0 or step == last)


class Run(_Section):
    """Seed, checkpoints, trackers and processes."""

    seed: int = 0
    checkpoint_every: int = Field(default=10, ge=1)
    keep: int = Field(default=2, ge=1)
    """Number of latest checkpoints to keep, besides the best."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ("tensorboard",)
    reference: bool = True
    """Keep the initial model, to measure the distance from it during training."""
    processes: int = Field(default=1, ge=1, le=1_000)
    """Processes on this machine; each plays a share of the dialogues."""
    shard: bool = False
    """Divide float32 weights, gradients, moments and reference among the processes, for models whose training
    does not fit on one GPU.
    """
    threads: int | None = Field(default=None, ge=1)
    """CPU threads per process (default: all, divided among the processes)."""


class Verl(_Section):
    """Settings of `--engine verl` only: nodes, GPUs and how the policy is distributed over them."""

    nodes: int = Field(default=1, ge=1)
    gpus: int = Field(default=8, ge=1)
    """GPUs per node."""
    rollout: Literal["vllm", "sglang", "mapo_cpu"] = "vllm"
    """Inference engine; mapo_cpu is for tests without a GPU."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs per sampling replica."""
    sequence_parallel: int = Field(default=1, ge=1)
    """GPUs that share one row in training."""
    memory: float = Field(default=0.6, gt=0, lt=1)
    """Fraction of GPU memory for the inference engine."""
    offload: bool = False
    """Move weights and optimizer state to main memory while dialogues are played."""
    workers: int = Field(default=8, ge=1, le=10_000)
    """Processes that play dialogues."""
    roles_gpus: float = Field(default=1.0, gt=0, le=1)
    """GPU of each local model of a role: 1 is a whole one, a fraction is that share of its memory."""
    roles_shared: bool = False
    """Local models of roles share GPUs with the policy instead of having their own."""
    settings: tuple[str, ...] = ()
    """Additional verl settings, such as "trainer.balance_batch=false"."""


SHARDED_LORA = "run.shard divides the state of training all weights; that of LoRA adapters is small"
SPLITS = ("train", "validation", "test")


class Config(_Section):
    """All settings of a training run."""

    model: Model = Model()
    scenarios: Scenarios = Scenarios()
    roles: Roles = Roles()
    rollout: Rollout = Rollout()
    reward: Reward = Reward()
    advantage: Advantage = Advantage()
    optim: Optim = Optim()
    eval: Eval = Eval()
    run: Run = Run()
    verl: Verl = Verl()

    @model_validator(mode="after")
    def _check_reference(self) -> Config:
        if self.optim.kl > 0 and not self.run.reference:
            raise ValueError("optim.kl needs run.reference = true")
        return self

    @model_validator(mode="after")
    def _check_shard(self) -> Config:
        if self.run.shard and self.model.lora is not None:
            raise ValueError(f"{SHARDED_LORA}: set run.shard = false")
        return self

    @model_validator(mode="after")
    def _check_eval_judge(self) -> Config:
        if self.eval.judge is not None and self.roles.agents != "llm" and not self.eval.judge.model:
            raise ValueError("no model for the judge of evaluations: set eval.judge.model")
        return self

    @model_validator(mode="after")
    def _check_sampler(self) -> Config:
        if self.rollout.sampler != "vllm":
            return self
        if self.run.processes > 1 or self.run.shard:
            raise ValueError(
                "rollout.sampler = 'vllm' works in one process: set run.processes = 1 and run.shard = false"
            )
        if self.model.device == "cpu" or self.model.dtype == "float32":
            raise ValueError(
                "rollout.sampler = 'vllm' needs a GPU and bfloat16: leave out model.device and model.dtype"
            )
        if self.rollout.temperature < 0.01 or 0 < self.eval.temperature < 0.01:
            raise ValueError("rollout.sampler = 'vllm' needs temperatures of at least 0.01")
        return self

    @model_validator(mode="after")
    def _check_ranker(self) -> Config:
        if (self.reward.name == "rank") != (self.roles.ranker is not None):
            raise ValueError("reward.name = 'rank' and roles.ranker belong together: set both or none")
        if self.roles.ranker is not None and self.roles.agents != "llm":
            raise ValueError("roles.ranker is a model: set roles.agents = 'llm'")
        if self.roles.ranker is not None and not (self.roles.ranker.model or self.roles.everyone.model):
            raise ValueError("no model for the ranker: set roles.ranker.model")
        if self.roles.ranker is not None and self.rollout.siblings > 26:
            raise ValueError("the reward 'rank' compares at most 26 siblings: lower rollout.siblings")
        return self

    @model_validator(mode="after")
    def _check_expected_steps(self) -> Config:
        roles = self.roles
        models = [
            role.model or roles.everyone.model or "" for role in roles.judges or (roles.judge or Role(),)
        ]
        read_out = any(model.startswith("local:") for model in models)
        if self.reward.steps == "expected" and not read_out:
            raise ValueError("reward.steps = 'expected' needs a judge that is read out: a local model")
        return self

    @model_validator(mode="after")
    def _check_alternating_judges(self) -> Config:
        """Alternating judges differ between groups, so an advantage across groups would compare judges."""
        compares_groups = self.advantage.scope == "batch" or self.advantage.method.startswith("reinforce++")
        if self.roles.judges and self.roles.judging == "alternate" and compares_groups:
            raise ValueError(
                "roles.judging = 'alternate' cannot be combined with an advantage that compares groups: it "
                "would reward lenient judges. Use 'panel', or an advantage with scope 'group'"
            )
        return self

    @model_validator(mode="after")
    def _check_eval_turns(self) -> Config:
        low, high = self.eval.min_turns, self.eval.max_turns or self.rollout.max_turns
        if low is not None and low > high:
            raise ValueError(f"eval.min_turns is {low}, but evaluations have at most {high} turns")
        return self

    @model_validator(mode="after")
    def _check_top_p(self) -> Config:
        """Before the first update, a token's ratio is the total probability of the nucleus, at
        least `top_p`.
        """
        if self.rollout.top_p < 1 - self.optim.clip_low:
            raise ValueError(
                "rollout.top_p is below 1 - optim.clip_low: tokens would be clipped before the first update"
            )
        return self


def load_config(
    source: str | Path | None = None, overrides: Sequence[str] = (), *, flat: bool = False
) -> Config:
    """Load a shipped config by name (default "pocket") or a file, and apply `key.path=value` overrides.

    With `flat`, a config that extends another one is refused. Configs in run directories are flat: they are
    data from elsewhere and must not choose further files.
    """
    path = _config_path(source)
    data = _read_layers(path, flat)
    if flat:
        set_earlier_defaults(data)
    _drop_excluded(data, {text.partition("=")[0].strip() for text in overrides})
    changes: dict[str, Any] = {}
    for override in overrides:
        _override(changes, override)
    _drop_shipped_judge(data, changes)
    for override in overrides:
        _override(data, override)
    _resolve_folders(data, Path())
    _check_splits(data, str(path))
    return read_config(data, str(path), overrides)


def set_earlier_defaults(data: dict[str, Any]) -> None:
    """Add the settings that the config of a run from an earlier version lacks, if their defaults have changed
    since: its credit was computed in that way.
    """
    section = data.get("advantage")
    if isinstance(section, dict):
        section.setdefault("endings", "cut")


def with_steps(config: Config, scenarios: int) -> Config:
    """Return the config with `optim.epochs` replaced by its number of steps, for so many training scenarios.

    A step plays `rollout.scenarios` scenarios, and every epoch plays each scenario once, so the last step
    may go beyond the last epoch: steps = ceil(epochs * scenarios / rollout.scenarios).
    """
    if config.optim.epochs is None:
        return config
    steps = math.ceil(round(config.optim.epochs * scenarios / config.rollout.scenarios, 9))
    optim = Optim.model_validate(config.optim.model_dump() | {"epochs": None, "steps": steps})
    return config.model_copy(update={"optim": optim})


def _read_layers(path: Path, flat: bool, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the data of a config file merged over that of the files it extends."""
    try:
        data = parse_toml(read_file(path).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be read ({error})", where=str(path), fix="See configs/ for examples"
        ) from None
    _resolve_folders(data, path.parent)
    if "extends" not in data or flat:  # in a flat file, `extends` is an unknown setting
        return data
    name, seen = data.pop("extends"), (*seen, path.resolve())
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
        raise InputError(
            f"extends is {name!r}",
            where=str(path),
            fix="Use the name of a shipped config, or of a file in the same folder (base.toml)",
        )
    base = path.parent / name if name.endswith(".toml") else shipped_configs().get(name)
    if base is None or not base.is_file():
        raise InputError(
            f"there is no config '{name}' to extend",
            where=str(path),
            fix=f"Use a file in the same folder (base.toml), or one of: {', '.join(shipped_configs())}",
        )
    if base.resolve() in seen or len(seen) > MAX_EXTENDS:
        names = " -> ".join(file.name for file in (*seen, base))
        raise InputError(
            f"the configs extend each other in a circle or too deeply: {names}",
            where=str(path),
            fix=f"Remove a circle; at most {MAX_EXTENDS} files may follow one another",
        )
    inherited = _read_layers(base, flat, seen)
    optim = data.get("optim")
    _drop_excluded(inherited, {f"optim.{key}" for key in optim} if isinstance(optim, dict) else ())
    _drop_shipped_judge(inherited, data)
    return _merge(inherited, data)


def _merge(base: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the settings of `layer`, section by section."""
    merged = dict(base)
    for key, value in layer.items():
        inner = merged.get(key)
        merged[key] = _merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def _drop_excluded(data: dict[str, Any], keys: Collection[str]) -> None:
    """Remove the settings that `keys`, which will be set, replace: steps replace epochs, and the reverse."""
    section = data.get("optim")
    for key, other in (("optim.steps", "epochs"), ("optim.epochs", "steps")):
        if key in keys and isinstance(section, dict):
            section.pop(other, None)


def _drop_shipped_judge(data: Mapping[str, Any], layer: Mapping[str, Any]) -> None:
    """Remove the shipped judge from `data` if `layer` asks for what it has not learned: people who are
    models, several judges, or another domain. Then `roles.everyone` judges, or the domain's scripted judge.
    """
    asked, known = ({key: _table(d, key) for key in ("roles", "scenarios")} for d in (layer, data))
    unknown = asked["roles"].get("agents", "scripted") != "scripted" or asked["roles"].get("judges")
    if not unknown and asked["scenarios"].get("domain", DEFAULT) == DEFAULT:
        return
    if _table(known["roles"], "judge").get("model") == f"local:{SHIPPED_JUDGE}":
        del data["roles"]["judge"]


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _check_splits(data: Mapping[str, Any], where: str) -> None:
    """Refuse own scenarios in some splits only: the others would silently be the built-in ones."""
    section = data.get("scenarios")
    splits = (
        {split: section[split] for split in SPLITS if split in section} if isinstance(section, dict) else {}
    )
    own = [split for split, source in splits.items() if not str(source).startswith("builtin:")]
    missing = [f"scenarios.{split}" for split in SPLITS if split not in splits]
    if own and missing:
        raise InputError(
            f"scenarios.{own[0]} is set, but not {' and '.join(missing)}",
            where=where,
            fix="Set all three splits; for built-in scenarios, name them (builtin:test)",
        )


def read_config(data: dict[str, Any], where: str, overrides: Sequence[str] = ()) -> Config:
    """Validate the data of a config. `where` and `overrides` locate errors."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    problem, fix = str(first["msg"]).removeprefix("Value error, "), "See docs/settings.md for all keys"
    if first["type"] in ("tuple_type", "list_type"):
        problem, fix = "this is not a list", f'Write a list, such as \'{key}=["a", "b"]\''
    if first["type"] == "extra_forbidden":
        problem = "unknown setting"
        sections = {name for name in Config.model_fields if "." in key}
        if similar := get_close_matches(key, set(_keys(Config)) - sections, 1):
            fix = f"Did you mean {similar[0]}? {fix}"
    override = next((text for text in overrides if key and text.split("=")[0].strip().startswith(key)), None)
    # A rule about several settings names no key, and an override may have broken it.
    source = f"{where} with {' '.join(overrides)}" if overrides and not key else where
    raise InputError(
        f"{key}: {problem}" if key else problem, where=f"'{override}'" if override else source, fix=fix
    ) from None


def _keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every setting."""
    for name, field in section.model_fields.items():
        yield prefix + name
        kinds = (field.annotation, *get_args(field.annotation))
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _keys(kind, f"{prefix}{name}.")


def shipped_configs() -> dict[str, Path]:
    """Return the shipped configs by name. In a checkout they are in its root folder."""
    package = Path(__file__).parent
    for folder in (package / "configs", package.parent / "configs"):
        if paths := sorted(folder.glob("*.toml")):
            return {path.stem: path for path in paths}
    return {}


def _config_path(source: str | Path | None) -> Path:
    known = shipped_configs()
    name = str(source) if source is not None else "pocket"
    if name in known:
        return known[name]
    path = Path(name)
    if not path.is_file():
        similar = get_close_matches(name, known, 1)
        meant = f"Did you mean {similar[0]}? " if similar else ""
        raise InputError(
            f"there is no config '{name}'", fix=f"{meant}Use a TOML file, or one of: {', '.join(known)}"
        )
    return path


def _resolve_folders(data: dict[str, Any], base: Path) -> None:
    """Make the paths of domain and prompts absolute, so that a run can be resumed from any directory."""
    roles = data.get("roles")
    prompts = roles.get("prompts") if isinstance(roles, dict) else None
    if isinstance(roles, dict) and isinstance(prompts, str) and prompts not in ("", EMPA_PROMPTS):
        roles["prompts"] = str((base / prompts).resolve())
    section = data.get("scenarios")
    domain = section.get("domain") if isinstance(section, dict) else None
    if isinstance(section, dict) and isinstance(domain, str) and (domain.startswith(".") or "/" in domain):
        section["domain"] = str((base / domain).resolve())


def _override(data: dict[str, Any], text: str) -> None:
    """Apply an override such as `optim.lr=1e-5`. The value is parsed as TOML, or else taken as a string."""
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise InputError(f"'{text}' is not an override", fix="Write key.path=value, such as optim.steps=20")
    for part in parts[:-1]:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):
            raise InputError(f"'{text}': {part} is not a section", fix="See docs/settings.md for all keys")
        data = inner
    try:
        data[parts[-1]] = parse_toml(f"value = {value}")["value"]
    except ValueError:
        data[parts[-1]] = value


def without_addresses(config: Config) -> dict[str, Any]:
    """Return the config as JSON data without the base URLs and key variables of roles and panel judges.

    Trackers and reports show this form, and a resumed run is compared by it.
    """
    data = config.model_dump(mode="json")
    address = ("base_url", "key_env")

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(inner) for key, inner in value.items() if key not in address}
        return [strip(inner) for inner in value] if isinstance(value, list) else value

    return {**data, "roles": strip(data["roles"]), "eval": strip(data["eval"])}


def dump_config(config: Config) -> str:
    """Return the complete config as TOML."""
    import tomli_w

    data = config.model_dump(mode="json", exclude_none=True)
    if config.optim.epochs is not None:
        del data["optim"]["steps"]
    return tomli_w.dumps(data)
