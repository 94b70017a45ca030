"""The versions' texts; messages of other domains: what their settings may say, and that records come of it."""

import struct
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from google.protobuf.message import DecodeError

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.plugins.local.demo import CONFIG, examples, use_example
from game_events.plugins.local.producer import messages
from game_events.plugins.local.producer.messages import BUILT_IN, MAX_VERSION, MessageShape, compile_text, custom_columns
from game_events.plugins.local.producer.produce import EventEncoder, ManifestBuilder
from game_events.plugins.local.producer.simulator import PoisonKind, Simulation

ROOT = Path(__file__).parents[5]


@pytest.fixture
def example(monkeypatch):
    def use(name):
        monkeypatch.setenv(CONFIG, "")  # and back, after the test
        use_example(name)
        return load_settings()

    return use


def encoder_of(shape):
    return EventEncoder({1: 1, 2: 2}, SchemaRegistryClient.new_client({"url": "mock://shape"}), shape)


def test_the_games_example_says_what_everything_is_without_it(example, monkeypatch):
    spelled, usual = example("games"), MessageShape()
    shape = MessageShape.of(spelled)
    assert (shape.entity, shape.key, shape.time, shape.fields) == (usual.entity, usual.key, usual.time, usual.fields)
    assert shape.versions.text(3) == usual.versions.text(3)
    monkeypatch.delenv(CONFIG)
    default = load_settings()
    assert spelled.model_dump(exclude={"producer"}) == default.model_dump(exclude={"producer"})
    asked = ("entities", "new_entity", "keys_per_entity")
    assert [getattr(spelled.producer, name) for name in asked] == [getattr(default.producer, name) for name in asked]


def test_the_iot_example_sends_its_own_message_with_the_values_it_describes(example):
    settings = example("iot")
    shape = MessageShape.of(settings)
    encoder = encoder_of(shape)
    simulation = Simulation(games=settings.producer.entities, records_per_game_and_version=20, fields=shape.fields)
    events = list(simulation.events())
    assert events == list(simulation.events())
    messages = []
    for event in events:
        frame = encoder.event(event)
        assert struct.unpack(">bI", frame[:5]) == (0, event.version)
        assert frame[5:7] == b"\x02\x02", "index path [1]: a message that is used by it stands before"
        messages.append(shape.versions.message_class(event.version).FromString(frame[7:]))
    assert {m.site for m in messages} == set(settings.producer.entities)
    assert all(m.device_id.startswith(f"{m.site}-") for m in messages)
    assert all(-20 <= m.temperature <= 45 and 0 <= m.battery <= 100 for m in messages)
    assert {m.firmware for m in messages} == {"1.0.3", "1.1.0", "2.0.0"}
    assert {m.device_type for m in messages} == {1, 2, 3}
    assert not any(m.HasField("signal") for m in messages)


