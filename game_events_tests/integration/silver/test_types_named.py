"""Rules, aggregates and transformations that name message types see rows of these alone; typed tables by real producers."""

import pytest

from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.checks.audits import audit_rules
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.fanout import OnePass
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode
from game_events.pipeline.runs.refresh import refresh, refresh_downstream
from game_events.plugins.governance.commits import remove_old_files
from game_events.plugins.governance.run import erase
from game_events_tests.support.decoding.helpers import compiled, frame, python_class
from game_events_tests.support.reconciliation import rows
from game_events_tests.support.worlds.erasure import places_of
from game_events_tests.support.worlds.own_module import HEAD
from game_events_tests.support.worlds.quality import assert_checks_pass, rule
from game_events_tests.support.worlds.topic import register, send_values

OWN = "string game_name = 1; string gamer_id = 2; google.protobuf.Timestamp event_timestamp = 3;"
TEXT = (
    'syntax = "proto3"; package t; import "google/protobuf/timestamp.proto";'
    f"message LevelStart {{ {OWN} int32 level = 4; optional string mode = 5; }}"
    f"message Paid {{ {OWN} double amount = 4; string currency = 5; }}"
    f"message Quit {{ {OWN} }}"
)
PATHS = {"LevelStart": (0,), "Paid": (1,), "Quit": (2,)}
KEY = "a key of the tests, long enough"
GONE = "gamer-to-forget"
TYPED = {"silver_per": "entity_and_type"}


@pytest.fixture
def send(make_settings):
    """Sends messages: (type, game, gamer, its fields)."""
    settings = make_settings()
    schema_id = register(settings, TEXT)
    schema = compiled(TEXT, schema_id)

    def sender(*messages):
        values = []
        for kind, game, gamer, more in messages:
            made = python_class(schema, PATHS[kind])(game_name=game, gamer_id=gamer, event_timestamp={"seconds": 5}, **more)
            values.append(frame(schema_id, PATHS[kind], made))
        send_values(settings, values)

    return sender


def columns(settings, name):
    return [f.name for f in Lakehouse.of(settings).silver(name).open().schema().fields if not f.name.startswith("_")]


THREE = ["game_name", "gamer_id", "event_timestamp"]


def test_typed_tables_of_real_records_have_their_types_columns_and_a_person_is_erased_from_all_of_them(
    send, make_settings, make_pipeline
):
    rules = [
        rule("paid_something", "amount > 0", "drop", types=["Paid"]),
        rule("low", "level < 10", "quarantine", types=["t.LevelStart"]),
    ]
    own = TYPED | {"rules": rules, "erasure_key": KEY}
    own |= {"gold_columns": {"paid": "sum(amount)", "starts": "count(*) FILTER (WHERE _message_type = 't.LevelStart')"}}
    settings = make_settings(**own)

    def wave(gamer):
        send(
            ("LevelStart", "uno", gamer, {"level": 3}),
            ("LevelStart", "uno", gamer, {"level": 30}),
            ("Paid", "uno", gamer, {"amount": 2.5}),
            ("Paid", "uno", gamer, {"amount": -1}),
            ("Quit", "shop", gamer, {}),
        )

    wave("ann")
    wave(GONE)
    report = refresh(make_pipeline(settings))
    assert report.errors == []
    assert report.rows_by_type == {"t.LevelStart": 4, "t.Paid": 4, "t.Quit": 2}
    assert report.to_dict()["rows_by_type"] == report.rows_by_type
    assert report.to_dict()["games"]["uno"]["silver"] == 4
    assert columns(settings, "uno:level_start") == [*THREE, "level", "mode"]
    assert columns(settings, "uno:paid") == [*THREE, "amount", "currency"]
    assert columns(settings, "shop:quit") == THREE
    assert rows(settings, "gold_uno_player_agg", "SELECT gamer_id, paid, starts FROM t ORDER BY ALL") == [
        ("ann", 2.5, 1), (GONE, 2.5, 1),
    ]  # fmt: skip
    assert_checks_pass(make_pipeline(settings))
    audited = {(game, name): r.violated for (_, game, name), r in audit_rules(make_pipeline(settings), settings.rules).items()}
    assert audited == {("uno", "paid_something"): 2, ("shop", "paid_something"): 0, ("uno", "low"): 2, ("shop", "low"): 0}
    report = RunReport()
    erase(make_pipeline(settings), report, frozenset({GONE}))
    assert report.parts["erasure"].finished, report.errors
    assert_checks_pass(make_pipeline(settings))
    assert rows(settings, "gold_uno_player_agg", "SELECT gamer_id, paid, starts FROM t") == [("ann", 2.5, 1)]
    wave("bob")
    assert refresh(make_pipeline(settings)).errors == []
    assert_checks_pass(make_pipeline(settings))


