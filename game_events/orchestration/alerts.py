"""Alerts to a webhook: of failed runs, of checks that turned, of lost records; docs/alerts.md describes the fields.

Guarantee: sending never raises. An alert keeps its `id` when it is sent again, and holds no values of events: only names of
tables, games and checks, counts, and texts of this project's own errors. What a tick could not send is sent by the next one.

Not Dagster's `run_failure_sensor` (1.13): it moves its cursor past a run also when its function fails, so an alert is lost
while the webhook is away; it skips runs without a remote origin, as those of the command line are; and it knows no checks.
"""

import logging
import ssl
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Literal, Self

import dagster as dg
import httpx2
import tenacity
from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pydantic import BaseModel, Field

from game_events.config.http_bounds import bounded
from game_events.config.network import UNTRUSTED
from game_events.config.settings import Settings
from game_events.errors import GameEventsError
from game_events.lakehouse.commits.log import TableLog
from game_events.lakehouse.tables import BRONZE, Lakehouse
from game_events.orchestration.checks import Evaluation, check_evaluation, history
from game_events.orchestration.events import plain
from game_events.orchestration.keys import JOB, DagsterAssetCheckFailedError, Keys, report_in
from game_events.orchestration.runs import OWN_ALERTS, OwnRuns, repository_of
from game_events.orchestration.ticks import SensorCursor, Tick
from game_events.pipeline.checks.audits import VOLUME, volume
from game_events.pipeline.checks.table_checks import FRESH, LOST, Loss, fresh, gaps_in_words, last_records, losses
from game_events.pipeline.context import Pipeline, no_spark

log = logging.getLogger(__name__)

VERSION = 1

#: Seconds for one attempt; number of attempts; seconds for all of them.
TIMEOUT_S, ATTEMPTS, TOTAL_S = 3.0, 3, 10.0

#: Alerts of one tick.
MOST_ALERTS = 4

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


def run_url(settings: Settings, run_id: str | None) -> str | None:
    """The run's page in the UI, if there is a run, and the UI's address is known."""
    return f"{settings.dagster_url.rstrip('/')}/runs/{run_id}" if settings.dagster_url and run_id else None


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


class NotSentError(Exception):
    """The receiver did not take an alert, or the tick has sent as many as it may: the next tick goes on."""


class Sender:
    """Sends the alerts of one tick, `most` of them: each may take 10 s, and Dagster ends a tick after 60 s."""

    def __init__(self, settings: Settings, most: int = MOST_ALERTS) -> None:
        self._settings = settings
        self._most = most
        self.sent = 0

    def send(self, alert: Alert) -> None:
        """Send one.

        Raises:
            NotSentError: it is to be sent by the next tick.
        """
        if self.sent == self._most or not send(self._settings, alert):
            raise NotSentError
        self.sent += 1


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


SEE_LOG = "see the run's log in the Dagster UI"

NO_MESSAGE = f"the run ended without an error message: {SEE_LOG}"


def alert_of_run(instance: DagsterInstance, settings: Settings, run: DagsterRun) -> Alert | None:
    """Alert of a failed run; None: only a blocking check failed, which has its own alert."""
    failed = _failure(instance, run)
    if failed is None:
        return None
    error, report = failed
    failures = [e for e in report.get("errors", []) if isinstance(e, dict)]
    tables = [str(e["table"]) for e in failures]
    if tables:
        error = f"{len(tables)} tables failed; why is in the run's log"
    return Alert(
        id=f"run_failed:{run.run_id}",
        event="run_failed",
        summary=f"run {run.run_id[:8]} of {run.job_name} failed",
        run_id=run.run_id,
        job=run.job_name,
        url=run_url(settings, run.run_id),
        games=sorted({str(e["game"]) for e in failures if e.get("game")}),
        tables=tables,
        error=error[:LONGEST_ERROR],
        counts={f"{layer}_rows": int(n) for layer, n in report.get("rows", {}).items()},
    )


