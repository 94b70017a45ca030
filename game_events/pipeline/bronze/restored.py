"""A bronze that somebody restored to an older version: what the restore took away is read from Kafka again.

A restore takes rows back but no `txn`: progress would speak of rows that are gone. One commit gives bronze the offsets that
belong to the rows it has, and a new `generation`, as its batches are other rows from then on: silver, gold and the unified
table are replaced. What Kafka has forgotten meanwhile is then a gap like any other (`offset_loss`).

Guarantee: nothing lost in silence, nothing doubled, nobody back who was forgotten: offsets that quarantine holds are left out
as after any crash, and the commit lands only if nobody else has moved bronze.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from game_events.errors import ConflictError, DataError
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.generations import erasures
from game_events.lakehouse.commits.restores import (
    BATCHES,
    history,
    restored_lately,
    undo,
    version_before_restores,
)
from game_events.lakehouse.commits.restores_note import note_looked_at
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.snapshot import row_count
from game_events.lakehouse.system_tables.suppressed import read_suppressed
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.state.commit_info import ERASED_ROWS, BronzeCommit, bronze_commit, slice_info
from game_events.pipeline.state.offsets import identity, next_offsets, offsets_of, topic_id_read
from game_events.sources.core.source import KAFKA, Offsets, Split


def mend_restored_bronze(pipeline: Pipeline, report: RunReport, opened: DeltaTable | None = None) -> DeltaTable | None:
    """Set bronze's progress to the rows it has, if a restore has taken some away; one small file is read otherwise.

    Args:
        pipeline: the parts.
        report: gets a notice.
        opened: the newest version, if somebody has just opened it.

    Returns:
        the version that was looked at and needs no mending: what is planned from it, and compares `seen`, is on solid ground.
        None: there is no bronze.

    Raises:
        DataError: a replay, a full refresh or another topic came between: only the restore can be undone. Or an erasure, and
            not everybody was forgotten once more.
    """
    handle = opened or pipeline.bronze.open()
    if handle is None or not restored_lately(pipeline.bronze, BATCHES, handle.version()):
        return handle
    # Erased twice, silver counts it twice: it begins anew.
    forgotten_again = refuse_undone_erasures(pipeline, handle)
    if not forgotten_again and _has_all_rows(pipeline, handle):
        note_looked_at(pipeline.bronze, handle)
    else:
        _mend(pipeline, handle, report, forgotten_again=forgotten_again)
    return mend_restored_bronze(pipeline, report)  # as it is now: a rival may have been first, or somebody restored it again


def _mend(pipeline: Pipeline, handle: DeltaTable, report: RunReport, *, forgotten_again: bool) -> None:
    notes = {n.batch: (n, int(e["version"])) for e in history(pipeline.bronze) if (n := bronze_commit(e)) is not None}
    now, held = int(handle.transaction_version(Txn.BATCH) or 0), _highest_batch(handle)
    gone = [notes.get(batch) for batch in range(held + 1, now + 1)]
    rows = sum(found[0].rows for found in gone if found is not None)
    before = _version_of(pipeline, notes.get(held))
    reached = _positions(handle, [note for note, _ in notes.values()])
    if before is None or not reached:
        raise _only_undone(handle, rows, "its log does not reach back to where these rows were read")
    back = next_offsets(before, reached)
    if reached == back and not rows and not forgotten_again:
        note_looked_at(pipeline.bronze, handle)
        return
    for app, what in ((Txn.REPLAY, "rows were replayed from quarantine"), (Txn.FULL_REFRESH, "a full refresh")):
        if before.transaction_version(app) != handle.transaction_version(app):
            raise _only_undone(handle, rows, f"{what} came between")
    if any(topic_id_read(before, p.topic, p.kind) not in {None, p.topic_id} for p in reached):
        raise _only_undone(handle, rows, "the topic was made anew in between")
    # A partition or a topic that came since begins where it was begun.
    to = {p: back.get(p, _first(p, [note for note, _ in notes.values()])) for p in reached}
    compared = (Txn.BATCH, Txn.INCARNATION, *(p.app for p in reached))
    with suppress(ConflictError):  # a rival has done it
        commit(
            Commit(
                pipeline.bronze,
                pa.schema(handle.schema()),
                [],
                expected={app: handle.transaction_version(app) for app in compared},
                advance={p.app: offset for p, offset in to.items()}
                | identity(to)
                | {Txn.BATCH: now + 1, Txn.INCARNATION: now + 1},
                table_id=str(handle.metadata().id),
                seen=handle.version(),
                info=slice_info(now + 1, 0, 0, {p: (o, o) for p, o in to.items()}),
            )
        )
        report.warn(
            f"{pipeline.bronze.name} was restored to an older version: {rows:,} rows were gone and are read from Kafka again; "
            "silver, gold and the unified table are replaced"
        )


def _positions(handle: DeltaTable, notes: Sequence[BronzeCommit]) -> Offsets:
    """Split -> next position of every topic that bronze has read, as it has read it last, by its transactions."""
    lanes = {lane for note in notes for lane in note.offsets or ()}
    topics = {(lane.topic, lane.kind) for lane in lanes}
    current = {(topic, kind): topic_id_read(handle, topic, kind) for topic, kind in topics}
    found = next_offsets(handle, (lane for lane in lanes if current[lane.topic, lane.kind] == lane.topic_id))
    for (topic, kind), topic_id in current.items():
        if kind == KAFKA and topic_id is not None:
            # Partitions of which no commit speaks any more.
            found |= offsets_of(handle, topic, topic_id, (lane.partition for lane in lanes if lane.topic == topic))
    return found


def _first(lane: Split, notes: Sequence[BronzeCommit]) -> int:
    """Where a lane was begun, by the commits that have read it; a partition that was added begins at 0."""
    return min((note.offsets[lane][0] for note in notes if note.offsets is not None and lane in note.offsets), default=0)


def refuse_undone_erasures(pipeline: Pipeline, bronze: DeltaTable) -> bool:
    """Whether a restore has undone erasures, and they were made again since.

    Raises:
        DataError: they were not.
    """
    gamers = gamers_back(pipeline, bronze) if restored_lately(pipeline.bronze) else None
    if not gamers:
        return gamers is not None
    raise DataError(
        f"{pipeline.bronze.name} was restored to a version from before an erasure: rows of forgotten gamers ({gamers:,} at "
        f"most) are back. Nothing was done: {undo(bronze, pipeline.bronze.name)}; or forget them once more "
        "(`game-events forget`; `game-events log --kind erased` says when each was)"
    )


def _has_all_rows(pipeline: Pipeline, handle: DeltaTable) -> bool:
    """Whether no row was lost, as after a restore to the version before a compaction or a redecode, or one that was undone.

    Rows of bronze come in batches, one after another: with the same highest batch and as many rows it is the same content.
    """
    held = _highest_batch(handle)
    with suppress(DeltaError, OSError):
        version = version_before_restores(pipeline.bronze, handle.version())
        before = DeltaTable(pipeline.bronze.uri, version=version, storage_options=pipeline.bronze.options)
        return (_highest_batch(before), row_count(before)) == (held, row_count(handle))
    # The log does not reach back so far. With the last batch all others are there, but for rows that an erasure took out.
    return held == int(handle.transaction_version(Txn.BATCH) or 0) and not erasures(handle)


def _highest_batch(handle: DeltaTable) -> int:
    actions = pa.table(handle.get_add_actions(flatten=True))
    return int(pc.max(actions.column("max._batch")).as_py() or 0) if "max._batch" in actions.column_names else 0


def _version_of(pipeline: Pipeline, found: tuple[BronzeCommit, int] | None) -> DeltaTable | None:
    """Bronze as it was right after a batch; None: its log does not say any more."""
    if found is None:
        return None
    with suppress(DeltaError, OSError):
        return DeltaTable(pipeline.bronze.uri, version=found[1], storage_options=pipeline.bronze.options)
    return None


def _only_undone(handle: DeltaTable, rows: int, why: str) -> DataError:
    name = handle.table_uri.rstrip("/").rpartition("/")[2]
    return DataError(
        f"{name} was restored to an older version: {rows:,} rows are gone, and they cannot simply be read again, as "
        f"{why}. Nothing was read: {undo(handle, name)}"
    )


def gamers_back(pipeline: Pipeline, bronze: DeltaTable) -> int | None:
    """How many forgotten gamers may be in bronze again; 0: all were forgotten once more since; None: no erasure was undone.

    Bronze's commits do not say who went, the list says when each was finished: between the version that was restored and the
    restore, or not at all yet, is one who may be back.
    """
    if not erasures(bronze):
        return None
    spans = _undone(history(pipeline.bronze))
    if not spans:
        return None
    finished = [row["finished_at"] for row in read_suppressed(pipeline.lakehouse).entries.values()]
    return sum(
        not isinstance(at, datetime) or any(since < at.timestamp() * 1000 < until for since, until in spans) for at in finished
    )


def _undone(entries: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Times (milliseconds since 1970) between which erasures were finished that are undone.

    Whatever the log does not tell any more counts as an erasure.
    """
    times = {int(entry["version"]): int(entry["timestamp"]) for entry in entries}
    spans: list[tuple[int, int]] = []
    at = max(times)
    for entry in entries:  # the newest first; what a restore has left out has no say
        version = int(entry["version"])
        if version > at or entry.get("operation") != "RESTORE":
            continue
        at = _target(entry, times)
        between = [e for e in entries if at < int(e["version"]) < version]
        if at not in times or any(int(e.get(ERASED_ROWS) or 0) for e in between):
            spans.append((times.get(at, 0), times[version]))
    return spans


def _target(entry: Mapping[str, Any], times: Mapping[int, int]) -> int:
    """The version that a restore went back to; -1: it does not say."""
    asked = entry.get("operationParameters") or {}
    version, time = (str(asked.get(key) or "") for key in ("version", "datetime"))
    if version.isdigit():
        return int(version)
    if time.isdigit():  # as delta-rs has it
        return max((v for v, ms in times.items() if v < int(entry["version"]) and ms <= int(time)), default=-1)
    return -1
