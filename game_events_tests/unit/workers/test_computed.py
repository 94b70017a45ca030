"""Game, player and time of decoded rows, by expressions: every kind of value, what fails, and what is NULL."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from game_events.config.definitions.settings import definitions_of
from game_events.config.settings import load_settings
from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import DecodedBatch, GoodRows
from game_events.decoding.frame import DamageError
from game_events.decoding.json_decoder import converter
from game_events.decoding.json_schema import JsonType
from game_events.lakehouse.data.columns import OWN_COLUMNS
from game_events.sources.source import RAW_SCHEMA, columns_of
from game_events.workers.computed import Computation
from game_events.workers.results import StagedRows

HEADERS = RAW_SCHEMA.field("headers").type
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GAME, PLAYER, WHEN = "game_name", "gamer_id", "event_timestamp"


def records(count, **columns):
    kinds = {f.name: f.type for f in RAW_SCHEMA}
    return columns_of({name: pa.array(values, kinds[name]) for name, values in columns.items()}, count)


def compute(fields, records_=None, *, message_type="pkg.Type", rows=None, known=None, computation=None, **settings):
    """The columns of one message type after it, and what the result counts."""
    table = pa.table(fields)
    count = len(rows) if rows is not None else table.num_rows or len(records_)
    made = computation or Computation(
        definitions_of(load_settings(**settings)), ColumnMap({f.name: f.type for f in table.schema} | (known or {}))
    )
    result = StagedRows()
    positions = np.arange(count) if rows is None else np.array(rows)
    good = GoodRows(positions, 1, table, message_type)
    batch = made.applied(DecodedBatch(good=[good]), records_ or records(count), result)
    assert batch.good[0].rows is positions
    return batch.good[0].columns, result


def values(fields, records_=None, **options):
    """Column -> values, with no failure."""
    columns, result = compute(fields, records_, **options)
    assert (dict(result.nulled), result.misfits) == ({}, {})
    return columns.to_pydict()


def test_topic_key_headers_time_of_arrival_and_type_are_those_of_the_records_of_the_rows():
    sent = records(
        4,
        topic=["a.rümmy", "b", "a.x", "a.y"],
        key=[b"p1", b"\xff", None, b""],
        headers=[[("game", b"x"), ("game", b"y")], None, [("game", b"\xff"), ("x", None)], [("Game", b"z")]],
        timestamp=[EPOCH, EPOCH, EPOCH + timedelta(days=1), EPOCH],
        offset=[7, 8, 9, 10],
    )
    same = {"entity": "split_part(_kafka_topic, '.', 2)", "key": "_kafka_key", "time": "_kafka_timestamp"}
    held = values({"n": [1, 2, 3]}, sent, rows=[3, 0, 2], **same)
    assert held == {
        "n": [1, 2, 3],
        GAME: ["y", "rümmy", "x"],
        PLAYER: ["", "p1", None],
        WHEN: [EPOCH, EPOCH, EPOCH + timedelta(days=1)],
    }
    held = values({"n": [0] * 4}, sent, entity="header('game')", key="_message_type || ' ' || _kafka_offset")
    assert held[GAME] == ["y", None, None, None]
    assert held[PLAYER] == [f"pkg.Type {n}" for n in (7, 8, 9, 10)]


def test_of_types_that_records_name_themselves_one_query_is_kept():
    made = Computation(definitions_of(load_settings(entity={"Start": "lower(n)", "*": "n"})), ColumnMap({"n": pa.string()}))
    for number in range(50):
        columns, _ = compute({"n": ["A"]}, message_type=f"type {number}", computation=made)
        assert columns[GAME].to_pylist() == ["A"]
    assert compute({"n": ["A"]}, message_type="t.Start", computation=made)[0][GAME].to_pylist() == ["a"]
    assert len(made._queries) == 2


def test_stored_rows_have_the_same_values_as_the_records_that_they_were():
    own = {
        "_kafka_topic": ["a.b"],
        "_kafka_key": pa.array([b"k"], pa.binary()),
        "_kafka_headers": pa.array([[("game", b"g")]], HEADERS),
        "_file_path": ["dir/x.json"],
    }
    stored = pa.table({f.name: own.get(f.name, pa.nulls(1, f.type)) for f in OWN_COLUMNS})
    held = values({"n": [1]}, stored, entity="_kafka_topic || header('game')", key="_kafka_key || _file_path")
    assert (held[GAME], held[PLAYER]) == (["a.bg"], ["kdir/x.json"])


def test_a_message_without_fields_has_as_many_rows_as_records():
    sent = records(3, topic=["a", "b", "c"])
    assert values({}, sent, entity="_kafka_topic", key="'x'") == {GAME: ["a", "b", "c"], PLAYER: ["x"] * 3}


def test_nested_fields_lists_and_maps_are_read_and_what_is_not_set_is_null():
    fields = {
        "meta": [{"name": "a", "ids": [1, 2]}, {"name": None, "ids": []}, None],
        "labels": pa.array([[("k", "v")], [], None], pa.map_(pa.string(), pa.string())),
    }
    held = values(fields, entity="META.name", key="labels['k']")
    assert (held[GAME], held[PLAYER]) == (["a", None, None], ["v", None, None])
    assert values(fields, key="meta.ids[2]")[PLAYER] == ["2", None, None]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array(["a", "", None]), ["a", "", None]),
        (pa.array([-(2**63), 0, None], pa.int64()), [str(-(2**63)), "0", None]),
        (pa.array([Decimal(2**64 - 1), Decimal(0), None], pa.decimal128(20, 0)), [str(2**64 - 1), "0", None]),
        (pa.nulls(3), [None] * 3),
    ],
)
def test_texts_and_whole_numbers_name_a_player(column, expected):
    assert values({"x": column}, key="x")[PLAYER] == expected


@pytest.mark.parametrize(
    ("column", "sql", "expected"),
    [
        (pa.array([1_500, -1, None], pa.int64()), "timestamp_millis(x)", [1_500_000, -1_000, None]),
        (pa.array([1, 0, None], pa.int64()), "timestamp_seconds(x)", [1_000_000, 0, None]),
        (pa.array([1.5, 0.000001, None]), "timestamp_seconds(x)", [1_500_000, 1, None]),
        (pa.array([7, 8, None], pa.int64()), "timestamp_micros(x)", [7, 8, None]),
        (pa.array([Decimal(1_999), Decimal(0), None], pa.decimal128(20, 0)), "timestamp_nanos(x)", [1, 0, None]),
        (pa.array([5, 0, None], pa.timestamp("us", "UTC")), "x", [5, 0, None]),
        (pa.array([5, 0, None], pa.timestamp("us")), "x", [5, 0, None]),
        (pa.array(["5", "0", None]), "timestamp_micros(x)", [5, 0, None]),
        (pa.array(["1970-01-02", None, None]), "strptime(x, '%Y-%m-%d')", [86_400_000_000, None, None]),
        (pa.array(["1970-01-01T01:00:00.000005+01:00", "1970-01-01T00:00:00Z", None]), "x", [5, 0, None]),
    ],
)
def test_times_come_from_numbers_texts_and_times(column, sql, expected):
    times = [None if micros is None else EPOCH + timedelta(microseconds=micros) for micros in expected]
    assert values({"x": column}, time=sql)[WHEN] == times


TEXTS = [
    "2026-01-02T03:04:05Z", "2026-01-02t03:04:05.1234567z", "2026-01-02 03:04:05+02:00", "2026-01-02T03:04:05+0530",
    "2026-01-02T03:04:05-08", "2026-01-02T03:04:05.5+01:00[Europe/Berlin]", "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "2026-01-02T03:04:05", "2026-01-02T03:04", "2026-10-25T02:30:00", "2026-03-29T02:30:00", "2026-10-25T01:59:59.999999",
    "2026-01-02", "2026-01-02T24:00:00Z", "2026-06-30T23:59:60Z", "2026-02-30T00:00:00Z", "10000-01-01T00:00:00Z", "now", "",
    "1712345678", " 2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z\n", "infinity", "٢٠٢٦-01-02T03:04:05Z", "2026-01-02T03:04Z",
    "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "2026-01-02T03:04:05,5Z",
    "2026-01-02T03:04:05+99:00", "2026-01-02T03:04:05+24:00", "2026-01-02T03:04:05-23:59", "2026-01-02T03:04:05+0599",
    "2026-04-05T01:45:00", "2026-04-05T02:00:00", "2026-10-04T02:15:00", "2026-10-04T02:45:00", "2026-10-04T02:15",
]  # fmt: skip


@pytest.mark.parametrize("zone", [None, "Europe/Berlin", "UTC", "America/New_York", "Australia/Lord_Howe"])
def test_a_text_is_the_time_that_it_is_in_json(zone):
    settings = load_settings(time="x", **({"naive_times_zone": zone} if zone else {}))
    read = converter(JsonType("timestamp"), None, ZoneInfo(zone) if zone else None)

    def expected(text):
        try:
            return read(text)
        except DamageError:
            return None

    columns, result = compute({"x": TEXTS}, computation=Computation(definitions_of(settings), ColumnMap({"x": pa.string()})))
    held = dict(zip(TEXTS, columns.column(WHEN).to_pylist(), strict=True))
    assert held == {text: expected(text) for text in TEXTS}
    assert held["2026-01-02T03:04:05+99:00"] is None and held["2026-01-02T03:04:05Z"] is not None
    assert result.nulled[WHEN] == columns.column(WHEN).null_count


def test_a_row_in_which_an_expression_fails_is_null_and_counted_and_no_other_one_is():
    fields = {"x": ["1", "one", None, "9223372036854775808", "4"], "y": [1, 2, 3, 4, 5]}
    columns, result = compute(fields, key="CAST(x AS BIGINT) + 1", time="timestamp_millis(x)", entity="y")
    assert columns.column(PLAYER).to_pylist() == ["2", None, None, None, "5"]
    assert columns.column(WHEN).to_pylist()[1:4] == [None] * 3
    assert columns.column(GAME).to_pylist() == list("12345")
    assert dict(result.nulled) == {PLAYER: 2, WHEN: 2}
    assert columns.column("x").to_pylist() == fields["x"]


@pytest.mark.parametrize("sql", ["timestamp_seconds(x)", "timestamp 'infinity'", "make_timestamp(x)"])
def test_a_time_that_no_column_can_hold_is_null_and_counted(sql):
    columns, result = compute({"x": [2**62]}, time=sql)
    assert columns.column(WHEN).to_pylist() == [None]
    assert dict(result.nulled) == {WHEN: 1}


def test_an_expression_that_takes_all_memory_harms_only_its_rows():
    columns, result = compute({"n": [3, 10**10, 10**15, 1]}, key="length(repeat('abc', n))", entity="n")
    assert columns.column(PLAYER).to_pylist() == ["9", None, None, "3"]
    assert columns.column(GAME).to_pylist() == ["3", str(10**10), str(10**15), "1"]
    assert dict(result.nulled) == {PLAYER: 2}


def test_where_the_query_itself_fails_the_rows_are_halved_until_the_bad_one_is_alone():
    """As where DuckDB ends it for another reason than the row's value."""
    computation = Computation(definitions_of(load_settings(key="x")), ColumnMap({"x": pa.string()}))
    real = computation._connection

    class Failing:
        rows = None

        def register(self, name, rows):
            self.rows = rows
            real.register(name, rows)

        def sql(self, query):
            if "bad" in self.rows.column("x").to_pylist():
                raise duckdb.OutOfMemoryException("too little")
            return real.sql(query)

        def execute(self, query):
            return real.execute(query)

    computation._opened = Failing()
    columns, result = compute({"x": ["a", "b", "bad", "c", "d"]}, computation=computation)
    assert columns.column(PLAYER).to_pylist() == ["a", "b", None, "c", "d"]
    assert dict(result.nulled) == {PLAYER: 1}


