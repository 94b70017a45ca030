"""Nested messages of about 500 bytes: this decoder, Python's protobuf and Spark's `from_protobuf`, each on one core."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf.json_format import MessageToDict

from benchmarks.arena import Arena
from benchmarks.baseline.client import job
from benchmarks.figures import Figure, Step, ratio
from benchmarks.memory import tree_cpu_s
from benchmarks.messages import NESTED, NESTED_NAME, arrow, compiled, decoder_for, purchase, python_class, values
from benchmarks.turns import in_turns

BATCH = 10_000
#: Fewer messages than events: each is six times as wide. The least keeps Spark busy for more than its fixed cost.
FEWER, LEAST = 10, 200_000
FRAME_BYTES = 6
#: For the JIT.
WARM_UPS = 3
OURS = "nested: this decoder"
PARSE = "nested: Python's protobuf, parse only"
TO_DICT = "nested: Python's protobuf, MessageToDict"
SPARK = "nested: Spark 3.4's from_protobuf, local[1]"


def nested(arena: Arena) -> list[Figure]:
    """Strings, a repeated message with a message in it, a map, a repeated integer and a Timestamp, of one schema."""
    schemas = compiled([NESTED])
    made = values(schemas, purchase, BATCH)
    payloads = [value[FRAME_BYTES:] for value in made]
    batch, decoder, kind = arrow(made), decoder_for(schemas), python_class(schemas[0])
    rounds = max(LEAST, arena.events // FEWER) // BATCH
    descriptor, file = arena.folder / "nested.desc", arena.folder / "nested.parquet"
    descriptor.write_bytes(schemas[0].files)
    _write(file, payloads, rounds)
    (rows, _, _), *others = decoder.decode(batch).good
    assert len(rows) == BATCH and not others, f"{len(rows)} of {BATCH} messages were decoded"

    def parse(_: int) -> None:
        for payload in payloads:
            kind().ParseFromString(payload)

    def to_dict(_: int) -> None:
        for payload in payloads:
            MessageToDict(kind.FromString(payload))

    with job(arena, "local[1]") as spark:
        arena.say("decoding nested messages")
        for _ in range(WARM_UPS):
            spark.decode(file, descriptor, NESTED_NAME)
        for pair in range(arena.pairs):
            in_turns(arena, pair, {OURS: lambda _: decoder.decode(batch), PARSE: parse}, rounds, BATCH)
            in_turns(arena, pair, {TO_DICT: to_dict}, 1, BATCH)
            before = tree_cpu_s(spark.pid)
            done = spark.decode(file, descriptor, NESTED_NAME)
            note = f"without the {done.scan_s:.2f} s that reading the file takes; processor time with it, JIT and GC"
            seconds = done.decode_s - done.scan_s
            arena.add(Step(SPARK, 0, pair, rounds * BATCH, seconds, 0, tree_cpu_s(spark.pid) - before, note))
    size = sum(map(len, payloads)) / len(payloads)
    rates = {name: [step.rate * size / 1e6 for step in arena.measured.of(name, 0)] for name in (OURS, PARSE, TO_DICT, SPARK)}
    notes = {OURS: f"{size:.0f} bytes a message", SPARK: arena.measured.of(SPARK, 0)[-1].note}
    return [
        *(Figure(name, "MB/s", samples, note=notes.get(name, "")) for name, samples in rates.items()),
        *(ratio(f"{OURS} / {name.removeprefix('nested: ')}", rates[OURS], rates[name]) for name in rates if name != OURS),
    ]


def _write(file: Path, payloads: list[bytes], rounds: int) -> None:
    """Plain and uncompressed, so that reading costs next to nothing."""
    rows = pa.table({"payload": pa.array(payloads, pa.binary())})
    with pq.ParquetWriter(file, rows.schema, compression="none", use_dictionary=False) as writer:
        for _ in range(rounds):
            writer.write_table(rows)
