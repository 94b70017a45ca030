"""Reading what was written: a silver table of 2,000 small files, then the same after maintenance has joined them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from benchmarks.arena import Arena
from benchmarks.figures import Figure, ratio
from benchmarks.lakes import live_files
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.transactions import txn
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.table_pool import TablePool
from game_events.lakehouse.tables import Lakehouse, Table, table_id
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh

FILES = 2_000
APP = "bench"
SMALL, JOINED = f"{FILES:,} small files", "joined files"


def readers(arena: Arena) -> list[Figure]:
    """A sum over all rows, by DuckDB and by delta-rs, each opening the table anew; one round is left out."""
    with arena.lakehouse() as source, arena.lakehouse() as root:
        rows = _silver_rows(arena, source)
        lakehouse = Lakehouse(str(root))
        table = lakehouse.silver("game_0001")
        _write_small_files(table, rows)
        _measure(arena, table, SMALL, len(rows))
        report = RunReport()
        maintain(arena.pipeline(arena.topic(1), root), report, [table.name])
        assert report.success, report.errors
        joined = len(live_files(Path(table.uri)))
        _measure(arena, table, JOINED, len(rows))
    figures = list[Figure]()
    for name in _readers(""):
        small, after = (arena.measured.seconds([_step(name, what)], 1) for what in (SMALL, JOINED))
        note = f"{len(rows):,} rows"
        figures.append(Figure(_step(name, SMALL), "s", small, note=note))
        figures.append(Figure(_step(name, JOINED), "s", after, note=f"{note} in {joined:,} files"))
        figures.append(ratio(f"{name}: {SMALL} / {JOINED}", small, after))
    return figures


def _silver_rows(arena: Arena, root: Path) -> pa.Table:
    """Silver of one game, as a refresh writes it."""
    events = arena.events // 4
    report = refresh(arena.pipeline(arena.topic(1, events), root))
    assert report.success, report.errors
    table = Path(Lakehouse(str(root)).silver("game_0001").uri)
    rows = pa.concat_tables([pq.read_table(table / path, partitioning=None) for path in live_files(table)])
    assert len(rows) == events, f"silver has {len(rows)} of {events} rows"
    return rows


def _write_small_files(table: Table, rows: pa.Table) -> None:
    """The same rows in many commits, as continuous mode makes them, one file each."""
    pool, each = TablePool(), -(-len(rows) // FILES)
    for start in range(0, len(rows), each):
        handle = pool.open(table)
        before = txn(handle, APP)
        part = rows.slice(start, each)
        advance = {APP: (before or 0) + 1}
        change = Commit(
            table,
            part.schema,
            staged(table, part),
            expect_transactions={APP: before},
            set_transactions=advance,
            table_id=table_id(handle),
            from_table=handle,
        )
        pool.publish(table, commit(change).handle)


def _measure(arena: Arena, table: Table, what: str, rows: int) -> None:
    works = _readers(table.uri)
    for pair in range(-1, arena.pairs):
        for name, work in works.items():
            found = list[int]()
            arena.timed(_step(name, what), 1, pair, partial(_noted, work, found), rows)
            assert found == [rows], f"{name} found {found} of {rows} rows"


def _noted(work: Callable[[], int], found: list[int]) -> None:
    found.append(work())


def _readers(uri: str) -> dict[str, Callable[[], int]]:
    """Reader -> a count of the rows that have a gamer, which reads a column of every file."""
    return {"DuckDB": partial(_by_duckdb, uri), "delta-rs": partial(_by_delta_rs, uri)}


def _by_duckdb(uri: str) -> int:
    files = DeltaTable(uri).file_uris()
    (found,) = duckdb.connect().execute("SELECT count(gamer_id) FROM read_parquet(?)", [files]).fetchall()
    return int(found[0])


def _by_delta_rs(uri: str) -> int:
    query = QueryBuilder().register("silver", DeltaTable(uri)).execute("SELECT count(gamer_id) AS n FROM silver")
    return int(pa.table(query.read_all()).column("n")[0].as_py())


def _step(name: str, what: str) -> str:
    return f"{name}, {what}"
