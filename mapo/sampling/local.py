"""Local models for evaluation and play: loaded and sampled, not trained."""

from __future__ import annotations

from mapo.local_model.policy import Device, LocalPolicy, load_policy, load_tokenizer
from mapo.local_model.template import Template, read_template
from mapo.sampling.sampler import Sampler


def local_sampler(
    source: str,
    *,
    slots: int,
    context: int,
    thinking: bool = False,
    stream: bool = True,
    device: Device = "auto",
    loaded: LocalPolicy | None = None,
) -> Sampler:
    """Return a sampler for a model folder, a hub name or "pocket"; enter it (`async with`) before use.

    With `loaded`, that model is sampled and nothing is loaded; its weights must not change.
    """
    policy = loaded or load_policy(source, device=device)
    if loaded is None:
        policy.model.requires_grad_(False)
    template = read_template(policy.tokenizer, enable_thinking=thinking)
    longest = getattr(policy.model.config, "max_position_embeddings", None) or context
    context = min(context, longest)
    return Sampler(policy.model, template, name=policy.name, slots=slots, context=context, stream=stream)


def check_template(source: str) -> Template:
    """Read and check a model's chat template without loading its weights."""
    return read_template(load_tokenizer(source))
