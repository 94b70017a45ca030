"""Schemas that settings name: what a name stands for now, and what is an error of the settings."""

import json

import pytest

from game_events.config.settings import load_settings
from game_events.decoding.columns import ColumnMap
from game_events.decoding.frame import RegistrySchema, schema_guid
from game_events.decoding.unframed.topics import SchemaName
from game_events.errors import ConfigurationError, TransientError
from game_events.pipeline.runs.preflight import Hint, environment_checks
from game_events.pipeline.schemas import named
from game_events.schema_registry import SchemaRegistry
from game_events_tests.support.decoding.topics import Registry, catalog_of

TEXT = 'syntax = "proto3"; package t; import "more.proto"; message A { More more = 1; } message B { int32 n = 1; }'
MORE = 'syntax = "proto3"; package t; message More { int32 n = 1; }'
AVRO = json.dumps({"type": "record", "name": "V", "fields": [{"name": "n", "type": "long"}]})


@pytest.fixture
def registry():
    return Registry([RegistrySchema(1, "AVRO", AVRO), RegistrySchema(2, "AVRO", "{")], {"good": [1], "bad": [1, 2]})


def types_of(tmp_path, registry, entry):
    return catalog_of(tmp_path, registry, decoding={"events": entry}).types_of_topics([("", "events"), ("", "other")])


def test_a_file_is_found_with_what_it_imports_and_its_guid_is_that_of_the_texts(tmp_path, registry):
    (tmp_path / "a.proto").write_text(TEXT)
    (tmp_path / "more.proto").write_text(MORE)
    entry = {"format": "protobuf", "schema": str(tmp_path / "a.proto"), "message_type": "t.B"}
    assert types_of(tmp_path, registry, entry) == [(schema_guid("PROTOBUF", TEXT, (("more.proto", MORE),)), (1,))]
    assert registry.asked == [], "no registry knows it"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"format": "avro", "schema": "subject:none"}, "no subject 'none'"),
        ({"format": "avro", "schema": "subject:good@7"}, "no version 7 of subject 'good'"),
        ({"format": "json", "schema": "subject:good"}, "`format` is json, but subject:good is avro"),
    ],
)
def test_a_rule_that_fits_nothing_stops_before_a_record_is_read(tmp_path, registry, entry, said):
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_DECODING: events") as raised:
        types_of(tmp_path, registry, entry)
    assert said in str(raised.value)


@pytest.mark.parametrize(("text", "said"), [("message {", "does not compile"), (MORE, "no message 't.Gone'; it has t.More")])
def test_a_file_that_cannot_be_used_stops_before_a_record_is_read(tmp_path, registry, text, said):
    (tmp_path / "a.proto").write_text(text)
    entry = {"format": "protobuf", "schema": str(tmp_path / "a.proto"), "message_type": "t.Gone"}
    with pytest.raises(ConfigurationError) as raised:
        types_of(tmp_path, registry, entry)
    assert said in str(raised.value)


def test_a_new_version_that_cannot_be_used_harms_only_its_topic(tmp_path, registry):
    catalog = catalog_of(tmp_path, registry, decoding={"events": {"format": "avro", "schema": "subject:bad"}})
    (key,) = catalog.types_of_topics([("", "events")])
    assert catalog.plan(ColumnMap(), [key]).rejected.keys() == {(2, ())}


def test_the_newest_version_is_followed_and_the_last_answer_holds_while_the_registry_is_down(tmp_path, registry, monkeypatch):
    monkeypatch.setattr(named, "ANSWER_S", 0)
    catalog = catalog_of(tmp_path, registry, decoding={"events": {"format": "avro", "schema": "subject:good"}})
    assert catalog.types_of_topics([("", "events")]) == [(1, ())]
    registry.schemas[3] = RegistrySchema(3, "AVRO", AVRO.replace('"n"', '"m"'))
    registry.subjects["good"].append(3)
    assert catalog.types_of_topics([("", "events")]) == [(3, ())]

    def down(*_):
        raise TransientError("down")

    monkeypatch.setattr(registry, "id_of", down)
    assert catalog.types_of_topics([("", "events")]) == [(3, ())]
    with pytest.raises(TransientError):
        types_of(tmp_path, registry, {"format": "avro", "schema": "subject:good"})


def test_names_of_records_that_stand_for_nothing_are_forgotten_in_time(tmp_path, registry, monkeypatch):
    monkeypatch.setattr(named, "RECORDS_S", 0)
    catalog = catalog_of(tmp_path, registry, decoding={"events": {"format": "avro", "schema": "header:s"}})
    for first in range(0, 600, 200):
        names = {SchemaName(f"subject:{number}") for number in range(first, first + 200)}
        catalog.look_up_names(names | {SchemaName("subject:good")}, 1_000)
        plan = catalog.plan(ColumnMap(), []).topics
    assert (plan.refused, plan.keys) == ({}, {SchemaName("subject:good"): (1, ())})
    assert counted(catalog.named) < 10, "a name that is known stays, with its time"


def counted(schemas):
    """Names that are held."""
    return sum(len(held) for held in vars(schemas).values() if isinstance(held, dict))


def test_doctor_tries_what_each_topic_is_decoded_with(tmp_path, monkeypatch):
    (tmp_path / "more.proto").write_text(MORE)
    monkeypatch.setattr(SchemaRegistry, "id_of", lambda *_: None)
    good = {
        "events": {"format": "protobuf", "schema": str(tmp_path / "more.proto")},
        "logs.*": {"format": "json"},
        "x|y": {"format": "avro", "schema": "header:s"},
    }
    settings = load_settings(lakehouse=str(tmp_path / "l"), kafka_topic="events", decoding=good)
    said = environment_checks(settings)["decoding"]()
    for part in ("t.More", "logs.*: json, without a schema, columns are inferred", "x|y: avro, schema header:s"):
        assert part in said
    assert not isinstance(said, Hint)

    idle = load_settings(lakehouse=str(tmp_path / "l"), kafka_topic="events", decoding={"evnts": {"format": "json"}})
    said = environment_checks(idle)["decoding"]()
    assert isinstance(said, Hint) and "no topic of the settings is evnts" in said

    bad = load_settings(lakehouse=str(tmp_path / "l"), decoding={"a": {"format": "avro", "schema": "subject:none"}})
    with pytest.raises(ConfigurationError, match="no subject 'none'"):
        environment_checks(bad)["decoding"]()
    assert "decoding" not in environment_checks(load_settings(lakehouse=str(tmp_path / "l")))
