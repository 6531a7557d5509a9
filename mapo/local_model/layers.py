"""A local model's decoder layers and how they run: gradient checkpointing, compilation, dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def tune_for_training(model: nn.Module, *, checkpointing: bool, compile: bool) -> None:  # noqa: A002
    """Prepare a model's decoder layers in place. Calling it again changes the settings.

    `checkpointing` keeps only each layer's input and recomputes the rest in the backward pass: a third more
    work for a fraction of the memory. `compile` fuses each layer's small operations. Compiled layers are used
    only where gradients are enabled; sampling and reference passes use the layers as they are.
    """
    inner: Any = model
    if hasattr(model, "get_base_model"):  # peft: the model that the adapters were put into
        inner = inner.get_base_model()
    if checkpointing:
        # The state of the random generator matters only if there is dropout.
        inner.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False, "preserve_rng_state": _has_dropout(inner)}
        )
    else:
        inner.gradient_checkpointing_disable()
    for layer in decoder_layers(inner):
        if compile:
            _compile_for_gradients(layer)
        else:
            layer._compiled_call_impl = None


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that a transformers model stacks, found by the class names it declares. Sharded ones
    are of a subclass."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if names & {kind.__name__ for kind in type(module).__mro__}]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout off inside the block. Every module gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _has_dropout(model: nn.Module) -> bool:
    if getattr(getattr(model, "config", None), "attention_dropout", 0.0):
        return True
    return any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())


def _compile_for_gradients(layer: nn.Module) -> None:
    """Compile a layer for calls with gradients only: the sampler passes a KV cache, which would be traced
    again, and uses its own kernels. As with `layer.compile()`, copies of the layer are not compiled."""
    layer.compile()
    compiled: Callable[..., Any] = layer._compiled_call_impl  # type: ignore[assignment]

    def call(*args: Any, **kwargs: Any) -> Any:
        return (compiled if torch.is_grad_enabled() else layer._call_impl)(*args, **kwargs)

    layer._compiled_call_impl = call
