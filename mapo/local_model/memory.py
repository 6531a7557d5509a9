"""The memory that local models need, planned before any of them is loaded.

Sizes come from config.json and the headers of safetensors files, so planning takes milliseconds. Weights,
optimizer state and KV caches are exact; activations are an estimate, which limits the slots of roles but
never refuses a run. torch is imported only to look at a GPU.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mapo.errors import InputError
from mapo.local_model.checks import LARGEST, MAX_CONFIG_BYTES, read_json_object
from mapo.local_model.shipped import local_folder
from mapo.text import counted
from mapo.untrusted import open_regular

if TYPE_CHECKING:
    from mapo.config import Config

GIB = 2**30
MIN_SLOTS = 4
"""Slots that a model keeps before a plan is refused: fewer would prefill nearly every call from the start."""
MAX_SLOTS = 1_000_000
USABLE = 0.92
"""Share of the available memory that is planned: the rest is for kernels' workspaces and fragmentation."""
BUCKET = 1 << 26
"""Elements after which a bucket of gradients is sent to other processes: 256 MiB of float32."""
_MAX_HEADER = 64 << 20
_MAX_DIMENSIONS, _MAX_ELEMENTS = 16, 1 << 48
CGROUPS = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By cgroup version: the files with a container's memory limit and usage, and the name of its reclaimable
part."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The size of a model: parameters, elements of its keys and values per token, and what its activations
    and adapters depend on."""

    parameters: int
    kv_per_token: int
    layers: int
    hidden: int
    intermediate: int
    linear: tuple[tuple[int, int], ...] = ()
    """Shapes of the linear layers that LoRA adapts."""
    in_layers: int = 0
    """Parameters of the layers: all but embeddings, the last norm and the head."""
    largest: int = 0
    """Elements of the largest parameter."""

    def adapters(self, rank: int) -> int:
        """Return the parameters of LoRA adapters."""
        return sum(rank * (rows + columns) for rows, columns in self.linear)


@dataclass(frozen=True, slots=True)
class ModelNeed:
    """The bytes that one loaded model needs. `state` is the optimizer's and the gradients, `activations` an
    estimate. `fixed` slots are never reduced. `shards` is the number of processes that share the state."""

    name: str
    roles: tuple[str, ...]
    weights: int
    per_slot: int
    slots: int
    context: int
    state: int = 0
    activations: int = 0
    fixed: bool = False
    shards: int = 1

    @property
    def cache(self) -> int:
        """The bytes of its KV cache, which has one more slot for padding."""
        return self.per_slot * (self.slots + 1)

    @property
    def required(self) -> int:
        return self.weights + self.state + self.cache

    @property
    def text(self) -> str:
        parts = [f"weights {_gib(self.weights)}"] if self.weights else ["weights shared with the policy"]
        divided = f" (shared by {self.shards} processes)" if self.shards > 1 else ""
        parts += [f"training state {_gib(self.state)}{divided}"] if self.state else []
        parts += [f"activations about {_gib(self.activations)}"] if self.activations else []
        parts.append(f"{counted(self.slots, 'slot')} of {self.context} tokens {_gib(self.cache)}")
        return f"{self.name} ({', '.join(self.roles)}): {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The models of a run on one device. `available` is None where it is unknown."""

    device: str
    available: int | None
    needs: tuple[ModelNeed, ...]

    @property
    def total(self) -> int:
        return sum(need.required + need.activations for need in self.needs)

    @property
    def lines(self) -> list[str]:
        """The plan as text, one line per model and one for the device."""
        there = "unknown" if self.available is None else _gib(self.available)
        return [
            *(need.text for need in self.needs),
            f"{self.device}: {_gib(self.total)} planned, {there} available",
        ]

    @property
    def slots(self) -> dict[tuple[str, ...], int]:
        """The slots of every model, by its roles."""
        return {need.roles: need.slots for need in self.needs}

    def as_json(self) -> dict[str, Any]:
        """Return the plan for a manifest."""
        models = [
            {
                "model": need.name,
                "roles": list(need.roles),
                "slots": need.slots,
                "context": need.context,
                "bytes": need.required + need.activations,
            }
            for need in self.needs
        ]
        return {"device": self.device, "available": self.available, "models": models}


