"""Bounded HTTP responses: a limit on what a server can make us hold, and no reuse of a dirty connection.

`guard_response` is a response hook of the HTTP client. It replaces the stream of a response, so the body is
limited while it is read and counted after decompression, for error responses too. Headers are limited by the
HTTP library (100 KB).

A server or proxy may write a second response on a connection that is kept open. It would be read as the
answer to the next request. A connection with bytes left after a response is therefore closed.
"""

from __future__ import annotations

import ssl
import zlib
from collections.abc import AsyncIterator
from typing import Any

from httpx2 import AsyncByteStream, RequestError, Response

MAX_BODY_BYTES = 4 << 20
MAX_ERROR_BYTES = 64 << 10
ACCEPT = {"Accept-Encoding": "identity"}
"""Request headers: compression saves nothing next to the time of a model."""


class BodyError(RequestError):
    """A body that is too large or that cannot be decoded."""


async def guard_response(response: Response) -> None:
    """Limit the body of a response, and close its connection if bytes are left after it."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "deflate"):
        raise BodyError(f"the response is compressed as {encoding[:40]!r}, which was not requested")
    if encoding != "identity":
        del response.headers["content-encoding"]
    limit = MAX_ERROR_BYTES if response.is_error else MAX_BODY_BYTES
    network = response.extensions.get("network_stream")
    # The body of an error is only quoted in a message, so its beginning is enough.
    response.stream = _BoundedStream(response.stream, network, encoding, limit, cut=response.is_error)


class _BoundedStream(AsyncByteStream):
    def __init__(self, stream: Any, network: Any, encoding: str, limit: int, *, cut: bool) -> None:
        self._stream, self._network, self._limit, self._cut = stream, network, limit, cut
        self._decoder = None if encoding == "identity" else zlib.decompressobj(zlib.MAX_WBITS | 32)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._limit
        async for chunk in self._stream:
            for part in self._decoded(chunk, left + 1):
                if len(part) > left:
                    await self._disconnect()
                    if self._cut:
                        yield part[:left]
                        return
                    raise BodyError(f"the response is larger than {self._limit >> 20} MB")
                left -= len(part)
                yield part
        if self._network is None or _has_leftover(self._stream) or _has_plaintext(self._network):
            await self._disconnect()

    def _decoded(self, chunk: bytes, limit: int) -> list[bytes]:
        if self._decoder is None:
            return [chunk]
        try:
            return [self._decoder.decompress(chunk, limit)]
        except zlib.error as error:
            raise BodyError(f"the response cannot be decompressed: {error}") from None

    async def _disconnect(self) -> None:
        """Close the socket; the connection pool then discards the connection."""
        if self._network is not None:
            await self._network.aclose()

    async def aclose(self) -> None:
        await self._stream.aclose()


def _has_leftover(stream: Any) -> bool:
    """Return whether bytes were received after the response; True if that cannot be found out.

    The HTTP library has no public access to them, so this follows its private attributes to the parser.
    """
    while stream is not None:
        connection = getattr(stream, "_connection", None)
        if connection is not None:
            parser = getattr(connection, "_h11_state", None)
            return parser is None or bool(parser.trailing_data[0])
        stream = getattr(stream, "_stream", None) or getattr(stream, "_httpcore_stream", None)
    return True


def _has_plaintext(network: Any) -> bool:
    """Return whether TLS has received more data. There should be none, so reading it loses nothing."""
    tls = network.get_extra_info("ssl_object")
    if tls is None:
        return False
    try:
        return bool(tls.read(1))
    except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
        return False
    except ssl.SSLError:
        return True
