"""What watches a pipeline: alerts to a webhook (docs/alerts.md describes the fields), and the lag.

Alerts to a webhook (docs/alerts.md describes the fields).

Guarantee: sending never raises. An alert keeps its `id` when it is sent again, and holds no values of events: only names of
tables, games and checks, counts, and texts of this project's own errors.

Lag of each layer, in records and batches, from the broker and the Delta logs, without a Spark job.
"""

import hashlib
import json
import logging
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Literal

import httpx2
import tenacity
from pydantic import BaseModel, Field

from game_events.config.http_bounds import bounded
from game_events.config.network import UNTRUSTED
from game_events.config.settings import Settings
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, counter
from game_events.lakehouse.system_tables import Admission, ProgressTable
from game_events.lakehouse.tables import BRONZE, DOWNSTREAM, Lakehouse
from game_events.pipeline.bronze.offsets import changes
from game_events.pipeline.checks.audits import VOLUME
from game_events.pipeline.checks.table_checks import FRESH, LOST
from game_events.pipeline.offsets import next_offsets
from game_events.sources.factory import make_source
from game_events.sources.source import Offsets, Partition, SourceSnapshot

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


@dataclass(frozen=True)
class PipelineLag:
    """Lag at one moment.

    Attributes:
        name: name of the source, for display.
        seen: snapshot of the source.
        next: partition -> next offset to read; of a partition that bronze never read, the earliest.
        lag: partition -> records that bronze has not read.
        made: bronze exists and has offsets of every topic.
        ahead: partitions that end before the next offset: the topic was truncated.
        batch: bronze's last batch; `floors`: layer -> batch up to which the layer is complete.
        failed: games that a layer has to retry; without those that the allow list lacks.
        let_in: the settings let in names that they left out before: their rows may be due.
    """

    name: str
    seen: SourceSnapshot
    next: Offsets
    lag: Offsets
    made: bool = True
    ahead: tuple[Partition, ...] = ()
    batch: int = 0
    floors: dict[str, int] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    let_in: bool = False

    @property
    def total_lag(self) -> int:
        """Records that bronze has not read, over all partitions."""
        return sum(self.lag.values())

    @property
    def to_read(self) -> bool:
        """Whether a run of bronze has work: records, a new topic, or an error to report."""
        return self.total_lag > 0 or not self.made or bool(self.ahead)

    @property
    def behind(self) -> tuple[str, ...]:
        """Layers that lack batches of the layer before."""
        steps = [self.batch, *(self.floors.get(layer, 0) for layer in DOWNSTREAM)]
        return tuple(layer for layer, before, here in zip(DOWNSTREAM, steps, steps[1:], strict=False) if here < before)

    @property
    def progress_digest(self) -> str:
        """Digest of everything that a run changes: an equal one later means that the runs between made no progress."""
        # The creation of an empty table is no progress: no floor and a floor of 0 are the same.
        floors = sorted((layer, batch) for layer, batch in self.floors.items() if batch)
        parts = [sorted(self.next.items()), self.made, self.batch, floors, self.failed, *([True] if self.let_in else [])]
        return digest(parts)


def digest(parts: list[object]) -> str:
    """Short hash of the parts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def read_lag(settings: Settings, timeout_s: float) -> PipelineLag:
    """Query the broker (each answer within `timeout_s`), and read the logs of bronze and of the progress table.

    Raises:
        GameEventsError: the broker does not answer, the topic does not exist, or a table cannot be read.
    """
    source, name = make_source(settings, timeout_s), settings.source_name
    seen = source.snapshot()
    lakehouse = Lakehouse.of(settings)
    bronze = lakehouse.table(BRONZE).open_to_read()
    if bronze is None:
        # The first run decides where it starts: only records that exist already can wait for it.
        earliest = settings.starting_offsets == "earliest"
        lag = {p: (seen.latest[p] - seen.earliest[p]) // seen.unit if earliest else 0 for p in seen.latest}
        return PipelineLag(name, seen, seen.earliest, lag, made=earliest)
    # A partition that bronze never read is read from its start: also an added one, and all of a recreated topic.
    known = next_offsets(bronze, seen.latest)
    reached = seen.earliest | known
    state, admission = ProgressTable(lakehouse).read(BronzeIdentity.of(bronze).key), Admission.of(settings)
    return PipelineLag(
        name,
        seen,
        reached,
        lag={p: max(0, end - reached[p]) // seen.unit for p, end in seen.latest.items()},
        made=not changes(source, settings, bronze, seen, known).anything,
        ahead=tuple(p for p, at in sorted(reached.items()) if at > seen.latest[p]),
        batch=counter(bronze, Txn.BATCH),
        floors={layer: state.floor(layer) for layer in DOWNSTREAM},
        failed=tuple(sorted({game for _, game in state.failed} - state.held(admission))),
        let_in=not state.left_out.covers(admission),
    )
