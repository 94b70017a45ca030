"""Nothing of the topic was left out, nothing was read twice: bronze's commits and coordinates looked at as a whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow.fs import FileType
from pyspark.sql import functions as F

from game_events.lakehouse.commits.commit import paths
from game_events.lakehouse.commits.generations import generation
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.snapshot import read_files, row_count, spark_schema
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.event_columns import COORDINATES
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quarantine.replay_marks import is_noted
from game_events.pipeline.reporting.check_result import CheckResult
from game_events.pipeline.state.commit_info import BronzeCommit, bronze_commit, erased_rows
from game_events.sources.core.source import FILES, KAFKA, Split
from game_events.sources.files.offsets import FILE_ROWS

CONTINUOUS, UNIQUE = "offsets_continuous", "offsets_unique"
#: Commits that a run looks back at: a small file each, read in milliseconds.
RECENT_COMMITS = 50
#: Faults and coordinates that a result names.
SHOWN = 5


def offsets_continuous(pipeline: Pipeline, recent: int | None = None) -> CheckResult:
    """Whether bronze's commits follow each other without a gap, and the table holds the rows they speak of.

    Args:
        pipeline: the parts.
        recent: only so many of the newest commits, and no look at the files themselves; None: all that Delta's log still has.
    """
    handle = pipeline.bronze.open()
    if handle is None:
        return CheckResult(CONTINUOUS, "bronze", True, "there is no bronze table yet", wrong_rows=True)
    history = handle.history(recent)
    notes = [bronze_commit(entry) for entry in history]
    # The history reaches further than the handle if somebody committed since.
    now = int(handle.transaction_version(Txn.BATCH) or 0)
    # What came before a full refresh is gone, and its offsets were read again.
    first = generation(handle)
    commits = sorted((c for c in notes if c is not None and first <= c.batch <= now), key=lambda c: c.batch)
    faults = [*_batches(handle, commits), *_ranges(handle, commits), *_rows(handle, commits, erased_rows(history))]
    if recent is None:
        missing = missing_files(pipeline.bronze, handle)
        faults += [f"{len(missing)} files of the table are not there, among them {missing[0]}"] if missing else []
    whole = bool(commits) and commits[0].batch == first
    ranges = [item for c in commits if c.offsets for item in c.offsets.items()]
    read = sum((end - start) // (FILE_ROWS if lane.kind == FILES else 1) for lane, (start, end) in ranges)
    things = "files" if any(lane.kind == FILES for lane, _ in ranges) else "offsets"
    counts = {
        "commits": len(commits),
        "from_batch": commits[0].batch if commits else 0,
        "offsets_read": read,
        "rows_committed": sum(c.rows for c in commits),
        "quarantined_rows": sum(c.quarantined for c in commits),
        "suppressed_records": sum(c.suppressed for c in commits),
        "erased_rows": sum(erased_rows(history).values()),
        "faults": len(faults),
    }
    since = "the table's first" if whole else f"batch {counts['from_batch']}, older ones were not looked at"
    good = f"{len(commits):,} commits since {since}: {read:,} {things} without a gap, every row in its place"
    return CheckResult(
        CONTINUOUS,
        "bronze",
        not faults,
        _first(faults) if faults else good,
        counts,
        wrong_rows=True,
        version=handle.version(),
    )


def _batches(handle: DeltaTable, commits: Sequence[BronzeCommit]) -> list[str]:
    """Batches are numbered one by one, and the last one is the table's."""
    faults = [
        f"batch {later.batch} follows batch {earlier.batch}"
        for earlier, later in pairwise(commits)
        if later.batch != earlier.batch + 1
    ]
    now = int(handle.transaction_version(Txn.BATCH) or 0)
    if commits and commits[-1].batch != now:
        faults.append(f"the newest commit is batch {commits[-1].batch}, the table's transaction says {now}")
    return faults


def _ranges(handle: DeltaTable, commits: Sequence[BronzeCommit]) -> list[str]:
    """Each partition's ranges meet, end where the table's progress stands, and hold no more records than offsets."""
    faults = []
    chains: dict[Split, list[tuple[int, int, int]]] = defaultdict(list)
    # A gap that a commit tells of is no fault of the table; the check `offsets_lost` shows it.
    recorded = {(g.topic, g.topic_id, g.partition, g.start, g.end) for c in commits for g in c.gaps}
    for commit in commits:
        if commit.offsets is None:
            continue
        offsets = sum(end - start for start, end in commit.offsets.values())
        records = commit.rows - commit.kept + commit.quarantined + commit.suppressed
        if records > offsets and all(lane.kind == KAFKA for lane in commit.offsets):
            faults.append(f"batch {commit.batch} has {records} records of {offsets} offsets")
        for lane, (start, end) in commit.offsets.items():
            chains[lane].append((commit.batch, start, end))
    for lane, chain in chains.items():
        for (_, _, reached), (batch, start, _) in pairwise(chain):
            if start != reached and (lane.topic, lane.topic_id, lane.partition, reached, start) not in recorded:
                what = "were left out" if start > reached else "were read twice"
                faults.append(f"{lane}: offsets {min(start, reached)} to {max(start, reached)} {what} before batch {batch}")
        now = handle.transaction_version(lane.app)
        if now != chain[-1][2]:
            faults.append(f"{lane}: the commits end at {chain[-1][2]}, the table's transaction says {now}")
    return faults