def _failure(instance: DagsterInstance, run: DagsterRun) -> tuple[str, dict[str, Any]] | None:
    """Message and report of the failed step with the whole report, else of the first one, else of the run.

    None: a blocking check failed.
    """
    entries = instance.all_logs(run.run_id, of_type={DagsterEventType.STEP_FAILURE, DagsterEventType.RUN_FAILURE})
    events = [entry.get_dagster_event() for entry in entries]
    steps = [_step_failure(event) for event in events if event.event_type == DagsterEventType.STEP_FAILURE]
    if steps:
        # A layer's step that failed for single tables names these alone.
        return next((failure for failure in steps if failure is not None and failure[1].get("rows")), steps[0])
    return next((event.message for event in reversed(events) if event.message), NO_MESSAGE), {}


def _step_failure(event: dg.DagsterEvent) -> tuple[str, dict[str, Any]] | None:
    """As `_failure`; other libraries' errors by their class only, as their messages may quote data."""
    data = event.step_failure_data
    cause = data.error.cause if data.error else None
    named = cause or data.error
    by_class = f"{named.cls_name if named else 'an error'}: {SEE_LOG}"
    if data.user_failure_data is None:
        blocked = named is not None and named.cls_name == DagsterAssetCheckFailedError.__name__
        return None if blocked else (by_class, {})
    own = cause is None or cause.cls_name in _own_errors()
    return (data.user_failure_data.description or NO_MESSAGE) if own else by_class, report_in(data.user_failure_data.metadata)


def _own_errors(of: type[GameEventsError] = GameEventsError) -> set[str | None]:
    """Names of this project's error classes; their messages have no data."""
    return {of.__name__}.union(*(_own_errors(kind) for kind in of.__subclasses__()))


def alert_of_loss(settings: Settings, loss: Loss, severity: Severity) -> Alert:
    """Alert of records that were lost before bronze read them."""
    known = [gap.offsets for gap in loss.gaps if gap.offsets is not None]
    return Alert(
        id=f"data_lost:{loss.key}",
        event="data_lost",
        severity=severity,
        summary=f"records were lost before they were read, in {len(loss.gaps):,} places",
        run_id=loss.run_id,
        url=run_url(settings, loss.run_id),
        error=gaps_in_words(loss.gaps)[:LONGEST_ERROR],
        counts={"gaps": len(loss.gaps), "offsets_lost": sum(known), "gaps_of_unknown_length": len(loss.gaps) - len(known)},
    )


def failure_of(settings: Settings, evaluation: Evaluation) -> Severity | None:
    """Severity of a check's failure; None: it passed, or gets no alert."""
    # Lost records have an alert for each commit (`alert_of_loss`); the check covers several commits.
    if evaluation.result.passed or evaluation.key.name == LOST:
        return None
    wrong_rows = evaluation.result.severity == dg.AssetCheckSeverity.ERROR
    return severity_of(settings, evaluation.key.name, wrong_rows=wrong_rows)


class CheckMemory(BaseModel):
    """State of a check after the evaluation of the time `seen` (seconds since 1970); `games`: those that it failed for."""

    seen: float = 0.0
    failing: bool = False
    severity: Severity = "error"
    games: list[str] = []

    @classmethod
    def after(cls, settings: Settings, evaluations: Sequence[Evaluation]) -> Self:
        """State after the last of some evaluations."""
        if not evaluations:
            return cls()
        last = evaluations[-1]
        bad = failure_of(settings, last)
        return cls(seen=last.at) if bad is None else cls(seen=last.at, failing=True, severity=bad, games=last.games)


def turns(settings: Settings, evaluations: Sequence[Evaluation], before: CheckMemory) -> list[Evaluation]:
    """The new evaluations (oldest first) that get an alert: the first new failure, and the last one if it ends failures."""

    def is_new_failure(evaluation: Evaluation) -> bool:
        is_new = not before.failing or not set(evaluation.games) <= set(before.games)
        return is_new and failure_of(settings, evaluation) is not None

    first = list(filter(is_new_failure, evaluations))[:1]
    ends_failures = bool(evaluations) and (before.failing or bool(first)) and evaluations[-1].result.passed
    return [*first, evaluations[-1]] if ends_failures else first


