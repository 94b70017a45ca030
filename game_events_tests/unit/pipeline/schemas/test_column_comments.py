"""From the texts of schemas to bronze's columns, and back to the fields that columns come from."""

import json
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from game_events.decoding.columns import ColumnMap
from game_events.decoding.frame import RegistrySchema
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.data.columns import COMMENT_OF, bronze_schema, comments_of
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.schemas.catalog import BRONZE_DESCRIPTION, SchemaCatalog, message_comment
from game_events.plugins.catalog.schema_history import origins
from game_events.schema_registry import SchemaLookup

HEAD = 'syntax = "proto3"; package t;\n'
TEXTS = {
    3: HEAD + "// An event.\nmessage E {\n  // the game\n  string game = 1;\n  int64 n = 2; // how many\n  P p = 3;\n"
    "  message P {\n    // the city\n    string city = 1;\n  }\n}",
    5: HEAD
    + "// One event.\nmessage E {\n  // which game\n  string game = 1;\n  string n = 2; // now a text\n  string more = 4;\n}",
    6: json.dumps(
        {"type": "record", "name": "t.A", "doc": "Avro's.", "fields": [{"name": "level", "type": "long", "doc": "up to 9"}]}
    ),
    9: "no schema at all {",
}


class Registry(SchemaLookup):
    """Knows `TEXTS`."""

    url = "http://registry"

    def fetch(self, schema_id):
        kind = "AVRO" if schema_id == 6 else "PROTOBUF"
        return RegistrySchema(schema_id, kind, TEXTS[schema_id], ()) if schema_id in TEXTS else None


@pytest.fixture
def parts(tmp_path):
    """A pipeline's parts that comments come from; no Spark, no service."""
    lakehouse = Lakehouse(str(tmp_path))
    catalog, bronze = SchemaCatalog(Registry(), lakehouse), lakehouse.table("bronze_events")
    return SimpleNamespace(lakehouse=lakehouse, catalog=catalog, bronze=bronze, columns=ColumnMap(), report=RunReport())


def slice_of(parts, number, *ids):
    """One commit of bronze, without rows, as a slice with these schema ids makes it."""
    handle = parts.bronze.open()
    plan = parts.catalog.plan(parts.columns, {(i, (0,)) for i in ids})
    parts.columns = plan.columns
    parts.catalog.archive(i for i, _ in plan.types)
    schema = parts.catalog.documented(bronze_schema(plan.columns), plan.columns, plan.types)
    landed = commit(
        Commit(
            parts.bronze, schema, [], expect_transactions={"batch": number - 1 or None}, set_transactions={"batch": number},
            table_id=str(handle.metadata().id) if handle is not None else None, merges_column_map=handle is not None,
            description=BRONZE_DESCRIPTION,
            description_now=parts.catalog.about_bronze(handle, plan.types) if handle is not None else None,
        )
    )  # fmt: skip
    parts.report.add_landed("bronze", parts.bronze, landed, schema, number)
    (parts.told,) = parts.report.tables
    return DeltaTable(parts.bronze.uri)


def decoded(handle):
    return {name: text for name, text in comments_of(pa.schema(handle.schema())).items() if not name.startswith("_")}


def test_columns_have_the_words_of_the_newest_schema_that_their_rows_came_with(parts):
    handle = slice_of(parts, 1, 3)
    assert decoded(handle) == {"game": "the game", "n": "how many"}
    handle = slice_of(parts, 2, 3, 5, 6)
    now = {"game": "which game", "n": "how many", "n__string": "now a text", "level": "up to 9"}
    assert decoded(handle) == now
    versions = handle.version()
    # Old producers go on beside new ones, one slice of theirs after the other: nothing is taken back, nothing committed for it.
    for number, ids in enumerate(((3,), (5,), (3, 6), (9, 3)), start=3):
        handle = slice_of(parts, number, *ids)
        assert parts.told.comments == comments_of(pa.schema(handle.schema())), "what Dagster and OpenLineage are told"
    assert decoded(handle) == now
    assert handle.version() == versions + 4
    game = next(f for f in handle.schema().fields if f.name == "game")
    assert game.metadata[COMMENT_OF] == "5"


def test_bronze_is_described_by_its_newest_message_and_silver_takes_it_over(parts):
    slice_of(parts, 1, 3)
    assert slice_of(parts, 2, 3).metadata().description == f"{BRONZE_DESCRIPTION}. Message: An event. (schema id 3)"
    assert message_comment(slice_of(parts, 3, 5)) == ". Message: One event."
    handle = slice_of(parts, 4, 3)
    assert handle.metadata().description == f"{BRONZE_DESCRIPTION}. Message: One event. (schema id 5)"


def test_each_column_knows_the_fields_it_comes_from_and_since_when(parts):
    slice_of(parts, 1, 3)
    slice_of(parts, 2, 5, 6)
    found = {(o.column, o.declared): (o.message, o.field, o.comment, o.first_schema) for o in origins(parts.lakehouse)}
    assert found == {
        ("game", "string"): ("t.E", "game", "which game", 3),
        ("n", "int64"): ("t.E", "n", "how many", 3),
        ("n__string", "string"): ("t.E", "n", "now a text", 5),
        ("p", "t.E.P"): ("t.E", "p", "", 3),
        ("p.city", "string"): ("t.E", "p.city", "the city", 3),
        ("more", "string"): ("t.E", "more", "", 5),
        ("level", "bigint"): ("t.A", "level", "up to 9", 6),
    }
