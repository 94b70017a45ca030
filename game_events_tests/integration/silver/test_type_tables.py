"""A silver table for each message type of a game: every row in one of them, also after crashes and changed settings."""

import itertools
import shutil
from collections import Counter

import duckdb
import pyarrow as pa
import pytest

from game_events.config.settings import load_settings
from game_events.config.type_names import game_of
from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.transactions import games_of
from game_events.lakehouse.data.columns import OWN_COLUMNS
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh_downstream
from game_events.plugins.export.run import export_rows
from game_events_tests.support.faults import at_failpoints
from game_events_tests.support.servers.rest_receiver import receiving
from game_events_tests.support.tables import put
from game_events_tests.support.worlds.quality import assert_checks_pass

TIME = pa.timestamp("us", tz="UTC")
GAMES = ("chess", "go", "uno")
TYPES = ("t.LevelStart", "t.LevelFail", "t.Paid")
#: Rows are numbered over all tests, by their offsets.
_offsets = itertools.count(1)


class Dead(BaseException):
    """The end of the process."""


def add(pipeline, batch, rows):
    """A batch of bronze with rows (game, type, gamer, amount); the events that silver must have then."""
    count = len(rows)
    offsets = [next(_offsets) for _ in rows]
    own = {f.name: pa.nulls(count, f.type) for f in OWN_COLUMNS} | {
        "_kafka_topic": ["t"] * count,
        "_kafka_topic_id": ["AAAAAAAAAAAAAAAAAAAAAQ"] * count,
        "_kafka_partition": pa.array([0] * count, pa.int32()),
        "_kafka_offset": offsets,
        "_message_type": [message_type for _, message_type, _, _ in rows],
        "_batch": [batch] * count,
    }
    events = {
        "game_name": [game for game, *_ in rows],
        "gamer_id": [gamer for _, _, gamer, _ in rows],
        "event_timestamp": pa.array([0] * count, TIME),
        "amount": pa.array([amount for *_, amount in rows], pa.int64()),
    }
    info = {"batch": str(batch), "rows": str(count), "quarantined": "0"}
    put(pipeline.bronze, own | events, {"batch": batch}, info)
    return [(game, message_type, offset) for (game, message_type, *_), offset in zip(rows, offsets, strict=True)]


def wave(types=TYPES, games=GAMES, gamer="ann", amount=1):
    return [(game, message_type, gamer, amount) for game in games for message_type in types]


def refreshed(pipeline, **options):
    report = RunReport()
    refresh_downstream(pipeline, report, **options)
    assert report.success, report.errors
    return report


def in_silver(settings):
    """(table, game, type, offset) of each row of silver, read by DuckDB from the files that delta-rs lists."""
    lakehouse = Lakehouse.of(settings)
    every = []
    for key in lakehouse.names():
        table = lakehouse.table(key)
        if key.startswith("silver_") and (files := table.open().file_uris()):
            found = duckdb.sql(f"SELECT game_name, _message_type, _kafka_offset FROM read_parquet({files!r})").fetchall()
            every += [(table.name, *row) for row in found]
    return every


def assert_whole(pipeline, events, table_of, *, audit=False):
    """Each event is in its table once, gold counts them, and the checks pass."""
    settings = pipeline.settings
    wanted = Counter((table_of(game, message_type), game, message_type, offset) for game, message_type, offset in events)
    assert Counter(in_silver(settings)) == wanted
    counts = Counter(game for game, *_ in events)
    gold = {}
    for game in counts:
        files = pipeline.lakehouse.gold(game).open().file_uris()
        gold[game] = duckdb.sql(f"SELECT sum(session_count)::INT FROM read_parquet({files!r})").fetchall()[0][0]
    assert gold == counts
    assert_checks_pass(pipeline, audit=audit)
    assert reconcile(pipeline, changed=counts).passed


def by_type(game, message_type):
    names = {"t.LevelStart": "level_start", "t.LevelFail": "level_fail", "t.Paid": "paid"}
    return f"silver_{game}__{names[message_type]}_events" if message_type in names else f"silver_{game}_events"


def by_game(game, _):
    return f"silver_{game}_events"


