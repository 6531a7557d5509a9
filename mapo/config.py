"""What a training run is told: a TOML file, and `key.path=value` overrides on the command line.

Every key has a default, one line that says what it is, and a check; an unknown key or a value of the wrong
kind is refused with its place. The whole of it is written into the run directory, so that a run can be
read, repeated and resumed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mapo.errors import InputError


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Lora(_Section):
    """Low-rank adapters on all linear layers, instead of training every weight."""

    rank: int = Field(default=32, ge=1)
    alpha: float = Field(default=64.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)


class Model(_Section):
    """The policy: the embedded default, a Hugging Face folder, or a name on a hub that can be reached."""

    source: str = "pocket"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 on a GPU, float32 elsewhere."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    lora: Lora | None = None
    checkpointing: bool = False
    """Gradient checkpointing: activations are computed again instead of kept; less memory, a third slower."""
    compile: bool = False
    """torch.compile of the layers: a minute at the start, faster steps on a GPU."""
    stream: bool = True
    """Streamed weights while sampling, where model and card are made for them; false: its own layers."""
    thinking: bool = False
    """For templates that have the switch."""


class Scenarios(_Section):
    """builtin:train|validation|test|all (of the domain), a folder, a file, or manifest.json:SPLIT."""

    domain: str = "empathy"
    """A shipped domain, or the path of a folder with a rubric.toml; in a file, seen from that file."""
    train: str = "builtin:train"
    validation: str = "builtin:validation"
    test: str = "builtin:test"


class Role(_Section):
    """A model and where it is; what is left out is taken from `roles.everyone`."""

    model: str | None = None
    base_url: str | None = None
    key_env: str | None = None
    """Environment variable with the key; the key itself is never written down."""
    temperature: float | None = Field(default=None, ge=0)
    """Default: 1 for the user, 0 for director and judge."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest answer (default: 1024, the judge's 4096)."""


class Roles(_Section):
    """Who plays user, director and judge: plain code, or models behind OpenAI-compatible endpoints."""

    agents: Literal["scripted", "llm"] = "scripted"
    everyone: Role = Role()
    """The model of every role that names none of its own."""
    user: Role | None = None
    director: Role | None = None
    judge: Role | None = None
    judges: tuple[Role, ...] = ()
    """Several judges in place of one; what one leaves out is taken from `roles.everyone`."""
    judging: Literal["panel", "alternate"] = "panel"
    """panel: all judge every reply, the median of each level counts; alternate: one a scenario and step."""
    requests: int = Field(default=64, ge=1)
    """Concurrent calls to one address. The processes of a run share this limit and the next two."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1)
    timeout: float = Field(default=120.0, gt=0)
    retries: int = Field(default=5, ge=0)
    max_unscored: float = Field(default=0.5, ge=0, le=1)
    """The run stops when the judge fails on more than this share of turns."""

    @model_validator(mode="after")
    def _someone_plays(self) -> Roles:
        several = [(f"judge {n}", role) for n, role in enumerate(self.judges, 1)]
        one = [] if several else [("judge", self.judge)]
        for name, role in (("user", self.user), ("director", self.director), *one, *several):
            if self.agents == "llm" and not (self.everyone.model or (role and role.model)):
                raise ValueError(f"no model for the {name}: give roles.everyone.model")
        return self

    @model_validator(mode="after")
    def _one_judge_or_several(self) -> Roles:
        if self.judges and (self.judge is not None or len(self.judges) < 2):
            raise ValueError("roles.judges names two judges or more, and takes the place of roles.judge")
        if self.judges and self.agents != "llm":
            raise ValueError("roles.judges are models: give roles.agents = 'llm'")
        return self


class Rollout(_Section):
    scenarios: int = Field(default=16, ge=1)
    """Scenarios a step."""
    siblings: int = Field(default=4, ge=2)
    """Dialogues a scenario: the group that is compared."""
    min_turns: int | None = Field(default=None, ge=1)
    max_turns: int = Field(default=15, ge=1)
    max_tokens: int = Field(default=256, ge=1)
    """Longest reply."""
    context: int | None = Field(default=None, ge=64)
    """Longest dialogue, in tokens; one that outgrows it ends there. Default: 8192, or all the model reads."""
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Only the likeliest tokens, of this probability together, are drawn; at least 1 - optim.clip_low."""
    at_once: int = Field(default=64, ge=1)
    """Dialogues at once: the rows of the sampler's cache."""
    system: bool = True
    """Whether the policy gets the domain's system prompt."""


