"""The policy loss: tokens' log-probabilities, the clipped surrogate, KL and entropy. Pure functions.

    ratio = exp(logp - old)
    loss  = max(-A ratio, -A clip(ratio, 1 - low, 1 + high))          and, where A < 0, at most dual |A|
    total = mean over all unmasked tokens of the batch of  loss + kl_weight KL - entropy_weight H

The mean is taken over the whole batch: each micro-batch adds its sum over the batch's number of tokens, so
gradients do not depend on where the batch was cut. Rows are right-padded: under causal attention nothing
that counts sees the padding, so no attention mask is given and attention may use its fastest kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mapo.errors import InputError
from mapo.train.batch import Micro
from mapo.train.head import head_scores

# exp(20) is far beyond every clip, and still finite: infinity times a zero gradient would be NaN.
_LOG_RATIO_LIMIT = 20.0

Stats = dict[str, Tensor]
"""Sums over a micro-batch's tokens (`ratio_max`: the largest), left on the device until `summary`."""


class Scores(NamedTuple):
    """Flat, one entry a trained token, float32; `entropies` of the whole distribution at that place."""

    logprobs: Tensor
    entropies: Tensor | None


def token_logprobs(
    model: nn.Module,
    ids: Tensor,
    mask: Tensor,
    *,
    at: Tensor | None = None,
    temperature: float = 1.0,
    chunk: int | None = None,
    entropy: bool = False,
    compiled: bool = False,
) -> Scores:
    """Log-probabilities of the tokens of right-padded `ids` [rows, length] that `mask` picks, row by row.

    They are under the distribution sampled from: logits over `temperature`. `at` holds the picked places of
    the flattened ids, if known (finding them waits for the device); a row's first token has no prediction.
    `chunk` is the number of tokens whose logits exist at a time. `compiled` fuses the chunks' arithmetic.
    """
    if not temperature > 0:
        raise InputError(f"temperature {temperature}", fix="Only sampled tokens have a log-probability")
    if at is None:
        if bool(mask[:, 0].any()):
            raise InputError("a row's first token is to be trained on, but nothing predicts it")
        at = mask.flatten().nonzero().squeeze(-1)
    targets = ids.flatten().index_select(0, at)
    body, head = _parts(model)
    if head is None:
        logits = model(input_ids=ids, use_cache=False).logits
        logits = logits.flatten(0, 1).index_select(0, at - 1)
        return _plain(logits, targets, temperature, entropy)
    hidden = body(input_ids=ids, use_cache=False).last_hidden_state
    hidden = hidden.flatten(0, 1).index_select(0, at - 1)
    logp, entropies = head_scores(
        hidden,
        head.weight,
        head.bias,
        targets,
        temperature=temperature,
        chunk=chunk,
        entropy=entropy,
        compiled=compiled,
    )
    return Scores(logp, entropies)


def _plain(logits: Tensor, targets: Tensor, temperature: float, entropy: bool) -> Scores:
    logp = torch.log_softmax(logits.float() / temperature, dim=-1)
    # Tokens a model rules out have log-probability -inf: they add nothing, not 0 times infinity.
    entropies = -(logp.exp() * logp.clamp(min=-1e4)).sum(-1) if entropy else None
    return Scores(logp.gather(-1, targets[:, None]).squeeze(-1), entropies)


_IS_PLAIN: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def _parts(model: nn.Module) -> tuple[nn.Module, nn.Linear | None]:
    """The body that makes hidden states and the head that makes logits of them; None if that is not all.

    Some models do more to their logits (soft caps, scales: Gemma 2, Granite, Cohere). They are recognised by
    comparing, once, and then go through their own forward pass in full.
    """
    inner: Any = model
    if hasattr(model, "get_base_model"):  # peft: the same model, adapters in place
        inner = inner.get_base_model()
    body, head = inner.base_model, inner.get_output_embeddings()
    if type(head) is not nn.Linear or body is inner:  # an adapter on the head, or no head apart
        return body, None
    if inner not in _IS_PLAIN:
        _IS_PLAIN[inner] = _is_plain(inner, body, head)
    return body, head if _IS_PLAIN[inner] else None


@torch.no_grad()
def _is_plain(inner: nn.Module, body: nn.Module, head: nn.Linear) -> bool:
    """Whether the model's logits are its head's output and nothing else, seen on four tokens."""
    modes = [(module, module.training) for module in inner.modules()]
    inner.eval()
    try:
        ids = torch.arange(4, device=head.weight.device)[None]
        ours = head(body(input_ids=ids, use_cache=False).last_hidden_state)
        return torch.equal(ours, inner(input_ids=ids, use_cache=False).logits)
    finally:
        for module, mode in modes:
            module.training = mode


