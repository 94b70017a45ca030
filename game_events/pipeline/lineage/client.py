"""Delivery of OpenLineage events by the standard client.

Guarantee: sending never raises, and takes no longer than it may. Lost events are counted and reported, and not sent again.
"""

import logging
import time
from http import HTTPStatus

import requests
from openlineage.client.client import OpenLineageClient
from openlineage.client.event_v2 import RunEvent
from openlineage.client.transport import http

from game_events.config.background import within
from game_events.config.settings import Settings
from game_events.config.tls import UNTRUSTED
from game_events.pipeline.reporting.steps import LineageResult

log = logging.getLogger(__name__)
#: Seconds for one event at most.
REQUEST_S = 3.0
#: Answers that reject one event: the next one may be accepted.
_ABOUT_THE_EVENT = frozenset({400, 413, 422})
#: A busy receiver is retried a few times, without its `Retry-After`.
_RETRY = {
    "total": 2, "connect": 1, "read": 0, "status": 2, "backoff_factor": 0.2, "respect_retry_after_header": False,
    "status_forcelist": [429, 500, 502, 503, 504], "allowed_methods": ["POST"],
}  # fmt: skip


def send(settings: Settings, events: list[RunEvent], within_s: float) -> LineageResult:
    """Send events in order, until the time is over or the receiver is unavailable."""
    sent, causes = list[RunEvent](), list[str]()
    # A receiver that answers byte by byte never reaches a time-out of the client.
    until = time.monotonic() + within_s
    try:
        within(within_s, lambda: _work(settings, events, sent, causes, until), "openlineage")
    except TimeoutError as error:
        causes += filter(None, [str(error)])
    taken = len(sent)  # once: the thread may still be at work
    why = causes[0] if causes else "it took too long" if taken < len(events) else ""
    found = LineageResult(taken, len(events) - taken, why)
    if found.lost:
        log.warning("lineage_sent=%d lineage_lost=%d why=%r", found.sent, found.lost, found.why)
    return found


def _work(settings: Settings, events: list[RunEvent], sent: list[RunEvent], causes: list[str], until: float) -> None:
    client: OpenLineageClient | None = None
    try:
        client = _client(settings)
        for event in events:
            if time.monotonic() >= until:
                return
            try:
                client.emit(event)
                sent.append(event)
            except requests.HTTPError as error:
                causes.append(_cause(error))
                if error.response is None or error.response.status_code not in _ABOUT_THE_EVENT:
                    return
    except Exception as error:  # noqa: BLE001 - the run did its work: nothing that happens here may fail it
        causes.append(_cause(error))
    finally:
        if client is not None:
            client.close()


def _require_taken(answer: requests.Response, **_: object) -> None:
    """Raise for an answer that takes no event although it is no error: one that leads to another address is not followed."""
    if not HTTPStatus.OK <= answer.status_code < HTTPStatus.MULTIPLE_CHOICES:
        raise requests.HTTPError(response=answer)


def _client(settings: Settings) -> OpenLineageClient:
    session = requests.Session()
    session.hooks["response"].append(_require_taken)
    key = settings.openlineage_api_key
    ca = settings.tls_ca_file
    transport = http.HttpTransport(
        http.HttpConfig(
            url=f"{settings.openlineage_url}/",
            session=session,
            endpoint=settings.openlineage_endpoint.lstrip("/"),
            timeout=min(REQUEST_S, settings.openlineage_timeout_s),
            auth=http.ApiKeyTokenProvider({"api_key": key.get_secret_value()}) if key is not None else http.TokenProvider({}),
            retry=_RETRY,
            ssl_context=http.HttpSslContextConfig(ca_cert_path=str(ca)) if ca is not None else None,
        )
    )
    # The git repository of the working directory is not the source of the job.
    return OpenLineageClient(transport=transport, config={"facets": {"source_code_location": {"disabled": True}}})


def _cause(error: Exception) -> str:
    """Cause without the address, which the client's own text repeats."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code}"
    if UNTRUSTED in str(error):
        return "the receiver's certificate is not trusted (GAME_EVENTS_TLS_CA_FILE names its authority's PEM file)"
    return type(error).__name__