class Reward(_Section):
    name: str = "idr"
    distance: Literal["zone", "origin"] = "zone"


class Advantage(_Section):
    method: str = "mapo"
    gamma: float = Field(default=0.85, ge=0, le=1)
    turn_weight: float = Field(default=0.5, ge=0, le=1)
    scope: Literal["group", "batch"] = "group"
    horizon: Literal["available", "shortest"] = "available"

    def options(self) -> dict[str, Any]:
        """What `mapo.advantages` is called with."""
        return self.model_dump()


class Optim(_Section):
    steps: int = Field(default=40, ge=0)
    updates: int = Field(default=1, ge=1)
    """Optimizer steps a batch; 1 is on-policy."""
    lr: float = Field(default=1e-6, gt=0)
    warmup: float = Field(default=0.05, ge=0, lt=1)
    """Share of the steps over which the rate rises."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    weight_decay: float = Field(default=0.1, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.28, gt=0)
    dual_clip: float = Field(default=10.0, gt=1)
    kl: float = Field(default=0.0, ge=0)
    """Weight of the KL term to the start (k3: its gradient is that of KL(start || policy))."""
    entropy: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    tokens: int = Field(default=16384, ge=1)
    """Tokens a micro-batch, padding counted. On a CPU one row at a time (about its length) is fastest."""


class Eval(_Section):
    every: int = Field(default=10, ge=0)
    """Steps between validations; the checkpoint with the best one is kept, and tested. 0: no validation, and
    the last checkpoint is tested."""
    repeats: int = Field(default=1, ge=1)
    """Dialogues a validation scenario."""
    test_repeats: int = Field(default=2, ge=0)
    """Dialogues a test scenario, before and after; 0 leaves the test out."""
    max_turns: int | None = Field(default=None, ge=1)
    """Turn limit in validation and test (default: the rollout's)."""
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)

    def due(self, step: int, last: int) -> bool:
        """Whether a validation follows this step of `last`."""
        return bool(self.every) and (step % self.every == 0 or step == last)


class Run(_Section):
    seed: int = 0
    checkpoint_every: int = Field(default=10, ge=1)
    keep: int = Field(default=2, ge=1)
    """Last checkpoints kept, besides the best."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ("tensorboard",)
    reference: bool = True
    """Keep the start model, to measure how far training went from it."""
    processes: int = Field(default=1, ge=1)
    """Processes on this machine, each with its share of the dialogues."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads a process (default: all, shared out)."""


class Verl(_Section):
    """What only `--engine verl` uses: where it runs, and how the policy is spread over cards."""

    nodes: int = Field(default=1, ge=1)
    gpus: int = Field(default=8, ge=1)
    """Cards a node."""
    rollout: Literal["vllm", "sglang", "mapo_cpu"] = "vllm"
    """Who samples; mapo_cpu is for tests on machines without a card."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Cards a sampling replica."""
    sequence_parallel: int = Field(default=1, ge=1)
    """Cards that share one row in training."""
    memory: float = Field(default=0.6, gt=0, lt=1)
    """Share of a card's memory the sampler may take."""
    offload: bool = False
    """Weights and optimizer wait in main memory while dialogues are played."""
    workers: int = Field(default=8, ge=1)
    """Processes that play dialogues."""
    settings: tuple[str, ...] = ()
    """Further settings in verl's own words, as in "trainer.balance_batch=false"."""