def alert_of_check(settings: Settings, evaluation: Evaluation, run: DagsterRun | None, before: CheckMemory) -> Alert:
    """Alert of a check that failed, or passes again."""
    name = f"{evaluation.key.asset_key.to_user_string()}/{evaluation.key.name}"
    severity = failure_of(settings, evaluation)
    failed = Alert(
        id=f"check_failed:{name}:{evaluation.run_id}:{evaluation.at:.6f}",
        event="check_failed",
        severity=severity or before.severity,
        summary=f"check {name} failed",
        run_id=evaluation.run_id or None,
        job=run.job_name if run else None,
        url=run_url(settings, evaluation.run_id),
        games=evaluation.games,
        check=name,
        error=plain(evaluation.result.description or "")[:LONGEST_ERROR] or None,
        counts=_numbers(evaluation),
    )
    if severity is not None:
        return failed
    over = {"id": f"recovered:{failed.id}", "event": "recovered", "of": "check_failed", "error": None}
    return failed.model_copy(update=over | {"summary": f"check {name} passes again"})


def _numbers(evaluation: Evaluation) -> dict[str, int]:
    metadata = evaluation.result.metadata
    return {k: v.value for k, v in metadata.items() if isinstance(v, dg.IntMetadataValue) and v.value is not None}


def sends_own_alerts(settings: Settings, run: DagsterRun | None) -> bool:
    """Whether a run sends its alerts at its end: one of the command line. For a continuous one that is days later."""
    return run is not None and run.tags.get(OWN_ALERTS) == "true" and run.job_name != Keys.of(settings).named(JOB)


def send_own_alerts(instance: DagsterInstance, settings: Settings, run_id: str) -> None:
    """Send a run's alerts at its end, as no daemon may be running: its failure, changed checks, lost records."""
    record = instance.get_run_record_by_id(run_id)
    if settings.alert_webhook_url is None or record is None:
        return
    run = record.dagster_run
    alert = alert_of_run(instance, settings, run) if run.status == DagsterRunStatus.FAILURE else None
    if alert is not None:
        send(settings, alert)
    events = instance.all_logs(run_id, of_type=DagsterEventType.ASSET_CHECK_EVALUATION)
    for key in {made.asset_check_key for entry in events if (made := entry.asset_check_evaluation)}:
        _send_turns(instance, settings, run, key)
    _send_losses(settings, run_id, record.start_time or record.create_timestamp.timestamp())


def _send_turns(instance: DagsterInstance, settings: Settings, run: DagsterRun, key: dg.AssetCheckKey) -> None:
    evaluations = history(instance, key)
    memory = CheckMemory.after(settings, [made for made in evaluations if made.run_id != run.run_id])
    for turned in turns(settings, [made for made in evaluations if made.run_id == run.run_id], memory):
        send(settings, alert_of_check(settings, turned, run, memory))
        memory = CheckMemory.after(settings, [turned])


def _send_losses(settings: Settings, run_id: str, since: float) -> None:
    severity = severity_of(settings, LOST)
    if severity is None:
        return
    try:
        bronze = Lakehouse.of(settings).table(BRONZE)
        handle = bronze.open_to_read()
        lost = list(losses(bronze, handle.version(), -1, int(since * 1000))) if handle is not None else []
    except (GameEventsError, DeltaError, OSError) as error:
        # The run's own work met the same storage error, and reported it.
        log.warning("losses_not_reported=true run_id=%s error=%s", run_id, type(error).__name__)
        return
    for loss in lost:
        if loss.run_id == run_id:
            send(settings, alert_of_loss(settings, loss, severity))


#: Failed runs read in one tick.
RUNS = 100

#: A run may be written later than one that ended after it: each tick reads so many seconds again.
OVERLAP_S = 60.0

#: Runs remembered as sent.
REMEMBERED = 500


class AlertCursor(SensorCursor):
    """The cursor of the sensor `alerts`.

    Attributes:
        born: first tick, in seconds since 1970: what happened before it is not reported.
        since: newest failed run seen.
        runs: failed runs with an alert already.
        checks: each check's state.
    """

    born: float = Field(default_factory=time.time)
    since: float = Field(default_factory=time.time)
    runs: list[str] = Field(default_factory=list)
    checks: dict[str, CheckMemory] = Field(default_factory=dict)


