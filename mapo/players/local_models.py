"""Local models of a session: each is loaded once, whatever roles it plays, with memory planned first."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mapo.config import EMPA_PROMPTS, Config
from mapo.errors import InputError
from mapo.local_model.shipped import SHIPPED
from mapo.models.chat import Sampling
from mapo.players.casting import every_model
from mapo.players.spec import ModelSpec

if TYPE_CHECKING:
    from mapo.local_model.memory import MemoryPlan, ModelNeed
    from mapo.local_model.policy import Device, LocalPolicy
    from mapo.sampling.sampler import Sampler
    from mapo.sandbox.cast import RolePrompts

ROLE_CONTEXT = 8192
"""Tokens of a role's longest prompt and answer, unless it is set: a judge's form after fifteen turns needs
about 6,000."""
MAX_TOKENS = {"user": 256, "director": 512}
"""Limits of local models' answers unless they are set: they do not think, and small ones may never stop."""
POLICY_ROLES = ("policy", "model", "strong policy", "weak policy")
"""Names of the models that are evaluated; all others are roles around them."""


@dataclass(slots=True)
class LocalModels:
    """Opens samplers. `dialogues` run at once, each with a slot per role of a model.

    context: the longest dialogue of a policy, in tokens.
    role_context: the longest prompt of another role.
    device: the setting model.device.
    """

    stack: AsyncExitStack
    dialogues: int
    context: int = 4096
    role_context: int = ROLE_CONTEXT
    device: Device = "auto"
    dtype: str = "auto"
    """The setting model.dtype, for models that use the policy's weights."""
    roles: dict[str, list[str]] = field(default_factory=dict)
    """The roles of every model, by its key."""
    shared: set[str] = field(default_factory=set)
    """Keys of the models that use the weights of a policy in training."""
    _sources: dict[str, str] = field(default_factory=dict)
    _loaded: dict[str, LocalPolicy] = field(default_factory=dict)
    _samplers: dict[str, Sampler] = field(default_factory=dict)
    _slots: dict[str, int] = field(default_factory=dict)

    def expect(self, models: Mapping[str, ModelSpec]) -> None:
        """Register the models that will be opened, by role, so that each gets slots for all its roles."""
        for role, spec in models.items():
            if spec.local is not None:
                self._register(spec.local, role)

    def adopt(self, source: str, model: LocalPolicy) -> None:
        """Use a loaded model, whose weights do not change, for the roles that name `source`."""
        self._loaded[model_key(source)] = model
        self.shared.add(model_key(source))

    def keep_slots(self, planned: Mapping[tuple[str, ...], int]) -> None:
        """Use the slots of an earlier plan, by the roles of a model."""
        by_key = {key: planned.get(tuple(roles)) for key, roles in self.roles.items()}
        self._slots |= {key: slots for key, slots in by_key.items() if slots}

    def make_plan(self, policy: ModelNeed | None = None, processes: int = 1) -> MemoryPlan:
        """Plan the memory of all expected models, beside a policy that is trained, in each of `processes`.
        Raises InputError if they do not fit."""
        from mapo.local_model.memory import available_memory, plan_memory

        needs = {key: need for key in self.roles if (need := self._need(key))}
        available, device = available_memory(self.device, processes)
        trained = [policy] if policy else []
        plan = plan_memory([*trained, *needs.values()], available, device)
        self._slots |= {key: n.slots for key, n in zip(needs, plan.needs[len(trained) :], strict=True)}
        return plan

    async def sampler(self, source: str, role: str) -> Sampler:
        """Return the running sampler of a model. The first call loads it."""
        from mapo.sampling.local import local_sampler

        key = model_key(source)
        if key not in self._samplers:
            if key not in self.roles:
                self._register(source, role)
            if key not in self._slots:
                self.make_plan()
            sampler = local_sampler(
                source,
                slots=self._slots.get(key) or self._wanted_slots(key),
                context=self._context(key),
                device=self.device,
                loaded=self._loaded.get(key),
            )
            self._samplers[key] = await self.stack.enter_async_context(sampler)
        return self._samplers[key]

    def _register(self, source: str, role: str) -> None:
        key = model_key(source)
        self._sources.setdefault(key, source)
        roles = self.roles.setdefault(key, [])
        if role not in roles:
            roles.append(role)

    def _wanted_slots(self, key: str) -> int:
        return self.dialogues * len(self.roles[key])

    def _context(self, key: str) -> int:
        """Return the context of a model: the longest that one of its roles needs, within its own limit."""
        from mapo.local_model.checks import longest_context

        policy = [self.context] if any(role in POLICY_ROLES for role in self.roles[key]) else []
        others = [self.role_context] if any(role not in POLICY_ROLES for role in self.roles[key]) else []
        wanted = max(policy + others)
        return min(wanted, longest_context(self._sources[key]) or wanted)

    def _need(self, key: str) -> ModelNeed | None:
        """Return what a model needs; None if its size is unknown, as for one that is still on a hub."""
        from mapo.local_model.memory import model_size, sampling_need, width_on

        folder = Path(key)
        size = model_size(folder) if folder.is_dir() else None
        if size is None:
            return None
        need = sampling_need(
            size,
            shown_name(self._sources[key]),
            self.roles[key],
            slots=self._slots.get(key) or self._wanted_slots(key),
            context=self._context(key),
            width=width_on(self.device, self.dtype if key in self.shared else "auto"),
        )
        return replace(need, weights=0) if key in self.shared else need


