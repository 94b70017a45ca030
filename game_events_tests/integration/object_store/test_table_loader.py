"""Assets of one's own read tables in an object store with the settings of the pipeline."""

import polars as pl
import pyarrow as pa
from deltalake import write_deltalake

from game_events.config.settings import Settings
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.tables import Lakehouse
from game_events.orchestration.resources import open_table

ROWS = pa.table({"gamer_id": ["a", "b"], "session_count": [1, 2]})


def test_a_table_is_opened_and_read_and_one_that_is_not_there_is_none(tables_only: Settings) -> None:
    lakehouse = Lakehouse.of(tables_only)
    table = lakehouse.gold("rummy")
    write_deltalake(table.uri, ROWS, storage_options=table.options)
    handle = open_table(tables_only, table)
    assert handle is not None
    assert read_arrow(table, handle).equals(ROWS)
    assert pl.scan_delta(handle).collect().height == 2
    assert open_table(tables_only, lakehouse.gold("chess")) is None
