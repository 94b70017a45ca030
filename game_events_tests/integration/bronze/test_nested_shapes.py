"""Lists of lists, maps of messages with lists and their like, empty, not set and full, through every job there is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import json_format
from pydantic import SecretStr

from game_events.config.settings import Settings
from game_events.decoding.frame import SchemaId
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.context import Pipeline
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode
from game_events.pipeline.runs.refresh import refresh, refresh_downstream
from game_events.plugins.export.run import export_rows
from game_events.plugins.governance.run import erase
from game_events.schema_registry import registry_client
from game_events_tests.support.decoding.helpers import compiled, frame, python_class
from game_events_tests.support.reconciliation import rows
from game_events_tests.support.servers.registry_proxy import RegistryProxy, registry_proxy
from game_events_tests.support.servers.rest_receiver import receiving
from game_events_tests.support.worlds.topic import register, send_values

PROTO = """
syntax = "proto3";
package shapes.v1;
import "google/protobuf/timestamp.proto";
message Event {
  string game_name = 1; string gamer_id = 2; google.protobuf.Timestamp event_timestamp = 3;
  repeated Row rows = 4; map<string, Row> named = 5; Around around = 6; repeated Around arounds = 7; repeated string tags = 8;
}
message Row { string name = 1; repeated string tags = 2; map<string, int64> counts = 3; repeated Cell cells = 4; }
message Cell { repeated double values = 1; }
message Around { repeated Row rows = 1; Row one = 2; map<string, Row> named = 3; }
"""
LATER_PROTO = PROTO.replace("message Cell {", "message Cell { string note = 2;")
STRINGS = {"type": "array", "items": "string"}
AVRO = {
    "type": "record",
    "name": "Grid",
    "fields": [
        {"name": "game_name", "type": "string"},
        {"name": "gamer_id", "type": "string"},
        {"name": "event_timestamp", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "matrix", "type": {"type": "array", "items": STRINGS}},
        {"name": "lists_by_name", "type": {"type": "map", "values": STRINGS}},
        {"name": "maybe", "type": ["null", {"type": "array", "items": {"type": "map", "values": STRINGS}}]},
    ],
}
COLUMNS = ("rows", "named", "around", "arounds", "tags", "matrix", "lists_by_name", "maybe")
Shape = Mapping[str, Any]


def row(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "tags": [], "counts": {}, "cells": []} | more


def around(**more: Any) -> dict[str, Any]:
    return {"rows": [], "one": None, "named": {}} | more


def shape(**more: Any) -> dict[str, Any]:
    """What protobuf gives for one message; the columns of others are NULL."""
    return {"rows": [], "named": {}, "around": None, "arounds": [], "tags": []} | more


#: Game -> the shapes of its records. Those of the first three have no element at some level in any row of a batch.
NOTHING = {"nothing": [shape(), shape(around=around()), shape()]}
HOLLOW = {
    "hollow": [
        shape(rows=[row("a"), row("")], named={"k": row("b")}, around=around(one=row("c")), arounds=[around(rows=[row("d")])]),
        shape(around=around(rows=[row("e")], named={"": row("f")})),
    ]
}
GRIDS = {
    "grid": [
        {"matrix": [], "lists_by_name": {}, "maybe": None},
        {"matrix": [[], []], "lists_by_name": {"k": []}, "maybe": [{}, {"k": []}]},
    ]
}
WHOLE_ROW = row("x", tags=["t", ""], counts={"one": 1, "": -1}, cells=[{"values": [0.5, -0.0]}, {"values": []}])
FULL = {
    "full": [
        shape(
            rows=[WHOLE_ROW, row("y")],
            named={"k": WHOLE_ROW, "l": row("z")},
            around=around(rows=[WHOLE_ROW], one=WHOLE_ROW, named={"m": WHOLE_ROW}),
            arounds=[around(), around(rows=[row("v"), WHOLE_ROW])],
            tags=["", "u"],
        ),
        shape(),
    ],
    "full_grid": [{"matrix": [["a", ""], []], "lists_by_name": {"k": ["b"], "l": []}, "maybe": [{"m": ["c"], "n": []}]}],
}


class Nested:
    """One lakehouse; what was sent to it."""

    def __init__(self, producers: Settings, proxy: RegistryProxy) -> None:
        self._producers, self.proxy = producers, proxy
        self.settings = producers.model_copy(update={"schema_registry_url": proxy.url})
        self.sent: dict[str, list[Shape]] = {}

    def send(self, games: Mapping[str, list[Shape]], proto: str = PROTO) -> SchemaId:
        """Records by the clients' own serializers; one gamer for each record of a game."""
        schema_id = register(self._producers, proto)
        schema = compiled(proto, schema_id)
        event = python_class(schema)
        with registry_client(self._producers) as client:
            avro = AvroSerializer(client, json.dumps(AVRO))
            context = SerializationContext(f"{self.settings.kafka_topic}_grid", MessageField.VALUE)
            for game, shapes in games.items():
                held = self.sent.setdefault(game, [])
                values = []
                for number, body in enumerate(shapes, len(held)):
                    who = {"game_name": game, "gamer_id": f"gamer-{number}"}
                    if "matrix" in body:
                        values.append(avro({**who, "event_timestamp": 1_800_000_000_000_000 + number, **body}, context))
                    else:
                        record = {**who, "event_timestamp": f"2027-01-15T08:00:0{number}Z", **body}
                        values.append(frame(schema_id, (0,), json_format.ParseDict(record, event())))
                held.extend(shapes)
                send_values(self.settings, values)
        return schema_id

    def forget(self, gamer: int) -> None:
        """They are in no table any more."""
        for game, shapes in self.sent.items():
            self.sent[game] = [s for number, s in enumerate(shapes) if number != gamer]

    def assert_everything_is_there(self, pipeline: Pipeline) -> None:
        """Each record's shapes are in bronze and in silver as they were written; the books balance."""
        every = []
        for game, shapes in self.sent.items():
            truth = sorted(repr(tuple(_plain(s.get(name)) for name in COLUMNS)) for s in shapes)
            assert self._held(f"silver_{game}_events") == truth, game
            every += truth
        assert self._held("bronze_events") == sorted(every)
        found = reconcile(pipeline)
        assert found.passed, found.summary()

    def _held(self, table: str) -> list[str]:
        """Its rows; a column that it does not have is NULL."""
        known = {line[0] for line in rows(self.settings, table, "DESCRIBE SELECT * FROM t")}
        picked = ", ".join(name if name in known else f"NULL AS {name}" for name in COLUMNS)
        return sorted(repr(tuple(map(_plain, line))) for line in rows(self.settings, table, f"SELECT {picked} FROM t"))

    def assert_gold(self) -> None:
        """Each gamer has one record, so its gold has the shapes of that record; so has the unified table."""
        for game, shapes in self.sent.items():
            if "matrix" in shapes[0]:
                continue
            truth = sorted(repr(_plain([s["rows"], s["around"]])) for s in shapes)
            query = "SELECT all_rows, last_around FROM t"
            for table, where in ((f"gold_{game}_player_agg", ""), ("gold_unified_player_agg", f" WHERE game_name = '{game}'")):
                held = rows(self.settings, table, query + where)
                assert sorted(repr(_plain([lists[0], last])) for lists, last in held) == truth, table

    def assert_greatest(self, game: str) -> None:
        """Each gamer's cells, in gold and in the unified table."""
        truth = sorted(repr(_plain([r["cells"] for r in s["rows"]])) for s in self.sent[game])
        for table, where in ((f"gold_{game}_player_agg", ""), ("gold_unified_player_agg", f" WHERE game_name = '{game}'")):
            held = rows(self.settings, table, f"SELECT greatest FROM t{where}")
            assert sorted(repr(_plain(value)) for (value,) in held) == truth, table