@pytest.mark.parametrize(
    ("setting", "column", "sql", "why"),
    [
        ("time", pa.array([1], pa.int64()), "x", "gives BIGINT: .*timestamp_millis"),
        ("time", pa.array([1.0]), "x", "gives DOUBLE: .*timestamp_seconds"),
        ("time", pa.array([1], pa.date32()), "x", r"gives DATE: make it a time by CAST\(... AS TIMESTAMP\)"),
        ("time", pa.array([True]), "x", "gives BOOLEAN: a time is wanted"),
        ("key", pa.array([1.0]), "x", "gives DOUBLE: a text is wanted"),
        ("key", pa.array([b"a"]), "x", r"gives BLOB: make it text by text\(...\)"),
        ("entity", pa.array([{"a": 1}]), "x", "gives STRUCT.*: a text is wanted"),
        ("entity", pa.array(['{"a": "b"}']), "json_extract(x, '$.a')", "gives JSON: take the text by ->>"),
        ("entity", pa.array([["a"]]), "lower(x)", "No function matches"),
        ("entity", pa.array([1]), "x.y", "x"),
    ],
)
def test_an_expression_that_does_not_fit_a_type_makes_its_rows_null_and_says_why(setting, column, sql, why):
    columns, result = compute({"x": column}, **{setting: sql})
    name = {"entity": GAME, "key": PLAYER, "time": WHEN}[setting]
    assert columns.column(name).to_pylist() == [None]
    assert dict(result.nulled) == {name: 1}
    assert re.search(why, result.misfits[name]["pkg.Type"])
    assert result.fitted == set()


