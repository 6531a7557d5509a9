"""The policy loss: log-probabilities of tokens, the clipped surrogate, KL and entropy. Pure functions.

    ratio = exp(logp - old)
    loss  = max(-A ratio, -A clip(ratio, 1 - low, 1 + high)), and at most dual |A| where A < 0
    total = mean over all trained tokens of the minibatch of  loss + kl_weight KL - entropy_weight H

Each micro-batch contributes its sum divided by the number of tokens of the minibatch, so the gradient does
not depend on how rows are cut into micro-batches. Rows are right-padded: with causal attention no trained
token attends to padding, so no attention mask is passed and attention can use its fastest kernel. Where the
model's layers need none either, none is built, so that the forward pass does not wait for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mapo.errors import InputError
from mapo.local_model.attention import without_mask
from mapo.local_model.layers import evaluating
from mapo.train.batch import MicroBatch
from mapo.train.head import head_scores

# exp(20) is beyond every clip but finite; an infinite ratio times a zero gradient would be NaN.
_LOG_RATIO_LIMIT = 20.0

Stats = dict[str, Tensor]
"""Sums over the tokens of a micro-batch (`ratio_max`: the maximum), on the device until `mean_stats`."""


class TokenScores(NamedTuple):
    """Log-probabilities of tokens and entropies of the distributions they were drawn from, float32, flat."""

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
) -> TokenScores:
    """Return the log-probabilities of the tokens of right-padded `ids` [rows, length] that `mask` selects.

    The distribution is the one that was sampled from: softmax(logits / temperature). The first token of a
    row has no prediction and cannot be selected.

    at: the selected positions in the flattened ids, if known; finding them synchronises with the device.
    chunk: number of tokens whose logits exist at the same time.
    compiled: use torch.compile for the arithmetic on chunks.
    """
    if not temperature > 0:
        raise InputError(
            f"the temperature is {temperature}", fix="Use one above 0: greedy tokens have no log-probability"
        )
    if at is None:
        if bool(mask[:, 0].any()):
            raise InputError("the mask selects the first token of a row, which has no prediction")
        at = mask.flatten().nonzero().squeeze(-1)
    targets = ids.flatten().index_select(0, at)
    body, head = body_and_head(model)
    if head is None:
        with without_mask(body):
            logits = model(input_ids=ids, use_cache=False).logits
        logits = logits.flatten(0, 1).index_select(0, at - 1)
        return _scores_of(logits, targets, temperature, entropy)
    with without_mask(body):
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
    return TokenScores(logp, entropies)


def _scores_of(logits: Tensor, targets: Tensor, temperature: float, entropy: bool) -> TokenScores:
    logp = torch.log_softmax(logits.float() / temperature, dim=-1)
    # A token with log-probability -inf contributes 0 to the entropy; 0 * inf would be NaN.
    entropies = -(logp.exp() * logp.clamp(min=-1e4)).sum(-1) if entropy else None
    return TokenScores(logp.gather(-1, targets[:, None]).squeeze(-1), entropies)


_HEAD_GIVES_LOGITS: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def body_and_head(model: nn.Module) -> tuple[nn.Module, nn.Linear | None]:
    """Return the transformer body and the linear head, or None as head if the logits are not its output.

    Some models transform their logits further (Gemma 2, Granite, Cohere). They are detected once by comparing
    outputs, and then use their own forward pass.
    """
    inner: Any = model
    if hasattr(model, "get_base_model"):  # peft: the same model with adapters
        inner = inner.get_base_model()
    body, head = inner.base_model, inner.get_output_embeddings()
    if type(head) is not nn.Linear or body is inner:  # an adapter on the head, or no separate head
        return body, None
    if inner not in _HEAD_GIVES_LOGITS:
        _HEAD_GIVES_LOGITS[inner] = _head_gives_logits(inner, body, head)
    return body, head if _HEAD_GIVES_LOGITS[inner] else None


@torch.no_grad()
def _head_gives_logits(inner: nn.Module, body: nn.Module, head: nn.Linear) -> bool:
    """Compare the model's logits with the output of its head on four tokens."""
    with evaluating(inner):
        ids = torch.arange(4, device=head.weight.device)[None]
        from_head = head(body(input_ids=ids, use_cache=False).last_hidden_state)
        return torch.equal(from_head, inner(input_ids=ids, use_cache=False).logits)


