"""Peer `py_games`, `py_one`: worker processes of Python that consume, decode and write; the parent commits. No Spark.

Built of what this project's own workers are built of: confluent-kafka, ptars, pyarrow, delta-rs. Each worker reads some
partitions, decodes batches, writes bronze's file (with raw values and keys), silver's files and partial aggregates; the parent
commits bronze (with the offsets as application transactions, so that the next call goes on from there), silver, gold and the
unified table.

`python python_consumer.py WORKERS`, then lines of JSON in and out (`process.py`). Layout `tables`: a silver and a gold table
for each game, and the unified one (py_games). Layout `partitioned`: one silver table, partitioned by game, and one gold table
(py_one).

What it does NOT do: quarantine (a bad record ends it), schemas of writers (the newest decodes all), new columns, recovery (a
crash between bronze's and silver's commit loses silver's rows), statistics of columns, rules, bounded memory (a worker keeps
its decoded rows until the end), or merging into large gold tables without reading them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import ptars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Message, TopicPartition
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.transaction import AddAction, create_table_with_add_actions
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

#: Magic byte, schema id, message index.
FRAME_BYTES = 6
#: Messages of one call of the consumer, and rows that are decoded and written together.
CALL, ROWS = 20_000, 100_000
#: Records that one worker reads alone: two would take longer to start than to read.
ALONE = 20_000
#: Rows of a file up to which it is compressed quickly.
SMALL = 10_000
COMMIT_THREADS = 4
TIME = pa.timestamp("us", "UTC")
GAME, GAMER, EVENT_TIME = "game_name", "gamer_id", "event_timestamp"
GOLD_COLUMNS = ("session_count", "min_timestamp", "max_timestamp")
MERGED = [("session_count", "sum"), ("min_timestamp", "min"), ("max_timestamp", "max")]
RAW_COLUMNS = ["_kafka_key", "_raw_value"]

#: Partition, first offset, end.
Range = tuple[int, int, int]
Request = Mapping[str, Any]


@dataclass(frozen=True)
class File:
    """A Parquet file of a table: path below the table's folder, bytes, rows."""

    path: str
    size: int
    rows: int


@dataclass
class Done:
    """What a worker has written: bronze's file, silver's file of each game, partial aggregates, schemas without metadata."""

    bronze: File
    bronze_schema: pa.Schema
    silver: dict[str, File]
    silver_schema: pa.Schema
    partial: pa.Table


@dataclass
class Bronze:
    """Bronze's file of one worker, written batch by batch, and the decoded rows, kept for silver."""

    folder: Path
    name: str = field(default_factory=lambda: f"part-{uuid.uuid4()}.parquet")
    writer: pq.ParquetWriter | None = None
    rows: int = 0
    decoded: list[pa.Table] = field(default_factory=list)

    def add(self, rows: pa.Table) -> None:
        if self.writer is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.writer = pq.ParquetWriter(self.folder / self.name, rows.schema, compression="zstd", compression_level=1)
        self.writer.write_table(rows)
        self.rows += rows.num_rows
        self.decoded.append(rows.drop_columns(RAW_COLUMNS))

    def close(self) -> tuple[File, pa.Schema]:
        assert self.writer is not None
        self.writer.close()
        return File(self.name, (self.folder / self.name).stat().st_size, self.rows), self.writer.schema.remove_metadata()


def decoder_of(request: Request) -> Any:  # noqa: ANN401 - ptars has no types
    """The decoder of the newest schema version."""
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(Path(request["descriptor"]).read_bytes()).file:
        pool.Add(file)
    found = pool.FindMessageTypeByName(request["message"])
    return ptars.HandlerPool([found.file], config=ptars.PtarsConfig()).get_for_message(found)


def consumer(request: Request) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": request["servers"],
            "group.id": "peer",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
            "queued.min.messages": 500_000,
            "fetch.message.max.bytes": 4 * 2**20,
        }
    )


