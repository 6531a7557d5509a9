"""A token server for verl on CPUs: mapo's sampler in a Ray actor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

SLOTS = 64


class _SingleReply:
    """The sampler's dialogue state for one reply.

    Nothing is cached between turns, because verl sends the full context with every request.
    """

    role = "policy"

    def __init__(self) -> None:
        self.slot: int | None = None
        self.cached = 0


class TokenServer:
    """Server for verl's `generate` calls. Its weights are replaced after each policy update."""

    def __init__(self, path: str, max_tokens: int) -> None:
        from mapo.sampling.local import local_sampler

        torch.set_num_threads(1)
        self.sampler = local_sampler(path, slots=SLOTS, context=max_tokens)
        self.model = self.sampler.decoder.model
        self.version: int | None = None
        self._base: dict[str, torch.Tensor] = {}
        self._requests = 0
        self._opening = asyncio.Lock()
        self._open = False

    async def ready(self) -> bool:
        return True

    async def generate(
        self, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        from mapo.models.chat import Request
        from mapo.sampling.calls import SampleCall

        async with self._opening:
            if not self._open:
                await self.sampler.__aenter__()
                self._open = True
        self._requests += 1
        request = Request(
            messages=(),
            temperature=sampling_params.get("temperature", 1.0),
            top_p=sampling_params.get("top_p", 1.0),
            max_tokens=sampling_params["max_tokens"],
            seed=sampling_params.get("seed") or self._requests,
        )
        state: Any = _SingleReply()
        done = asyncio.get_running_loop().create_future()
        call = SampleCall(state, list(prompt_ids), 0, request, done)
        try:
            await self.sampler.ask(call)
        finally:
            self.sampler.release(state)
        return TokenOutput(
            token_ids=call.token_ids,
            log_probs=call.logprobs,
            stop_reason="completed",
            extra_fields={"global_steps": self.version},
        )

    async def load(self, weights: dict[str, torch.Tensor], version: int | None) -> None:
        missing, unknown = self.model.load_state_dict(weights, strict=False)
        if unknown or [name for name in missing if "lm_head" not in name]:
            raise RuntimeError(f"the weights do not match the model: missing {missing}, unknown {unknown}")
        self.model.tie_weights()
        self.sampler.forget_all()
        self.version = version

    async def load_adapter(self, adapter: dict[str, torch.Tensor], scale: float, version: int | None) -> None:
        """Replace the adapted weights by W + scale * B A, with W from the base model."""
        weights = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, a in adapter.items():
                if name.endswith(".lora_A.weight"):
                    b = adapter[name.replace(".lora_A.", ".lora_B.")]
                    target = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
                    weight = weights[target]
                    base = self._base.setdefault(target, weight.detach().clone())
                    weight.copy_(base + scale * (b @ a))
        self.sampler.forget_all()
        self.version = version

    async def _no_op(self, *_: Any, **__: Any) -> None:
        return None

    wake_up = sleep = clear_kv_cache = abort_all_requests = resume_generation = _no_op
    release_kv_cache = resume_kv_cache = start_profile = stop_profile = _no_op


def _server_name(rank: int) -> str:
    return f"mapo_cpu_server_{rank}"


class CpuReplica(RolloutReplica):  # type: ignore[misc]
    """A rollout replica with one token server."""

    async def launch_servers(self) -> None:
        max_tokens = int(self.config.prompt_length + self.config.response_length)
        node = await self.workers[0].__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        options = {
            "name": _server_name(self.replica_rank),
            "num_cpus": 0,
            "max_concurrency": 1000,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),  # as vLLM is placed
        }
        server = ray.remote(TokenServer).options(**options).remote(self.model_config.path, max_tokens)
        await server.ready.remote()
        self.servers, self._server_handle = [server], server
        self._server_address = _server_name(self.replica_rank)


class CpuRollout(BaseRollout):  # type: ignore[misc]
    """The trainer's side of the server, which sends it new weights."""

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self,
        weights: Iterator[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        peft_config: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if wire_format != "named_tensors":
            raise NotImplementedError(
                f"wire format {wire_format} is not supported; use the naive checkpoint engine"
            )
        state_dict = {name: p.detach().to("cpu", torch.float32).clone() for name, p in weights}
        server = ray.get_actor(_server_name(int(os.environ["RANK"])))  # one server per rank
        if peft_config:  # only the adapter is sent
            scale = peft_config["lora_alpha"] / peft_config["r"]
            await server.load_adapter.remote(state_dict, scale, global_steps)
        else:
            await server.load.remote(state_dict, global_steps)
