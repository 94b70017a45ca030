"""Alerts to a webhook (docs/alerts.md describes the fields).

Guarantee: sending never raises. An alert keeps its `id` when it is sent again, and holds no values of events: only names of
tables, games and checks, counts, and texts of this project's own errors.
"""

import logging
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Literal

import httpx2
import tenacity
from pydantic import BaseModel, Field

from game_events.config.http_bounds import bounded
from game_events.config.settings import Settings
from game_events.config.tls import UNTRUSTED
from game_events.pipeline.checks.history import VOLUME
from game_events.pipeline.checks.source import FRESH, LOST

log = logging.getLogger(__name__)
VERSION = 1
#: Seconds for one attempt; number of attempts; seconds for all of them.
TIMEOUT_S, ATTEMPTS, TOTAL_S = 3.0, 3, 10.0
#: Characters of an error's text.
LONGEST_ERROR = 1_000
Severity = Literal["error", "warning"]
#: Checks that raise an alert although no row is wrong: no other check fails if a producer stops.
DEFAULT_SEVERITY: Mapping[str, Severity] = {FRESH: "error", LOST: "error", VOLUME: "warning"}


class Alert(BaseModel):
    """One alert: the JSON object that is POSTed. Fields are only ever added, or `version` grows.

    Attributes:
        version: of this format.
        id: the same for the same event.
        event: what happened.
        severity: of `recovered`: that of the event that is over.
        of: for `recovered`: the event that is over.
        time: of the detection (UTC).
        summary: one line of text.
        run_id, job, url: the run, and its page in the Dagster UI if its address is known.
        games, tables: those concerned.
        check: `asset/check`.
        error: text of the error.
        counts: rows, records, games.
    """

    version: int = VERSION
    id: str
    event: Literal["run_failed", "check_failed", "data_lost", "lag_high", "recovered"]
    severity: Severity = "error"
    of: Literal["check_failed", "lag_high"] | None = None
    time: datetime = Field(default_factory=lambda: datetime.now(UTC))
    summary: str
    run_id: str | None = None
    job: str | None = None
    url: str | None = None
    games: list[str] = []
    tables: list[str] = []
    check: str | None = None
    error: str | None = Field(None, max_length=LONGEST_ERROR)
    counts: dict[str, int] = {}


def severity_of(settings: Settings, check: str, *, wrong_rows: bool = False) -> Severity | None:
    """Severity of a failed check by the setting `alert_severity`, or the default; None: no alert."""
    chosen = settings.alert_severity.get(check, "error" if wrong_rows else DEFAULT_SEVERITY.get(check, "none"))
    return None if chosen == "none" else chosen


def run_url(settings: Settings, run_id: str) -> str | None:
    """The run's page in the UI, if the UI's address is known."""
    return f"{settings.dagster_url.rstrip('/')}/runs/{run_id}" if settings.dagster_url else None


def send(settings: Settings, alert: Alert, timeout_s: float = TIMEOUT_S) -> bool:
    """POST an alert, with retries; `timeout_s`: of one attempt.

    Returns:
        False: try again later. True: it was accepted, or rejected for good, or alerts are off.
    """
    if settings.alert_webhook_url is None:
        return True
    url = settings.alert_webhook_url.get_secret_value()
    until = time.monotonic() + TOTAL_S
    attempts = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS) | tenacity.stop_before_delay(TOTAL_S),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=2.0),
        retry=tenacity.retry_if_exception_type(httpx2.TransportError) | tenacity.retry_if_result(_is_busy),
        retry_error_callback=lambda last: last.outcome.result() if last.outcome is not None else None,
    )
    try:
        # Certificates are always verified.
        trust = True if settings.tls_ca_file is None else ssl.create_default_context(cafile=str(settings.tls_ca_file))
        answer = attempts(lambda: _post(url, alert, trust, max(0.1, min(timeout_s, until - time.monotonic()))))
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        log.warning("alert=%s sent=false cause=%s", alert.id, _cause(error))
        return False
    if answer.is_success:
        log.info("alert=%s sent=true", alert.id)
        return True
    given_up = "" if _is_busy(answer) else " given_up=true"
    log.warning("alert=%s sent=false%s cause=HTTP %s", alert.id, given_up, answer.status_code)
    return not _is_busy(answer)


def _cause(error: Exception) -> str:
    """Cause without the address, which the client's own text repeats."""
    if UNTRUSTED in str(error):
        return "the receiver's certificate is not trusted (GAME_EVENTS_TLS_CA_FILE names its authority's PEM file)"
    return type(error).__name__


def _post(url: str, alert: Alert, trust: ssl.SSLContext | bool, timeout_s: float) -> httpx2.Response:
    content = alert.model_dump_json(exclude_none=True)
    headers = {"Content-Type": "application/json", "Idempotency-Key": alert.id}
    # Only the status is read, however large the answer is.
    with (
        bounded(httpx2.Client(timeout=timeout_s, verify=trust), timeout_s) as client,
        client.stream("POST", url, content=content, headers=headers) as answer,
    ):
        return answer


def _is_busy(answer: httpx2.Response) -> bool:
    """Whether the receiver may accept the alert later."""
    return answer.is_server_error or answer.status_code == HTTPStatus.TOO_MANY_REQUESTS
