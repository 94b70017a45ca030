"""Tables as somebody else's ALTER TABLE leaves them: its entry of the log, as Spark writes it."""

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

Schema = dict[str, Any]


def altered(
    table: Any,
    *,
    features: Collection[str] = (),
    reader: Collection[str] = (),
    properties: Mapping[str, str] | None = None,
    change: Callable[[Schema], object] = lambda _: None,
    actions: Iterable[Mapping[str, Any]] = (),
) -> int:
    """Write the next version of a table, with more features of the protocol, properties, or another schema; returns it.

    `reader`: those of the features that readers have to know, too. `change`: changes the schema, as JSON has it. `actions`:
    further ones.
    """
    handle = DeltaTable(table.uri)
    metadata, version, now = handle.metadata(), handle.version() + 1, int(time.time() * 1000)
    schema = json.loads(handle.schema().to_json())
    change(schema)
    entry: list[Mapping[str, Any]] = [
        {"commitInfo": {"timestamp": now, "operation": "CHANGE COLUMN", "inCommitTimestamp": now}}
    ]
    if features:
        protocol: dict[str, Any] = {"minReaderVersion": 3 if reader else 1, "minWriterVersion": 7}
        protocol["writerFeatures"] = ["appendOnly", "invariants", *features]
        entry.append({"protocol": protocol | ({"readerFeatures": list(reader)} if reader else {})})
    described = {
        "id": str(metadata.id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema, separators=(",", ":")),
        "partitionColumns": metadata.partition_columns,
        "configuration": {**metadata.configuration, **(properties or {})},
        "createdTime": now,
    }
    entry += [{"metaData": described}, *actions]
    Path(table.uri, "_delta_log", f"{version:020}.json").write_text("".join(json.dumps(line) + "\n" for line in entry))
    return version


def not_null(*path: str) -> Callable[[Schema], None]:
    """A change of a schema: a column, or a field in it, becomes NOT NULL; `element` and `value` are those of lists and maps."""

    def change(schema: Schema) -> None:
        kind = schema
        for name in path[:-1]:
            kind = _child(kind, name)
        name = path[-1]
        if kind["type"] == "struct":
            next(f for f in kind["fields"] if f["name"] == name)["nullable"] = False
        else:
            kind["containsNull" if kind["type"] == "array" else "valueContainsNull"] = False

    return change


def _child(kind: Schema, name: str) -> Schema:
    if kind["type"] == "struct":
        return next(f["type"] for f in kind["fields"] if f["name"] == name)
    return kind["elementType" if name == "element" else "valueType"]


def with_metadata(column: str, **metadata: Any) -> Callable[[Schema], None]:
    """A change of a schema: a column gets metadata; `_` in a key stands for a dot, unless it is in
    capitals."""

    def change(schema: Schema) -> None:
        found = next(f for f in schema["fields"] if f["name"] == column)
        found["metadata"].update({key if key.isupper() else key.replace("_", "."): value for key, value in metadata.items()})

    return change


def without_statistics(table: Any) -> None:
    """The log has no statistics of the present files any more, as after another engine's OPTIMIZE with these switched off."""
    off = {"delta.checkpoint.writeStatsAsJson": "false", "delta.checkpoint.writeStatsAsStruct": "false"}
    DeltaTable(table.uri).alter.set_table_properties(off)
    DeltaTable(table.uri).create_checkpoint()
