"""What history costs: a commit to a table that has had many, and the checks of a run beside many rows of bronze."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import pyarrow as pa

from benchmarks.arena import PARTITIONS, Arena, settings_for
from benchmarks.figures import Figure, Target, ratio
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.log import TableLog
from game_events.lakehouse.commits.transactions import txn
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.table_pool import TablePool
from game_events.lakehouse.tables import Lakehouse, Table, paths, table_id
from game_events.pipeline.checks.table_checks import check_after_run
from game_events.pipeline.context import Pipeline
from game_events.pipeline.maintenance import SHARE, IncrementalMaintenance, maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.local.producer.produce import produce_bulk
from game_events.plugins.local.producer.simulator import BulkSimulation

#: Commits of a table without and with history, and how many of each are measured. The table and its log look as if a loop with
#: default intervals had made them: handles are kept, small files are joined, entries older than the retention are deleted.
FEW, MANY, MEASURED = 20, 10_000, 30
#: Maintenance's share of the time: commits follow each other some 100 times as quickly as those of the loop.
MAINTENANCE_SHARE = 100 * SHARE
GAMES, RECORDS, MORE = 10, 1_000, 50
#: Batches in which both first loads come, few rows as many ones: checks read the information of the newest 50 commits.
BATCHES = 50
ROWS = pa.table({"gamer_id": [f"gamer_{number}" for number in range(100)], "session_count": list(range(100))})
CHECKS = "checks of a run"


def history(arena: Arena) -> list[Figure]:
    """Both parts."""
    return [*_commits(arena), *_checks(arena)]


def _commits(arena: Arena) -> list[Figure]:
    """A table that each commit replaces (gold), and one that each commit adds to (silver)."""
    figures = list[Figure]()
    with arena.lakehouse() as root:
        settings = settings_for(arena.folder, "bench_history", root)
        lakehouse = Lakehouse.of(settings)
        gold, silver = (lakehouse.gold("game"), settings.gold_interval_s), (lakehouse.silver("game"), settings.poll_interval_s)
        for (table, interval_s), replace in ((gold, True), (silver, False)):
            pool, maintenance = TablePool(), IncrementalMaintenance(lakehouse, MAINTENANCE_SHARE)
            times = list[float]()
            for number in range(MANY + MEASURED):
                times.append(_commit(table, pool, replace=replace, age_s=interval_s * (MANY + MEASURED - number)))
                maintenance.note([table.name])
                maintained = maintenance.work()
                assert not any(done.error for done in maintained), maintained
            first, last = times[FEW : FEW + MEASURED], times[MANY:]
            what = f"a commit to a table that is {'replaced' if replace else 'added to'} every {interval_s:g} s"
            handle = table.open()
            assert handle is not None
            left = f"{len(TableLog(table).versions()):,} entries in its log, {len(paths(handle)):,} files"
            figures += [
                Figure(f"{what}, at first", "ms", [1_000 * seconds for seconds in first]),
                Figure(f"{what}, after {MANY:,} commits", "ms", [1_000 * seconds for seconds in last], note=left),
                Figure(f"{what}: after {MANY:,} / at first", "x", [median(last) / median(first)], Target("<=", 1.2)),
            ]
    return figures


def _commit(table: Table, pool: TablePool, *, replace: bool, age_s: float) -> float:
    """Seconds of a commit; the log's entries of the version before it look so many seconds old afterwards.

    Of the version before it, as a kept handle knows the entry of its version by its time.
    """
    began = time.perf_counter()
    handle = pool.open(table)
    before = txn(handle, "bench")
    landed = commit(
        Commit(
            table,
            ROWS.schema,
            staged(table, ROWS),
            expect_transactions={"bench": before},
            set_transactions={"bench": (before or 0) + 1},
            table_id=table_id(handle),
            replace=replace and handle is not None,
            from_table=handle,
        )
    )
    pool.publish(table, landed.handle)
    seconds, then = time.perf_counter() - began, time.time() - age_s
    for ending in ("json", "checkpoint.parquet"):
        with suppress(FileNotFoundError):
            os.utime(f"{table.uri}/_delta_log/{landed.version - 1:020}.{ending}", (then, then))
    return seconds


def _checks(arena: Arena) -> list[Figure]:
    """The checks after a run over 1,000 new records, beside few and beside many rows of bronze, in turns.

    Both lakehouses are as maintenance leaves them: without it, a check waits for delta-rs, which reads the names of many small
    files.
    """
    sizes = (arena.events // MORE, arena.events)
    with arena.lakehouse() as made:
        for rows in sizes:
            _refreshed(arena, made / str(rows), rows, rows, seed=0, batches=BATCHES)
            maintained = RunReport()
            maintain(arena.pipeline(_topic(rows), made / str(rows)), maintained)
            assert maintained.success, maintained.errors
        for pair in range(-1, arena.pairs):
            for rows in sizes:
                report = _refreshed(arena, made / str(rows), rows, RECORDS, seed=2 + pair)
                pipeline = arena.pipeline(_topic(rows), made / str(rows))
                arena.timed(f"{CHECKS} beside {rows:,} rows", 0, pair, lambda p=pipeline, r=report: check_after_run(p, r))  # type: ignore[misc]
                assert all(check.passed for check in report.checks), report.checks
    few, many = (arena.measured.seconds([f"{CHECKS} beside {rows:,} rows"], 0) for rows in sizes)
    return [
        *(Figure(f"{CHECKS} beside {rows:,} rows", "s", found) for rows, found in zip(sizes, (few, many), strict=True)),
        ratio(f"{CHECKS}: beside {sizes[1]:,} / {sizes[0]:,} rows", many, few, Target("<=", 1.2)),
    ]


def _refreshed(arena: Arena, root: Path, rows: int, records: int, seed: int, batches: int = 1) -> RunReport:
    """A run over new records of the topic for a lakehouse with so many rows."""
    settings = settings_for(arena.folder, _topic(rows), root)
    produce_bulk(settings, BulkSimulation(records=records, games=GAMES, seed=seed), partitions=PARTITIONS)
    in_batches = settings.model_copy(update={"max_records_per_batch": records // batches})
    report = refresh(Pipeline(in_batches, lambda: arena.spark))
    assert report.success, report.errors
    assert report.rows("silver") == records, f"silver has {report.rows('silver')} new rows of {records}"
    return report


def _topic(rows: int) -> str:
    return f"bench_history_{rows}"
