"""Ids that stand in bytes which nobody can decode: behind a length, in JSON of any form. No service."""

import io
import json

import fastavro
import pyarrow as pa
import pytest

from game_events.plugins.governance.workers import PeopleToErase
from game_events_tests.support.decoding.helpers import compiled, python_class
from game_events_tests.support.worlds.undecodable_rows import WHOM, quarantined


def test_bytes_that_nobody_can_decode_tell_an_id_that_stands_in_them_as_a_whole_text():
    raw = WHOM.encode()
    values = [
        b"\x12" + bytes([len(raw)]) + raw + b"\xff",  # protobuf: behind its length
        bytes([2 * len(raw)]) + raw,  # Avro: behind twice its length
        json.dumps({"gamer": WHOM}).encode(),
        bytes([len(raw) + 2]) + raw + b"-2",  # somebody whose id begins the same
        raw[:5],
        None,
    ]
    wanted = PeopleToErase("gamer_id", "game_name", frozenset({WHOM}))
    assert wanted.mask("quarantine_events", quarantined(values)).tolist() == [True, True, True, False, False, False]
    by_key = quarantined([b"x", b"y"], _kafka_key=pa.array([raw, None], pa.binary()))
    assert wanted.mask("quarantine_events", by_key).tolist() == [True, False]
    # What is decoded elsewhere is found by its record: it may only mention them.
    decoded = quarantined(values, layer=["silver"] * len(values))
    assert not wanted.mask("quarantine_events", decoded).any()
    # Rejected once, and bronze does not have it any more: nothing else leads to it.
    history = quarantined(values, layer=["silver"] * len(values), replayed_batch=pa.array([7] * len(values), pa.int64()))
    assert wanted.mask("quarantine_events", history).tolist() == [True, True, True, False, False, False]
    taken = history.set_column(history.column_names.index("replayed_table"), "replayed_table", [["s"] * len(values)])
    assert not wanted.mask("quarantine_events", taken).any()
    # By chance in anybody's bytes.
    assert not PeopleToErase("gamer_id", "game_name", frozenset({"7"})).mask("quarantine_events", quarantined([b"\x017"])).any()


@pytest.mark.parametrize("whom", ["x" * 63, "x" * 64, "y" * 127, "z" * 128, "ü" * 40, "w" * 20_000])
def test_ids_of_any_length_are_found_behind_their_length(whom):
    """Protobuf's own writer, and Avro's: from 128 (64) bytes on a length has two bytes."""
    shape = compiled('syntax = "proto3"; message Event { string other = 1; string gamer_id = 2; }')
    protobuf = python_class(shape)(other="o", gamer_id=whom).SerializeToString()
    out = io.BytesIO()
    avro = {"type": "record", "name": "E", "fields": [{"name": "gamer_id", "type": "string"}]}
    fastavro.schemaless_writer(out, avro, {"gamer_id": whom})
    wanted = PeopleToErase("gamer_id", "game_name", frozenset({whom}))
    values = [
        protobuf,
        protobuf + b"\xff\xff",
        b"\0\0\0\0\x09" + out.getvalue(),
        protobuf.replace(b"\x12", b"\x12\x01", 1)[:-2],
    ]
    assert wanted.mask("quarantine_events", quarantined(values)).tolist() == [True, True, True, False]


@pytest.mark.parametrize("whom", ["müller-7", "a/b-c", 'a"b\\c', "zoë 🎲", "tab\tline\n", "plain-1"])
def test_ids_are_found_in_json_whatever_form_its_writer_gives_them(whom):
    escaped = "".join(f"\\u{unit:04X}" for unit in memoryview(whom.encode("utf-16-le")).cast("H"))
    values = [
        json.dumps({"gamer_id": whom}).encode(),
        json.dumps({"gamer_id": whom}, ensure_ascii=False).encode(),
        json.dumps({"gamer_id": whom}, ensure_ascii=False).replace("/", "\\/").encode(),
        ('{"gamer_id": "' + escaped + '", ').encode(),
        ('{"gamer_id": "' + escaped.lower() + '"').encode(),
        json.dumps({"body": json.dumps({"gamer_id": whom})}).replace("\\\\", "\\").encode(),
        json.dumps({"gamer_id": whom + "x"}).encode(),
        json.dumps({"gamer_id": "x" + whom}, ensure_ascii=False).encode(),
        b'{"gamer_id": "\\ud800\\u", "\\',
    ]
    found = PeopleToErase("gamer_id", "game_name", frozenset({whom})).mask("quarantine_events", quarantined(values)).tolist()
    assert found[:5] == [True] * 5
    assert found[6:] == [False] * 3
