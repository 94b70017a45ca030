"""Message types that nobody selected: kept as they came, not looked into, and told apart from bad input."""

import base64
import json

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import BatchDecoder, declared_names
from game_events.decoding.frame import Reason, RegistrySchema
from game_events.errors import TransientError
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.schemas.catalog import SchemaCatalog
from game_events.schema_registry import SchemaLookup
from game_events_tests.support.decoding.format_helpers import framed
from game_events_tests.support.decoding.helpers import (
    compiled,
    decode,
    frame,
    python_class,
    reasons_by_position,
    rows_by_position,
)

SHOP = """syntax = "proto3"; package shop;
message OrderPlaced { string shop = 1; int32 pieces = 2; message Line { string sku = 1; } }
message Heartbeat { string host = 1; int64 load = 2; }"""
BROKEN = 'syntax = "proto3"; package shop; import "nowhere.proto"; message Heartbeat { nowhere.Host host = 1; }'
AVRO = {"type": "record", "name": "Refund", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
BROKEN_AVRO = {"type": "record", "name": "Refund", "namespace": "shop", "fields": [{"name": "cents", "type": "nothing"}]}
JSON = {"title": "shop.Visit", "type": "object", "properties": {"page": {"type": "string"}}}
BROKEN_JSON = {"title": "shop.Visit", "type": "object", "properties": {"page": {"$ref": "nowhere"}}}
TEXTS = {
    1: ("PROTOBUF", SHOP),
    2: ("AVRO", json.dumps(AVRO)),
    3: ("JSON", json.dumps(JSON)),
    4: ("PROTOBUF", BROKEN),
    5: ("AVRO", json.dumps(BROKEN_AVRO)),
    6: ("JSON", json.dumps(BROKEN_JSON)),
    7: ("AVRO", "no schema at all"),
    9: ("JSON", json.dumps({"$id": "http://shop/visit", "type": "object", "properties": {"page": {"type": "string"}}})),
    "guid": ("COLUMNS", '{"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": true, "metadata": {}}]}'),
}


class Registry(SchemaLookup):
    """Knows `TEXTS`."""

    url = "http://registry"
    down = False

    def fetch(self, schema_id):
        return RegistrySchema(schema_id, *TEXTS[schema_id]) if schema_id in TEXTS else None

    def subject_of(self, schema_id):
        if self.down:
            raise TransientError("down")
        return f"subject-of-{schema_id}"


@pytest.fixture
def catalog(tmp_path):
    def make(*selected):
        return SchemaCatalog(Registry(), Lakehouse(str(tmp_path)), selected)

    return make


def plan_of(catalog, *ids, path=(0,)):
    return catalog.plan(ColumnMap(), [(i, path) for i in ids])


def message(schema_id, name, **values):
    place = {"OrderPlaced": (0,), "Heartbeat": (1,)}[name]
    return frame(schema_id, place, python_class(compiled(SHOP, schema_id), place)(**values))


def undecoded(batch):
    return {int(row): key for rows, key in batch.undecoded for row in rows}


def test_only_selected_types_make_columns_and_rows_of_others_are_kept_apart(catalog):
    plan = plan_of(catalog("shop.OrderPlaced"), 1, 2, 3)
    assert set(plan.columns.columns) == {"shop", "pieces"}
    values = [message(1, "OrderPlaced", shop="a"), message(1, "Heartbeat", load=1), framed(b"\x02", 2), framed(b"{}", 3)]
    batch = decode(plan, values)
    assert list(rows_by_position(batch)) == [0]
    assert undecoded(batch) == {1: (1, (1,)), 2: (2, ()), 3: (3, ())}
    assert (batch.rejected, batch.unknown, batch.types) == ([], set(), {(1, (0,))})


def test_without_a_selection_every_type_is_decoded(catalog):
    plan = catalog().plan(ColumnMap(), [(1, (0,)), (1, (1,)), (2, ()), (3, ())])
    assert (len(plan.types), plan.undecoded) == (4, frozenset())


@pytest.mark.parametrize("selected", ["shop.Refund", "shop.Visit", "shop.OrderPlaced.Line"])
def test_avro_records_json_titles_and_nested_messages_are_selected_by_the_names_that_their_columns_have(catalog, selected):
    catalog = catalog(selected)
    plan = catalog.plan(ColumnMap(), [(1, (0, 0)), (2, ()), (3, ())])
    assert {key.split("#")[0] for key in plan.columns.names} == {selected}
    assert len(plan.types) == 1


def test_a_type_that_the_driver_has_not_met_is_asked_for_and_not_guessed(catalog):
    """Nested messages are not planned for: a worker reports them once, whether they are selected or not."""
    line = frame(1, (0, 0), python_class(compiled(SHOP, 1), (0, 0))(sku="x"))
    catalog = catalog("shop.OrderPlaced")
    batch = decode(plan_of(catalog, 1), [line])
    assert (batch.unknown, undecoded(batch)) == ({(1, (0, 0))}, {})
    plan = catalog.plan(ColumnMap(), [(1, (0,)), (1, (0, 0))])
    assert undecoded(decode(plan, [line])) == {0: (1, (0, 0))}


def test_a_damaged_record_of_another_type_is_not_noticed_and_one_whose_type_cannot_be_told_is(catalog):
    plan = plan_of(catalog("shop.OrderPlaced"), 1)
    no_such_message = b"\0\0\0\0\1\x02\x0e"
    damaged = message(1, "Heartbeat", host="a host")[:-2]
    batch = decode(plan, [damaged, no_such_message, None, message(1, "OrderPlaced", shop="a")[:-1]])
    assert undecoded(batch) == {0: (1, (1,))}
    assert reasons_by_position(batch) == {1: Reason.BAD_INDEX, 2: Reason.TOMBSTONE, 3: Reason.TRUNCATED}


def test_damaged_indexes_of_a_schema_that_nobody_planned_for_are_bad_input_and_end_no_run(catalog):
    damaged = b"\0\0\0\0\1\x80"
    for selected in ((), ("shop.OrderPlaced",)):
        known = catalog(*selected)
        batch = decode(known.plan(ColumnMap(), []), [damaged])
        assert batch.unknown == {(1, ())}
        assert reasons_by_position(decode(known.plan(ColumnMap(), batch.unknown), [damaged])) == {0: Reason.BAD_INDEX}


@pytest.mark.parametrize(
    ("schema_id", "value", "name"),
    [(4, b"\0\0\0\0\4\0\x0a", "shop.Heartbeat"), (5, framed(b"\x02", 5), "shop.Refund"), (6, framed(b"{}", 6), "shop.Visit")],
)
def test_a_type_that_is_not_selected_need_not_compile_if_its_text_tells_its_name(catalog, schema_id, value, name):
    other, mine = catalog("shop.OrderPlaced"), catalog(name)
    batch = decode(plan_of(other, schema_id), [value])
    assert reasons_by_position(batch) == {}
    ((_, key),) = batch.undecoded
    assert other.other_types({key: 3}) == {name: 3}
    assert reasons_by_position(decode(plan_of(mine, schema_id), [value])) == {0: Reason.BAD_SCHEMA}


def test_a_text_that_tells_no_name_and_an_id_that_nobody_knows_are_bad_input_as_ever(catalog):
    batch = decode(plan_of(catalog("shop.OrderPlaced"), 7, 8), [framed(b"x", 7), framed(b"x", 8)])
    assert reasons_by_position(batch) == {0: Reason.BAD_SCHEMA, 1: Reason.UNKNOWN_SCHEMA}


def test_rows_that_are_columns_already_have_no_name_and_are_out_of_its_reach(catalog):
    plan = plan_of(catalog("shop.OrderPlaced"), "guid", path=())
    batch = BatchDecoder(plan).decode_columns("guid", pa.array([{"a": 1}]))
    assert (rows_by_position(batch), batch.undecoded) == ({0: {"a": 1}}, [])


def names_of(kind, text):
    return dict(declared_names(RegistrySchema(1, kind, text if isinstance(text, str) else json.dumps(text))))


def test_names_in_a_proto_text_are_those_of_top_level_messages_whatever_stands_around_them():
    text = """syntax = "proto3"; // message No { }
    package a.b; /* message Neither {
    } */ import "message Nor {";
    option java_package = 'message It {';
    message One { message Inner { } string message = 1; oneof x { string a = 2; } } enum E { message = 0; }
    service S { rpc Do (One) returns (Two) { option deprecated = true; } }
    message Two{}"""
    assert names_of("PROTOBUF", text) == {(0,): "a.b.One", (1,): "a.b.Two"}
    assert names_of("PROTOBUF", "message Alone {}") == {(0,): "Alone"}
    assert names_of("PROTOBUF", "message Open {") == {}


def test_names_in_a_descriptor_are_read_though_what_it_imports_is_missing():
    file = descriptor_pb2.FileDescriptorProto(name="x", package="p", dependency=["nowhere.proto"])
    file.message_type.add(name="A")
    file.message_type.add(name="B")
    assert names_of("PROTOBUF", base64.b64encode(file.SerializeToString()).decode()) == {(0,): "p.A", (1,): "p.B"}


@pytest.mark.parametrize(
    ("kind", "text", "name"),
    [
        ("AVRO", {"type": "record", "name": "a.b.C", "namespace": "x"}, "a.b.C"),
        ("AVRO", {"type": "record", "name": "C"}, "C"),
        ("AVRO", {"type": {"type": "enum", "name": "C", "namespace": "x"}}, "x.C"),
        ("AVRO", ["null", "shop.Missing"], None),
        ("AVRO", {"type": "record", "name": 7}, None),
        ("JSON", {"$id": "http://x/y"}, "http://x/y"),
        ("JSON", {"type": "object"}, None),
        ("JSON", "{", None),
        ("THRIFT", "struct C {}", None),
    ],
)
def test_names_in_other_texts(kind, text, name):
    assert names_of(kind, text) == ({} if name is None else {(): name})


def types_of(batch):
    """Position -> full name of the message type, of good and of rejected rows."""
    good = {int(row): name for rows, _, _, name in batch.good for row in rows}
    return good | {int(row): item.message_type for item in batch.rejected for row in item.rows}


def test_each_row_names_its_message_type_whatever_its_format(catalog):
    """Two messages of one schema with the same fields are told apart; of JSON the title counts, else the subject."""
    plan = catalog().plan(ColumnMap(), [(1, (0,)), (1, (1,)), (1, (0, 0)), (2, ()), (3, ()), (9, ())])
    line = frame(1, (0, 0), python_class(compiled(SHOP, 1), (0, 0))(sku="x"))
    values = [message(1, "OrderPlaced", shop="a"), message(1, "Heartbeat", load=1), line]
    values += [framed(b"\x02", 2), framed(b"{}", 3), framed(b"{}", 9)]
    names = ["shop.OrderPlaced", "shop.Heartbeat", "shop.OrderPlaced.Line", "shop.Refund", "shop.Visit", "subject-of-9"]
    assert types_of(decode(plan, values)) == dict(enumerate(names))


def test_a_damaged_record_has_the_type_that_its_frame_names_even_if_its_schema_does_not_compile(catalog):
    plan = catalog().plan(ColumnMap(), [(1, (0,)), (4, (0,)), (5, ())])
    values = [message(1, "OrderPlaced", shop="a")[:-1], b"\0\0\0\0\4\0\x0a", framed(b"\x02", 5), b"{}", None]
    assert types_of(decode(plan, values)) == {0: "shop.OrderPlaced", 1: "shop.Heartbeat", 2: "shop.Refund", 3: None, 4: None}


def test_a_json_schema_without_a_title_has_its_address_as_long_as_no_registry_tells_its_subject(catalog):
    known = catalog()
    known.knows(9)
    known._registry.down = True
    assert types_of(decode(known.plan(ColumnMap(), [(9, ())]), [framed(b"{}", 9)])) == {0: "http://shop/visit"}
    known._registry.down = False
    assert types_of(decode(known.plan(ColumnMap(), [(9, ())]), [framed(b"{}", 9)])) == {0: "subject-of-9"}
