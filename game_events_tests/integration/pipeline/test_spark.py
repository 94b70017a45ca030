"""What the session's settings promise."""

from __future__ import annotations

import re
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from game_events.config.settings import load_settings
from game_events.lakehouse.data.reading import files_with
from game_events.lakehouse.data.spark_files import read_files, spark_schema
from game_events.spark.config import (
    ARROW_BYTES,
    ARROW_RECORDS,
    LARGE_TYPES_KEY,
    session_config,
    spark_config,
)


def _sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows], "bytes": [batch.nbytes]})


def test_large_records_reach_the_workers_in_small_batches_and_small_ones_in_large_batches(spark: SparkSession) -> None:
    def batches(record_bytes: int, count: int) -> list[tuple[int, int]]:
        rows = spark.range(0, count, 1, 1).select(F.repeat(F.lit("x"), record_bytes).cast("binary").alias("value"))
        return [(r["rows"], r["bytes"]) for r in rows.mapInArrow(_sizes, "rows bigint, bytes bigint").collect()]

    large = batches(1_000_000, 300)
    assert sum(rows for rows, _ in large) == 300
    assert max(size for _, size in large) <= 1.05 * ARROW_BYTES
    assert max(rows for rows, _ in batches(100, ARROW_RECORDS + 1)) == ARROW_RECORDS


def test_large_arrow_types_are_off_whatever_the_user_or_the_cluster_says() -> None:
    # With offsets of 64 bits every second frame would be read out of another row's bytes.
    theirs = load_settings(spark_conf={LARGE_TYPES_KEY: "true"})
    assert session_config(theirs)[LARGE_TYPES_KEY] == spark_config(theirs)[LARGE_TYPES_KEY] == "false"


def test_tables_below_a_folder_with_any_name_are_read(spark: SparkSession, tmp_path: Path) -> None:
    folder = str(tmp_path / "lake house 50% ü")
    write_deltalake(folder, pa.table({"x": [1, 2]}))
    handle = DeltaTable(folder)
    for uris in (files_with(handle), handle.file_uris()):
        rows = read_files(spark, uris, spark_schema(handle.schema()))
        assert sorted(row.x for row in rows.collect()) == [1, 2]


def test_no_port_of_the_jvm_answers_who_does_not_know_its_secret_and_its_files_are_its_users_alone(
    spark: SparkSession,
) -> None:
    conf = spark.sparkContext.getConf()
    port = int(str(conf.get("spark.driver.port")))
    connections = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    (jvm,) = {c.pid for c in connections if c.laddr.port == port}
    assert jvm is not None
    # The driver's, and that of its blocks; the third is Python's own way in, whose first word is a secret.
    gateway = spark.sparkContext._gateway.gateway_parameters.port
    ports = {c.laddr.port for c in connections if c.pid == jvm} - {gateway}
    assert port in ports
    assert len(ports) == 2
    # A request as Spark's network layer frames it: kind 3 is a call, kind 5 its refusal.
    call = struct.pack(">QBQI", 8 + 1 + 8 + 4 + 5, 3, 1, 5) + b"hello"
    for each in ports:
        with socket.create_connection(("127.0.0.1", each), timeout=60) as stranger:
            stranger.sendall(call)
            answer = stranger.recv(65536)
        assert answer[8:9] == b"\x05"
        assert b"SaslMessage" in answer
    (folder,) = re.findall(r'-Djava\.io\.tmpdir=([^\s"]+)', str(conf.get("spark.driver.defaultJavaOptions")))
    blocks = [f for f in Path(folder).iterdir() if f.name.startswith("blockmgr-")]
    assert blocks, "shuffle files are elsewhere"
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700


def test_workers_are_forked_with_the_libraries_that_they_need(spark: SparkSession) -> None:
    def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys  # noqa: PLC0415 - of the worker

        module = "deltalake" in sys.modules
        archives = [entry for entry in sys.path if entry.endswith((".zip", ".jar")) and "pyspark" in entry]
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"module": [module], "archives": [len(archives)]})

    found = spark.range(0, 2, 1, 2).mapInArrow(seen, "module boolean, archives bigint").collect()
    assert {(row["module"], row["archives"]) for row in found} == {(True, 0)}
