"""Other engines read the Iceberg tables: DuckDB by its extension, Spark by Iceberg's runtime, row by row as Delta's."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from game_events_tests.support.iceberg import caught_up, iceberg_table, rows_in_delta, sorted_rows
from game_events_tests.support.iceberg_readers import read_by_duckdb, read_by_spark
from game_events_tests.support.worlds.iceberg_history import OF_A_GAME, PREDICATES, History

pytestmark = pytest.mark.scenario

STEPS = 40
#: Steps between two looks, each of which starts a process.
EACH = 5


def assert_read(history: History, read, folder: Path, after: str) -> None:
    """A reader gives the rows of all tables, with and without predicates."""
    tables = [table for table in (history.silver, history.gold, history.unified) if table.open() is not None]
    queries = []
    expected = []
    for table in tables:
        held = iceberg_table(history.pipeline, table)
        some = PREDICATES if table == history.silver else OF_A_GAME if table == history.unified else []
        if held.metadata.current_snapshot() is None:
            continue
        for where in ["true", *(theirs for _, theirs in some)]:
            queries.append((held.metadata_location, where))
            expected.append((table, where))
    for (table, where), rows in zip(expected, read(queries, folder), strict=True):
        schema = pa.schema(DeltaTable(table.uri).schema())
        assert sorted_rows(rows.select(schema.names).cast(schema)) == rows_in_delta(table, where), (after, table.name, where)


@pytest.mark.parametrize(("read", "steps", "each"), [(read_by_duckdb, STEPS, EACH), (read_by_spark, STEPS, STEPS)])
def test_other_readers_have_deltas_rows_along_a_random_history(tmp_path, read, steps, each):
    history = History(tmp_path / "lake", seed=5)
    for number in range(1, steps + 1):
        step = history.step()
        assert not caught_up(history.pipeline).failed
        if number % each == 0:
            folder = tmp_path / str(number)
            folder.mkdir()
            assert_read(history, read, folder, step)
