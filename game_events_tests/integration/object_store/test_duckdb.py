"""DuckDB reads tables in an object store as docs/reading.md says: with its extension, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from game_events.lakehouse.maintenance import join_files
from game_events.lakehouse.tables import paths
from game_events.pipeline.context import Pipeline, no_spark
from game_events_tests.support.docs.pages import blocks
from game_events_tests.support.iceberg_readers import DUCKDB, packages_beside
from game_events_tests.support.servers.object_store import KEY, SECRET
from game_events_tests.support.tables import put

pytestmark = pytest.mark.scenario

PAGE = Path(__file__).parents[3] / "docs" / "reading.md"
#: The extension is of an older DuckDB than the project's.
PACKAGES = [f"duckdb=={DUCKDB}", f"duckdb-extension-httpfs=={DUCKDB}"]
SHOW = "\nprint(connection.sql('SELECT _batch, new FROM events ORDER BY ALL').fetchall())"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user's home with the extension, as `INSTALL httpfs` leaves it."""
    packages = packages_beside("duckdb-httpfs", PACKAGES)
    (extension,) = packages.rglob("httpfs.duckdb_extension")
    installed = tmp_path / ".duckdb" / "extensions" / f"v{DUCKDB}" / "linux_amd64"
    installed.mkdir(parents=True)
    shutil.copy(extension, installed)
    login = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    for name, value in {"HOME": str(tmp_path), "PYTHONPATH": str(packages), **login}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("home")
def test_the_recipe_reads_the_rows_of_the_newest_version_with_columns_that_came_later(tables_only, store):
    table = Pipeline(tables_only, no_spark).lakehouse.table("silver_rummy_events")
    put(table, pa.table({"_batch": pa.array([1], pa.int64())}))
    put(table, pa.table({"_batch": pa.array([2], pa.int64())}))
    join_files(table, table.open(), paths(table.open()))
    put(table, pa.table({"_batch": pa.array([3], pa.int64()), "new": ["x"]}))
    (recipe,) = [block.text for block in blocks(PAGE) if "LOAD httpfs" in block.text]
    here = f"REGION ?, ENDPOINT '{store.endpoint.partition('://')[2]}', URL_STYLE 'path', USE_SSL false)"
    program = recipe.replace("s3://lake/silver_rummy_events", table.uri).replace("REGION ?)", here) + SHOW
    ran = subprocess.run([sys.executable, "-c", program], env=os.environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "[(1, None), (2, None), (3, 'x')]"
