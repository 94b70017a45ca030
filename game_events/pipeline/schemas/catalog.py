"""Schema catalog: decode plans, message types and comments, by schema id. Runs in the driver.

A column has the comment of the newest schema of its rows: an older schema id never replaces the comment of a newer one, so
producers of several versions do not alternate it. Nothing but comments depends on this.
"""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import replace

import pyarrow as pa
from deltalake import DeltaTable

from game_events.decoding.columns import ColumnMap, Field, Kept, ValueRules, field_key
from game_events.decoding.comments import clean
from game_events.decoding.decoder import DecodePlan, TypeKey, first_decoders
from game_events.decoding.frame import IndexPath, Reason, SchemaId, ordered
from game_events.decoding.projection import CompiledSchema
from game_events.decoding.protobuf.schema import ProtobufSchema
from game_events.errors import DataError
from game_events.lakehouse.data.columns import with_comments
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.schemas.store import RegistryChangedError, SchemaStore
from game_events.schema_registry import SchemaLookup

log = logging.getLogger(__name__)
#: Message types of one schema that are described; records of the others are decoded, too.
MAX_TYPES = 1_000

BRONZE_DESCRIPTION = "Every decodable record of the source, once, decoded by its writer's schema"

#: Separates a table's own description from the comment of its message type.
MESSAGE = ". Message: "

_OF = re.compile(r" \(schema id (\d+)\)$")


