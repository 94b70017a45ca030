"""The sensor on the real registry."""

import json

import dagster as dg
import pytest

from game_events.orchestration.resources import Graph
from game_events.plugins.local.producer.produce import register_versions
from game_events.schema_registry import registry_client
from game_events_tests.support.sensors import build_sensor


@pytest.fixture
def register(environment):
    def add(*versions):
        with registry_client(environment) as client:
            return register_versions(client, environment, versions)

    return add


@pytest.fixture
def look(instance, environment):  # noqa: ARG001 - the sensor reads it
    """One tick: (result, next cursor)."""

    sensor = build_sensor("schema_versions", Graph.of())

    def tick(cursor=None):
        context = dg.build_sensor_context(instance=instance, cursor=cursor)
        found = sensor(context)
        return found, found.cursor if isinstance(found, dg.SensorResult) else context.cursor

    return tick


def test_a_new_version_is_one_event_of_the_subject_and_one_run_and_then_nothing(register, look, environment):
    ids = register(1)
    found, cursor = look()
    (event,) = found.asset_events
    assert event.asset_key == dg.AssetKey(["schema_registry", f"{environment.kafka_topic}-value"])
    assert event.metadata["schema_ids"].value == [ids[1]]
    assert event.tags["dagster/data_version"] == f"1-{ids[1]}"
    assert len(found.run_requests) == 1

    skipped, same = look(cursor)
    assert isinstance(skipped, dg.SkipReason)
    assert "still has 1 versions" in skipped.skip_message
    assert same == cursor

    more = register(1, 2, 3)
    found, cursor = look(cursor)
    (event,) = found.asset_events
    assert event.metadata["versions"].value == [2, 3]
    assert event.metadata["schema_ids"].value == [more[2], more[3]]
    assert "changes_in_version_1" not in event.metadata
    assert event.description == "version 2: col_custom_1 added; version 3: col_custom_2 added"
    for version in (2, 3):
        (record,) = event.metadata[f"changes_in_version_{version}"].records
        assert (record.data["message"], record.data["field"]) == ("game_events.v1.GameEvent", f"col_custom_{version - 1}")
        assert record.data["change"] == "added"
        assert record.data["column"] == f"column col_custom_{version - 1}; NULL in rows of older versions"
    versions = {"1": ids[1], "2": more[2], "3": more[3]}
    assert json.loads(cursor) == {f"{environment.kafka_topic}-value": versions}
    assert isinstance(look(cursor)[0], dg.SkipReason)


def test_each_version_has_a_run_key_of_its_own_and_the_same_look_has_the_same_one(register, look):
    keys, cursor = [], None
    for version in (1, 2, 3):
        register(version)
        again, _ = look(cursor)
        found, cursor = look(cursor)
        assert [r.run_key for r in again.run_requests] == [r.run_key for r in found.run_requests]
        keys += [r.run_key for r in found.run_requests]
    assert len(set(keys)) == 3


def test_a_subject_that_is_not_there_yet_is_a_skip(look, environment):
    found, cursor = look()
    assert isinstance(found, dg.SkipReason)
    assert "no new version" in found.skip_message
    assert json.loads(cursor) == {f"{environment.kafka_topic}-value": {}}


def test_a_registry_that_does_not_answer_is_a_skip_with_the_reason_and_the_cursor_stays(register, look, monkeypatch):
    register(1)
    _, cursor = look()
    with monkeypatch.context() as context:
        context.setenv("GAME_EVENTS_SCHEMA_REGISTRY_URL", "http://127.0.0.1:9")
        found, kept = look(cursor)
    assert isinstance(found, dg.SkipReason)
    assert "http://127.0.0.1:9 gave no usable answer" in found.skip_message
    assert "GAME_EVENTS_SCHEMA_REGISTRY_URL" in found.skip_message
    assert kept == cursor
    # Back again: nothing counts as new that was there before.
    assert isinstance(look(cursor)[0], dg.SkipReason)


def test_a_bad_setting_is_a_skip_that_names_it(look, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_MAX_GAMES", "none")
    found, _ = look()
    assert isinstance(found, dg.SkipReason)
    assert "GAME_EVENTS_MAX_GAMES" in found.skip_message
