"""Schema evolution: adding columns and nested fields to a table, and comparing column types."""

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError

from game_events.decoding.core.column_map import METADATA_KEY
from game_events.decoding.core.column_types import type_name
from game_events.errors import ConflictError, DataError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.column_map_merge import merge_shares, refuse_other_case
from game_events.lakehouse.descriptions import DESCRIBING, metadata_of
from game_events.lakehouse.retention import KEEP_LOG
from game_events.lakehouse.tables import Table

#: Attempts to evolve a schema that concurrent writers evolve, too.
EVOLVE_ATTEMPTS = 5


def evolve(table: Table, handle: DeltaTable, wanted: pa.Schema, *, owns_map: bool = False) -> DeltaTable:
    """Add missing columns and nested fields in a separate commit; types never change.

    `create_write_transaction` with new columns would fail silently.

    `owns_map`: merge the column map with what concurrent writers have added to it. Returns a handle on the version that has the
    columns.

    Raises:
        ConflictError: concurrent writers keep changing the schema, or gave one of these fields another column.
        DataError: a column of the table has another type, or a name that differs by case alone.
    """
    for _ in range(EVOLVE_ATTEMPTS):
        _refuse_changed_types(table, handle, wanted)
        new, metadata = _missing(handle, wanted)
        refuse_other_case(table.name, (f.name for f in handle.schema().fields), (f.name for f in new), concurrent=owns_map)
        if owns_map:
            metadata = _merged_map(table, handle, wanted, metadata)
        if not new and not metadata:
            return handle
        table.require_writable()
        try:
            if new:
                handle.alter.add_columns(new, post_commithook_properties=KEEP_LOG)
                failpoints.reach("columns_added", table.name)
            for column, values in metadata.items():
                handle.alter.set_column_metadata(column, values, post_commithook_properties=KEEP_LOG)
        except CommitFailedError:
            pass  # a concurrent writer evolved it first: compare again
        reopened = table.open()
        if reopened is None:
            raise ConflictError(f"{table.name} was removed while its schema evolved")
        handle = reopened
    raise ConflictError(f"{table.name}: its schema keeps changing: concurrent writers changed it {EVOLVE_ATTEMPTS} times")


def _refuse_changed_types(table: Table, handle: DeltaTable, wanted: pa.Schema) -> None:
    other = changed_types(handle, wanted)
    if other:
        raise DataError(
            f"{table.name}: the table's types are others than those of the new rows: {'; '.join(other)}. Give the columns "
            "other names, or refresh this table fully: that gives it the new types"
        )


def _missing(handle: DeltaTable, wanted: pa.Schema) -> tuple[list[Field], dict[str, dict[str, str]]]:
    """Columns to add (also for new nested fields), and column -> metadata to set."""
    known = {f.name: f for f in handle.schema().fields}
    arrow = pa.schema(handle.schema())
    new: list[Field] = []
    metadata: dict[str, dict[str, str]] = {}
    for item in wanted:
        target = Field.from_arrow(item)
        if item.name not in known:
            new.append(target)
            continue
        held = known[item.name].metadata
        if _adds(arrow.field(item.name).type, item.type):
            new.append(Field(item.name, target.type, nullable=True, metadata=held))
        extra = {key: value for key, value in metadata_of(item).items() if key not in DESCRIBING}
        if any(held.get(key) != value for key, value in extra.items()):
            metadata[item.name] = extra
    return new, metadata


def _merged_map(
    table: Table, handle: DeltaTable, wanted: pa.Schema, metadata: dict[str, dict[str, str]]
) -> dict[str, dict[str, str]]:
    """Changes of metadata that keep what concurrent writers have added to the column map."""
    held = {f.name: f.metadata for f in handle.schema().fields}
    shares = merge_shares(table.name, held.items(), ((f.name, Field.from_arrow(f).metadata) for f in wanted))
    merged = {column: {k: v for k, v in values.items() if k != METADATA_KEY} for column, values in metadata.items()}
    for column in shares.keys() & held.keys():
        merged.setdefault(column, {})[METADATA_KEY] = shares[column]
    return {column: values for column, values in merged.items() if values}


def changed_types(handle: DeltaTable, wanted: pa.Schema) -> list[str]:
    """Descriptions of the columns with another type in a table than wanted; missing columns and fields are fine."""
    held = pa.schema(handle.schema())
    return [
        f"{f.name} is {type_name(held.field(f.name).type)} in the table and {type_name(f.type)} in the rows"
        for f in _as_delta(wanted)
        if f.name in held.names and _differ(held.field(f.name).type, f.type)
    ]


def same_columns(handle: DeltaTable, wanted: pa.Schema) -> bool:
    """Whether a table has exactly these columns, with these types."""
    held, new = pa.schema(handle.schema()), _as_delta(wanted)
    if set(held.names) != set(new.names) or changed_types(handle, wanted):
        return False
    return not any(_adds(f.type, held.field(f.name).type) or _adds(held.field(f.name).type, f.type) for f in new)


def _as_delta(schema: pa.Schema) -> pa.Schema:
    """A schema converted to Delta's types and back: they have one form of text, list and so on."""
    return pa.schema(Schema.from_arrow(schema))


def _adds(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether the new type has nested fields that the old one lacks."""
    (kind, have), (other, wanted) = _nested(old), _nested(new)
    return kind == other and any(name not in have or _adds(have[name], item) for name, item in wanted.items())


def _differ(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether two types differ in more than the fields of structs."""
    (kind, have), (other, wanted) = _nested(old), _nested(new)
    if kind != other or not kind:
        return bool(old != new)
    return any(name in have and _differ(have[name], item) for name, item in wanted.items())


def _nested(item: pa.DataType) -> tuple[str, dict[str, pa.DataType]]:
    """Kind of a nested type and the types in it, by name; no kind for any other type."""
    if pa.types.is_struct(item):
        return "struct", {f.name: f.type for f in item}
    if pa.types.is_map(item):
        return "map", {"key": item.key_type, "value": item.item_type}
    if pa.types.is_list(item) or pa.types.is_large_list(item):
        return "list", {"element": item.value_type}
    return "", {}
