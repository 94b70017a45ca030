"""Origins of a table's columns: field, message, first schema, and comment.

From the lakehouse alone: the column map in bronze's metadata, the archived texts, the event log. Needs no registry, no Spark.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from game_events.decoding.comments import clean, read_comments
from game_events.decoding.compiler import compile_schema, first_decoders
from game_events.decoding.core.column_map import ColumnMap, field_key
from game_events.decoding.core.wire_format import SchemaId, ordered
from game_events.decoding.schema_diff import field_columns
from game_events.errors import DataError
from game_events.lakehouse.event_columns import column_map
from game_events.lakehouse.system_tables.event_log import read_events
from game_events.lakehouse.system_tables.schema_archive import SchemaArchive
from game_events.lakehouse.tables import BRONZE, Lakehouse


@dataclass(frozen=True)
class ColumnOrigin:
    """One field of a column.

    Attributes:
        column: the column, nested ones as `place.city`.
        message, field: the message type, and the field's path of names in the newest schema that has it.
        declared: its type there.
        comment: its comment there.
        first_schema: id of the first schema that has it.
        first_version: that schema's version of the topic's subject, where the event log has it.
    """

    column: str
    message: str
    field: str
    declared: str
    comment: str
    first_schema: SchemaId
    first_version: int | None


def origins(lakehouse: Lakehouse) -> list[ColumnOrigin]:
    """Every field with a column in bronze, and so in silver, in the order of versions."""
    bronze = lakehouse.table(BRONZE).open_to_read()
    known = column_map(bronze) if bronze is not None else ColumnMap()
    versions = _versions(lakehouse)
    found: dict[tuple[str, str, str], ColumnOrigin] = {}
    for origin in _fields(lakehouse, known, versions):
        key = (origin.column, origin.message, origin.declared)
        first = found.get(key, origin)
        found[key] = replace(origin, first_schema=first.first_schema, first_version=first.first_version)
    return list(found.values())


def _fields(lakehouse: Lakehouse, known: ColumnMap, versions: Mapping[str, int]) -> Iterator[ColumnOrigin]:
    """The fields of each schema, with that schema as the first one."""
    archived = SchemaArchive(lakehouse).read()
    # By version first: a later version has the smaller id if another subject had the same text before.
    for schema_id in sorted(archived, key=lambda i: (versions.get(str(i), 0), ordered(i))):
        schema = archived[schema_id]
        comments = read_comments(schema)
        try:
            compiled = compile_schema(schema)
            # Message types that never occurred have no columns.
            wanted = {None, *known.messages}
            paths = [p for p in compiled.paths(known.messages) if compiled.name_of(p) in wanted]
            decoders = first_decoders(compiled, paths)
        except DataError:  # its records are in quarantine
            continue
        for decoder in decoders:
            fields = [f for f in decoder.fields if field_key(decoder.message, (f.id,), f.kind) in known.names]
            columns = known.with_message(decoder.message, fields)
            for item in field_columns({decoder.message: fields}, columns):
                text = clean(comments.of(decoder.message, tuple(item.names.split("."))))
                version = versions.get(str(schema_id))
                yield ColumnOrigin(item.column, item.message, item.names, item.declared, text, schema_id, version)


def _versions(lakehouse: Lakehouse) -> dict[str, int]:
    """Schema id -> version, from the event log."""
    found = {}
    for event in read_events(lakehouse, kind="schema").to_pylist():
        detail = json.loads(event["detail"]) if event["detail"] else {}
        if isinstance(detail.get("version"), int):
            found[str(detail["schema_id"])] = detail["version"]
    return found
