"""The invariants, read by somebody else than the code under test: DuckDB over the files that Delta's log lists.

Used by every test that runs the pipeline.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from game_events.config.settings import Settings
from game_events.lakehouse.tables import Lakehouse, Table, game_of_gold
from game_events.plugins.local.producer.produce import Manifest


@cache
def database() -> duckdb.DuckDBPyConnection:
    """One database for the process: to open one takes longer than a query. Each query has a cursor, with views of its own."""
    connection = duckdb.connect()
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    return connection


def rows(settings: Settings, table: str, sql: str = "SELECT * FROM t") -> list[tuple[Any, ...]]:
    """Rows of a query over one table, called `t` in it; no rows if there is no such table."""
    found = table_of(Lakehouse.of(settings), table)
    uri = found.uri
    try:
        # Of a game's part of a table, its folder.
        files = [file for file in DeltaTable(uri).file_uris() if found.folder in file]
    except TableNotFoundError:
        return []
    if not files:
        return []
    with database().cursor() as cursor:
        if uri.startswith("s3://"):
            # DuckDB would have to fetch an extension for this: Arrow's own client of S3 reads the files.
            store = pafs.S3FileSystem(endpoint_override=settings.storage_endpoint, region="us-east-1")
            parts = [_with_partition(pq.read_table(f.removeprefix("s3://"), filesystem=store), f) for f in files]
            cursor.register("t", pa.concat_tables(parts, promote_options="permissive"))
        else:
            listed = ", ".join(f"'{f}'" for f in files)
            cursor.execute(f"CREATE TEMP VIEW t AS SELECT * FROM read_parquet([{listed}], union_by_name = true)")
        return cursor.execute(sql).fetchall()


def table_of(lakehouse: Lakehouse, name: str) -> Table:
    """The table of a name; of a game's table its part, where games share tables."""
    found = lakehouse.table(lakehouse.key(name))
    if not lakehouse.is_partitioned or found.by is not None:
        return found
    aggregates = [key.removeprefix("gold_unified_") for key in lakehouse.names() if key.startswith("gold_unified_")]
    own = [lakehouse.gold(game, one) for one in aggregates if (game := game_of_gold(name, one)) is not None]
    return own[0] if own else found


def _with_partition(rows: pa.Table, file: str) -> pa.Table:
    """The rows with the column that the name of the file's folder gives, as DuckDB reads it."""
    column, _, value = file.split("/")[-2].rpartition("=")
    return rows.append_column(column, pa.repeat(value, rows.num_rows)) if column and column not in rows.column_names else rows


def count(settings: Settings, table: str) -> int:
    """Rows of a table."""
    found = rows(settings, table, "SELECT count(*) FROM t")
    return int(found[0][0]) if found else 0


COORDINATES = "_kafka_topic, _kafka_partition, _kafka_offset"


def coordinates(settings: Settings, table: str) -> list[tuple[Any, ...]]:
    """Kafka coordinates of a table's rows, sorted; a doubled row stands twice."""
    return sorted(rows(settings, table, f"SELECT {COORDINATES} FROM t"))


def gold(settings: Settings, game: str) -> dict[str, tuple[Any, ...]]:
    """One game's aggregate: gamer -> (sessions, first, last)."""
    columns = "gamer_id, session_count, min_timestamp, max_timestamp"
    return {row[0]: row[1:] for row in rows(settings, f"gold_{game}_player_agg", f"SELECT {columns} FROM t")}


def assert_books_balance(settings: Settings, manifest: Manifest) -> None:
    """Everything that was sent is in its place, once, and gold says what the producer knows."""
    bronze, held = coordinates(settings, "bronze_events"), coordinates(settings, "quarantine_events")
    assert len(bronze) == manifest.decodable
    assert len(held) == sum(manifest.poison.values())
    assert len(set(bronze + held)) == manifest.records_total, "a record is missing or doubled"
    silver = {game: coordinates(settings, f"silver_{game}_events") for game in manifest.records}
    assert sorted(chain.from_iterable(silver.values())) == bronze, "bronze is not the sum of the games' silver tables"
    unified = {
        (r[0], r[1]): r[2:]
        for r in rows(
            settings,
            "gold_unified_player_agg",
            "SELECT game_name, gamer_id, session_count, min_timestamp, max_timestamp FROM t",
        )
    }
    for game, versions in manifest.records.items():
        assert len(silver[game]) == sum(versions.values())
        truth = {g: (t.session_count, t.min_timestamp, t.max_timestamp) for g, t in manifest.truth[game].items()}
        assert gold(settings, game) == truth
        assert {gamer: held for (name, gamer), held in unified.items() if name == game} == truth
