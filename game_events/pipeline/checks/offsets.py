"""Checks that no offset was skipped or read twice: by bronze's commits, and by the coordinates of its rows."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow.fs import FileType
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from game_events.errors import first_few
from game_events.lakehouse.commits.incarnations import incarnation
from game_events.lakehouse.commits.transactions import Txn, counter
from game_events.lakehouse.data.snapshot import row_count
from game_events.lakehouse.data.spark_files import read_table
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.event_columns import COORDINATES
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import Table, add_actions, paths
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quarantine.replay_marks import is_noted
from game_events.pipeline.reporting.steps import NEW, WHOLE, CheckResult
from game_events.pipeline.state.commit_info import BronzeCommit, bronze_commit, erased_rows
from game_events.sources.core.source import FILES, KAFKA, Split
from game_events.sources.files.offsets import FILE_ROWS

CONTINUOUS, UNIQUE = "offsets_continuous", "offsets_unique"
#: Newest commits that are checked after each run: a small file each, read in milliseconds.
RECENT_COMMITS = 50
#: Faults and coordinates in a summary.
SHOWN = 5


def offsets_continuous(pipeline: Pipeline, recent: int | None = None) -> CheckResult:
    """Check that bronze's commits read consecutive offset ranges and that the table holds the rows that they committed.

    `recent`: check this number of the newest commits, and not whether files exist; None: all of Delta's log.
    """
    handle, covers = pipeline.open_bronze(), WHOLE if recent is None else NEW
    if handle is None:
        return CheckResult(CONTINUOUS, "bronze", True, "there is no bronze table yet", wrong_rows=True)
    history = handle.history(recent)
    erased = erased_rows(history)
    # Not of the history: commits newer than the handle, and those before a full refresh, which reads their offsets again.
    first, newest = incarnation(handle), counter(handle, Txn.BATCH)
    found = filter(None, map(bronze_commit, history))
    commits = sorted((c for c in found if first <= c.batch <= newest), key=lambda c: c.batch)
    faults = [*_batch_faults(commits, newest), *_range_faults(handle, commits), *_rows(handle, commits, erased)]
    if recent is None and (missing := missing_files(pipeline.bronze, handle)):
        faults.append(f"{len(missing)} files of the table are missing, among them {missing[0]}")
    (read, unit), oldest = _offsets_read(commits), next((c.batch for c in commits), None)
    counts = {
        "commits": len(commits),
        "from_batch": oldest or 0,
        "offsets_read": read,
        "rows_committed": sum(c.rows for c in commits),
        "quarantined_rows": sum(c.quarantined for c in commits),
        "suppressed_records": sum(c.suppressed for c in commits),
        "erased_rows": sum(erased.values()),
        "faults": len(faults),
    }
    since = "the table's first" if oldest == first else f"batch {counts['from_batch']}, older ones were not checked"
    good = f"{len(commits):,} commits since {since}: {read:,} {unit} without a gap, no row missing"
    summary = first_few(faults, SHOWN) or good
    return CheckResult(
        CONTINUOUS, "bronze", not faults, summary, counts, wrong_rows=True, version=handle.version(), covers=covers
    )


def _offsets_read(commits: Sequence[BronzeCommit]) -> tuple[int, str]:
    """Number of offsets, or of source files, and the word for it."""
    ranges = [item for c in commits for item in (c.offsets or {}).items()]
    files = any(split.kind == FILES for split, _ in ranges)
    read = sum((end - start) // (FILE_ROWS if split.kind == FILES else 1) for split, (start, end) in ranges)
    return read, "files" if files else "offsets"


def _batch_faults(commits: Sequence[BronzeCommit], newest: int) -> list[str]:
    """Faults in the batch numbers: they must be consecutive and end at the table's."""
    faults = [f"batch {b.batch} follows batch {a.batch}" for a, b in pairwise(commits) if b.batch != a.batch + 1]
    if commits and commits[-1].batch != newest:
        faults.append(f"the newest commit is batch {commits[-1].batch}, the table's transaction says {newest}")
    return faults


def _range_faults(handle: DeltaTable, commits: Sequence[BronzeCommit]) -> list[str]:
    """Faults in the offset ranges: each split's must meet, end at the table's next offset, and hold all records."""
    faults = []
    # A gap that a commit records is no fault of the table: the check `offsets_lost` shows it.
    recorded = {(g.topic, g.topic_id, g.partition, g.start, g.end) for c in commits for g in c.gaps}
    reached: dict[Split, int] = {}
    for commit in commits:
        ranges = commit.offsets or {}
        offsets = sum(end - start for start, end in ranges.values())
        records = commit.rows - commit.kept + commit.quarantined + commit.suppressed
        if commit.offsets is not None and records > offsets and all(split.kind == KAFKA for split in ranges):
            faults.append(f"batch {commit.batch} has {records} records of {offsets} offsets")
        for split, (start, end) in ranges.items():
            last = reached.get(split, start)
            if start != last and (*split[:3], last, start) not in recorded:
                what = "were left out" if start > last else "were read twice"
                faults.append(f"{split}: offsets {min(start, last)} to {max(start, last)} {what} before batch {commit.batch}")
            reached[split] = end
    for split, last in reached.items():
        if (held := handle.transaction_version(split.app)) != last:
            faults.append(f"{split}: the commits end at {last}, the table's transaction says {held}")
    return faults


def _rows(handle: DeltaTable, commits: Sequence[BronzeCommit], erased: Mapping[int, int]) -> list[str]:
    """Faults in the number of rows of these batches, by the files' statistics: it must be the committed minus the erased."""
    data = [c for c in commits if c.batch > 0]
    if not data:
        return []
    actions = add_actions(handle)
    if "min._batch" not in actions.column_names:
        return ["the files have no statistics of `_batch`: who wrote them?"] if actions.num_rows else []
    first = data[0].batch
    rows = actions.column("num_records")
    inside = _sum(rows, pc.greater_equal(actions.column("min._batch"), first))
    # A compacted file may hold older batches too.
    touching = _sum(rows, pc.fill_null(pc.greater_equal(actions.column("max._batch"), first), True))
    # An erasure is no older than the batches that it took rows from: those of `data` are all in the history.
    committed = sum(c.rows for c in data) - sum(rows for batch, rows in erased.items() if batch >= first)
    if inside <= committed <= touching:
        return []
    held = f"{inside}" if inside == touching else f"{inside} to {touching}"
    return [f"the batches since {first} were committed with {committed} rows, the table holds {held} of them"]


def _sum(rows: pa.ChunkedArray, which: pa.ChunkedArray) -> int:
    return int(pc.sum(rows.filter(which)).as_py() or 0)


def missing_files(table: Table, handle: DeltaTable) -> list[str]:
    """Files that the log names and the storage does not have."""
    system, prefix = file_system(table)
    named = paths(handle)
    found = system.get_file_info([prefix + path for path in named])
    return [path for path, info in zip(named, found, strict=True) if info.type == FileType.NotFound]


def offsets_unique(pipeline: Pipeline) -> CheckResult:
    """Check that each record is once in bronze or quarantine; one Spark job over three columns of both.

    A replayed record is in both, and its row of quarantine is marked.
    """
    bronze, quarantine = pipeline.open_bronze(), pipeline.open_quarantine()
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