class Clipped(NamedTuple):
    loss: Tensor
    clipped: Tensor


def surrogate(
    logp: Tensor,
    old: Tensor,
    advantage: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.28,
    dual: float = 10.0,
) -> Clipped:
    """The clipped surrogate of each token, to be minimised, and where a clip cut its gradient off.

    arXiv:1707.06347, with unequal clips (arXiv:2503.14476) and the dual clip (arXiv:1912.09729): a token
    with a negative advantage that has become far more likely costs at most `dual` times |A|.
    """
    ratio = torch.exp((logp - old).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT))
    free = -advantage * ratio
    loss = torch.maximum(free, -advantage * ratio.clamp(1.0 - low, 1.0 + high))
    bad = advantage < 0
    loss = torch.where(bad, torch.minimum(loss, -advantage * dual), loss)
    cut_good = (advantage > 0) & (ratio > 1.0 + high)
    cut_bad = bad & ((ratio < 1.0 - low) | (ratio > dual))
    return Clipped(loss, cut_good | cut_bad)


def kl_to(logp: Tensor, other: Tensor) -> Tensor:
    """KL(policy || other) of each token sampled from the policy: r - 1 - log r with r = other / policy.

    Unbiased like log(policy / other), never negative and far less noisy (Schulman's k3).
    """
    log_r = (other - logp).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    return torch.expm1(log_r) - log_r


def policy_loss(
    model: nn.Module,
    micro: Micro,
    *,
    total: int,
    low: float = 0.2,
    high: float = 0.28,
    dual: float = 10.0,
    kl_weight: float = 0.0,
    entropy_weight: float = 0.0,
    reference: Tensor | None = None,
    temperature: float = 1.0,
    compiled: bool = False,
) -> tuple[Tensor, Stats]:
    """One micro-batch's part of the batch's loss, and what to report of it.

    `total` is the number of unmasked tokens of the whole batch, over all micro-batches and processes.
    `reference` holds the reference model's log-probabilities of the micro-batch's trained tokens, flat;
    with it the distance is reported even if its weight is 0. Nothing here waits for the device.
    """
    scores = token_logprobs(
        model,
        micro.ids,
        micro.mask,
        at=micro.at,
        temperature=temperature,
        entropy=True,
        compiled=compiled,
    )
    logp, entropy = scores.logprobs, scores.entropies
    assert entropy is not None
    old = micro.logprobs.flatten().index_select(0, micro.at)
    advantage = micro.advantages.flatten().index_select(0, micro.at)
    token_loss, clipped = surrogate(logp, old, advantage, low=low, high=high, dual=dual)
    if reference is not None and kl_weight:
        token_loss = token_loss + kl_weight * kl_to(logp, reference)
    if entropy_weight:
        token_loss = token_loss - entropy_weight * entropy
    loss = token_loss.sum() / total
    with torch.no_grad():
        stats = _stats(logp.detach(), old, reference)
        stats |= {"loss": token_loss.sum(), "clipped": clipped.sum(), "entropy": entropy.sum()}
    return loss, {name: value.detach().float() for name, value in stats.items()}


def _stats(logp: Tensor, old: Tensor, reference: Tensor | None) -> Stats:
    change = (logp - old).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    none = change.new_zeros(1)
    stats = {
        "tokens": change.new_full((), change.numel()),
        # Sampled from the old policy: KL(old || new) = E[ratio - 1 - log ratio].
        "kl_old": (torch.expm1(change) - change).sum(),
        "drift": change.abs().sum(),
        "ratio_max": torch.cat([change, none - _LOG_RATIO_LIMIT]).amax().exp(),
    }
    if reference is not None:
        # As a figure, the plain log-ratio: k3 is all outliers once the policies have parted.
        stats["kl_ref"] = (logp - reference).sum()
    return stats


def summary(parts: Sequence[Stats]) -> dict[str, float]:
    """Means over all tokens of an update, from its micro-batches; the only place that waits for the device.

    `drift` is the mean |log-probability now - when sampled|: at the first update of a batch it should be no
    more than rounding, else sampler and trainer disagree about the policy.
    """
    if not parts:
        return {}
    numbers = iter(torch.stack([value for part in parts for value in part.values()]).tolist())
    told = [{name: next(numbers) for name in part} for part in parts]
    found = {"tokens": sum(t["tokens"] for t in told), "ratio_max": max(t["ratio_max"] for t in told)}
    for name in sorted({name for t in told for name in t} - set(found)):
        having = [t for t in told if name in t]  # the reference may have been asked about some only
        found[name] = sum(t[name] for t in having) / max(sum(t["tokens"] for t in having), 1.0)
    found["clip_fraction"] = found.pop("clipped")
    return found