def test_a_name_means_the_decoded_field_of_any_kind_and_the_computed_value_takes_a_column_of_its_type():
    held = values(
        {"event_timestamp__bigint": [1], "game_name": ["UNO"]},
        time="timestamp_millis(event_timestamp)",
        entity="lower(game_name)",
    )
    assert held == {"event_timestamp__bigint": [1], GAME: ["uno"], WHEN: [EPOCH + timedelta(milliseconds=1)]}
    assert values({"ts__extra": ["a"], "ts__struct": [{"a": "b"}]}, key="ts.a")[PLAYER] == ["b"]


def test_a_field_that_a_type_lacks_is_null_whether_another_type_has_it_or_not():
    known = {"meta": pa.struct([("name", pa.string())]), "n": pa.int64()}
    held = values(
        {"x": ["a", "b"]}, entity="coalesce(meta.name, x)", key="nobody.has['this']", time="timestamp_millis(n)", known=known
    )
    assert held == {"x": ["a", "b"], GAME: ["a", "b"], PLAYER: [None, None], WHEN: [None, None]}


def test_each_type_has_its_own_expression_and_one_without_keeps_its_field():
    settings = {"entity": {"pkg.A": "a", "B": "b"}}
    assert values({"a": ["x"], "b": ["y"]}, message_type="pkg.A", **settings)[GAME] == ["x"]
    assert values({"a": ["x"], "b": ["y"]}, message_type="other.B", **settings)[GAME] == ["y"]
    assert values({"a": ["x"], GAME: ["y"]}, message_type="pkg.C", **settings)[GAME] == ["y"]
    assert GAME not in values({"a": ["x"]}, message_type=None, **settings)