def plan_memory(needs: Sequence[ModelNeed], available: int | None, device: str) -> MemoryPlan:
    """Return a plan that fits into `available` bytes, with fewer slots where necessary.

    Raises InputError with what is needed, what is there and what would fit.
    """
    plan = MemoryPlan(device, available, tuple(needs))
    if available is None:
        return plan
    budget = int(available * USABLE)
    smallest = [_with_slots(need, MIN_SLOTS) for need in needs]
    if (least := sum(need.required for need in smallest)) > budget:
        raise _too_large(smallest, least, budget, available, device)
    if plan.total <= budget:
        return plan
    # Every model gives up the same share of the slots above its minimum.
    spare = budget - sum(need.required + need.activations for need in smallest)
    wanted = sum(need.cache for need in needs) - sum(need.cache for need in smallest)
    share = max(0.0, spare / wanted) if wanted else 0.0
    reduced = [
        _with_slots(need, small.slots + int((need.slots - small.slots) * share))
        for need, small in zip(needs, smallest, strict=True)
    ]
    return replace(plan, needs=tuple(reduced))


def planned_slots(data: object) -> dict[tuple[str, ...], int]:
    """Return the slots in a plan from a manifest, by the roles of each model. Entries that are not valid are
    left out."""
    models = data.get("models") if isinstance(data, dict) else None
    entries = [entry for entry in models if isinstance(entry, dict)] if isinstance(models, list) else []
    return {
        tuple(map(str, roles)): slots
        for entry in entries
        if isinstance(roles := entry.get("roles"), list) and type(slots := entry.get("slots")) is int
        if 0 < slots <= MAX_SLOTS
    }


def _with_slots(need: ModelNeed, slots: int) -> ModelNeed:
    return need if need.fixed else replace(need, slots=min(slots, need.slots))


def _too_large(
    needs: Sequence[ModelNeed], least: int, budget: int, available: int, device: str
) -> InputError:
    """Return the refusal of models that do not fit even with the fewest slots."""
    without_cache = sum(need.weights + need.state for need in needs)
    share = (budget - without_cache) / max(1, sum(need.cache for need in needs))
    longest = max(need.context for need in needs)
    if share * longest >= 1024:
        fits = f"a context of {int(share * longest) // 256 * 256} tokens would fit (roles.context, --context)"
    elif any(need.shards > 1 for need in needs):
        fits = (
            "use more GPUs (run.processes), LoRA (model.lora.rank=32), or --engine verl, which also divides "
            "the weights"
        )
    elif any(need.state for need in needs):
        fits = (
            "train with LoRA (model.lora.rank=32), on several GPUs (run.shard=true run.processes=N, or "
            "--engine verl), or use smaller models"
        )
    else:
        fits = f"models with up to {_gib(max(0, budget))} of weights would fit"
    return InputError(
        f"{' and '.join(need.name for need in needs)} need {_gib(least)} with the fewest slots, and of "
        f"{_gib(available)} available memory {_gib(budget)} can be planned",
        where=device,
        fix=f"{fits[0].upper()}{fits[1:]}",
    )


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{count / 2**20:.0f} MiB"


# ---- the device


def process_count(processes: int) -> int:
    """Return the number of processes of a run: that of its launcher, or else the setting run.processes."""
    return int(os.environ.get("WORLD_SIZE", processes))


