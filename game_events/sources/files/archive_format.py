"""File format of a record archive: Parquet files of Kafka records (columns `RECORDS`), one row each.

The key-value metadata of each file marks it and holds the schemas of its records, so that it can be read without a registry.
"""

import json
from collections.abc import Iterable, Mapping

import pyarrow as pa

from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.decoding.core.wire_format import SchemaId, ordered
from game_events.sources.files.record_batches import KAFKA_COLUMNS

#: Key of the files' metadata; its value is the version of this format.
MARK, VERSION = b"game_events.archive", b"1"
SCHEMAS_KEY = b"game_events.schemas"
#: Format of an id that was unknown when the archive was written.
UNKNOWN = "UNKNOWN"

RECORDS = pa.schema(KAFKA_COLUMNS)


def marked_records(schemas: Iterable[RegistrySchema]) -> pa.Schema:
    """The files' Arrow schema with the metadata."""
    by_id = sorted(schemas, key=lambda s: ordered(s.schema_id))
    found = [{"id": s.schema_id, "format": s.format, "text": s.text, "references": s.references} for s in by_id]
    return RECORDS.with_metadata({MARK: VERSION, SCHEMAS_KEY: json.dumps(found).encode()})


def is_archive(schema: pa.Schema) -> bool:
    """Whether a file belongs to an archive; raises ValueError for a later version of the format."""
    version = (schema.metadata or {}).get(MARK)
    if version is not None and version != VERSION:
        raise ValueError(f"an archive of version {version.decode(errors='replace')}, which this version does not read")
    return version is not None


def schemas_of(schema: pa.Schema) -> Mapping[SchemaId, RegistrySchema]:
    """The schemas in a file's metadata, by id or GUID; raises ValueError for damaged metadata."""
    try:
        listed = json.loads((schema.metadata or {}).get(SCHEMAS_KEY, b"[]"))
        return {
            s["id"]: RegistrySchema(s["id"], s["format"], s["text"], tuple((n, t) for n, t in s["references"])) for s in listed
        }
    except (KeyError, TypeError) as error:
        raise ValueError(f"its schemas are damaged: {error!r}") from None
