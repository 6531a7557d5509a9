"""What stands in for a card: the kernels of streamed weights said in torch, recordings, decoders of both."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig

from mapo.sampling import decoder as decode
from mapo.sampling.decoder import Decoder
from mapo.sampling.draw import PendingReply, noise_of
from mapo.sampling.graphs import Fuser
from mapo.sampling.kv_cache import PackedRows, _attend_pieces
from mapo.sampling.streamed.layers import StreamedLayers
from mapo.sampling.streamed.tiling import streamed_attention_cut
from support.sampled import Recordings

SMALL = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}


def model_of(kind=LlamaConfig, dtype=torch.float32, **more):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(kind(**SMALL | more), dtype=dtype).eval()
    for name, weight in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            weight.data.add_(torch.randn_like(weight) * 0.3)
    return model


# The kernels, said in torch.


def product(x, weights, tile):
    return functional.linear(x, torch.cat(list(weights)))[None].expand(tile.splits, -1, -1) / tile.splits


def add_norm(parts, residual, weight, eps):
    total = residual if parts is None else residual + parts.sum(0)
    return total, functional.rms_norm(total, (total.shape[1],), weight, eps)


def turn(states, biases, cos, sin, keys, values, slots, positions):
    whole = [s.sum(0) if b is None else s.sum(0) + b for s, b in zip(states, biases, strict=True)]
    q, k, v = (x.view(len(x), -1, keys.shape[3]) for x in whole)

    def turned(x):
        low, high = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat([-high, low], -1) * sin[:, None]

    keys[slots, :, positions[:, 0]], values[slots, :, positions[:, 0]] = turned(k), v
    return turned(q)[:, :, None]


def attend(query, keys, values, slots, positions, *, scale, window, cut):
    assert cut == streamed_attention_cut(len(slots) * keys.shape[1], keys.shape[2], keys.shape[3], 132)
    out = []
    for row, (slot, at) in enumerate(zip(slots.tolist(), positions[:, 0].tolist(), strict=True)):
        first = max(0, at + 1 - window) if window else 0
        k, v = (
            x[slot, :, first : at + 1].repeat_interleave(query.shape[1] // x.shape[1], 0)
            for x in (keys, values)
        )
        out.append(((query[row] @ k.transpose(1, 2)) * scale).softmax(-1) @ v)
    return torch.stack(out).transpose(1, 2).contiguous()


STREAMS = SimpleNamespace(
    product=product,
    add_norm=add_norm,
    turn=turn,
    gated=lambda x, gate, up, tile: functional.silu(x @ gate.T) * (x @ up.T),
    silu_product=lambda gate, up: functional.silu(gate) * up,
)


class PackedKernel:
    """The attention kernel for packed prompts, in plain torch, with an error of `wrong`."""

    PACKED_ROWS = 16

    def __init__(self, wrong=0.0):
        self.wrong, self.calls = wrong, 0

    def attend_packed(self, query, keys, values, tiles, *, scale, window=None, softcap=None):
        self.calls += 1
        pieces = sorted(tiles.tolist(), key=lambda tile: tile[2])
        view = PackedRows([(slot, at, count) for slot, at, _, count in pieces])
        return _attend_pieces(view, query, keys, values, scale, window, softcap) * (1 + self.wrong)


def streamed_of(model, streams=STREAMS):
    return StreamedLayers(model, streams, attend, processors=132)


class Tape(Recordings):
    """Replays with the forwards that the modules had when it was recorded, as a graph does."""

    def __init__(self, model=None):
        super().__init__()
        self.model = model or torch.nn.Identity()

    def record(self, key, work, *, warm):
        held = [(m, vars(m)["forward"]) for m in self.model.modules() if "forward" in vars(m)]
        super().record(key, work, warm=warm)

        def again():
            with Fuser(torch.nn.Identity(), wanted=True).on(held):
                work()

        self[key] = again


def decoder_of(model, streams=STREAMS, slots=4):
    """One that records, as on a GPU; the compiler stays out of it."""
    made = Decoder(model, slots=slots, context=32, end_ids=frozenset(), chunk=3)
    made.graphs, made.fuser.wanted, made.streamed = Tape(model), True, streamed_of(model, streams)
    made.fuser.compiled = lambda function: function
    return made


def as_on_a_card(monkeypatch, streams=STREAMS, model=None):
    """Decoders made from now on find a card that records and is made for streamed weights, if they look."""
    monkeypatch.setattr(decode, "graphs_for", lambda _: Tape(model))
    monkeypatch.setattr(decode, "streamed_layers_for", lambda model, _: streamed_of(model, streams))
    monkeypatch.setattr(Fuser, "compiled", lambda _, function: function)


def said(decoder):
    fresh = [PendingReply(slot, 0, [5 + slot, 6, 7], noise_of(slot, 8)) for slot in (0, 2)]
    rounds = [decoder.round(fresh, []), decoder.round([], [0, 2])]
    ids = [token for drawn in rounds for slot in (0, 2) for token in drawn[slot].ids]
    return ids, torch.tensor([x for drawn in rounds for slot in (0, 2) for x in drawn[slot].logprobs])


def counted(calls):
    """The kernels, with the addresses of the weights that each is given put into `calls`."""

    def noting(name, places):
        def call(*given):
            for place in places:
                weights = given[place] if isinstance(given[place], list) else [given[place]]
                calls.append((name, [w.data_ptr() for w in weights if w is not None]))
            return getattr(STREAMS, name)(*given)

        return call

    places = {"product": [1], "gated": [1, 2], "add_norm": [2], "turn": [1]}
    return SimpleNamespace(**{name: noting(name, where) for name, where in places.items()})
