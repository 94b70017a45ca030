"""`game-events schema show|diff` on the real registry."""

import pytest
from confluent_kafka.schema_registry import Schema

from game_events.schema_registry import registry_client

FIRST = """syntax = "proto3"; package t; message Event {
  string game_name = 1; int32 score = 2; string device = 3; Place place = 4; message Place { string city = 1; }
  enum Mood { NONE = 0; HAPPY = 1; } }"""
SECOND = """syntax = "proto3"; package t; message Event {
  string game = 1; string score = 2; int64 level = 5; Place place = 4; message Place { string city = 1; string zip = 2; }
  enum Mood { NONE = 0; CHEERFUL = 1; SAD = 2; } }
message Extra { string a = 1; }"""


@pytest.fixture
def subject(environment):
    name = f"{environment.kafka_topic}-value"
    with registry_client(environment) as client:
        ids = [client.register_schema(name, Schema(text, "PROTOBUF", [])) for text in (FIRST, SECOND)]
    return name, ids


def test_show_says_for_each_field_its_type_and_its_column(cli, subject):
    said = cli("schema", "show", "1", "--json")
    assert said.code == 0, said.everything
    assert (said.result["version"], said.result["schema_id"]) == (1, subject[1][0])
    found = {f["field"]: (f["type"], f["column"], f["stored_as"]) for f in said.result["fields"]}
    assert found == {
        "game_name": ("string", "game_name", "string"),
        "score": ("int32", "score", "bigint"),
        "device": ("string", "device", "string"),
        "place": ("t.Event.Place", "place", "struct"),
        "place.city": ("string", "place.city", "string"),
    }
    assert "t.Event (version 1" in said.err


def test_diff_says_what_happens_to_every_field_and_its_column(cli, subject):  # noqa: ARG001 - it is read
    said = cli("schema", "diff", "--json")
    assert (said.result["old"]["version"], said.result["new"]["version"]) == (1, 2)
    found = {(c["field"] or c["message"]): (c["change"], c["effect"]) for c in said.result["changes"]}
    assert found == {
        "game": ("renamed", "the same column game_name"),
        "score": ("type changed", "column score stays for older rows; rows of this version in score__string"),
        "device": ("removed", "column device stays; NULL in rows of this version"),
        "level": ("added", "column level; NULL in rows of older versions"),
        "place.zip": ("added", "column place.zip; NULL in rows of older versions"),
        "t.Extra": ("message added", "its columns are added; shared by name and type"),
        "CHEERFUL": ("enum value renamed", "rows of this version hold CHEERFUL, older rows keep HAPPY"),
        "SAD": ("enum value added", "rows of this version may hold SAD"),
    }
    assert "enum value renamed: t.Event.Mood.CHEERFUL (HAPPY = 1 -> CHEERFUL = 1): rows" in said.err
    assert "type changed: t.Event.score (int32 score -> string score)" in said.err
    assert cli("schema", "diff", "2", "2", "--json").result["changes"] == []


def test_a_version_or_subject_that_is_not_there_is_an_error_that_says_what_there_is(cli, subject, environment):  # noqa: ARG001
    missing = cli("schema", "show", "7")
    assert missing.code == 1
    assert "has no version 7; it has 1, 2" in missing.err
    other = cli("schema", "diff", "--subject", "nobody-value")
    assert other.code == 1
    assert "no subject 'nobody-value'" in other.err
    assert "GAME_EVENTS_KAFKA_TOPIC" in other.err
