"""Other readers of Iceberg, each a process of its own: DuckDB with its extension, Spark with Iceberg's runtime.

Neither is part of the project: DuckDB's extension is of an older DuckDB than the project's, and a Spark with the runtime has
other session extensions. Both are fetched once per machine, each by its usual client: uv, and Ivy with a pinned list."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from game_events.jvm.jars import cache_dir, folder_of
from game_events_tests.support.servers.jars import ICEBERG_SPARK

DUCKDB = "1.5.5"
PACKAGES = [f"duckdb=={DUCKDB}", f"duckdb-extension-avro=={DUCKDB}", f"duckdb-extension-iceberg=={DUCKDB}"]

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
    environment = {"PYTHONPATH": str(packages_beside("duckdb-iceberg", PACKAGES))}
    return _asked([sys.executable, "-c", _DUCKDB], queries, folder / "duckdb", environment)


def packages_beside(name: str, packages: Sequence[str]) -> Path:
    """A folder with packages of other versions than the project's, for `PYTHONPATH`."""
    place = cache_dir() / f"{name}-{DUCKDB}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            uv = Path(sys.executable).parent / "uv"
            unfinished = place.with_name(f"{place.name}.unfinished")
            subprocess.run([uv, "pip", "install", "--quiet", "--target", unfinished, *packages], check=True)
            unfinished.rename(place)
    return place


def read_by_spark(queries: Sequence[Query], folder: Path) -> list[pa.Table]:
    """The same by Spark; its own JVM."""
    (jar,) = (folder_of(ICEBERG_SPARK) / "iceberg_spark").glob("*.jar")
    asked = [(metadata, where.replace("timestamptz ", "timestamp ")) for metadata, where in queries]
    return _asked([sys.executable, "-c", _SPARK, str(jar)], asked, folder / "spark", {})


def _asked(command: list[str], queries: Sequence[Query], folder: Path, environment: Mapping[str, str]) -> list[pa.Table]:
    folder.mkdir()
    places = [folder / f"{number}.parquet" for number in range(len(queries))]
    asked = [[metadata, where, str(place)] for (metadata, where), place in zip(queries, places, strict=True)]
    ran = subprocess.run(
        command, input=json.dumps(asked), env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [pq.read_table(place) for place in places]
