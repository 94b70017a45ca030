"""Writer of `event_log`: one commit at the end of each run, also of failed ones; in continuous mode at most one a minute.

Guarantee: a run's events are written once, or a warning is logged. A failure to write them does not fail the run. The rows hold
no values of events, keys of people, or secrets.
"""

import getpass
import json
import logging
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from typing import Any, Protocol

from deltalake.exceptions import DeltaError
from pydantic import SecretStr
from pydantic_settings import BaseSettings
from pyspark.errors import PySparkException

from game_events.config.masking import MASK, mask_all, without_secrets
from game_events.config.names import Names
from game_events.config.settings import Settings
from game_events.decoding.frame import ordered
from game_events.errors import GameEventsError, stop_of, without_quotes
from game_events.lakehouse import failpoints
from game_events.lakehouse.system_tables import EventRow, append_events
from game_events.lakehouse.tables import BRONZE, QUARANTINE, SILVER, Layer, gold_name, is_gold, silver_name
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import CheckResult, RunResult, TableMaintenance, TableReport
from game_events.plugin import parts

log = logging.getLogger(__name__)
#: Seconds between two commits in continuous mode.
INTERVAL_S = 60.0
SUCCEEDED, FAILED, STOPPED = "succeeded", "failed", "stopped"


@dataclass(frozen=True)
class RunFacts:
    """What the result does not hold of its run; `error`: the one that ended it, if any."""

    job: str
    seconds: float
    error: BaseException | None = None
    time: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def stopped(self) -> bool:
        """Whether it was cancelled (Ctrl-C, the UI)."""
        return self.error is not None and stop_of(self.error) is not None


class RunObserver(Protocol):
    """Is told what a run does, and adds to its report what it did itself. Never raises: the rows are committed."""

    def part(self, report: RunReport) -> None:
        """What a continuous run did since the last time."""

    def close(self, report: RunReport, error: BaseException | None, *, stopped: bool) -> None:
        """What the run did (since the last part), and how it ended; `stopped`: by a signal, so that little time is left."""


def _observers(pipeline: Pipeline, job: str, *, is_streaming: bool) -> list[RunObserver]:
    """The observers of all plug-ins, told of the run's start."""
    return [observe(pipeline, job, is_streaming) for observe in parts("run_observer")]


@contextmanager
def recorded(pipeline: Pipeline, report: RunReport, job: str, attempt: int = 0, *, observed: bool = True) -> Iterator[None]:
    """At the end of the block, also after an error: tell plug-ins (if `observed`), write the report to the event log.

    Run id, `job` and `attempt` (number of earlier attempts under this run id) identify the events.
    """
    began = time.monotonic()
    observers = _observers(pipeline, job, is_streaming=False) if observed else []
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        facts = RunFacts(job, time.monotonic() - began, error)
        for observer in observers:
            observer.close(report, error, stopped=facts.stopped)
        write_events(pipeline, report, facts, str(attempt))


def write_events(pipeline: Pipeline, report: RunResult, run: RunFacts, part: str = "0") -> bool:
    """Append a run's events, each `part` of a run once; returns False after a failure, which is logged as a warning."""
    failpoints.reach("events_due")
    try:
        rows = event_rows(report, run, pipeline.settings)
        append_events(pipeline.lakehouse, rows, pipeline.run_id, f"{run.job}#{part}")
    except Exception as error:  # noqa: BLE001 - the run did its work: nothing that happens here may fail it
        why = without_secrets(str(error), pipeline.settings)
        log.warning("event_log_not_written=true run_id=%s error=%s why=%r", pipeline.run_id, type(error).__name__, why)
        return False
    return True