def test_the_manifest_knows_sums_and_extremes_of_numbers(example):
    shape = MessageShape.of(example("iot"))
    simulation = Simulation(games=("oslo",), records_per_game_and_version=30, gamers_per_game=2, fields=shape.fields)
    names = [name for name, _ in shape.fields]
    one, two = ManifestBuilder(shape.fields), ManifestBuilder(shape.fields)
    for number, record in enumerate(simulation.records()):
        (one if number % 2 else two).add(record)
    truth = one.build("t", 0, {}).merge(two.build("t", 0, {})).truth["oslo"]
    assert len(truth) == 2
    for gamer, told in truth.items():
        mine = [e.values[names.index("battery")] for e in simulation.events() if e.gamer == gamer]
        battery = told.numbers["battery"]
        assert (battery.total, battery.low, battery.high) == (sum(mine), min(mine), max(mine))
        assert set(told.numbers) == {"temperature", "battery"}


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Beat {
  string room = 1;
  string sensor = 2;
  google.protobuf.Timestamp at = 7;
%s}
"""
COLUMNS = {"entity_column": "room", "key_column": "sensor", "time_column": "at"}


@pytest.fixture
def beat(tmp_path):
    def make(fields="", **changed):
        proto = tmp_path / f"beat{len(list(tmp_path.iterdir()))}.proto"
        proto.write_text(changed.pop("text", PROTO % fields))
        described = changed.pop("described", {})
        return load_settings(**(COLUMNS | changed), producer={"proto": str(proto), "fields": described})

    return make


def test_fields_that_nobody_describes_get_values_of_their_types(beat):
    fields = (
        "  enum Kind { NONE = 0; SOME = 4; }\n  Kind kind = 8;\n  sint64 number = 9;\n  float share = 10;\n  bool on = 11;\n"
        "  string text = 12;\n  bytes raw = 13;\n  repeated int32 list = 14;\n  map<string, string> more = 15;\n"
        "  optional double maybe = 16;\n"
    )
    shape = MessageShape.of(beat(fields))
    assert [(name, g.kind) for name, g in shape.fields] == [
        ("kind", "choice"),
        ("number", "integer"),
        ("share", "number"),
        ("on", "boolean"),
        ("text", "text"),
        ("maybe", "number"),
    ]
    event = next(Simulation(fields=shape.fields).events())
    message = encoder_of(shape).message(event)
    assert message.kind in (0, 4)
    assert message.text
    assert shape.versions.message_class(2).DESCRIPTOR.fields_by_name["col_custom_1"].number == 18


def test_the_manifest_knows_floats_as_the_message_holds_them(beat):
    shape = MessageShape.of(beat("  float share = 8;\n", described={"share": {"kind": "number", "low": 0.1, "high": 0.1}}))
    assert [generator.kind for _, generator in shape.fields] == ["number"]
    (record, *_), truth = list(Simulation(fields=shape.fields).records()), ManifestBuilder(shape.fields)
    truth.add(record)
    held = encoder_of(shape).message(record.event).share
    assert held != 0.1
    assert truth.build("t", 0, {}).truth[record.event.game][record.event.gamer].numbers["share"].low == held


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"entity_column": "hall"}, "ENTITY_COLUMN: 'hall' must be a field of type string"),
        ({"key_column": "at"}, "KEY_COLUMN: 'at' must be a field of type string"),
        ({"time_column": "room"}, "TIME_COLUMN: 'room' must be a field of type google.protobuf.Timestamp"),
        ({"described": {"volume": {"kind": "number"}}}, "no values can be described for volume"),
        ({"described": {"room": {"kind": "text"}}}, "no values can be described for room"),
        ({"fields": "  int32 n = 8;\n", "described": {"n": {"kind": "text"}}}, "n of Beat .* cannot hold values of kind text"),
        ({"fields": "  int32 n = 8;\n", "described": {"n": {"kind": "choice", "values": [1.5]}}}, "cannot hold values"),
        ({"fields": "  int32 n = 8;\n", "described": {"n": {"kind": "number"}}}, "cannot hold values"),
        (
            {"fields": "  bool n = 8;\n", "described": {"n": {"kind": "integer"}}},
            "cannot hold values of kind integer: 100 would",
        ),
        ({"fields": "  repeated string n = 8;\n", "described": {"n": {"kind": "text"}}}, "cannot hold values of kind text"),
        ({"fields": "  bytes n = 8;\n", "described": {"n": {"kind": "text"}}}, "cannot hold values of kind text"),
        ({"text": PROTO % "" + "enum Last { ZERO = 0; }\n"}, "does not compile|must be the last thing"),
        ({"text": 'syntax = "proto3";\n'}, "has no message"),
        ({"text": "message {"}, "does not compile"),
    ],
)
def test_a_message_that_does_not_fit_its_description_is_refused_before_anything_is_sent(beat, changed, says):
    settings = beat(**changed)
    with pytest.raises(ConfigurationError, match=says):
        MessageShape.of(settings)


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        ("uint32", {"kind": "integer", "low": -5}, "Value out of range: -5"),
        ("int32", {"kind": "integer", "high": 1e12}, "Value out of range: 1000000000000"),
        ("int32", {"kind": "choice", "values": [1, 2**31]}, "Value out of range: 2147483648"),
        ("int64", {"kind": "integer", "high": float("inf")}, "cannot convert float infinity to integer"),
        ("fixed64", {"kind": "integer", "low": -1}, "Value out of range: -1"),
        ("float", {"kind": "number", "high": 1e39}, "float too large"),
        ("double", {"kind": "number", "low": float("nan")}, "nan would be nan"),
        ("double", {"kind": "number", "high": float("inf")}, "inf would be inf"),
    ],
)
def test_numbers_that_the_fields_type_does_not_hold_are_refused_by_field_and_reason(beat, kind, values, says):
    with pytest.raises(ConfigurationError, match=rf"PRODUCER: n of Beat \(.*\) cannot hold values of kind \w+: {says}"):
        MessageShape.of(beat(f"  {kind} n = 8;\n", described={"n": values}))


@pytest.mark.parametrize(
    ("kind", "low", "high"), [("sint32", -(2**31), 2**31 - 1), ("fixed32", 0, 2**32 - 1), ("float", -3e38, 3e38)]
)
def test_the_whole_range_of_a_type_can_be_sent(beat, kind, low, high):
    for number in (low, high):
        shape = MessageShape.of(beat(f"  {kind} n = 8;\n", described={"n": {"kind": "integer", "low": number, "high": number}}))
        assert encoder_of(shape).message(next(Simulation(fields=shape.fields).events())).n == pytest.approx(number)


def test_a_missing_proto_stops_the_producer_and_nobody_else(tmp_path):
    settings = load_settings(producer={"proto": str(tmp_path / "nowhere.proto")})
    with pytest.raises(ConfigurationError, match=r"PRODUCER: .*nowhere\.proto cannot be read"):
        MessageShape.of(settings)


@pytest.mark.parametrize("fields", ["", "  bool on = 8;\n", "  double x = 8;\n", "  string s = 8;\n"])
def test_a_truncated_record_decodes_under_no_message_whatever_its_last_field_is(beat, fields):
    shape = MessageShape.of(beat(fields))
    encoder = encoder_of(shape)
    simulation = Simulation(games=("a", "b"), poison_share=1, records_per_game_and_version=20, fields=shape.fields)
    cut = [r for r in simulation.records() if r.poison is PoisonKind.TRUNCATED]
    assert cut
    for record in cut:
        with pytest.raises(DecodeError):
            shape.versions.message_class(record.event.version).FromString(encoder.record(record)[6:])


def test_the_examples_are_the_folders_of_the_checkout():
    assert set(examples()) == {"games", "iot", "studio"}
    with pytest.raises(ConfigurationError, match="there is no 'cars'; there are games, iot, studio"):
        use_example("cars")


def test_the_packaged_proto_is_the_readable_one():
    packaged = Path(messages.__file__).with_name("game_event.proto")
    assert packaged.read_bytes() == (ROOT / "protos" / "game_event.proto").read_bytes()


@pytest.mark.parametrize("version", range(1, MAX_VERSION + 1))
def test_each_version_compiles_with_its_columns(version):
    fields = BUILT_IN.message_class(version).DESCRIPTOR.fields
    base = ["game_name", "gamer_id", "event_timestamp", "device_id"]
    assert [field.name for field in fields] == base + [f"col_custom_{index}" for index in range(version)]
    assert [field.number for field in fields] == list(range(1, 5 + version))
    assert all(field.has_presence for field in fields[4:]), "an unset custom column must differ from an empty one"


def test_a_version_only_appends_to_the_one_before():
    for version in range(2, MAX_VERSION + 1):
        before, now = BUILT_IN.text(version - 1).splitlines(), BUILT_IN.text(version).splitlines()
        assert now[: len(before) - 1] == before[:-1]
        assert len(now) == len(before) + 1


@pytest.mark.parametrize("version", [0, -1, MAX_VERSION + 1])
def test_other_versions_are_refused_by_name(version):
    with pytest.raises(ConfigurationError, match=rf"version {version} does not exist"):
        custom_columns(version)


def test_a_bad_text_is_a_configuration_error():
    with pytest.raises(ConfigurationError, match="does not compile"):
        compile_text("message {")
