"""Readers: models whose answers are read out, without a model."""

from __future__ import annotations

import math
from collections.abc import Callable

from mapo.errors import EndpointError
from mapo.models.chat import Place, ReadRequest


class FixedReader:
    """Gives the option that `choose` returns, as an index, the probability `confidence`."""

    name = "fixed"
    supports_tools = False

    def __init__(self, choose: Callable[[Place, ReadRequest], int], confidence: float = 0.8) -> None:
        self.choose = choose
        self.confidence = confidence
        self.requests: list[ReadRequest] = []

    async def read(self, request: ReadRequest) -> tuple[tuple[float, ...], ...]:
        self.requests.append(request)
        return tuple(self._logprobs(place, request) for place in request.places)

    def _logprobs(self, place: Place, request: ReadRequest) -> tuple[float, ...]:
        n, chosen = len(place.options), self.choose(place, request)
        rest = (1 - self.confidence) / max(1, n - 1)
        return tuple(math.log(self.confidence if at == chosen else rest) for at in range(n))


class DeadReader:
    """Fails on every request."""

    name = "dead"

    async def read(self, request: ReadRequest) -> tuple[tuple[float, ...], ...]:
        raise EndpointError("the model is gone")