class SchemaCatalog(SchemaStore):
    """Plans and descriptions from the schemas of a `SchemaStore`."""

    def __init__(
        self,
        registry: SchemaLookup,
        lakehouse: Lakehouse,
        selected: Collection[str] = frozenset(),
        *,
        kept: Mapping[str, Kept] | None = None,
        values: ValueRules | None = None,
        max_columns: int = 10_000,
        max_unknown_ids: int = 1_000,
    ) -> None:
        """Reads the archive.

        `selected`: full names of the message types that are decoded; empty: all. `kept`: the columns that settings name.
        `values`: what becomes of single values. A type that would make more than `max_columns` is not decoded. After
        `max_unknown_ids` unknown ids in one micro-batch, the registry is asked about no others.
        """
        self._values = values or ValueRules()
        super().__init__(registry, lakehouse, decimals=self._values.decimals)
        self._selected = frozenset(selected)
        self._kept = kept or {}
        self._max_columns = max_columns
        self.max_unknown_ids = max_unknown_ids
        self._names: dict[TypeKey, str | None] = {}
        self._ambiguous: set[TypeKey] = set()
        self._met: set[TypeKey] = set()

    def met_types(self) -> set[TypeKey]:
        """Types that this process has looked up, and that have a schema: planned for, no micro-batch is read twice for them.

        The others may be registered before the next micro-batch, which looks them up again.
        """
        return {key for key in self._met if key[0] in self._known}

    def look_up(self, keys: Collection[TypeKey], room: int) -> tuple[set[TypeKey], int]:
        """Ask the registry about the ids of types, the smallest first, until `room` ids are found to be unknown.

        Returns the types with ids that it was asked about, or that need no request; and the number of unknown ids found.
        """
        unknown = self.unknown_ids()
        looked_at: set[SchemaId] = set()
        missed = 0
        for schema_id in sorted({i for i, _ in keys}, key=ordered):
            if missed < room or schema_id in unknown or schema_id in self._known:
                looked_at.add(schema_id)
                missed += self.compiled(schema_id) is None and schema_id not in unknown
        looked_up = {key for key in keys if key[0] in looked_at}
        self._met |= looked_up
        return looked_up, missed

    def plan(self, columns: ColumnMap, wanted: Iterable[TypeKey], rest: str | None = None) -> DecodePlan:
        """A plan that decodes the selected ones of the wanted types, each with its writer's schema; raises as `compiled`.

        `rest`: why all other ids are unknown, if they are.
        """
        columns = replace(columns, kept=self._kept)
        schemas: dict[SchemaId, CompiledSchema] = {}
        types: set[TypeKey] = set()
        rejected: dict[TypeKey, tuple[Reason, str]] = {}
        undecoded: set[TypeKey] = set()
        for schema_id, path in sorted(set(wanted), key=lambda key: (ordered(key[0]), key[1])):
            compiled = self.compiled(schema_id)
            if compiled is None:
                rejected[(schema_id, ())] = (Reason.UNKNOWN_SCHEMA, self.no_such_id(schema_id))
                continue
            if isinstance(compiled, RegistryChangedError):  # of no type: it is not known what its records are
                rejected[(schema_id, ())] = (Reason.REGISTRY_CHANGED, str(compiled))
                continue
            if isinstance(compiled, DataError):
                rejected[(schema_id, ())] = (Reason.BAD_SCHEMA, str(compiled))
                undecoded |= self._not_selected(schema_id, None)
                continue
            schemas[schema_id] = compiled
            key = (schema_id, path if compiled.indexed else ())
            if not compiled.has(key[1]):
                continue  # workers reject its records as BAD_INDEX
            others = self._not_selected(schema_id, compiled, key[1])
            undecoded |= others
            if key not in others:
                try:
                    columns = self._with_type(columns, compiled, key)
                    types.add(key)
                except DataError as error:
                    rejected[key] = (Reason.BAD_SCHEMA, str(error))
        limit = self.max_unknown_ids
        return DecodePlan(schemas, frozenset(types), rejected, columns, frozenset(undecoded), rest, limit, self._values)

    def _with_type(self, columns: ColumnMap, compiled: CompiledSchema, key: TypeKey) -> ColumnMap:
        """The columns with those of a type; DataError: it has no decoder, or bronze cannot take its records."""
        decoder = self.decoder(compiled, key)
        grown = columns.with_message(decoder.message, decoder.fields)
        if columns.width < grown.width > self._max_columns:
            raise DataError(
                f"schema id {key[0]}: {grown.width - columns.width:,} new columns beside the {columns.width:,} that there are "
                f"would be more than {self._max_columns:,} (GAME_EVENTS_MAX_COLUMNS)"
            )
        # The fields of two versions may share a column that the settings name (`gamer_id` as field 1, then as field 2).
        fields = defaultdict[str, list[str]](list)
        for field in decoder.fields:
            fields[grown.names[field_key(decoder.message, (field.id,), field.kind)]].append(field.name)
        shared = [f"{' and '.join(names)} ({column})" for column, names in fields.items() if len(names) > 1]
        if shared:
            raise DataError(f"schema id {key[0]}: fields have one column in other versions: {', '.join(shared)}")
        other = compiled.other_meaning(key[1]) if isinstance(compiled, ProtobufSchema) else None
        if other is not None and key not in self._ambiguous:
            self._ambiguous.add(key)
            log.warning(
                "ambiguous_index=true schema_id=%s index=%s read_as=%s could_be=%s reason='maps count in two ways'",
                key[0], list(key[1]), compiled.name_of(key[1]), other,
            )  # fmt: skip
        return grown

    def message_columns(self, columns: ColumnMap, seen: Iterable[TypeKey]) -> ColumnMap:
        """The columns with those of the types that occurred."""
        return self.plan(columns, seen).columns

    def other_types(self, undecoded: Mapping[TypeKey, int]) -> Counter[str]:
        """Rows of types that are not selected, by full name."""
        by_name: Counter[str] = Counter()
        for key, rows in undecoded.items():
            by_name[self._names[key] or ""] += rows
        return +by_name

    def messages(self, schema_id: SchemaId, nested: Container[str] = ()) -> dict[str, tuple[Field, ...]]:
        """Message types of a schema, by full name, with their fields: at most `MAX_TYPES`; DataError as `require`.

        `nested`: full names of nested types that are included, and come first.
        """
        compiled = self.require(schema_id)
        paths = compiled.paths(nested)
        if len(paths) > MAX_TYPES:
            first = sorted(paths, key=lambda path: compiled.name_of(path) not in nested)
            paths = sorted(first[:MAX_TYPES])
        return {decoder.message: decoder.fields for decoder in first_decoders(compiled, paths)}

    def left_out(self, schema_id: SchemaId, nested: Container[str] = ()) -> int:
        """Number of message types of a schema that `messages` leaves out; DataError as `require`."""
        return max(0, len(self.require(schema_id).paths(nested)) - MAX_TYPES)

    def names(self, schema_id: SchemaId) -> list[str]:
        """Full names of a schema's message types that are not nested; TransientError as `compiled`."""
        compiled = self.compiled(schema_id)
        if compiled is None or isinstance(compiled, DataError):
            return sorted(self.declared(schema_id).values())
        return [name for path in compiled.paths() if (name := compiled.name_of(path)) is not None]

    def _not_selected(self, schema_id: SchemaId, compiled: CompiledSchema | None, *more: IndexPath) -> set[TypeKey]:
        """Types of a schema that are not selected: of those that are not nested (so that none is reported), and of `more`."""
        if not self._selected:
            return set()
        if compiled is None:
            names: Mapping[IndexPath, str | None] = self.declared(schema_id)
        else:
            names = {path: compiled.name_of(path) for path in (*compiled.paths(), *more)}
        self._names |= {(schema_id, path): name for path, name in names.items()}
        return {(schema_id, path) for path, name in names.items() if name is not None and name not in self._selected}

    def documented(self, schema: pa.Schema, columns: ColumnMap, types: Iterable[TypeKey]) -> pa.Schema:
        """Bronze's schema with the comments of the message types that occurred; GUIDs have no order and count as the oldest."""
        texts: dict[str, tuple[str, int]] = {}
        for schema_id, _ in sorted(set(types), key=lambda key: (ordered(key[0]), key[1])):
            comments = self.comments(schema_id)
            for message, fields in self.known_messages(schema_id).items():
                for item in fields:
                    column = columns.names.get(field_key(message, (item.id,), item.kind))
                    text = clean(comments.of(message, (item.name,))) if column is not None else ""
                    if column is not None and text:
                        texts[column] = (text, schema_id if isinstance(schema_id, int) else 0)
        return with_comments(schema, texts)

    def about_bronze(self, bronze: DeltaTable, types: Iterable[TypeKey]) -> str | None:
        """Bronze's description with the comment of its newest message type; None if there is no newer one."""
        newest = max((i for i, _ in types if isinstance(i, int)), default=None)
        held = _OF.search(bronze.metadata().description or "")
        if newest is None or (held is not None and newest <= int(held[1])):
            return None
        comments = self.comments(newest)
        texts = [clean(comments.of(message)) for message in self.known_messages(newest)]
        text = next(filter(None, texts), "")
        return f"{BRONZE_DESCRIPTION}{MESSAGE}{text} (schema id {newest})" if text else None


def message_comment(bronze: DeltaTable) -> str:
    """The comment of the message type in bronze's description, for derived tables; or an empty text."""
    about = _OF.sub("", bronze.metadata().description or "")
    return f"{MESSAGE}{about.partition(MESSAGE)[2]}" if MESSAGE in about else ""
