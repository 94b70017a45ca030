"""Topics, and another pipeline's table, in the asset graph; no service."""

from __future__ import annotations

import dagster as dg
import pytest

from game_events.config.settings import load_settings
from game_events.definitions import build_defs
from game_events.orchestration.assets import source_assets
from game_events.orchestration.resources import Graph
from game_events.orchestration.sensors import PARTITIONS_SHOWN, Memory, lag_events
from game_events.pipeline.runs.pending import PipelineLag
from game_events.sources.source import SourceSnapshot
from game_events_tests.support.keys import BRONZE_KEY
from game_events_tests.support.offsets import splits

LIST = load_settings(kafka_topic="events,matches")
PATTERN = load_settings(kafka_topic_pattern="events|matches")
TABLE = load_settings(source_table="/lake/team_a/bronze_events")
FOLDER = load_settings(source="files", files_path="/landing/team_a/events")
PREFIX = load_settings(source="files", files_path="s3://landing", files_format="jsonl", files_schema="subject:events-value")


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        (
            LIST,
            [
                ["kafka", "events"],
                ["schema_registry", "events-value"],
                ["kafka", "matches"],
                ["schema_registry", "matches-value"],
            ],
        ),
        (load_settings(kafka_assign={"events": [1]}), [["kafka", "events"], ["schema_registry", "events-value"]]),
        (PATTERN, [["kafka", "topics_by_pattern"], ["schema_registry", "subjects_by_pattern"]]),
        (TABLE, [["delta", "team_a", "bronze_events"]]),
        (FOLDER, [["files", "team_a", "events"]]),
        (PREFIX, [["files", "landing"], ["schema_registry", "events-value"]]),
    ],
    ids=["list", "partitions", "pattern", "table", "folder", "prefix"],
)
def test_bronze_is_made_from_each_topic_and_subject_one_for_all_of_a_pattern_or_the_table_or_files(settings, keys):
    wanted = [dg.AssetKey(key) for key in keys]
    assert [spec.key for spec in source_assets(Graph.of(settings))] == wanted
    graph = build_defs(settings).resolve_asset_graph()
    assert graph.get(BRONZE_KEY).parent_keys == set(wanted)


def test_lag_is_told_of_each_topic_and_of_all_together_with_a_pattern():
    latest = splits("events", "one", {0: 10, 1: 5}) | splits("matches", "two", {0: 7})
    lag = {split: end - 1 for split, end in latest.items()}
    lagging = PipelineLag("", SourceSnapshot(dict.fromkeys(latest, 0), latest), dict.fromkeys(latest, 1), lag)
    memory = Memory()
    events = lag_events(LIST, lagging, memory, 100.0)
    seen = {e.asset_key.path[-1]: (e.metadata["lag"].value, e.metadata["topic_id"].value) for e in events}
    assert seen == {"events": (13, "one"), "matches": (6, "two")}
    assert lag_events(LIST, lagging, memory, 200.0) == [], "nothing has changed"
    (event,) = lag_events(PATTERN, lagging, Memory(), 100.0)
    rows = [(r.data["topic"], r.data["partition"], r.data["lag"]) for r in event.metadata["offsets"].records]
    assert rows == [("events", 0, 9), ("matches", 0, 6), ("events", 1, 4)], "most lag first"


def test_what_is_left_of_files_is_told_of_their_folder():
    latest = splits("/landing/team_a/events", "one", {0: 10})
    lagging = PipelineLag(
        "", SourceSnapshot(dict.fromkeys(latest, 0), latest), dict.fromkeys(latest, 1), dict.fromkeys(latest, 9)
    )
    (event,) = lag_events(FOLDER, lagging, Memory(), 100.0)
    assert event.asset_key == dg.AssetKey(["files", "team_a", "events"])
    assert build_defs(FOLDER).resolve_asset_graph().has(event.asset_key)


def test_a_source_has_the_kind_of_its_format_where_the_settings_say_it_and_none_that_is_a_guess():
    def kinds(settings):
        return [spec.kinds for spec in source_assets(Graph.of(settings))]

    assert kinds(LIST)[:2] == [{"kafka"}, {"schema_registry"}]
    assert kinds(FOLDER) == [{"file"}]
    assert kinds(PREFIX)[0] == {"file", "json"}


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        (
            load_settings(source="files", files_path="/landing/Ereignisse für BI/2026 (raw)"),
            [["files", "Ereignisse_f_r_BI", "2026__raw_"]],
        ),
        (
            load_settings(source="files", files_path="s3://landing", files_schema="subject:game events-value"),
            [["files", "landing"], ["schema_registry", "game_events-value"]],
        ),
        (load_settings(source_table="/lake/team a/bronze_events"), [["delta", "team_a", "bronze_events"]]),
    ],
    ids=["folder", "subject", "table"],
)
def test_a_place_or_subject_with_characters_that_dagster_does_not_take_loads_all_the_same(settings, keys):
    definitions = build_defs(settings)
    dg.Definitions.validate_loadable(definitions)
    assert definitions.resolve_asset_graph().get(BRONZE_KEY).parent_keys == {dg.AssetKey(key) for key in keys}


def test_of_very_many_partitions_the_event_has_those_with_most_lag_as_it_is_never_deleted():
    latest = splits("events", "one", dict.fromkeys(range(1_000), 10))
    lag = {split: 7 if split.number == 900 else 1 for split in latest}
    lagging = PipelineLag("", SourceSnapshot(dict.fromkeys(latest, 0), latest), dict.fromkeys(latest, 3), lag)
    event, *_ = lag_events(LIST, lagging, Memory(), 100.0)
    assert (event.metadata["partitions"].value, event.metadata["lag"].value) == (1_000, 1_006)
    shown = [record.data["partition"] for record in event.metadata["offsets"].records]
    assert shown == [900, *range(PARTITIONS_SHOWN - 1)]
