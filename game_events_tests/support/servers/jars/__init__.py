"""Java parts that only tests need: nobody else's Ivy file has them (`make lock-jars` pins both)."""

from __future__ import annotations

from pathlib import Path

from game_events.jvm.jars import Group

HERE = Path(__file__).parent
ICEBERG_REST = Group("iceberg_rest", ("iceberg_rest",), "Iceberg's REST catalog, of its own tests (about 12 MB)", HERE)
ICEBERG_SPARK = Group("iceberg_spark", ("iceberg_spark",), "Iceberg's reader for Spark (about 50 MB)", HERE)
TEST_GROUPS = (ICEBERG_REST, ICEBERG_SPARK)
