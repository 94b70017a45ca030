"""Maintenance that is killed anywhere changes no row, and the next one does what it left. No service is needed."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.tables import Lakehouse, Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import TableMaintenance
from game_events_tests.support.edge_values import earlier_release
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.servers.attached_driver import start_driver
from game_events_tests.support.tables import committed_files, data_files, grow_old, plan, put, rows, txn
from game_events_tests.support.worlds.waves import wait_all

#: Each point of maintenance once, in a table of each kind. Gold's comes first: tables are looked after side by side.
POINTS = (
    "version_kept:gold_uno_player_agg",
    "file_deleted:gold_uno_player_agg@2",
    "entry_deleted:gold_uno_player_agg@3",
    "joined_staged:silver_uno_events",
    "joined_committed:silver_uno_events",
    "file_deleted:silver_uno_events@3",
    "checkpoint_written:silver_uno_events",
    "renewed_staged:gold_uno_player_agg",
    "renewed_committed:gold_uno_player_agg",
    "laid_out_staged:silver_chess_events",
    "laid_out_committed:silver_chess_events",
)
#: Long enough for nobody: what is replaced may go at once.
TIMES = dict.fromkeys(("every_version_h", "replaced_files_h", "derived_replaced_files_h"), 1e-9)


@pytest.fixture
def maintained(tmp_path: Path) -> Pipeline:
    return without_spark(tmp_path, **TIMES, orphan_retention_h=1, layout="silver=day")


def killed(pipeline: Pipeline, point: str, log: Path) -> None:
    """`maintain` in a process of its own, which SIGKILL ends at a point."""
    # With these a table has a checkpoint each time, as all that is before it may go.
    times = {} if point.startswith("checkpoint_written") else {name: str(hours) for name, hours in TIMES.items()}
    times["layout"] = "silver=day"
    driver = start_driver(pipeline.settings, None, log, point, "maintain", **times)
    assert wait_all([driver], 900) == [-signal.SIGKILL], (point, log.read_text())


def done_by(pipeline: Pipeline) -> dict[str, TableMaintenance]:
    report = RunReport()
    maintain(pipeline, report, layout=True)
    assert report.success, report.maintenance
    return report.maintenance


def append(table: Table, count: int) -> None:
    """So many commits of two rows each, by a handle that is kept."""
    handle = table.open()
    for _ in range(count):
        at = handle.transaction_version("txn") if handle is not None else None
        n = at or 0
        handle = commit(plan(table, [2 * n, 2 * n + 1], at, n + 1, info={BATCH_INFO: "1"}, from_table=handle)).handle


def gold_plan(gold: Table, n: int) -> Commit:
    """The commit of a refresh of gold after n others; with a floating-point column."""
    schema = pa.schema([("n", pa.int64()), ("f", pa.float64())])
    files = staged(gold, pa.table({"n": [n], "f": [-0.0]}, schema=schema))
    return plan(gold, [], n or None, n + 1, schema=schema, files=files, replace=n > 0, info={BATCH_INFO: "1"})


def spread(table: Table, count: int) -> None:
    """A file with rows of so many days."""
    days = [datetime(2026, 3, 1 + n, tzinfo=UTC) for n in range(count)]
    put(table, {"n": range(count), "event_timestamp": pa.array(days, pa.timestamp("us", "UTC"))}, info={BATCH_INFO: "1"})


def entries_without_checkpoint(table: Table) -> int:
    """Entries of the log after the newest checkpoint: a writer may have made one at any of these."""
    log = Path(table.uri, "_delta_log")
    newest = max((file.name[:20] for file in log.glob("*.checkpoint.parquet")), default="")
    return sum(file.name[:20] > newest for file in log.glob("*.json"))


def log_entries(table: Table) -> int:
    return len(list(Path(table.uri, "_delta_log").glob("*.json")))


def test_maintenance_killed_at_any_point_loses_nothing_and_the_next_one_completes_it(
    maintained: Pipeline, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = tmp_path_factory.mktemp("driver") / "log"
    lakehouse = Lakehouse.of(maintained.settings)
    silver, gold = lakehouse.table("silver_uno_events"), lakehouse.table("gold_uno_player_agg")
    chess = lakehouse.table("silver_chess_events")
    for n in range(5):
        with earlier_release():
            commit(gold_plan(gold, n))
    for point in POINTS:
        # Enough that there is something to join, to delete and to shorten each time, whatever the kill before has left.
        append(silver, 12 if point.startswith("checkpoint_written") else 4)
        grow_old(silver)
        if point.startswith("renewed"):
            with earlier_release():
                commit(gold_plan(gold, txn(gold)))
        spread(chess, 3)
        before = {table.name: rows(table) for table in (silver, gold, chess)}
        killed(maintained, point, log)
        assert {table.name: rows(table) for table in (silver, gold, chess)} == before, point
    append(silver, 1)
    before = {table.name: rows(table) for table in (silver, gold)}
    assert len(before["silver_uno_events"]) == 2 * (4 * len(POINTS) + 9)

    left = {table.name: data_files(table) - committed_files(table) for table in (silver, gold)}
    done_by(maintained)  # then nobody begins with what is before its checkpoints
    done = done_by(maintained)
    assert done["silver_uno_events"].files == done["gold_uno_player_agg"].files == 1
    assert (done["silver_chess_events"].files, done["silver_chess_events"].spread) == (3, 0)
    assert len(rows(chess)) == 3 * len(POINTS)
    # What a kill has left unnamed may be somebody's who is about to commit it; when it is old it goes.
    unnamed = {table.name: data_files(table) - committed_files(table) for table in (silver, gold)}
    for table in (silver, gold):
        assert unnamed[table.name]
        assert unnamed[table.name] <= left[table.name]
        for name in unnamed[table.name]:
            os.utime(Path(table.uri, name), (time.time() - 7200,) * 2)
    done = done_by(maintained)
    for table in (silver, gold):
        assert done[table.name].orphans == len(unnamed[table.name])
        assert data_files(table) == committed_files(table)
    append(silver, 11)
    grow_old(silver)
    done_by(maintained)
    # Writers of checkpoints shorten the log too, as soon as its entries are older than a second.
    written = silver.open().version() + 1
    assert log_entries(silver) < written - 10, f"the log of {written} commits was not shortened"
    assert {row for row in rows(silver) if row[0] < 2 * (4 * len(POINTS) + 9)} == set(before["silver_uno_events"])
    assert rows(gold) == before["gold_uno_player_agg"]