def _rows(handle: DeltaTable, commits: Sequence[BronzeCommit], erased: Mapping[int, int]) -> list[str]:
    """The table holds as many rows of these batches as were committed and not erased, by its files' statistics."""
    data = [c for c in commits if c.batch > 0]
    if not data:
        return []
    actions = pa.table(handle.get_add_actions(flatten=True))
    if "min._batch" not in actions.column_names:
        return [] if not actions.num_rows else ["the files have no statistics of `_batch`: who wrote them?"]
    first = data[0].batch
    rows = actions.column("num_records")
    inside = _sum(rows, pc.greater_equal(actions.column("min._batch"), first))
    # A file that maintenance joined may hold older batches too.
    touching = _sum(rows, pc.fill_null(pc.greater_equal(actions.column("max._batch"), first), True))
    # An erasure is as young as the batches it took rows from, or younger: those of `data` are all in the history.
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
    """Whether a record is in bronze, or in quarantine, once. One Spark job over three columns of both.

    A replayed row is in both, and its row of quarantine says so.
    """
    bronze = pipeline.bronze.open()
    if bronze is None or not row_count(bronze):
        return CheckResult(UNIQUE, "bronze", True, "there are no rows in bronze yet", wrong_rows=True)
    quarantine = pipeline.quarantine.open()
    # A replay that crashed between its two commits: its rows are in both until the next run has noted them.
    open_replay = -1
    if quarantine is not None and not is_noted(bronze, quarantine):
        open_replay = int(bronze.transaction_version(Txn.REPLAY) or 0)
    rows = read_files(pipeline.spark, bronze.file_uris(), spark_schema(bronze.schema()))
    # Columns only once there is a session: without one PySpark cannot tell of which kind they are to be.
    zero, one = F.lit(0), F.lit(1)
    rows = rows.select(
        *COORDINATES, one.alias("b"), zero.alias("q"), (F.col("_batch") != open_replay).cast("int").alias("alone")
    )
    if quarantine is not None:
        held = read_files(pipeline.spark, quarantine.file_uris(), spark_schema(quarantine.schema()))
        replayed = (
            F.col("replayed_table").eqNullSafe(str(bronze.metadata().id)) if "replayed_table" in held.columns else F.lit(False)
        )
        held = held.where(F.col("layer") == Layer.BRONZE).select(
            *COORDINATES, zero.alias("b"), one.alias("q"), F.when(replayed, 0).otherwise(1).alias("alone")
        )
        rows = rows.unionByName(held)
    counted = rows.groupBy(*COORDINATES).agg(F.sum("b").alias("b"), F.sum("q").alias("q"), F.min("alone").alias("alone"))
    bad = counted.where("b > 1 OR q > 1 OR (b > 0 AND q > 0 AND alone = 1)")
    wrong = bad.agg(
        F.count(one).alias("n"),
        F.sum((F.col("b") > 1).cast("int")).alias("bronze"),
        F.sum((F.col("q") > 1).cast("int")).alias("quarantine"),
        F.slice(F.sort_array(F.collect_list(F.struct(*COORDINATES[1:]))), 1, SHOWN).alias("shown"),
    ).collect()[0]
    named = ", ".join(f"[{c['_kafka_partition']}]@{c['_kafka_offset']}" for c in wrong["shown"])
    counts = {
        "bronze_rows": row_count(bronze),
        "quarantine_rows": row_count(quarantine) if quarantine is not None else 0,
        "coordinates_doubled": int(wrong["n"]),
        "doubled_in_bronze": int(wrong["bronze"] or 0),
        "doubled_in_quarantine": int(wrong["quarantine"] or 0),
    }
    summary = (
        f"{wrong['n']:,} records are there more than once, among them {named}"
        if wrong["n"]
        else f"each of {counts['bronze_rows']:,} rows of bronze has coordinates of its own, none is in quarantine too"
    )
    return CheckResult(UNIQUE, "bronze", not wrong["n"], summary, counts, wrong_rows=True, version=bronze.version())


def _first(faults: Sequence[str]) -> str:
    more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
    return "; ".join(faults[:SHOWN]) + more
