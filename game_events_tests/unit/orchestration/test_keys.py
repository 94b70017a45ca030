"""Assets of another domain: their names come from its settings, and all that speaks of them agrees."""

import re

import dagster as dg
import pytest

from game_events.config.names import Names
from game_events.config.settings import load_settings
from game_events.definitions import build_defs
from game_events.orchestration.events import table_metadata
from game_events.orchestration.keys import DEFAULT, Keys
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import TableReport
from game_events.pipeline.runs.refresh import selection_of
from game_events.plugins.local.demo import CONFIG, use_example

#: Beginnings of the names of assets and tables.
LAYERS = ("bronze_", "quarantine_", "silver_", "gold_")
OWN = '''
from game_events.extending import count, gold_aggregate


@gold_aggregate("by_type", keys=["device_type"])
def by_type():
    """Readings by type."""
    return {"readings": count()}
'''


@pytest.fixture
def iot(monkeypatch, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.setenv(CONFIG, "")  # and back, after the test
    use_example("iot")
    rules = [{"name": "warm", "sql": "max_temperature > 0", "layer": "gold"}]
    return load_settings(
        lakehouse=str(tmp_path / "lake"),
        extensions=(str(tmp_path / "own.py"),),
        rules=rules,
        names={"prefix": "dev_", **load_settings().names.model_dump(exclude={"prefix"})},
    )


def test_the_graph_of_another_domain_has_its_names_and_none_of_the_games(iot):
    graph = build_defs(iot).resolve_asset_graph()
    names = {"/".join(key.path) for key in graph.get_all_asset_keys()}
    ours = {"dev_bronze_readings", "dev_quarantine_readings", "dev_silver_readings", "dev_gold_devices"}
    ours |= {"dev_gold_unified_devices", "dev_gold_by_type"}
    assert ours <= names
    assert not [name for name in names if re.search(r"player|game|_events", name)]
    said = " ".join(graph.get(key).description for key in graph.get_all_asset_keys())
    assert "for each site. One row per device: readings, first_seen" in said
    assert not re.search(r"\b(game|player|gamer)s?\b(?!-events)", said), "but the command's name"
    keys = Keys.of(iot)
    assert keys.layer("gold:by_type").path == ["dev_gold_by_type"]
    for layer in ("silver", "gold", "gold:by_type"):
        assert graph.get(keys.layer(layer)).partitions_def == keys.partitions
    assert keys.partitions.name == "dev_sites"
    assert graph.get(keys.unified).parent_keys == {keys.gold}
    checked = {check.asset_key for check in graph.asset_check_keys}
    assert checked <= {*keys.by_layer.values(), dg.AssetKey(keys.named("status"))}
    assert any(check.name == "rule_warm" and check.asset_key == keys.gold for check in graph.asset_check_keys)


def test_each_part_of_a_run_may_be_selected_by_its_name(iot):
    pipeline = Pipeline(iot, lambda: pytest.fail("Spark was started"))
    for words, layers in (
        (["dev_bronze_readings"], {"bronze"}),
        (["dev_silver_readings", "dev_gold_devices"], {"silver", "gold"}),
        (["dev_gold_unified_devices", "dev_gold_by_type"], {"unified", "gold:by_type"}),
    ):
        assert set(selection_of(pipeline, select=words).update) == layers
    with pytest.raises(Exception, match=r"dev_silver_\{site\}_readings, dev_gold_\{site\}_devices, dev_gold_\{site\}_by_type"):
        selection_of(pipeline, select=["silver_events"])


def test_no_table_and_no_asset_takes_the_name_of_a_job_or_an_op():
    repository = build_defs(load_settings(rest_url="http://127.0.0.1:1")).get_repository_def()
    jobs = [job for job in repository.get_all_jobs() if job.name != "__ASSET_JOB"]
    # Nodes of checks and of assets have the layer's name in front, as assets have.
    ops = {n.name for job in jobs for n in job.all_node_defs if not n.name.startswith(LAYERS)}
    assert {"archive_raw_records", "look_after_tables", "export_new_rows"} <= ops
    assert all(keys.path[0].startswith(LAYERS) for keys in DEFAULT.by_layer.values())
    assert not [name for name in {job.name for job in jobs} | ops if name.startswith(LAYERS)]


def test_without_settings_the_names_are_those_that_they_always_were():
    assert {layer: key.path for layer, key in DEFAULT.by_layer.items()} == {
        "bronze": ["bronze_events"],
        "quarantine": ["quarantine_events"],
        "silver": ["silver_events"],
        "gold": ["gold_player_agg"],
        "unified": ["gold_unified_player_agg"],
    }
    assert DEFAULT.partitions.name == "games"
    assert Keys(Names()).layer("gold:devices").path == ["gold_devices"]


def test_a_table_in_a_catalog_has_one_name_in_its_asset_and_in_what_each_run_says_of_it(tmp_path):
    settings = load_settings(lakehouse=str(tmp_path), catalog="lake.games")
    keys = Keys.of(settings)
    asset = build_defs(settings).resolve_asset_graph().get(keys.bronze)
    told = table_metadata(TableReport("bronze", "bronze_events", ""), RunReport(), keys)
    assert told["dagster/table_name"] == asset.metadata["dagster/table_name"] == "lake.games.bronze_events"
