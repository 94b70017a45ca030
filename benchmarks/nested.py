"""Nested messages of about 500 bytes: this decoder and Python's protobuf, each on one core."""

from __future__ import annotations

from google.protobuf.json_format import MessageToDict

from benchmarks.arena import Arena
from benchmarks.figures import Figure, ratio
from benchmarks.messages import NESTED, arrow, compiled, decoder_for, purchase, python_class, values
from benchmarks.turns import in_turns

BATCH = 10_000
#: Fewer messages than events: each is six times as wide.
FEWER, LEAST = 10, 200_000
FRAME_BYTES = 6
OURS = "nested: this decoder"
PARSE = "nested: Python's protobuf, parse only"
TO_DICT = "nested: Python's protobuf, MessageToDict"


def nested(arena: Arena) -> list[Figure]:
    """Strings, a repeated message with a message in it, a map, a repeated integer and a Timestamp, of one schema."""
    schemas = compiled([NESTED])
    made = values(schemas, purchase, BATCH)
    payloads = [value[FRAME_BYTES:] for value in made]
    batch, decoder, kind = arrow(made), decoder_for(schemas), python_class(schemas[0])
    rounds = max(LEAST, arena.events // FEWER) // BATCH
    (rows, _, _, _), *others = decoder.decode(batch).good
    assert len(rows) == BATCH and not others, f"{len(rows)} of {BATCH} messages were decoded"

    def parse(_: int) -> None:
        for payload in payloads:
            kind().ParseFromString(payload)

    def to_dict(_: int) -> None:
        for payload in payloads:
            MessageToDict(kind.FromString(payload))

    arena.say("decoding nested messages")
    for pair in range(arena.pairs):
        in_turns(arena, pair, {OURS: lambda _: decoder.decode(batch), PARSE: parse}, rounds, BATCH)
        in_turns(arena, pair, {TO_DICT: to_dict}, 1, BATCH)
    size = sum(map(len, payloads)) / len(payloads)
    rates = {name: [step.rate * size / 1e6 for step in arena.measured.of(name, 0)] for name in (OURS, PARSE, TO_DICT)}
    notes = {OURS: f"{size:.0f} bytes a message"}
    return [
        *(Figure(name, "MB/s", samples, note=notes.get(name, "")) for name, samples in rates.items()),
        *(ratio(f"{OURS} / {name.removeprefix('nested: ')}", rates[OURS], rates[name]) for name in rates if name != OURS),
    ]