class RunLog:
    """The event log of continuous mode: the merged results of its cycles, a commit a minute; none while nothing happens.

    A part that could not be written is kept and written with the next one.
    """

    def __init__(self, pipeline: Pipeline, job: str, attempt: int = 0, interval_s: float = INTERVAL_S) -> None:
        self._pipeline = pipeline
        self._job = job
        self._attempt = attempt
        self._interval_s = interval_s
        self._pending = RunReport()
        #: Cycles since lineage was sent: what the event log could not take is not sent a second time.
        self._unsent = RunReport()
        self._part = 0
        self._began = time.monotonic()
        self._observers = _observers(pipeline, job, is_streaming=True)
        #: What the observers did.
        self.extra = RunReport()

    def add(self, report: RunResult) -> None:
        """Add a cycle; write if the interval has passed."""
        if report.tables or report.checks:
            self._pending.add(report)
            self._unsent.add(report)
        if (self._pending.tables or self._pending.checks) and time.monotonic() - self._began >= self._interval_s:
            self._write(None, end=False)

    def close(self, error: BaseException | None = None) -> None:
        """Write what is left, and how the run ended."""
        self._write(error, end=True)

    def _write(self, error: BaseException | None, *, end: bool) -> None:
        """Register the tables and send the lineage of the cycles since the last time, then write the events."""
        news = self._unsent
        self._unsent = RunReport()
        facts = RunFacts(self._job, time.monotonic() - self._began, error)
        for observer in self._observers:
            if end:
                observer.close(news, error, stopped=facts.stopped)
            else:
                observer.part(news)
        extra = RunResult(registered=news.registered, parts=news.parts, checks=news.checks, notices=news.notices)
        self.extra.add(extra)
        self._pending.add(extra)
        facts = replace(facts, seconds=time.monotonic() - self._began)  # with the time that those took
        if write_events(self._pipeline, self._pending, facts, f"{self._attempt}.{self._part}"):
            self._pending = RunReport()
            self._part += 1
        self._began = time.monotonic()


def event_rows(report: RunResult, run: RunFacts, settings: Settings) -> Sequence[EventRow]:
    """All rows of one run; columns are those of `event_log.SCHEMA`, missing ones are NULL."""
    names = settings.names
    rows = [_run(report, run, settings)]
    rows += [_row("layer", at, rows=report.rows(at), seconds=round(s, 3)) for at, s in report.seconds.items()]
    rows += _read(report)
    rows += [_table(entry, report, settings) for entry in report.tables]
    rows += _counts(report, names)
    rows += _rules(report)
    rows += _gaps(report, names)
    rows += [_maintenance(entry, settings) for entry in report.maintenance.values() if entry.anything]
    rows += chain.from_iterable(map(_expired, report.maintenance.values()))
    for part in report.parts.values():
        rows += part.event_rows()
    rows += [*_schemas(report), *_new_columns(report), *(_check(check, settings) for check in report.checks)]
    for row in rows:
        detail = row.get("detail")
        row.update(time=run.time, detail=json.dumps(detail, default=str, ensure_ascii=False) if detail else None)
    return rows


def _row(kind: str, layer: str | None = None, **columns: object) -> dict[str, Any]:
    return {"kind": kind, "layer": layer, **columns}


def _read(report: RunResult) -> Iterator[dict[str, Any]]:
    for topic in report.topics:
        read = {p: (a, b, report.lag.get(p, 0)) for p, (a, b) in sorted(report.offsets.items()) if p.place == topic}
        rows = sum(end - start for start, end, _ in read.values())
        lag = sum(n for p, n in report.lag.items() if p.place == topic)
        detail = {"partitions": {str(p.number): list(numbers) for p, numbers in read.items()}}
        yield _row("read", "bronze", name=topic, rows=rows, lag=lag, detail=detail)
    for source, why in (report.left_out or {}).items():
        yield _row("left_out", "bronze", name=source, status=FAILED, detail={"error": why})


def _counts(report: RunResult, names: Names) -> Iterator[dict[str, Any]]:
    """Rows of the fields with an `Event`."""
    for f in fields(report):
        event = f.metadata["event"]
        value = getattr(report, f.name)
        if event is not None and value:
            table = names.name_of(event.table) if event.table else None
            for name, rows in sorted(value.items()) if isinstance(value, Mapping) else [(None, value)]:
                yield _row(event.kind, event.layer, table=table, name=name, rows=rows)


