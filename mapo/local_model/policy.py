"""The policy: a language model loaded for sampling and training, whole or through LoRA adapters.

`source` names it: "pocket" (the small model in the package), a Hugging Face folder, an adapter folder,
a checkpoint of ours, or a name on a hub where one is reachable. Only safetensors weights are read and
no code from a model's folder is ever run.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from mapo.config import Lora
from mapo.errors import InputError

POCKET = Path(__file__).parent / "pocket"

DType = Literal["auto", "float32", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]


@dataclass(slots=True)
class LocalPolicy:
    """`model` is a transformers causal language model, or the peft model around one (`lora`).

    `name` goes into records, `source` into checkpoints. `frozen` is what was kept of the start for
    reference log-probs, where it was asked for: a copy of the model, or (LoRA) each adapter parameter
    with its value then.
    """

    model: Any
    tokenizer: Any
    name: str
    source: str
    lora: bool
    device: torch.device
    dtype: torch.dtype
    frozen: Any = None


def load_policy(
    source: str,
    *,
    dtype: DType = "auto",
    lora: Lora | None = None,
    device: Device = "auto",
    attention: str = "sdpa",
    keep_reference: bool = False,
) -> LocalPolicy:
    """The model and its tokenizer, ready to train. dtype "auto": float32 on CPU, bfloat16 on a GPU.

    An adapter folder brings its base along and goes on as LoRA. `keep_reference` keeps a frozen copy of
    what will be trained: the model, or the adapters alone.
    """
    where = _device(device)
    kind = torch.float32 if where.type == "cpu" else torch.bfloat16
    if dtype != "auto":
        kind = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    folder = folder_of(source)
    adapter = folder is not None and (folder / "adapter_config.json").is_file()
    base = _base_of(folder) if adapter and folder is not None else source
    tokenizer = load_tokenizer(source)
    model = _model(base, kind, where, attention)
    if adapter:
        model = _with_adapter(model, str(folder), base, lora)
    elif lora is not None:
        model = _with_new_adapter(model, base, lora)
    model.eval()
    frozen: Any = None
    if keep_reference and (adapter or lora):
        frozen = [(p, p.detach().clone()) for p in model.parameters() if p.requires_grad]
    elif keep_reference:
        frozen = copy.deepcopy(model).requires_grad_(False)
    return LocalPolicy(
        model=model,
        tokenizer=tokenizer,
        name=name_of(source),
        source=base if adapter else source,
        lora=adapter or lora is not None,
        device=where,
        dtype=kind,
        frozen=frozen,
    )


@contextlib.contextmanager
def reference(policy: LocalPolicy) -> Iterator[Any]:
    """The model as it was before training, without dropout or gradients, for the length of the block."""
    if policy.frozen is None:
        raise InputError(
            "no reference model was kept", where=policy.name, fix="Load it with keep_reference=True"
        )
    with torch.no_grad():
        if policy.lora:
            with _adapters_at_the_start(policy):
                yield policy.model
        else:
            yield policy.frozen


@contextlib.contextmanager
def _adapters_at_the_start(policy: LocalPolicy) -> Iterator[None]:
    """Storage is exchanged and nothing copied: what comes back is what was there, to the bit."""
    training = policy.model.training
    now = [(parameter, parameter.data) for parameter, _ in policy.frozen]
    try:
        policy.model.eval()
        for parameter, start in policy.frozen:
            parameter.data = start
        yield
    finally:
        for parameter, data in now:
            parameter.data = data
        policy.model.train(training)


# ---- sources


def folder_of(source: str) -> Path | None:
    """The folder `source` stands for; None for a name on a hub."""
    if source == "pocket":
        return POCKET
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        raise InputError("no such folder", where=source, fix="Give a model's folder, a hub name, or pocket")
    return None


def name_of(source: str) -> str:
    """What a model is called in records."""
    folder = folder_of(source)
    return source if folder is None or source == "pocket" else folder.resolve().name


def _base_of(adapter: Path) -> str:
    config = adapter / "adapter_config.json"
    try:
        base = json.loads(config.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"names no base model ({error})", where=str(config)) from None
    if not isinstance(base, str) or not base:
        raise InputError("names no base model", where=f"{config}: base_model_name_or_path")
    return base


def _device(device: Device) -> torch.device:
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError("no CUDA device is there", where="device", fix="Use device=cpu, or auto")
    # one process a GPU under `accelerate launch`, which numbers them here
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


# ---- loading


def load_tokenizer(source: str) -> Any:
    """The source's own where it has one, else (an adapter's folder) its base's."""
    from transformers import AutoTokenizer

    folder = folder_of(source)
    own = folder is None or not (folder / "adapter_config.json").is_file()
    own = own or (folder is not None and (folder / "tokenizer_config.json").is_file())
    path = _place(source if own or folder is None else _base_of(folder))
    with _explained(path, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            "its tokenizer has no chat template", where=path, fix="Take the instruct (chat) version of it"
        )
    return tokenizer


