"""What a user would write: Spark's `from_protobuf`, one bronze table, then filter, write and aggregate game by game.

Runs with PySpark 3.4 in the baseline's own environment, so it imports nothing of this project. One line of JSON on the input
is one run of its `kind`; one line on the output its result. Kinder to itself than most: no raw values, few shuffle
partitions, warm.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.protobuf.functions import from_protobuf

#: Magic byte, schema id, message index.
FRAME_BYTES = 6


def session(jars: str, master: str) -> SparkSession:
    return (
        SparkSession.builder.master(master)
        .appName("baseline")
        .config("spark.jars", jars)
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        # The default of 200 would make each game's aggregate slower; ours has 8 as well.
        .config("spark.sql.shuffle.partitions", "8")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def records(spark: SparkSession, request: dict[str, Any]) -> DataFrame:
    """The topic, decoded with ONE descriptor, whatever schema a record was written with."""
    source = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", request["servers"])
        .option("assign", request["assign"])
        .option("startingOffsets", request["start"])
        .option("endingOffsets", request["end"])
        .load()
    )
    payload = F.expr(f"substring(value, {FRAME_BYTES + 1})")
    event = from_protobuf(payload, request["message"], request["descriptor"])
    return source.select("partition", "offset", "timestamp", event.alias("event")).select(
        "partition", "offset", "timestamp", "event.*"
    )


def graph(spark: SparkSession, request: dict[str, Any]) -> dict[str, float]:
    root = Path(request["root"])
    began = time.monotonic()
    records(spark, request).write.format("delta").mode("append").save(str(root / "bronze"))
    bronze_s = time.monotonic() - began

    began = time.monotonic()
    for game in request["games"]:
        silver, gold = str(root / f"silver_{game}"), str(root / f"gold_{game}")
        bronze = spark.read.format("delta").load(str(root / "bronze"))
        bronze.where(F.col("game_name") == game).write.format("delta").mode("append").save(silver)
        sessions = spark.read.format("delta").load(silver).groupBy("gamer_id")
        aggregate = sessions.agg(
            F.count(F.lit(1)).alias("session_count"),
            F.min("event_timestamp").alias("min_timestamp"),
            F.max("event_timestamp").alias("max_timestamp"),
        )
        aggregate.write.format("delta").mode("overwrite").save(gold)
    games_s = time.monotonic() - began
    rows = spark.read.format("delta").load(str(root / "bronze")).count()
    return {"bronze_s": bronze_s, "games_s": games_s, "bronze_rows": rows}


def decode(spark: SparkSession, request: dict[str, Any]) -> dict[str, float]:
    """Payloads of a Parquet file decoded to nothing, and the file read to nothing, which is no decoding."""
    payloads = spark.read.parquet(request["payloads"])
    decoded = payloads.select(from_protobuf("payload", request["message"], request["descriptor"]).alias("event"))
    seconds = {}
    for name, rows in (("scan_s", payloads), ("decode_s", decoded)):
        began = time.monotonic()
        rows.write.format("noop").mode("overwrite").save()
        seconds[name] = time.monotonic() - began
    return seconds


KINDS = {"graph": graph, "decode": decode}


def main() -> None:
    spark = session(*sys.argv[1:])
    spark.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(KINDS[request["kind"]](spark, request)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
