"""A game's files have the columns of the message types that the game has sent, and lose no value."""

from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from game_events.decoding.columns import ColumnMap, field_key
from game_events.lakehouse.table_properties import Sizes
from game_events.lakehouse.tables import Lakehouse
from game_events.workers.fanout import ColumnChoice, FanOut
from game_events_tests.support.worker_jobs import run

#: Columns of each message type; `amount` is a field of two.
TYPES = {"Played": ("game", "level", "mode"), "Paid": ("game", "amount", "currency"), "Refund": ("game", "amount")}
SCHEMA = pa.schema([("game", pa.string()), *((name, pa.int64()) for name in ("level", "mode", "amount", "currency"))])


def column_map(*types):
    owners = {field_key(name, (n,), "int64"): c for name in types for n, c in enumerate(TYPES[name])}
    return ColumnMap(names=owners, owners=owners)


def choice(*types):
    return ColumnChoice.of(SCHEMA, column_map(*types), ("game",))


def rows(game, **values):
    return {"game": game} | values


def table(*found):
    return pa.Table.from_pylist(list(found), SCHEMA)


def test_with_one_message_type_there_is_no_choice():
    assert choice("Played") is None


def test_a_value_brings_all_columns_of_its_type_and_one_of_several_types_itself():
    found = choice("Played", "Paid", "Refund")
    assert found.sent(table(rows("uno"))) == set()
    assert found.sent(table(rows("uno"), rows("uno", level=1))) == {"level", "mode"}
    assert found.sent(table(rows("uno", amount=1))) == {"amount"}
    assert found.sent(table(rows("uno", currency=1))) == {"amount", "currency"}
    assert found.chosen(SCHEMA, {"currency", "amount"}).names == ["game", "amount", "currency"]


def test_columns_of_no_message_type_are_in_every_table():
    schema = SCHEMA.append(pa.field("_batch", pa.int64()))
    found = ColumnChoice.of(schema, column_map("Played", "Paid"), ("game",))
    assert found.chosen(schema, ()).names == ["game", "_batch"]


event = st.builds(
    lambda game, kind, value: rows(game, **({kind: value} if kind else {})),
    st.sampled_from(["uno", "rummy"]),
    st.sampled_from([None, "level", "mode", "amount", "currency"]),
    st.integers(0, 9),
)


@settings(max_examples=60)
@given(st.lists(st.lists(event, max_size=6), max_size=5))
def test_no_value_is_lost_and_no_file_has_a_column_that_is_not_reported(tmp_path_factory, batches):
    lakehouse = Lakehouse(str(tmp_path_factory.mktemp("lakehouse")))
    lakehouse.sizes = Sizes(sorted_rows=1)  # each batch is sorted and written by itself
    every = choice("Played", "Paid", "Refund")
    task = FanOut(lakehouse, "silver", "game", SCHEMA, choice=every)
    result = run(task, [pa.RecordBatch.from_pylist(b, SCHEMA) for b in batches])
    for game in ("uno", "rummy"):
        sent = [{k: v for k, v in row.items() if k != "game"} for row in chain(*batches) if row["game"] == game]
        files = [pq.read_table(Path(lakehouse.silver(game).uri) / f.path) for f in result.files.get(game, [])]
        columns = result.columns.get(game, frozenset())
        assert {name for file in files for name in file.column_names} - {"game"} <= columns
        assert columns == every.sent(table(*(rows(game, **row) for row in sent))) if sent else not columns
        found = [{k: v for k, v in row.items() if v is not None and k != "game"} for f in files for row in f.to_pylist()]
        assert sorted(found, key=str) == sorted(sent, key=str)
