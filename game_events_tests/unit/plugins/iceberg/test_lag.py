"""Who asks how far Iceberg is: the command, `doctor`, and the check."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import Lakehouse
from game_events.plugins.iceberg.catalog import store_options
from game_events.plugins.iceberg.lag import doctor, iceberg_is_current
from game_events_tests.support.altered_tables import altered
from game_events_tests.support.iceberg import iceberg_table, run_ended
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put

ROWS = pa.table({"_batch": pa.array([1], pa.int64())})


def found(pipeline):
    return doctor(pipeline.settings)["iceberg"]()


def test_the_check_and_doctor_say_which_tables_are_behind(pipeline, silver):
    put(silver, ROWS)
    assert found(pipeline) == (
        "0 of 1 tables are in Iceberg as they are in Delta; behind, until the next run: silver_rummy_events (none of 0)"
    )
    assert not Path(pipeline.lakehouse.root, "_iceberg").exists()
    assert not iceberg_is_current(pipeline).passed
    run_ended(pipeline)
    assert found(pipeline) == "1 of 1 tables are in Iceberg as they are in Delta"
    assert iceberg_is_current(pipeline).passed
    put(silver, ROWS)
    result = iceberg_is_current(pipeline)
    assert not result.passed
    assert not result.wrong_rows
    assert "silver_rummy_events (0 of 1)" in result.summary


def test_a_table_that_iceberg_cannot_have_is_named_and_is_not_behind(pipeline, silver):
    put(silver, ROWS)
    altered(silver, features=["typeWidening"], reader=["typeWidening"])
    assert "cannot be Iceberg tables: silver_rummy_events: the Delta table has features" in found(pipeline)
    assert iceberg_is_current(pipeline).passed


def test_a_table_whose_state_cannot_be_found_says_why_and_hides_no_other(cli, pipeline, silver, monkeypatch):
    broken = pipeline.lakehouse.table("silver_broken_events")
    for table in (silver, broken):
        put(table, ROWS)
    run_ended(pipeline)
    usual = SqlCatalog.load_table

    def failing(catalog, identifier):
        if identifier[-1] == broken.name:
            raise OSError("the store says no")
        return usual(catalog, identifier)

    monkeypatch.setattr(SqlCatalog, "load_table", failing)
    why = "OSError: the store says no"
    assert "1 of 2 tables" in found(pipeline)
    assert f"silver_broken_events (none of ?: {why})" in found(pipeline)
    assert iceberg_is_current(pipeline).counts == {"tables": 2, "behind": 1, "refused": 0}
    monkeypatch.setenv("GAME_EVENTS_LAKEHOUSE", pipeline.lakehouse.root)
    monkeypatch.setenv("GAME_EVENTS_ICEBERG", "on")
    assert [table["error"] for table in cli("iceberg", "--json").result["tables"]] == [why, None]
    assert why in cli("iceberg").out


def test_a_table_of_another_lakehouse_in_the_catalog_is_named_and_hides_no_other(pipeline, silver, tmp_path):
    put(silver, ROWS)
    run_ended(pipeline)
    other = without_spark(tmp_path / "other", iceberg=True)
    shutil.copytree(Path(pipeline.lakehouse.root, "_iceberg"), Path(other.lakehouse.root, "_iceberg"))
    for name in (silver.name, "silver_own_events"):
        put(other.lakehouse.table(name), ROWS)
    run_ended(other)
    assert "1 of 2 tables" in found(other)
    assert "GAME_EVENTS_ICEBERG_NAMESPACE" in found(other)


def test_a_table_that_others_have_committed_to_is_behind(pipeline, silver):
    put(silver, ROWS)
    run_ended(pipeline)
    iceberg_table(pipeline, silver).append(ROWS)
    assert not iceberg_is_current(pipeline).passed


def test_where_it_is_off_nothing_is_asked(tmp_path):
    off = without_spark(tmp_path)
    assert doctor(off.settings) == {}
    assert iceberg_is_current(off).passed


def test_an_object_store_needs_a_catalog_by_name():
    settings = load_settings(lakehouse="s3://bucket/lake", iceberg=True)
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_ICEBERG_CATALOG"):
        doctor(settings)["iceberg"]()


def test_a_catalog_that_is_not_configured_is_explained(tmp_path):
    settings = load_settings(lakehouse=str(tmp_path), iceberg=True, iceberg_catalog="nowhere")
    with pytest.raises(ConfigurationError, match="PYICEBERG_CATALOG__NOWHERE__TYPE"):
        doctor(settings)["iceberg"]()


@pytest.mark.parametrize("name", ["a#b", "a?b"])
def test_a_folder_at_whose_name_readers_would_cut_the_address_off_is_refused(tmp_path, name):
    settings = load_settings(lakehouse=str(tmp_path / name), iceberg=True)
    with pytest.raises(ConfigurationError, match="cut addresses off"):
        doctor(settings)["iceberg"]()


def test_the_stores_place_is_told_to_pyiceberg_and_no_secret(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "geheim")
    settings = load_settings(lakehouse="s3://bucket/lake", storage_endpoint="http://127.0.0.1:9000")
    assert store_options(settings) == {
        "s3.endpoint": "http://127.0.0.1:9000",
        "s3.force-virtual-addressing": "false",
        "s3.region": "us-east-1",
    }
    assert store_options(load_settings(lakehouse="/lake")) == {}


def test_the_command_shows_and_catches_up(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("GAME_EVENTS_LAKEHOUSE", str(tmp_path))
    silver = Lakehouse(str(tmp_path)).table("silver_rummy_events")
    put(silver, ROWS)
    refused = cli("iceberg", "--sync")
    assert refused.code == 1
    monkeypatch.setenv("GAME_EVENTS_ICEBERG", "on")
    before = cli("iceberg", "--json").result
    assert [(t["table"], t["delta"], t["iceberg"]) for t in before["tables"]] == [("silver_rummy_events", 0, None)]
    after = cli("iceberg", "--sync", "--json").result
    (table,) = after["tables"]
    assert (table["iceberg"], table["snapshots"]) == (0, 1)
    assert json.loads(Path(table["metadata"].removeprefix("file://")).read_text())["format-version"] == 2
