"""Sending OpenLineage events to the receiver of the settings, by the project's standard client.

Guarantee: a run is neither failed nor held up by it: sending raises nothing, and takes at most `openlineage_timeout_s` of a run
(of one that goes on: of each part of it). What was not taken is counted and told, and not sent again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import requests
from openlineage.client.client import OpenLineageClient
from openlineage.client.event_v2 import RunEvent
from openlineage.client.transport.http import (
    ApiKeyTokenProvider,
    HttpConfig,
    HttpSslContextConfig,
    HttpTransport,
    TokenProvider,
)

from game_events.config.settings import Settings
from game_events.config.tls import UNTRUSTED
from game_events.pipeline.reporting.lineage_result import LineageAccount

log = logging.getLogger(__name__)
#: Seconds for one event at most.
REQUEST_S = 3.0
#: Answers that are about one event alone: the next one may be taken.
_ABOUT_THE_EVENT = frozenset({400, 413, 422})
#: A busy receiver is asked a few times; what it says of when to come back is not waited for.
_RETRY = {
    "total": 2, "connect": 1, "read": 0, "status": 2, "backoff_factor": 0.2, "respect_retry_after_header": False,
    "status_forcelist": [429, 500, 502, 503, 504], "allowed_methods": ["POST"],
}  # fmt: skip


@dataclass
class Sender:
    """The way to the receiver, for one run.

    Attributes:
        settings: whose receiver.
    """

    settings: Settings
    _left_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._left_s = self.settings.openlineage_timeout_s

    def again(self) -> None:
        """The next part of a run that goes on has the whole time."""
        self._left_s = self.settings.openlineage_timeout_s

    def hurry(self, seconds: float) -> None:
        """No more than so much time from now on."""
        self._left_s = min(self._left_s, seconds)

    def send(self, events: Iterable[RunEvent]) -> LineageAccount:
        """Send events in their order, until the time is over or the receiver is gone."""
        part, waiting = LineageAccount(), list(events)
        began = time.monotonic()
        # In a thread: a receiver that answers byte by byte keeps within each time-out of the client and takes for ever.
        worker = threading.Thread(
            target=self._work, args=(waiting, part, began + self._left_s), name="openlineage", daemon=True
        )
        worker.start()
        worker.join(self._left_s)
        sent = part.sent  # once: the thread may still be at work
        found = LineageAccount(sent, len(waiting) - sent, part.why or ("it took too long" if sent < len(waiting) else ""))
        self._left_s = max(0.0, self._left_s - (time.monotonic() - began))
        if found.lost:
            log.warning("lineage_sent=%d lineage_lost=%d why=%r", found.sent, found.lost, found.why)
        return found

    def _work(self, events: list[RunEvent], part: LineageAccount, until: float) -> None:
        client: OpenLineageClient | None = None
        try:
            client = _client(self.settings)
            for event in events:
                if time.monotonic() >= until:
                    return
                try:
                    client.emit(event)
                    part.sent += 1
                except requests.HTTPError as error:
                    part.why = part.why or _cause(error)
                    if error.response is None or error.response.status_code not in _ABOUT_THE_EVENT:
                        return
        except Exception as error:  # noqa: BLE001 - the run did its work: nothing that happens here may fail it
            part.why = part.why or _cause(error)
        finally:
            if client is not None:
                client.close()


def _client(settings: Settings) -> OpenLineageClient:
    key = settings.openlineage_api_key
    ca = settings.tls_ca_file
    transport = HttpTransport(
        HttpConfig(
            url=f"{settings.openlineage_url}/",
            endpoint=settings.openlineage_endpoint.lstrip("/"),
            timeout=min(REQUEST_S, settings.openlineage_timeout_s),
            auth=ApiKeyTokenProvider({"api_key": key.get_secret_value()}) if key is not None else TokenProvider({}),
            retry=_RETRY,
            ssl_context=HttpSslContextConfig(ca_cert_path=str(ca)) if ca is not None else None,
        )
    )
    # What git says of the folder that the process happens to run in is not where the job comes from.
    return OpenLineageClient(transport=transport, config={"facets": {"source_code_location": {"disabled": True}}})


def _cause(error: Exception) -> str:
    """Neither the address nor the client's words, which repeat it."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code}"
    if UNTRUSTED in str(error):
        return "the receiver's certificate is not trusted (GAME_EVENTS_TLS_CA_FILE names its authority's PEM file)"
    return type(error).__name__
