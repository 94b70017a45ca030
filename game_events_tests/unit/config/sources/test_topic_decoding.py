"""The setting `decoding`: every form that it may have, and errors that say what to do."""

import json

import pytest

from game_events.config.settings import load_settings
from game_events.config.sources.several import settings_of_each
from game_events.decoding.unframed.topics import TopicRules
from game_events.errors import ConfigurationError


def test_it_comes_from_the_environment_and_from_the_file_of_settings(tmp_path, monkeypatch):
    (tmp_path / "a.proto").write_text('syntax = "proto3";')
    monkeypatch.chdir(tmp_path)
    (tmp_path / "game_events.yaml").write_text(
        "decoding:\n  shop: {format: protobuf, schema: a.proto, message_type: t.A, framed: auto}\n"
        "  logs: {format: json, hints: {level: bigint}, type_field: event, framed: false}\n"
    )
    monkeypatch.setenv(
        "GAME_EVENTS_DECODING", json.dumps({"raw.*": {"format": "avro", "schema": "subject:x", "framed": "false"}})
    )
    rules = TopicRules.of_settings(load_settings())
    assert str(rules.of("shop")) == "protobuf, schema file:a.proto, message type t.A"
    assert (rules.of("shop").framed, rules.of("logs").framed, rules.of("raw1").framed) == ("auto", "", "")
    assert rules.of("logs").documents.hints == {("level",): "integer"}
    assert rules.of("raw-events").schema == "subject:x"
    assert (rules.of("other"), rules.of("my raw"), rules.of(None)) == (None, None, None)


def test_an_exact_name_wins_then_the_first_pattern_that_matches_the_whole_name():
    entries = {"a.+": "one", "a.b": "exact", "a.*": "two", "a": "short"}
    chosen = {topic: {"format": "json", "type_field": name} for topic, name in entries.items()}
    rules = TopicRules.of_settings(load_settings(decoding=chosen))
    found = {topic: rules.of(topic) and rules.of(topic).documents.type_field for topic in ("a", "a.b", "a-b", "ab", "ba")}
    assert found == {"a": "short", "a.b": "exact", "a-b": "one", "ab": "one", "ba": None}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"format": "xml"}, "'protobuf', 'avro' or 'json'"),
        ({"format": "avro"}, "avro needs a `schema`"),
        ({"format": "avro", "schema": "nowhere.avsc"}, "the file nowhere.avsc cannot be read (FileNotFoundError)"),
        ({"format": "avro", "schema": "subject:"}, "names nothing"),
        ({"format": "avro", "schema": "subject:a@newest"}, "a version is a number"),
        ({"format": "json", "schema": "key", "hints": {"a": "bigint"}}, "without a `schema`"),
        ({"format": "json", "message_type": "t.A"}, "for protobuf only"),
        ({"format": "json", "hints": {"a": "integer"}}, "'bigint'"),
        ({"format": "json", "framed": "true"}, "'auto'"),
        ({"format": "json", "schem": "x"}, "schem"),
    ],
)
def test_an_entry_that_cannot_be_is_refused_with_what_to_do(entry, said):
    with pytest.raises(ConfigurationError) as raised:
        load_settings(decoding={"events": entry})
    assert "GAME_EVENTS_DECODING: events" in str(raised.value)
    assert said in str(raised.value)


def two(eu, us, **top):
    """The rules of two sources."""
    settings = load_settings(sources={"eu": eu, "us": us}, **top)
    return TopicRules.of_settings(settings, settings_of_each(settings))


def entry(type_field=None, **hints):
    return {"format": "json", "type_field": type_field, "hints": hints}


def test_sources_must_say_the_same_of_topics_of_one_name():
    events = {"kafka_topic": "events"}
    for other in (entry("kind"), entry("event", level="bigint"), entry()):
        with pytest.raises(ConfigurationError, match=r"(?s)eu and us .*events.* let both say the same"):
            two(events | {"decoding": {"events": entry("event")}}, events | {"decoding": {"e.*": other}})
    same = two(events | {"decoding": {"events": entry("event")}}, events | {"decoding": {"e.*": entry("event")}})
    assert same.inferred("events").documents.type_field == "event"
    with_schema = {"events": {"format": "json", "schema": "key"}}
    assert two(events | {"decoding": with_schema}, events | {"decoding": {"events": entry("kind")}})


def test_what_a_source_says_of_topics_that_it_does_not_read_is_no_matter():
    every = {".*": entry("event")}
    rules = two({"kafka_topic": "a"}, {"kafka_topic": "b", "decoding": {"b": entry("kind")}}, decoding=every)
    assert [rules.inferred(topic).documents.type_field for topic in "ab"] == ["event", "kind"]
    assert rules.inferred("gone").documents.type_field == "event", "of stored rows"


def test_patterns_of_two_sources_are_compared_once_a_topic_is_there():
    rules = two(
        {"kafka_topic_pattern": "e.*", "decoding": {"e.*": entry("event")}},
        {"kafka_topic_pattern": ".*s", "decoding": {".*s": entry("kind")}},
    )
    assert [rules.inferred(topic).documents.type_field for topic in ("event", "kinds")] == ["event", "kind"]
    with pytest.raises(ConfigurationError, match="events"):
        rules.inferred("events")


def test_a_pattern_that_is_no_expression_is_refused():
    with pytest.raises(ConfigurationError, match=r"'\(' is neither a topic's name nor a regular expression"):
        load_settings(decoding={"(": {"format": "json"}})