def send_run_alerts(
    instance: DagsterInstance, settings: Settings, own: OwnRuns, cursor: AlertCursor, sender: Sender, *, at_once: int = RUNS
) -> None:
    """Send an alert for each own run that failed since; the cursor moves on with each.

    `at_once`: runs that are read, besides those already sent. No alert for a run that another code location on the same
    lakehouse has started: that location's sensor sends it.

    Raises:
        NotSentError: the next tick has to go on.
    """
    after = datetime.fromtimestamp(cursor.since - OVERLAP_S, UTC)
    # Those already sent are read again: as many failures within a minute must not hide the ones behind them.
    limit = at_once + len(cursor.runs)
    records = own.records(instance, limit, by_update=True, statuses=[DagsterRunStatus.FAILURE], updated_after=after)
    for record in records:
        run = record.dagster_run
        updated = record.update_timestamp.timestamp()
        if run.run_id not in cursor.runs and (record.end_time or updated) >= cursor.born:
            alert = alert_of_run(instance, settings, run) if _is_told_here(run, own) else None
            if alert is not None:
                sender.send(alert)
            cursor.runs = [*cursor.runs, run.run_id][-REMEMBERED:]
        cursor.since = max(cursor.since, updated)


def _is_told_here(run: DagsterRun, own: OwnRuns) -> bool:
    """Whether neither the run itself nor another code location sends its alert."""
    elsewhere = None not in (own.repository, repository_of(run)) and own.repository != repository_of(run)
    return run.tags.get(OWN_ALERTS) != "true" and not elsewhere


def send_check_alerts(
    instance: DagsterInstance, settings: Settings, keys: Sequence[dg.AssetCheckKey], cursor: AlertCursor, sender: Sender
) -> None:
    """Send an alert for each check that began to fail or passes again; the cursor moves on with each.

    Raises:
        NotSentError: the next tick has to go on.
    """
    for key in keys:
        name = key.to_user_string()
        # By the time of the evaluations, not by Dagster's record of them: a run has one record for a check, made when the run
        # was planned, and overwritten by each evaluation of the run. A continuous run makes many.
        evaluations = history(instance, key)
        memory = cursor.checks.get(name)
        if memory is None:
            # Seen for the first time: evaluations from before the first tick are not reported, later changes of the result are.
            memory = CheckMemory.after(settings, [made for made in evaluations if made.at < cursor.born])
        new = [made for made in evaluations if made.at > memory.seen]
        for turned in turns(settings, new, memory):
            run = _run_of(instance, turned.run_id)
            # An alert that a continuous run of the command line sends at its end, too, has the same id.
            if not sends_own_alerts(settings, run):
                sender.send(alert_of_check(settings, turned, run, memory))
            memory = CheckMemory.after(settings, [turned])
            cursor.checks[name] = memory
        cursor.checks[name] = CheckMemory.after(settings, new) if new else memory


def _run_of(instance: DagsterInstance, run_id: str | None) -> DagsterRun | None:
    return instance.get_run_by_id(run_id) if run_id else None


def send_alerts(tick: Tick) -> dg.SkipReason:
    """A tick of the sensor `alerts`: of failed runs, and of the checks of the pipeline's own assets."""
    settings = tick.settings
    if settings.alert_webhook_url is None:
        tick.context.update_cursor("")
        return dg.SkipReason("GAME_EVENTS_ALERT_WEBHOOK_URL is not set: no alerts are sent")
    cursor = AlertCursor.read(tick.context.cursor)
    sender = Sender(settings)
    layers = set(tick.graph.keys.by_layer.values())
    checks = sorted(key for key in tick.checks if key.asset_key in layers)
    try:
        send_run_alerts(tick.instance, settings, tick.own_runs(settings), cursor, sender)
        send_check_alerts(tick.instance, settings, checks, cursor, sender)
        said = f"{sender.sent} alerts sent"
    except NotSentError:
        said = "the webhook did not take an alert, or there are many: going on"
    tick.context.update_cursor(cursor.model_dump_json())
    unknown = sorted(settings.alert_severity.keys() - {key.name for key in checks}) if checks else []
    if unknown:
        said += f"; GAME_EVENTS_ALERT_SEVERITY names no check: {', '.join(unknown)}"
    return dg.SkipReason(said)


