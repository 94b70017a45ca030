"""The table `schemas`: texts by id as the registry had them, so that rows can be decoded without it; append-only.

Guarantee: each id is there once, with one meaning, however many runs meet it at the same time and wherever they crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import DeltaTable

from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.decoding.core.wire_format import SchemaId, SchemaRef
from game_events.errors import DataError
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.system_tables.system_table import SystemTable
from game_events.lakehouse.tables import SCHEMAS, Lakehouse

SCHEMA = pa.schema(
    [
        pa.field("registry", pa.string()),
        pa.field("schema_id", pa.int64()),
        pa.field("schema_guid", pa.string()),
        pa.field("format", pa.string()),
        pa.field("text", pa.string()),
        pa.field("references", pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("text", pa.string())]))),
        pa.field("digest", pa.string()),
        pa.field("archived_at", pa.timestamp("us", tz="UTC")),
    ]
)


class SchemaArchive:
    """Reads and adds to the table."""

    def __init__(self, lakehouse: Lakehouse) -> None:
        description = "Schema texts by id, as the registry had them when their first record was read"
        self._table = SystemTable(lakehouse.table(SCHEMAS), SCHEMA, description)

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self._table.table.uri

    def read(self) -> dict[SchemaId, RegistrySchema]:
        """Every id with its schema."""
        return self._schemas(self._table.table.open())

    @retry_on_conflict()
    def add(self, schemas: Sequence[RegistrySchema], registry: str) -> dict[SchemaId, RegistrySchema]:
        """Add what is not there yet, in one commit.

        Returns:
            what was added; a rival that met the same ids may have added them before.

        Raises:
            DataError: REGISTRY_CHANGED, a rival has archived another meaning of one of these ids.
            ConflictError: rivals won every attempt.
        """
        handle = self._table.table.open()
        held = self._schemas(handle)
        for schema in schemas:
            require_same(held.get(schema.schema_id), schema, registry, self.uri)
        new = {s.schema_id: s for s in schemas if s.schema_id not in held}
        if new:
            self._table.commit(handle, pa.Table.from_pylist([_row(s, registry) for s in new.values()], schema=SCHEMA))
        return new

    def _schemas(self, handle: DeltaTable | None) -> dict[SchemaId, RegistrySchema]:
        found: dict[SchemaId, RegistrySchema] = {}
        for row in self._table.read(handle).to_pylist():
            schema_id = SchemaRef(row["schema_id"], row["schema_guid"]).schema_id
            references = tuple((x["name"], x["text"]) for x in row["references"] or [])
            if schema_id is not None:
                found[schema_id] = RegistrySchema(schema_id, row["format"], row["text"], references)
        return found


def require_same(archived: RegistrySchema | None, found: RegistrySchema, registry: str, uri: str) -> None:
    """Compare what a registry says of an id with what it said before.

    Raises:
        DataError: REGISTRY_CHANGED, it is another schema.
    """
    if archived is not None and found.digest != archived.digest:
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
