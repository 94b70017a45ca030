"""Files of each format with the same events, written by other libraries than those that read them."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf.proto import serialize_length_prefixed

from game_events_tests.support.decoding.helpers import compiled, python_class

# The names of the message types differ: fields of one type never share a column, those of several do.
PROTO = """syntax = "proto3"; package shop;
message Other { string note = 1; }
message Event { string game_name = 1; string gamer_id = 2; int64 n = 3; int64 event_timestamp = 4; }
"""
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "AvroEvent",
    "namespace": "shop",
    "fields": [
        {"name": "game_name", "type": "string"},
        {"name": "gamer_id", "type": "string"},
        {"name": "n", "type": "long"},
        {"name": "event_timestamp", "type": "long"},
    ],
}
JSON = json.dumps(
    {
        "title": "shop.JsonEvent",
        "type": "object",
        "properties": {
            "game_name": {"type": "string"},
            "gamer_id": {"type": "string"},
            "n": {"type": "integer"},
            "event_timestamp": {"type": "integer"},
        },
    }
)
GAMES = ("chess", "rummy")


def event(n: int) -> dict[str, Any]:
    """The event of a number."""
    return {"game_name": GAMES[n % 2], "gamer_id": f"g{n % 7}", "n": n, "event_timestamp": 1_700_000_000_000 + n}


def protobuf(numbers: range) -> bytes:
    """As protobuf's own delimited writer has them."""
    made = python_class(compiled(PROTO), (1,))
    out = io.BytesIO()
    for n in numbers:
        serialize_length_prefixed(made(**event(n)), out)
    return out.getvalue()


def avro(numbers: range, codec: str = "deflate", schema: dict[str, Any] | None = None, block: int = 16000) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, schema or AVRO, [event(n) for n in numbers], codec=codec, sync_interval=block)
    return out.getvalue()


def lines(numbers: range) -> bytes:
    return "".join(json.dumps(event(n)) + "\n" for n in numbers).encode()


def parquet(numbers: range, group: int = 1_000_000) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([event(n) for n in numbers]), out, row_group_size=group)
    return bytes(out.getvalue())


WRITERS = {"pb": protobuf, "avro": avro, "jsonl": lines, "parquet": parquet}


def put(folder: Path, name: str, body: bytes, age_s: float = 60) -> Path:
    """A file that was written some time ago."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path
