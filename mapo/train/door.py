"""The decoder's check at the door: does a model say on slots what it says by itself? Six ids decide.

A model that does not is refused. Kernels and lean layers that fail here are left out, with a warning.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from mapo.errors import InputError
from mapo.train.kv import View, attending

if TYPE_CHECKING:
    from mapo.train.decode import Decoder
    from mapo.train.lean import Lean

STREAMED = "streamed weights"  # what lean layers do, in a warning
_ROWS = 8  # of the smallest step that is recorded


@torch.no_grad()
def check(decoder: Decoder) -> None:
    model = decoder.model
    was_training = model.training
    model.eval()
    kinds = {kind for config in decoder.configs for kind in getattr(config, "layer_types", None) or ()}
    if kinds - {"full_attention", "sliding_attention"}:
        raise _refusal(model, f"has layers of {', '.join(sorted(kinds))}")
    ids = torch.arange(1, 7, device=decoder.device) % len(decoder.table.ends)
    plain = model(input_ids=ids[None], use_cache=False).logits[0, 3:]
    bound = 1e-3 if plain.dtype == torch.float32 else 0.1
    try:
        wrong = _deviation(decoder, ids, plain)
    except Exception as problem:
        if decoder.kernels is None:
            raise _refusal(model, f"cannot run on slots ({problem})") from problem
        logging.getLogger(__name__).warning("decoding without Triton: %s", problem)
        decoder.kernels = decoder.lean = None
        wrong = _deviation(decoder, ids, plain)
    if wrong < bound and decoder.lean is not None and decoder.lean.takes(_ROWS):
        _check_lean(decoder, decoder.lean, ids, plain, bound)
    decoder.cache.clear()
    model.train(was_training)
    if not wrong < bound:
        raise _refusal(model, f"says something else on slots (off by {wrong:.2g})")


def _check_lean(decoder: Decoder, lean: Lean, ids: torch.Tensor, plain: torch.Tensor, bound: float) -> None:
    try:
        wrong = _deviation(decoder, ids, plain, lean=lean)
        why: object = None if wrong < bound else f"they say something else (off by {wrong:.2g})"
    except Exception as problem:  # noqa: BLE001 (compilers fail in every way there is)
        why = problem
    if why is not None:
        logging.getLogger(__name__).warning("decoding without %s: %s", STREAMED, why)
        decoder.lean = None


def _deviation(
    decoder: Decoder, ids: torch.Tensor, plain: torch.Tensor, *, lean: Lean | None = None
) -> float:
    """Of what is said after ids 4, 5 and 6; the last two are steps of one id, `lean` ones if it is given."""
    found = []
    with attending(decoder.configs):
        for first, last in ((0, 4), (4, 5), (5, 6)):
            swaps = lean.swaps() if lean is not None and last - first == 1 else []
            rows = _ROWS if swaps else 1
            slots = decoder.table.put([0] + [decoder.slots] * (rows - 1))
            part = torch.arange(first, last, device=ids.device).repeat(rows, 1)
            view = View(slots, part, last, scratch=decoder.slots, fused=decoder.kernels)
            with decoder.fuser.on(swaps) if swaps else nullcontext():
                found.append(decoder.forward(ids[first:last].repeat(rows, 1), view)[0].float())
    return float((torch.stack(found) - plain.float()).norm() / plain.float().norm().clamp(min=1e-6))


def _refusal(model: torch.nn.Module, why: str) -> InputError:
    return InputError(
        f"a {type(model).__name__} {why}", fix="Use a model of full or sliding-window attention"
    )