def decoded(messages: Sequence[Message], decoder: Any) -> pa.Table:  # noqa: ANN401 - ptars has no types
    """Columns of Kafka, of the message, and the raw key and value."""
    values = pa.array([message.value() for message in messages], pa.binary())
    times = pa.array([message.timestamp()[1] for message in messages], pa.timestamp("ms", "UTC"))
    columns = {
        "_kafka_partition": pa.array([message.partition() for message in messages], pa.int32()),
        "_kafka_offset": pa.array([message.offset() for message in messages], pa.int64()),
        "_kafka_timestamp": times.cast(TIME),
    }
    event = decoder.array_to_record_batch(pc.binary_slice(values, FRAME_BYTES, 2**31 - 1))
    for name in event.schema.names:
        column = event.column(name)
        columns[name] = column.cast(TIME, safe=False) if pa.types.is_timestamp(column.type) else column
    columns["_kafka_key"] = pa.array([message.key() for message in messages], pa.binary())
    columns["_raw_value"] = values
    return pa.table(columns)


def work(request: Request, ranges: Sequence[Range]) -> Done | None:
    """One worker's part; None: nothing to read."""
    pa.set_cpu_count(1)
    left = sum(end - start for _, start, end in ranges)
    if not left:
        return None
    decoder, bronze, waiting = decoder_of(request), Bronze(Path(request["root"]) / "bronze"), list[Message]()
    reader = consumer(request)
    reader.assign([TopicPartition(request["topic"], partition, start) for partition, start, end in ranges if start < end])
    while left > 0:
        found = reader.consume(CALL, 0.2)
        left -= len(found)
        waiting += found
        if len(waiting) >= ROWS or (not left and waiting):
            bronze.add(decoded(waiting, decoder))
            waiting = []
    reader.close()
    file, schema = bronze.close()
    rows = pa.concat_tables(bronze.decoded).combine_chunks()
    bronze.decoded = []
    silver = by_game(rows, request)
    return Done(file, schema, silver, rows.schema.remove_metadata(), partial_gold(rows))


def partial_gold(rows: pa.Table) -> pa.Table:
    """Count, first and last time of each gamer among these rows."""
    ones = pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)
    counted = rows.select([GAME, GAMER, EVENT_TIME]).append_column("n", ones)
    times = [(EVENT_TIME, "min"), (EVENT_TIME, "max")]
    groups = counted.group_by([GAME, GAMER], use_threads=False).aggregate([("n", "sum"), *times])
    return groups.rename_columns([GAME, GAMER, *GOLD_COLUMNS])


def by_game(rows: pa.Table, request: Request) -> dict[str, File]:
    """Write silver's file of each game."""
    codes = pc.dictionary_encode(rows.column(GAME).combine_chunks())
    ordered = rows.take(pc.sort_indices(codes.indices)).combine_chunks()
    counts = {item["values"]: item["counts"] for item in pc.value_counts(codes.indices).to_pylist()}
    found, start, root = dict[str, File](), 0, Path(request["root"])
    for number, game in enumerate(codes.dictionary.to_pylist()):
        part = ordered.slice(start, counts[number])
        start += counts[number]
        if request["layout"] == "partitioned":
            folder = f"{GAME}={game}"
            file = written(part.drop_columns([GAME]), root / "silver" / folder)
            found[game] = File(f"{folder}/{file.path}", file.size, file.rows)
        else:
            found[game] = written(part, root / f"silver_{game}")
    return found


def written(rows: pa.Table, folder: Path) -> File:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"part-{uuid.uuid4()}.parquet"
    quickly = rows.num_rows < SMALL
    pq.write_table(rows, path, compression="snappy" if quickly else "zstd", compression_level=None if quickly else 1)
    return File(path.name, path.stat().st_size, rows.num_rows)


def commit(
    table: Path,
    schema: pa.Schema,
    files: Sequence[tuple[File, dict[str, str]]],
    by: list[str] | None = None,
    properties: CommitProperties | None = None,
) -> None:
    """Append files (each with the values of its partition) to a table, which is made if it is missing."""
    now = int(time.time() * 1_000)
    actions = [
        AddAction(file.path, file.size, dict(values), now, True, json.dumps({"numRecords": file.rows}))
        for file, values in files
    ]
    kind = Schema.from_arrow(schema)
    if DeltaTable.is_deltatable(str(table)):
        handle = DeltaTable(str(table))
        handle.create_write_transaction([*actions], "append", kind, by, commit_properties=properties)
    else:
        create_table_with_add_actions(str(table), kind, actions, "append", by, commit_properties=properties)


def merged(rows: pa.Table, keys: list[str]) -> pa.Table:
    return rows.group_by(keys, use_threads=False).aggregate(MERGED).rename_columns([*keys, *GOLD_COLUMNS])