#: Seconds between two checks of everything; what may have changed is checked in each tick.
ALL_S = 3600.0

#: Commits of bronze read in one tick.
COMMITS = 2_000


class Watch(SensorCursor):
    """The cursor of the sensor `data_alarms`.

    Attributes:
        version: bronze's version up to which losses were reported.
        table: id of that table; empty: not read yet.
        came: time of the newest record (seconds since 1970).
        stale: result of that check at the last tick.
        all_at: when everything was checked last.
        sent: losses behind `version` with an alert already.
    """

    version: int = -1
    table: str = ""
    came: float = 0.0
    stale: bool = False
    all_at: float = 0.0
    sent: list[str] = Field(default_factory=list)


def watch_data(tick: Tick) -> dg.SensorResult | dg.SkipReason:
    """A tick of the sensor `data_alarms`: what runs cannot check, as one makes its checks only when it has changed a table.

    It costs one small request while bronze does not change; once an hour it opens bronze and reads the last weeks of the event
    log. Without a bronze there is nothing to check.
    """
    watch = Watch.read(tick.context.cursor)
    evaluations = _checks_due(Pipeline(tick.settings, no_spark), watch, tick.clock(), tick.instance)
    if evaluations:
        return dg.SensorResult(asset_events=evaluations, cursor=watch.model_dump_json())
    tick.context.update_cursor(watch.model_dump_json())
    return dg.SkipReason("nothing has turned since the last tick" if watch.table else "there is no bronze yet")


def _checks_due(pipeline: Pipeline, watch: Watch, now: float, instance: DagsterInstance) -> list[dg.AssetCheckEvaluation]:
    """The results of checks that are due or have turned; sends alerts of what was lost since. The cursor moves on.

    Raises:
        GameEventsError: a table or the topic cannot be read.
    """
    everything = now >= watch.all_at + ALL_S
    if everything or TableLog(pipeline.bronze).has(watch.version + 1):
        handle = pipeline.open_bronze()
        if handle is None:
            return []
        _read_bronze(pipeline, handle, watch, instance)
    allowed = pipeline.settings.freshness_s
    stale = bool(allowed) and now - watch.came > allowed
    results = []
    if everything or stale != watch.stale:
        results.append(fresh(pipeline, now))
    if everything:
        results.append(volume(pipeline, datetime.fromtimestamp(now, UTC)))
        watch.all_at = now
    watch.stale = stale
    keys = Keys.of(pipeline.settings)
    return [check_evaluation(result, keys) for result in results]


def _read_bronze(pipeline: Pipeline, handle: DeltaTable, watch: Watch, instance: DagsterInstance) -> None:
    """Read the time of the newest record, and send an alert of each loss since the last tick, the oldest first."""
    version = handle.version()
    table = str(handle.metadata().id)
    if watch.table != table:
        # Losses from before the first tick are not reported; a table that was made since may have begun with a loss.
        watch.version = -1 if watch.table else version
        watch.table = table
        watch.sent = []
    last = last_records(pipeline.bronze, version)
    watch.came = last.time.timestamp() if last is not None else 0.0
    lost = list(losses(pipeline.bronze, version, max(watch.version, version - COMMITS)))
    severity = severity_of(pipeline.settings, LOST)
    sender = Sender(pipeline.settings)
    try:
        for loss in reversed(lost):
            told = loss.key in watch.sent or sends_own_alerts(pipeline.settings, _run_of(instance, loss.run_id))
            if severity is not None and not told:
                sender.send(alert_of_loss(pipeline.settings, loss, severity))
                watch.sent.append(loss.key)
    except NotSentError:
        return
    watch.version = version
    watch.sent = []
