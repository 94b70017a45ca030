"""Rows that were sent twice: which settings fit bronze's columns, and which of silver's files are read."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from game_events.config.extensions import Extensions
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.extending import SilverTransformation
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn
from game_events.lakehouse.data.reading import FileSelection, selection
from game_events.lakehouse.open_table import DataFile
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.runs.preflight import check_duplicates
from game_events.pipeline.silver import duplicates as module
from game_events.pipeline.silver.duplicates import History, NewRows, find, keys_of, new_keys, new_times
from game_events.rules import Deduplicate
from game_events.workers.duplicates import Keys
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put

COLUMNS = pa.schema(
    [
        ("game_name", pa.string()),
        ("event_id", pa.string()),
        ("score", pa.float64()),
        ("event_timestamp", pa.timestamp("us", "UTC")),
        ("_kafka_timestamp", pa.timestamp("us", "UTC")),
    ]
)
KEYS = Keys("game_name", "event_timestamp", (Deduplicate(key=("event_id",), window_h=2),))


def wanted(*entries, columns=COLUMNS, transformations=(), **settings):
    chosen = load_settings(deduplicate=[{"key": ["event_id"], "window_h": 1} | entry for entry in entries], **settings)
    return keys_of(chosen, Extensions(tuple(transformations)), columns)


@pytest.mark.parametrize(
    ("entry", "settings", "message"),
    [
        ({"key": ["evnt_id"]}, {}, "entry 1: bronze has no column evnt_id. It has event_id"),
        ({"key": ["score"]}, {}, "score cannot be of the key, as it is double"),
        ({"key": ["_kafka_key"]}, {}, "_kafka_key cannot be of the key: silver lacks it"),
        ({"key": ["event_id", "_kafka_offset"]}, {}, "_kafka_offset cannot be of the key"),
        (
            {"key": ["game_name"]},
            {},
            "game_name alone does not tell the events of a game from each other: name what does in `key`",
        ),
        ({}, {"time_column": "event_id"}, "event_id is string, no time: say `of: arrival`"),
    ],
)
def test_an_entry_that_does_not_fit_the_columns_is_refused(entry, settings, message):
    with pytest.raises(ConfigurationError, match=message.replace(".", r"\.")):
        wanted(entry, **settings)


def test_an_entry_of_some_games_whose_columns_did_not_come_yet_waits_with_a_notice():
    keys, notices = wanted({"games": ["uno"]}, {"key": ["round"], "games": ["go"]})
    assert [entry.games for entry in keys.entries] == [("uno",)]
    (notice,) = notices
    assert notice.endswith("entry 2: bronze has no column round: one round within 1 h of event time of go is not looked for")
    assert (keys.applies_to("uno"), keys.applies_to("go")) == (True, False)


def test_an_entry_of_some_types_waits_with_a_notice_while_bronze_does_not_say_of_which_type_rows_are():
    keys, (notice,) = wanted({"types": ["Paid"]})
    assert keys.entries == ()
    assert "bronze has no column _message_type" in notice
    assert wanted({"types": ["Paid"]}, columns=COLUMNS.append(pa.field("_message_type", pa.string())))[1] == []


def test_a_transformation_that_makes_any_number_of_rows_is_refused_for_games_with_an_entry():
    of_go = SilverTransformation("some", lambda rows: rows, frozenset({"go"}), "any", "mine.py:1")
    assert wanted({"games": ["uno"]}, transformations=[of_go])[0].entries
    with pytest.raises(ConfigurationError, match=r"some \(mine\.py:1\) has rows='any'"):
        wanted({}, transformations=[of_go])


def at(hour):
    return datetime(2026, 1, 1, hour, tzinfo=UTC)


def put_rows(table, hours, batch, ids=None, txns=None):
    rows = {
        "game_name": pa.array(["uno"] * len(hours), pa.string()),
        "event_id": pa.array(ids or [f"{batch} {n}" for n in range(len(hours))]),
        "event_timestamp": pa.array([None if hour is None else at(hour) for hour in hours], pa.timestamp("us", "UTC")),
        "_batch": pa.array([batch] * len(hours)),
        "_kafka_topic_id": pa.array(["t"] * len(hours)),
        "_kafka_partition": pa.array([0] * len(hours), pa.int32()),
        "_kafka_offset": pa.array(range(len(hours))),
    }
    return put(table, rows, txns)


@pytest.fixture
def lakehouse(tmp_path):
    return Lakehouse(str(tmp_path))


def read_hours(lakehouse, new_hours):
    """The hours in the files of silver that are read for new rows."""
    bronze = lakehouse.table("bronze_events")
    handle = put_rows(bronze, new_hours, 9)
    silver = lakehouse.silver("uno")
    for hour in range(0, 24, 3):
        put_rows(silver, [hour], 1)
    new = new_times(KEYS, bronze, pa.schema(handle.schema()), selection(handle), {"uno": 8})
    selected = History.of(KEYS, new, {"uno": {"uno": silver.open()}}).files.get("uno")
    return [] if selected is None else [round(file.rows) for file in selected.data], new


@pytest.mark.parametrize(("hours", "files"), [([12], 1), ([11, 13], 3), ([0, 23], 2), ([0, 1, 2, 3], 2), ([None], 0)], ids=str)
def test_of_silver_only_files_with_times_near_those_of_new_rows_are_read(lakehouse, hours, files):
    found, new = read_hours(lakehouse, hours)
    assert len(found) == files
    assert new.games == {"uno"}, "a game without a time is looked at all the same"


def test_so_many_stretches_of_time_become_one(lakehouse, monkeypatch):
    monkeypatch.setattr(module, "MOST_STRETCHES", 1)
    assert len(read_hours(lakehouse, [0, 23])[0]) == 8


@pytest.mark.parametrize("spread_h", [30, 200_000])
def test_of_any_number_of_rows_no_more_stretches_are_held_and_each_time_is_in_one(lakehouse, monkeypatch, spread_h):
    monkeypatch.setattr(module, "MOST_STRETCHES", 100)
    monkeypatch.setattr(module, "read_parts", lambda *_: parts)
    random = np.random.default_rng(spread_h)
    hour = 3_600_000_000
    times = [random.integers(-spread_h * hour, spread_h * hour, 500) for _ in range(20)]  # before 1970, too
    parts = [
        pa.table(
            {
                "game_name": pa.array([("uno", "go")[n % 2] for n in range(500)]),
                "_batch": pa.array([1] * 500),
                "event_timestamp": pa.array(part).cast(pa.timestamp("us", "UTC")),
            }
        )
        for part in times
    ]
    held = []
    joined = module._joined
    monkeypatch.setattr(
        module, "_joined", lambda tables, *by: held.append(sum(t.num_rows for t in tables)) or joined(tables, *by)
    )
    columns = pa.schema([f for f in COLUMNS if f.name != "_kafka_timestamp"])
    new = new_times(KEYS, lakehouse.table("bronze_events"), columns, FileSelection("", ()), {"uno": 0, "go": 0})
    assert max(held) <= 200 + 500
    by_game = new.times["event_timestamp"]
    assert sum(len(first) for first, _ in by_game.values()) <= 100
    for number, game in enumerate(("uno", "go")):
        first, last = by_game[game]
        assert (first <= last).all()
        assert (last[:-1] < first[1:]).all(), "stretches have no time in common"
        mine = np.concatenate([part[number::2] for part in times])
        at = np.searchsorted(last, mine)
        assert (first[at] <= mine).all()
        assert set(first) <= set(mine), "bounds are times of rows"
        assert set(last) <= set(mine), "bounds are times of rows"


def test_where_no_game_is_in_silver_yet_bronze_is_not_read_for_times(lakehouse):
    files = FileSelection(str(lakehouse.root), (DataFile("not there.parquet", 1, 1, 1, 1),))
    assert new_times(KEYS, lakehouse.table("bronze_events"), COLUMNS, files, {}) == NewRows()


def test_only_rows_of_later_batches_are_new_and_others_are_compared_with_them_only_if_silver_has_them(lakehouse):
    bronze, silver = lakehouse.table("bronze_events"), lakehouse.silver("uno")
    put_rows(bronze, [1, 1], 1, ["a", "b"])
    handle = put_rows(bronze, [1, 2, 9, 1, 2], 2, ["b", "a", "a", "c", "c"])
    put_rows(silver, [1], 1, ["a"])
    columns = pa.schema(handle.schema())
    new = new_keys(KEYS, bronze, columns, selection(handle, 1), 1, {"uno"})
    history = History.of(KEYS, new, {"uno": {"uno": silver.open()}})
    left_out = find(lambda: None, lakehouse, KEYS, columns, new.keys, None, history)
    assert left_out.column("_row").to_pylist() == [1, 4]
    assert find(lambda: None, lakehouse, KEYS, columns, new.keys, None, History()).column("_row").to_pylist() == [4]


def test_a_key_with_the_game_is_compared_with_silver_by_its_other_columns(lakehouse):
    keys, _ = wanted({"key": ["game_name", "event_id"]})
    bronze, silver = lakehouse.table("bronze_events"), lakehouse.silver("uno")
    handle = put_rows(bronze, [1, 1], 2, ["a", "b"])
    put_rows(silver, [1], 1, ["a"])
    columns = pa.schema(handle.schema())
    new = new_keys(keys, bronze, columns, selection(handle), 1, {"uno"})
    history = History.of(keys, new, {"uno": {"uno": silver.open()}})
    assert find(lambda: None, lakehouse, keys, columns, new.keys, None, history).column("_row").to_pylist() == [0]


def test_what_is_too_much_for_this_process_is_left_to_spark(lakehouse, monkeypatch):
    bronze = lakehouse.table("bronze_events")
    handle = put_rows(bronze, [1, 2], 1)
    for name in ("MOST_NEW_ROWS", "MOST_NEW_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, 1)
            new = new_keys(KEYS, bronze, pa.schema(handle.schema()), selection(handle), 0, {"uno"})
            assert new.keys is None
            assert np.concatenate(new.times["event_timestamp"]["uno"]).tolist() != []


def test_a_table_that_changed_since_it_was_compared_with_is_compared_again(lakehouse):
    silver, bronze = lakehouse.silver("uno"), BronzeIdentity("id")
    before = put_rows(silver, [1], 1, txns={bronze.app: 1})
    same = put_rows(silver, [2], 1)  # no commit of this pipeline
    other = put_rows(silver, [3], 2, txns={bronze.app: 2})
    erased = put_rows(silver, [4], 2, txns={Txn.ERASURES: 1})
    history = History({"uno": {"uno": before}})
    assert history.is_of("uno", {"uno": same}, bronze)
    assert not history.is_of("uno", {"uno": other}, bronze)
    assert not History({"uno": {"uno": other}}).is_of("uno", {"uno": erased}, bronze)
    assert not history.is_of("uno", {}, bronze)
    assert not history.is_of("go", {"go": before}, bronze)
    assert history.is_of("go", {}, bronze)


def test_the_tables_of_a_games_message_types_are_compared_with_too(lakehouse):
    bronze = BronzeIdentity("id")
    own, paid = (put_rows(lakehouse.silver(name), [1], 1, txns={bronze.app: 1}) for name in ("uno", "uno:paid"))
    history = History({"uno": {"uno": own, "uno:paid": paid}})
    assert history.is_of("uno", {"uno": own, "uno:paid": paid}, bronze)
    ahead = put_rows(lakehouse.silver("uno:paid"), [2], 2, txns={bronze.app: 2})
    assert not history.is_of("uno", {"uno": own, "uno:paid": ahead}, bronze)
    assert not history.is_of("uno", {"uno": own}, bronze), "one is gone"
    assert not history.is_of("uno", {"uno": own, "uno:paid": paid, "uno:start": paid}, bronze), "one is new"


def test_doctor_says_what_is_looked_for(tmp_path):
    pipeline = without_spark(tmp_path, deduplicate=[{"key": ["event_id"], "window_h": 2}])
    assert check_duplicates(pipeline) == (
        "one event_id within 2 h of event time; not compared with bronze's columns: there are no rows yet"
    )
    put_rows(pipeline.bronze, [1], 1, txns={Txn.BATCH: 1})
    assert check_duplicates(pipeline) == "one event_id within 2 h of event time"
