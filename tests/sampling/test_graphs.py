"""Recordings are made on their decoder's own device; a card is played by names here."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from mapo.sampling import graphs
from mapo.sampling.graphs import Graphs, graphs_for


class Stream:
    def __init__(self, device):
        self.device = device

    def wait_stream(self, other):
        assert other.device == self.device


@pytest.fixture
def card(monkeypatch):
    """torch.cuda with two devices, of which the first is current; tells what was captured, and where."""
    seen = SimpleNamespace(captured=[], synchronized=[], on=[], pools=0)

    def pool():
        seen.pools += 1
        return seen.pools

    @contextmanager
    def on(stream):
        seen.on.append(stream)
        yield
        seen.on.pop()

    @contextmanager
    def capture(graph, *, pool, stream, capture_error_mode):
        assert capture_error_mode == "thread_local" and not seen.on
        with on(stream):
            yield
        seen.captured.append((graph, pool, stream))

    first = torch.device("cuda:0")
    for name, fake in {
        "Stream": lambda device=first: Stream(device),
        "current_stream": lambda device=first: Stream(device),
        "synchronize": lambda device=first: seen.synchronized.append(device),
        "stream": on,
        "graph": capture,
        "graph_pool_handle": pool,
        "CUDAGraph": lambda: SimpleNamespace(replays=0),
    }.items():
        monkeypatch.setattr(graphs.torch.cuda, name, fake)
    return seen


def test_each_device_records_on_a_stream_of_its_own(card):
    """Recordings share memory only if they share pool and stream."""
    worked = []
    for name in ("cuda:0", "cuda:1"):
        made, device = graphs_for(torch.device(name)), torch.device(name)
        card.captured.clear()
        for key in "ab":
            made.record(key, lambda: worked.append(card.on[-1].device), warm=2)
        assert worked == [device] * 6 and card.synchronized == [device] * 2
        assert {stream.device for _, _, stream in card.captured} == {device}
        assert len({(pool, id(stream)) for _, pool, stream in card.captured}) == 1
        assert len(made) == 2 and "a" in made
        worked.clear()
        card.synchronized.clear()
    assert card.pools == 2 and graphs_for(torch.device("cpu")) is None


def test_recordings_that_are_dropped_leave_their_pool(card):
    made = Graphs(torch.device("cuda:1"))
    made.record("a", lambda: None, warm=0)
    made.clear()
    assert len(made) == 0 and "a" not in made
    made.record("a", lambda: None, warm=0)
    (_, old, stream), (_, new, same) = card.captured
    assert old != new and stream is same


def test_a_recording_is_replayed_as_often_as_asked(card):
    made = Graphs(torch.device("cuda:0"))
    made.record("a", lambda: None, warm=1)
    ((graph, _, _),) = card.captured
    graph.replay = lambda: setattr(graph, "replays", graph.replays + 1)
    made.replay("a", 3)
    assert graph.replays == 3
