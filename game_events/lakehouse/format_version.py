"""The version of the tables' own format, kept in each table: newer code reads older tables, older code refuses newer ones.

It is in the metadata of a table's first column, as delta-rs takes no table properties but Delta's own.
"""

import pyarrow as pa
from deltalake import DeltaTable

from game_events.errors import ConfigurationError

#: Increased when tables are written in a way that earlier code would misread. 2: partitioned tables; earlier code
#: would add their files without the partition.
FORMAT, PARTITIONED = 1, 2
KEY = "game_events.format"


def marked(schema: pa.Schema, *, partitioned: bool = False) -> pa.Schema:
    """A schema with the format in its metadata."""
    first = schema.field(0)
    return schema.set(0, first.with_metadata((first.metadata or {}) | {KEY: str(PARTITIONED if partitioned else FORMAT)}))


def unmarked(schema: pa.Schema) -> pa.Schema:
    """A schema without the format: columns of another table, which may have another one."""
    fields = [f.with_metadata({k: v for k, v in (f.metadata or {}).items() if k != KEY.encode()}) for f in schema]
    return pa.schema(fields, schema.metadata)


def format_of(handle: DeltaTable) -> int:
    """A table's format; tables without the key have the first one."""
    fields = handle.schema().fields
    return int(fields[0].metadata.get(KEY, 1)) if fields else 1


def refuse_newer(handle: DeltaTable) -> None:
    """Raise ConfigurationError for a table whose format is newer than this code, which would misread it."""
    found = format_of(handle)
    if found > PARTITIONED:
        raise ConfigurationError(
            f"table {handle.table_uri} has format {found}, this version of game_events reads formats up to {PARTITIONED}: "
            "update game_events, or use the lakehouse of this version"
        )
