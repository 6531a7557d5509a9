"""The decoder's check at the door: does a model say on slots what it says by itself?

Some sequences of ordinary ids decide, of which the last two ids are decode steps; a vocabulary's first ids
are control marks and bytes, on which 16 bits alone are far off. A model that says something else is refused.
Kernels and lean layers that fail here are left out, with a warning. Lean layers are tried in the largest step
they will make, each slot with a sequence of its own, and may be off by what 16 bits alone are: some times as
much as the model's own layers on slots. Smaller steps and longer rows are not tried.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from mapo.errors import InputError
from mapo.sampling.graphs import up
from mapo.sampling.kv_cache import Pieces, View, attending
from mapo.sampling.streamed.layers import MOST

if TYPE_CHECKING:
    from mapo.sampling.decoder import Decoder
    from mapo.sampling.streamed.layers import Lean

STREAMED = "streamed weights"  # what lean layers do, in words
_OWN = "the model's own layers"
_LENGTH = 72  # ids of a sequence on a card: more than one block of keys
_STEPS = 2  # its last ids, one at a time


@torch.no_grad()
def check(decoder: Decoder) -> None:
    model = decoder.model
    was_training = model.training
    model.eval()
    kinds = {kind for config in decoder.configs for kind in getattr(config, "layer_types", None) or ()}
    if kinds - {"full_attention", "sliding_attention"}:
        raise _refusal(model, f"has layers of {', '.join(sorted(kinds))}")
    rows = min(up(decoder.slots, 8), MOST)
    streams = decoder.lean is not None and decoder.lean.takes(rows)
    ids = _ordinary(decoder, min(decoder.slots, rows if streams else 3))
    plain = model(input_ids=ids, use_cache=False, logits_to_keep=_STEPS + 1).logits
    bound = 1e-3 if plain.dtype == torch.float32 else 0.1
    try:
        wrong = _deviation(decoder, ids, plain)
    except Exception as problem:
        if decoder.kernels is None:
            raise _refusal(model, f"cannot run on slots ({problem})") from problem
        logging.getLogger(__name__).warning("decoding without Triton: %s", problem)
        decoder.kernels = decoder.lean = None
        decoder.left_out = f"Triton failed: {problem}"
        wrong = _deviation(decoder, ids, plain)
    if wrong < bound and streams and decoder.lean is not None:
        _check_lean(decoder, decoder.lean, ids, plain, min(max(4 * wrong, 0.02), bound), rows)
    if (told := how_decoded(decoder)) and not decoder.left_out:  # which has been said
        logging.getLogger(__name__).info("decoding with %s", told)
    decoder.cache.clear()
    model.train(was_training)
    if not wrong < bound:
        raise _refusal(model, f"says something else on slots (off by {wrong:.2g})")


def _check_lean(
    decoder: Decoder, lean: Lean, ids: torch.Tensor, plain: torch.Tensor, bound: float, rows: int
) -> None:
    try:
        wrong = _deviation(decoder, ids, plain, lean=lean, rows=rows)
        why: object = None if wrong < bound else f"they say something else (off by {wrong:.2g})"
    except Exception as problem:  # noqa: BLE001 (compilers fail in every way there is)
        why = problem
    if why is not None:
        logging.getLogger(__name__).warning("decoding without %s: %s", STREAMED, why)
        decoder.lean, decoder.left_out = None, f"they failed: {why}"


def how_decoded(decoder: Decoder) -> str:
    """With what steps are decoded, as things stand; what a run says and keeps. Empty on a CPU."""
    if decoder.graphs is None:
        return "" if decoder.cpu else f"{_OWN}, not recorded"
    if not decoder.stream:
        why = "turned off"
    elif decoder.lean is None:
        why = decoder.left_out or "they need Triton and a Hopper card"
    else:
        why = decoder.lean.unfit()
    line = " ".join(why.split())[:200]  # compilers tell much
    return f"{_OWN} (no {STREAMED}: {line})" if why else f"{STREAMED}, up to {MOST} rows"


def _ordinary(decoder: Decoder, sequences: int) -> torch.Tensor:
    """[sequences, length] ids spread over the middle half of the vocabulary, each sequence another one."""
    vocabulary = len(decoder.table.ends)
    length = min(8 if decoder.cpu else _LENGTH, decoder.context)
    spread = torch.arange(sequences * length, device=decoder.device) * 7919 % max(vocabulary // 2, 1)
    return (vocabulary // 4 + spread).view(sequences, length)


def _deviation(
    decoder: Decoder, ids: torch.Tensor, plain: torch.Tensor, *, lean: Lean | None = None, rows: int = 0
) -> float:
    """Of what is said at the end of `ids`; the last ids are steps of one id, `lean` ones if it is given.

    Steps of more rows than there are sequences are filled up with scratch, as recorded ones are.
    """
    count, length = ids.shape
    more = max(rows - count, 0)
    slots = decoder.table.put([*range(count), *[decoder.slots] * more])
    ids = torch.cat([ids, ids[:1].expand(more, -1)])
    start = max(length - _STEPS, 1)
    found = []
    with attending(decoder.configs):
        for first, last in ((0, start), *((at, at + 1) for at in range(start, length))):
            swaps = lean.swaps() if lean is not None and first else []
            if decoder.in_line and not first:
                line = Pieces([(slot, 0, last) for slot in range(count)])
                found.append(decoder.forward(ids[:count, :last].reshape(1, -1), line).float())
                continue
            part = torch.arange(first, last, device=ids.device).repeat(len(ids), 1)
            view = View(slots, part, last, scratch=decoder.slots, fused=decoder.kernels)
            with decoder.fuser.on(swaps, compiler=False):
                found.append(decoder.forward(ids[:, first:last], view)[:count].float())
    told, own = torch.stack(found, 1), plain[:, -len(found) :].float()
    return float((told - own).norm() / own.norm().clamp(min=1e-6))


def _refusal(model: torch.nn.Module, why: str) -> InputError:
    return InputError(
        f"a {type(model).__name__} {why}", fix="Use a model of full or sliding-window attention"
    )
