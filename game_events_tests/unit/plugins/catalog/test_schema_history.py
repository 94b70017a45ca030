"""What `schema show`, `diff` and `columns` say of nested message types that records were of. No Spark, no service."""

import json
from datetime import UTC, datetime

import pytest
from deltalake import DeltaTable

from game_events.decoding.columns import ColumnMap
from game_events.decoding.frame import RegistrySchema
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.data.columns import bronze_schema
from game_events.lakehouse.system_tables import append_events
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.schemas.catalog import SchemaCatalog
from game_events.plugins.catalog.schema_history import NAMED, SchemaHistory, as_line, origins
from game_events.schema_registry import SchemaLookup, SubjectVersion
from game_events_tests.support.decoding.helpers import compiled

HEAD = 'syntax = "proto3"; package t; message Event { string game = 1; map<string, int64> counts = 2; '
TEXTS = {
    1: HEAD + "message Unused { string a = 1; } message Mini { int64 score = 1; message Deep { Mood mood = 1; } } "
    "enum Mood { NONE = 0; HAPPY = 1; } }",
    2: HEAD + "message Unused { string b = 2; } message Mini { int64 score = 1; string who = 2; // the player\n"
    "message Deep { Mood mood = 1; } } enum Mood { NONE = 0; CHEERFUL = 1; } }",
}


class Registry(SchemaLookup):
    """Has the texts as versions of one subject."""

    url = "http://registry"

    def __init__(self, texts=TEXTS):
        self.texts = texts

    def fetch(self, schema_id):
        return RegistrySchema(schema_id, "PROTOBUF", self.texts[schema_id])

    def versions(self, subject):
        return [SubjectVersion(subject, number, number) for number in self.texts]


@pytest.fixture
def history(tmp_path):
    return SchemaHistory(Registry(), Lakehouse(str(tmp_path)), "t-value")


def add_records_of(lakehouse, *names):
    """Bronze and the archive, as a run leaves them that met records of these message types of both schemas."""
    catalog = SchemaCatalog(Registry(), lakehouse)
    paths = {number: compiled(text, number).type_paths() for number, text in TEXTS.items()}
    plan = catalog.plan(ColumnMap(), {(number, paths[number][name]) for number in TEXTS for name in names})
    catalog.archive(TEXTS)
    bronze = lakehouse.table("bronze_events")
    commit(
        Commit(
            bronze,
            bronze_schema(plan.columns),
            [],
            expect_transactions={"batch": None},
            set_transactions={"batch": 1},
            table_id=None,
        )
    )
    return DeltaTable(bronze.uri)


def shown(history):
    return [(f.message, f.names, f.column) for f in history.fields(history.version(None))]


def test_it_is_told_which_message_types_of_a_very_large_schema_are_not_looked_at(history):
    newest = history.version(None)
    assert history.left_out(newest) == ""
    many = HEAD + "} " + " ".join(f"message M{n} {{}}" for n in range(1_500))
    larger = SchemaHistory(Registry(TEXTS | {3: many}), history.lakehouse, "t-value")
    assert larger.left_out(newest, larger.version(3)) == (
        "only 1,000 message types of a schema are compared; left out of version 3: 501"
    )


EVENT = [("t.Event", "game", "game"), ("t.Event", "counts", "counts")]


def test_without_records_a_version_shows_its_top_level_types(history):
    assert shown(history) == EVENT


def test_nested_types_that_records_were_of_are_shown_with_their_columns(history):
    add_records_of(history.lakehouse, "t.Event", "t.Event.Mini", "t.Event.Mini.Deep")
    mini = [("t.Event.Mini", "score", "score"), ("t.Event.Mini", "who", "who")]
    assert shown(history) == [*EVENT, *mini, ("t.Event.Mini.Deep", "mood", "mood")]
    found = {o.column: (o.message, o.field, o.first_schema, o.comment) for o in origins(history.lakehouse)}
    assert found == {
        "game": ("t.Event", "game", 1, ""),
        "counts": ("t.Event", "counts", 1, ""),
        "score": ("t.Event.Mini", "score", 1, ""),
        "mood": ("t.Event.Mini.Deep", "mood", 1, ""),
        "who": ("t.Event.Mini", "who", 2, "the player"),
    }


def test_records_of_a_nested_type_alone_show_its_columns_too(history):
    add_records_of(history.lakehouse, "t.Event.Mini")
    assert {(o.message, o.column) for o in origins(history.lakehouse)} == {("t.Event.Mini", "score"), ("t.Event.Mini", "who")}
    assert history.occurred() == {"t.Event.Mini"}


def test_a_difference_names_fields_of_those_types_and_values_of_enums(history):
    add_records_of(history.lakehouse, "t.Event", "t.Event.Mini")
    changes = history.changes(history.version(1), history.version(2))
    assert [(str(c.kind), c.message, c.field) for c in changes] == [
        ("added", "t.Event.Mini", "who"),
        ("enum value renamed", "t.Event.Mood", "CHEERFUL"),
    ]


def test_the_first_version_is_the_first_of_the_subject_whatever_the_order_of_ids(history):
    add_records_of(history.lakehouse, "t.Event.Mini")
    # Another subject had the text of version 2 before: ids are the texts'.
    details = [{"schema_id": 1, "subject": "t-value", "version": 2}, {"schema_id": 2, "subject": "t-value", "version": 1}]
    events = [{"kind": "schema", "detail": json.dumps(detail), "time": datetime.now(UTC)} for detail in details]
    append_events(history.lakehouse, events, "run", "part")
    found = {o.column: (o.first_schema, o.first_version) for o in origins(history.lakehouse)}
    assert found == {"score": (2, 1), "who": (2, 1)}


def test_a_line_names_the_first_changes_and_counts_the_others(history):
    add_records_of(history.lakehouse, "t.Event", "t.Event.Mini")
    changes = history.changes(*history.versions())
    assert as_line(changes).startswith("who added")
    assert as_line(changes * NAMED).endswith(f" and {len(changes) * NAMED - NAMED} more changes")
    assert as_line([]) == "nothing changed in fields or enums"
