"""The decoder: batched prefill and decode steps for many dialogues.

A round prefills the new ids of some slots (several dialogues at once, each attending to its own cached past),
samples their first token, then makes up to `chunk` decode steps for every active slot. On a GPU a complete
step, including sampling, is one CUDA graph, and the host reads the results once per round; on a CPU, finished
rows leave the batch immediately. Replies with a guide are decoded in a batch of their own: before each step,
the host computes which tokens are allowed, and adds those that are forced.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any, Literal

import torch

from mapo.errors import InputError
from mapo.sampling.draw import (
    ACTIVE,
    POSITION,
    Flags,
    GuidedStep,
    LogProbs,
    Options,
    PendingRead,
    PendingReply,
    SampledTokens,
    SlotTable,
    batch_by_length,
    pack_rows,
    sample,
)
from mapo.sampling.graphs import Fuser, graphs_for, out_of_memory, round_up
from mapo.sampling.guides import Guide, allowed_tokens
from mapo.sampling.kv_cache import PackedRows, SlotCache, View, configs_of, kernels, slot_attention
from mapo.sampling.prefixes import PrefixCopy
from mapo.sampling.streamed.layers import MAX_ROWS, StreamedLayers, streamed_layers_for
from mapo.sampling.streamed.packed import PackedLayers, packed_layers_for

Attention = Literal["auto", "triton", "sdpa"]
STREAMED = "streamed weights"  # name of the streamed layers in logs and manifests
_MODEL_LAYERS = "the model's own layers"
_CHECK_LENGTH = 72  # ids per checked sequence on a GPU: more than one block of keys
_CHECK_STEPS = 2  # of them, decoded one at a time
_BOTH = f"{STREAMED} with torch.compile"
_MAX_PACKED = 16384  # ids of one packed row on a GPU
_MAX_RECORDED_PREFILL = 4096  # a prefill of more ids keeps the GPU busy without a CUDA graph


@dataclass(slots=True)
class Stats:
    """Counters of the decoder. `reused` counts ids that were already in the cache, `streamed` the decode
    steps with streamed weights; `rows` is the sum of the rows of all decode steps, `reads` the number of
    forms whose answers were read out."""

    sampled: int = 0
    prefilled: int = 0
    reused: int = 0
    steps: int = 0
    rows: int = 0
    streamed: int = 0
    reads: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    read_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return self.prefill_seconds + self.decode_seconds + self.read_seconds

    def clear(self) -> None:
        for counter in fields(self):
            setattr(self, counter.name, counter.default)


@dataclass(frozen=True, slots=True)
class StartedReads:
    """Forward passes in progress: the options of the reads of each, and their log-probabilities."""

    began: float
    passes: list[tuple[Options, torch.Tensor]] = field(default_factory=list)


class Decoder:
    """Decodes up to `slots` dialogues of at most `context` ids each, on the device of `model`.

    attention: "triton" (a GPU with Triton) or "sdpa".
    graphs: record the steps as CUDA graphs (GPU only).
    fuse: compile norms, MLPs and rotary embeddings while recording.
    stream: use streamed layers where model and GPU support them.

    A prompt and the longest reply to it must fit into the context of a slot.
    """

    def __init__(
        self,
        model: Any,
        *,
        slots: int,
        context: int,
        end_ids: frozenset[int],
        chunk: int = 8,
        attention: Attention = "auto",
        graphs: bool = True,
        fuse: bool = True,
        stream: bool = True,
    ) -> None:
        self.model, self.slots, self.context, self.chunk = model, slots, context, chunk
        self.device = next(model.parameters()).device
        self.cpu = self.device.type == "cpu"
        self.cache = SlotCache(slots, context)
        self.stats = Stats()
        self.graphs = graphs_for(self.device) if graphs else None
        self.fuser = Fuser(model, wanted=fuse and self.graphs is not None)
        self.kernels = kernels() if attention == "triton" or (attention == "auto" and not self.cpu) else None
        self.stream, self.disabled_reason = stream, ""  # why available streamed layers are not used
        self.streamed: StreamedLayers | None = None
        if stream and self.graphs is not None:
            self.streamed = streamed_layers_for(model, self.kernels)
        vocabulary = int(model.get_output_embeddings().weight.shape[0])
        self.table = SlotTable(slots, context, vocabulary, end_ids, self.device)
        self.configs = configs_of(model)
        self.packed_layers: PackedLayers | None = None
        self.reads_with_kernel = False  # until the check has shown that it works
        self._guides: dict[int, Guide] = {}
        self._guided: dict[int, GuidedStep] = {}  # the next step of each, by slot
        self._most_guided = 0  # tokens of a reply with a guide that are not read yet
        self._inputs: dict[Hashable, tuple[torch.Tensor, ...]] = {}
        self._method: dict[Hashable, str] = {}
        self._seen_shapes: set[Hashable] = set()
        self._too_large: set[Hashable] = set()
        self._weights = self._addresses()
        # Triton launches on the current device.
        with torch.cuda.device_of(next(model.parameters())):  # type: ignore[no-untyped-call]
            self._check()

    @property
    def packs_rows(self) -> bool:
        """Whether prompts are packed into one row without padding. With CUDA graphs, shapes have to recur."""
        return self.cpu and self.graphs is None

    @property
    def packs_reads(self) -> bool:
        """Whether prompts whose answers are read are packed, which on a GPU takes the attention kernel."""
        return self.packs_rows or self.reads_with_kernel

    @torch.no_grad()
    def round(self, fresh: Sequence[PendingReply], going: Sequence[int]) -> dict[int, SampledTokens]:
        """Prefill `fresh`, then decode these and the slots in `going`. Return the sampled tokens by slot."""
        self._prepare()
        rows = sorted([*going, *(f.slot for f in fresh)])
        began = time.perf_counter()
        guided = self._begin_guided(fresh)
        guided += [step for row in going if (step := self._guided.pop(row, None))]
        unguided = [row for row in rows if row not in self._guides]
        with slot_attention(self.configs):
            self._prefill_all([f for f in fresh if f.guide is None])
            if fresh and not self.cpu:
                torch.cuda.synchronize(self.device)
            middle = time.perf_counter()
            if self.graphs is None:
                self._advance(unguided)
            else:
                self._advance_recorded(unguided)
            self._advance_guided(guided)
            drawn = self.table.read(rows, max(self._most_guided, self.chunk + 1))
        self.stats.prefill_seconds += middle - began
        self.stats.decode_seconds += time.perf_counter() - middle
        self.stats.prefilled += sum(len(f.ids) for f in fresh)
        self.stats.reused += sum(f.start for f in fresh)
        self.stats.sampled += sum(len(d.ids) for d in drawn.values())
        return drawn

    def read(self, reads: Sequence[PendingRead]) -> dict[int, LogProbs]:
        """Prefill `reads` and return the log-probabilities of their options by slot."""
        return self.finish_reads(self.begin_reads(reads))

    @torch.no_grad()
    def begin_reads(self, reads: Sequence[PendingRead]) -> StartedReads:
        """Start the forward passes of `reads`. On a GPU they are still running when this returns."""
        self._prepare()
        started = StartedReads(time.perf_counter())
        with slot_attention(self.configs):
            if self.packs_reads:
                with self._packed_forward():
                    for row in pack_rows(reads, budget=2048 if self.cpu else _MAX_PACKED):
                        started.passes.append(self._read_packed(row))
            else:
                groups: dict[tuple[int, ...], list[PendingRead]] = {}
                for read in reads:  # a padded batch has its reads at the same places, counted from the end
                    groups.setdefault(read.offsets, []).append(read)
                for group in groups.values():
                    for batch in batch_by_length(group, budget=16384):
                        started.passes.append(self._read_batch(batch))
        self.stats.reads += len(reads)
        self.stats.prefilled += sum(len(read.ids) for read in reads)
        self.stats.reused += sum(read.start for read in reads)
        return started

    def finish_reads(self, started: StartedReads) -> dict[int, LogProbs]:
        """Wait for the forward passes and return the answers by slot."""
        answers: dict[int, LogProbs] = {}
        for options, scores in started.passes:
            answers |= options.answers(scores)
        self.stats.read_seconds += time.perf_counter() - started.began
        return answers

    @torch.no_grad()
    def copy_prefixes(self, copies: Sequence[PrefixCopy]) -> None:
        """Copy beginnings of prompts between slots, in order."""
        self._prepare()
        for (source, count), group in groupby(copies, key=lambda copy: (copy.source, copy.count)):
            self.cache.copy(source, [copy.target for copy in group], count)

    def _prepare(self) -> None:
        if not self.cpu:
            torch.cuda.set_device(self.device)
        if self.model.training:
            self.model.eval()

    def forget(self) -> None:
        """Clear the cache after the weights have changed."""
        self.cache.clear()
        if self.graphs is not None and self._addresses() != self._weights:
            # the recorded graphs point at the old weights
            self.graphs, self._weights = graphs_for(self.device), self._addresses()
        if self.packed_layers is not None and self.packed_layers.incompatibility():
            self.packed_layers = None  # the model was changed

    def forward(self, ids: torch.Tensor, view: View | PackedRows) -> torch.Tensor:
        """Return the logits after the last id of each row or packed prompt."""
        if isinstance(view, PackedRows):
            return self._logits(ids, view, view.last)[0]
        return self._logits(ids, view, 1)[:, -1]

    def _logits(self, ids: torch.Tensor, view: View | PackedRows, keep: int | torch.Tensor) -> torch.Tensor:
        """Return the logits at the last `keep` positions of each row, or at the indices `keep`."""
        self.cache.view = view
        out = self.model(
            input_ids=ids,
            position_ids=view.positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: torch.Tensor = out.logits
        return logits

    # ---- reads

    def _read_packed(self, reads: Sequence[PendingRead]) -> tuple[Options, torch.Tensor]:
        """Read forms of any length, in one row without padding."""
        pieces = [(read.slot, read.start, len(read.ids)) for read in reads]
        view = PackedRows(pieces, self.device, fused=self.kernels if self.reads_with_kernel else None)
        ends = (view.last + 1).tolist()
        keep = [end - offset for end, read in zip(ends, reads, strict=True) for offset in read.offsets]
        ids, indices = (self.table.to_device(x) for x in ([t for read in reads for t in read.ids], keep))
        options = Options(reads, self.device)
        return options, options.scores(self._logits(ids[None], view, indices)[0])

    def _read_batch(self, reads: Sequence[PendingRead]) -> tuple[Options, torch.Tensor]:
        """Read forms with the same places, in rows padded on the left."""
        width = max(len(read.ids) for read in reads)
        length = max(read.start + len(read.ids) for read in reads)
        ids = torch.zeros(len(reads), width, dtype=torch.int64)
        for row, read in zip(ids, reads, strict=True):
            row[width - len(read.ids) :] = torch.tensor(read.ids)
        meta = torch.tensor([[read.slot, read.start, len(read.ids)] for read in reads])
        slots, start, count = meta.to(self.device).unbind(1)
        ids, view = ids.to(self.device), self._left_padded(slots, start, count, width, length)
        keep = self.table.to_device([width - offset for offset in reads[0].offsets])
        options = Options(reads, self.device)
        return options, options.scores(self._logits(ids, view, keep).flatten(0, 1))

    def _left_padded(
        self, slots: torch.Tensor, start: torch.Tensor, count: torch.Tensor, width: int, length: int
    ) -> View:
        """Return the view of rows of `count` new ids after `start`, padded on the left to `width`."""
        offset = torch.arange(width, device=slots.device) - (width - count)[:, None]
        positions = (start[:, None] + offset).clamp(min=0)
        return View(slots, positions, length, scratch=self.slots, real=offset >= 0)

    # ---- prefill

    def _prefill_all(self, fresh: Sequence[PendingReply]) -> None:
        """Prefill replies without a guide."""
        if self.packs_rows:
            for row in pack_rows(fresh, budget=2048):
                self._prefill_packed(row)
        else:
            for group in batch_by_length(fresh, budget=16384):
                self._prefill_batch(group)

    def _prefill_packed(self, replies: Sequence[PendingReply]) -> None:
        self.table.begin(replies)
        view = PackedRows([(f.slot, f.start, len(f.ids)) for f in replies])
        logits = self.forward(torch.tensor([[token for f in replies for token in f.ids]]), view)
        state = [[f.ids[-1], f.start + len(f.ids) - 1, 0, 1, len(f.noise)] for f in replies]
        slots = [f.slot for f in replies]
        self.table.draw(self.table.to_device(slots), torch.tensor(state), logits, self.table.flags(slots))

    def _prefill_batch(self, group: Sequence[PendingReply]) -> None:
        rows, width = len(group), max(len(f.ids) for f in group)
        length = max(f.start + len(f.ids) for f in group)
        key: Hashable = None
        self.table.begin(group)
        flags = self.table.flags([f.slot for f in group])
        if self.graphs is not None and round_up(rows, 4) * round_up(width, 16) <= _MAX_RECORDED_PREFILL:
            rows, width, length = (
                round_up(rows, 4),
                round_up(width, 16),
                min(round_up(length, 256), self.context),
            )
            key = ("enter", rows, width, length, flags)
        ids = torch.zeros(rows, width, dtype=torch.int64)
        meta = torch.tensor([[self.slots, 0, 1, 0]]).repeat(rows, 1)
        for at, f in enumerate(group):
            ids[at, width - len(f.ids) :] = torch.tensor(f.ids)
            meta[at] = torch.tensor([f.slot, f.start, len(f.ids), len(f.noise)])
        inputs = ids.to(self.device), meta.to(self.device)
        self._run(key, inputs, lambda ids, meta: self._prefill(ids, meta, length, flags))

    def _run(self, key: Hashable, inputs: tuple[torch.Tensor, ...], work: Callable[..., None]) -> None:
        """Run `work` on `inputs`. The first of a shape runs without a graph, as warm-up; the second is
        recorded. Without a key, nothing is recorded."""
        if self.graphs is None or key is None or key not in self._seen_shapes:
            self._seen_shapes.add(key)
            work(*inputs)
            return
        if key not in self.graphs:
            buffers = self._inputs[key] = tuple(value.clone() for value in inputs)
            if not self._record(key, lambda: work(*buffers)):
                work(*inputs)
                return
        for buffer, new in zip(self._inputs[key], inputs, strict=True):
            buffer.copy_(new)
        self.graphs.replay(key)

    def _prefill(self, ids: torch.Tensor, meta: torch.Tensor, length: int, flags: Flags) -> None:
        """Prefill ids [B, T], padded on the left so that the last logits of all rows are in one place, and
        sample the first token of each row. meta [B, 4] is slot, start, count, limit."""
        slots, start, count, limit = meta.unbind(1)
        logits = self.forward(ids, self._left_padded(slots, start, count, ids.shape[1], length))
        active = (slots < self.slots).long()
        state = torch.stack([ids[:, -1], start + count - 1, torch.zeros_like(slots), active, limit], 1)
        self.table.draw(slots, state, logits, flags)

    # ---- decode

    def _step(
        self, slots: torch.Tensor, length: int, flags: Flags, span: tuple[int, int] | None = None
    ) -> None:
        """Decode one token for each active row."""
        state = self.table.state[slots]
        positions = state[:, POSITION : POSITION + 1].contiguous()
        view = View(slots, positions, length, scratch=self.slots, span=span, fused=self.kernels)
        self.table.draw(slots, state, self.forward(state[:, :1], view), flags, self.fuser.leaf(sample))

    def _advance(self, rows: list[int]) -> None:
        for _ in range(self.chunk):
            active = self.table.state[:, ACTIVE].tolist()
            rows = [row for row in rows if active[row]]
            if not rows:
                return
            length = max(self.table.at[row] for row in rows) + 1
            span = (rows[0], rows[-1] + 1) if self.cpu else None
            self._step(self.table.to_device(rows), length, self.table.flags(rows), span)
            self._count(rows, 1)

    def _advance_recorded(self, rows: list[int]) -> None:
        assert self.graphs is not None
        rows = [row for row in rows if self.table.left[row] > 0]
        fresh = [row for row in rows if not self.table.seen[row]]
        most = max((self.table.left[row] - (row in fresh) for row in rows), default=0)
        steps = min(self.chunk, most)
        if steps < 1:
            return
        size, flags = round_up(len(rows), 8), self.table.flags(rows)
        # The Triton kernels read the length of each row; otherwise the graph needs a fixed bound.
        longest = max(self.table.at[row] for row in rows) + steps
        length = self.context if self.kernels else min(round_up(longest, 256), self.context)
        key = ("step", size, length, flags)
        if key not in self.graphs:
            slots = self.table.to_device([self.slots] * size)  # scratch only: warm-up must not change replies
            self._inputs[key] = (slots,)
            if not self._record(key, lambda: self._step(slots, length, flags), rows=size):
                self._advance(rows)
                return
        self._inputs[key][0].copy_(self.table.to_device(rows + [self.slots] * (size - len(rows))))
        self.graphs.replay(key, steps)
        self._count(rows, steps)
        self.stats.streamed += steps if STREAMED in self._method[key] else 0

    # ---- replies with a guide

    def _begin_guided(self, fresh: Sequence[PendingReply]) -> list[GuidedStep]:
        """Return the first steps of the replies with a guide."""
        steps = []
        self._most_guided = 0
        for f in fresh:
            self._guides.pop(f.slot, None)
            self._guided.pop(f.slot, None)
            if f.guide is not None:
                self._guides[f.slot] = f.guide
                self.table.begin([f])
                steps.append(self._force(f.slot, f.start, f.ids, 0, len(f.noise)))
        return [step for step in steps if step is not None]

    def _force(self, row: int, start: int, ids: Sequence[int], drawn: int, limit: int) -> GuidedStep | None:
        """Add the tokens that the guide forces to the reply. Return the next step, which feeds `ids` and
        them; None if the reply has ended."""
        guide = self._guides[row]
        tokens = [] if guide.ended else guide.force()
        self.table.force(row, tokens, drawn, end=guide.ended)
        drawn += len(tokens)
        self._most_guided = max(self._most_guided, drawn - self.table.seen[row])
        return None if guide.ended else GuidedStep(row, start, [*ids, *tokens], drawn, limit)

    def _advance_guided(self, steps: list[GuidedStep]) -> None:
        """Sample up to `chunk` tokens of each reply; forced tokens come on top."""
        for _ in range(self.chunk):
            if not steps:
                return
            for batch in pack_rows(steps, 2048) if self.packs_rows else batch_by_length(steps, 16384):
                self._guided_step(batch)
            rows = [step.slot for step in steps]
            steps = []
            for row, state in zip(rows, self.table.state[self.table.to_device(rows)].tolist(), strict=True):
                token, position, drawn, active, limit = state
                self._guides[row].consume(token)
                step = self._force(row, position, [token], drawn, limit) if active else None
                steps += [step] if step is not None else []
            self.stats.steps += 1
            self.stats.rows += len(rows)
        self._guided |= {step.slot: step for step in steps}

    def _guided_step(self, steps: Sequence[GuidedStep]) -> None:
        slots = [step.slot for step in steps]
        flags = self.table.flags(slots)
        bits = torch.from_numpy(allowed_tokens([self._guides[slot] for slot in slots]))
        if self.packs_rows:
            view = PackedRows([(step.slot, step.start, len(step.ids)) for step in steps])
            logits = self.forward(torch.tensor([[token for step in steps for token in step.ids]]), view)
            state = [[s.ids[-1], s.start + len(s.ids) - 1, s.drawn, 1, s.limit] for s in steps]
            self.table.draw(torch.tensor(slots), torch.tensor(state), logits, flags, bits=bits)
            return
        rows, width = len(steps), max(len(step.ids) for step in steps)
        length = max(step.start + len(step.ids) for step in steps)
        key: Hashable = None
        if self.graphs is not None and round_up(rows, 4) * round_up(width) <= _MAX_RECORDED_PREFILL:
            rows, width = round_up(rows, 4), round_up(width, 16) if width > 1 else 1
            length = min(round_up(length, 256), self.context)
            key = ("guided", rows, width, length, flags)
        ids = torch.zeros(rows, width, dtype=torch.int64)
        meta = torch.tensor([[self.slots, 0, 1, 0, 0]]).repeat(rows, 1)
        for at, s in enumerate(steps):
            ids[at, width - len(s.ids) :] = torch.tensor(s.ids)
            meta[at] = torch.tensor([s.slot, s.start, len(s.ids), s.drawn, s.limit])
        padding = torch.full((rows - len(steps), bits.shape[1]), -1, dtype=torch.int32)
        inputs = tuple(x.to(self.device) for x in (ids, meta, torch.cat([bits, padding])))
        self._run(key, inputs, lambda *inputs: self._guided_pass(inputs, length, flags))

    def _guided_pass(self, inputs: tuple[torch.Tensor, ...], length: int, flags: Flags) -> None:
        """Feed ids [B, T], padded on the left, and sample a token of each row that the bits allow. The inputs
        are ids, meta [B, 5] (slot, start, count, drawn, limit) and bits [B, words]."""
        ids, meta, bits = inputs
        slots, start, count, drawn, limit = meta.T.contiguous().unbind()  # kernels need slots that adjoin
        if ids.shape[1] == 1:
            positions = start[:, None].contiguous()
            view = View(slots, positions, length, scratch=self.slots, fused=self.kernels)
        else:
            view = self._left_padded(slots, start, count, ids.shape[1], length)
        active = (slots < self.slots).long()
        state = torch.stack([ids[:, -1], start + count - 1, drawn, active, limit], 1)
        self.table.draw(slots, state, self.forward(ids, view), flags, bits=bits)

    def _record(self, key: Hashable, work: Callable[[], None], *, rows: int = 0) -> bool:
        """Record `work` with the best method that works, and return whether one did. `rows` is the size of a
        decode step, 0 for a prefill. A model that cannot be recorded is decoded without graphs: slower, with
        the same results."""
        assert self.graphs is not None
        if key in self._too_large:
            return False
        failed = ""
        for name, method in self._methods(rows):
            try:
                with method:
                    self.graphs.record(key, work, warm=3 if rows else 0)
            except Exception as problem:  # noqa: BLE001 (compilers raise all kinds of exceptions)
                if out_of_memory(problem):  # smaller steps may fit
                    logging.getLogger(__name__).warning("no CUDA graph for %s: %s", key, problem)
                    self._too_large.add(key)
                    return False
                logging.getLogger(__name__).warning("decoding without %s: %s", name, problem)
                self._disable(name, problem)
                failed = name
            else:
                if failed == _BOTH and name == STREAMED:
                    self.fuser.wanted = False  # so the compiler had failed
                self._method[key] = name
                return True
        self.graphs = None
        return False

    def _disable(self, name: str, problem: Exception) -> None:
        """Disable the method that failed."""
        assert self.graphs is not None
        if name == STREAMED:
            self.streamed, self.disabled_reason = None, f"they failed: {problem}"
            self.graphs.clear()  # some graphs contain streamed layers
        elif name != _BOTH:  # the next method shows which of the two failed
            self.fuser.wanted = False

    def _methods(self, rows: int) -> Iterator[tuple[str, AbstractContextManager[None]]]:
        """Yield the methods of recording a step, best first. Prefills (rows = 0) have too many shapes for
        compilation and streamed layers."""
        if rows and self.streamed is not None and self.streamed.accepts(rows):
            swaps = self.streamed.swaps()
            if self.fuser.wanted:
                yield _BOTH, self.fuser.on(swaps)
            yield STREAMED, self.fuser.on(swaps, compiler=False)
        if rows and self.fuser.wanted:
            yield "torch.compile", self.fuser.on()
        yield "CUDA graphs", nullcontext()

    def _count(self, rows: Sequence[int], steps: int) -> None:
        self.stats.steps += steps
        self.stats.rows += steps * len(rows)
        self.table.advance(rows, steps)

    def _addresses(self) -> tuple[int, ...]:
        return tuple(parameter.data_ptr() for parameter in self.model.parameters())

    @property
    def description(self) -> str:
        """How steps are currently decoded, for logs and manifests. Empty on a CPU."""
        if self.graphs is None:
            return "" if self.cpu else f"{_MODEL_LAYERS}, without CUDA graphs"
        if not self.stream:
            reason = "turned off"
        elif self.streamed is None:
            reason = self.disabled_reason or "they need Triton and a Hopper GPU"
        else:
            reason = self.streamed.incompatibility()
        line = " ".join(reason.split())[:200]  # compiler messages can be very long
        return f"{_MODEL_LAYERS} (no {STREAMED}: {line})" if reason else f"{STREAMED}, up to {MAX_ROWS} rows"

    # ---- the compatibility check

    @torch.no_grad()
    def _check(self) -> None:
        """Raise InputError if the model's logits on slots differ from those of a plain forward pass.

        The check uses sequences of ordinary ids, the last two of which are decoded one at a time. (The first
        ids of a vocabulary are control tokens and bytes, on which 16 bits alone cause large deviations.)
        Kernels and streamed layers that fail are disabled with a warning. Streamed layers are checked in the
        largest step they will make, each slot with its own sequence, and may deviate a few times as much as
        the model's own layers on slots. Smaller steps and longer rows are not checked.
        """
        model = self.model
        was_training = model.training
        model.eval()
        kinds = {kind for config in self.configs for kind in getattr(config, "layer_types", None) or ()}
        if kinds - {"full_attention", "sliding_attention"}:
            raise _unsupported(model, f"has layers of type {', '.join(sorted(kinds))}")
        rows = min(round_up(self.slots, 8), MAX_ROWS)
        with_streamed = self.streamed is not None and self.streamed.accepts(rows)
        ids = self._check_ids(min(self.slots, rows if with_streamed else 3))
        plain = model(input_ids=ids, use_cache=False, logits_to_keep=_CHECK_STEPS + 1).logits
        bound = 1e-3 if plain.dtype == torch.float32 else 0.1
        try:
            error = self._deviation(ids, plain)
        except Exception as problem:
            if self.kernels is None:
                raise _unsupported(model, f"cannot run with the slot cache ({problem})") from problem
            logging.getLogger(__name__).warning("decoding without Triton: %s", problem)
            self.kernels = self.streamed = None
            self.disabled_reason = f"Triton failed: {problem}"
            error = self._deviation(ids, plain)
        if error < bound and self.kernels is not None:
            self._check_packed(ids, plain, min(max(4 * error, 0.02), bound))
        if error < bound and with_streamed and self.streamed is not None:
            self._check_streamed(self.streamed, ids, plain, min(max(4 * error, 0.02), bound), rows)
        if (description := self.description) and not self.disabled_reason:  # else there was a warning
            logging.getLogger(__name__).info("decoding with %s", description)
        self.cache.clear()
        model.train(was_training)
        if not error < bound:
            raise _unsupported(model, f"gives other logits with the slot cache (relative error {error:.2g})")

    def _check_streamed(
        self, streamed: StreamedLayers, ids: torch.Tensor, plain: torch.Tensor, bound: float, rows: int
    ) -> None:
        try:
            error = self._deviation(ids, plain, streamed=streamed, rows=rows)
            reason: object = None if error < bound else f"their logits differ (relative error {error:.2g})"
        except Exception as problem:  # noqa: BLE001 (compilers raise all kinds of exceptions)
            reason = problem
        if reason is not None:
            logging.getLogger(__name__).warning("decoding without %s: %s", STREAMED, reason)
            self.streamed, self.disabled_reason = None, f"they failed: {reason}"

    def _check_packed(self, ids: torch.Tensor, plain: torch.Tensor, bound: float) -> None:
        """Use the attention kernel for packed prompts, and layers of few kernels where the model allows them,
        if the logits are right."""
        layers = packed_layers_for(self.model, self.kernels)
        if layers is not None and not layers.incompatibility():
            self.packed_layers = layers
            if reason := self._packed_problem(ids, plain, bound):
                logging.getLogger(__name__).warning("reading with the model's own layers: %s", reason)
                self.packed_layers = None
        reason = "" if self.packed_layers else self._packed_problem(ids, plain, bound)
        if reason:
            logging.getLogger(__name__).warning("reading without the attention kernel: %s", reason)
        self.reads_with_kernel = not reason

    def _packed_problem(self, ids: torch.Tensor, plain: torch.Tensor, bound: float) -> str:
        """Return what is wrong with the logits of packed prompts of different lengths, of which a part is
        cached; empty if nothing is."""
        first = [1 + row % (ids.shape[1] - 1) for row in range(len(ids))]
        pieces = [[(row, 0, n) for row, n in enumerate(first)]]
        pieces.append([(row, n, ids.shape[1] - n) for row, n in enumerate(first)])
        try:
            with slot_attention(self.configs), self._packed_forward():
                for part in pieces:
                    packed = torch.cat([ids[row, start : start + n] for row, start, n in part])[None]
                    logits = self.forward(packed, PackedRows(part, self.device, fused=self.kernels))
            expected = plain[:, -1].float()
            error = float((logits.float() - expected).norm() / expected.norm().clamp(min=1e-6))
        except Exception as problem:  # noqa: BLE001 (compilers raise all kinds of exceptions)
            return f"{type(problem).__name__}: {problem}"
        return "" if error < bound else f"their logits differ (relative error {error:.2g})"

    def _packed_forward(self) -> AbstractContextManager[None]:
        """Inside the block, the model's layers are those for packed prompts, if it has any."""
        layers = self.packed_layers
        return self.fuser.on(layers.swaps(), compiler=False) if layers else nullcontext()

    def _check_ids(self, sequences: int) -> torch.Tensor:
        """Return different sequences of ids from the middle half of the vocabulary, [sequences, length]."""
        vocabulary = len(self.table.ends)
        length = min(8 if self.cpu else _CHECK_LENGTH, self.context)
        offsets = torch.arange(sequences * length, device=self.device) * 7919 % max(vocabulary // 2, 1)
        return (vocabulary // 4 + offsets).view(sequences, length)

    def _deviation(
        self, ids: torch.Tensor, plain: torch.Tensor, *, streamed: StreamedLayers | None = None, rows: int = 0
    ) -> float:
        """Return the relative error of the logits at the last positions of `ids`.

        The last ids are decoded one at a time, by `streamed` if it is given. Steps of more rows than there
        are sequences are padded with the scratch slot, as recorded ones are.
        """
        count, length = ids.shape
        padding = max(rows - count, 0)
        slots = self.table.to_device([*range(count), *[self.slots] * padding])
        ids = torch.cat([ids, ids[:1].expand(padding, -1)])
        start = max(length - _CHECK_STEPS, 1)
        logits = []
        with slot_attention(self.configs):
            for first, last in ((0, start), *((at, at + 1) for at in range(start, length))):
                swaps = streamed.swaps() if streamed is not None and first else []
                if self.packs_rows and not first:
                    packed = PackedRows([(slot, 0, last) for slot in range(count)])
                    logits.append(self.forward(ids[:count, :last].reshape(1, -1), packed).float())
                    continue
                positions = torch.arange(first, last, device=ids.device).repeat(len(ids), 1)
                view = View(slots, positions, last, scratch=self.slots, fused=self.kernels)
                with self.fuser.on(swaps, compiler=False):
                    logits.append(self.forward(ids[:, first:last], view)[:count].float())
        actual, expected = torch.stack(logits, 1), plain[:, -len(logits) :].float()
        return float((actual - expected).norm() / expected.norm().clamp(min=1e-6))


def _unsupported(model: torch.nn.Module, problem: str) -> InputError:
    return InputError(
        f"a {type(model).__name__} {problem}", fix="Use a model with full or sliding-window attention"
    )
