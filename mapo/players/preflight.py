"""Checks before a run spends anything: endpoints answer, models exist, a GPU is there where one is needed.

Nothing is loaded and nothing is written. Each check raises an error that names the role or model, the first
cause and a fix, or returns warnings.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from mapo.errors import InputError
from mapo.local_model.requirements import FETCHED, refuse_missing_folder
from mapo.local_model.shipped import SHIPPED, local_folder
from mapo.players.spec import KEY_ENV, ModelSpec
from mapo.runs.kind import refuse_run_as_model
from mapo.text import counted

TIMEOUT = 10.0
"""Seconds an endpoint or the model hub may take to answer."""
LARGE = 3 << 30
"""Bytes of weights from which training or sampling on a CPU gets a warning."""


async def check_endpoints(models: Mapping[str, ModelSpec], timeout: float = TIMEOUT) -> list[str]:
    """Check concurrently that the endpoints of `models` (by role) answer. Return warnings about slow ones and
    about models that an endpoint does not list.

    Roles with the same model, address and key are checked once. Scripted and local models are skipped.
    """
    roles: dict[tuple[str, str | None, str], list[str]] = {}
    for role, spec in models.items():
        if spec.address is not None:
            roles.setdefault((spec.model, spec.base_url, spec.key_env), []).append(role)
    results = await asyncio.gather(
        *(_check_endpoint(*key, enumeration(names), timeout) for key, names in roles.items()),
        return_exceptions=True,
    )
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [warning for result in results if isinstance(result, list) for warning in result]


async def _check_endpoint(
    model: str, base_url: str | None, key_env: str, role: str, timeout: float
) -> list[str]:
    from mapo.models.endpoint import Endpoint

    warnings = []
    if key_env != KEY_ENV and not os.environ.get(key_env):
        reason = f"the environment variable {key_env} is not set" if key_env else "no variable is named"
        warnings.append(f"{role}: {reason}, so no API key is sent")
    async with Endpoint(model, base_url, key_env=key_env, timeout=timeout, role=role) as endpoint:
        probe = await endpoint.probe()
        if probe.slow:
            answers = f"answers, but took longer than {timeout:g} s for one token"
            warnings.append(f"{role} {model} at {endpoint.base_url} {answers}")
        if probe.others:
            listed = counted(probe.others, "model")
            warnings.append(f"{role}: {endpoint.base_url} lists {listed}, and '{model}' is not among them")
        return warnings


def check_models(models: Iterable[ModelSpec], device: str = "auto") -> list[str]:
    """Check that local models exist, on disk or on the model hub. Return warnings.

    `device` is the config's `model.device`. A GPU is required for "cuda"; without one, a large model gets a
    warning.
    """
    sources = list(dict.fromkeys(spec.local for spec in models if spec.local is not None))
    if not sources:
        return []
    warnings = [_large_on_cpu(folder) for source in sources if (folder := _check_source(source))]
    if device == "cpu" or not (device == "cuda" or any(warnings)):
        return []
    from mapo.local_model.devices import has_gpu

    if has_gpu():
        return []
    if device == "cuda":
        raise InputError(
            "this run needs a GPU, and torch finds none here",
            where="model.device is cuda",
            fix="Run it on a machine with a CUDA GPU (mapo doctor shows what torch finds), "
            "or set model.device=cpu",
        )
    return [warning for warning in warnings if warning]


def check_processes(processes: int, device: str) -> None:
    """Raise InputError if there are GPUs, but not one for each process of a run that uses them."""
    if processes == 1 or device == "cpu":
        return
    from mapo.local_model.devices import gpu_count

    if 0 < (count := gpu_count()) < processes:
        raise InputError(
            f"there are {processes} processes and {counted(count, 'GPU')}",
            where="run.processes",
            fix="Use at most one process per GPU, or model.device=cpu",
        )


def _large_on_cpu(folder: Path) -> str:
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors") if file.is_file())
    if size < LARGE:
        return ""
    return (
        f"{folder} holds {size / 2**30:.0f} GiB of weights and there is no GPU: expect this to be very slow"
    )


def _check_source(source: str) -> Path | None:
    """Return the folder of a model, or None if it is on the model hub. Raise InputError if it is nowhere."""
    folder = local_folder(source)
    if source in SHIPPED and folder.is_dir():
        return None
    if folder.is_dir():
        refuse_run_as_model(source)
        if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
            raise InputError(
                "this folder holds no model: it has no config.json",
                where=source,
                fix="Give a Hugging Face folder with config.json, tokenizer.json and safetensors weights",
            )
        return folder
    for name, path in FETCHED.items():
        if folder == path:
            raise InputError("the model is not downloaded yet", where=source, fix=f"Run: mapo fetch {name}")
    refuse_missing_folder(source)
    _check_hub(source)
    return None


def _check_hub(name: str) -> None:
    """Check that a model is in the local hub cache or on the hub, with one short request."""
    from mapo.local_model.requirements import require_torch

    require_torch()
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return
        HfApi().model_info(name, timeout=TIMEOUT)
    except (RepositoryNotFoundError, HFValidationError):
        raise InputError(
            "there is no such folder, and no such model on the Hugging Face hub (or it is private)",
            where=name,
            fix="Check the name, or give the folder of a model",
        ) from None
    except Exception as error:  # noqa: BLE001 (which HTTP library raises depends on the hub client's release)
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(
            f"there is no such folder, and the Hugging Face hub cannot be reached ({cause})",
            where=name,
            fix="Check the path, or download the model elsewhere and give its folder",
        ) from None


def enumeration(names: Iterable[str]) -> str:
    """Return the names as text: "user, director and judge"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
