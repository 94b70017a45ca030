"""What this process knows of a table that it has just made: as much as delta-rs would read from its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from deltalake import Schema

#: Versions of the protocol, for readers and for writers, of a table without features.
PLAIN_READER, PLAIN_WRITER = 1, 2
#: Beside letters, digits and `_.-~`.
_UNQUOTED = "/!$&'()*+,:;=@[]|^"


@dataclass(frozen=True)
class MadeTable:
    """Version 0 of a table without features, as this process has written it.

    It has the methods of delta-rs' table that need the columns and properties alone, by the same names: opening a table just to
    ask these takes 2 ms, and a first load makes thousands of tables.

    Attributes:
        uri: the table's folder.
        schema: its columns.
        id, name, description, partition_columns, created_time, configuration: its metadata; time: milliseconds since 1970.
        transactions: all its transaction ids.
    """

    uri: str
    schema: Schema
    id: str
    name: str
    description: str | None
    partition_columns: list[str]
    created_time: int
    configuration: dict[str, str]
    transactions: Mapping[str, int]

    def version(self) -> int:
        """The version."""
        return 0

    def table_uri(self) -> str:
        """Where the table is, as an address. Source: URL standard, "path percent-encode set"."""
        return f"file://{quote(self.uri, safe=_UNQUOTED)}/"

    def metadata(self) -> MadeTable:
        """The metadata."""
        return self

    def protocol_versions(self) -> tuple[int, int, None, None]:
        """Versions for readers and writers, and features of each."""
        return PLAIN_READER, PLAIN_WRITER, None, None

    def actions(self) -> list[dict[str, Any]]:
        """The actions of the log's first entry that say this (Delta Lake protocol, "Change Metadata", "Protocol Evolution")."""
        metadata = {
            "id": self.id,
            "name": self.name,
            "description": self.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self.schema.to_json(),
            "partitionColumns": self.partition_columns,
            "createdTime": self.created_time,
            "configuration": self.configuration,
        }
        return [{"protocol": {"minReaderVersion": PLAIN_READER, "minWriterVersion": PLAIN_WRITER}}, {"metaData": metadata}]