def longest_of(source: str) -> int | None:
    """How many tokens the model reads, as far as its config says."""
    from transformers import AutoConfig

    path = _place(source)
    with _explained(path, "config"):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    found: int | None = getattr(config, "max_position_embeddings", None)
    return found


def _model(base: str, dtype: torch.dtype, device: torch.device, attention: str) -> Any:
    from transformers import AutoModelForCausalLM

    path = _place(base)
    with _explained(path, "weights"), quiet():
        model, told = AutoModelForCausalLM.from_pretrained(
            path,
            output_loading_info=True,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            attn_implementation=attention,
            device_map=None if device.type == "cpu" else device,
        )
    if missing := sorted(told["missing_keys"]):
        raise InputError(
            f"{len(missing)} weights are missing, {missing[0]} among them",
            where=path,
            fix="Those would be random. Is it a whole model, adapters merged?",
        )
    if getattr(model, "is_quantized", False):
        raise InputError("its weights are quantized", where=path, fix="Take the unquantized model to train")
    return model


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the library's progress bar, which would tear a live display."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _place(source: str) -> str:
    folder = folder_of(source)
    return source if folder is None else str(folder)


@contextlib.contextmanager
def _explained(path: str, what: str) -> Iterator[None]:
    """Whatever a hub, a folder or a file made the libraries raise, as one line that helps."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, ImportError, KeyError, SafetensorError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        fix = (
            "Take a folder with config.json, tokenizer.json and safetensors weights"
            if Path(path).is_dir()
            else "Check the name, or download the model and give its folder (no hub may be reachable)"
        )
        raise InputError(f"its {what} cannot be loaded ({lines[0][:200]})", where=path, fix=fix) from error


def _with_new_adapter(model: Any, base: str, lora: Lora) -> Any:
    from peft import LoraConfig, TaskType, get_peft_model

    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # peft takes any number
        lora_dropout=lora.dropout,
        target_modules="all-linear",
    )
    try:
        wrapped = get_peft_model(model, config)
    except ValueError as error:
        raise InputError(f"LoRA cannot be put on it ({error})", where=base) from error
    # the source as it was given: a resolved path would tie the adapter to this machine
    wrapped.peft_config["default"].base_model_name_or_path = base
    return wrapped


def _with_adapter(model: Any, folder: str, base: str, lora: Lora | None) -> Any:
    from peft import PeftModel

    if not (Path(folder) / "adapter_model.safetensors").is_file():
        raise InputError(
            "has no adapter_model.safetensors", where=folder, fix="Save the adapter as safetensors"
        )
    with _explained(folder, "adapter"):
        wrapped = PeftModel.from_pretrained(model, folder, is_trainable=True)
    config: Any = wrapped.peft_config["default"]
    config.base_model_name_or_path = base
    if lora is not None and (lora.rank, lora.alpha) != (config.r, config.lora_alpha):
        raise InputError(
            f"the adapter has rank {config.r} and alpha {config.lora_alpha:g}, not {lora.rank} and "
            f"{lora.alpha:g}",
            where=folder,
            fix="Set lora to the adapter's own, or leave it out",
        )
    return wrapped
