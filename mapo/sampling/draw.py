"""Sampling tokens: pending replies, their state per slot on the device, and the sampling function.

Between two tokens of a reply only one row of `SlotTable.state` changes, so a decode step never waits for the
host. Randomness is an input: one uniform number per token, uploaded before the reply starts and mapped
through the inverse of the cumulative distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from mapo.errors import TrainError
from mapo.sampling.guides import Guide

TOKEN, POSITION, DRAWN, ACTIVE, LIMIT = range(5)
_STRIP = 256  # ids are searched in strips, so that no cumulative sum runs over the whole vocabulary
Flags = tuple[bool, bool]
"""Whether any row is greedy, and whether any row has a top_p below 1."""


@dataclass(frozen=True, slots=True)
class PendingReply:
    """A reply to start. `ids` are prefilled into the slot from position `start`; `noise` has one number per
    token that the reply may have; a `guide` restricts its tokens."""

    slot: int
    start: int
    ids: Sequence[int]
    noise: NDArray[np.float32]
    temperature: float = 1.0
    top_p: float = 1.0
    guide: Guide | None = None


@dataclass(frozen=True, slots=True)
class PendingRead:
    """Answers to read out. `ids` are prefilled into the slot from position `start`; the logits at their
    indices `reads` give the log-probabilities of the ids in `options`."""

    slot: int
    start: int
    ids: Sequence[int]
    reads: Sequence[int]
    options: Sequence[Sequence[int]]

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where to read, counted from the end."""
        return tuple(len(self.ids) - at for at in self.reads)


@dataclass(frozen=True, slots=True)
class GuidedStep:
    """The next step of a reply with a guide: `ids` are fed to the model from position `start`, then token
    number `drawn` is sampled. The reply may have `limit` tokens."""

    slot: int
    start: int
    ids: Sequence[int]
    drawn: int
    limit: int


LogProbs = tuple[tuple[float, ...], ...]
"""Log-probabilities of the options of each place."""
_Pending = TypeVar("_Pending", PendingReply, PendingRead, GuidedStep)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The tokens of one slot in a round; `done` after an end token or the last token allowed."""

    ids: list[int]
    logprobs: list[float]
    done: bool


def batch_by_length(fresh: Sequence[_Pending], budget: int) -> list[list[_Pending]]:
    """Group prompts of similar length, to limit padding, into batches of at most `budget` padded ids."""
    batches: list[list[_Pending]] = []
    for f in sorted(fresh, key=lambda f: (-len(f.ids), f.slot)):
        widest = len(batches[-1][0].ids) if batches else 0
        if batches and (len(batches[-1]) + 1) * widest <= budget and widest <= 2 * len(f.ids) + 16:
            batches[-1].append(f)
        else:
            batches.append([f])
    return batches


def pack_rows(fresh: Sequence[_Pending], budget: int) -> list[list[_Pending]]:
    """Group prompts into packed rows of at most `budget` ids; a longer prompt gets a row of its own."""
    packed: list[list[_Pending]] = []
    room = 0
    for f in sorted(fresh, key=lambda f: f.slot):
        if len(f.ids) > room:
            packed.append([])
            room = budget
        packed[-1].append(f)
        room -= len(f.ids)
    return packed


def noise_of(seed: int, count: int) -> NDArray[np.float32]:
    """Return `count` numbers in [0, 1) that depend only on the seed and their index."""
    generator = np.random.Generator(np.random.Philox(key=seed % 2**128))
    return generator.random(count, dtype=np.float32)


def sample(
    logits: torch.Tensor,
    noise: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor | None = None,
    *,
    greedy: bool = False,
    masked: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample tokens and return them with their log-probabilities: [B, V], [B], [B] -> [B], [B].

    token = the first id whose cumulative probability exceeds noise. Temperature 0 (`greedy`: some row has it)
    takes the most likely id, with its log-probability at temperature 1. `top_p` keeps only the most likely
    ids; log-probabilities are those of the distribution that was sampled from. `masked`: some logits are
    -inf.
    """
    is_greedy = temperature <= 0
    x = logits.float() / torch.where(is_greedy, 1.0, temperature)[:, None]
    if top_p is not None:
        x = _nucleus(x, torch.where(is_greedy, 1.0, top_p))
    rows, size = x.shape
    if size % _STRIP:
        x = torch.nn.functional.pad(x, (0, -size % _STRIP), value=float("-inf"))
    wide = x.view(rows, -1, _STRIP)
    # Probabilities are stored only for the selected strip. The rest are two sums over the logits by strip,
    # which keep the whole GPU busy even with few rows.
    top = wide.amax(-1).amax(-1)[:, None]
    strips = (wide - top[:, :, None]).exp().sum(-1).cumsum(-1)
    total = strips[:, -1:]
    # Stay just below the total, so that rounding never selects an id past the last one with probability > 0.
    target = torch.minimum(noise[:, None] * total, total * (1 - 1e-6))
    strip = torch.searchsorted(strips, target, right=True).clamp(max=strips.shape[1] - 1)
    before = strips.gather(1, (strip - 1).clamp(min=0)) * (strip > 0)
    inside = wide.gather(1, strip[:, :, None].expand(-1, -1, _STRIP))[:, 0]
    inner = (inside - top).exp().cumsum(-1)
    rest = torch.minimum(target - before, inner[:, -1:] * (1 - 1e-6))
    token = strip * _STRIP + torch.searchsorted(inner, rest, right=True).clamp(max=_STRIP - 1)
    if greedy:
        token = torch.where(is_greedy[:, None], x.argmax(-1, keepdim=True), token)
    token = token.clamp(max=size - 1)  # NaN logits can give any index
    if top_p is not None or masked:
        # A GPU adds the strips in parallel, so the running sum may differ across strips without any
        # probability, and one of them may be selected.
        token = torch.where(x.gather(1, token).isneginf(), x.argmax(-1, keepdim=True), token)
    return token[:, 0], (x.gather(1, token) - top - total.log())[:, 0]


