"""New versions of many subjects: what one subject, one answer or a cursor of somebody's own does to the others; no registry."""

import json

import dagster as dg
import pytest

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError, TransientError
from game_events.orchestration.resources import Graph
from game_events.plugins.catalog import schema_versions
from game_events.plugins.catalog.schema_versions import SEARCH_S, SENSOR
from game_events.schema_registry import SubjectVersion

#: The longest entry of an index of PostgreSQL, in which Dagster keeps the tags of runs: run keys are tags.
LONGEST_TAG = 2_704


class Registry:
    """Subject -> its schema ids, oldest first, or the error that asking for it raises; each request takes `answer_s`."""

    url = "http://registry"

    def __init__(self):
        self.subjects, self.asked, self.answer_s, self.now = {}, [], 0.0, 0.0

    def __call__(self, _settings, limits):
        """As the class: a registry with these limits."""
        self.limits = limits
        return self

    def _ids(self, subject):
        self.asked.append(subject)
        self.now += self.answer_s
        found = self.subjects.get(subject, [])
        if isinstance(found, Exception):
            raise found
        return found

    def newest(self, subject):
        ids = self._ids(subject)
        return (len(ids), ids[-1]) if ids else None

    def versions(self, subject):
        ids = self._ids(subject)
        if len(ids) * self.answer_s > self.limits.schema_s:
            self.now += self.limits.schema_s
            raise TransientError(f"{subject!r} has more versions than it names in time")
        return [SubjectVersion(subject, number, i) for number, i in enumerate(ids, 1)]


@pytest.fixture
def registry(monkeypatch):
    found = Registry()
    monkeypatch.setattr(schema_versions, "registry_of", found)
    monkeypatch.setattr(schema_versions, "changes_by_version", lambda *_: {})
    return found


@pytest.fixture
def look(instance, registry, tmp_path):
    """One tick over topics: what it found, and the next cursor."""

    def tick(topics, cursor=None):
        settings = load_settings(kafka_topic=",".join(topics), lakehouse=str(tmp_path))
        sensor = SENSOR.build(Graph.of(settings), lambda: registry.now)
        context = dg.build_sensor_context(instance=instance, cursor=cursor)
        found = sensor(context)
        return found, found.cursor if isinstance(found, dg.SensorResult) else context.cursor

    return tick


def subjects_of(found):
    """Subjects with an event."""
    return [] if isinstance(found, dg.SkipReason) else [event.asset_key.path[-1] for event in found.asset_events]


@pytest.mark.parametrize(
    "cursor", ["anything", "[1, 2]", "7", "null", '{"a-value": "x", "b": {"1": 2}}', '{"a-value": {"x": 1}}']
)
def test_a_cursor_that_is_none_is_as_no_cursor(look, registry, cursor):
    registry.subjects["a-value"] = [7]
    found, after = look(["a"], cursor)
    assert subjects_of(found) == ["a-value"]
    assert json.loads(after) == {"a-value": {"1": 7}}


@pytest.mark.parametrize("error", [ConfigurationError("refused: 403"), TransientError("answered with 500")])
def test_a_subject_that_cannot_be_read_does_not_hide_the_others(look, registry, error):
    registry.subjects = {"a-value": [1], "b-value": error, "c-value": [3]}
    cursor, events, reasons = None, [], []
    for _ in range(3):
        found, cursor = look(["a", "b", "c"], cursor)
        events += subjects_of(found)
        reasons += [found.skip_message] if isinstance(found, dg.SkipReason) else []
    assert sorted(events) == ["a-value", "c-value"]
    assert any(str(error) in said for said in reasons)
    registry.subjects |= {"b-value": [2]}
    found, cursor = look(["a", "b", "c"], cursor)
    assert subjects_of(found) == ["b-value"]


def test_a_gateway_that_answers_for_the_registry_that_nothing_is_there_makes_nothing_new_again(look, registry):
    registry.subjects = {"a-value": [1, 2]}
    found, cursor = look(["a"])
    assert subjects_of(found) == ["a-value"]
    registry.subjects = {}
    _, cursor = look(["a"], cursor)
    registry.subjects = {"a-value": [1, 2]}
    found, cursor = look(["a"], cursor)
    assert subjects_of(found) == []
    registry.subjects = {"a-value": [9]}
    assert subjects_of(look(["a"], cursor)[0]) == ["a-value"], "a recreated subject"


def test_of_very_many_subjects_a_tick_looks_at_as_many_as_it_has_time_for_and_the_next_ones_at_the_others(look, registry):
    topics = [f"topic_{n}" for n in range(1_000)]
    registry.subjects = {f"{topic}-value": [n + 1] for n, topic in enumerate(topics)}
    registry.answer_s = 0.05
    cursor, events = None, []
    for _ in range(5):
        began = registry.now
        found, cursor = look(topics, cursor)
        assert registry.now - began < SEARCH_S + 1
        events += subjects_of(found)
    assert sorted(events) == sorted(registry.subjects), "each once"
    registry.asked.clear()
    for _ in range(5):
        found, cursor = look(topics, cursor)
        assert subjects_of(found) == []
        assert len(found.skip_message) < 1_000
    assert set(registry.asked) == set(registry.subjects)


def test_the_run_key_of_very_many_new_versions_is_a_tag_that_every_storage_takes(look, registry):
    topics = [f"topic_{n}" for n in range(300)]
    registry.subjects = {f"{topic}-value": list(range(1, 30)) for topic in topics}
    (request,) = look(topics)[0].run_requests
    assert len(request.run_key) < LONGEST_TAG


def test_a_subject_with_very_many_versions_does_not_take_the_minute_after_which_a_tick_is_ended_and_its_cursor_lost(
    look, registry
):
    registry.subjects = {"a-value": list(range(10_000)), "b-value": [2]}
    registry.answer_s = 0.05
    events, cursor = [], None
    for _ in range(2):
        began = registry.now
        found, cursor = look(["a", "b"], cursor)
        assert registry.now - began < 60
        events += subjects_of(found)
    assert events == ["b-value"]