@pytest.fixture
def world(make_pipeline, tmp_path):
    """Pipelines over one folder."""
    return lambda **settings: make_pipeline(load_settings(lakehouse=str(tmp_path), **settings))


TYPED = {"silver_per": "entity_and_type"}


def test_each_type_of_each_game_has_its_rows_in_a_table_of_its_own_and_gold_reads_them_all(world):
    events = add(world(**TYPED), 1, wave())
    report = refreshed(world(**TYPED))
    assert {t.table for t in report.of("silver")} == {by_type(g, t) for g in GAMES for t in TYPES} | {
        by_game(g, "") for g in GAMES
    }
    assert_whole(world(**TYPED), events, by_type)
    # Some types of some games; rows without a type; a new type; a new game.
    events += add(
        world(**TYPED), 2, [*wave(TYPES[:1], GAMES[:2], "bob"), ("uno", None, "ann", 1), ("uno", "Odd Type", "eve", 1)]
    )
    events += add(world(**TYPED), 3, wave(TYPES[1:], ("new",)))
    refreshed(world(**TYPED))

    def with_odd(game, message_type):
        return f"silver_{game}__odd_type_events" if message_type == "Odd Type" else by_type(game, message_type)

    assert_whole(world(**TYPED), events, with_odd)
    assert refreshed(world(**TYPED)).of("silver") == [], "nothing is new"
    refreshed(world(**TYPED), full=True)
    assert_whole(world(**TYPED), events, with_odd, audit=True)


def test_types_that_are_not_listed_are_in_the_games_own_table(world):
    listed = TYPED | {"silver_types": ("t.Paid",)}
    events = add(world(**listed), 1, wave())
    refreshed(world(**listed))

    def table_of(game, message_type):
        return by_type(game, message_type) if message_type == "t.Paid" else by_game(game, message_type)

    assert_whole(world(**listed), events, table_of, audit=True)


POINTS = [(False, "silver_type_committed:5"), (True, "silver_type_committed:5")]
MORE_POINTS = [
    *((False, point) for point in ("silver_staged", "silver_type_committed:1", "game_committed:2", "silver_committed")),
    *((True, point) for point in ("silver_replanned", "silver_type_committed:9", "game_committed:2")),
]


@pytest.mark.parametrize(("full", "point"), [*POINTS, *(pytest.param(*p, marks=pytest.mark.scenario) for p in MORE_POINTS)])
def test_after_a_crash_between_the_commits_of_a_games_tables_each_row_is_in_one_of_them_once(world, point, full):
    rules = [
        {"name": "not_much", "sql": "amount < 100", "action": "quarantine"},
        {"name": "not_less", "sql": "amount >= 0", "action": "drop"},
    ]
    settings = TYPED | {"rules": rules}
    events = add(world(**settings), 1, wave())
    bad = [*wave(TYPES[:2], amount=1000), *wave(TYPES[:1], amount=-1)]
    add(world(**settings), 2, bad)
    refreshed(world(**settings))
    assert_whole(world(**settings), events, by_type)
    more = [*wave(gamer="bob"), *wave((None, "t.New"), gamer="bob")]
    events += add(world(**settings), 3, more)
    add(world(**settings), 4, bad)
    name, _, number = point.partition(":")

    def crash(reached, at=None):
        if reached == name and (not number or at == number):
            raise Dead

    with at_failpoints(crash), pytest.raises(Dead):
        refresh_downstream(world(**settings), RunReport(), full=full)
    events += add(world(**settings), 5, wave(TYPES[:2], gamer="eve"))

    def with_new(game, message_type):
        return f"silver_{game}__new_events" if message_type == "t.New" else by_type(game, message_type)

    refreshed(world(**settings))
    assert_whole(world(**settings), events, with_new)
    assert refreshed(world(**settings)).of("silver") == []