def _rules(report: RunResult) -> Iterator[dict[str, Any]]:
    for rule in report.rules.values():
        if rule.violated:  # not of all: rules x games, in every run
            counts = {"rows": rule.violated, "detail": {"rows_checked": rule.rows}}
            yield _row("rule", rule.layer, game=rule.game, name=rule.rule, status=rule.action) | counts


def _gaps(report: RunResult, names: Names) -> Iterator[dict[str, Any]]:
    for gap in report.gaps:
        name = f"{gap.topic}[{gap.partition}]"
        missing = {"from": gap.start, "to": gap.end, "topic_id": gap.topic_id}
        yield _row("gap", "bronze", table=names.name_of(BRONZE), name=name, rows=gap.offsets, detail=missing)


def _check(check: CheckResult, settings: Settings) -> dict[str, Any]:
    detail = {"summary": without_secrets(check.summary, settings)} | ({} if check.passed else {"counts": dict(check.counts)})
    status = "passed" if check.passed else FAILED if check.wrong_rows else "warned"
    return _row("check", check.layer, name=check.name, delta_version=check.version, status=status, detail=detail)


def _maintenance(entry: TableMaintenance, settings: Settings) -> dict[str, Any]:
    texts = {name: without_secrets(getattr(entry, name) or "", settings) or None for name in ("skipped", "error")}
    status = FAILED if entry.error else "skipped" if entry.skipped else "done"
    return _row("maintenance", table=entry.table, status=status, detail=asdict(entry) | texts)


def _expired(entry: TableMaintenance) -> Iterator[dict[str, Any]]:
    """Rows that were removed by age, of silver by game."""
    for game, rows in entry.expired_games.items():
        yield _row("gone_by_age", Layer.SILVER, table=entry.table, game=game, rows=rows)
    if entry.expired and not entry.expired_games:
        yield _row("gone_by_age", table=entry.table, rows=entry.expired)
    if entry.raw_values:
        yield _row("gone_by_age", table=entry.table, name="raw values", rows=entry.raw_values)


def _run(report: RunResult, run: RunFacts, settings: Settings) -> dict[str, Any]:
    detail: dict[str, Any] = {"started_by": _who(), "settings": _masked_settings(settings)}
    if report.batches:
        detail["batches"] = [report.batches[0], report.batches[-1]]
    if report.schema_ids:
        detail["schema_ids"] = sorted(report.schema_ids, key=ordered)
    if run.error is not None:
        error = stop_of(run.error) or run.error
        detail["error"] = {"class": type(error).__name__, "text": without_secrets(safe_error_text(error), settings)}
    elif report.left_out:
        detail["error"] = {"class": "sources", "text": f"left out: {', '.join(report.left_out)}"}
    elif report.errors:
        names = ", ".join(t.table for t in report.errors[:10])
        detail["error"] = {"class": "tables", "text": f"{len(report.errors)} tables failed: {names}"}
    return _row(
        "run",
        name=run.job,
        rows=report.rows("bronze"),
        lag=sum(report.lag.values()) if report.lag else None,
        seconds=round(run.seconds, 3),
        status=_status(report, run),
        detail=detail,
    )


def _status(report: RunResult, run: RunFacts) -> str:
    if not report.success or (run.error is not None and not run.stopped):
        return FAILED
    return STOPPED if run.stopped else SUCCEEDED


def _table(entry: TableReport, report: RunResult, settings: Settings) -> dict[str, Any]:
    row = _row("table", entry.layer, table=entry.table, game=entry.game)
    if entry.error is not None:
        return row | {"status": FAILED, "detail": {"error": without_secrets(without_quotes(entry.error), settings)}}
    counts = {name: getattr(entry, name) for name in ("rows", "table_rows", "table_bytes", "batch")}
    status = "new" if entry.new else "changed"
    inputs = _inputs(entry, report, settings.names)
    return row | counts | {"delta_version": entry.version, "status": status, "detail": {"inputs": inputs}}


