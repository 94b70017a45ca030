"""Other readers of Iceberg, each a process of its own: DuckDB with its extension, Spark with Iceberg's runtime.

Neither is part of the project: DuckDB's extension is of an older DuckDB than the project's, and a Spark with the runtime has
other session extensions. Both are fetched once per machine, from the package index and from Maven Central."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from game_events.jvm.jars import cache_dir

DUCKDB = "1.5.5"
PACKAGES = [f"duckdb=={DUCKDB}", f"duckdb-extension-avro=={DUCKDB}", f"duckdb-extension-iceberg=={DUCKDB}"]

RUNTIME = "iceberg-spark-runtime-4.0_2.13"
RUNTIME_VERSION = "1.11.0"
RUNTIME_SHA256 = "63c3b812549dc232c1920865ff42436df8604a9bbacd693930985c06bd97e6dc"
MAVEN = "https://repo1.maven.org/maven2/org/apache/iceberg"

#: Asks all queries of stdin, (address of metadata, condition, file for the rows), of one reader.
_DUCKDB = """
import json, sys
from pathlib import Path
import duckdb, duckdb_extension_avro, duckdb_extension_iceberg
import pyarrow.parquet as pq

connection = duckdb.connect()
for module in (duckdb_extension_avro, duckdb_extension_iceberg):
    (file,) = Path(module.__file__).parent.rglob("*.duckdb_extension")
    connection.execute(f"LOAD '{file}'")
connection.execute("SET TimeZone = 'UTC'")
for metadata, where, to in json.load(sys.stdin):
    found = connection.sql(f"SELECT * FROM iceberg_scan('{metadata}') WHERE {where}").to_arrow_table()
    # DuckDB's own COPY makes one value of -0.0 and 0.0 in a dictionary.
    pq.write_table(found, to, use_dictionary=False)
"""

_SPARK = """
import json, sys
from pyspark.sql import SparkSession

conf = {
    "spark.jars": sys.argv[1],
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
builder = SparkSession.builder.master("local[1]")
for key, value in conf.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
for metadata, where, to in json.load(sys.stdin):
    spark.read.format("iceberg").load(metadata).where(where).coalesce(1).write.parquet(to)
"""

Query = tuple[str, str]


def read_by_duckdb(queries: Sequence[Query], folder: Path) -> list[pa.Table]:
    """Rows of (address of a table's metadata, condition in SQL) for each query."""
    place = cache_dir() / f"duckdb-iceberg-{DUCKDB}"
    with _alone(place.name):
        if not place.is_dir():
            uv = Path(sys.executable).parent / "uv"
            unfinished = place.with_suffix(".unfinished")
            subprocess.run([uv, "pip", "install", "--quiet", "--target", unfinished, *PACKAGES], check=True)
            unfinished.rename(place)
    return _asked([sys.executable, "-c", _DUCKDB], queries, folder / "duckdb", {"PYTHONPATH": str(place)})


def read_by_spark(queries: Sequence[Query], folder: Path) -> list[pa.Table]:
    """The same by Spark; its own JVM."""
    jar = cache_dir() / f"{RUNTIME}-{RUNTIME_VERSION}.jar"
    with _alone(jar.name):
        if not jar.exists():
            with urllib.request.urlopen(f"{MAVEN}/{RUNTIME}/{RUNTIME_VERSION}/{jar.name}", timeout=600) as answer:  # noqa: S310
                content = answer.read()
            assert hashlib.sha256(content).hexdigest() == RUNTIME_SHA256
            jar.write_bytes(content)
    asked = [(metadata, where.replace("timestamptz ", "timestamp ")) for metadata, where in queries]
    return _asked([sys.executable, "-c", _SPARK, str(jar)], asked, folder / "spark", {})


def _alone(name: str):
    """A lock of this machine for a download."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    lock = (cache_dir() / f"{name}.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _asked(command: list[str], queries: Sequence[Query], folder: Path, environment: Mapping[str, str]) -> list[pa.Table]:
    folder.mkdir()
    places = [folder / f"{number}.parquet" for number in range(len(queries))]
    asked = [[metadata, where, str(place)] for (metadata, where), place in zip(queries, places, strict=True)]
    ran = subprocess.run(
        command, input=json.dumps(asked), env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [pq.read_table(place) for place in places]
