"""CloudEvents in both modes: attributes are columns, the data is decoded as any payload."""

import base64
import json
from datetime import UTC, datetime

from game_events.decoding.columns import ColumnMap
from game_events.decoding.frame import Reason, RegistrySchema
from game_events.decoding.unframed.cloudevents import TYPE_ID
from game_events_tests.support.decoding.helpers import compiled, python_class
from game_events_tests.support.decoding.topics import Registry, catalog_of, decoded, reasons_of, records, rows_of

TEXT = 'syntax = "proto3"; package t; message A { int32 n = 1; }'
HEAD = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "com.shop.paid", "time": "2026-11-01T12:00:00Z"}
CE = {
    "ce_id": "7", "ce_source": "/shop", "ce_type": "com.shop.paid", "ce_specversion": "1.0",
    "ce_time": datetime(2026, 11, 1, 12, tzinfo=UTC),
}  # fmt: skip
REGISTRY = Registry([RegistrySchema(1, "PROTOBUF", TEXT)], {"a": [1]})


def decode(tmp_path, entry, values, headers):
    catalog = catalog_of(tmp_path, REGISTRY, decoding={"events": entry | {"cloudevents": True}})
    batch, columns, _ = decoded(catalog, records(values, headers=headers))
    assert set(CE) <= set(columns.columns)
    return batch


def binary(**attributes):
    return [(f"ce_{name}", text.encode()) for name, text in (HEAD | attributes).items()]


def test_json_data_in_both_modes_with_the_type_of_the_event(tmp_path):
    structured = json.dumps(HEAD | {"data": {"n": 1}, "extension": "x"}).encode()
    empty = json.dumps(HEAD | {"type": "\n"}).encode()
    values = [structured, b'{"n": 2}', empty, b'{"n": 3}', json.dumps(HEAD | {"time": "soon"}).encode()]
    batch = decode(tmp_path, {"format": "json"}, values, [[], binary(type="left"), [], [], []])
    assert rows_of(batch) == {
        0: ("com.shop.paid", CE | {"n": 1}),
        1: ("left", CE | {"ce_type": "left", "n": 2}),
        2: ("events", CE | {"ce_type": "\n"}),
    }
    found = reasons_of(batch)
    assert {at: why for at, (why, _) in found.items()} == {3: Reason.MALFORMED, 4: Reason.MALFORMED}
    assert "no CloudEvent in either mode" in found[3][1] and "date-time" in found[4][1]


def nested(levels, **head):
    event = json.dumps(HEAD | head).encode()
    return event[:-1] + b', "data": ' + b'{"a":' * levels + b"1" + b"}" * levels + b"}"


def test_an_event_that_is_nested_too_deep_harms_only_itself(tmp_path):
    wide = (
        json.dumps(HEAD | {"data": {"many": [{"n": 1}] * 1_000, "price": 0}}).encode().replace(b'"price": 0', b'"price": 1.50')
    )
    extension = json.dumps(HEAD).encode()[:-1] + b', "x": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    values = [nested(200), nested(5_000), nested(100_000), extension, wide, b"{}"]
    no_text = [("ce_specversion", b"1.0"), ("ce_id", b"\xff")]
    batch = decode(tmp_path, {"format": "json"}, values, [*[[]] * 5, no_text])
    found = {at: why for at, (why, _) in reasons_of(batch).items()}
    assert found == dict.fromkeys(range(4), Reason.TOO_DEEP) | {5: Reason.BAD_UTF8}
    (row,) = (row for _, row in rows_of(batch).values())
    assert (len(row["many"]), row["price"]) == (1_000, 1.5), "many brackets are not deep ones"


def test_attributes_alone_bring_the_computed_columns(tmp_path):
    catalog = catalog_of(tmp_path, entity="ce_subject", time="CAST(ce_time AS TIMESTAMP)")
    columns = catalog.plan(ColumnMap(), [(TYPE_ID, ())]).columns.columns
    assert {"game_name", "event_timestamp", *CE} <= set(columns)


def test_protobuf_data_keeps_the_name_of_its_message(tmp_path):
    data = python_class(compiled(TEXT))(n=5).SerializeToString()
    structured = json.dumps(HEAD | {"data_base64": base64.b64encode(data).decode()}).encode()
    bad = json.dumps(HEAD | {"data_base64": "?"}).encode()
    batch = decode(tmp_path, {"format": "protobuf", "schema": "subject:a"}, [structured, data, bad], [[], binary(), []])
    assert rows_of(batch) == dict.fromkeys((0, 1), ("t.A", CE | {"n": 5}))
    assert set(reasons_of(batch)) == {2}
