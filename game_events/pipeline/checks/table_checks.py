"""The list of table checks, for Dagster's asset checks and for the end of a run; and those of bronze.

They look at what bronze's commits tell of its source (how long no records came, which were gone before they were read), and
whether an offset was skipped or read twice, by the commits and by the coordinates of the rows.
"""

import hashlib
import inspect
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError
from pyarrow.fs import FileType
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from game_events.config.masking import without_secrets
from game_events.config.sources.several import settings_of_each
from game_events.errors import GameEventsError, first_few
from game_events.lakehouse.commits.log import TableLog
from game_events.lakehouse.commits.transactions import Txn, counter, incarnation, last_app
from game_events.lakehouse.data.columns import COORDINATES
from game_events.lakehouse.data.reading import row_count
from game_events.lakehouse.data.spark_files import read_table
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.tables import Layer, Table, add_actions, paths
from game_events.pipeline.checks.audits import DRIFT, RECOMPUTED, VOLUME, gold_equals_recompute, schema_drift, volume
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.plan import KNOWN, keys_and_times_known
from game_events.pipeline.offsets import BronzeCommit, bronze_commit, erased_rows, next_offsets
from game_events.pipeline.quarantine import is_noted
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import NEW, WHOLE, CheckResult
from game_events.plugin import parts
from game_events.sources.factory import kind_of
from game_events.sources.source import Gap, Partition

log = logging.getLogger(__name__)
FRESH, LOST = "fresh", "offsets_lost"
#: Newest commits that are searched for one with records.
HISTORY = 50
#: Gaps, faults or coordinates in a summary.
SHOWN = 5


@dataclass(frozen=True)
class LastRecords:
    """When bronze's last commit of records was made; `known`: what is known of that time, with a place for its age."""

    time: datetime
    known: str = "the last records came {} ago"

    def age_at(self, now: float) -> float:
        """Seconds from `time` to `now` (seconds since 1970)."""
        return max(0.0, now - self.time.timestamp())

    def text_at(self, now: float) -> str:
        """What is known, with the age at `now`."""
        return self.known.format(f"{self.age_at(now):,.0f} s")


def fresh(pipeline: Pipeline, now: float | None = None) -> CheckResult:
    """Check that bronze's last commit of records is not older than GAME_EVENTS_FRESHNESS_S (0: the check is off).

    `now`: seconds since 1970; None: the clock.
    """
    now = time.time() if now is None else now
    allowed = pipeline.settings.freshness_s
    if not allowed:
        return CheckResult(FRESH, "bronze", True, "off: GAME_EVENTS_FRESHNESS_S is 0")
    handle = pipeline.open_bronze()
    last = last_records(pipeline.bronze, handle.version()) if handle is not None else None
    if handle is None or last is None:
        return CheckResult(FRESH, "bronze", False, "nothing has ever been committed to bronze: run `game-events run`")
    newest = _newest_record(handle)
    counts: dict[str, int | float | str] = {"seconds_since_last_commit": round(last.age_at(now), 1), "freshness_s": allowed}
    if newest is not None:
        counts["seconds_since_newest_record"] = round(now - newest.timestamp(), 1)
    silent_s = _silent_s(pipeline, handle, now)
    counts |= {f"seconds_since_{name}": round(age, 1) for name, age in silent_s.items()}
    silent = [f"{name} for {age:,.0f} s" for name, age in silent_s.items() if age > allowed]
    if last.age_at(now) <= allowed and silent:
        summary = f"no records came from {first_few(silent, SHOWN)}, {allowed} s are allowed; the other sources are fresh"
        return CheckResult(FRESH, "bronze", False, summary, counts, version=handle.version())
    if last.age_at(now) <= allowed:
        return CheckResult(FRESH, "bronze", True, last.text_at(now), counts, version=handle.version())
    why = _likely_cause(pipeline, handle, counts)
    summary = f"{last.text_at(now)}, {allowed} s are allowed; {why}"
    return CheckResult(FRESH, "bronze", False, summary, counts, version=handle.version())