def _nucleus(x: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Set all logits to -inf except those of the fewest most likely ids whose probabilities reach `top_p`."""
    weight = x.softmax(-1)
    ordered = weight.sort(-1, descending=True).values
    count = ((ordered.cumsum(-1) - ordered) < top_p[:, None]).sum(-1, keepdim=True).clamp(min=1)
    return x.masked_fill(weight < ordered.gather(1, count - 1), float("-inf"))


def unpack(bits: torch.Tensor, size: int) -> torch.Tensor:
    """Return the bits of 32-bit words as booleans: [B, words] -> [B, size]."""
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    return ((bits[:, :, None] >> shifts) & 1).flatten(1)[:, :size].bool()


class Options:
    """The options of all places of some reads, on the device. Made before the forward pass: a copy to the
    device waits for the work in progress."""

    def __init__(self, reads: Sequence[PendingRead], device: torch.device) -> None:
        self.reads = reads
        options = [list(ids) for read in reads for ids in read.options]
        most = max(map(len, options))
        self._index = torch.tensor([ids + ids[:1] * (most - len(ids)) for ids in options]).to(device)
        self._real = torch.tensor([[at < len(ids) for at in range(most)] for ids in options]).to(device)

    def scores(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the log-probabilities, normalised over the options of each place: [all places, vocabulary]
        -> [all places, options]."""
        chosen = logits.gather(1, self._index).float().masked_fill(~self._real, float("-inf"))
        return torch.log_softmax(chosen, -1)

    def answers(self, scores: torch.Tensor) -> dict[int, LogProbs]:
        """Return the answers by slot, when they have been computed."""
        rows = iter(scores.tolist())
        answers = {
            read.slot: tuple(tuple(next(rows)[: len(ids)]) for ids in read.options) for read in self.reads
        }
        if not all(np.isfinite(place).all() for answer in answers.values() for place in answer):
            raise TrainError("the model's logits are not numbers (NaN)", fix="Lower the learning rate")
        return answers


class SlotTable:
    """The state of the slots' replies on the device, one row per slot. Padding goes to the last row, which is
    scratch."""

    def __init__(
        self, slots: int, context: int, vocabulary: int, ends: frozenset[int], device: torch.device
    ) -> None:
        self.slots, self.context, self.device = slots, context, device
        self.state = torch.zeros(slots + 1, 5, dtype=torch.int64, device=device)
        self.sampling = torch.ones(slots + 1, 2, device=device)  # temperature, top_p
        self.noise = torch.zeros(slots + 1, context + 1, device=device)
        self.ids = torch.zeros(slots + 1, context + 1, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(slots + 1, context + 1, device=device)
        self.ends = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        self.ends[[token for token in ends if 0 <= token < vocabulary]] = True
        # On the host, per slot: position of the next id, ids of the reply read so far, ids still allowed.
        self.at, self.seen, self.left = [0] * slots, [0] * slots, [0] * slots
        self._flags: list[Flags] = [(False, False)] * slots

    def begin(self, group: Sequence[PendingReply]) -> None:
        """Upload noise and sampling parameters of the replies in `group`; the prefill sets their state."""
        noise = np.zeros((len(group), max(len(f.noise) for f in group)), dtype=np.float32)
        for row, f in zip(noise, group, strict=True):
            row[: len(f.noise)] = f.noise
            self.at[f.slot], self.seen[f.slot], self.left[f.slot] = f.start + len(f.ids), 0, len(f.noise)
            self._flags[f.slot] = (f.temperature <= 0, f.top_p < 1)
        slots = self.to_device([f.slot for f in group])
        self.noise[slots, : noise.shape[1]] = torch.from_numpy(noise).to(self.device)
        self.sampling[slots] = torch.tensor([[f.temperature, f.top_p] for f in group]).to(self.device)

    def flags(self, rows: Sequence[int]) -> Flags:
        return any(self._flags[row][0] for row in rows), any(self._flags[row][1] for row in rows)

    def to_device(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64).to(self.device)

    def draw(
        self,
        slots: torch.Tensor,
        state: torch.Tensor,
        logits: torch.Tensor,
        flags: Flags,
        sample: Callable[..., tuple[torch.Tensor, torch.Tensor]] = sample,
        bits: torch.Tensor | None = None,
    ) -> None:
        """Sample the next token of each active row and update the state; `state` [B, 5] is the one before.
        `bits` [B, words] are the tokens that guides allow, 32 in a word."""
        if bits is not None:
            logits = logits.masked_fill(~unpack(bits, logits.shape[1]), float("-inf"))
        old, position, drawn, active, limit = state.unbind(1)
        sampling, (greedy, nucleus) = self.sampling[slots], flags
        token, logprob = sample(
            logits,
            self.noise[slots, drawn],
            sampling[:, 0],
            sampling[:, 1] if nucleus else None,
            greedy=greedy,
            masked=bits is not None,
        )
        token = torch.where(active > 0, token, old)
        self.ids[slots, drawn] = token
        self.logprobs[slots, drawn] = logprob
        after = drawn + active
        still_active = active * ~self.ends[token] * (after < limit)
        self.state[slots] = torch.stack([token, position + active, after, still_active, limit], 1)

    def force(self, row: int, tokens: Sequence[int], drawn: int, *, end: bool) -> None:
        """Add tokens that were not sampled to the reply in `row`, which has `drawn` ones; `end` it."""
        if tokens:
            after = drawn + len(tokens)
            self.ids[row, drawn:after] = self.to_device(tokens)
            self.logprobs[row, drawn:after] = 0.0
        if end:
            self.state[row, DRAWN : ACTIVE + 1] = self.to_device([drawn + len(tokens), 0])

    def advance(self, rows: Sequence[int], steps: int) -> None:
        """Count decode steps in the host's copy of the positions."""
        for row in rows:
            self.at[row] += steps

    def read(self, rows: list[int], most: int) -> dict[int, SampledTokens]:
        """Return the tokens of `rows` since the last read, at most `most` each, in one copy to the host."""
        slots, seen = self.to_device(rows), self.to_device([self.seen[row] for row in rows])
        at = (seen[:, None] + torch.arange(most, device=self.device)).clamp(max=self.context)
        parts = [
            self.state[slots].double(),
            self.ids[slots].gather(1, at).double(),
            self.logprobs[slots].gather(1, at).double(),
        ]
        tokens = {}
        for row, line in zip(rows, torch.cat(parts, 1).tolist(), strict=True):
            state, ids, logprobs = line[:5], line[5 : 5 + most], line[5 + most :]
            new = int(state[DRAWN]) - self.seen[row]
            if not np.isfinite(logprobs[:new]).all():
                raise TrainError("the model's logits are not numbers (NaN)", fix="Lower the learning rate")
            self.at[row], self.seen[row] = int(state[POSITION]), int(state[DRAWN])
            self.left[row] -= new
            tokens[row] = SampledTokens([int(x) for x in ids[:new]], logprobs[:new], done=not state[ACTIVE])
        return tokens
