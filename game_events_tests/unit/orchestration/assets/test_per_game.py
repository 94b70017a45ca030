"""Aggregates of one's own in Dagster: in the graph, by run, by hand."""

from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from game_events.config.settings import load_settings
from game_events.definitions import build_defs
from game_events.errors import ConfigurationError
from game_events_tests.support.fixtures.dagster import RANGE, logged, materializations
from game_events_tests.support.keys import SILVER_KEY
from game_events_tests.support.worlds.own_module import DEVICES, MEDIAN, extension

DEVICES_KEY, MEDIAN_KEY = dg.AssetKey(["gold_devices"]), dg.AssetKey(["gold_median_hour"])


def test_each_has_an_asset_below_silver_with_the_same_partitions(tmp_path):
    path = extension(tmp_path, DEVICES, MEDIAN)
    graph = build_defs(load_settings(extensions=(path,))).resolve_asset_graph()
    for key in (DEVICES_KEY, MEDIAN_KEY):
        node = graph.get(key)
        assert node.parent_keys == {SILVER_KEY}
        assert node.partitions_def.name == "games"
        assert node.group_name == "gold"
        assert node.pools == {"gold"}
    assert "Events of each player on each device." in graph.get(DEVICES_KEY).description
    assert f"Declared in {path}:" in graph.get(MEDIAN_KEY).description


def test_its_page_opens_the_line_that_declares_it_and_an_edit_is_another_code_version(tmp_path):
    def node(declaration):
        path = extension(tmp_path, declaration)
        return path, build_defs(load_settings(extensions=(path,))).resolve_asset_graph().get(DEVICES_KEY)

    path, first = node(DEVICES)
    (source,) = first.metadata["dagster/code_references"].code_references
    assert source.file_path == path
    assert "@gold_aggregate" in Path(path).read_text().splitlines()[source.line_number - 1]
    _, same = node(DEVICES.replace("Events of each", "All events of each"))
    _, other = node(DEVICES.replace("% 2", "% 3"))
    assert first.code_version == same.code_version != other.code_version


def test_one_of_some_games_has_these_as_its_partitions_and_is_made_from_their_silver(tmp_path):
    path = extension(tmp_path, DEVICES.replace("keys=", 'games=["spades", "rummy"], keys='))
    definitions = build_defs(load_settings(extensions=(path,)))
    dg.Definitions.validate_loadable(definitions)
    node = definitions.resolve_asset_graph().get(DEVICES_KEY)
    assert node.partitions_def.get_partition_keys() == ["rummy", "spades"]
    assert node.partition_mappings[SILVER_KEY].partition_keys == ["rummy", "spades"]
    assert node.backfill_policy == dg.BackfillPolicy.single_run()


def test_a_module_that_cannot_be_loaded_fails_the_definitions_with_its_name_and_line(tmp_path):
    path = extension(tmp_path, "raise RuntimeError('not today')")
    with pytest.raises(ConfigurationError, match=rf"{path}.*:5: RuntimeError: not today"):
        build_defs(load_settings(extensions=(path,)))


# Dagster 1.13 calls its own deprecated property for every nested resource.
@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
@pytest.mark.parametrize("full", [False, True])
def test_a_partition_with_a_name_that_no_game_has_fails_alone_and_opens_no_table(instance, tmp_path, full):
    (tmp_path / "files").mkdir()
    table = pa.table({"secret": [1, 2, 3]})
    for folder in ("lakehouse/silver_rummy_events", "elsewhere/t_events"):
        write_deltalake(tmp_path / folder, table)
    settings = load_settings(source="files", files_path=str(tmp_path / "files"), lakehouse=str(tmp_path / "lakehouse"))
    # Somebody who may use Dagster's UI added it: the path leads out of the lakehouse.
    way_out = "rummy_events/../../elsewhere/t"
    instance.add_dynamic_partitions("games", ["rummy", way_out])
    result = (
        build_defs(settings)
        .resolve_implicit_global_asset_job_def()
        .execute_in_process(
            instance=instance,
            asset_selection=[SILVER_KEY],
            tags={f"{RANGE}start": "rummy", f"{RANGE}end": way_out},
            run_config={"ops": {"silver_events": {"config": {"full_refresh": full}}}},
            raise_on_error=False,
        )
    )
    assert not result.success
    (failed,) = [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_FAILURE]
    said = failed.step_failure_data.user_failure_data.description
    assert said.startswith(f"1 tables failed: {way_out}: no game may have this name")
    assert logged(result) == {("silver_events", "rummy"): 1}
    assert "secret" not in str([m.metadata for m in materializations(result) if m.partition != "rummy"])
