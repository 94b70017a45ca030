"""What a user would write without Spark: one Python process that consumes the topic, and writes with delta-rs.

`python python_peer.py REQUEST`, JSON as `graph._python` makes it; prints JSON. Kinder to itself than most: everything is in
memory at once, one descriptor decodes every schema version, and nothing is kept that only a second run would need. So it has no
raw values, no quarantine, no progress, no new columns, and no recovery from a crash.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition
from deltalake import write_deltalake
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

#: Magic byte, schema id, message index.
FRAME_BYTES = 6
#: Messages of one call of the consumer, and rows of a commit to bronze.
CALL, ROWS = 10_000, 200_000


def event_class(descriptor: Path, name: str) -> type:
    """The message's class, of the newest schema version."""
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptor.read_bytes()).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


def batches(request: dict[str, Any]) -> Any:  # noqa: ANN401 - lists of messages
    """All messages up to the end offsets, in lists of about `ROWS`."""
    consumer = Consumer({"bootstrap.servers": request["servers"], "group.id": "peer", "enable.auto.commit": False})
    consumer.assign([TopicPartition(request["topic"], int(p), offset) for p, offset in request["start"].items()])
    left = sum(request["end"].values()) - sum(request["start"].values())
    waiting: list[Message] = []
    while left:
        found = consumer.consume(CALL, 5.0)
        left -= len(found)
        waiting += found
        if len(waiting) >= ROWS or not left:
            yield waiting
            waiting = []
    consumer.close()


def rows_of(messages: list[Message], event: Any) -> pa.Table:  # noqa: ANN401 - a class that protobuf makes
    """Decoded, one column for each field."""
    decoded = [event.FromString((message.value() or b"")[FRAME_BYTES:]) for message in messages]
    columns: dict[str, Any] = {
        "partition": [message.partition() for message in messages],
        "offset": [message.offset() for message in messages],
        "timestamp": pa.array([message.timestamp()[1] for message in messages], pa.timestamp("ms", "UTC")),
    }
    for field in event.DESCRIPTOR.fields:
        values = [getattr(each, field.name) for each in decoded]
        if field.message_type is not None:
            columns[field.name] = pa.array([value.ToNanoseconds() // 1_000 for value in values], pa.timestamp("us", "UTC"))
        else:
            columns[field.name] = values
    return pa.table(columns)


def main() -> None:
    request = json.loads(sys.argv[1])
    root, event = Path(request["root"]), event_class(Path(request["descriptor"]), request["message"])
    began = time.monotonic()
    bronze = []
    for messages in batches(request):
        bronze.append(rows_of(messages, event))
        write_deltalake(str(root / "bronze"), bronze[-1], mode="append")
    bronze_s = time.monotonic() - began

    began = time.monotonic()
    ordered = pa.concat_tables(bronze).sort_by("game_name").combine_chunks()
    names = ordered.column("game_name").to_pylist()
    starts = [0, *(at for at, (one, other) in enumerate(pairwise(names), 1) if one != other), len(names)]
    for start, end in pairwise(starts):
        game = ordered.slice(start, end - start)
        write_deltalake(str(root / f"silver_{names[start]}"), game, mode="append")
        times = [("event_timestamp", "min"), ("event_timestamp", "max")]
        gold = game.group_by("gamer_id").aggregate([("gamer_id", "count"), *times])
        write_deltalake(str(root / f"gold_{names[start]}"), gold, mode="overwrite")
    print(json.dumps({"bronze_s": bronze_s, "games_s": time.monotonic() - began, "rows": len(names)}))


if __name__ == "__main__":
    main()
