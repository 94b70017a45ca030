"""Generated schemas, messages and damage: the decoder's columns are what Python's protobuf reads, or both refuse."""

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import compile_schema
from game_events.decoding.frame import Reason, RegistrySchema
from game_events.decoding.projection import Shape
from game_events.decoding.protobuf import wire
from game_events.decoding.protobuf.decoder import ProtobufDecoder
from game_events.decoding.protobuf.schema import tree_of
from game_events.decoding.protobuf.wire import CellCounter
from game_events.errors import DataError
from game_events_tests.support.decoding.helpers import python_class
from game_events_tests.support.decoding.protobuf_worlds import Writer, schema_text, spoilt
from game_events_tests.support.decoding.python_reading import OutOfRangeError, as_read, read
from game_events_tests.support.decoding.registered_forms import FORMS, in_form

ROWS = 30


class World:
    """A schema made from a seed, in one of a registry's forms, a decoder of its first type, and Python's class of it."""

    def __init__(self, seed):
        self.chance = random.Random(seed)  # noqa: S311 - not for secrets
        while True:
            text = schema_text(self.chance)
            try:
                self.schema = compile_schema(RegistrySchema(1, "PROTOBUF", text, ()))
            except DataError:
                continue  # names that clash by protoc's own rules
            break
        form = FORMS[seed % len(FORMS)]
        self.text = in_form(form, text, self.schema.main_file) or text
        self.schema = compile_schema(RegistrySchema(1, "PROTOBUF", self.text, ()))
        self.message = self.schema.message((0,))
        self.python = python_class(self.schema)
        self.decoder = ProtobufDecoder(self.schema, (0,))
        self.columns = ColumnMap().with_message(self.decoder.message, self.decoder.fields)

    def payloads(self, oddity, damage):
        writer = Writer(self.chance, self.schema.pool, oddity, damage)
        return [writer.message(self.message) for _ in range(ROWS)]

    def decode(self, payloads):
        """Position -> row, and position -> (reason, detail)."""
        decoded = self.decoder.decode(pa.array(payloads, pa.binary()), self.columns)
        rows = decoded.table.to_pylist() or [{}] * len(decoded.good)
        bad = {int(at): (reason, detail) for reason, detail, positions in decoded.bad for at in positions}
        return dict(zip(decoded.good.tolist(), rows, strict=True)), bad

    def expected(self, payload):
        """What Python's protobuf reads, or the reasons why it cannot be a row."""
        try:
            return read(self.python.FromString(payload), self.schema.pool), None
        except DecodeError:
            return None, {*Reason} - {Reason.TOMBSTONE, Reason.UNKNOWN_SCHEMA}
        except OutOfRangeError:
            return None, {Reason.OUT_OF_RANGE, Reason.BAD_UTF8}
        except UnicodeDecodeError:
            return None, {Reason.OUT_OF_RANGE, Reason.BAD_UTF8}


def assert_as_python_reads(world, payloads):
    good, bad = world.decode(payloads)
    assert sorted([*good, *bad]) == list(range(len(payloads)))
    for position, payload in enumerate(payloads):
        row, reasons = world.expected(payload)
        if row is None:
            assert position in bad, (payload, world.text)
            assert bad[position][0] in reasons, (bad[position], payload, world.text)
            assert bad[position][1].startswith("w.M0: ")
        else:
            assert position in good, (bad.get(position), payload, world.text)
            assert as_read(good[position], row, world.decoder, world.columns) == row, (payload, world.text)


def test_a_row_that_is_not_as_python_reads_it_is_noticed():
    world = World(0)
    payloads = world.payloads(oddity=0, damage=0)
    changed = next(p for p in payloads[1:] if p != payloads[0])
    world.expected = lambda _, of=changed, expected=world.expected: expected(of)
    with pytest.raises(AssertionError):
        assert_as_python_reads(world, payloads)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_well_formed_messages_of_any_schema_are_read_as_python_reads_them(seed):
    world = World(seed)
    assert_as_python_reads(world, world.payloads(oddity=0, damage=0))


@settings(max_examples=80)
@given(st.integers(0, 2**32), st.sampled_from([0.02, 0.1, 0.3]))
def test_unusual_bytes_of_any_schema_are_read_as_python_reads_them(seed, oddity):
    world = World(seed)
    assert_as_python_reads(world, world.payloads(oddity, damage=0))


@settings(max_examples=80)
@given(st.integers(0, 2**32), st.sampled_from([0, 0.1]), st.sampled_from([0.02, 0.1]))
def test_damaged_bytes_of_any_schema_are_refused_or_read_as_python_does(seed, oddity, damage):
    world = World(seed)
    payloads = world.payloads(oddity, damage)
    assert_as_python_reads(world, payloads + [spoilt(world.chance, payload) for payload in payloads])


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_a_message_merged_with_another_is_read_as_python_reads_it(seed):
    world = World(seed)
    payloads = world.payloads(oddity=0, damage=0)
    assert_as_python_reads(world, [a + b for a, b in itertools.pairwise(payloads)])


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_what_python_writes_is_decoded_natively_unless_another_encoding_is_as_long(seed):
    world = World(seed)
    written = [world.python.FromString(p) for p in world.payloads(oddity=0, damage=0)]
    for message in written:
        message.DiscardUnknownFields()
    payloads = [message.SerializePartialToString() for message in written]
    lengths = [len(payload) for payload in payloads]
    reading = native_reading(world.decoder, payloads)
    assert_as_python_reads(world, payloads)
    assume(reading is not None)
    assert not reading[1].wrong, (lengths, world.text)


def native_reading(decoder, payloads):
    """The native decoder's reading, or None where the type is not read natively at all."""
    from game_events.decoding.protobuf import verification as protobuf_reading  # noqa: PLC0415 - the one test that looks inside

    if decoder._foreign is not None:
        return None
    array = pa.array(payloads, pa.binary())
    lengths = pa.array([len(p) for p in payloads], pa.int64()).to_numpy()
    return protobuf_reading.read(decoder._nodes, decoder._native._handler.array_to_record_batch(array), lengths)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_is_the_same_world(seed):
    assert World(seed).text == World(seed).text


@settings(max_examples=80)
@given(st.integers(0, 2**32), st.sampled_from([0, 0.1, 0.3]))
def test_no_row_has_more_values_in_lists_than_were_counted_before_it_was_decoded(seed, oddity):
    world = World(seed)
    payloads = world.payloads(oddity, damage=0)
    decoded = world.decoder.decode(pa.array(payloads, pa.binary()), world.columns)
    counter = CellCounter(tree_of(world.message, world.schema.pool), world.schema.pool)
    shape = Shape.of(decoded.table.schema.types)
    counts = np.concatenate([shape.in_lists(batch) for batch in decoded.table.to_batches()] or [[]])
    for position, count in zip(decoded.good.tolist(), counts.tolist(), strict=len(counts) > 0):
        if count:
            with pytest.MonkeyPatch.context() as bound:
                bound.setattr(wire, "MAX_RECORD_CELLS", count - 1)
                assert counter.is_too_large(payloads[position]), (count, payloads[position], world.text)
