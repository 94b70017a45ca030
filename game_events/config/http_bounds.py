"""Bounds of HTTP calls: seconds for a whole answer, its head included, and its bytes, whatever the other side sends.

Clients bound each read of an answer, not all of them: a byte a second, or `100 Continue` without end, never reaches a time-out.
"""

import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, cast

import httpx2

from game_events.config.network import within
from game_events.errors import DataError


def bounded(client: httpx2.Client, seconds: float, most_bytes: int | None = None) -> httpx2.Client:
    """The client, of which each request is over after so many seconds, with so many bytes.

    Requests raise httpx2.ReadTimeout after the seconds, and DataError for a longer answer. With `stream` the seconds are
    those until the body begins.
    """
    streams: list[weakref.ref[Any]] = []  # of all connections: one may be used again
    send = client.send

    def send_within(request: httpx2.Request, **options: Any) -> httpx2.Response:  # noqa: ANN401 - those of httpx2
        over = threading.Event()

        def note(event: str, info: dict[str, Any]) -> None:
            if event.endswith(("connect_tcp.complete", "start_tls.complete")):
                stream = info["return_value"]
                streams[:] = [*(known for known in streams if known() is not None), weakref.ref(stream)]
                if over.is_set():
                    _shut(stream)

        request.extensions = {**request.extensions, "trace": note}
        try:
            return within(seconds, partial(send, request, **options), "http")
        except TimeoutError as error:
            over.set()
            for known in list(streams):
                _shut(known())
            said = str(error) or f"the answer was not at its end after {seconds:g} s"
            raise httpx2.ReadTimeout(said, request=request) from None

    setattr(client, "send", send_within)  # noqa: B010 - every other method calls it
    if most_bytes is not None:
        client.event_hooks = {"response": [partial(_bound, most_bytes)]}
    return client


def _shut(stream: Any) -> None:  # noqa: ANN401 - httpcore2's
    """End whatever waits for a connection; its own thread closes it."""
    if stream is not None:
        with suppress(OSError):
            # Not that of an encrypted socket, which would forget that it is one while it is read.
            socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_RDWR)


def _bound(most: int, response: httpx2.Response) -> None:
    # Called before an answer is read. Its compressed size would be no limit; no compression was requested.
    response.headers.pop("Content-Encoding", None)
    response.stream = _BoundedStream(cast(httpx2.SyncByteStream, response.stream), most)


class _BoundedStream(httpx2.SyncByteStream):
    def __init__(self, stream: httpx2.SyncByteStream, most: int) -> None:
        self._stream = stream
        self._most = most

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for piece in self._stream:
            size += len(piece)
            if size > self._most:
                raise DataError(f"the answer is longer than {self._most / 2**20:g} MiB")
            yield piece

    def close(self) -> None:
        self._stream.close()