class Config(_Section):
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
    def _needs_the_start(self) -> Config:
        if self.optim.kl > 0 and not self.run.reference:
            raise ValueError("optim.kl needs run.reference = true")
        return self

    @model_validator(mode="after")
    def _judges_are_not_mixed(self) -> Config:
        """Judges that take turns are the same within a group; who compares groups would compare judges."""
        across = self.advantage.scope == "batch" or self.advantage.method.startswith("reinforce++")
        if self.roles.judges and self.roles.judging == "alternate" and across:
            raise ValueError(
                "roles.judging = 'alternate' with an advantage that compares groups: one judge's mildness "
                "would be credit; use 'panel', or an advantage of scope 'group'"
            )
        return self

    @model_validator(mode="after")
    def _starts_inside_the_clip(self) -> Config:
        """A token's first ratio is the probability of the set it was drawn from: `top_p` or more."""
        if self.rollout.top_p < 1 - self.optim.clip_low:
            raise ValueError(
                "rollout.top_p below 1 - optim.clip_low: tokens would be clipped before any step"
            )
        return self


def load_config(source: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """The shipped config of that name ("pocket" for None) or a file, with `key.path=value` on top."""
    path = _find(source)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"cannot be read ({error})", where=str(path), fix="See configs/") from None
    _place_domain(data, path.parent)
    for override in overrides:
        _override(data, override)
    _place_domain(data, Path())
    return read_config(data, str(path), overrides)


def read_config(data: dict[str, Any], where: str, overrides: Sequence[str] = ()) -> Config:
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    parts = [str(part) for part in first["loc"]]
    key, fix = ".".join(parts), "Every key is in docs/training.md"
    told = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        told = "there is no such setting"
        if near := get_close_matches(key, _keys(Config), 1):
            fix = f"Is it {near[0]}? {fix}"
    mine = next((text for text in overrides if key and text.split("=")[0].strip().startswith(key)), None)
    raise InputError(
        f"{key}: {told}" if key else told, where=f"'{mine}'" if mine else where, fix=fix
    ) from None


def _keys(section: type[BaseModel], before: str = "") -> Iterator[str]:
    """Every setting by its dotted name."""
    for name, field in section.model_fields.items():
        yield before + name
        kinds = (field.annotation, *get_args(field.annotation))
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _keys(kind, f"{before}{name}.")


def shipped_configs() -> dict[str, Path]:
    """The configs that come with the package, by name; in a checkout they lie at its root."""
    here = Path(__file__).parent
    for folder in (here / "configs", here.parent / "configs"):
        if found := sorted(folder.glob("*.toml")):
            return {path.stem: path for path in found}
    return {}


def _find(source: str | Path | None) -> Path:
    known = shipped_configs()
    name = str(source) if source is not None else "pocket"
    if name in known:
        return known[name]
    path = Path(name)
    if not path.is_file():
        raise InputError(f"no config '{name}'", fix=f"A TOML file, or one of: {', '.join(known)}")
    return path


def _place_domain(data: dict[str, Any], base: Path) -> None:
    """A domain given as a path is made absolute: a run goes on from anywhere."""
    told = data.get("scenarios")
    domain = told.get("domain") if isinstance(told, dict) else None
    if isinstance(told, dict) and isinstance(domain, str) and (domain.startswith(".") or "/" in domain):
        told["domain"] = str((base / domain).resolve())


def _override(data: dict[str, Any], text: str) -> None:
    """`optim.lr=1e-5`; the value is read as TOML, and as a string where it is none."""
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise InputError(f"'{text}' is no override", fix="Write key.path=value, as in optim.steps=20")
    for part in parts[:-1]:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):
            raise InputError(f"'{text}': {part} has no parts", fix="Every key is in docs/training.md")
        data = inner
    try:
        data[parts[-1]] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        data[parts[-1]] = value


def without_addresses(config: Config) -> dict[str, Any]:
    """Return the config as JSON data without the base URLs and key variables of roles and panel judges.

    This is what may be shown to others (trackers, reports) and what a resumed run is compared by.
    """
    data = config.model_dump(mode="json")
    address = ("base_url", "key_env")

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(inner) for key, inner in value.items() if key not in address}
        return [strip(inner) for inner in value] if isinstance(value, list) else value

    return {**data, "roles": strip(data["roles"])}


def dump_config(config: Config) -> str:
    """The whole config as TOML."""
    import tomli_w

    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
