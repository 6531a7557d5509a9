"""A local model as a policy for evaluation or play: loaded, sampled, not trained."""

from __future__ import annotations

from mapo.local_model.policy import load_policy, load_tokenizer
from mapo.local_model.template import read_template
from mapo.sampling.sampler import Sampler


def local_sampler(
    source: str, *, slots: int, context: int, thinking: bool = False, stream: bool = True
) -> Sampler:
    """The sampler of a model's folder, hub name or "pocket"; enter it (`async with`) before use."""
    policy = load_policy(source)
    policy.model.requires_grad_(False)
    template = read_template(policy.tokenizer, enable_thinking=thinking)
    longest = getattr(policy.model.config, "max_position_embeddings", None) or context
    context = min(context, longest)
    return Sampler(policy.model, template, name=policy.name, slots=slots, context=context, stream=stream)


def template_check(source: str) -> str:
    """What the check of a model's chat template says, without loading its weights."""
    return read_template(load_tokenizer(source)).told
