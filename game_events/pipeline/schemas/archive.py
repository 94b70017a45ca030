"""The table `schemas`: schema texts by id, append-only, so that rows can be decoded without the registry.

It is also the cache: runs go on while the registry is down, and a registry that gives an old id another schema is detected.

Guarantee: each id is in the table once, with one meaning, also with concurrent runs and crashes; once more, if a registry had
lost a reference of it and has it again.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from game_events.decoding.frame import RegistrySchema, SchemaId, SchemaRef
from game_events.decoding.schema_diff import difference
from game_events.errors import DataError
from game_events.lakehouse.commits.commit import retry_on_conflict
from game_events.lakehouse.data.reading import may_hold
from game_events.lakehouse.system_tables import SystemTable, schema_of
from game_events.lakehouse.tables import SCHEMAS, Lakehouse, add_actions

_REFERENCES = pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("text", pa.string())]))
SCHEMA = schema_of(
    registry=(pa.string(), "Address of the registry that the text is from"),
    schema_id=(pa.int64(), "Id in the registry"),
    schema_guid=(pa.string(), "GUID, of schemas that records name by one; us/7: id 7 in the registry of the source us"),
    format=(pa.string(), "PROTOBUF, AVRO or JSON"),
    text=(pa.string(), "Schema text as the registry had it"),
    references=(_REFERENCES, "Schemas that it refers to, with their texts"),
    digest=(pa.string(), "Hash of text and references"),
    archived_at=(pa.timestamp("us", tz="UTC"), "When its first record was read (UTC)"),
)

#: Without the time: to make Python's times of times with a zone Arrow imports pandas.
_READ_COLUMNS = [name for name in SCHEMA.names if name != "archived_at"]


class SchemaArchive:
    """Reads and adds to the table."""

    def __init__(self, lakehouse: Lakehouse) -> None:
        description = "Schema texts by id, as the registry had them when their first record was read"
        self.declaration = SystemTable(lakehouse.table(SCHEMAS), SCHEMA, description)

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self.declaration.table.uri

    def digests(self) -> dict[SchemaId, set[str]]:
        """Every id with the digests of its texts: more than one if a reference was lost; no text is read."""
        handle = self.declaration.table.open()
        rows = self.declaration.read(handle, ["schema_id", "schema_guid", "digest"])
        digests: dict[SchemaId, set[str]] = {}
        for row in rows.to_pylist():
            schema_id = SchemaRef(row["schema_id"], row["schema_guid"]).schema_id
            if schema_id is not None:
                digests.setdefault(schema_id, set()).add(row["digest"])
        return digests

    def read(self, schema_ids: Collection[SchemaId] | None = None) -> dict[SchemaId, RegistrySchema]:
        """Ids with their schemas: all, or those of some; only files that may have them are read."""
        return self._schemas(self.declaration.table.open(), schema_ids)

    @retry_on_conflict()
    def add(self, schemas: Sequence[RegistrySchema], registry: str) -> dict[SchemaId, RegistrySchema]:
        """Add what is not there yet, in one commit.

        Returns:
            what was added; a concurrent run may have added the same ids before.

        Raises:
            DataError: REGISTRY_CHANGED, another meaning of one of these ids is archived.
            ConflictError: concurrent runs won every attempt.
        """
        handle = self.declaration.table.open()
        archived = self._schemas(handle, [schema.schema_id for schema in schemas])
        new: dict[SchemaId, RegistrySchema] = {}
        for schema in schemas:
            known = archived.get(schema.schema_id)
            changed = difference(known, schema) if known is not None else None
            if changed is not None:
                raise DataError(f"REGISTRY_CHANGED: {registry_changed(schema.schema_id, changed, registry, self.uri)}")
            if known is None or schema.completes(known):
                new[schema.schema_id] = schema
        if new:
            self.declaration.commit(handle, pa.Table.from_pylist([_row(s, registry) for s in new.values()], schema=SCHEMA))
        return new

    def _schemas(self, handle: DeltaTable | None, schema_ids: Collection[SchemaId] | None) -> dict[SchemaId, RegistrySchema]:
        paths = None if handle is None or schema_ids is None else _paths(handle, schema_ids)
        if paths == []:
            return {}
        schemas: dict[SchemaId, RegistrySchema] = {}
        for row in self.declaration.read(handle, _READ_COLUMNS, paths).to_pylist():
            schema = _schema_of(row)
            schema_id = schema.schema_id
            if schema_ids is not None and schema_id not in schema_ids:
                continue
            if schema_id not in schemas or schema.completes(schemas[schema_id]):
                schemas[schema_id] = schema
        return schemas


def _schema_of(row: Mapping[str, Any]) -> RegistrySchema:
    schema_id = row["schema_guid"] if row["schema_id"] is None else row["schema_id"]
    references = tuple((part["name"], part["text"]) for part in row["references"] or [])
    return RegistrySchema(schema_id, row["format"], row["text"], references)


def _paths(handle: DeltaTable, schema_ids: Collection[SchemaId]) -> list[str]:
    """Files that may have rows of these ids, by their statistics."""
    files = add_actions(handle)
    chosen: set[str] = set()
    numbers = [schema_id for schema_id in schema_ids if isinstance(schema_id, int)]
    guids = [schema_id for schema_id in schema_ids if isinstance(schema_id, str)]
    if numbers:
        chosen.update(files.filter(may_hold(files, "schema_id", min(numbers), max(numbers)))["path"].to_pylist())
    if guids:
        chosen.update(files.filter(may_hold(files, "schema_guid", min(guids), max(guids)))["path"].to_pylist())
    return sorted(chosen)


def registry_changed(schema_id: SchemaId, changed: str, registry: str, uri: str) -> str:
    """The message for a registry's schema of an id that decodes otherwise than the archived one: `changed`, as `difference`."""
    return (
        f"{registry} gives schema id {schema_id} another meaning than the records already read with it "
        f"(archive: {uri}): {changed}. Point GAME_EVENTS_SCHEMA_REGISTRY_URL at the right registry, or restore it, and replay: "
        "`game-events quarantine replay --reason REGISTRY_CHANGED`"
    )


def _row(schema: RegistrySchema, registry: str) -> Mapping[str, object]:
    is_number = isinstance(schema.schema_id, int)
    return {
        "registry": registry,
        "schema_id": schema.schema_id if is_number else None,
        "schema_guid": None if is_number else schema.schema_id,
        "format": schema.format,
        "text": schema.text,
        "references": [{"name": name, "text": text} for name, text in schema.references],
        "digest": schema.digest,
        "archived_at": datetime.now(UTC),
    }
