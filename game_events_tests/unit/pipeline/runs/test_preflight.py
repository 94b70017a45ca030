"""The order of the checks before a run: those that wait for other machines wait at the same time, and nobody waits twice."""

from __future__ import annotations

import threading

import pytest

from game_events.config.settings import load_settings
from game_events.errors import DataError, TransientError
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.runs import preflight
from game_events.pipeline.runs.preflight import WAIT_S, _made, environment_checks, run_checks
from game_events.schema_registry import SchemaRegistry
from game_events_tests.support.altered_tables import altered, generated
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put

TOGETHER_S = 30


def test_broker_and_registry_are_asked_at_the_same_time_and_shown_in_order():
    both = threading.Barrier(2)

    def check():
        both.wait(TOGETHER_S)
        return "answered"

    checks = {"java": lambda: "there", "kafka": check, "tables": lambda: "none", "schema registry": check}
    found = run_checks(checks, load_settings())
    assert [(one.check, one.ok) for one in found] == [(name, True) for name in checks]


def test_an_error_of_one_that_is_asked_ahead_is_its_own():
    def fails():
        raise OSError("no broker")

    kafka, registry, plan = run_checks(
        {"kafka": fails, "schema registry": lambda: "fine", "plan": lambda: "never"}, load_settings(), {"plan": ("kafka",)}
    )
    assert (kafka.ok, kafka.detail, registry.ok) == (False, "no broker", True)
    assert (plan.ok, plan.detail) == (False, "not known while this fails: kafka")


def test_a_check_that_waits_itself_begins_when_what_it_needs_has_passed():
    begun = []

    def fails():
        begun.append("registry")
        raise OSError("no registry")

    needs = {"schemas": ("schema registry",)}
    schemas = {"schemas": lambda: begun.append("schemas") or "compiled"}
    _, not_known = run_checks({"schema registry": fails, **schemas}, load_settings(), needs)
    assert (not_known.ok, begun) == (False, ["registry"])
    _, made = run_checks({"schema registry": lambda: "there", **schemas}, load_settings(), needs)
    assert (made.detail, begun) == ("compiled", ["registry", "schemas"])
    (alone,) = run_checks(schemas, load_settings(), needs)
    assert alone.detail == "compiled"


def test_an_interrupt_does_not_wait_for_checks_that_have_begun():
    interrupted, ended = threading.Event(), threading.Event()

    def waits():
        interrupted.wait(TOGETHER_S)
        ended.set()

    def is_interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_checks({"lakehouse": is_interrupted, "java": waits}, load_settings())
    assert not ended.is_set()
    interrupted.set()


def test_a_registry_that_does_not_answer_is_waited_for_once(tmp_path, monkeypatch):
    asked = []

    def source(_settings, timeout_s=None):
        asked.append(timeout_s)
        raise OSError("no broker")

    monkeypatch.setattr("game_events.pipeline.runs.preflight.make_source", source)
    pipeline = without_spark(tmp_path, schema_registry_url="http://127.0.0.1:1")
    found = {c.check: c for c in preflight.validation(pipeline, preflight.state_checks(pipeline))}
    assert asked == [WAIT_S]
    assert (found["kafka"].ok, found["schema registry"].ok) == (False, False)
    assert found["schemas"].detail == "not known while this fails: schema registry"


@pytest.mark.parametrize("registry_answers", [True, False])
def test_with_a_pattern_of_topics_a_dead_broker_does_not_hide_whether_the_registry_answers(
    registry_answers, tmp_path, monkeypatch
):
    def no_broker(*_, **__):
        raise TransientError("no broker")

    def asked(_registry, _subject):
        if registry_answers:
            return []
        raise TransientError("no registry")

    monkeypatch.setattr("game_events.pipeline.runs.preflight.make_source", no_broker)
    monkeypatch.setattr("game_events.sources.factory.make_source", no_broker)
    monkeypatch.setattr(SchemaRegistry, "version_numbers", asked)
    pipeline = without_spark(tmp_path, kafka_topic_pattern="events.*", schema_registry_url="http://127.0.0.1:1")
    found = {c.check: c for c in preflight.validation(pipeline, preflight.state_checks(pipeline))}
    assert (found["kafka"].ok, found["kafka"].detail) == (False, "no broker")
    up = "http://127.0.0.1:1: answers; its subjects are not known while this fails: kafka"
    said = up if registry_answers else "no registry"
    assert (found["schema registry"].ok, found["schema registry"].detail) == (registry_answers, said)
    assert "kafka" in found["schemas"].detail
    assert "no broker" not in found["schemas"].detail


def test_a_misspelt_variable_is_to_be_looked_at(monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_KAFKA_TOPC", "mine")
    found = _made("settings", environment_checks(load_settings())["settings"], load_settings())
    assert (found.ok, found.look) == (True, True)
    assert found.detail.endswith("did you mean GAME_EVENTS_KAFKA_TOPIC?")


@pytest.mark.parametrize(("key", "passes"), [("others", True), ("silver_uno_events", False), ("bronze_events", False)])
def test_a_table_that_was_altered_fails_the_check_unless_it_is_somebody_elses(tmp_path, key, passes):
    lakehouse = Lakehouse(str(tmp_path))
    put(lakehouse.table(key), {"n": [1]})
    altered(lakehouse.table(key), change=generated("n"))
    check = environment_checks(load_settings(lakehouse=str(tmp_path)))["tables"]
    if passes:
        assert "1 table, each can be opened" in check()
    else:
        with pytest.raises(DataError, match="column n is a generated column"):
            check()
