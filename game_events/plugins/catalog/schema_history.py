"""History of schemas: what a version of a subject changed, with the effects on columns, and where a table's columns come from.

The changes need the registry and bronze's column map; the origins the lakehouse alone: that map, the archived texts, the event
log. Neither needs Spark.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, partial

from game_events.config.settings import Settings
from game_events.decoding.columns import ColumnMap, Field, FieldId, Kept, field_key, path_inside
from game_events.decoding.comments import clean, read_comments
from game_events.decoding.decoder import compile_schema, first_decoders
from game_events.decoding.frame import SchemaId, ordered
from game_events.decoding.projection import EnumValues
from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.data.columns import column_map
from game_events.lakehouse.system_tables import read_events
from game_events.lakehouse.tables import BRONZE, Lakehouse
from game_events.pipeline.schemas.archive import SchemaArchive
from game_events.pipeline.schemas.catalog import MAX_TYPES, SchemaCatalog
from game_events.schema_registry import SchemaLimits, SchemaLookup, SchemaRegistry, SubjectVersion
from game_events.sources.factory import class_of

#: Message full name -> its fields, in one schema version.
Messages = Mapping[str, Sequence[Field]]
Path = tuple[FieldId, ...]


class Kind(StrEnum):
    """Kind of change of a field, a message type, or an enum's value."""

    MESSAGE_ADDED = "message added"
    MESSAGE_REMOVED = "message removed"
    ADDED = "added"
    REMOVED = "removed"
    RENAMED = "renamed"
    RETYPED = "type changed"
    VALUE_ADDED = "enum value added"
    VALUE_REMOVED = "enum value removed"
    VALUE_RENAMED = "enum value renamed"


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
        kind: kind of change.
        message: full name of the message type, or of the enum.
        field: path of names, or the value's name, in the newest version that has it; empty for a whole message.
        before, after: declaration in each version, if any.
        effect: effect on the column and on older rows.
    """

    kind: Kind
    message: str
    field: str
    before: str | None
    after: str | None
    effect: str

    def to_dict(self) -> dict[str, str | None]:
        """For `--json` and metadata."""
        return {
            "change": str(self.kind), "message": self.message, "field": self.field,
            "before": self.before, "after": self.after, "effect": self.effect,
        }  # fmt: skip


@dataclass(frozen=True)
class FieldColumn:
    """A field and its column."""

    message: str
    path: Path
    names: str
    field: Field
    column: str

    @property
    def declared(self) -> str:
        """The type as declared; for Avro and JSON as stored."""
        return self.field.declared or self.field.kind


def field_columns(messages: Messages, columns: ColumnMap) -> list[FieldColumn]:
    """All fields of a version, nested ones after their parents, with their columns in a map that has the version."""

    def walk(message: str, fields: Sequence[Field], path: Path, names: str, column: str, keys: Path) -> Iterator[FieldColumn]:
        for item in fields:
            key = (*keys, item.id)
            own = columns.names[field_key(message, key, item.kind)]
            made = FieldColumn(message, (*path, item.id), names + item.name, item, column + own)
            yield made
            yield from walk(message, item.children, made.path, f"{made.names}.", f"{made.column}.", path_inside(key, item))

    return [made for message, fields in messages.items() for made in walk(message, fields, (), "", "", ())]


def compare(old: Messages, new: Messages, columns: ColumnMap | None = None) -> list[Change]:
    """Changes from `old` to `new`; `columns`: map of the table, default: of one that begins with the old version."""
    known = columns if columns is not None else ColumnMap()
    for version in (old, new):
        for message, fields in version.items():
            known = known.with_message(message, fields)
    changes = []
    for message in sorted(set(old) | set(new)):
        if message not in old:
            effect = "its columns are added; shared by name and type"
            changes.append(Change(Kind.MESSAGE_ADDED, message, "", None, message, effect))
        elif message not in new:
            changes.append(Change(Kind.MESSAGE_REMOVED, message, "", message, None, "its columns stay"))
        else:
            before = {f.path: f for f in field_columns({message: old[message]}, known)}
            after = {f.path: f for f in field_columns({message: new[message]}, known)}
            changes += _changes(before, after)
    return changes


def compare_enums(old: Mapping[str, EnumValues], new: Mapping[str, EnumValues]) -> list[Change]:
    """Changes of enums that both versions have; they do not affect columns."""
    changes = []
    for enum in sorted(set(old) & set(new)):
        for known_by in {**old[enum], **new[enum]}:
            number = f" = {known_by}" if isinstance(known_by, int) else ""
            change = _value_change(enum, number, old[enum].get(known_by), new[enum].get(known_by))
            if change is not None:
                changes.append(change)
    return changes


def _value_change(enum: str, number: str, was: str | None, now: str | None) -> Change | None:
    """The change of an enum's value, by its names; `number`: what follows them in a declaration."""
    before = f"{was}{number}"
    after = f"{now}{number}"
    if was is None:
        return Change(Kind.VALUE_ADDED, enum, now or "", None, after, f"rows of this version may hold {now}")
    if now is None:
        return Change(Kind.VALUE_REMOVED, enum, was, before, None, f"older rows keep {was}")
    if was == now:
        return None
    return Change(Kind.VALUE_RENAMED, enum, now, before, after, f"rows of this version hold {now}, older rows keep {was}")


def _changes(before: Mapping[Path, FieldColumn], after: Mapping[Path, FieldColumn]) -> Iterator[Change]:
    """Changes of the fields of one message type, without those below an added or removed field."""
    for path in sorted(set(before) | set(after), key=lambda path: [(isinstance(step, str), step) for step in path]):
        if all((path[:n] in before) == (path[:n] in after) for n in range(1, len(path))):
            change = _change(before.get(path), after.get(path))
            if change is not None:
                yield change


def _change(before: FieldColumn | None, after: FieldColumn | None) -> Change | None:
    newest = after or before
    assert newest is not None  # noqa: S101 - a path is of one of them
    if before is None:
        kind = Kind.ADDED
        effect = f"column {newest.column}; NULL in rows of older versions"
    elif after is None:
        kind = Kind.REMOVED
        effect = f"column {newest.column} stays; NULL in rows of this version"
    else:
        effect = f"the same column {after.column}"
        if before.column != after.column:
            effect = f"column {before.column} stays for older rows; rows of this version in {after.column}"
        if (before.field.declared, before.field.kind) != (after.field.declared, after.field.kind):
            kind = Kind.RETYPED
        elif before.field.name != after.field.name:
            kind = Kind.RENAMED
        else:
            return None
    declared = [None if version is None else f"{version.declared} {version.field.name}" for version in (before, after)]
    return Change(kind, newest.message, newest.names, declared[0], declared[1], effect)


NOTHING = "nothing changed in fields or enums"
#: Changes that a line names.
NAMED = 5
CHANGE_COLUMNS = ("message", "field", "change", "before", "after", "column")


def registry_of(settings: Settings, limits: SchemaLimits | None = None) -> SchemaLookup:
    """The registry of the settings, or those of several sources."""
    connect = partial(SchemaRegistry, limits=limits)
    return class_of(settings).lookup(settings, connect) if settings.sources else connect(settings)


@dataclass(frozen=True)
class SchemaHistory:
    """The versions of a subject, with the columns of a lakehouse. Needs no Spark.

    `lakehouse`: its bronze table has the columns; without the table, a new one is assumed. `kept`: the columns that settings
    name (`kept_columns`).
    """

    registry: SchemaLookup
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
