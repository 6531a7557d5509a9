"""vLLM as the engine of a sampler: its settings, requests and results, and the policy's weights in it.

vLLM is imported only here, and only when an engine is started. It runs in this process, so that weights are
copied from the trained model on the GPU, without files and without a second process.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from mapo.errors import InputError, MapoError, TrainError, install_hint
from mapo.local_model.policy import LocalPolicy, folder_of
from mapo.models.chat import Request

_BLOCK = 16  # tokens per block of vLLM's KV cache
_MAX_SEED = 2**63
_ADAPTER = "default"  # the name that peft gives to the only adapter

_VARIABLES = {
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # The other runner is chosen for some architectures only; this one is the same for all.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
"""Environment variables that vLLM reads when it is imported, unless they are set."""


@dataclass(frozen=True, slots=True)
class SampledReply:
    """A finished reply: its ids with their log-probabilities, and how many ids of its prompt were cached."""

    key: str
    ids: list[int]
    logprobs: list[float]
    cached: int


def check_vllm(device: str) -> None:
    """Raise InputError if vLLM is not installed, or if there is no GPU for it."""
    if find_spec("vllm") is None:
        raise InputError(
            "rollout.sampler is vllm, which is not installed",
            where="rollout.sampler",
            fix=f"{install_hint('vllm')}, or use rollout.sampler=own",
        )
    if device == "cpu" or not torch.cuda.is_available():
        raise InputError(
            "vLLM samples on a GPU, and none was found" if device != "cpu" else "vLLM samples on a GPU",
            where="rollout.sampler",
            fix="Use rollout.sampler=own",
        )


class VllmEngine:
    """vLLM's offline engine in this process. Use it from one thread, and only one per process.

    asleep: whether it has given up its memory, and can compute nothing until `load`.
    """

    def __init__(self, llm: Any, version: str) -> None:
        self._engine = llm.llm_engine
        self._may_sleep = bool(self._engine.model_config.enable_sleep_mode)
        self.asleep = False
        self.version = version

    @property
    def busy(self) -> bool:
        """Whether any reply is unfinished."""
        return bool(self._engine.has_unfinished_requests())

    def add(self, key: str, ids: Sequence[int], request: Request, end_ids: Collection[int]) -> None:
        """Start the reply to the prompt `ids`. `key` identifies it among those in progress."""
        from vllm.inputs.engine import tokens_input

        self._engine.add_request(key, tokens_input(list(ids)), sampling_params(request, end_ids))

    def step(self) -> list[SampledReply]:
        """Sample one token of every reply in progress, and return those that are finished."""
        return [sampled_reply(output) for output in self._engine.step() if output.finished]

    def abort(self, key: str) -> None:
        """Drop a reply in progress."""
        self._engine.abort_request([key])

    def sleep(self) -> None:
        """Free the GPU memory of weights and KV cache until `load`. The weights wait in main memory."""
        if self._may_sleep and not self.asleep:
            torch.cuda.synchronize()
            self._engine.sleep(level=1)
            self.asleep = True

    def load(self, model: Any) -> None:
        """Copy the weights of a trained model, and forget what was computed with earlier ones."""
        if self.asleep:
            gc.collect()
            torch.cuda.empty_cache()  # vLLM's memory is not torch's: give back what torch only keeps
            self._engine.wake_up()
            self.asleep = False

        def copy_weights(own: Any) -> tuple[set[str] | None, set[str]]:
            return own.load_weights(weights_of(model)), {name for name, _ in own.named_parameters()}

        with torch.no_grad():
            ((loaded, expected),) = self._engine.apply_model(copy_weights)
        if loaded is not None and (missing := sorted(expected - loaded)):
            raise TrainError(
                f"vLLM has {len(missing)} weights that the model lacks, including {missing[0]}",
                where="rollout.sampler",
                fix="Use rollout.sampler=own",
            )
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._engine.reset_prefix_cache()

    def close(self) -> None:
        """Free the memory. An engine that sleeps has none on the GPU; it ends with the process."""
        if not self.asleep:
            # The run is over, and the memory is freed with the process at the latest.
            with contextlib.suppress(Exception):
                self._engine.engine_core.shutdown()


def start_vllm(policy: LocalPolicy, *, slots: int, context: int, memory: float, **more: Any) -> VllmEngine:
    """Start vLLM with the architecture of a policy and its weights, on the policy's GPU.

    Its KV cache holds `slots` dialogues of `context` ids, or fewer where they would need more than the share
    `memory` of the GPU's memory. `more` are further arguments of vLLM's engine.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    import vllm

    if policy.device.type == "cuda":
        more = {
            "kv_cache_memory_bytes": _cache_bytes(policy, slots, context, memory),
            "gpu_memory_utilization": 0.01,  # not used with a given size, but checked against free memory
            "enable_sleep_mode": True,
            **more,
        }
    source = str(folder_of(policy.source) or policy.source)
    try:
        llm = vllm.LLM(
            source,
            skip_tokenizer_init=True,
            load_format="dummy",  # the weights are copied from the policy
            dtype=str(policy.dtype).removeprefix("torch."),
            max_model_len=context,
            max_num_seqs=slots,
            generation_config="vllm",
            logprobs_mode="processed_logprobs",  # of the distribution that is sampled from
            async_scheduling=False,  # else a step may be in progress when the engine is sent to sleep
            **more,
        )
        engine = VllmEngine(llm, vllm.__version__)
        engine.load(policy.model)
    except MapoError:
        raise
    except Exception as error:  # whatever vLLM says of a model or a GPU that it does not support
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise TrainError(
            f"vLLM cannot sample this model ({reason})",
            where=source,
            fix="Lower rollout.vllm_memory if memory is short, or use rollout.sampler=own",
        ) from error
    return engine


