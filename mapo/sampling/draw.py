"""Drawing tokens: replies to begin, where each slot stands in its own, kept on the device, and the dice.

All that changes between two tokens of a reply is one row of `SlotTable.state`, so a decode step never has to
ask the host. Chance comes from outside: one uniform number a token, uploaded before the reply begins and
put through the inverse of the cumulative distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from mapo.errors import TrainError

TOKEN, POSITION, DRAWN, ACTIVE, LIMIT = range(5)
_STRIP = 256  # ids are searched strip by strip, so that no cumulative sum runs over a whole vocabulary
Flags = tuple[bool, bool]
"""(some row is greedy, some row has a top_p)."""


@dataclass(frozen=True, slots=True)
class PendingReply:
    """A reply to begin: `ids` enter the slot at `start`; `noise` has a number for each token it may have."""

    slot: int
    start: int
    ids: Sequence[int]
    noise: NDArray[np.float32]
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What a slot said in a round; `done` once it has said an end mark or all it may."""

    ids: list[int]
    logprobs: list[float]
    done: bool


def batch_by_length(fresh: Sequence[PendingReply], budget: int) -> list[list[PendingReply]]:
    """Prompts of like length together, so that little is padding, and few enough to fit in memory."""
    found: list[list[PendingReply]] = []
    for f in sorted(fresh, key=lambda f: (-len(f.ids), f.slot)):
        widest = len(found[-1][0].ids) if found else 0
        if found and (len(found[-1]) + 1) * widest <= budget and widest <= 2 * len(f.ids) + 16:
            found[-1].append(f)
        else:
            found.append([f])
    return found


def pack_rows(fresh: Sequence[PendingReply], budget: int) -> list[list[PendingReply]]:
    """Prompts that make a line of at most `budget` ids together (a longer one is alone)."""
    found: list[list[PendingReply]] = []
    room = 0
    for f in sorted(fresh, key=lambda f: f.slot):
        if len(f.ids) > room:
            found.append([])
            room = budget
        found[-1].append(f)
        room -= len(f.ids)
    return found


def noise_of(seed: int, count: int) -> NDArray[np.float32]:
    """`count` numbers in [0, 1) that depend on the seed and their index alone."""
    generator = np.random.Generator(np.random.Philox(key=seed % 2**128))
    return generator.random(count, dtype=np.float32)


