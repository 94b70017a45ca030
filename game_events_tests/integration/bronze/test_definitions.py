"""Game, player and time by expressions: of nested fields, headers, keys, topics, numbers, texts, through every job there is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import pytest

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import Lakehouse, silver_name
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode
from game_events.pipeline.runs.preflight import sql_checks, state_checks
from game_events.pipeline.runs.refresh import refresh, refresh_downstream, selection_of
from game_events.plugins.governance.run import erase
from game_events_tests.support.decoding.helpers import compiled, frame, python_class
from game_events_tests.support.reconciliation import count, gold, rows
from game_events_tests.support.worlds.topic import register, send_values
from game_events_tests.support.worlds.waves import at_point, versions

PROTO = """
syntax = "proto3";
package studio.v1;
message LevelStart { Meta object_meta = 1; int64 ts = 2; uint64 level = 3; }
message Purchase { string at = 1; double amount = 2; }
message Session { int64 event_timestamp = 1; bytes note = 2; }
message Meta { string name = 1; string player = 2; }
"""
LEVEL, PURCHASE, SESSION = (0,), (1,), (2,)
BEGIN = datetime(2026, 11, 20, 8, tzinfo=UTC)
KEY = "a key of the tests, long enough"
DEFINITIONS: Mapping[str, Any] = {
    "entity": {
        "LevelStart": "object_meta.name",
        "studio.v1.Purchase": "header('game')",
        "*": "split_part(_kafka_topic, '.', 2)",
    },
    "key": {"LevelStart": "object_meta.player", "*": "_kafka_key"},
    "time": {
        "LevelStart": "timestamp_millis(ts)",
        "Purchase": '"at"',
        "*": "timestamp_seconds(event_timestamp)",
    },
    "entity_names": "lower",
    "entity_aliases": {"com.studio.rummy": "rummy"},
}


@dataclass
class Studio:
    """What a studio sends, and Python's reckoning of it: game -> player -> times. None: no game, or no player."""

    settings: Settings
    truth: dict[str, dict[str | None, list[datetime | None]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    sent: int = 0

    def __post_init__(self) -> None:
        self.schema = compiled(PROTO)
        self.schema_id = register(self.settings, PROTO)

    def send(self, path: tuple[int, ...], game: str | None, player: str | None, when: datetime | None, **how: Any) -> None:
        """One record, which is of this game and player and time."""
        message = python_class(self.schema, path)(**how.pop("message"))
        send_values(self.settings, [frame(self.schema_id, path, message)], **how)
        self.sent += 1
        if game is not None:
            self.truth[game][player].append(when)

    def level(self, name: str, game: str | None, player: str = "ann", minutes: int = 0) -> None:
        when = BEGIN + timedelta(minutes=minutes, milliseconds=123)
        body = {"object_meta": {"name": name, "player": player}, "ts": round(when.timestamp() * 1000), "level": 2**64 - 1}
        self.send(LEVEL, game, player, when, message=body)

    def purchase(self, at: str, when: datetime | None, headers: list[tuple[str, bytes]], game: str | None = "chess") -> None:
        self.send(PURCHASE, game, "béa", when, message={"at": at}, headers=headers, key="béa".encode())

    def session(self, seconds: int, key: bytes | None, player: str | None) -> None:
        when = datetime.fromtimestamp(seconds, UTC)
        self.send(SESSION, "poker", player, when, message={"event_timestamp": seconds, "note": b"\x00"}, key=key)

    def wave(self, minutes: int) -> None:
        """Records of every kind."""
        self.level("rummy", "rummy", minutes=minutes)
        self.level("com.studio.rummy", "rummy", "bob", minutes)
        self.level("CHESS", "chess", minutes=minutes)
        self.level("no name.", None, minutes=minutes)
        self.purchase(
            "2026-11-20T10:30:00.5+02:00", datetime(2026, 11, 20, 8, 30, 0, 500_000, UTC), [("game", b"go"), ("game", b"chess")]
        )
        self.purchase("2026-11-20T10:30:00", None, [("game", b"chess"), ("trace", b"\xff")])
        self.purchase("2026-11-20T10:30:00Z", None, [("game", b"\xff")], game=None)
        self.purchase("2026-11-20T10:30:00Z", None, [], game=None)
        self.session(1_800_000_000 + minutes, b"cat", "cat")
        self.session(1_800_000_000 + minutes, b"\xff\xfe", None)

    def assert_there(self, pipeline: Pipeline, unrouted: int, suppressed: int = 0) -> None:
        """Bronze, silver and gold have what Python reckons; the books balance."""
        settings = self.settings
        assert count(settings, "bronze_events") == self.sent - suppressed
        for game, players in self.truth.items():
            expected = sorted((who or "", str(when)) for who, times in players.items() for when in times)
            where = f"WHERE game_name = '{game}'"
            query = "SELECT coalesce(gamer_id, ''), event_timestamp FROM t"
            types = pipeline.lakehouse.type_tables().get(game, [])
            for tables, only in (([silver_name(name) for name in (game, *types)], ""), (["bronze_events"], where)):
                found = chain.from_iterable(rows(settings, table, f"{query} {only}") for table in tables)
                assert sorted((who, str(when)) for who, when in found) == expected, (game, tables)
            known = {who: [t for t in times if t is not None] for who, times in players.items()}
            assert gold(settings, game) == {
                who: (len(players[who]), min(times, default=None), max(times, default=None)) for who, times in known.items()
            }
        routed = sum(len(times) for players in self.truth.values() for times in players.values())
        assert self.sent - suppressed - routed == unrouted
        found = reconcile(pipeline)
        assert found.passed, found.summary()


def checks(pipeline: Pipeline) -> dict[str, Any]:
    return {**sql_checks(pipeline), **state_checks(pipeline)}


@pytest.mark.parametrize("per", ["entity", "entity_and_type"])
def test_each_message_type_has_its_own_game_player_and_time_and_a_change_of_them_is_made_by_redecode(
    make_settings, make_pipeline, per
):
    topic = f"{make_settings().kafka_topic}.Poker.x"
    settings = make_settings(kafka_topic=topic, erasure_key=KEY, silver_per=per, **DEFINITIONS)
    studio = Studio(settings)
    studio.wave(0)
    report = refresh(make_pipeline(settings))
    assert report.success, report.errors
    studio.assert_there(make_pipeline(settings), unrouted=3)
    # A time without a zone; nothing else has failed.
    assert report.nulled == {"event_timestamp": 1}
    assert report.definitions["game_name"].startswith("LevelStart: object_meta.name")
    assert report.notices == ["'CHESS' and 'chess' are one game by GAME_EVENTS_ENTITY_NAMES=lower: chess"]
    studio.wave(1)
    refresh(make_pipeline(settings))
    studio.assert_there(make_pipeline(settings), unrouted=6)
    assert "object_meta.name" in str(checks(make_pipeline(settings))["definitions"]())
    assert {type_ for (type_,) in rows(settings, "bronze_events", "SELECT typeof(event_timestamp__bigint) FROM t")} == {
        "BIGINT"
    }

    # Other definitions: nothing is added to the old ones, whatever is asked for.
    changed = make_settings(
        kafka_topic=topic,
        erasure_key=KEY,
        silver_per=per,
        **DEFINITIONS
        | {"entity_aliases": {"com.studio.rummy": "rummy2", "no name.": "named"}, "naive_times_zone": "Europe/Berlin"},
    )
    studio.wave(2)
    before = versions(settings)
    for select in ((), ("silver",)):
        pipeline = make_pipeline(changed)
        with pytest.raises(ConfigurationError, match="redecode --downstream"):
            refresh(pipeline, RunReport(), selection_of(pipeline, select))
    with pytest.raises(ConfigurationError, match=r"ENTITY .*ENTITY_ALIASES.* and of GAME_EVENTS_TIME.*redecode --downstream"):
        checks(make_pipeline(changed))["definitions"]()
    assert versions(settings) == before

    done = RunReport()
    assert redecode(make_pipeline(changed), done).kept == {}
    with pytest.raises(ConfigurationError, match="--full-refresh silver"):
        refresh(make_pipeline(changed))
    refresh_downstream(make_pipeline(changed), done, full=True)
    assert done.success, done.errors
    report = refresh(make_pipeline(changed))
    assert report.success, report.errors
    studio.settings = changed
    studio.truth["rummy2"]["bob"] = studio.truth["rummy"].pop("bob")
    studio.truth["named"]["ann"] = [BEGIN + timedelta(minutes=m, milliseconds=123) for m in range(3)]
    studio.truth["chess"]["béa"] = [when or datetime(2026, 11, 20, 9, 30, tzinfo=UTC) for when in studio.truth["chess"]["béa"]]
    studio.assert_there(make_pipeline(changed), unrouted=6)
    after = versions(changed)
    assert refresh(make_pipeline(changed)).tables == []
    assert versions(changed) == after

    # A person whose id is only in the record's key, and in a nested field.
    for gone in ("cat", "bob"):
        erase(make_pipeline(changed), RunReport(), frozenset({gone}))
    studio.wave(3)
    report = refresh(make_pipeline(changed))
    assert report.suppressed == 2
    for players in studio.truth.values():
        for gone in ("cat", "bob"):
            players.pop(gone, None)
    studio.truth.pop("rummy2")
    studio.truth["named"]["ann"].append(BEGIN + timedelta(minutes=3, milliseconds=123))
    studio.truth["rummy"].pop("bob", None)
    studio.truth["chess"]["béa"] = [when or datetime(2026, 11, 20, 9, 30, tzinfo=UTC) for when in studio.truth["chess"]["béa"]]
    studio.assert_there(make_pipeline(changed), unrouted=8, suppressed=8)


def test_a_lakehouse_without_definitions_gets_them_by_redecode_and_without_them_again(make_settings, make_pipeline):
    plain = make_settings()
    proto = 'syntax = "proto3"; message E { string game_name = 1; string gamer_id = 2; int64 event_timestamp = 3; }'
    schema = compiled(proto)
    schema_id = register(plain, proto)
    event = python_class(schema)
    send_values(plain, [frame(schema_id, (0,), event(game_name="Uno", gamer_id="a", event_timestamp=5))], key=b"k")
    assert refresh(make_pipeline(plain)).unrouted == {"invalid": 1}
    settings = make_settings(entity="lower(game_name)", key="gamer_id || _kafka_key", time="timestamp_micros(event_timestamp)")
    with pytest.raises(
        ConfigurationError, match=r"definition of GAME_EVENTS_ENTITY .* and of GAME_EVENTS_KEY and of GAME_EVENTS_TIME"
    ):
        refresh(make_pipeline(settings))
    redecode(make_pipeline(settings), RunReport())
    refresh_downstream(make_pipeline(settings), RunReport(), full=True)
    expected = [("uno", "ak", datetime(1970, 1, 1, 0, 0, 0, 5, UTC))]
    assert rows(settings, "silver_uno_events", "SELECT game_name, gamer_id, event_timestamp FROM t") == expected
    with pytest.raises(ConfigurationError, match="redecode --downstream"):
        refresh(make_pipeline(plain))
    redecode(make_pipeline(plain), RunReport())
    refresh_downstream(make_pipeline(plain), RunReport(), full=True)
    assert rows(plain, "bronze_events", "SELECT game_name, gamer_id, event_timestamp FROM t") == [("Uno", "a", None)]
    assert Lakehouse.of(plain).silver("uno").open() is not None
    assert rows(plain, "silver_uno_events") == []


def test_an_expression_that_fits_no_message_type_is_refused_at_first_and_harms_only_its_own_rows_later(
    make_settings, make_pipeline
):
    settings = make_settings(entity="header('game')", key="_kafka_key", time="ts")
    first = 'syntax = "proto3"; message E { int64 ts = 1; }'
    number = register(settings, first)
    event = python_class(compiled(first))
    send_values(settings, [frame(number, (0,), event(ts=1))], [("game", b"uno")], b"k")
    with pytest.raises(
        ConfigurationError, match=r"nothing was written: .*GAME_EVENTS_TIME does not fit .* E: .*timestamp_millis"
    ):
        refresh(make_pipeline(settings))
    assert count(settings, "bronze_events") == 0
    good = make_settings(entity="header('game')", key="_kafka_key", time="epoch_ms(ts)")
    assert refresh(make_pipeline(good)).success
    # A later version has a list there: its rows have no time, and all others have one.
    later = 'syntax = "proto3"; message E { reserved 1; repeated string ts = 2; }'
    other = register(settings, later)
    values = [frame(other, (0,), python_class(compiled(later, 2))(ts=["x"])), frame(number, (0,), event(ts=1))]
    send_values(settings, values, [("game", b"uno")], b"k")
    report = refresh(make_pipeline(good))
    assert report.success, report.errors
    assert report.nulled == {"event_timestamp": 1}
    assert any("GAME_EVENTS_TIME does not fit the message type E" in notice for notice in report.notices)
    when = datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)
    assert gold(good, "uno") == {"k": (3, when, when)}


def test_a_full_refresh_of_bronze_makes_all_rows_by_the_definitions_of_now_and_silver_follows(make_settings, make_pipeline):
    proto = 'syntax = "proto3"; message E { string game = 1; string who = 2; int64 at = 3; }'
    common = {"key": "who", "time": 'timestamp_millis("at")', "allow_bronze_full_refresh": True}
    settings = make_settings(entity="game", **common)
    schema_id = register(settings, proto)
    event = python_class(compiled(proto))
    send_values(settings, [frame(schema_id, (0,), event(game=game, who="a", at=1)) for game in ("uno", "go", "uno")])
    assert refresh(make_pipeline(settings)).success
    renamed = make_settings(entity="game || '2'", **common)
    pipeline = make_pipeline(renamed)
    report = refresh(pipeline, RunReport(), selection_of(pipeline, full_refresh=["bronze"]))
    assert report.success, report.errors
    assert [count(renamed, f"silver_{game}_events") for game in ("uno2", "go2")] == [2, 1]
    found = reconcile(make_pipeline(renamed))
    assert found.passed, found.summary()
    assert refresh(make_pipeline(renamed)).tables == []


def test_rows_without_a_raw_value_keep_what_they_had_and_the_redecode_says_so(make_settings, make_pipeline):
    plain = make_settings(keep_raw="failures")
    proto = 'syntax = "proto3"; message E { string game_name = 1; string gamer_id = 2; }'
    schema_id = register(plain, proto)
    send_values(plain, [frame(schema_id, (0,), python_class(compiled(proto))(game_name="uno", gamer_id="a"))])
    load_bronze(make_pipeline(plain), RunReport())
    report = RunReport()
    redecode(make_pipeline(make_settings(keep_raw="failures", key="'other'")), report)
    assert any(
        notice.startswith("1 row of bronze_events keep the game, player and time of before") for notice in report.notices
    )
    assert rows(plain, "bronze_events", "SELECT gamer_id FROM t") == [("a",)]


def test_a_run_by_former_definitions_adds_nothing_after_a_redecode_that_was_quicker(make_settings, make_pipeline, monkeypatch):
    former = make_settings(entity="'uno'", key="_kafka_key", time="_kafka_timestamp")
    proto = 'syntax = "proto3"; message E { string a = 1; }'
    schema_id = register(former, proto)
    value = frame(schema_id, (0,), python_class(compiled(proto))(a="x"))
    send_values(former, [value])
    load_bronze(make_pipeline(former), RunReport())
    send_values(former, [value])
    now = make_settings(entity="'go'", key="_kafka_key", time="_kafka_timestamp")
    at_point(monkeypatch, "bronze_staged", lambda: redecode(make_pipeline(now), RunReport()))
    with pytest.raises(ConfigurationError, match=r"another definition of GAME_EVENTS_ENTITY .*redecode --downstream"):
        load_bronze(make_pipeline(former), RunReport())
    assert rows(now, "bronze_events", "SELECT game_name FROM t") == [("go",)]
    load_bronze(make_pipeline(now), RunReport())
    assert rows(now, "bronze_events", "SELECT game_name FROM t") == [("go",)] * 2