def test_what_two_expressions_share_fails_in_each_of_them_alone():
    columns, result = compute({"x": ["1", "x"]}, key="CAST(x AS INTEGER)", entity="coalesce(TRY(CAST(x AS INTEGER)), 0)")
    assert columns.column(PLAYER).to_pylist() == ["1", None]
    assert columns.column(GAME).to_pylist() == ["1", "0"]
    assert dict(result.nulled) == {PLAYER: 1}


def test_aliases_and_the_rule_hold_for_computed_and_for_decoded_names_and_names_made_one_are_noted():
    settings = {"entity_names": "lower", "entity_aliases": {"com.studio.rummy": "rummy"}}
    names = ["Rummy", "com.studio.rummy", None, "rummy", "no name.", "Uno", "RUMMY"]
    expected = ["rummy", "rummy", None, "rummy", "no name.", "uno", "rummy"]
    columns, result = compute({GAME: names}, **settings)
    assert columns.column(GAME).to_pylist() == expected
    assert result.named == {"rummy": ["Rummy", "rummy"], "uno": ["Uno"]}
    assert values({"x": names}, entity="x", **settings)[GAME] == expected
    columns, result = compute({GAME: ["a", "B"]}, entity_aliases={"B": "b"})
    assert (columns.column(GAME).to_pylist(), result.named) == (["a", "b"], {})
    assert values({GAME: [1, 2]}, **settings)[GAME] == [1, 2]
    assert "x" in values({"x": [1]}, **settings)
