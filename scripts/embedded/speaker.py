"""Sample many replies to many prompts from a Hugging Face causal language model, in static batches.

Replies to the same prompt share its KV cache: the prompt is prefilled once and its keys are never copied. The transformers
forward runs as it is; only its attention function is replaced. Causal models with full attention work, with or without
grouped heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "shared_prompt"
LIKELIEST = 256
"""With a top_p below 1, tokens are drawn from among this many at most."""
LOOK_EVERY = 4
"""Decode steps between two looks at whether all replies have ended; each look waits for the GPU."""
Ids = Sequence[int]
Head = Callable[[torch.Tensor], torch.Tensor]
"""Maps hidden states [rows, width] to probabilities [rows]."""


def batches(sizes: Sequence[int], count: int) -> Iterator[list[int]]:
    """Yield the indices of prompts in batches of up to `count` of similar sizes, the longest first."""
    order = sorted(range(len(sizes)), key=lambda n: -sizes[n])
    yield from (order[k : k + count] for k in range(0, len(order), count))


def padded(rows: Sequence[Ids], device: torch.device | str) -> tuple[torch.Tensor, list[int]]:
    """Return the ids of `rows` as one tensor, padded on the right, and their sizes."""
    width = max(map(len, rows))
    return torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in rows], device=device), [*map(len, rows)]


class SharedPrompts:
    """The keys and values of a batch of prompts, and those of `each` continuations of every prompt.

    While `reading` is true, the prompts themselves are read. Afterwards each forward pass adds ids to all continuations:
    `before` is how many positions they have so far, and `mask` is added to the scores of these and the new ones, [rows, 1, new ids,
    positions].
    """

    def __init__(self, sizes: torch.Tensor, width: int) -> None:
        self.reading, self.each = True, 1
        self.prompts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.prompt_mask = _mask(torch.arange(width, device=sizes.device) < sizes[:, None])[:, None, None]
        self.restart(1, 0)

    def restart(self, each: int, longest: int) -> None:
        """Begin `each` continuations of every prompt, of up to `longest` positions."""
        self.each, self.longest, self.before = each, longest, 0
        self.own: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.mask: torch.Tensor | None = None

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        if self.reading:
            self.prompts[layer] = key, value
            grouped = query.shape[1] != key.shape[1]
            return scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped
            )
        rows, heads, new, size = query.shape
        groups = key.shape[1]
        tiles = heads // groups
        own_keys, own_values = self._add(layer, key, value)
        prompt_keys, prompt_values = self.prompts[layer]
        prompts = len(prompt_keys)

        def by_prompt(x: torch.Tensor) -> torch.Tensor:
            """Arrange the queries of all continuations of a prompt, and of a group of heads, as further positions."""
            apart = x.view(prompts, self.each, groups, tiles * new, x.shape[-1])
            return apart.transpose(1, 2).reshape(prompts, groups, self.each * tiles * new, x.shape[-1])

        def by_row(x: torch.Tensor) -> torch.Tensor:
            apart = x.view(prompts, groups, self.each, tiles * new, x.shape[-1])
            return apart.transpose(1, 2).reshape(rows, groups, tiles * new, x.shape[-1])

        query = query.reshape(rows, groups, tiles * new, size) * scaling
        assert self.mask is not None
        to_prompt = by_row(by_prompt(query) @ prompt_keys.transpose(2, 3) + self.prompt_mask.to(query.dtype))
        to_own = query @ own_keys.transpose(2, 3) + self.mask.to(query.dtype).repeat(1, 1, tiles, 1)
        weights = torch.cat([to_prompt, to_own], -1).softmax(-1, dtype=torch.float32).to(value.dtype)
        shared, own = weights.split([to_prompt.shape[-1], to_own.shape[-1]], -1)
        out = by_row(by_prompt(shared) @ prompt_values) + own @ own_values
        return out.view(rows, heads, new, size)

    def _add(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values and return all of the continuations so far."""
        if layer not in self.own:
            rows, groups, _, size = key.shape
            self.own[layer] = tuple(key.new_zeros(rows, groups, self.longest, size) for _ in range(2))  # type: ignore[assignment]
        end = self.before + key.shape[2]
        for buffer, new in zip(self.own[layer], (key, value), strict=True):
            buffer[:, :, self.before : end] = new
        return self.own[layer][0][:, :, :end], self.own[layer][1][:, :, :end]