def _plain(value: Any) -> Any:
    """Values as Python has them, members of a struct that a later version added left out where they are not set."""
    if isinstance(value, dict):
        return {name: _plain(v) for name, v in sorted(value.items()) if not (name == "note" and not v)}
    return [_plain(v) for v in value] if isinstance(value, list) else value


@pytest.fixture
def world(make_settings, stack) -> Iterator[Nested]:
    gold = {"events": "count(*)", "all_rows": "collect_list(rows)", "last_around": "max_by(around, event_timestamp)"}
    with registry_proxy(stack.schema_registry_url) as proxy:
        yield Nested(make_settings(gold_columns=gold, erasure_key="a key of the tests, long enough"), proxy)


@pytest.mark.scenario
def test_every_nested_shape_goes_through_every_job(world, make_pipeline, tmp_path):
    settings = world.settings

    def run():
        report = refresh(make_pipeline(settings))
        assert report.success, report.errors
        world.assert_everything_is_there(make_pipeline(settings))
        world.assert_gold()

    for games in (NOTHING, HOLLOW, GRIDS, FULL, NOTHING):  # a run each: one batch has no element, and other games' columns only
        world.send(games)
        run()

    # Quarantine and replay: of a schema that is not known yet.
    report = RunReport()
    late = world.send({"nothing": [shape(), shape(around=around())]}, LATER_PROTO)
    world.proxy.hide(late)
    held = refresh(make_pipeline(settings))
    assert held.rejected == {"UNKNOWN_SCHEMA": 2}
    world.proxy.show_all()
    run()

    report = RunReport()
    assert redecode(make_pipeline(settings), report).kept == {}
    refresh_downstream(make_pipeline(settings), report, full=True)
    assert report.success, report.errors
    maintain(make_pipeline(settings), report)
    assert [u.error for u in report.maintenance.values() if u.error] == []
    run()

    with receiving(tmp_path / "log") as receiver:
        sending = make_pipeline(settings.model_copy(update={"rest_url": SecretStr(receiver.url)}))
        export_rows(sending, RunReport())
        assert len(receiver.rows) == sum(map(len, world.sent.values()))
        exported = [r["around"] for r in receiver.rows if r["game_name"] == "full"]
        assert sorted(map(repr, map(_plain, exported))) == sorted(repr(_plain(s["around"])) for s in world.sent["full"])

    erase(make_pipeline(settings), RunReport(), frozenset({"gamer-1"}))
    world.forget(1)
    run()


def test_a_struct_that_gains_a_member_is_merged_with_the_gold_there_is(world, make_pipeline):
    settings = world.settings.model_copy(
        update={"gold_columns": {"events": "count(*)", "greatest": "max(transform(rows, r -> r.cells))"}}
    )
    for games, proto in (({"full": FULL["full"]}, PROTO), (NOTHING, LATER_PROTO), ({"full": [shape()]}, LATER_PROTO)):
        world.send(games, proto)
        report = refresh(make_pipeline(settings))
        assert report.success, report.errors
        for game in games:
            world.assert_greatest(game)
    assert rows(settings, "gold_unified_player_agg", "SELECT sum(events) FROM t") == [(sum(map(len, world.sent.values())),)]
