"""The table `schemas`: schema texts by id, so that rows can be decoded without the registry; append-only.

Guarantee: each id is in the table once, with one meaning, also with concurrent runs and crashes; once more, if a registry had
lost a reference of it and has it again.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import DeltaTable

from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.decoding.core.wire_format import SchemaId, SchemaRef
from game_events.errors import DataError
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.system_tables.system_table import SystemTable, schema_of
from game_events.lakehouse.tables import SCHEMAS, Lakehouse

_REFERENCES = pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("text", pa.string())]))
SCHEMA = schema_of(
    registry=(pa.string(), "Address of the registry that the text is from"),
    schema_id=(pa.int64(), "Id in the registry"),
    schema_guid=(pa.string(), "GUID, of schemas that records name by one"),
    format=(pa.string(), "PROTOBUF, AVRO or JSON"),
    text=(pa.string(), "Schema text as the registry had it"),
    references=(_REFERENCES, "Schemas that it refers to, with their texts"),
    digest=(pa.string(), "Hash of text and references"),
    archived_at=(pa.timestamp("us", tz="UTC"), "When its first record was read (UTC)"),
)


class SchemaArchive:
    """Reads and adds to the table."""

    def __init__(self, lakehouse: Lakehouse) -> None:
        description = "Schema texts by id, as the registry had them when their first record was read"
        self.declaration = SystemTable(lakehouse.table(SCHEMAS), SCHEMA, description)

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self.declaration.table.uri

    def read(self) -> dict[SchemaId, RegistrySchema]:
        """Every id with its schema."""
        return self._schemas(self.declaration.table.open())

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
        held = self._schemas(handle)
        for schema in schemas:
            require_same(held.get(schema.schema_id), schema, registry, self.uri)
        new = {s.schema_id: s for s in schemas if s.schema_id not in held or s.completes(held[s.schema_id])}
        if new:
            self.declaration.commit(handle, pa.Table.from_pylist([_row(s, registry) for s in new.values()], schema=SCHEMA))
        return new

    def _schemas(self, handle: DeltaTable | None) -> dict[SchemaId, RegistrySchema]:
        found: dict[SchemaId, RegistrySchema] = {}
        # Without the time: to make Python's times of times with a zone Arrow imports pandas.
        for row in self.declaration.read(handle, [name for name in SCHEMA.names if name != "archived_at"]).to_pylist():
            schema_id = SchemaRef(row["schema_id"], row["schema_guid"]).schema_id
            references = tuple((x["name"], x["text"]) for x in row["references"] or [])
            if schema_id is not None:
                schema = RegistrySchema(schema_id, row["format"], row["text"], references)
                if schema_id not in found or schema.completes(found[schema_id]):
                    found[schema_id] = schema
        return found


def require_same(archived: RegistrySchema | None, found: RegistrySchema, registry: str, uri: str) -> None:
    """Raise DataError (REGISTRY_CHANGED) if a registry's schema of an id has another meaning than the archived one.

    Not if a reference is only in one of them: a registry may lose one, or have it again.
    """
    if archived is not None and archived.contradicts(found):
        raise DataError(
            f"REGISTRY_CHANGED: {registry} gives schema id {found.schema_id} another meaning than the records "
            f"already read with it (archive: {uri}). Point GAME_EVENTS_SCHEMA_REGISTRY_URL at the right "
            "registry; if it was reset, restore it, or start a new lakehouse"
        )


def _row(schema: RegistrySchema, registry: str) -> Mapping[str, object]:
    number, guid = SchemaRef.of(schema.schema_id)
    return {
        "registry": registry,
        "schema_id": number,
        "schema_guid": guid,
        "format": schema.format,
        "text": schema.text,
        "references": [{"name": name, "text": text} for name, text in schema.references],
        "digest": schema.digest,
        "archived_at": datetime.now(UTC),
    }