def plan_training(config: Config, planned: Mapping[tuple[str, ...], int] | None = None) -> MemoryPlan | None:
    """Plan the memory, in each process, of a training with local models as roles or with `run.shard`; None
    for others.

    `planned` are the slots of the plan that a resumed run was started with.
    """
    from mapo.local_model.memory import process_count

    roles = {role: spec for role, spec in every_model(config).items() if spec.local is not None}
    policy = _policy_need(config) if roles or config.run.shard else None
    if not roles and policy is None:
        return None
    models = LocalModels(
        AsyncExitStack(),
        config.rollout.at_once,
        role_context=config.roles.context,
        device=config.model.device,
        dtype=config.model.dtype,
    )
    models.expect(roles)
    if shares_start(config):
        models.shared.add(model_key(config.model.source))
    models.keep_slots(planned or {})
    return models.make_plan(policy, process_count(config.run.processes))


def shares_start(config: Config) -> bool:
    """Return whether a role is played by the policy as it was before training, whose weights are in memory
    anyway: under new adapters, or as the reference."""
    from mapo.local_model.policy import folder_of

    key = model_key(config.model.source)
    folder = folder_of(config.model.source)
    adapter = folder is not None and (folder / "adapter_config.json").is_file()
    kept = not adapter and (config.model.lora is not None or config.run.reference)
    models = every_model(config).values()
    return kept and any(spec.local is not None and model_key(spec.local) == key for spec in models)


def _policy_need(config: Config) -> ModelNeed | None:
    from mapo.local_model.checks import longest_context
    from mapo.local_model.memory import adapter_size, model_size, process_count, training_need, width_on
    from mapo.sampling.tokens import longest_dialogue

    source = config.model.source
    folder = Path(model_key(source))
    size = model_size(folder) if folder.is_dir() else None
    if size is None:
        return None
    context = longest_dialogue(config.rollout.context, longest_context(source), source)
    width = width_on(config.model.device, config.model.dtype)
    return training_need(
        size,
        config,
        slots=config.rollout.at_once,
        context=context,
        width=width,
        processes=process_count(config.run.processes),
        sampled_reference=shares_start(config),
        adapters=adapter_size(folder),
    )


def model_key(source: str) -> str:
    """Return what identifies a model's weights: its resolved folder, or its name on a hub."""
    from mapo.local_model.policy import folder_of

    folder = folder_of(source)
    return source if folder is None else str(folder.resolve())


def shown_name(source: str) -> str:
    """Return a model's name in plans."""
    return source if source in SHIPPED else Path(source).expanduser().resolve().name


def role_sampling(role: str, spec: ModelSpec) -> Sampling:
    """Return how the model of a role is sampled."""
    if spec.local is None or spec.sampling.max_tokens is not None:
        return spec.sampling
    return replace(spec.sampling, max_tokens=MAX_TOKENS.get(role))


def refuse_tool_prompts(director: ModelSpec, prompts: RolePrompts) -> None:
    """Raise InputError if the prompts of the director need tool calls, which local models do not have."""
    if director.local is not None and prompts.name == EMPA_PROMPTS:
        raise InputError(
            "EMPA's director acts through tool calls, which a local model does not have",
            where=director.model,
            fix="Use mapo's prompts, or a director at an endpoint",
        )


def local_role_models(config: Config) -> dict[str, dict[str, ModelSpec]]:
    """Return the local models that play roles in a training, by their keys, each with its roles."""
    models: dict[str, dict[str, ModelSpec]] = {}
    for role, spec in every_model(config).items():
        if spec.local is not None:
            models.setdefault(model_key(spec.local), {})[role] = spec
    return models
