"""Local models of user, director and judge beside verl: one Ray actor per model, called by all agent loops.

The actor samples and reads out with the code of the local engine, which batches the calls of all dialogues.
The trainer starts the actors; an agent-loop worker finds them by name. If one of them dies, the run stops.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mapo.config import Config, load_config
from mapo.errors import InputError, TrainError
from mapo.models.chat import Answer, ReadRequest, Request
from mapo.players.local_models import LocalModels, local_role_models, model_key
from mapo.players.spec import ModelSpec
from mapo.store import RunDir

if TYPE_CHECKING:
    from mapo.sampling.role_chat import RoleChat
    from mapo.sampling.sampler import Sampler

START_SECONDS = 1800
"""How long Ray may take to start all models, including the time to load them."""
SHARED = 2 / 3
"""Largest share of a GPU that Ray can give to models of roles: verl's workers reserve a third of it."""


class RoleHost:
    """A local model in all its roles; a Ray actor. `key` is its key in `local_role_models`."""

    def __init__(self, run_dir: str, key: str) -> None:
        self.config = load_config(RunDir(Path(run_dir)).verl_config, flat=True)
        self.roles = local_role_models(self.config)[key]
        self.stack = AsyncExitStack()
        self.sampler: Sampler | None = None
        self._chats: dict[str, RoleChat] = {}

    async def open(self) -> list[str]:
        """Load the model and check that it can play its roles. Return its memory as text."""
        from mapo.measure.rubric import Rubric
        from mapo.players.reading import check_forms, role_kind

        config = self.config
        on_cpu = config.verl.rollout == "mapo_cpu"
        if not on_cpu:
            _limit_memory(config.verl.roles_gpus)
        models = LocalModels(
            self.stack,
            max(config.rollout.at_once, config.verl.workers),
            role_context=config.roles.context,
            device="cpu" if on_cpu else "cuda",
        )
        models.expect(self.roles)
        plan = models.make_plan()
        role, spec = next(iter(self.roles.items()))
        self.sampler = await models.sampler(spec.local or "", role)
        rubric = Rubric.load(config.scenarios.domain)
        for role, spec in self.roles.items():
            check_forms(self.sampler, spec, role_kind(role), rubric)
        return plan.lines

    async def name(self) -> str:
        """Return the model's name in records."""
        return self._sampler().name

    async def reply(self, role: str, request: Request) -> Answer:
        return await self._chat(role).reply(request)

    async def read(self, role: str, request: ReadRequest) -> tuple[tuple[float, ...], ...]:
        return await self._chat(role).read(request)

    async def end_session(self, role: str, prefix: str) -> None:
        self._chat(role).end_session(prefix)

    def _chat(self, role: str) -> RoleChat:
        if role not in self._chats:
            self._chats[role] = self._sampler().role(role)
        return self._chats[role]

    def _sampler(self) -> Sampler:
        if self.sampler is None:
            raise TrainError("the model of a role is called before it is open")
        return self.sampler


def _limit_memory(share: float) -> None:
    import torch

    if share < 1 and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)


class RemoteRole:
    """A model in one role, a Chat and a Reader whose calls are answered by its RoleHost."""

    supports_tools = False

    def __init__(self, host: Any, name: str, role: str) -> None:
        self.host, self.name, self.role = host, name, role

    async def reply(self, request: Request) -> Answer:
        answer: Answer = await _answer(self.host.reply.remote(self.role, request), self.name, self.role)
        return answer

    async def read(self, request: ReadRequest) -> tuple[tuple[float, ...], ...]:
        logprobs: tuple[tuple[float, ...], ...] = await _answer(
            self.host.read.remote(self.role, request), self.name, self.role
        )
        return logprobs

    def end_session(self, prefix: str) -> None:
        self.host.end_session.remote(self.role, prefix)


async def open_role(spec: ModelSpec, role: str) -> RemoteRole:
    """Return a local model in a role, from an agent-loop worker."""
    import ray

    key = model_key(spec.local or "")
    try:
        host = ray.get_actor(_actor_name(key))
    except ValueError:
        raise _lost(spec.model, role) from None
    return RemoteRole(host, await _answer(host.name.remote(), spec.model, role), role)