class Surrogate(NamedTuple):
    """Loss of each token, and whether a clip has cut off its gradient."""

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
) -> Surrogate:
    """Return the clipped surrogate loss of each token (PPO, arXiv:1707.06347).

    The clips are asymmetric (arXiv:2503.14476). With the dual clip (arXiv:1912.09729), a token with a
    negative advantage costs at most `dual` times |A|, however much more likely it has become.
    """
    ratio = torch.exp((logp - old).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT))
    unclipped = -advantage * ratio
    loss = torch.maximum(unclipped, -advantage * ratio.clamp(1.0 - low, 1.0 + high))
    negative = advantage < 0
    loss = torch.where(negative, torch.minimum(loss, -advantage * dual), loss)
    clipped_positive = (advantage > 0) & (ratio > 1.0 + high)
    clipped_negative = negative & ((ratio < 1.0 - low) | (ratio > dual))
    return Surrogate(loss, clipped_positive | clipped_negative)


def kl_to(logp: Tensor, other: Tensor) -> Tensor:
    """Estimate KL(policy || other) from tokens sampled from the policy: r - 1 - log r, r = other / policy.

    Schulman's k3: unbiased like log(policy / other), but never negative and less noisy.
    """
    log_r = (other - logp).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    return torch.expm1(log_r) - log_r


def policy_loss(
    model: nn.Module,
    micro: MicroBatch,
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
    """Return the contribution of a micro-batch to the loss, and its statistics.

    `total` is the number of trained tokens of the minibatch, over all micro-batches and processes.
    `reference` holds the log-probabilities of the micro-batch's trained tokens under the reference model,
    flat; if it is given, the KL divergence is measured even if its weight is 0. Nothing in here synchronises
    with the device.
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
    log_ratio = (logp - old).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    smallest = log_ratio.new_full((1,), -_LOG_RATIO_LIMIT)  # for a micro-batch without tokens
    stats = {
        "tokens": log_ratio.new_full((), log_ratio.numel()),
        # The tokens were sampled from the old policy: KL(old || new) = E[ratio - 1 - log ratio].
        "kl_old": (torch.expm1(log_ratio) - log_ratio).sum(),
        "drift": log_ratio.abs().sum(),
        "ratio_max": torch.cat([log_ratio, smallest]).amax().exp(),
    }
    if reference is not None:
        # The plain log-ratio: k3 is dominated by outliers once the policies differ much.
        stats["kl_ref"] = (logp - reference).sum()
    return stats


def mean_stats(parts: Sequence[Stats]) -> dict[str, float]:
    """Return the means over all tokens of the micro-batches of an update. This synchronises with the device.

    `drift` is the mean |log-probability now - log-probability when sampled|. In the first update of a batch
    it must be within rounding; otherwise sampler and trainer disagree about the policy.
    """
    if not parts:
        return {}
    numbers = iter(torch.stack([value for part in parts for value in part.values()]).tolist())
    sums = [{name: next(numbers) for name in part} for part in parts]
    means = {"tokens": sum(s["tokens"] for s in sums), "ratio_max": max(s["ratio_max"] for s in sums)}
    for name in sorted({name for s in sums for name in s} - set(means)):
        measured = [s for s in sums if name in s]  # kl_ref may be measured in some micro-batches only
        means[name] = sum(s[name] for s in measured) / max(sum(s["tokens"] for s in measured), 1.0)
    means["clip_fraction"] = means.pop("clipped")
    return means
