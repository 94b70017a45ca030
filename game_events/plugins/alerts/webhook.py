"""What an alert is (docs/alerts.md describes the fields), and how it is sent.

Guarantee: sending never raises. An alert keeps its `id` when it is sent again, and holds no values of events: only names of
tables, games and checks, counts, and texts of this project's own errors.
"""

import logging
import random
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Literal

import httpx2
from pydantic import BaseModel, Field

from game_events.config.http_bounds import bounded
from game_events.config.masking import value_of
from game_events.config.network import UNTRUSTED
from game_events.config.settings import Settings
from game_events.plugins.alerts.settings import AlertSettings

log = logging.getLogger(__name__)

VERSION = 1

#: Seconds for one attempt; number of attempts; seconds for all of them.
TIMEOUT_S, ATTEMPTS, TOTAL_S = 3.0, 3, 10.0

#: Alerts of one tick: each may take 10 s, and Dagster ends a tick after 60 s.
MOST_ALERTS = 4

#: Characters of an error's text.
LONGEST_ERROR = 1_000

Severity = Literal["error", "warning"]


class Alert(BaseModel):
    """The JSON object that is POSTed, with the address of the run's page. Fields are only ever added, or `version` grows.

    `id`: the same for the same event. `severity`, of `recovered`: that of the event that is over, which `of` names.
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


def send_all(settings: Settings, alerts: Iterator[Alert]) -> tuple[int, bool]:
    """Send `MOST_ALERTS` of some alerts at most, up to one that is not taken; how many were sent, and whether all.

    The next one is asked for when the one before was taken: a generator notes an alert as sent behind its `yield`.
    """
    sent = 0
    for alert in alerts:
        if sent == MOST_ALERTS or not send(settings, alert):
            return sent, False
        sent += 1
    return sent, True


def send(settings: Settings, alert: Alert, timeout_s: float = TIMEOUT_S) -> bool:
    """POST an alert, with retries; `timeout_s`: of one attempt.

    Returns:
        False: try again later. True: it was accepted, or rejected for good, or alerts are off.
    """
    url = value_of(AlertSettings.of(settings).alert_webhook_url)
    if url is None:
        return True
    until = time.monotonic() + TOTAL_S
    cause = ""
    for attempt in range(ATTEMPTS):
        time.sleep(random.uniform(0, 0.2 * attempt))  # noqa: S311 - nothing secret about a pause
        left_s = until - time.monotonic()
        if left_s <= 0:
            break
        try:
            answer = _post(settings, url, alert, min(timeout_s, left_s))
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            cause = _cause(error)
            continue
        cause = f"HTTP {answer.status_code}"
        if answer.is_success:
            log.info("alert=%s sent=true", alert.id)
            return True
        if not answer.is_server_error and answer.status_code != HTTPStatus.TOO_MANY_REQUESTS:
            log.warning("alert=%s sent=false given_up=true cause=%s", alert.id, cause)
            return True
    log.warning("alert=%s sent=false cause=%s", alert.id, cause)
    return False


def _post(settings: Settings, url: str, alert: Alert, timeout_s: float) -> httpx2.Response:
    """The answer's status; the rest of it is not read, however large it is."""
    # Certificates are always verified.
    trust = True if settings.tls_ca_file is None else ssl.create_default_context(cafile=str(settings.tls_ca_file))
    if settings.dagster_url and alert.run_id:
        alert = alert.model_copy(update={"url": f"{settings.dagster_url.rstrip('/')}/runs/{alert.run_id}"})
    content = alert.model_dump_json(exclude_none=True)
    headers = {"Content-Type": "application/json", "Idempotency-Key": alert.id}
    with (
        bounded(httpx2.Client(timeout=timeout_s, verify=trust), timeout_s) as client,
        client.stream("POST", url, content=content, headers=headers) as answer,
    ):
        return answer


def _cause(error: Exception) -> str:
    """Cause without the address, which the client's own text repeats."""
    if UNTRUSTED in str(error):
        return "the receiver's certificate is not trusted (GAME_EVENTS_TLS_CA_FILE names its authority's PEM file)"
    return type(error).__name__