def replace_gold(table: Path, new: pa.Table, keys: list[str]) -> None:
    """A gold table again, from its rows and new partial ones."""
    parts = [new]
    if DeltaTable.is_deltatable(str(table)):
        parts += [pq.read_table(uri) for uri in DeltaTable(str(table)).file_uris()]
    write_deltalake(str(table), merged(pa.concat_tables(parts), keys), mode="overwrite")


def ranges_of(request: Request) -> list[Range]:
    """What is new in each partition: from the offsets that bronze's last commit holds to the end."""
    read: dict[int, int | None] = {}
    bronze, partitions = Path(request["root"]) / "bronze", range(request["partitions"])
    if DeltaTable.is_deltatable(str(bronze)):
        handle = DeltaTable(str(bronze))
        read = {partition: handle.transaction_version(f"partition-{partition}") for partition in partitions}
    asking, found = consumer(request), list[Range]()
    for partition in partitions:
        low, high = asking.get_watermark_offsets(TopicPartition(request["topic"], partition), timeout=10)
        start = read.get(partition)
        found.append((partition, low if start is None else start, high))
    asking.close()
    return found


def load(pool: Any, workers: int, request: Request) -> dict[str, object]:  # noqa: ANN401 - a context's own Pool
    """All that is new, from Kafka to gold; returns the records and the seconds of the steps."""
    times = {"began": time.monotonic()}
    ranges = ranges_of(request)
    count = sum(end - start for _, start, end in ranges)
    tasks = 1 if count < ALONE else workers
    results = pool.starmap(work, [(request, ranges[number::tasks]) for number in range(tasks)])
    done: list[Done] = [result for result in results if result is not None]
    times["workers"] = time.monotonic()
    if done:
        commit_bronze(Path(request["root"]), done, ranges)
        commit_silver(request, done)
        times["silver"] = time.monotonic()
        commit_gold(request, pa.concat_tables([each.partial for each in done]))
        times["gold"] = time.monotonic()
    steps = {name: round(end - start, 3) for (_, start), (name, end) in pairwise(times.items())}
    return {"records": count, "steps": steps}


def commit_bronze(root: Path, done: Sequence[Done], ranges: Sequence[Range]) -> None:
    offsets = [Transaction(f"partition-{partition}", end) for partition, _, end in ranges]
    files = [(each.bronze, dict[str, str]()) for each in done]
    commit(root / "bronze", done[0].bronze_schema, files, properties=CommitProperties(app_transactions=offsets))


def commit_silver(request: Request, done: Sequence[Done]) -> None:
    root, schema = Path(request["root"]), done[0].silver_schema
    files: dict[str, list[File]] = defaultdict(list)
    for each in done:
        for game, file in each.silver.items():
            files[game].append(file)
    if request["layout"] == "partitioned":
        every = [(file, {GAME: game}) for game, parts in files.items() for file in parts]
        commit(root / "silver", schema, every, [GAME])
        return

    def of_game(game: str) -> None:
        commit(root / f"silver_{game}", schema, [(file, {}) for file in files[game]])

    with ThreadPoolExecutor(COMMIT_THREADS) as threads:
        list(threads.map(of_game, files))


def commit_gold(request: Request, new: pa.Table) -> None:
    root, keys = Path(request["root"]), [GAME, GAMER]
    if request["layout"] == "partitioned":
        replace_gold(root / "gold", new, keys)
        return
    ordered = merged(new, keys).sort_by(GAME)
    runs = pc.run_end_encode(ordered.column(GAME).combine_chunks())
    edges = [0, *runs.run_ends.to_pylist()]

    def of_game(number: int) -> None:
        start, end = edges[number : number + 2]
        rows = ordered.slice(start, end - start).drop_columns([GAME])
        replace_gold(root / f"gold_{runs.values[number].as_py()}", rows, [GAMER])

    with ThreadPoolExecutor(COMMIT_THREADS) as threads:
        list(threads.map(of_game, range(len(edges) - 1)))
    replace_gold(root / "gold_unified", new, keys)


def main() -> None:
    workers = int(sys.argv[1])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pyarrow", "pyarrow.parquet", "pyarrow.compute", "ptars", "confluent_kafka", "deltalake"])
    with context.Pool(workers) as pool:
        pool.map(partial(os.path.join, ""), ["started"] * workers)
        for line in sys.stdin:
            print(json.dumps(load(pool, workers, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
