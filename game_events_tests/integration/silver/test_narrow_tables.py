"""Several message types in one topic: a game's silver table has the columns of those that the game has sent."""

import pytest

from game_events.lakehouse.data.reading import row_count
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.checks.audits import audit_rules
from game_events.pipeline.fanout import OnePass
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh, refresh_downstream
from game_events.plugins.governance.run import erase
from game_events_tests.support.decoding.helpers import compiled, frame, python_class
from game_events_tests.support.reconciliation import rows
from game_events_tests.support.worlds.quality import assert_checks_pass, rule
from game_events_tests.support.worlds.topic import register, send_values

OWN = "string game_name = 1; string gamer_id = 2; google.protobuf.Timestamp event_timestamp = 3;"
TEXT = (
    'syntax = "proto3"; package t; import "google/protobuf/timestamp.proto";'
    f"message Played {{ {OWN} int32 level = 4; optional string mode = 5; }}"
    f"message Paid {{ {OWN} double amount = 4; string currency = 5; }}"
)
TYPES = {"Played": (0,), "Paid": (1,)}
PLAYED, PAID = ["level", "mode"], ["amount", "currency"]
KEY = "a key of the tests, long enough"


@pytest.fixture
def send(make_settings):
    """Sends messages of the two types: (type, game, gamer, its fields)."""
    settings = make_settings()
    schema_id = register(settings, TEXT)
    schema = compiled(TEXT, schema_id)

    def sender(*messages):
        made = [
            (TYPES[kind], python_class(schema, TYPES[kind])(game_name=g, gamer_id=who, event_timestamp={"seconds": 5}, **more))
            for kind, g, who, more in messages
        ]
        send_values(settings, [frame(schema_id, path, message) for path, message in made])

    return sender


def decoded(settings, game):
    """Names of the columns of a game's table that only some message types have."""
    table = Lakehouse.of(settings).silver(game).open()
    return [f.name for f in table.schema().fields if f.name in {*PLAYED, *PAID}]


def test_a_table_has_the_columns_of_the_message_types_that_its_game_has_sent(send, make_settings, make_pipeline):
    own = {"gold_columns": {"paid": "sum(amount)", "top": "max(level)"}, "erasure_key": KEY}
    settings = make_settings(rules=[rule("paid_something", "amount > 0", "warn")], **own)

    def pipeline():
        return make_pipeline(settings)

    send(("Played", "uno", "ann", {"level": 3}), ("Paid", "shop", "ann", {"amount": 2.5, "currency": "EUR"}))
    report = refresh(pipeline())
    assert report.errors == []
    assert decoded(settings, "uno") == PLAYED, "mode, too, which no record has yet"
    assert decoded(settings, "shop") == PAID
    assert rows(settings, "gold_uno_player_agg", "SELECT gamer_id, paid, top FROM t") == [("ann", None, 3)]

    # News of one game alone: the expressions name columns that no table that is read has.
    send(("Paid", "shop", "bob", {"amount": 1.5}))
    assert refresh(pipeline()).errors == []
    assert rows(settings, "gold_unified_player_agg", "SELECT game_name, gamer_id, paid, top FROM t ORDER BY ALL") == [
        ("shop", "ann", 2.5, None), ("shop", "bob", 1.5, None), ("uno", "ann", None, 3),
    ]  # fmt: skip

    # A type that the game had not sent before: its columns come, older rows have NULL.
    send(("Paid", "uno", "eve", {"amount": 9.0}), ("Played", "uno", "eve", {"level": 4, "mode": "duel"}))
    assert refresh(pipeline()).errors == []
    assert decoded(settings, "uno") == [*PLAYED, *PAID]
    assert decoded(settings, "shop") == PAID
    found = rows(settings, "silver_uno_events", "SELECT gamer_id, level, mode, amount, currency FROM t ORDER BY ALL")
    assert found == [("ann", 3, None, None, None), ("eve", 4, "duel", None, None), ("eve", None, None, 9.0, "")]
    assert_checks_pass(pipeline())
    counts = {game: r.rows for (_, game, _), r in audit_rules(pipeline(), pipeline().rules).items()}
    assert counts == {"uno": 3, "shop": 2}

    # A full refresh gives the same; erasing works on tables of different columns.
    refresh_downstream(pipeline(), RunReport(), full=True)
    assert (decoded(settings, "uno"), decoded(settings, "shop")) == ([*PLAYED, *PAID], PAID)
    erase(pipeline(), RunReport(), frozenset({"eve"}))
    refresh(pipeline())
    assert row_count(pipeline().lakehouse.silver("uno").open()) == 1
    assert rows(settings, "gold_unified_player_agg", "SELECT game_name, gamer_id, paid, top FROM t ORDER BY ALL") == [
        ("shop", "ann", 2.5, None), ("shop", "bob", 1.5, None), ("uno", "ann", None, 3),
    ]  # fmt: skip


def test_a_wide_table_of_before_stays_as_it_is_until_its_rows_are_replaced(send, make_settings, make_pipeline, monkeypatch):
    settings = make_settings()
    send(("Played", "uno", "ann", {"level": 3}), ("Paid", "shop", "ann", {"amount": 2.5}))
    with monkeypatch.context() as earlier:
        earlier.setattr("game_events.workers.fanout.ColumnChoice.of", lambda *_: None)
        refresh(make_pipeline(settings), one_pass=OnePass(enabled=False))  # else workers choose, which have no such patch
    assert decoded(settings, "uno") == [*PLAYED, *PAID]
    send(("Played", "uno", "bob", {"level": 4}))
    assert refresh(make_pipeline(settings)).errors == []
    assert decoded(settings, "uno") == [*PLAYED, *PAID]
    assert rows(settings, "silver_uno_events", "SELECT gamer_id, level, amount FROM t ORDER BY ALL") == [
        ("ann", 3, None), ("bob", 4, None),
    ]  # fmt: skip
    refresh_downstream(make_pipeline(settings), RunReport(), full=True)
    assert (decoded(settings, "uno"), decoded(settings, "shop")) == (PLAYED, PAID)
    assert rows(settings, "silver_uno_events", "SELECT gamer_id, level FROM t ORDER BY ALL") == [("ann", 3), ("bob", 4)]


NESTED = (
    'syntax = "proto3"; package t; import "google/protobuf/timestamp.proto"; message Device { string os = 1; }'
    f"message Played {{ {OWN} int32 level = 4; Device device = 5; }} message Paid {{ {OWN} double amount = 4; }}"
)
THINGS = """
from game_events.extending import count, gold_aggregate

@gold_aggregate("things", keys=["device"])
def things():
    return {"events": count()}
"""


def test_an_aggregate_by_a_nested_column_that_a_games_table_lacks_is_right_after_each_run(
    make_settings, make_pipeline, tmp_path
):
    own = tmp_path / "own.py"
    own.write_text(THINGS)
    settings = make_settings(extensions=(str(own),))
    schema_id = register(settings, NESTED)
    schema = compiled(NESTED, schema_id)
    played, paid = (python_class(schema, path) for path in ((1,), (2,)))
    at = {"gamer_id": "ann", "event_timestamp": {"seconds": 5}}
    for number in (1, 2, 3):
        messages = [
            ((1,), played(game_name="uno", level=3, device={"os": "x"}, **at)),
            ((2,), paid(game_name="shop", amount=2.5, **at)),
        ]
        send_values(settings, [frame(schema_id, path, message) for path, message in messages])
        assert refresh(make_pipeline(settings)).errors == []
        for game in ("uno", "shop"):
            assert rows(settings, f"gold_{game}_things", "SELECT events FROM t") == [(number,)]
