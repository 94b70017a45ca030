"""What Dagster is told: without a broker, a registry or Spark."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import serialize_value

from game_events.cli.dagster_run import dagster_file
from game_events.config.settings import load_settings
from game_events.definitions import build_defs
from game_events_tests.support.fixtures.dagster import INSTANCE, PROJECT
from game_events_tests.support.keys import BRONZE_KEY, GOLD_KEY, LAYER_KEYS, QUARANTINE_KEY, SILVER_KEY, UNIFIED_KEY

TOPIC = dg.AssetKey(["kafka", "game_events"])
SUBJECT = dg.AssetKey(["schema_registry", "game_events-value"])
OPERATIONS = {dg.AssetKey("event_log"), dg.AssetKey("schemas"), dg.AssetKey("status")}
TABLES = [BRONZE_KEY, QUARANTINE_KEY, SILVER_KEY, GOLD_KEY, UNIFIED_KEY]


@pytest.fixture(scope="module")
def graph():
    return build_defs(load_settings(kafka_topic="game_events")).resolve_asset_graph()


@pytest.fixture(scope="module")
def foreign_folder(tmp_path_factory):
    """A folder with nothing but workspace.yaml, and no stack running."""
    folder = tmp_path_factory.mktemp("elsewhere")
    shutil.copyfile(INSTANCE / "workspace.yaml", folder / "workspace.yaml")
    (folder / "dagster").mkdir()
    return folder


def test_the_graph_has_the_topic_the_subject_one_asset_for_each_layer_and_the_tables_about_the_pipeline(graph):
    assert graph.get_all_asset_keys() == {TOPIC, SUBJECT, *TABLES, *OPERATIONS}
    assert set(LAYER_KEYS.values()) == set(TABLES)
    assert {key for key in graph.get_all_asset_keys() if graph.get(key).is_external} == {TOPIC, SUBJECT, *OPERATIONS}


def test_lineage_goes_from_topic_and_subject_over_bronze_and_silver_to_gold_and_the_unified_table(graph):
    parents = {key: graph.get(key).parent_keys for key in graph.get_all_asset_keys()}
    assert parents == {
        TOPIC: set(),
        SUBJECT: set(),
        BRONZE_KEY: {TOPIC, SUBJECT},
        QUARANTINE_KEY: {TOPIC, SUBJECT},
        SILVER_KEY: {BRONZE_KEY},
        GOLD_KEY: {SILVER_KEY},
        UNIFIED_KEY: {GOLD_KEY},
        dg.AssetKey("event_log"): {UNIFIED_KEY},
        dg.AssetKey("schemas"): {TOPIC, SUBJECT},
        dg.AssetKey("status"): {UNIFIED_KEY},
    }


def test_silver_and_gold_have_the_games_as_dynamic_partitions_and_do_any_number_of_them_in_one_run(graph):
    for key in (SILVER_KEY, GOLD_KEY):
        node = graph.get(key)
        assert isinstance(node.partitions_def, dg.DynamicPartitionsDefinition)
        assert node.partitions_def.name == "games"
        assert node.backfill_policy == dg.BackfillPolicy.single_run()
    for key in (BRONZE_KEY, QUARANTINE_KEY, UNIFIED_KEY):
        assert graph.get(key).partitions_def is None


def test_every_asset_says_what_it_is_who_owns_it_and_where_it_stands(graph):
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert len(node.description) > 30, key
        assert node.owners == ["team:data-engineering"], key
        assert node.kinds, key
    groups = {key.path[-1]: graph.get(key).group_name for key in graph.get_all_asset_keys()}
    assert groups == {
        "game_events": "sources",
        "game_events-value": "sources",
        "bronze_events": "bronze",
        "quarantine_events": "bronze",
        "silver_events": "silver",
        "gold_player_agg": "gold",
        "gold_unified_player_agg": "gold",
        "event_log": "operations",
        "schemas": "operations",
        "status": "operations",
    }
    assert graph.get(TOPIC).kinds == {"kafka"}
    assert all({"spark", "deltalake"} <= graph.get(key).kinds for key in TABLES)


def test_the_names_of_topic_and_subject_follow_the_settings():
    graph = build_defs(load_settings(kafka_topic="other.topic-1")).resolve_asset_graph()
    external = {key for key in graph.get_all_asset_keys() if graph.get(key).is_external}
    assert external - OPERATIONS == {
        dg.AssetKey(["kafka", "other.topic-1"]),
        dg.AssetKey(["schema_registry", "other.topic-1-value"]),
    }


def test_each_layer_has_one_pool_and_nothing_starts_a_process_for_each_step(graph):
    defs = build_defs()
    pools = {key.path[-1]: graph.get(key).pools for key in TABLES}
    assert pools == {
        "bronze_events": {"bronze"},
        "quarantine_events": {"bronze"},
        "silver_events": {"silver"},
        "gold_player_agg": {"gold"},
        "gold_unified_player_agg": {"gold"},
    }
    assert defs.executor is dg.in_process_executor
    assert defs.resolve_job_def("refresh").executor_def.name == dg.in_process_executor.name


def test_every_check_belongs_to_its_asset_and_those_that_find_wrong_rows_block():
    defs = build_defs()
    graph = defs.resolve_asset_graph()
    found = {key.name: (key.asset_key, graph.get_check_spec(key).blocking) for key in graph.asset_check_keys}
    assert found == {
        "offsets_continuous": (BRONZE_KEY, True),
        "offsets_unique": (BRONZE_KEY, True),
        "offsets_lost": (BRONZE_KEY, False),
        "fresh": (BRONZE_KEY, False),
        "schema_drift": (BRONZE_KEY, False),
        "tables_registered": (BRONZE_KEY, False),
        "iceberg_is_current": (BRONZE_KEY, False),
        "grants_hold": (BRONZE_KEY, False),
        "rows_conserved": (SILVER_KEY, True),
        "volume": (SILVER_KEY, False),
        "keys_and_times_known": (GOLD_KEY, False),
        "gold_equals_recompute": (GOLD_KEY, True),
        "all_is_well": (dg.AssetKey("status"), False),
    }
    job = defs.resolve_job_def("checks")
    assert {node.name for node in job.nodes} == {
        f"{key.asset_key.path[-1]}_{key.name}" for key in graph.asset_check_keys if key.name != "all_is_well"
    }
    assert job.executor_def is dg.in_process_executor
    schedule = defs.resolve_schedule_def("daily_checks")
    assert (schedule.job_name, schedule.default_status) == ("checks", dg.DefaultScheduleStatus.RUNNING)


def test_every_sensor_runs_from_the_start_and_is_in_the_document():
    document = (PROJECT / "docs" / "automation.md").read_text()
    for sensor in build_defs().sensors:
        assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
        assert f"| `{sensor.name}` | {sensor.minimum_interval_seconds} s |" in document
        assert len(sensor.description) > 30
    for name in ("kafka_lag", "schema_versions"):
        targets = build_defs().resolve_sensor_def(name).targets
        assert [target.job_name for target in targets] == ["refresh"], "the one that it starts"


def test_the_instance_of_the_project_is_what_its_file_says(tmp_path):
    shutil.copyfile(INSTANCE / "dagster.yaml", tmp_path / "dagster.yaml")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert type(instance.run_coordinator).__name__ == "QueuedRunCoordinator"
        assert instance.get_concurrency_config().pool_config.default_pool_limit == 1
        assert instance.run_monitoring_enabled
        assert (instance.run_retries_enabled, instance.run_retries_max_retries) == (True, 0)
        for kind in InstigatorType:
            assert {status.value: days for status, days in instance.get_tick_retention_settings(kind).items()} == {
                "STARTED": 7,
                "SKIPPED": 1,
                "SUCCESS": 7,
                "FAILURE": 7,
            }


def test_without_files_of_its_own_a_folder_gets_those_of_the_package(foreign_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert dagster_file("dagster.yaml") == INSTANCE / "dagster.yaml"
    monkeypatch.chdir(foreign_folder)
    assert dagster_file("workspace.yaml") == foreign_folder / "workspace.yaml"


# Dagster 1.13 reads a deprecated property of every schedule.
@pytest.mark.filterwarnings("ignore:Property `ScheduleDefinition.environment_vars`:DeprecationWarning")
def test_no_setting_becomes_dagster_configuration_where_the_ui_would_show_it(monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_SPARK_CONF", '{"spark.hadoop.fs.s3a.secret.key": "planted-7f3a"}')
    monkeypatch.setenv("GAME_EVENTS_SCHEMA_REGISTRY_PASSWORD", "planted-7f3a")
    # What a code server sends to the webserver: everything the UI can show of the definitions.
    sent = serialize_value(RepositorySnap.from_def(build_defs().get_repository_def()))
    assert "gold_unified_player_agg" in sent
    assert "planted" not in sent


def test_the_definitions_load_without_a_single_warning(foreign_folder):
    code = "from game_events.definitions import defs; defs().get_repository_def().load_all_definitions()"
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=foreign_folder, capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.scenario
def test_dagster_itself_accepts_the_workspace_from_a_folder_where_no_stack_runs(foreign_folder):
    environment = os.environ | {"DAGSTER_HOME": str(foreign_folder / "dagster"), "GAME_EVENTS_STATE_DIR": str(foreign_folder)}
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"]
    found = subprocess.run(command, cwd=foreign_folder, env=environment, capture_output=True, text=True, check=False)
    said = found.stdout + found.stderr
    assert found.returncode == 0, said
    assert "Validation successful for code location game_events" in said
    ours = [line for line in said.splitlines() if "arning" in line and "definitions_validate_command" not in line]
    assert ours == []


@pytest.mark.scenario
def test_dagsters_commands_find_the_project_in_its_folder(tmp_path):
    """`pyproject.toml` names the module, so that neither a workspace nor an option is needed."""
    environment = os.environ | {"DAGSTER_HOME": str(tmp_path), "GAME_EVENTS_STATE_DIR": str(tmp_path)}

    def dg_command(*words):
        command = [Path(sys.executable).with_name("dg"), *words]
        found = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    assert "All definitions loaded successfully" in dg_command("check", "defs")
    listed = json.loads(dg_command("list", "defs", "--json"))
    assert {"refresh", "continuous"} <= {job["name"] for job in listed["jobs"]}
    assert {"kafka_lag", "dead_runs"} <= {sensor["name"] for sensor in listed["sensors"]}