def test_typed_tables_in_one_pass_and_without_are_the_same_through_redecode_and_erasure(send, make_settings, make_pipeline):
    settings = make_settings(**TYPED, erasure_key=KEY)
    each = [("LevelStart", "uno", {"level": 3}), ("Paid", "uno", {"amount": 2.5}), ("Quit", "shop", {})]
    for gamer in ("ann", GONE):
        send(*((kind, game, gamer, more) for kind, game, more in each))
    one_pass = OnePass()
    assert refresh(make_pipeline(settings), one_pass=one_pass).errors == []
    assert (one_pass.taken, one_pass.merged) == (1, 2)
    send(*((kind, game, "eve", more) for kind, game, more in each))
    assert refresh(make_pipeline(settings), one_pass=OnePass(enabled=False)).errors == []
    assert_checks_pass(make_pipeline(settings))
    # As rows from before bronze named types: a redecode finds them, and a full refresh moves nothing twice.
    redecode(make_pipeline(settings), RunReport())
    refresh_downstream(make_pipeline(settings), RunReport(), full=True)
    assert_checks_pass(make_pipeline(settings))
    assert places_of(settings, GONE)
    report = RunReport()
    wanted = erase(make_pipeline(settings), report, frozenset({GONE}))
    assert report.parts["erasure"].finished, report.errors
    remove_old_files(make_pipeline(settings), report.parts["erasure"], wanted)
    assert {k: n for k, n in report.parts["erasure"].rows.items() if "uno" in k and "silver" in k} == {
        "silver_uno__level_start_events": 1, "silver_uno__paid_events": 1,
    }  # fmt: skip
    assert_checks_pass(make_pipeline(settings))
    assert reconcile(make_pipeline(settings), changed=["uno", "shop"]).passed
    assert places_of(settings, GONE) == []
    assert rows(settings, "gold_uno_player_agg", "SELECT gamer_id, session_count FROM t ORDER BY ALL") == [
        ("ann", 2),
        ("eve", 2),
    ]
    assert refresh(make_pipeline(settings)).tables == []


MODULE = """
@silver_transformation(types=["LevelStart"])
def doubled(rows):
    return rows.withColumn("level", rows.level * 2)

@silver_transformation(types=["t.Paid"], games=["uno"])
def in_cents(rows):
    return rows.withColumn("cents", (rows.amount * 100).cast("long"))

@gold_aggregate("starts", keys=["gamer_id"], types=["LevelStart"])
def starts():
    return {"events": count(), "level": max_of("level")}

@gold_aggregate("paying", keys=["gamer_id"], mode="recompute", types=["t.Paid"])
def paying(silver):
    return silver.groupBy("_game", "gamer_id").count()
"""


@pytest.mark.parametrize("more", [{}, TYPED])
def test_aggregates_and_transformations_that_name_types_see_their_rows_alone(
    send, make_settings, make_pipeline, tmp_path, more
):
    own = tmp_path / "own.py"
    own.write_text(HEAD + MODULE)
    settings = make_settings(extensions=(str(own),), **more)
    for gamer in ("ann", "bob"):
        send(
            ("LevelStart", "uno", gamer, {"level": 3}),
            ("LevelStart", "shop", gamer, {"level": 4}),
            ("Paid", "uno", gamer, {"amount": 2.5}),
            ("Paid", "shop", gamer, {"amount": 7}),
        )
        assert refresh(make_pipeline(settings)).errors == []
    start, paid = ("silver_uno__level_start_events", "silver_uno__paid_events") if more else ("silver_uno_events",) * 2
    assert rows(settings, start, "SELECT DISTINCT level FROM t WHERE level IS NOT NULL") == [(6,)]
    assert rows(settings, paid, "SELECT DISTINCT cents FROM t WHERE amount IS NOT NULL") == [(250,)]
    assert rows(settings, "gold_shop_starts", "SELECT * FROM t ORDER BY ALL") == [("ann", 1, 8), ("bob", 1, 8)]
    assert rows(settings, "gold_uno_paying", "SELECT gamer_id, count FROM t ORDER BY ALL") == [("ann", 1), ("bob", 1)]
    assert_checks_pass(make_pipeline(settings))
