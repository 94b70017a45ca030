"""What the table loader makes of a partition whose game shares its table with others."""

from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import PARTITIONED, SILVER, Lakehouse
from game_events.orchestration.keys import Keys
from game_events.orchestration.resources import TableLoader, _opened, table_of
from game_events_tests.unit.lakehouse.commits.test_group import put


@pytest.fixture
def settings(tmp_path):
    return load_settings(lakehouse=str(tmp_path), silver_layout=PARTITIONED)


def loaded(settings, game, kind):
    lakehouse, keys = Lakehouse.of(settings), Keys.of(settings)
    table = table_of(lakehouse, keys, keys.silver, game)
    handle = _opened(settings, {game: table})[game]
    return None if handle is None else TableLoader._as(None, kind, table, handle)  # type: ignore[arg-type]


def test_a_partition_is_its_games_rows_and_no_others(settings):
    put(Lakehouse.of(settings), rummy=[1, 2], uno=[3])
    assert loaded(settings, "rummy", pa.Table).to_pydict() == {"game_name": ["rummy"] * 2, "n": [1, 2]}
    assert loaded(settings, "uno", pl.DataFrame).rows() == [("uno", 3)]
    assert loaded(settings, "uno", pl.LazyFrame).collect()["n"].to_list() == [3]
    assert loaded(settings, "chess", pa.Table) is None


@pytest.mark.parametrize("kind", [DeltaTable, Any])
def test_a_partition_is_never_the_table_of_all_games(kind, settings):
    put(Lakehouse.of(settings), rummy=[1], uno=[3])
    with pytest.raises(ConfigurationError, match=f"rummy's part of {SILVER}.*pyarrow.Table"):
        loaded(settings, "rummy", kind)
