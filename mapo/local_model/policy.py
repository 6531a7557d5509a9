"""Loading a policy: a language model for sampling and training, with or without LoRA adapters.

`source` is a shipped model, such as "pocket", a Hugging Face folder, an adapter folder, a checkpoint of mapo,
or a name on a hub if one is reachable. Only safetensors weights are read, and no code from a model's folder
is run.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from mapo.config import Lora
from mapo.errors import InputError, MapoError
from mapo.local_model.checks import check_model_folder
from mapo.local_model.requirements import refuse_missing_folder
from mapo.local_model.shipped import SHIPPED, local_folder
from mapo.untrusted import parse_json, read_file

DType = Literal["auto", "float32", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]


@dataclass(slots=True)
class LocalPolicy:
    """A loaded model and its tokenizer. With `lora`, `model` is the peft model around a transformers model.

    `name` is used in records, `source` in checkpoints. `frozen` is the state before training, for reference
    log-probabilities: a copy of the model or, with LoRA, pairs of adapter parameter and initial value; None
    if it was not requested. `base` is the model without its adapters, with the same weights in memory.
    """

    model: Any
    tokenizer: Any
    name: str
    source: str
    lora: bool
    device: torch.device
    dtype: torch.dtype
    frozen: Any = None
    base: Any = None


def load_policy(
    source: str,
    *,
    dtype: DType = "auto",
    lora: Lora | None = None,
    device: Device = "auto",
    attention: str = "sdpa",
    keep_reference: bool = False,
    keep_base: bool = False,
) -> LocalPolicy:
    """Load a model and its tokenizer, ready to train. dtype "auto" is float32 on a CPU, bfloat16 on a GPU.

    For an adapter folder, its base model is loaded too and training continues with LoRA. `keep_reference`
    keeps a frozen copy of the parameters to be trained: those of the model, or only the adapters. With LoRA,
    `keep_base` keeps the model without adapters, which costs no memory: both use the same weights.
    """
    torch_device = _device(device)
    torch_dtype = torch.float32 if torch_device.type == "cpu" else torch.bfloat16
    if dtype != "auto":
        torch_dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    folder = folder_of(source)
    adapter = folder is not None and (folder / "adapter_config.json").is_file()
    base = _base_of(folder) if adapter and folder is not None else source
    tokenizer = load_tokenizer(source)
    model = _model(base, torch_dtype, torch_device, attention)
    plain = _sharing_copy(model).eval() if keep_base and lora and not adapter else None
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
        device=torch_device,
        dtype=torch_dtype,
        frozen=frozen,
        base=plain,
    )


def start_of(policy: LocalPolicy) -> LocalPolicy | None:
    """Return the model before training as one to be sampled beside the policy, with no weights of its own:
    the model under new adapters, or the reference. None if neither was kept."""
    model = policy.base if policy.lora else policy.frozen
    return None if model is None else replace(policy, model=model, lora=False, frozen=None, base=None)


def _sharing_copy(model: Any) -> Any:
    """Return a copy of a model's modules that uses the same parameters."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


@contextlib.contextmanager
def reference(policy: LocalPolicy) -> Iterator[Any]:
    """Yield the model as it was before training, without dropout or gradients."""
    if policy.frozen is None:
        raise InputError(
            "no reference model was kept", where=policy.name, fix="Load it with keep_reference=True"
        )
    with torch.no_grad():
        if policy.lora:
            with _initial_adapters(policy):
                yield policy.model
        else:
            yield policy.frozen


@contextlib.contextmanager
def _initial_adapters(policy: LocalPolicy) -> Iterator[None]:
    """Use the initial adapters inside the block. Storage is swapped, not copied, so the trained adapters come
    back bit for bit."""
    training = policy.model.training
    current = [(parameter, parameter.data) for parameter, _ in policy.frozen]
    try:
        policy.model.eval()
        for parameter, start in policy.frozen:
            parameter.data = start
        yield
    finally:
        for parameter, data in current:
            parameter.data = data
        policy.model.train(training)


# ---- sources


def folder_of(source: str) -> Path | None:
    """Return the folder of `source`; None for a name on a hub."""
    path = local_folder(source)
    if path.is_dir():
        return path
    refuse_missing_folder(source)
    return None


def name_of(source: str) -> str:
    """Return a model's name in records."""
    folder = folder_of(source)
    return source if folder is None or source in SHIPPED else folder.resolve().name


def _base_of(adapter: Path) -> str:
    config = adapter / "adapter_config.json"
    try:
        base = parse_json(read_file(config))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"names no base model ({error})", where=str(config)) from None
    if not isinstance(base, str) or not base:
        raise InputError("names no base model", where=f"{config}: base_model_name_or_path")
    return base


