"""Delta's columns as Iceberg's: types, ids that stay, what is refused."""

from __future__ import annotations

from functools import partial

import pytest
from deltalake import Schema
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.table.name_mapping import create_mapping_from_schema

from game_events.plugins.iceberg.schema import NotInIcebergError, change_columns, iceberg_schema, refuse_foreign


class Version:
    """A version of a Delta table with these columns (name -> type as Delta's schema has it)."""

    def __init__(self, *fields, features=None, properties=None):
        columns = ",".join(f'{{"name":"{name}","type":{kind},"nullable":true,"metadata":{{}}}}' for name, kind in fields)
        self._text = f'{{"type":"struct","fields":[{columns}]}}'
        self._features = features
        self._properties = properties or {}

    def schema(self):
        return Schema.from_json(self._text)

    def protocol(self):
        return type("Protocol", (), {"reader_features": self._features})

    def metadata(self):
        return type("Metadata", (), {"configuration": self._properties})


def struct(*fields):
    inner = ",".join(f'{{"name":"{name}","type":{kind},"nullable":true,"metadata":{{}}}}' for name, kind in fields)
    return f'{{"type":"struct","fields":[{inner}]}}'


def array(kind):
    return f'{{"type":"array","elementType":{kind},"containsNull":true}}'


def mapping(key, value):
    return f'{{"type":"map","keyType":{key},"valueType":{value},"valueContainsNull":true}}'


LONG, TEXT = '"long"', '"string"'


@pytest.mark.parametrize(
    ("delta", "iceberg"),
    [
        ('"boolean"', "boolean"),
        ('"short"', "int"),
        ('"integer"', "int"),
        (LONG, "long"),
        ('"float"', "float"),
        ('"double"', "double"),
        (TEXT, "string"),
        ('"binary"', "binary"),
        ('"date"', "date"),
        ('"timestamp"', "timestamptz"),
        ('"timestamp_ntz"', "timestamp"),
        ('"decimal(20,0)"', "decimal(20, 0)"),
    ],
)
def test_each_type_of_delta_has_one_in_iceberg(delta, iceberg):
    assert str(iceberg_schema(Version(("x", delta))).find_type("x")) == iceberg


def test_structs_lists_and_maps_are_nested_alike():
    inner = ("m", mapping(TEXT, struct(("b", TEXT))))
    schema = iceberg_schema(Version(("x", struct(("l", array(struct(("a", LONG)))), inner))))
    assert str(schema.find_type("x.l.element.a")) == "long"
    assert str(schema.find_type("x.m.value.b")) == "string"
    assert len(set(schema._lazy_id_to_name)) == 8


@pytest.mark.parametrize("kind", ["variant", "void", "interval year to month"])
def test_a_type_that_iceberg_lacks_is_refused_by_name(kind):
    with pytest.raises(NotInIcebergError, match=f"column x.v has the type {kind}, which Iceberg's format version 2"):
        iceberg_schema(Version(("x", struct(("v", f'"{kind}"')))))


@pytest.mark.parametrize(
    ("features", "properties", "named"),
    [
        (["deletionVectors"], {}, "deletionVectors"),
        (["typeWidening", "timestampNtz"], {}, "typeWidening"),
        (None, {"delta.columnMapping.mode": "name"}, "columnMapping"),
    ],
)
def test_a_table_whose_files_alone_do_not_say_its_rows_is_refused(features, properties, named):
    with pytest.raises(NotInIcebergError, match=f"know: {named}$"):
        refuse_foreign(Version(("x", LONG), features=features, properties=properties))


def test_times_without_a_zone_are_no_reason_to_refuse():
    refuse_foreign(Version(("x", LONG), features=["timestampNtz", "v2Checkpoint"]))


@pytest.fixture
def changed(tmp_path):
    return partial(_changed, tmp_path)


def _changed(folder, before, after):
    """The columns of an Iceberg table of one version, those after a change to another one, and whether they changed."""
    catalog = InMemoryCatalog("tests", warehouse=f"file://{folder}")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", iceberg_schema(before))
    old = table.schema()
    with table.update_schema(allow_incompatible_changes=True) as update:
        has_changed = change_columns(update, old, iceberg_schema(after))
    return old, table.schema(), has_changed


def ids(schema):
    return {schema.find_column_name(number): number for number in schema._lazy_id_to_name}


def test_columns_that_are_added_keep_the_ids_of_all_others(changed):
    inner = struct(("a", LONG))
    more = struct(("a", LONG), ("b", array(LONG)))
    before = Version(("x", LONG), ("s", inner), ("l", array(inner)), ("m", mapping(TEXT, inner)))
    after = Version(("x", LONG), ("s", more), ("l", array(more)), ("m", mapping(TEXT, more)), ("y", TEXT))
    old, new, has_changed = changed(before, after)
    assert has_changed
    assert ids(old).items() <= ids(new).items()
    added = ids(new).keys() - ids(old).keys()
    assert {"y", "s.b", "l.element.b", "m.value.b"} <= added
    assert min(ids(new)[name] for name in added) > max(ids(old).values())


def test_the_same_columns_change_nothing(changed):
    version = Version(("x", LONG), ("s", struct(("a", LONG))), ("m", mapping(TEXT, array(LONG))))
    old, new, has_changed = changed(version, version)
    assert not has_changed
    assert new.schema_id == old.schema_id


@pytest.mark.parametrize("to", [TEXT, array(LONG), struct(("a", LONG))])
def test_a_column_of_another_type_is_a_new_column_of_that_name(changed, to):
    old, new, _ = changed(Version(("x", LONG), ("y", LONG)), Version(("x", LONG), ("y", to)))
    assert ids(new)["y"] > max(ids(old).values())
    assert ids(new)["x"] == ids(old)["x"]


def test_a_list_whose_elements_have_another_type_is_a_new_column(changed):
    old, new, _ = changed(Version(("x", LONG), ("l", array(LONG))), Version(("x", LONG), ("l", array(TEXT))))
    assert ids(new)["l"] > max(ids(old).values())
    assert str(new.find_type("l.element")) == "string"


def test_a_column_that_is_gone_is_gone_and_no_name_leads_to_it(changed):
    old, new, _ = changed(Version(("x", LONG), ("y", LONG)), Version(("x", LONG)))
    assert "y" in ids(old)
    assert ids(new).keys() == {"x"}
    assert "y" not in create_mapping_from_schema(new).model_dump_json()
