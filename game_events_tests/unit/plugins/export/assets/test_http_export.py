"""The asset `rest_export`: there only with a receiver, behind the layer that it exports, asked for when that has news."""

import dagster as dg
import pytest

from game_events.config.settings import load_settings
from game_events.definitions import build_defs
from game_events_tests.support.keys import EXPORT_KEY, GOLD_KEY, SILVER_KEY

URL = "http://127.0.0.1:1/planted-token-51c2"


def defs(**settings):
    return build_defs(load_settings(kafka_topic="game_events", **settings))


def test_without_a_receiver_there_is_no_asset_no_job_and_no_sensor():
    found = defs()
    assert EXPORT_KEY not in found.resolve_asset_graph().get_all_asset_keys()
    assert "rest_export" not in {job.name for job in found.jobs or ()}
    assert "rest_automation" not in {sensor.name for sensor in found.sensors or ()}


@pytest.mark.parametrize(("source", "upstream"), [("silver", SILVER_KEY), ("gold", GOLD_KEY)])
def test_with_a_receiver_it_is_behind_the_layer_that_it_exports_and_shows_no_address(source, upstream):
    found = defs(rest_url=URL, rest_source=source)
    graph = found.resolve_asset_graph()
    assert graph.get(EXPORT_KEY).parent_keys == {upstream}
    assert found.resolve_job_def("rest_export").executor_def is dg.in_process_executor
    (sensor,) = [s for s in found.sensors if s.name == "rest_automation"]
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
    assert "planted" not in str(graph.get(EXPORT_KEY).metadata) + str(graph.get(EXPORT_KEY).description)


def test_dagsters_processes_can_load_the_project_with_it():
    repository = defs(rest_url=URL).get_repository_def()
    assert "rest_export" in {job.name for job in repository.get_all_jobs()}


def test_it_is_asked_for_once_when_its_layer_was_updated_whoever_did_it():
    found, instance, cursor = defs(rest_url=URL), dg.DagsterInstance.ephemeral(), None
    instance.add_dynamic_partitions("games", ["uno"])

    def asked():
        nonlocal cursor
        result = dg.evaluate_automation_conditions(
            found, instance, cursor=cursor, asset_selection=dg.AssetSelection.assets(EXPORT_KEY)
        )
        cursor = result.cursor
        return result.get_num_requested(EXPORT_KEY)

    asked()
    assert asked() == 0
    for _ in range(2):
        instance.report_runless_asset_event(dg.AssetMaterialization(SILVER_KEY, partition="uno"))
        assert asked() == 1
        assert asked() == 0
    # News right after an export, before automation looks again.
    instance.report_runless_asset_event(dg.AssetMaterialization(EXPORT_KEY))
    instance.report_runless_asset_event(dg.AssetMaterialization(SILVER_KEY, partition="uno"))
    assert asked() == 1
    assert asked() == 0
    instance.report_runless_asset_event(dg.AssetMaterialization(GOLD_KEY, partition="uno"))
    assert asked() == 0, "gold is not what is exported"