async def _answer(call: Any, model: str, role: str) -> Any:
    """Wait for the answer of a call. Errors of the model are raised as in the actor. If the caller gives up,
    the call is cancelled in the actor too, so that it frees its slot of the sampler."""
    import ray
    from ray.exceptions import RayActorError, RaySystemError, RayTaskError

    try:
        return await call
    except asyncio.CancelledError:
        with suppress(RaySystemError):  # Ray has been shut down, and the actor with it
            ray.cancel(call)
        raise
    except RayActorError as error:
        raise _lost(model, role) from error
    except RayTaskError as error:
        raise error.cause from None


def _lost(model: str, role: str) -> TrainError:
    return TrainError(
        f"the process of the {role}'s model is gone",
        where=model,
        fix="See verl's log. If it ran out of GPU memory, raise verl.roles_gpus",
    )


def start_hosts(config: Config, root: Path, groups: list[Any]) -> list[Any]:
    """Start the local models of the roles and wait until they are loaded. Return their actors, which live as
    long as their handles. `groups` are the placement groups of the policy, which shared models join."""
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

    keys = list(local_role_models(config))
    host = ray.remote(RoleHost)
    hosts = [
        host.options(
            name=_actor_name(key),
            num_cpus=0,
            num_gpus=config.verl.roles_gpus,
            max_concurrency=max(1000, 8 * config.rollout.at_once),
            **_placement(config, groups, number),
        ).remote(str(root), key)
        for number, key in enumerate(keys)
    ]
    try:
        plans = ray.get([host.open.remote() for host in hosts], timeout=START_SECONDS)
    except RayTaskError as error:
        raise error.cause from None
    except (RayActorError, GetTimeoutError) as error:
        raise TrainError(
            f"the local models of roles did not start ({type(error).__name__})",
            where=", ".join(keys),
            fix="Check that Ray has free GPUs for them (verl.roles_gpus, verl.roles_shared) and "
            "main memory for their weights",
        ) from error
    for line in (line for plan in plans for line in plan):
        print(f"memory: {line}")  # noqa: T201 (verl's log)
    return hosts


def _placement(config: Config, groups: list[Any], number: int) -> dict[str, Any]:
    """Return where Ray puts a model: on a GPU that is free, or on one of the policy's."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    if not config.verl.roles_shared:
        return {}
    node, gpu = divmod(number % (config.verl.nodes * config.verl.gpus), config.verl.gpus)
    strategy = PlacementGroupSchedulingStrategy(groups[node], placement_group_bundle_index=gpu)
    return {"scheduling_strategy": strategy}


def own_gpus(config: Config) -> int:
    """Return the GPUs that local models of roles need beside those of the policy."""
    models = len(local_role_models(config))
    return 0 if config.verl.roles_shared else math.ceil(models / math.floor(1 / config.verl.roles_gpus))


def check_shares(config: Config) -> None:
    """Raise InputError if local models of roles do not fit beside the policy on its GPUs."""
    v, models = config.verl, len(local_role_models(config))
    if not (v.roles_shared and models):
        return
    per_gpu = math.ceil(models / (v.nodes * v.gpus))
    most = min(SHARED, 1.0 if v.rollout == "mapo_cpu" else 1 - v.memory) / per_gpu
    if v.roles_gpus > most:
        raise InputError(
            f"verl.roles_gpus is {v.roles_gpus:g}, but beside the policy {most:.2f} of a GPU is left",
            where="verl.roles_shared",
            fix="Lower verl.roles_gpus or verl.memory, or give the roles their own GPUs",
        )


def check_gpus(config: Config) -> None:
    """Raise InputError if Ray has too few GPUs for the policy and its local roles."""
    import ray

    policy, roles = config.verl.nodes * config.verl.gpus, own_gpus(config)
    total = int(ray.cluster_resources().get("GPU", 0))
    if roles and total < policy + roles:
        raise InputError(
            f"the Ray cluster has {total} GPUs, but the policy needs {policy} and its local roles {roles}",
            where="verl.gpus",
            fix="Give the policy fewer GPUs, or set verl.roles_shared=true and a smaller verl.roles_gpus",
        )


def _actor_name(key: str) -> str:
    return f"mapo_role_{hashlib.sha256(key.encode()).hexdigest()[:16]}"
