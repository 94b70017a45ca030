"""What a table asks for that this project does not keep: features that it cannot read or write, and constraints of rows.

Somebody else's ALTER TABLE adds them. A commit takes finished files: neither this project nor delta-rs checks rows against
NOT NULL, a CHECK constraint or an invariant. Readers rely on these: they would lose rows, or fail. So such a table is refused
before anything is written for it.

Source: Delta Lake protocol, "Table Features", "Requirements for Writers", "Column Invariants", "CHECK Constraints", "Generated
Columns", "Identity Columns", "Append-only Tables", "Schema Serialization Format".
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from deltalake import DeltaTable

from game_events.errors import DataError
from game_events.lakehouse.handle import of_columns
from game_events.lakehouse.retention import is_derived

#: Command that reads everything that the source still has.
REBUILD = "`game-events run --full-refresh bronze` with GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH=true"
#: Features that readers of single files would get wrong.
_UNREADABLE = frozenset({"deletionVectors", "columnMapping"})
#: Features that this project and delta-rs can write. Those with rows to check ask nothing without a constraint, an invariant or
#: a generated column, which are looked for.
WRITABLE_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "generatedColumns",
        "invariants",
        "timestampNanos",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)
#: Versions of the protocol for writers: the last one that asks for these features alone, and the one that lists features.
_LAST_PLAIN, _LISTED = 5, 7
#: Name of what an unlisted version asks for.
_IDENTITY = "identityColumns"
_MAPPING = "delta.columnMapping.mode"
_CONSTRAINT = "delta.constraints."
_APPEND_ONLY = "delta.appendOnly"
#: Beginning of a key in a column's metadata -> what it makes of the column.
_MARKS = {
    "delta.invariants": "has an invariant",
    "delta.generationExpression": "is a generated column",
    "delta.identity.": "is an identity column",
}
_NOT_NULL = ('"nullable":false', '"containsNull":false', '"valueContainsNull":false')


class Unsupported(NamedTuple):
    """One thing that a table asks for.

    `what`: in words. `undo`: what follows `ALTER TABLE ...` to take it back; empty: no such statement does.
    """

    what: str
    undo: str = ""


def refuse_unreadable(handle: DeltaTable, uri: str, key: str) -> None:
    """Raise DataError for a table with a feature without which its files cannot be read rightly."""
    found = of_columns(handle, _unreadable)
    if found:
        raise DataError(f"table {uri} uses {_named(found)}, which this version does not read. {_way_out(found, uri, key)}")


def refuse_unwritable(handle: DeltaTable, uri: str, key: str, *, partitioned: bool, replaced: bool) -> None:
    """Raise DataError for a table to which rows of this project cannot be committed.

    `partitioned`: the table may have any partition columns: it is replaced if it has others than it should. `replaced`: files
    of the table are replaced by others with other rows.
    """
    found = [*of_columns(handle, _unwritable)]
    if not partitioned:
        found += of_columns(handle, _partitions)
    if replaced:
        found += of_columns(handle, _append_only)
    if found:
        raise DataError(
            f"table {uri} was altered: {_named(found)}. Commits of game_events would break that, so nothing is written to the "
            f"table. {_way_out(found, uri, key)}"
        )


def is_made_again(key: str) -> bool:
    """Whether the next run makes a table again, by its key, from other tables if it is deleted."""
    return is_derived(key) or key.startswith("silver_")


def _named(found: Sequence[Unsupported]) -> str:
    return ", ".join(item.what for item in found)


def _way_out(found: Sequence[Unsupported], uri: str, key: str) -> str:
    undo = "; ".join(f"ALTER TABLE delta.`{uri}` {item.undo}" for item in found if item.undo)
    ways = [f"take it back by {undo}"] if undo else []
    if is_made_again(key):
        ways.append("delete the table: the next run makes it again")
    elif key.startswith(("bronze_", "quarantine_")):
        ways.append(f"delete the table and run {REBUILD}")
    return f"To go on, {', or '.join(ways or ['write the table again without it'])} (docs/maintenance.md)"


def _unreadable(handle: DeltaTable) -> tuple[Unsupported, ...]:
    protocol = handle.protocol()
    found = _UNREADABLE & set(protocol.reader_features or [])
    # Before features had names, readers of version 2 were those that know this one.
    if protocol.min_reader_version == 2 and handle.metadata().configuration.get(_MAPPING, "none") != "none":
        found |= {"columnMapping"}
    return tuple(Unsupported(name, f"DROP FEATURE {name}") for name in sorted(found))


def _unwritable(handle: DeltaTable) -> tuple[Unsupported, ...]:
    return (*_features(handle), *_constraints(handle.metadata().configuration), *_columns(handle.schema().to_json()))


def _features(handle: DeltaTable) -> Iterator[Unsupported]:
    """Features that only others can write."""
    protocol = handle.protocol()
    listed = protocol.writer_features or ([] if protocol.min_writer_version <= _LAST_PLAIN else [_IDENTITY])
    if protocol.min_writer_version > _LISTED:
        yield Unsupported(f"version {protocol.min_writer_version} of Delta's protocol for writers")
    # Others depend on this one: it can only be dropped after them.
    for name in sorted(listed, key=lambda name: name == "domainMetadata"):
        if name not in WRITABLE_FEATURES:
            first = f"CLUSTER BY NONE, then DROP FEATURE {name}" if name == "clustering" else f"DROP FEATURE {name}"
            yield Unsupported(f"the table feature {name}", first)


def _constraints(configuration: Mapping[str, str | None]) -> Iterator[Unsupported]:
    for key in sorted(configuration):
        if key.startswith(_CONSTRAINT):
            name = key.removeprefix(_CONSTRAINT)
            yield Unsupported(f"the CHECK constraint {name}", f"DROP CONSTRAINT {name}")


def _columns(schema: str) -> Iterator[Unsupported]:
    """Columns, nested ones too, with values that a writer would have to check or to make."""
    if any(text in schema for text in (*_NOT_NULL, *(f'"{mark}' for mark in _MARKS))):
        yield from _of_type(json.loads(schema), "")


def _of_type(kind: Mapping[str, Any] | str, path: str) -> Iterator[Unsupported]:
    """Of a type, and what is in it; `path`: of the column that has it."""
    if isinstance(kind, str):
        return
    for name, child, nullable, metadata in _children(kind):
        inner = f"{path}.{name}" if path else name
        if not nullable:
            yield Unsupported(f"column {inner} is NOT NULL", f"ALTER COLUMN {inner} DROP NOT NULL")
        for mark, what in _MARKS.items():
            if any(key.startswith(mark) for key in metadata):
                yield Unsupported(f"column {inner} {what}")
        yield from _of_type(child, inner)


def _children(kind: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool, Mapping[str, Any]]]:
    """Name, type, whether it may be NULL, and metadata of what a nested type has."""
    match kind["type"]:
        case "struct":
            for field in kind["fields"]:
                yield field["name"], field["type"], field["nullable"], field["metadata"]
        case "array":
            yield "element", kind["elementType"], kind["containsNull"], {}
        case "map":
            yield "key", kind["keyType"], True, {}
            yield "value", kind["valueType"], kind["valueContainsNull"], {}


def _partitions(handle: DeltaTable) -> tuple[Unsupported, ...]:
    columns = handle.metadata().partition_columns
    return (Unsupported(f"it is partitioned by {', '.join(columns)}"),) if columns else ()


def _append_only(handle: DeltaTable) -> tuple[Unsupported, ...]:
    """The property by which no row may be removed; compaction removes none."""
    if str(handle.metadata().configuration.get(_APPEND_ONLY, "")).lower() != "true":
        return ()
    return (Unsupported(f"{_APPEND_ONLY} forbids to replace rows", f"UNSET TBLPROPERTIES ('{_APPEND_ONLY}')"),)
