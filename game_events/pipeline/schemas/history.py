"""The versions of a subject: their fields, changes and columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from game_events.decoding.core.column_map import ColumnMap
from game_events.decoding.core.kept_columns import Kept
from game_events.decoding.schema_diff import Change, FieldColumn, compare, compare_enums, field_columns
from game_events.errors import ConfigurationError
from game_events.lakehouse.event_columns import column_map
from game_events.lakehouse.tables import BRONZE, Lakehouse
from game_events.pipeline.schemas.catalog import MAX_TYPES, SchemaCatalog
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
        found = self.registry.versions(self.subject)
        if not found:
            raise ConfigurationError(
                f"the registry {self.registry.url} has no subject {self.subject!r}: is GAME_EVENTS_KAFKA_TOPIC right, and was "
                "anything produced to it? (another one: --subject)"
            )
        return found

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
        catalog, columns, ids = self._catalog, self._columns(), (old.schema_id, new.schema_id)
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
