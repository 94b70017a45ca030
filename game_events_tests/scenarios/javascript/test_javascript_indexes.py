"""Records of nested types behind maps, as the JavaScript client writes them: none is ever silently read as another type."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from game_events.decoding.columns import ColumnMap
from game_events.decoding.frame import RegistrySchema
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.schemas.catalog import SchemaCatalog
from game_events.schema_registry import SchemaLookup
from game_events_tests.support.decoding.helpers import compiled, decode, descriptor_set, reasons_by_position, rows_by_position
from game_events_tests.support.decoding.registered_forms import FORMS, in_form
from game_events_tests.support.javascript.clients import run_script

PROTO = """
syntax = "proto3";
package js.v1;
message First { string text = 1; }
message Rich {
  map<string, int64> counters = 1; map<int32, string> names = 2; map<bool, Mini> minis = 3;
  message Mini { int64 mini = 1; map<string, string> more = 2; message Deep { string deep = 1; } }
}
message Outer {
  map<string, string> labels = 1;
  message A { string a_text = 1; int32 a_number = 2; }
  message B { string b_text = 1; int32 b_number = 2; }
}
"""
#: Message type -> a value, as JSON and as columns hold it.
SENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "js.v1.Rich": ({"counters": {"a": "1"}}, {"counters": [("a", 1)], "names": [], "minis": []}),
    "js.v1.Rich.Mini": ({"mini": "7", "more": {"k": "v"}}, {"mini": 7, "more": [("k", "v")]}),
    "js.v1.Rich.Mini.Deep": ({"deep": "x"}, {"deep": "x"}),
    "js.v1.Outer": ({"labels": {"l": "m"}}, {"labels": [("l", "m")]}),
    "js.v1.Outer.A": ({"aText": "I am A", "aNumber": 1}, {"a_text": "I am A", "a_number": 1}),
    "js.v1.Outer.B": ({"bText": "I am B", "bNumber": 2}, {"b_text": "I am B", "b_number": 2}),
}
#: How the client writes their indexes.
INDEXES = {
    "js.v1.Rich": (1,), "js.v1.Rich.Mini": (1, 0), "js.v1.Rich.Mini.Deep": (1, 0, 0),
    "js.v1.Outer": (2,), "js.v1.Outer.A": (2, 0), "js.v1.Outer.B": (2, 1),
}  # fmt: skip


class Registry(SchemaLookup):
    """Gives one schema back, in one of the forms that registries have."""

    url = "http://registry"

    def __init__(self, text: str) -> None:
        self._text = text

    def fetch(self, schema_id: int) -> RegistrySchema:
        return RegistrySchema(schema_id, "PROTOBUF", self._text)


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    """What the client's serializer made of `SENT`, and the one schema that it registered."""
    return run_script(
        "produce.mjs",
        {
            "registry": "mock://javascript",
            "topic": "nested",
            "descriptors": base64.b64encode(descriptor_set(PROTO)).decode(),
            "records": [{"format": "protobuf", "message": name, "value": value} for name, (value, _) in SENT.items()],
        },
    )


def test_the_client_counts_no_entries(written):
    for (name, path), value in zip(INDEXES.items(), written["values"], strict=True):
        head = bytes((2 * len(path), *(2 * index for index in path)))
        assert base64.b64decode(value)[5:].startswith(head), name


@pytest.mark.parametrize("form", ["registered", *FORMS])
def test_each_record_is_read_as_its_own_type_or_the_log_says_that_it_may_be_another(written, tmp_path, caplog, form):
    ((schema_id, registered),) = written["schemas"].items()
    text = registered if form == "registered" else in_form(form, PROTO, compiled(PROTO, 7301).main_file)
    catalog = SchemaCatalog(Registry(text), Lakehouse(str(tmp_path)))
    paths = {(int(schema_id), path) for path in INDEXES.values()}
    plan = catalog.plan(ColumnMap(), paths)
    found = decode(plan, [base64.b64decode(value) for value in written["values"]])
    assert reasons_by_position(found) == {}
    held = rows_by_position(found)
    wrong = {name for position, (name, (_, truth)) in enumerate(SENT.items()) if _set(held[position]) != _set(truth)}
    # Where entries are written down they count, as for the clients that look at descriptors: `Outer.B` cannot be told from `A`.
    assert wrong == (set() if form == "text" else {"js.v1.Outer.B"})
    told = [record.getMessage() for record in caplog.records if "ambiguous_index=true" in record.getMessage()]
    (line,) = told
    assert f"index={[2, 1]}" in line
    assert {"js.v1.Outer.A", "js.v1.Outer.B"} == {line.split(word)[1].split(" ")[0] for word in ("read_as=", "could_be=")}


def _set(row: dict[str, Any]) -> dict[str, Any]:
    """Columns that hold something."""
    return {name: value for name, value in row.items() if value is not None}
