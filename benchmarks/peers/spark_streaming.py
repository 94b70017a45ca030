"""Peer `spark_one`, `spark_games`: Spark Structured Streaming as a good engineer writes it in an afternoon, in one pass.

`availableNow`, `foreachBatch`, Delta. A batch is decoded once (ptars in `mapInArrow`) and appended to bronze, with raw values
and keys; the rest reads back the files that this has added, which is cheaper than persisting the batch. Layout `partitioned`:
silver is one table, partitioned by game and written in one pass, gold one table, by one aggregate and one MERGE (spark_one).
Layout `tables`: a silver and a gold table for each game, by threads, and the unified one (spark_games). Progress is the
checkpoint's; appends are idempotent (`txnAppId`, `txnVersion`).

`python spark_streaming.py JARS`, then lines of JSON in and out (`process.py`).

What it does NOT do: quarantine (a bad record ends it), schemas of writers (the newest decodes all), new columns, rules, exact
gold (a crash between MERGE and the checkpoint counts a batch twice). Variants that were slower or no faster: a persisted batch,
a decoder as a JVM UDF, the other one of Spark's two Kafka sources.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ptars
import pyarrow as pa
import pyarrow.compute as pc
from delta.tables import DeltaTable
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F

#: Magic byte, schema id, message index.
FRAME_BYTES = 6
KAFKA = "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary"
EVENT = (
    "game_name string, gamer_id string, event_timestamp timestamp, device_id string, col_custom_0 string, col_custom_1 string"
)
KAFKA_NAMES, EVENT_NAMES = ([column.split()[0] for column in text.split(", ")] for text in (KAFKA, EVENT))
#: New records up to which a batch is one task: more tasks would cost more than they save.
SMALL = 100_000
THREADS = 8
OPTIONS = {
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

Request = Mapping[str, Any]
Steps = dict[str, float]


def session(jars: str) -> SparkSession:
    builder = SparkSession.builder.master("local[*]").appName("peer").config("spark.jars", jars)
    for key, value in OPTIONS.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def decoded(records: DataFrame, request: Request) -> DataFrame:
    """Kafka's columns and the message's."""
    descriptor, message = Path(request["descriptor"]).read_bytes(), request["message"]

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(descriptor).file:
            pool.Add(file)
        found = pool.FindMessageTypeByName(message)
        config = ptars.PtarsConfig(timestamp_unit="us", timestamp_tz="UTC")
        handler = ptars.HandlerPool([found.file], config=config).get_for_message(found)
        for batch in batches:
            values = batch.column("value").cast(pa.binary())
            event = handler.array_to_record_batch(pc.binary_slice(values, FRAME_BYTES, 2**31 - 1))
            columns = [*batch.columns, *(event.column(name) for name in EVENT_NAMES)]
            yield pa.RecordBatch.from_arrays(columns, [*KAFKA_NAMES, *EVENT_NAMES])

    return records.select(*KAFKA_NAMES).mapInArrow(decode, f"{KAFKA}, {EVENT}")


def aggregate(rows: DataFrame) -> DataFrame:
    return rows.groupBy("game_name", "gamer_id").agg(
        F.count(F.lit(1)).alias("session_count"),
        F.min("event_timestamp").alias("min_timestamp"),
        F.max("event_timestamp").alias("max_timestamp"),
    )


def merge(spark: SparkSession, path: str, rows: DataFrame, keys: list[str]) -> None:
    """Add partial aggregates to a gold table."""
    if not DeltaTable.isDeltaTable(spark, path):
        rows.write.format("delta").save(path)
        return
    same = " AND ".join(f"old.{key} = new.{key}" for key in keys)
    merged: dict[str, str | Column] = {
        "session_count": "old.session_count + new.session_count",
        "min_timestamp": "least(old.min_timestamp, new.min_timestamp)",
        "max_timestamp": "greatest(old.max_timestamp, new.max_timestamp)",
    }
    table = DeltaTable.forPath(spark, path).alias("old").merge(rows.alias("new"), same)
    table.whenMatchedUpdate(set=merged).whenNotMatchedInsertAll().execute()


def added_files(spark: SparkSession, path: str) -> list[str]:
    """Files that the table's newest commit has added."""
    version = DeltaTable.forPath(spark, path).history(1).select("version").collect()[0][0]
    entries = (Path(path) / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    actions = [json.loads(line) for line in entries]
    return [f"{path}/{action['add']['path']}" for action in actions if "add" in action]


class Batch:
    """One micro-batch: bronze, then silver and gold from what bronze has got."""

    def __init__(self, spark: SparkSession, request: Request, number: int, steps: Steps, *, small: bool) -> None:
        self.spark = spark
        self.root = request["root"]
        self.number = number
        self.steps = steps
        self.small = small
        self.began = time.monotonic()

    def write(self, records: DataFrame, layout: str) -> None:
        bronze = f"{self.root}/bronze"
        self.append(records, "bronze").save(bronze)
        self.lap("bronze")
        rows = self.spark.read.parquet(*added_files(self.spark, bronze))
        if layout == "partitioned":
            self.one_table(rows)
        else:
            self.tables(rows)

    def append(self, rows: DataFrame, name: str) -> DataFrameWriter:
        """An append that happens once, however often the batch is repeated."""
        writer = rows.write.format("delta").mode("append")
        return writer.option("txnAppId", name).option("txnVersion", self.number)

    def lap(self, step: str) -> None:
        now = time.monotonic()
        self.steps[step] = round(self.steps.get(step, 0) + now - self.began, 3)
        self.began = now

    def one_table(self, rows: DataFrame) -> None:
        silver = rows.drop("key", "value")
        silver = silver.coalesce(1) if self.small else silver.repartition(4, "game_name")
        self.append(silver, "silver").partitionBy("game_name").save(f"{self.root}/silver")
        self.lap("silver")
        gold = aggregate(rows)
        merge(self.spark, f"{self.root}/gold", gold.coalesce(1) if self.small else gold, ["game_name", "gamer_id"])
        self.lap("gold")

    def tables(self, rows: DataFrame) -> None:
        silver, gold = rows.drop("key", "value").persist(), aggregate(rows).persist()
        names = [row[0] for row in gold.select("game_name").distinct().collect()]

        def of_game(name: str) -> None:
            mine = F.col("game_name") == name
            self.append(silver.where(mine).coalesce(1), "silver").save(f"{self.root}/silver_{name}")
            merge(self.spark, f"{self.root}/gold_{name}", gold.where(mine).drop("game_name").coalesce(1), ["gamer_id"])

        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(of_game, names))
        self.lap("games")
        merge(self.spark, f"{self.root}/gold_unified", gold.coalesce(1), ["game_name", "gamer_id"])
        silver.unpersist()
        gold.unpersist()
        self.lap("unified")


def load(spark: SparkSession, request: Request) -> dict[str, object]:
    """All that is new, from Kafka to gold; returns the records and the seconds of the steps."""
    steps: Steps = {}

    def process(records: DataFrame, number: int) -> None:
        rows = decoded(records, request)
        small = request["new"] < SMALL
        Batch(spark, request, number, steps, small=small).write(rows.coalesce(1) if small else rows, request["layout"])

    query = source(spark, request).writeStream.trigger(availableNow=True).foreachBatch(process)
    running = query.option("checkpointLocation", f"{request['root']}/checkpoint").start()
    running.awaitTermination()
    return {"records": sum(progress["numInputRows"] for progress in running.recentProgress), "steps": steps}


def source(spark: SparkSession, request: Request) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", request["servers"])
    reader = reader.option("subscribe", request["topic"]).option("startingOffsets", "earliest")
    return reader.option("kafka.fetch.max.wait.ms", "10").option("kafka.max.poll.records", "2000").load()


def main() -> None:
    spark = session(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(load(spark, json.loads(line))), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
