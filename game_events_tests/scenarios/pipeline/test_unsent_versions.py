"""Versions that are registered and not sent (yet): they neither take a column's name nor make one."""

from __future__ import annotations

from game_events.lakehouse.maintenance import FULL_GOAL, join_files, small_files
from game_events.lakehouse.tables import BRONZE
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.support.decoding.helpers import compiled, frame, python_class
from game_events_tests.support.reconciliation import rows
from game_events_tests.support.worlds.topic import register, send_values

OWN = "string game_name = 1; string gamer_id = 2; int64 event_timestamp = 9;"
TEXTS = [
    f'syntax = "proto3"; package o; message E {{ {OWN} {fields} }}'
    for fields in (
        "string foo = 3; int32 level = 4; int64 gone = 5;",
        "string bar = 3; string level = 4;",
        "string bar = 3; string gone = 6;",
    )
]


def send(settings, schema_id, text, **values):
    message = python_class(compiled(text))(game_name="uno", gamer_id="g", event_timestamp=1, **values)
    send_values(settings, [frame(schema_id, (0,), message)])


def test_values_are_in_the_table_s_columns_whatever_else_was_registered_before(settings, make_pipeline):
    first, second, third = (register(settings, text) for text in TEXTS)
    send(settings, second, TEXTS[1], bar="b", level="high")
    assert refresh(make_pipeline(settings)).success
    assert rows(settings, "silver_uno_events", "SELECT bar, level FROM t") == [("b", "high")]
    columns = {name for name, *_ in rows(settings, BRONZE, "DESCRIBE SELECT * FROM t")}
    assert not columns & {"foo", "gone", "level__bigint", "level__string"}

    # A column that only an unsent version has so far is free for another kind.
    send(settings, third, TEXTS[2], bar="c", gone="away")
    assert refresh(make_pipeline(settings)).success
    send(settings, first, TEXTS[0], foo="a", level=7, gone=5)
    assert refresh(make_pipeline(settings)).success
    wanted = [("a", None, 7, None, 5), ("b", "high", None, None, None), ("c", None, None, "away", None)]
    query = "SELECT bar, level, level__bigint, gone, gone__bigint FROM t ORDER BY bar"
    assert rows(settings, "silver_uno_events", query) == wanted

    table = make_pipeline(settings).bronze
    for group in small_files(table, table.open(), FULL_GOAL):
        join_files(table, table.open(), group)
    assert rows(settings, BRONZE, query) == wanted