def sample(
    logits: torch.Tensor,
    noise: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor | None = None,
    *,
    greedy: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and their log-probs in the distribution they were drawn from: [B, V], [B], [B] -> [B], [B].

    token = the first id whose cumulative probability exceeds noise. A temperature of 0 (`greedy`: some row
    has it) takes the likeliest, with its log-prob at temperature 1; `top_p` keeps the likeliest ids only.
    """
    cold = temperature <= 0
    x = logits.float() / torch.where(cold, 1.0, temperature)[:, None]
    if top_p is not None:
        x = _nucleus(x, torch.where(cold, 1.0, top_p))
    rows, size = x.shape
    if size % _STRIP:
        x = torch.nn.functional.pad(x, (0, -size % _STRIP), value=float("-inf"))
    wide = x.view(rows, -1, _STRIP)
    # No probability but those of the strip that was hit is ever written down: what is left are two sums over
    # the logits, strip by strip, which keep the whole card busy however few rows there are.
    top = wide.amax(-1).amax(-1)[:, None]
    strips = (wide - top[:, :, None]).exp().sum(-1).cumsum(-1)
    total = strips[:, -1:]
    # Just below the total, so that rounding can never point past the last id that has any probability.
    target = torch.minimum(noise[:, None] * total, total * (1 - 1e-6))
    strip = torch.searchsorted(strips, target, right=True).clamp(max=strips.shape[1] - 1)
    before = strips.gather(1, (strip - 1).clamp(min=0)) * (strip > 0)
    inside = wide.gather(1, strip[:, :, None].expand(-1, -1, _STRIP))[:, 0]
    inner = (inside - top).exp().cumsum(-1)
    rest = torch.minimum(target - before, inner[:, -1:] * (1 - 1e-6))
    token = strip * _STRIP + torch.searchsorted(inner, rest, right=True).clamp(max=_STRIP - 1)
    if greedy:
        token = torch.where(cold[:, None], x.argmax(-1, keepdim=True), token)
    token = token.clamp(max=size - 1)  # logits that are no numbers point anywhere
    return token[:, 0], (x.gather(1, token) - top - total.log())[:, 0]


def _nucleus(x: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """-inf for all but the likeliest ids, as few as have a probability of `top_p` together."""
    weight = x.softmax(-1)
    ordered = weight.sort(-1, descending=True).values
    kept = ((ordered.cumsum(-1) - ordered) < top_p[:, None]).sum(-1, keepdim=True).clamp(min=1)
    return x.masked_fill(weight < ordered.gather(1, kept - 1), float("-inf"))


class SlotTable:
    """The slots' replies on the device, one row each; the last row is scratch, where padding goes."""

    def __init__(
        self, slots: int, context: int, vocabulary: int, ends: frozenset[int], device: torch.device
    ) -> None:
        self.slots, self.context, self.device = slots, context, device
        self.state = torch.zeros(slots + 1, 5, dtype=torch.int64, device=device)
        self.heat = torch.ones(slots + 1, 2, device=device)
        self.noise = torch.zeros(slots + 1, context + 1, device=device)
        self.ids = torch.zeros(slots + 1, context + 1, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(slots + 1, context + 1, device=device)
        self.ends = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        self.ends[[token for token in ends if token < vocabulary]] = True
        # What the host knows: where the next id would stand, ids read of this reply, ids it may still have.
        self.at, self.seen, self.left = [0] * slots, [0] * slots, [0] * slots
        self._kind: list[Flags] = [(False, False)] * slots

    def begin(self, group: Sequence[PendingReply]) -> None:
        """Upload what the replies of `group` need; their state follows from the prefill."""
        noise = np.zeros((len(group), max(len(f.noise) for f in group)), dtype=np.float32)
        for row, f in zip(noise, group, strict=True):
            row[: len(f.noise)] = f.noise
            self.at[f.slot], self.seen[f.slot], self.left[f.slot] = f.start + len(f.ids), 0, len(f.noise)
            self._kind[f.slot] = (f.temperature <= 0, f.top_p < 1)
        slots = self.put([f.slot for f in group])
        self.noise[slots, : noise.shape[1]] = torch.from_numpy(noise).to(self.device)
        self.heat[slots] = torch.tensor([[f.temperature, f.top_p] for f in group]).to(self.device)

    def flags(self, rows: Sequence[int]) -> Flags:
        return any(self._kind[row][0] for row in rows), any(self._kind[row][1] for row in rows)

    def put(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64).to(self.device)

    def draw(
        self,
        slots: torch.Tensor,
        state: torch.Tensor,
        logits: torch.Tensor,
        flags: Flags,
        sample: Callable[..., tuple[torch.Tensor, torch.Tensor]] = sample,
    ) -> None:
        """The next token of each row that is talking; the others stand still. state [B, 5] is before it."""
        old, position, drawn, active, limit = state.unbind(1)
        heat, (greedy, nucleus) = self.heat[slots], flags
        token, logprob = sample(
            logits, self.noise[slots, drawn], heat[:, 0], heat[:, 1] if nucleus else None, greedy=greedy
        )
        token = torch.where(active > 0, token, old)
        self.ids[slots, drawn] = token
        self.logprobs[slots, drawn] = logprob
        after = drawn + active
        going = active * ~self.ends[token] * (after < limit)
        self.state[slots] = torch.stack([token, position + active, after, going, limit], 1)

    def moved(self, rows: Sequence[int], steps: int) -> None:
        for row in rows:
            self.at[row] += steps

    def read(self, rows: list[int], most: int) -> dict[int, SampledTokens]:
        """What the rows have said since the host last looked, at most `most` tokens, in one copy."""
        slots, seen = self.put(rows), self.put([self.seen[row] for row in rows])
        at = (seen[:, None] + torch.arange(most, device=self.device)).clamp(max=self.context)
        parts = [
            self.state[slots].double(),
            self.ids[slots].gather(1, at).double(),
            self.logprobs[slots].gather(1, at).double(),
        ]
        found = {}
        for row, line in zip(rows, torch.cat(parts, 1).tolist(), strict=True):
            state, ids, logprobs = line[:5], line[5 : 5 + most], line[5 + most :]
            new = int(state[DRAWN]) - self.seen[row]
            if not np.isfinite(logprobs[:new]).all():
                raise TrainError("the model's logits are not numbers (NaN)", fix="Lower the learning rate")
            self.at[row], self.seen[row] = int(state[POSITION]), int(state[DRAWN])
            self.left[row] -= new
            found[row] = SampledTokens([int(x) for x in ids[:new]], logprobs[:new], done=not state[ACTIVE])
        return found