def _likely_cause(pipeline: Pipeline, handle: DeltaTable, counts: dict[str, int | float | str]) -> str:
    try:
        seen = pipeline.source_snapshot()
        read = next_offsets(handle, seen.latest)
        unread = sum(max(0, end - read.get(p, seen.earliest[p])) // seen.unit_of(p) for p, end in seen.latest.items())
    except GameEventsError as error:
        return f"the topic cannot be read: {error}"
    counts["unread_records"] = unread
    if unread:
        return f"{unread:,} unread records in the topic: is the pipeline running? (sensor, schedule, `game-events run`)"
    return "the topic has nothing new: do its producers send?"


def last_records(bronze: Table, version: int) -> LastRecords | None:
    """Time of the last commit of records up to a version; None: unknown."""
    oldest: datetime | None = None
    for info in TableLog(bronze).infos(version, version - HISTORY):
        if "timestamp" in info:
            oldest = datetime.fromtimestamp(int(info["timestamp"]) / 1000, UTC)
        note = bronze_commit(info)
        if note is None or oldest is None:
            continue
        # A replay adds rows of quarantine, the repair of a restored table none: the producers sent nothing.
        read = note.offsets is not None and note.rows + note.quarantined + note.suppressed > 0
        if read:
            return LastRecords(oldest)
        if note.batch == 0:
            return LastRecords(oldest, "no records were read since the table was created {} ago")
    # Maintenance deletes old log entries: without new records also that of the last commit with records.
    return None if oldest is None else LastRecords(oldest, "no records came for {} or longer")


def _silent_s(pipeline: Pipeline, handle: DeltaTable, now: float) -> dict[str, float]:
    """Source in `SOURCES` -> seconds since records of it were read, or since it came; without those of files, which may end."""
    silent = dict[str, float]()
    for name, one in sorted(settings_of_each(pipeline.settings).items()):
        if one.source_kind != Txn.FILES and counter(handle, Txn.SOURCE.of(name)):
            last = counter(handle, last_app(name)) or handle.metadata().created_time / 1000  # it came with the table
            silent[name] = max(0.0, now - last)
    return silent


def _newest_record(handle: DeltaTable) -> datetime | None:
    """The latest Kafka timestamp, by the files' statistics."""
    actions = add_actions(handle)
    if "max._kafka_timestamp" not in actions.column_names or not actions.num_rows:
        return None
    newest: datetime | None = pc.max(actions.column("max._kafka_timestamp")).as_py()
    return newest if newest is None or newest.tzinfo else newest.replace(tzinfo=UTC)


def offsets_lost(pipeline: Pipeline, recent: int | None = None) -> CheckResult:
    """Check that no records expired, or were deleted with their topic, before they were read.

    With GAME_EVENTS_ON_DATA_LOSS=record_gap runs skip them: the tables are right, but records are lost.

    `recent`: check this number of the newest commits; None: all of Delta's log.
    """
    handle = pipeline.open_bronze()
    covers = WHOLE if recent is None else NEW
    if handle is None:
        return CheckResult(LOST, "bronze", True, "there is no bronze table yet")
    commits = list(filter(None, map(bronze_commit, TableLog(pipeline.bronze).newest_infos(handle.version(), recent))))
    gaps = [gap for commit in commits for gap in commit.gaps]
    counts = {
        "commits": len(commits),
        "gaps": len(gaps),
        "offsets_lost": sum(gap.offsets or 0 for gap in gaps),
        "gaps_of_unknown_length": sum(gap.offsets is None for gap in gaps),
    }
    if not gaps:
        return CheckResult(LOST, "bronze", True, f"the last {len(commits):,} commits skipped nothing", counts, covers=covers)
    return CheckResult(LOST, "bronze", False, gaps_in_words(gaps), counts, version=handle.version(), covers=covers)


def gaps_in_words(gaps: Sequence[Gap]) -> str:
    """Text that names the first gaps."""
    return f"gone before they were read: {first_few(gaps, SHOWN)}"


@dataclass(frozen=True)
class Loss:
    """Gaps that a commit of bronze skipped.

    `gaps`: what is lost. `run_id`: the run that committed it, if known.
    """

    gaps: tuple[Gap, ...]
    run_id: str | None

    @property
    def key(self) -> str:
        """Identity of the loss, for deduplication."""
        parts = [[g.topic, g.topic_id, g.partition, g.start, g.end] for g in self.gaps]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def losses(bronze: Table, version: int, above: int, since_ms: int = 0) -> Iterator[Loss]:
    """Losses of a range of versions, the newest first.

    They are the versions after `above`, with commits not older than `since_ms` (milliseconds since 1970).
    """
    for info in TableLog(bronze).infos(version, above):
        if int(info.get("timestamp") or 0) < since_ms:
            return
        note = bronze_commit(info)
        if note is not None and note.gaps:
            yield Loss(note.gaps, str(info["run_id"]) if "run_id" in info else None)


CONTINUOUS, UNIQUE = "offsets_continuous", "offsets_unique"
#: Newest commits that are checked after each run: a small file each, read in milliseconds.
RECENT_COMMITS = 50


def offsets_continuous(pipeline: Pipeline, recent: int | None = None) -> CheckResult:
    """Check that bronze's commits read consecutive offset ranges and that the table holds the rows that they committed.

    `recent`: check this number of the newest commits, and not whether files exist; None: all of Delta's log.
    """
    handle = pipeline.open_bronze()
    if handle is None:
        return CheckResult(CONTINUOUS, "bronze", True, "there is no bronze table yet", wrong_rows=True)
    history = TableLog(pipeline.bronze).newest_infos(handle.version(), recent)
    erased = erased_rows(history)
    first = incarnation(handle)
    newest = counter(handle, Txn.BATCH)
    commits = _commits_of_table(history, first, newest)
    faults = [*_batch_faults(commits, newest), *_range_faults(handle, commits), *_rows(handle, commits, erased)]
    missing = missing_files(pipeline.bronze, handle) if recent is None else []
    if missing:
        faults.append(f"{len(missing)} files of the table are missing, among them {missing[0]}")
    read, unit = _offsets_read(commits)
    oldest = commits[0].batch if commits else 0
    counts = {
        "commits": len(commits),
        "from_batch": oldest,
        "offsets_read": read,
        **_sums(commits),
        "erased_rows": sum(erased.values()),
        "faults": len(faults),
    }
    is_whole = bool(commits) and oldest == first
    since = "the table's first" if is_whole else f"batch {oldest}, older ones were not checked"
    good = f"{len(commits):,} commits since {since}: {read:,} {unit} without a gap, no row missing"
    return CheckResult(
        CONTINUOUS,
        "bronze",
        not faults,
        first_few(faults, SHOWN) or good,
        counts,
        wrong_rows=True,
        version=handle.version(),
        covers=WHOLE if recent is None else NEW,
    )


def _commits_of_table(history: Iterable[Mapping[str, Any]], first: int, newest: int) -> list[BronzeCommit]:
    """Bronze's commits of these batches, by batch.

    Left out are commits newer than the handle, and those before a full refresh, which reads their offsets again.
    """
    of_table = [c for c in map(bronze_commit, history) if c is not None and first <= c.batch <= newest]
    return sorted(of_table, key=lambda commit: commit.batch)


def _sums(commits: Sequence[BronzeCommit]) -> dict[str, int]:
    return {
        "rows_committed": sum(commit.rows for commit in commits),
        "quarantined_rows": sum(commit.quarantined for commit in commits),
        "suppressed_records": sum(commit.suppressed for commit in commits),
    }


def _offsets_read(commits: Sequence[BronzeCommit]) -> tuple[int, str]:
    """Number of offsets, or of source files, and the word for it."""
    ranges = [item for c in commits for item in (c.offsets or {}).items()]
    units = {partition.kind: kind_of(partition.kind).unit for partition, _ in ranges}
    read = sum((end - start) // units[partition.kind] for partition, (start, end) in ranges)
    return read, "files" if max(units.values(), default=1) > 1 else "offsets"


def _batch_faults(commits: Sequence[BronzeCommit], newest: int) -> list[str]:
    """Faults in the batch numbers: they must be consecutive and end at the table's."""
    faults = [f"batch {b.batch} follows batch {a.batch}" for a, b in pairwise(commits) if b.batch != a.batch + 1]
    if commits and commits[-1].batch != newest:
        faults.append(f"the newest commit is batch {commits[-1].batch}, the table's transaction says {newest}")
    return faults


def _range_faults(handle: DeltaTable, commits: Sequence[BronzeCommit]) -> list[str]:
    """Faults in the offset ranges: each partition's must meet, end at the table's next offset, and hold all records."""
    faults: list[str] = []
    # A gap that a commit records is no fault of the table: the check `offsets_lost` shows it.
    recorded = {(g.topic, g.topic_id, g.partition, g.start, g.end) for c in commits for g in c.gaps}
    reached: dict[str, tuple[Partition, int]] = {}
    for commit in commits:
        faults += _too_many_records(commit)
        for partition, (start, end) in (commit.offsets or {}).items():
            # By the transaction, in which a source may have another name by now, or none.
            _, last = reached.get(partition.app, (partition, start))
            if start != last and (partition.place, *partition[1:3], last, start) not in recorded:
                what = "were left out" if start > last else "were read twice"
                places = f"offsets {min(start, last)} to {max(start, last)}"
                faults.append(f"{partition}: {places} {what} before batch {commit.batch}")
            reached[partition.app] = (partition, end)
    return faults + _end_faults(handle, dict(reached.values()))


def _end_faults(handle: DeltaTable, reached: Mapping[Partition, int]) -> list[str]:
    """Partitions whose commits do not end at the table's next offset."""
    faults: list[str] = []
    for partition, last in reached.items():
        next_offset = handle.transaction_version(partition.app)
        if next_offset != last:
            faults.append(f"{partition}: the commits end at {last}, the table's transaction says {next_offset}")
    return faults


def _too_many_records(commit: BronzeCommit) -> list[str]:
    """A fault if a commit has more records than Kafka's offsets that it read."""
    ranges = commit.offsets
    if ranges is None or not all(partition.has_record_offsets for partition in ranges):
        return []
    offsets = sum(end - start for start, end in ranges.values())
    records = commit.rows - commit.kept + commit.quarantined + commit.suppressed
    return [f"batch {commit.batch} has {records} records of {offsets} offsets"] if records > offsets else []


def _rows(handle: DeltaTable, commits: Sequence[BronzeCommit], erased: Mapping[int, int]) -> list[str]:
    """Faults in the number of rows of these batches, by the files' statistics: it must be the committed minus the erased."""
    with_data = [commit for commit in commits if commit.batch > 0]
    if not with_data:
        return []
    actions = add_actions(handle)
    if "min._batch" not in actions.column_names:
        return ["the files have no statistics of `_batch`: who wrote them?"] if actions.num_rows else []
    first = with_data[0].batch
    rows = actions.column("num_records")
    inside = _sum(rows, pc.greater_equal(actions.column("min._batch"), first))
    # A compacted file may hold older batches too.
    touching = _sum(rows, pc.fill_null(pc.greater_equal(actions.column("max._batch"), first), True))
    committed = _rows_committed(with_data, erased)
    if inside <= committed <= touching:
        return []
    held = f"{inside}" if inside == touching else f"{inside} to {touching}"
    return [f"the batches since {first} were committed with {committed} rows, the table holds {held} of them"]


def _rows_committed(commits: Sequence[BronzeCommit], erased: Mapping[int, int]) -> int:
    """Rows of these commits, by batch, without those erased since."""
    # An erasure is no older than the batches that it took rows from: those of `commits` are all in the history.
    gone = sum(number for batch, number in erased.items() if batch >= commits[0].batch)
    return sum(commit.rows for commit in commits) - gone


def _sum(rows: pa.ChunkedArray, which: pa.ChunkedArray) -> int:
    return int(pc.sum(rows.filter(which)).as_py() or 0)


def missing_files(table: Table, handle: DeltaTable) -> list[str]:
    """Files that the log names and the storage does not have."""
    system, prefix = file_system(table)
    named = paths(handle)
    infos = system.get_file_info([prefix + path for path in named])
    return [path for path, info in zip(named, infos, strict=True) if info.type == FileType.NotFound]


def offsets_unique(pipeline: Pipeline) -> CheckResult:
    """Check that each record is once in bronze or quarantine; one Spark job over three columns of both.

    A replayed record is in both, and its row of quarantine is marked.
    """
    bronze = pipeline.open_bronze()
    quarantine = pipeline.open_quarantine()
    if bronze is None or not row_count(bronze):
        return CheckResult(UNIQUE, "bronze", True, "there are no rows in bronze yet", wrong_rows=True)
    wrong = (
        _coordinates(pipeline, bronze, quarantine)
        .groupBy(*COORDINATES)
        .agg(F.sum("b").alias("b"), F.sum("q").alias("q"), F.min("alone").alias("alone"))
        .where("b > 1 OR q > 1 OR (b > 0 AND q > 0 AND alone = 1)")
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.count_if(F.col("b") > 1).alias("bronze"),
            F.count_if(F.col("q") > 1).alias("quarantine"),
            F.slice(F.sort_array(F.collect_list(F.struct(*COORDINATES[1:]))), 1, SHOWN).alias("shown"),
        )
        .collect()[0]
    )
    counts = {
        "bronze_rows": row_count(bronze),
        "quarantine_rows": row_count(quarantine),
        "coordinates_doubled": int(wrong["n"]),
        "doubled_in_bronze": int(wrong["bronze"]),
        "doubled_in_quarantine": int(wrong["quarantine"]),
    }
    named = ", ".join(f"[{c['_kafka_partition']}]@{c['_kafka_offset']}" for c in wrong["shown"])
    summary = f"each of {counts['bronze_rows']:,} rows of bronze has unique coordinates, none is in quarantine too"
    if wrong["n"]:
        summary = f"{wrong['n']:,} records are there more than once, among them {named}"
    return CheckResult(UNIQUE, "bronze", not wrong["n"], summary, counts, wrong_rows=True, version=bronze.version())


def _coordinates(pipeline: Pipeline, bronze: DeltaTable, quarantine: DeltaTable | None) -> DataFrame:
    """Coordinates of both tables' rows, with `b` and `q` (1: from bronze, from quarantine) and `alone` (0: may be in both)."""
    rows = read_table(pipeline.spark, bronze)  # first: columns need a session, and this may be a process's first use of it
    zero = F.lit(0)
    one = F.lit(1)
    if quarantine is None:
        return rows.select(*COORDINATES, one.alias("b"), zero.alias("q"), one.alias("alone"))
    # The rows of a replay that crashed between its two commits are in both tables until the next run marks them.
    open_replay = -1 if is_noted(bronze, quarantine) else counter(bronze, Txn.REPLAY)
    alone = (F.col("_batch") != open_replay).cast("int").alias("alone")
    held = read_table(pipeline.spark, quarantine)
    held = held.where(F.col("layer") == Layer.BRONZE)
    marked = "replayed_table" in held.columns
    replayed = F.col("replayed_table").eqNullSafe(str(bronze.metadata().id)) if marked else F.lit(False)
    held = held.select(*COORDINATES, zero.alias("b"), one.alias("q"), F.when(replayed, 0).otherwise(1).alias("alone"))
    return rows.select(*COORDINATES, one.alias("b"), zero.alias("q"), alone).unionByName(held)


CONSERVED = "rows_conserved"


@dataclass(frozen=True)
class TableCheck:
    """One check.

    `layer`: layer of the asset that the check belongs to. `in_run`: a cheap form for the end of each run that changed a table,
    given the run's report; None: only on request. `blocking`: a failure means wrong rows, from which nothing should be
    computed. `all_games`: it reads every game's tables, so a run that materializes single games by hand leaves it out.
    """

    name: str
    layer: str
    run: Callable[[Pipeline], CheckResult]
    in_run: Callable[[Pipeline, RunReport], CheckResult] | None = None
    blocking: bool = False
    all_games: bool = False

    @property
    def description(self) -> str:
        """The first paragraph of the docstring of `run`."""
        return " ".join((inspect.getdoc(self.run) or "").partition("\n\n")[0].split())


def rows_conserved(pipeline: Pipeline, report: RunReport | None = None) -> CheckResult:
    """Check that bronze = silver + rejected by rules + unrouted + pending, in all and for each game.

    `report`: of the run that has written tables: of bronze only what no earlier check has counted is read (`reconcile`).
    """
    changed = None if report is None else {table.game for table in report.of(Layer.SILVER) if table.game is not None}
    counts = reconcile(pipeline, changed)
    covers = NEW if counts.counted_before else WHOLE
    return CheckResult(CONSERVED, "silver", counts.passed, counts.summary(), counts.metadata(), wrong_rows=True, covers=covers)


#: Checks of the core; `all_checks` has those of plug-ins, too.
CHECKS = (
    TableCheck(CONTINUOUS, "bronze", offsets_continuous, lambda p, _: offsets_continuous(p, RECENT_COMMITS), blocking=True),
    TableCheck(UNIQUE, "bronze", offsets_unique, blocking=True),
    TableCheck(LOST, "bronze", offsets_lost, lambda p, _: offsets_lost(p, RECENT_COMMITS)),
    TableCheck(FRESH, "bronze", fresh, lambda p, _: fresh(p)),
    TableCheck(DRIFT, "bronze", schema_drift, lambda p, _: schema_drift(p)),
    TableCheck(CONSERVED, "silver", rows_conserved, rows_conserved, blocking=True, all_games=True),
    TableCheck(VOLUME, "silver", volume),
    TableCheck(KNOWN, "gold", keys_and_times_known),
    TableCheck(RECOMPUTED, "gold", gold_equals_recompute, blocking=True),
)


@cache
def all_checks() -> tuple[TableCheck, ...]:
    """Checks of the core and of plug-ins."""
    return (*CHECKS, *(check for checks in parts("checks") for check in checks))


def check_after_run(pipeline: Pipeline, report: RunReport, checks: Iterable[TableCheck] = CHECKS) -> None:
    """Add the results of the cheap checks to the report of a run that changed a table.

    A check that raises does not fail the run: its result is "not passed", with the reason.
    """
    if not report.tables:
        return
    for check in checks:
        try:
            if check.in_run is not None:
                report.add_checks(check.in_run(pipeline, report))
        except (GameEventsError, DeltaError, OSError, pa.ArrowException, PySparkException, Py4JJavaError) as error:
            log.warning("check=%s could_not_be_made=%r", check.name, without_secrets(str(error), pipeline.settings))
            # Spark's messages are pages of stack, and may quote data.
            by_spark = isinstance(error, PySparkException | Py4JJavaError)
            why = f"{type(error).__name__}: see the run's log" if by_spark else without_secrets(str(error), pipeline.settings)
            report.add_checks(CheckResult(check.name, check.layer, False, f"could not be made: {why}"))
