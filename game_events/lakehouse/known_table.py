"""What is known of a table without opening it: as much as delta-rs would read of its columns and properties from the log."""

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
class KnownTable:
    """A version of a table without features: this process has just made the table, or a run before has noted it.

    It has the methods of delta-rs' table that need the columns and properties alone, by the same names: opening a table just to
    ask these takes 2 ms and more, and runs have thousands of tables.

    Attributes:
        uri: the table's folder.
        schema: its columns.
        id, name, description, partition_columns, created_time, configuration: its metadata; time: milliseconds since 1970.
        transactions: its transaction ids (None: it was never set).
        at: the version.
        has_all: no other transaction id was ever set.
    """

    uri: str
    schema: Schema
    id: str
    name: str
    description: str | None
    partition_columns: list[str]
    created_time: int
    configuration: dict[str, str]
    transactions: Mapping[str, int | None]
    at: int = 0
    has_all: bool = True

    def version(self) -> int:
        """The version."""
        return self.at

    def table_uri(self) -> str:
        """Where the table is, as an address. Source: URL standard, "path percent-encode set"."""
        return f"file://{quote(self.uri, safe=_UNQUOTED)}/"

    def metadata(self) -> KnownTable:
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