def _device(device: Device) -> torch.device:
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError("no CUDA device was found", where="device", fix="Use device=cpu or device=auto")
    # `accelerate launch` starts one process per GPU and numbers them in LOCAL_RANK
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


# ---- loading


def load_tokenizer(source: str) -> Any:
    """Load a model's tokenizer; for an adapter folder without one, that of its base model."""
    from transformers import AutoTokenizer

    folder = folder_of(source)
    is_adapter = folder is not None and (folder / "adapter_config.json").is_file()
    if folder is not None and is_adapter and not (folder / "tokenizer_config.json").is_file():
        source = _base_of(folder)
    path = _path_of(source)
    with _load_errors(path, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            "its tokenizer has no chat template",
            where=path,
            fix="Use the instruct (chat) version of the model",
        )
    return tokenizer


def max_context(source: str) -> int | None:
    """Return the longest context of a model, in tokens; None if its config does not say."""
    length: int | None = getattr(_config(source), "max_position_embeddings", None)
    return length


def attention_heads(source: str) -> tuple[int, int]:
    """Return the numbers of a model's attention heads and of its key-value heads."""
    config = _config(source).get_text_config()
    heads = int(config.num_attention_heads)
    return heads, int(getattr(config, "num_key_value_heads", None) or heads)


def _config(source: str) -> Any:
    from transformers import AutoConfig

    path = _path_of(source)
    with _load_errors(path, "config"):
        return AutoConfig.from_pretrained(path, trust_remote_code=False)


def _model(base: str, dtype: torch.dtype, device: torch.device, attention: str) -> Any:
    from transformers import AutoModelForCausalLM

    path = _path_of(base)
    with _load_errors(path, "weights"), no_progress_bar():
        model, loading_info = AutoModelForCausalLM.from_pretrained(
            path,
            output_loading_info=True,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            attn_implementation=attention,
            device_map=None if device.type == "cpu" else device,
        )
    if model.config._attn_implementation != attention:  # set in config.json, which wins over the argument
        model.set_attn_implementation(attention)
    if missing := sorted(loading_info["missing_keys"]):
        raise InputError(
            f"{len(missing)} weights are missing, including {missing[0]}",
            where=path,
            fix="They would be random. Use a complete model, with adapters merged",
        )
    if getattr(model, "is_quantized", False):
        raise InputError("its weights are quantized", where=path, fix="Use the unquantized model")
    return model


@contextlib.contextmanager
def no_progress_bar() -> Iterator[None]:
    """Disable transformers' progress bar, which would disturb a live display."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _path_of(source: str) -> str:
    """Return what the libraries load: a hub name, or a folder after `check_model_folder`."""
    folder = folder_of(source)
    if folder is None:
        return source
    check_model_folder(folder)
    return str(folder)


@contextlib.contextmanager
def _load_errors(path: str, what: str) -> Iterator[None]:
    """Turn the exceptions of the libraries into an InputError of one line with a fix."""
    try:
        yield
    except MapoError:
        raise
    except Exception as error:  # whatever a folder from elsewhere makes the libraries raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        fix = (
            "Use a folder with config.json, tokenizer.json and safetensors weights"
            if Path(path).is_dir()
            else "Check the name, or download the model and give its folder (the hub may not be reachable)"
        )
        raise InputError(f"its {what} cannot be loaded ({lines[0][:200]})", where=path, fix=fix) from error


def _with_new_adapter(model: Any, base: str, lora: Lora) -> Any:
    from peft import LoraConfig, TaskType, get_peft_model

    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # peft accepts any number
        lora_dropout=lora.dropout,
        target_modules="all-linear",
    )
    try:
        wrapped = get_peft_model(model, config)
    except ValueError as error:
        raise InputError(f"LoRA adapters cannot be added to this model ({error})", where=base) from error
    # not resolved: an absolute path would tie the adapter to this machine
    wrapped.peft_config["default"].base_model_name_or_path = base
    return wrapped


def _with_adapter(model: Any, folder: str, base: str, lora: Lora | None) -> Any:
    from peft import PeftModel

    if not (Path(folder) / "adapter_model.safetensors").is_file():
        raise InputError(
            "there is no adapter_model.safetensors", where=folder, fix="Save the adapter as safetensors"
        )
    with _load_errors(folder, "adapter"):
        wrapped = PeftModel.from_pretrained(model, folder, is_trainable=True)
    config: Any = wrapped.peft_config["default"]
    config.base_model_name_or_path = base
    if lora is not None and (lora.rank, lora.alpha) != (config.r, config.lora_alpha):
        raise InputError(
            f"the adapter has rank {config.r} and alpha {config.lora_alpha:g}, not {lora.rank} and "
            f"{lora.alpha:g}",
            where=folder,
            fix="Set lora to the adapter's values, or leave it out",
        )
    return wrapped
