"""Iceberg beside Delta in an object store, with a catalog of pyiceberg's configuration."""

from __future__ import annotations

import pyarrow as pa
import pytest

from game_events.errors import ConfigurationError
from game_events.lakehouse.maintenance import join_files
from game_events.lakehouse.tables import paths
from game_events.pipeline.context import Pipeline, no_spark
from game_events.plugins.iceberg.lag import doctor
from game_events.plugins.iceberg.work import IcebergResult
from game_events_tests.support.iceberg import iceberg_table, rows_in_iceberg, run_ended
from game_events_tests.support.tables import put


def some(*numbers):
    return pa.table({"_batch": pa.array(numbers, pa.int64()), "s": [f"s{n}" for n in numbers]})


@pytest.fixture
def settings(tables_only, monkeypatch, tmp_path):
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    return tables_only.model_copy(update={"iceberg": True, "iceberg_catalog": "lake"})


def test_tables_in_a_store_are_iceberg_tables_there(settings):
    pipeline = Pipeline(settings, no_spark)
    silver = pipeline.lakehouse.table("silver_rummy_events")
    put(silver, some(1))
    put(silver, some(2))
    report = run_ended(pipeline)
    assert report.part(IcebergResult).to_dict() == {"tables": 1, "added": 2, "removed": 0, "failed": {}, "refused": {}}
    held = iceberg_table(pipeline, silver)
    assert held.metadata_location.startswith(f"{silver.uri}/_iceberg/")
    assert len(rows_in_iceberg(held)) == 2

    again = Pipeline(settings, no_spark)
    assert run_ended(again).part(IcebergResult) is None
    join_files(silver, silver.open(), paths(silver.open()))
    assert run_ended(again).part(IcebergResult).removed == 2
    assert len(rows_in_iceberg(iceberg_table(pipeline, silver), "s = 's2'")) == 1
    assert "1 of 1 tables are in Iceberg" in doctor(settings)["iceberg"]()
    assert [table.name for table in map(pipeline.lakehouse.table, pipeline.lakehouse.names())] == [silver.name]


def test_a_store_without_a_catalog_by_name_is_explained_and_fails_no_run(settings):
    pipeline = Pipeline(settings.model_copy(update={"iceberg_catalog": None}), no_spark)
    put(pipeline.lakehouse.table("silver_rummy_events"), some(1))
    report = run_ended(pipeline)
    assert report.success
    assert "GAME_EVENTS_ICEBERG_CATALOG" in report.notices[0]
    with pytest.raises(ConfigurationError, match="ICEBERG_CATALOG"):
        doctor(pipeline.settings)["iceberg"]()
