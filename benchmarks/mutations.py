"""One worker's pass over records that are damaged at every byte: what an undecodable record costs, against a good one."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import fastavro
import pyarrow as pa

from benchmarks.arena import Arena
from benchmarks.figures import Figure, Target, ratio
from benchmarks.messages import FIRST_ID, compiled, event, version_text
from benchmarks.messages import values as protobuf_values
from benchmarks.turns import in_turns
from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import BatchDecoder, DecodePlan, compile_schema, make_decoder
from game_events.decoding.frame import RegistrySchema
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Lakehouse
from game_events.sources.source import BATCH_RECORDS, Reading, ReadNotes, columns_of
from game_events.workers.decode import BronzeTask

CUSTOM = 10
FIELDS = ("game_name", "gamer_id", "event_timestamp", "device_id", *(f"col_custom_{i}" for i in range(CUSTOM)))
ROUNDS = 3
#: Most that an undecodable record may cost, in good ones.
MOST = Target("<=", 3)
#: Name -> damage at a byte.
DAMAGES: dict[str, Callable[[bytes, int], bytes]] = {
    "cut": lambda value, at: value[:at],
    "a byte 255": lambda value, at: value[:at] + b"\xff" + value[at + 1 :],
    "a byte 0": lambda value, at: value[:at] + b"\0" + value[at + 1 :],
    "a bit flipped": lambda value, at: value[:at] + bytes([value[at] ^ 1 << at % 8]) + value[at + 1 :],
    "a byte left out": lambda value, at: value[:at] + value[at + 1 :],
    "a byte doubled": lambda value, at: value[:at] + value[at : at + 1] + value[at:],
}


def mutations(arena: Arena) -> list[Figure]:
    """Batches of undecodable records only, each made from another good one by one damage, at every byte in turn."""
    figures = []
    for name, (plan, good) in _formats().items():
        arena.say(f"damaging {name} records")
        batches = {"good": good} | {damage: _damaged(plan, good, change) for damage, change in DAMAGES.items()}
        batches |= _distinct(name, good)
        works = {f"{name}, {kind}": partial(_stage, arena, plan, _rows(made)) for kind, made in batches.items() if made}
        for pair in range(arena.pairs):
            in_turns(arena, pair, works, ROUNDS, len(good))
        spent = {kind: [step.cpu_s for step in arena.measured.of(kind, 0)] for kind in works}
        for kind in list(works)[1:]:
            note = f"one worker's pass, {len(good):,} records of {len(good[0])} bytes in a batch"
            figures.append(ratio(f"processor time, {kind} / good", spent[kind], spent[f"{name}, good"], MOST, note))
    return figures


def _formats() -> dict[str, tuple[DecodePlan, list[bytes]]]:
    """Format -> plan, and a batch of good records: the same events in each."""
    draw = random.Random(0)  # noqa: S311 - simulation, no secrets
    events = [event(draw, number, CUSTOM) for number in range(BATCH_RECORDS)]
    protobuf = compiled([version_text(CUSTOM)])
    strings = [{"name": name, "type": "string"} for name in FIELDS if name != "event_timestamp"]
    time = {"name": "event_timestamp", "type": {"type": "long", "logicalType": "timestamp-micros"}}
    record = {"type": "record", "name": "E", "fields": [*strings, time]}
    members = {n: {"type": "string"} for n in FIELDS} | {"event_timestamp": {"type": "string", "format": "date-time"}}
    object_ = {"title": "E", "type": "object", "properties": members}
    avro = fastavro.parse_schema(record)
    return {
        "protobuf": (
            _plan(RegistrySchema(FIRST_ID, "PROTOBUF", version_text(CUSTOM))),
            protobuf_values(protobuf, lambda _, number: events[number], len(events)),
        ),
        "Avro": (_plan(RegistrySchema(FIRST_ID, "AVRO", json.dumps(record))), [_framed(_avro(avro, e)) for e in events]),
        "JSON": (_plan(RegistrySchema(FIRST_ID, "JSON", json.dumps(object_))), [_framed(_json(e)) for e in events]),
    }


def _plan(schema: RegistrySchema) -> DecodePlan:
    made = compile_schema(schema)
    path = (0,) if made.indexed else ()
    decoder = make_decoder(made, path)
    columns = ColumnMap().with_message(decoder.message, decoder.fields)
    return DecodePlan({schema.schema_id: made}, frozenset({(schema.schema_id, path)}), {}, columns)


def _time(found: dict[str, Any]) -> datetime:
    return datetime.fromtimestamp(found["event_timestamp"]["seconds"], UTC)


def _avro(schema: Any, found: dict[str, Any]) -> bytes:  # noqa: ANN401 - as fastavro has it
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, found | {"event_timestamp": _time(found)})
    return out.getvalue()


def _json(found: dict[str, Any]) -> bytes:
    return json.dumps(found | {"event_timestamp": _time(found).isoformat()}).encode()


def _framed(payload: bytes) -> bytes:
    return b"\0" + FIRST_ID.to_bytes(4, "big") + payload


def _damaged(plan: DecodePlan, good: list[bytes], change: Callable[[bytes, int], bytes]) -> list[bytes]:
    """As many records that do not decode; none if this damage never has that effect."""
    decoder, bad = BatchDecoder(plan), list[bytes]()
    made = [change(value, number % len(value)) for number, value in enumerate(good)]
    decoded = decoder.decode(pa.array(made, pa.binary()))
    bad = [made[row] for item in decoded.rejected for row in item.rows]
    return [bad[number % len(bad)] for number in range(len(good))] if bad else []


def _distinct(name: str, good: list[bytes]) -> dict[str, list[bytes]]:
    """Records that choose their details: an index path, or the position of the fault, each another one."""
    if name == "protobuf":
        paths = (b"".join(_varint(2 * i) for i in (2, number, number * 7 % 1_000)) for number in range(len(good)))
        return {"index paths": [value[:5] + path + value[6:] for value, path in zip(good, paths, strict=True)]}
    if name == "JSON":
        return {"blanks before a fault": [value[:-1] + b" " * (at % 250) + b"," for at, value in enumerate(good)]}
    return {}


def _varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


@dataclass(frozen=True)
class OneBatch(Reading):
    """A batch of records in memory, as a reader of Kafka gives them."""

    rows: pa.RecordBatch

    @property
    def tasks(self) -> int:
        """One."""
        return 1

    def batches(self, task: int, notes: ReadNotes) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """The batch."""
        yield self.rows


def _rows(values: list[bytes]) -> OneBatch:
    count = len(values)
    times = pa.array([0] * count, pa.timestamp("us", "UTC"))
    columns = {
        "topic": pa.array(["t"] * count),
        "topic_id": pa.array(["i"] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": times,
        "value": pa.array(values, pa.binary()),
    }
    return OneBatch(columns_of(columns, count))


def _stage(arena: Arena, plan: DecodePlan, rows: OneBatch, _: int) -> None:
    root = arena.folder / "mutations"
    lake = Lakehouse(str(root))
    bronze, quarantine = lake.table(BRONZE), lake.table(QUARANTINE)
    task = pa.RecordBatch.from_pydict({"id": [0]})
    result = BronzeTask(bronze, quarantine, plan, rows, 1, "run", keep_raw=True).stage([task])
    assert sum(file.rows for file in (*result.bronze, *result.quarantine)) == len(rows.rows)
    shutil.rmtree(root)
