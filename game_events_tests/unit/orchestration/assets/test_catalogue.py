"""What a person who lands on an asset's page finds: where the data is, how to read it, which tables there are; no service."""

import re
from pathlib import Path

import dagster as dg
import pytest

from game_events.config.settings import load_settings
from game_events.definitions import build_defs
from game_events.errors import ConfigurationError
from game_events.lakehouse.system_tables import EVENT_LOG_SCHEMA
from game_events_tests.support.keys import EXPORT_KEY, GOLD_KEY, SILVER_KEY, UNIFIED_KEY
from game_events_tests.support.worlds.own_module import DEVICES, extension


@pytest.fixture
def graph(tmp_path):
    """A pipeline with an aggregate of one's own and an export."""
    settings = load_settings(
        lakehouse=str(tmp_path / "lake"), extensions=(extension(tmp_path, DEVICES),), rest_url="http://127.0.0.1:1/token"
    )
    return build_defs(settings).resolve_asset_graph()


@pytest.mark.parametrize(
    ("key", "table"),
    [
        (SILVER_KEY, "silver_{game}_events"),
        (GOLD_KEY, "gold_{game}_player_agg"),
        (dg.AssetKey("gold_devices"), "gold_{game}_devices"),
        (UNIFIED_KEY, "gold_unified_player_agg"),
        (dg.AssetKey("event_log"), "event_log"),
    ],
)
def test_each_table_says_its_name_its_place_and_the_sql_that_reads_it(graph, tmp_path, key, table):
    node = graph.get(key)
    assert node.metadata["dagster/table_name"] == table
    assert node.metadata["dagster/uri"] == str(tmp_path / "lake" / table)
    assert f"```sql\nSELECT * FROM {table} LIMIT 10\n```" in node.description


def test_the_page_of_each_asset_opens_the_code_that_makes_its_rows(graph):
    made = {key: graph.get(key).metadata.get("dagster/code_references") for key in graph.materializable_asset_keys}
    places = {key.path[-1]: Path(found.code_references[0].file_path).name for key, found in made.items()}
    assert places["silver_events"] == "refresh.py"
    assert places["gold_unified_player_agg"] == "unified.py"
    assert places["gold_devices"].startswith("mine_")


def test_tables_about_the_pipeline_have_their_columns_with_what_they_mean(graph):
    columns = graph.get(dg.AssetKey("event_log")).metadata["dagster/column_schema"].columns
    assert [column.name for column in columns] == EVENT_LOG_SCHEMA.names
    assert all(column.description for column in columns)
    assert {column.name: column.type for column in columns}["rows"] == "bigint"
    failed = graph.get(dg.AssetKey("export_failed_calls"))
    assert failed.group_name == "operations"
    assert {"json", "status", "answer"} <= {column.name for column in failed.metadata["dagster/column_schema"].columns}


def test_the_receiver_of_the_export_is_behind_it_without_its_address(graph):
    receiver = graph.get(dg.AssetKey("rest_receiver"))
    assert receiver.parent_keys == graph.get(dg.AssetKey("export_failed_calls")).parent_keys == {EXPORT_KEY}
    assert not re.search("127|token", f"{receiver.description}{receiver.metadata}")


def test_with_files_as_the_source_the_list_of_files_is_behind_the_folder(tmp_path):
    graph = build_defs(load_settings(source="files", files_path=str(tmp_path))).resolve_asset_graph()
    assert {key.path[0] for key in graph.get(dg.AssetKey("source_files")).parent_keys} == {"files"}


def test_tags_of_a_layer_are_those_of_its_assets_and_a_pipelines_own_tables_have_theirs(tmp_path):
    tags = {"all": {"domain": "play"}, "gold": {"pii": "no"}, "own": {"internal": "yes"}}
    graph = build_defs(load_settings(tags=tags, owners=("team:play",), lakehouse=str(tmp_path))).resolve_asset_graph()
    assert {"domain": "play", "pii": "no"}.items() <= graph.get(GOLD_KEY).tags.items()
    assert "pii" not in graph.get(SILVER_KEY).tags
    assert {"domain": "play", "internal": "yes"}.items() <= graph.get(dg.AssetKey("event_log")).tags.items()
    assert graph.get(dg.AssetKey(["kafka", "game_events"])).owners == ["team:play"]


@pytest.mark.parametrize("owner", ["data@host.internal", "ü@example.com", "a@b.c", "+a@example.com", "a@ex ample.com", "team:"])
def test_an_owner_that_dagster_would_refuse_is_a_bad_setting_and_not_a_project_that_does_not_load(owner, tmp_path):
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_OWNERS"):
        load_settings(owners=(owner,), lakehouse=str(tmp_path))


@pytest.mark.parametrize("owner", ["team:data/eu", "a.b+c@ex-ample.co.uk", "_a%1@example.company", "ab-@example.com"])
def test_an_owner_that_the_settings_take_loads(owner, tmp_path):
    graph = build_defs(load_settings(owners=(owner,), lakehouse=str(tmp_path))).resolve_asset_graph()
    assert graph.get(GOLD_KEY).owners == [owner]
