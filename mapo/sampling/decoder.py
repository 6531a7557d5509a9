"""The decoder: prefill and decode steps of many dialogues at once.

A round takes in the new ids of some slots (prefill: several dialogues at once, each attending to its own
cached past), draws their first token, then makes up to `chunk` decode steps for every slot that is
talking. On a GPU a whole step, drawing included, is one recorded graph, and the host looks only once a
round; on a CPU rows that have finished leave the batch at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

from mapo.errors import InputError
from mapo.sampling.draw import (
    ACTIVE,
    POSITION,
    Flags,
    PendingReply,
    SampledTokens,
    SlotTable,
    batch_by_length,
    pack_rows,
    sample,
)
from mapo.sampling.graphs import Fuser, graphs_for, next_power_of_two, out_of_memory
from mapo.sampling.kv_cache import PackedRows, SlotCache, View, configs_of, kernels, slot_attention
from mapo.sampling.streamed.layers import MAX_ROWS, StreamedLayers, streamed_layers_for

Attention = Literal["auto", "triton", "sdpa"]
STREAMED = "streamed weights"  # what the streamed layers do, in words
_OWN = "the model's own layers"
_LENGTH = 72  # ids of a checked sequence on a card: more than one block of keys
_STEPS = 2  # its last ids, one at a time
_BOTH = f"{STREAMED} with torch.compile"
_RECORD = 4096  # a prefill of more ids keeps the card busy without being recorded


@dataclass(slots=True)
class Stats:
    """`reused` counts ids that were in the cache already, `streamed` the decode steps with streamed weights;
    `rows` sums the rows of all decode steps."""

    sampled: int = 0
    prefilled: int = 0
    reused: int = 0
    steps: int = 0
    rows: int = 0
    streamed: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return self.prefill_seconds + self.decode_seconds

    def clear(self) -> None:
        for field in fields(self):
            setattr(self, field.name, field.default)


class Decoder:
    """`slots` dialogues of at most `context` ids each, on the device of `model`.

    attention: "triton" (a GPU with Triton) or "sdpa"; graphs: record the steps (a GPU only); fuse: compile
    the model's leaves while recording; stream: and take lean layers instead where they are made for model and
    card. What enters a slot must fit its context, with the reply it may get.
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
        self.stream, self.left_out = stream, ""  # why lean layers, which there were, are not used
        self.streamed = streamed_layers_for(model, self.kernels) if stream and self.graphs is not None else None
        vocabulary = int(model.get_output_embeddings().weight.shape[0])
        self.table = SlotTable(slots, context, vocabulary, end_ids, self.device)
        self.configs = configs_of(model)
        self._inputs: dict[Hashable, tuple[torch.Tensor, ...]] = {}
        self._made: dict[Hashable, str] = {}
        self._met: set[Hashable] = set()
        self._too_large: set[Hashable] = set()
        self._weights = self._addresses()
        # Triton launches where the current device is.
        with torch.cuda.device_of(next(model.parameters())):  # type: ignore[no-untyped-call]
            self._check()

    @property
    def packs_rows(self) -> bool:
        """Whether prompts enter in one line without padding, there being no shape that has to recur."""
        return self.cpu and self.graphs is None

    @torch.no_grad()
    def round(self, fresh: Sequence[PendingReply], going: Sequence[int]) -> dict[int, SampledTokens]:
        """Take `fresh` in and let them and the slots in `going` talk on; what each of them said."""
        if not self.cpu:
            torch.cuda.set_device(self.device)
        if self.model.training:
            self.model.eval()
        rows = sorted([*going, *(f.slot for f in fresh)])
        began = time.perf_counter()
        with slot_attention(self.configs):
            if self.packs_rows:
                for line in pack_rows(fresh, budget=2048):
                    self._enter_line(line)
            else:
                for group in batch_by_length(fresh, budget=16384):
                    self._enter_group(group)
            if fresh and not self.cpu:
                torch.cuda.synchronize(self.device)
            middle = time.perf_counter()
            if self.graphs is None:
                self._advance(rows)
            else:
                self._advance_recorded(rows)
            drawn = self.table.read(rows, self.chunk + 1)
        self.stats.prefill_seconds += middle - began
        self.stats.decode_seconds += time.perf_counter() - middle
        self.stats.prefilled += sum(len(f.ids) for f in fresh)
        self.stats.reused += sum(f.start for f in fresh)
        self.stats.sampled += sum(len(d.ids) for d in drawn.values())
        return drawn

    def forget(self) -> None:
        """The weights have changed: nothing cached holds any more."""
        self.cache.clear()
        if self.graphs is not None and self._addresses() != self._weights:
            # recordings point at the old ones
            self.graphs, self._weights = graphs_for(self.device), self._addresses()

    def forward(self, ids: torch.Tensor, view: View | PackedRows) -> torch.Tensor:
        """The logits after the last id of each row, or piece."""
        self.cache.view = view
        out = self.model(
            input_ids=ids,
            position_ids=view.positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=view.last if isinstance(view, PackedRows) else 1,
        )
        logits: torch.Tensor = out.logits[0] if isinstance(view, PackedRows) else out.logits[:, -1]
        return logits

    # ---- prefill

    def _enter_line(self, line: Sequence[PendingReply]) -> None:
        self.table.begin(line)
        view = PackedRows([(f.slot, f.start, len(f.ids)) for f in line])
        logits = self.forward(torch.tensor([[token for f in line for token in f.ids]]), view)
        state = [[f.ids[-1], f.start + len(f.ids) - 1, 0, 1, len(f.noise)] for f in line]
        slots = [f.slot for f in line]
        self.table.draw(self.table.put(slots), torch.tensor(state), logits, self.table.flags(slots))

    def _enter_group(self, group: Sequence[PendingReply]) -> None:
        rows, width = len(group), max(len(f.ids) for f in group)
        length = max(f.start + len(f.ids) for f in group)
        key: Hashable = None
        self.table.begin(group)
        flags = self.table.flags([f.slot for f in group])
        if self.graphs is not None and next_power_of_two(rows, 4) * next_power_of_two(width, 16) <= _RECORD:
            rows, width, length = next_power_of_two(rows, 4), next_power_of_two(width, 16), min(next_power_of_two(length, 256), self.context)
            key = ("enter", rows, width, length, flags)
        ids = torch.zeros(rows, width, dtype=torch.int64)
        meta = torch.tensor([[self.slots, 0, 1, 0]]).repeat(rows, 1)
        for at, f in enumerate(group):
            ids[at, width - len(f.ids) :] = torch.tensor(f.ids)
            meta[at] = torch.tensor([f.slot, f.start, len(f.ids), len(f.noise)])
        self._run_enter(key, ids.to(self.device), meta.to(self.device), length, flags)

    def _run_enter(
        self, key: Hashable, ids: torch.Tensor, meta: torch.Tensor, length: int, flags: Flags
    ) -> None:
        """Plainly the first time, which warms up; a shape met again is recorded."""
        if self.graphs is None or key is None or key not in self._met:
            self._met.add(key)
            self._enter(ids, meta, length, flags)
            return
        if key not in self.graphs:
            held = self._inputs[key] = (ids.clone(), meta.clone())
            if not self._record(key, lambda: self._enter(*held, length, flags)):
                self._enter(ids, meta, length, flags)
                return
        for buffer, now in zip(self._inputs[key], (ids, meta), strict=True):
            buffer.copy_(now)
        self.graphs.replay(key)

    def _enter(self, ids: torch.Tensor, meta: torch.Tensor, length: int, flags: Flags) -> None:
        """ids [B, T] end at the right edge, so that every row's last logits are in one place; meta [B, 4] is
        slot, start, count, limit."""
        slots, start, count, limit = meta.unbind(1)
        offset = torch.arange(ids.shape[1], device=ids.device) - (ids.shape[1] - count)[:, None]
        positions = (start[:, None] + offset).clamp(min=0)
        view = View(slots, positions, length, scratch=self.slots, real=offset >= 0)
        logits = self.forward(ids, view)
        talking = (slots < self.slots).long()
        state = torch.stack([ids[:, -1], start + count - 1, torch.zeros_like(slots), talking, limit], 1)
        self.table.draw(slots, state, logits, flags)

    # ---- decode

    def _step(
        self, slots: torch.Tensor, length: int, flags: Flags, span: tuple[int, int] | None = None
    ) -> None:
        """One token more for each row that is talking."""
        state = self.table.state[slots]
        positions = state[:, POSITION : POSITION + 1].contiguous()
        view = View(slots, positions, length, scratch=self.slots, span=span, fused=self.kernels)
        self.table.draw(slots, state, self.forward(state[:, :1], view), flags, self.fuser.leaf(sample))

    def _advance(self, rows: list[int]) -> None:
        for _ in range(self.chunk):
            talking = self.table.state[:, ACTIVE].tolist()
            rows = [row for row in rows if talking[row]]
            if not rows:
                return
            length = max(self.table.at[row] for row in rows) + 1
            span = (rows[0], rows[-1] + 1) if self.cpu else None
            self._step(self.table.put(rows), length, self.table.flags(rows), span)
            self._count(rows, 1)

    def _advance_recorded(self, rows: list[int]) -> None:
        assert self.graphs is not None
        rows = [row for row in rows if self.table.left[row] > 0]
        fresh = [row for row in rows if not self.table.seen[row]]
        most = max((self.table.left[row] - (row in fresh) for row in rows), default=0)
        steps = min(self.chunk, most)
        if steps < 1:
            return
        size, flags = next_power_of_two(len(rows), 8), self.table.flags(rows)
        # Fused kernels read each row's own length; the plain way needs a bound in the recording.
        longest = max(self.table.at[row] for row in rows) + steps
        length = self.context if self.kernels else min(next_power_of_two(longest, 256), self.context)
        key = ("step", size, length, flags)
        if key not in self.graphs:
            slots = self.table.put([self.slots] * size)  # all scratch: warming up draws nothing for anybody
            self._inputs[key] = (slots,)
            if not self._record(key, lambda: self._step(slots, length, flags), rows=size):
                self._advance(rows)
                return
        self._inputs[key][0].copy_(self.table.put(rows + [self.slots] * (size - len(rows))))
        self.graphs.replay(key, steps)
        self._count(rows, steps)
        self.stats.streamed += steps if STREAMED in self._made[key] else 0

    def _record(self, key: Hashable, work: Callable[[], None], *, rows: int = 0) -> bool:
        """In the best way that works, `rows` being those of a decode step; a model that cannot be recorded at
        all is slow, but right."""
        assert self.graphs is not None
        if key in self._too_large:
            return False
        failed = ""
        for name, way in self._ways(rows):
            try:
                with way:
                    self.graphs.record(key, work, warm=3 if rows else 0)
            except Exception as problem:  # noqa: BLE001 (compilers fail in every way there is)
                if out_of_memory(problem):  # smaller steps may fit
                    logging.getLogger(__name__).warning("not recorded, %s: %s", key, problem)
                    self._too_large.add(key)
                    return False
                logging.getLogger(__name__).warning("decoding without %s: %s", name, problem)
                self._leave_out(name, problem)
                failed = name
            else:
                if failed == _BOTH and name == STREAMED:
                    self.fuser.wanted = False  # so it was the compiler
                self._made[key] = name
                return True
        self.graphs = None
        return False

    def _leave_out(self, name: str, problem: Exception) -> None:
        assert self.graphs is not None
        if name == STREAMED:
            self.streamed, self.left_out = None, f"they failed: {problem}"
            self.graphs.clear()  # some have them in; all are soon made again
        elif name != _BOTH:  # which of the two it was, the next way tells
            self.fuser.wanted = False

    def _ways(self, rows: int) -> Iterator[tuple[str, AbstractContextManager[None]]]:
        """What goes into a recording, the best first; prefills (rows = 0) have too many shapes for more than
        the recording itself."""
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
        self.table.moved(rows, steps)

    def _addresses(self) -> tuple[int, ...]:
        return tuple(parameter.data_ptr() for parameter in self.model.parameters())

    @property
    def description(self) -> str:
        """With what steps are decoded, as things stand; what a run says and keeps. Empty on a CPU."""
        if self.graphs is None:
            return "" if self.cpu else f"{_OWN}, not recorded"
        if not self.stream:
            why = "turned off"
        elif self.streamed is None:
            why = self.left_out or "they need Triton and a Hopper card"
        else:
            why = self.streamed.incompatibility()
        line = " ".join(why.split())[:200]  # compilers tell much
        return f"{_OWN} (no {STREAMED}: {line})" if why else f"{STREAMED}, up to {MAX_ROWS} rows"

    # ---- the compatibility check

    @torch.no_grad()
    def _check(self) -> None:
        """Refuse a model that computes something else on slots than by itself.

        Sequences of ordinary ids decide; their last two ids are decode steps. (A vocabulary's first ids are
        control marks and bytes, on which 16 bits alone are far off.) Kernels and streamed layers that fail
        are left out with a warning. Streamed layers are tried in the largest step they will make, each slot
        with a sequence of its own, and may be off by a few times what the model's own layers on slots are off
        by. Smaller steps and longer rows are not tried.
        """
        model = self.model
        was_training = model.training
        model.eval()
        kinds = {kind for config in self.configs for kind in getattr(config, "layer_types", None) or ()}
        if kinds - {"full_attention", "sliding_attention"}:
            raise _refusal(model, f"has layers of {', '.join(sorted(kinds))}")
        rows = min(next_power_of_two(self.slots, 8), MAX_ROWS)
        streams = self.streamed is not None and self.streamed.accepts(rows)
        ids = self._check_ids(min(self.slots, rows if streams else 3))
        plain = model(input_ids=ids, use_cache=False, logits_to_keep=_STEPS + 1).logits
        bound = 1e-3 if plain.dtype == torch.float32 else 0.1
        try:
            wrong = self._deviation(ids, plain)
        except Exception as problem:
            if self.kernels is None:
                raise _refusal(model, f"cannot run on slots ({problem})") from problem
            logging.getLogger(__name__).warning("decoding without Triton: %s", problem)
            self.kernels = self.streamed = None
            self.left_out = f"Triton failed: {problem}"
            wrong = self._deviation(ids, plain)
        if wrong < bound and streams and self.streamed is not None:
            self._check_streamed(self.streamed, ids, plain, min(max(4 * wrong, 0.02), bound), rows)
        if (told := self.description) and not self.left_out:  # which has been said
            logging.getLogger(__name__).info("decoding with %s", told)
        self.cache.clear()
        model.train(was_training)
        if not wrong < bound:
            raise _refusal(model, f"says something else on slots (off by {wrong:.2g})")

    def _check_streamed(
        self, streamed: StreamedLayers, ids: torch.Tensor, plain: torch.Tensor, bound: float, rows: int
    ) -> None:
        try:
            wrong = self._deviation(ids, plain, streamed=streamed, rows=rows)
            why: object = None if wrong < bound else f"they say something else (off by {wrong:.2g})"
        except Exception as problem:  # noqa: BLE001 (compilers fail in every way there is)
            why = problem
        if why is not None:
            logging.getLogger(__name__).warning("decoding without %s: %s", STREAMED, why)
            self.streamed, self.left_out = None, f"they failed: {why}"

    def _check_ids(self, sequences: int) -> torch.Tensor:
        """[sequences, length] ids spread over the middle half of the vocabulary, each sequence different."""
        vocabulary = len(self.table.ends)
        length = min(8 if self.cpu else _LENGTH, self.context)
        spread = torch.arange(sequences * length, device=self.device) * 7919 % max(vocabulary // 2, 1)
        return (vocabulary // 4 + spread).view(sequences, length)

    def _deviation(
        self, ids: torch.Tensor, plain: torch.Tensor, *, streamed: StreamedLayers | None = None, rows: int = 0
    ) -> float:
        """Relative error of the logits at the last positions of `ids`.

        The last ids are decode steps of one id, made by `lean` if it is given.

        Steps of more rows than there are sequences are filled up with scratch, as recorded ones are.
        """
        count, length = ids.shape
        more = max(rows - count, 0)
        slots = self.table.put([*range(count), *[self.slots] * more])
        ids = torch.cat([ids, ids[:1].expand(more, -1)])
        start = max(length - _STEPS, 1)
        found = []
        with slot_attention(self.configs):
            for first, last in ((0, start), *((at, at + 1) for at in range(start, length))):
                swaps = streamed.swaps() if streamed is not None and first else []
                if self.packs_rows and not first:
                    line = PackedRows([(slot, 0, last) for slot in range(count)])
                    found.append(self.forward(ids[:count, :last].reshape(1, -1), line).float())
                    continue
                part = torch.arange(first, last, device=ids.device).repeat(len(ids), 1)
                view = View(slots, part, last, scratch=self.slots, fused=self.kernels)
                with self.fuser.on(swaps, compiler=False):
                    found.append(self.forward(ids[:, first:last], view)[:count].float())
        told, own = torch.stack(found, 1), plain[:, -len(found) :].float()
        return float((told - own).norm() / own.norm().clamp(min=1e-6))


def _refusal(model: torch.nn.Module, why: str) -> InputError:
    return InputError(
        f"a {type(model).__name__} {why}", fix="Use a model of full or sliding-window attention"
    )
