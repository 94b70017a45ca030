"""Names and handles of tables."""

import json
import pickle
from contextlib import nullcontext
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from game_events.config.names import Names
from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.data.reading import files_with, read_parts, row_count, selection
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.table_properties import FORMAT, KEY, PARTITIONED, Sizes, format_of
from game_events.lakehouse.tables import Lakehouse, game_of_silver, gold_name, is_game, silver_name
from game_events_tests.support.tables import plan


@pytest.fixture
def table(tmp_path):
    return Lakehouse(str(tmp_path)).table("t")


def test_a_table_that_is_not_there_opens_as_nothing(table):
    assert table.open() is None
    table.local_path.mkdir(parents=True)
    assert table.open() is None


def test_a_table_with_deletion_vectors_is_refused_with_what_to_do(table):
    write_deltalake(
        table.uri, pa.table({"n": [1]}), configuration={"delta.enableDeletionVectors": "true", "delta.minReaderVersion": "3"}
    )
    if "deletionVectors" not in (DeltaTable(table.uri).protocol().reader_features or []):
        pytest.skip("this delta-rs did not set the feature")
    with pytest.raises(DataError, match="deletionVectors"):
        table.open()


@pytest.mark.parametrize("mode", ["name", "none"])
def test_a_table_whose_files_have_other_column_names_is_refused_also_from_before_features_had_names(table, mode):
    write_deltalake(table.uri, pa.table({"n": [1]}))
    log = table.local_path / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            action["metaData"]["configuration"] = {"delta.columnMapping.mode": mode}
    log.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(DataError, match="columnMapping") if mode == "name" else nullcontext():
        table.open()


def give_format(table, number):
    handle = table.open_of_any_format()
    handle.alter.set_column_metadata(handle.schema().fields[0].name, {KEY: str(number)})


def test_a_table_says_its_format_and_one_with_another_is_refused(table):
    own = replace(table, key="bronze_events")
    commit(plan(own, [1], None, 1))
    assert format_of(own.open()) == FORMAT
    give_format(own, PARTITIONED + 1)
    with pytest.raises(ConfigurationError, match="has format 5, this version of game_events reads formats up to 4"):
        own.open()
    give_format(own, 2)
    with pytest.raises(ConfigurationError, match=r'written by game_events 0\.1: run "game-events migrate" \(shows'):
        own.open()
    assert format_of(table.open()) == 2, "a table that is none of the pipeline's, and has none of these ids: an archive"


@pytest.mark.parametrize(
    ("key", "ids", "refused"),
    [
        ("bronze_events", {}, False),  # somebody has replaced the table
        ("bronze_events", {"generation": 4}, True),
        ("bronze_events", {"generation": 4, "incarnation": 5}, False),
        ("reports", {"generation": 4}, False),
    ],
)
def test_a_table_without_a_format_is_refused_if_it_has_former_transaction_ids(table, key, ids, refused):
    properties = CommitProperties(app_transactions=[Transaction(app, value) for app, value in ids.items()])
    write_deltalake(table.uri, pa.table({"n": [1]}), commit_properties=properties)
    assert format_of(table.open()) == 0
    with pytest.raises(ConfigurationError, match="migrate --apply") if refused else nullcontext():
        replace(table, key=key).open()


def test_a_table_that_has_its_former_name_is_not_taken_for_none(tmp_path):
    lakehouse = Lakehouse(str(tmp_path), called=Names(prefix="dev_"))
    assert lakehouse.table("erased_people").open() is None
    write_deltalake(str(tmp_path / "dev_suppressed_entities"), pa.table({"n": [1]}))
    with pytest.raises(ConfigurationError, match=r"migrate --apply.*dev_suppressed_entities"):
        lakehouse.table("erased_people").open()


def batches(table, *each):
    """A commit for each of these batches, of two rows; None: the rows have no batch."""
    schema = pa.schema([("n", pa.int64()), ("_batch", pa.int64())])
    for number, batch in enumerate(each):
        rows = pa.table({"n": [number] * 2, "_batch": pa.array([batch, batch and batch + 1], pa.int64())}, schema)
        commit(plan(table, [], number or None, number + 1, schema=schema, files=staged(table, rows)))
    return table.open()


def test_files_below_a_batch_are_not_read(table):
    handle = batches(table, 10, 20, 30)
    assert row_count(handle) == selection(handle, 0).rows == 6
    assert selection(handle, 20).rows == 4
    assert len(files_with(handle, 21)) == 1
    assert len(files_with(batches(table.__class__("other", f"{table.uri}_other"), None), 21)) == 1


def test_a_selection_says_whether_every_row_of_its_files_is_above_the_bound(table):
    handle = batches(table, 10, 20)
    assert [selection(handle, above).exact for above in (9, 10, 11, 19, 20, 21)] == [True, False, True, True, False, True]
    assert selection(handle).exact
    other = batches(table.__class__("other", f"{table.uri}_other"), None)
    assert not selection(other, 5).exact, "without statistics nobody knows"


@pytest.mark.parametrize("name", ["rummy", "a", "7_wonders", "a" * 63, "poker_2"])
def test_good_names_are_games(name):
    assert is_game(name)
    assert game_of_silver(silver_name(name)) == name


@pytest.mark.parametrize(
    "name",
    [None, "", "unified", "../../etc", "a/b", "Rummy", "_a", "a b", "a" * 64, "ü", "🎲", "a\n", "a\0", "a-b", ".", b"rummy", 7],
)
def test_bad_names_are_no_games(name):
    assert not is_game(name)


def test_no_two_games_share_a_table_and_none_has_the_unified_one():
    games = ["a", "a_events", "a_player_agg", "silver_a", "unified_x"]
    names = [name for game in games for name in (silver_name(game), gold_name(game))]
    assert len(set(names)) == len(names)
    assert "gold_unified_player_agg" not in names
    assert [game_of_silver(silver_name(game)) for game in games] == games


def test_a_lakehouse_lists_its_tables_and_nothing_else(tmp_path):
    lakehouse = Lakehouse(str(tmp_path / "new"))
    assert lakehouse.names() == []
    commit(plan(lakehouse.silver("b"), [1], None, 1))
    commit(plan(lakehouse.table("a"), [1], None, 1))
    (tmp_path / "new" / "stranger").mkdir()
    assert lakehouse.names() == ["a", "silver_b_events"]
    assert lakehouse.games() == ["b"]
    (tmp_path / "new" / "silver_c_events" / "_delta_log").mkdir(parents=True)
    assert [lakehouse.silver(game).exists() for game in "bcd"] == [True, False, False]


def test_sizes_reach_workers_with_the_tables(tmp_path):
    lakehouse = Lakehouse(str(tmp_path))
    lakehouse.sizes = Sizes(row_group_rows=4, read_rows=3)
    table = pickle.loads(pickle.dumps(lakehouse)).silver("uno")  # noqa: S301 - as Spark does
    rows = pa.table({"n": range(10)})
    (file,) = staged(table, rows)
    groups = pq.ParquetFile(f"{table.uri}/{file.path}").metadata
    assert [groups.row_group(n).num_rows for n in range(groups.num_row_groups)] == [4, 4, 2]
    assert [part.num_rows for part in read_parts(table, rows.schema, [file.path])] == [3, 1, 3, 1, 2]
