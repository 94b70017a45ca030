"""The versions of a subject: their fields, changes and columns.

Origins of a table's columns: field, message, first schema, and comment.

From the lakehouse alone: the column map in bronze's metadata, the archived texts, the event log. Needs no registry, no Spark.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from game_events.decoding.columns import ColumnMap, Kept, field_key
from game_events.decoding.comments import clean, read_comments
from game_events.decoding.decoder import compile_schema, first_decoders
from game_events.decoding.frame import SchemaId, ordered
from game_events.decoding.schema_diff import Change, FieldColumn, compare, compare_enums, field_columns
from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.data.columns import column_map
from game_events.lakehouse.system_tables import read_events
from game_events.lakehouse.tables import BRONZE, Lakehouse
from game_events.pipeline.schemas.catalog import MAX_TYPES, SchemaCatalog
from game_events.pipeline.schemas.store import SchemaArchive
from game_events.schema_registry import SchemaRegistry, SubjectVersion

NOTHING = "nothing changed in fields or enums"

#: Changes that a line names.
NAMED = 5

CHANGE_COLUMNS = ("message", "field", "change", "before", "after", "column")


@dataclass(frozen=True)
class SchemaHistory:
    """The versions of a subject, with the columns of a lakehouse. Needs no Spark.

    `lakehouse`: its bronze table has the columns; without the table, a new one is assumed. `kept`: the columns that settings
    name (`kept_columns`).
    """

    registry: SchemaRegistry
    lakehouse: Lakehouse
    subject: str
    kept: Mapping[str, Kept] = field(default_factory=dict)

    def versions(self) -> list[SubjectVersion]:
        """All versions, oldest first; ConfigurationError if there is no such subject."""
        versions = self.registry.versions(self.subject)
        if not versions:
            raise ConfigurationError(
                f"the registry {self.registry.url} has no subject {self.subject!r}: is GAME_EVENTS_KAFKA_TOPIC right, and was "
                "anything produced to it? (another one: --subject)"
            )
        return versions

    def version(self, number: int | None) -> SubjectVersion:
        """One version (None: the newest); ConfigurationError if there is no such version."""
        versions = self.versions()
        chosen = [v for v in versions if number is None or v.version == number]
        if not chosen:
            raise ConfigurationError(
                f"subject {self.subject!r} has no version {number}; it has {', '.join(str(v.version) for v in versions)}"
            )
        return chosen[-1]

    def fields(self, version: SubjectVersion) -> list[FieldColumn]:
        """Fields with columns, of top-level message types and nested ones that occurred; DataError if it does not compile."""
        columns = self._columns()
        messages = self._catalog.messages(version.schema_id, columns.messages)
        for message, fields in messages.items():
            columns = columns.with_message(message, fields)
        return field_columns(messages, columns)

    def left_out(self, *versions: SubjectVersion) -> str:
        """A sentence about the message types that `fields` and `changes` leave out; empty if there are none."""
        occurred = self.occurred()
        counts = {v.version: self._catalog.left_out(v.schema_id, occurred) for v in versions}
        counted = [f"version {number}: {count:,}" for number, count in counts.items() if count]
        return f"only {MAX_TYPES:,} message types of a schema are compared; left out of {', '.join(counted)}" if counted else ""

    def occurred(self) -> frozenset[str]:
        """Full names of the message types that bronze has columns of."""
        return self._columns().messages

    def changes(self, old: SubjectVersion, new: SubjectVersion) -> list[Change]:
        """Changes of the fields in `fields`, and of the values of enums; DataError if a schema does not compile."""
        catalog = self._catalog
        columns = self._columns()
        ids = (old.schema_id, new.schema_id)
        before, after = (catalog.messages(schema_id, columns.messages) for schema_id in ids)
        return compare(before, after, columns) + compare_enums(*(catalog.require(schema_id).enums() for schema_id in ids))

    @cached_property
    def _catalog(self) -> SchemaCatalog:
        return SchemaCatalog(self.registry, self.lakehouse)

    def _columns(self) -> ColumnMap:
        bronze = self.lakehouse.table(BRONZE).open_to_read()
        return replace(column_map(bronze) if bronze is not None else ColumnMap(), kept=self.kept)


def as_line(changes: Sequence[Change]) -> str:
    """The first changes in one line: `device_id added, level renamed and 3 more changes`."""
    named = [f"{change.field or change.message} {change.kind}" for change in changes[:NAMED]]
    more = f" and {len(changes) - NAMED} more changes" if len(changes) > NAMED else ""
    return ", ".join(named) + more if named else NOTHING


def as_rows(changes: Sequence[Change]) -> list[dict[str, str]]:
    """The changes as rows of a table with the columns `CHANGE_COLUMNS`."""
    cells = ((c.message, c.field, c.kind, c.before or "", c.after or "", c.effect) for c in changes)
    return [dict(zip(CHANGE_COLUMNS, map(str, row), strict=True)) for row in cells]


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
    by_column: dict[tuple[str, str, str], ColumnOrigin] = {}
    for origin in _fields(lakehouse, known, versions):
        key = (origin.column, origin.message, origin.declared)
        first = by_column.get(key, origin)
        by_column[key] = replace(origin, first_schema=first.first_schema, first_version=first.first_version)
    return list(by_column.values())


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
    versions = {}
    for event in read_events(lakehouse, kind="schema").to_pylist():
        detail = json.loads(event["detail"]) if event["detail"] else {}
        if isinstance(detail.get("version"), int):
            versions[str(detail["schema_id"])] = detail["version"]
    return versions