def _mask(visible: torch.Tensor) -> torch.Tensor:
    """Return what is added to scores: 0 where visible, otherwise a number so low that its weight is 0 in any precision."""
    return torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, -1e9)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001 - shared has its own
    *,
    scaling: float,
    shared: SharedPrompts,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    out = shared.attend(module.layer_idx, query, key, value, scaling)  # type: ignore[arg-type]
    return out.transpose(1, 2), None


AttentionInterface.register(NAME, _attend)


class Speaker:
    """Samples replies of a model, and reads their probabilities off its hidden states.

    `tokens` are the ids that may be sampled; with few of them, decode steps are faster. From then on the model works only
    in this class, because its attention function is another one.
    """

    def __init__(self, model: Any, tokens: Sequence[int]) -> None:
        model.set_attn_implementation(NAME)
        self.model, self.device = model, model.device
        self.tokens = torch.tensor(sorted(set(tokens)), device=self.device)
        output = model.get_output_embeddings()
        bias = getattr(output, "bias", None)
        every = len(self.tokens) == len(output.weight)
        self.weight = output.weight if every else output.weight[self.tokens]
        self.bias = bias if every or bias is None else bias[self.tokens]

    @torch.inference_mode()
    def speak(
        self,
        prompts: torch.Tensor,
        sizes: Sequence[int],
        forced: Sequence[Ids] | None,
        each: int,
        longest: int,
        end: int,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        head: Head | None = None,
        mark: Ids = (),
    ) -> tuple[list[list[int]], list[float] | None]:
        """Return `each` sampled replies per prompt, those of the first prompt first, and their probabilities if there is a
        head.

        `prompts` are ids padded on the right, `sizes` how many of a row count (`padded`). A reply begins with its ids in
        `forced`, one row per reply, which are not returned; neither is the id `end`, at which it stops. A reply that has not
        ended after `longest` sampled ids is dropped: its place is empty and its probability 0. The head reads the last
        hidden state of `mark`, reply and end, without the forced ids.
        """
        shared, hidden = self._prefill(prompts, sizes)
        lengths = torch.tensor(sizes, device=self.device).repeat_interleave(each)
        hidden = hidden.repeat_interleave(each, 0)
        rows, width = len(lengths), max(map(len, forced)) if forced else 0
        shared.restart(each, width + longest)
        visible = torch.ones(rows, width + longest, dtype=torch.bool, device=self.device)
        if forced:
            if len(forced) != rows or not all(forced):
                raise ValueError(f"speak needs {rows} rows of forced ids, none of them empty.")
            empty = torch.tensor([width - len(ids) for ids in forced], device=self.device)
            ids = torch.tensor([[*[0] * (width - len(ids)), *ids] for ids in forced], device=self.device)
            visible[:, :width] = torch.arange(width, device=self.device) >= empty[:, None]
            hidden = self._extend(shared, ids, lengths - empty, visible)[:, -1]
            lengths = lengths + width - empty
        drawn = torch.full((rows, longest), end, device=self.device)
        done = torch.zeros(rows, dtype=torch.bool, device=self.device)
        for step in range(longest):
            logits = linear(hidden, self.weight, self.bias)
            token = self.tokens[_draw(logits.float(), temperature, top_p)].masked_fill(done, end)
            drawn[:, step] = token
            done |= token == end
            if step + 1 == longest or ((step + 1) % LOOK_EVERY == 0 and bool(done.all())):
                break
            hidden = self._extend(shared, token[:, None], lengths + step, visible)[:, -1]
        replies = [row[: row.index(end)] if end in row else [] for row in drawn.tolist()]
        if head is None:
            return replies, None
        rated = self._rate(shared, sizes, replies, each, end, head, mark)
        return replies, [p if ended else 0.0 for p, ended in zip(rated, done.tolist(), strict=True)]

    @torch.inference_mode()
    def rate(
        self,
        prompts: torch.Tensor,
        sizes: Sequence[int],
        replies: Sequence[Sequence[Ids]],
        end: int,
        head: Head,
        mark: Ids = (),
    ) -> list[list[float]]:
        """Return the probability of each reply to each prompt, as `speak` does with a head."""
        shared, _ = self._prefill(prompts, sizes)
        each = max(1, *map(len, replies))
        rows = [ids for some in replies for ids in [*some, *[()] * (each - len(some))]]
        rated = self._rate(shared, sizes, rows, each, end, head, mark)
        return [rated[n * each : n * each + len(some)] for n, some in enumerate(replies)]

    def _prefill(self, prompts: torch.Tensor, sizes: Sequence[int]) -> tuple[SharedPrompts, torch.Tensor]:
        """Return the prompts' keys and values, and the hidden state at the end of each."""
        count, width = prompts.shape
        ends = torch.tensor(sizes, device=self.device)
        shared = SharedPrompts(ends, width)
        positions = torch.arange(width, device=self.device).expand(count, width)
        hidden = self._forward(shared, prompts, positions)[torch.arange(count, device=self.device), ends - 1]
        shared.reading = False
        return shared, hidden

    def _extend(
        self, shared: SharedPrompts, ids: torch.Tensor, starts: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        """Add ids to the continuations, from the positions `starts` on, and return their hidden states. `visible` says
        which positions of the continuations count, [rows, longest]."""
        new, before = ids.shape[1], shared.before
        places = torch.arange(before + new, device=self.device)
        causal = places <= torch.arange(before, before + new, device=self.device)[:, None]
        shared.mask = _mask(causal & visible[:, None, : before + new])[:, None]
        positions = (starts[:, None] + torch.arange(new, device=self.device)).clamp(min=0)
        hidden = self._forward(shared, ids, positions)
        shared.before += new
        return hidden

    def _rate(
        self,
        shared: SharedPrompts,
        sizes: Sequence[int],
        replies: Sequence[Ids],
        each: int,
        end: int,
        head: Head,
        mark: Ids,
    ) -> list[float]:
        ids, lengths = padded([[*mark, *reply, end] for reply in replies], self.device)
        shared.restart(each, ids.shape[1])
        starts = torch.tensor(sizes, device=self.device).repeat_interleave(each)
        hidden = self._extend(shared, ids, starts, torch.ones_like(ids, dtype=torch.bool))
        last = torch.tensor(lengths, device=self.device) - 1
        return head(hidden[torch.arange(len(ids), device=self.device), last]).tolist()

    def _forward(self, shared: SharedPrompts, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        body = self.model.get_decoder()
        return body(input_ids=ids, position_ids=positions, use_cache=False, shared=shared).last_hidden_state


def _draw(logits: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    """Return the index that is drawn in each row; the likeliest one if the temperature is 0."""
    if not temperature:
        return logits.argmax(-1)
    logprobs = (logits / temperature).log_softmax(-1)
    if top_p >= 1.0:
        return _sampled(logprobs)
    top, index = logprobs.topk(min(LIKELIEST, logprobs.shape[-1]))
    before = top.exp().cumsum(-1) - top.exp()
    kept = top.masked_fill(before >= top_p, float("-inf"))
    return index.gather(-1, _sampled(kept)[:, None])[:, 0]


def _sampled(logprobs: torch.Tensor) -> torch.Tensor:
    """Sample in proportion to exp(logprobs): the first of independent exponential clocks with these rates."""
    return (logprobs - torch.empty_like(logprobs).exponential_().log()).argmax(-1)