def sampling_params(request: Request, end_ids: Collection[int]) -> Any:
    """Return vLLM's parameters for a reply: ended by `end_ids` only, with the log-probability of each id."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p if request.temperature > 0 else 1.0,
        max_tokens=request.max_tokens,
        seed=request.seed % _MAX_SEED,
        stop_token_ids=sorted(end_ids),
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def sampled_reply(output: Any) -> SampledReply:
    """Return the reply in a finished output of vLLM."""
    (completion,) = output.outputs
    if completion.finish_reason not in ("stop", "length") or completion.logprobs is None:
        raise TrainError(f"vLLM ended a reply without finishing it ({completion.finish_reason})")
    ids = list(completion.token_ids)
    pairs = zip(ids, completion.logprobs, strict=True)
    logprobs = [float(places[token].logprob) for token, places in pairs]
    if not all(map(math.isfinite, logprobs)):
        raise TrainError("the model's logits are not numbers (NaN)", fix="Lower the learning rate")
    return SampledReply(output.request_id, ids, logprobs, output.num_cached_tokens or 0)


def weights_of(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a model's weights under the names they have in a checkpoint, with LoRA adapters merged."""
    for path, parameter in model.named_parameters():
        if ".lora_" in path:
            continue
        weight = parameter.detach()
        layer, wrapped, _ = path.rpartition(".base_layer.weight")
        if wrapped:
            weight = weight + model.get_submodule(layer).get_delta_weight(_ADAPTER)
        name = path.removeprefix("base_model.model.").replace(".base_layer.", ".")
        yield name, weight.to(parameter.dtype)


def _cache_bytes(policy: LocalPolicy, slots: int, context: int, memory: float) -> int:
    """Return the size of the KV cache. Raise InputError if not even one dialogue fits."""
    config = policy.model.config.get_text_config()
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    width = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    per_token = 2 * int(config.num_hidden_layers) * kv_heads * width * policy.dtype.itemsize
    per_slot = (math.ceil(context / _BLOCK) + 1) * _BLOCK * per_token
    _, total = torch.cuda.mem_get_info(policy.device)
    most = int(memory * total)
    if most < 2 * per_slot:
        raise InputError(
            f"a dialogue of {context} tokens needs {per_slot / 2**30:.1f} GiB of KV cache, and "
            f"rollout.vllm_memory allows {most / 2**30:.1f} GiB",
            where="rollout.vllm_memory",
            fix="Raise it, or lower rollout.context",
        )
    return min(most, (slots + 1) * per_slot)