def test_after_a_crash_in_the_first_run_of_all_no_row_is_twice(world):
    events = add(world(**TYPED), 1, wave())
    with at_failpoints(lambda point, at=None: _die(point == "silver_type_committed" and at == "5")), pytest.raises(Dead):
        refresh_downstream(world(**TYPED), RunReport())
    events += add(world(**TYPED), 2, wave(TYPES[:2], gamer="bob"))
    refreshed(world(**TYPED))
    assert_whole(world(**TYPED), events, by_type)
    # All that is new is in the tables of types, and no game's own table says so.
    events += add(world(**TYPED), 3, wave(gamer="eve"))
    with at_failpoints(lambda point, at=None: _die(point == "silver_type_committed" and at == "9")), pytest.raises(Dead):
        refresh_downstream(world(**TYPED), RunReport())
    refreshed(world(**TYPED))
    assert_whole(world(**TYPED), events, by_type)
    assert refreshed(world(**TYPED)).of("silver") == []


def test_other_types_with_tables_are_refused_until_silver_is_refreshed_fully_and_then_no_row_is_twice(world):
    events = add(world(), 1, wave())
    refreshed(world())
    assert_whole(world(), events, by_game)
    events += add(world(), 2, wave(gamer="bob"))
    for settings in (TYPED, TYPED | {"silver_types": ("t.Paid",)}):
        with pytest.raises(ConfigurationError, match=r"games alone: nothing was added.* --full-refresh silver"):
            refresh_downstream(world(**settings), RunReport())
    refreshed(world(**TYPED), full=True)
    assert_whole(world(**TYPED), events, by_type)
    with pytest.raises(ConfigurationError, match=r"has tables for games and all types: nothing was added"):
        refresh_downstream(world(), RunReport())
    # Back: a crash in the middle is finished by the same command.
    with at_failpoints(lambda point, at=None: _die(point == "silver_type_committed" and at == "4")), pytest.raises(Dead):
        refresh_downstream(world(), RunReport(), full=True)
    with pytest.raises(ConfigurationError, match="nothing was added"):
        refresh_downstream(world(), RunReport())
    refreshed(world(), full=True)
    events += add(world(), 3, wave(gamer="eve"))
    refreshed(world())
    assert_whole(world(), events, by_game)
    # The emptied tables are still there, and are no games.
    assert games_of(Lakehouse.of(world().settings)) == list(GAMES)


def _die(now):
    if now:
        raise Dead


@pytest.mark.parametrize("own", [False, True])
def test_a_table_that_was_deleted_by_hand_is_made_again(world, own, tmp_path):
    events = add(world(**TYPED), 1, wave())
    refreshed(world(**TYPED))
    shutil.rmtree(tmp_path / ("silver_uno_events" if own else "silver_uno__paid_events"))
    events += add(world(**TYPED), 2, wave(TYPES[:1]))
    refreshed(world(**TYPED))
    assert_whole(world(**TYPED), events, by_type)
    assert {game_of(name) for names in Lakehouse.of(world(**TYPED).settings).type_tables().values() for name in names} == set(
        GAMES
    )


@pytest.mark.parametrize("source", ["silver", "gold"])
def test_the_export_sends_each_row_of_every_table_once(world, source, tmp_path):
    quick = {"rest_retry_delay_s": 0.02, "rest_tasks": 1, "rest_source": source}
    events = add(world(**TYPED), 1, wave())
    refreshed(world(**TYPED))
    with receiving(tmp_path / "received") as receiver:

        def export():
            report = RunReport()
            export_rows(world(**TYPED, **quick, rest_url=receiver.url), report)
            assert report.success, report.errors

        export()
        if source == "silver":
            assert sorted(row["_kafka_offset"] for row in receiver.rows) == sorted(offset for *_, offset in events)
        else:
            assert {(row["game_name"], row["session_count"]) for row in receiver.rows} == {(game, 3) for game in GAMES}
        events += add(world(**TYPED), 2, [*wave(TYPES[:1], GAMES[:1], "bob"), ("uno", None, "eve", 1)])
        refreshed(world(**TYPED))
        before = len(receiver.rows)
        export()
        new = receiver.rows[before:]
        assert {(row["game_name"], row["gamer_id"]) for row in new} == {("chess", "bob"), ("uno", "eve")}
        if source == "silver":
            assert sorted(row["_kafka_offset"] for row in receiver.rows) == sorted(offset for *_, offset in events)
        export()
        assert len(receiver.rows) == before + 2