def _inputs(entry: TableReport, report: RunResult, names: Names) -> list[dict[str, Any]]:
    """Lineage: the inputs of the rows, and up to which batch of bronze. Versions of these are in rows of their own."""
    if entry.layer in ("bronze", "quarantine"):
        topics: list[dict[str, Any]] = [{"topic": topic} for topic in report.topics]
        replayed = report.replayed and entry.layer == "bronze"
        return [*topics, {"table": names.name_of(QUARANTINE)}] if replayed else topics
    if entry.layer == "silver":
        return [{"table": names.name_of(BRONZE), "batch": entry.batch}]
    if is_gold(entry.layer) and entry.game is not None:
        shared = entry.table.startswith(names.asset("gold_unified_"))
        tables = [names.name_of(SILVER if shared else silver_name(entry.game)), *types_of(report, entry.game)]
        return [{"table": table, "batch": entry.batch} for table in tables]
    changed = sum(t.error is None for t in report.of("gold"))
    return [{"table": names.name_of(gold_name("{game}")), "games": changed, "batch": entry.batch}]


def types_of(report: RunResult, game: str) -> list[str]:
    """Names of the tables of a game's message types that a run has added rows to."""
    of_game = (t for t in report.of("silver") if t.game == game and t.message_type is not None and t.error is None)
    return sorted(table.table for table in of_game)


def _schemas(report: RunResult) -> Iterator[dict[str, Any]]:
    for schema_id, known in sorted(report.new_schemas.items(), key=lambda item: ordered(item[0])):
        subject = dict(zip(("subject", "version"), known, strict=True)) if known is not None else {}
        yield _row("schema", "bronze", name=f"schema id {schema_id}", detail={"schema_id": schema_id, **subject})


def _new_columns(report: RunResult) -> Iterator[dict[str, Any]]:
    for entry in report.tables:
        types = dict(entry.columns)
        for column in entry.new_columns:
            base, double, kind = column.rpartition("__")
            clash = {"other_kind_of": base, "kind": kind} if double and base in types else {}
            status = "column of another kind" if clash else "new column"
            place = {"table": entry.table, "game": entry.game, "delta_version": entry.version}
            yield _row("schema", entry.layer, name=column, status=status, detail={"type": types.get(column), **clash}, **place)


def _who() -> dict[str, str]:
    """User, host and version of this package."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "unknown"
    return {"user": user, "host": socket.gethostname(), "version": version("game-events")}


def _masked_settings(settings: Settings) -> dict[str, Any]:
    """Settings that differ from their defaults. Of options for Kafka and Spark only the names: values may be secrets."""
    defaults = {name: field.get_default(call_default_factory=True) for name, field in type(settings).model_fields.items()}
    return {name: _masked(value) for name, value in settings if value != defaults[name]}


def _masked(value: object) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, BaseSettings):
        return {name: _masked(getattr(value, name)) for name in sorted(value.model_fields_set)}
    if isinstance(value, dict):
        named = {str(name): _masked(inner) if isinstance(inner, BaseSettings) else MASK for name, inner in value.items()}
        return dict(sorted(named.items()))
    if isinstance(value, tuple | list | set | frozenset):
        return [_masked(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return mask_all(str(value), ())


def safe_error_text(error: BaseException) -> str:
    """Text of an error without values of rows, which errors of Spark and of custom code may quote."""
    if isinstance(error, PySparkException):
        return f"{error.getCondition() or 'it has no class'}: its text is in the run's log"
    ours = isinstance(error, GameEventsError | DeltaError | OSError) or not isinstance(error, Exception)
    return without_quotes(str(error)) if ours else "its text is in the run's log"