def available_memory(device: str, processes: int = 1) -> tuple[int | None, str]:
    """Return the bytes that the models of one of `processes` may use, and the device's name. `device` is the
    setting model.device; every process has its own GPU, or a share of main memory.

    On a GPU this includes memory that torch has reserved for itself and does not use, but none above torch's
    limit for this process (`torch.cuda.set_per_process_memory_fraction`).
    """
    if device != "cpu":
        import torch

        if torch.cuda.is_available():
            card = int(os.environ.get("LOCAL_RANK", "0"))
            free, total = torch.cuda.mem_get_info(card)
            used = torch.cuda.memory_allocated(card)
            unused = torch.cuda.memory_reserved(card) - used
            limit = int(total * torch.cuda.get_per_process_memory_fraction(card))
            return min(free + unused, max(0, limit - used)), torch.cuda.get_device_name(card)
    amounts = host_memory()
    return (amounts[0] // processes if amounts else None), "CPU"


def width_on(device: str, dtype: str = "auto") -> int:
    """Return the bytes of one weight on a device: as loaded, bfloat16 on a GPU and float32 on a CPU."""
    if dtype != "auto":
        return 4 if dtype == "float32" else 2
    if device == "cpu":
        return 4
    import torch

    return 2 if torch.cuda.is_available() else 4


def host_memory(root: Path = Path("/")) -> tuple[int, int] | None:
    """Return available and total bytes of main memory, within the limits of a container; None if they are
    unknown."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
        fields = {name: int(rest.split()[0]) * 1024 for name, _, rest in (x.partition(":") for x in lines)}
        amounts = [(fields["MemAvailable"], fields["MemTotal"]), *_limits(root)]
    except (OSError, ValueError, KeyError, IndexError):
        return None
    return min(left for left, _ in amounts), min(limit for _, limit in amounts)


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield, for each memory limit of a container, the bytes left and the limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for _, kind, path in (line.split(":", 2) for line in lines):
        base = root / "sys/fs/cgroup" / kind
        group = base / path.lstrip("/")
        ancestors = group.parents[: len(group.parts) - len(base.parts)]  # their limits apply too
        for folder in (group, *ancestors) if kind in CGROUPS else ():
            limit_file, usage_file, reclaimable = CGROUPS[kind]
            try:
                limit, used = (
                    int((folder / name).read_text(encoding="ascii")) for name in (limit_file, usage_file)
                )
                stat = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
            except (OSError, ValueError):  # no limit, or not readable
                continue
            yield limit - used + sum(int(x.split()[1]) for x in stat if x.split()[0] == reclaimable), limit


# ---- the sizes of models


def model_size(folder: Path) -> ModelSize | None:
    """Return the size of the model in a folder, from its config and the headers of its weights; None if they
    do not say. Adapters count as their base model: they add little to it."""
    path = folder / "config.json"
    if not path.is_file():
        base = _base_of(folder)
        return model_size(base) if base is not None and (base / "config.json").is_file() else None
    config = read_json_object(path, MAX_CONFIG_BYTES)
    inner = config.get("text_config")
    config = {**config, **inner} if isinstance(inner, dict) else config
    layers, hidden = _number(config, "num_hidden_layers"), _number(config, "hidden_size")
    heads = _number(config, "num_attention_heads")
    if not (layers and hidden and heads):
        return None
    kv_heads = _number(config, "num_key_value_heads") or heads
    head_dim = _number(config, "head_dim") or hidden // heads
    shapes = [shape for file in sorted(folder.glob("*.safetensors")) for shape in _shapes(file).items()]
    return ModelSize(
        parameters=sum(math.prod(shape) for _, shape in shapes),
        kv_per_token=2 * layers * kv_heads * head_dim,
        layers=layers,
        hidden=hidden,
        intermediate=_number(config, "intermediate_size") or 4 * hidden,
        linear=tuple(
            (shape[0], shape[1])
            for name, shape in shapes
            if len(shape) == 2 and not any(part in name for part in ("embed", "lm_head"))
        ),
        in_layers=sum(math.prod(shape) for name, shape in shapes if re.search(r"\.\d+\.", name)),
        largest=max((math.prod(shape) for _, shape in shapes), default=0),
    )


def adapter_size(folder: Path) -> int | None:
    """Return the parameters of the adapter in a folder; None if it holds none."""
    weights = folder / "adapter_model.safetensors"
    if not ((folder / "adapter_config.json").is_file() and weights.is_file()):
        return None
    return sum(math.prod(shape) for shape in _shapes(weights).values())


def _base_of(folder: Path) -> Path | None:
    """Return the folder of an adapter's base model; None for other folders, and for a name on a hub."""
    path = folder / "adapter_config.json"
    name = read_json_object(path, MAX_CONFIG_BYTES).get("base_model_name_or_path") if path.is_file() else None
    return local_folder(name) if isinstance(name, str) and name else None


def _number(config: Mapping[str, Any], key: str) -> int:
    """Return a size from a config; 0 if it is missing or not one that a model can have."""
    value = config.get(key)
    return value if type(value) is int and 0 < value <= LARGEST[key] else 0


def _shapes(file: Path) -> dict[str, list[int]]:
    """Return the shapes of the tensors in a safetensors file. Raises InputError if it is damaged."""
    try:
        with open_regular(file) as data:
            length = int.from_bytes(data.read(8), "little")
            if not 0 < length <= _MAX_HEADER:
                raise ValueError("its header is too long")
            header = json.loads(data.read(length))
        entries = {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
        if not all(map(_is_shape, entries.values())):
            raise ValueError("a shape is not a list of sizes")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"the weights cannot be read ({error})", where=str(file), fix="Download the file again"
        ) from None
    return entries


def _is_shape(shape: object) -> bool:
    """Return whether this is the shape of a tensor; one with more dimensions or elements does not exist."""
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS:
        return False
    return all(type(n) is int and n >= 0 for n in shape) and math.prod(shape) <= _MAX_ELEMENTS


def training_need(
    size: ModelSize,
    config: Config,
    *,
    slots: int,
    context: int,
    width: int,
    processes: int = 1,
    sampled_reference: bool = False,
    adapters: int | None = None,
) -> ModelNeed:
    """Return what training the policy needs in each of `processes`. `width` is the bytes of one weight: 2 in
    bfloat16. `adapters` are the parameters of LoRA adapters whose training continues.

    Per trained parameter: a float32 gradient and two moments and, if the weights are not float32, a float32
    copy and a gradient in the weights' dtype. The reference keeps the trained parameters once more. With
    `run.shard` a process has its share of the float32 numbers and, unless roles sample it, of the layers of
    the reference, and two buckets of gradients on their way.
    """
    model = config.model
    if adapters is None and model.lora:
        adapters = size.adapters(model.lora.rank)
    trained, trained_width = (size.parameters, width) if adapters is None else (adapters, 4)
    state = trained * (12 + (4 + trained_width if trained_width < 4 else 0))
    reference = trained * trained_width if config.run.reference else 0
    sent = 0
    if config.run.shard:
        state = -(-16 * trained // processes)
        sent = 2 * 4 * min(trained, BUCKET + size.largest)
        if config.run.reference and not sampled_reference:
            outside = size.parameters - size.in_layers
            reference = width * (outside + -(-size.in_layers // processes))
    per_layer = width * (7 * size.hidden + 4 * size.intermediate)
    kept = size.layers * width * size.hidden + per_layer if model.checkpointing else size.layers * per_layer
    return ModelNeed(
        name="policy",
        roles=("policy",),
        weights=size.parameters * width + 4 * (adapters or 0),
        per_slot=size.kv_per_token * width * context,
        slots=slots,
        context=context,
        state=state + reference,
        activations=config.optim.tokens * kept + sent,
        fixed=True,
        shards=processes if config.run.shard else 1,
    )


def sampling_need(
    size: ModelSize, name: str, roles: Sequence[str], *, slots: int, context: int, width: int
) -> ModelNeed:
    """Return what a model needs that is only sampled."""
    return ModelNeed(
        name=name,
        roles=tuple(roles),
        weights=size.parameters * width,
        per_slot=size.kv_per_token * width * context,
        slots=slots,
        context=context,
    )
