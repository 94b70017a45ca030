"""Schemas by id: from the registry, archived in the lakehouse, compiled once; and decode plans made of them.

Runs in the driver. The archive (table `schemas`) is also the cache: with it a run goes on while the registry is down, and a
registry that gives an old id a new meaning is noticed.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import replace

from game_events.decoding.batch_decoder import DecodePlan, TypeKey
from game_events.decoding.comments import NO_COMMENTS, Comments, read_comments
from game_events.decoding.compiler import compile_schema, first_decoder, first_decoders
from game_events.decoding.core.column_map import ColumnMap, Field, field_key
from game_events.decoding.core.kept_columns import Kept
from game_events.decoding.core.protocols import CompiledSchema, EnumValues, PayloadDecoder
from game_events.decoding.core.reasons import Reason
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.decoding.core.wire_format import IndexPath, SchemaId, ordered
from game_events.decoding.declared_names import declared_names
from game_events.decoding.protobuf.schema import ProtobufSchema
from game_events.errors import DataError, TransientError
from game_events.lakehouse.system_tables.schema_archive import SchemaArchive, require_same
from game_events.lakehouse.tables import Lakehouse
from game_events.schema_registry import SchemaRegistry
from game_events.sources.files.schemas import FileSchemas

log = logging.getLogger(__name__)

#: Seconds for which an id that the registry did not know is not asked for again: else a flood of them is, for every slice.
UNKNOWN_S = 60
#: Seconds between two looks at a subject's versions, and after one that failed (each costs a time-out): slices may follow one
#: another every second.
IDS_S, DOWN_S = 5.0, 30.0
#: Message types of one schema that are looked at where people ask what it holds; records of the others are decoded too.
MAX_TYPES = 1_000


class SchemaCatalog:
    """What this process knows of schema ids; grows, never forgets."""

    def __init__(
        self,
        registry: SchemaRegistry | FileSchemas,
        lakehouse: Lakehouse,
        selected: Collection[str] = frozenset(),
        *,
        kept: Mapping[str, Kept] | None = None,
        max_columns: int = 10_000,
        max_unknown_ids: int = 1_000,
    ) -> None:
        """Reads the archive; the registry is asked later, id by id.

        Args:
            registry: who knows schemas by id.
            lakehouse: where they are archived.
            selected: full names of the message types that are decoded; empty: all of them.
            kept: the columns that settings name (`kept_columns`).
            max_columns: a message type whose new columns would make more than so many is not decoded.
            max_unknown_ids: ids that the registry does not know, after which it is asked about no others in one slice.
        """
        self._registry, self._archive = registry, SchemaArchive(lakehouse)
        self._selected = frozenset(selected)
        self._kept = kept or {}
        self._max_columns, self.max_unknown_ids = max_columns, max_unknown_ids
        self._names: dict[TypeKey, str | None] = {}
        self._archived = self._archive.read()
        self._verified: set[SchemaId] = set()
        self._unknown_since: dict[SchemaId, float] = {}
        self._fetched: dict[SchemaId, RegistrySchema] = {}
        self._compiled: dict[SchemaId, CompiledSchema | DataError] = {}
        self._messages: dict[TypeKey, PayloadDecoder | DataError] = {}
        self._comments: dict[SchemaId, Comments] = {}
        self._ambiguous: set[TypeKey] = set()
        #: Pairs met in this process: planned for from then on, so that no slice is read twice for them.
        self.met: set[TypeKey] = set()
        self._versions: dict[str, list[int]] = {}
        self._ids: dict[str, dict[int, int]] = {}
        self._ask_again: dict[str, float] = {}

    def expected_ids(self, subject: str) -> list[int]:
        """Ids of a subject that are worth planning for: those that have occurred, or all if none has.

        A version that is registered and never sent would take names and make columns (`run_decode_job` then reads twice).
        """
        ids = self.ids_of(subject)
        return [i for i in ids if i in self._archived] or ids

    def ids_of(self, subject: str) -> list[int]:
        """Ids of all versions of a subject, so that a version is planned for before its first record is met.

        A registry that is down only costs this foresight: an empty list. The registry is asked at most every `IDS_S` seconds:
        a version that is newer than that is found in its first record.
        """
        if time.monotonic() < self._ask_again.get(subject, 0.0):
            return list(self._ids.get(subject, {}))
        self._ask_again[subject] = time.monotonic() + IDS_S
        try:
            numbers = self._registry.version_numbers(subject)
            if numbers != self._versions.get(subject):
                self._ids[subject] = {v.schema_id: v.version for v in self._registry.versions(subject)}
                self._versions[subject] = numbers
        except TransientError:
            self._ask_again[subject] = time.monotonic() + DOWN_S
            log.info("registry_down=true subject=%s going_on_with=archive", subject)
        return list(self._ids.get(subject, {}))

    def version_of(self, schema_id: SchemaId) -> tuple[str, int] | None:
        """Subject and version that have this id, as `ids_of` saw them last; nobody is asked."""
        if not isinstance(schema_id, int):
            return None
        return next(((subject, ids[schema_id]) for subject, ids in self._ids.items() if schema_id in ids), None)

    def unknown_ids(self) -> set[SchemaId]:
        """Ids that the registry was found not to know, and is not asked about now."""
        now = time.monotonic()
        self._unknown_since = {i: since for i, since in self._unknown_since.items() if now < since + UNKNOWN_S}
        return set(self._unknown_since)

    def look_up(self, keys: Collection[TypeKey], room: int) -> tuple[set[TypeKey], int]:
        """Asks the registry about the ids of pairs, the smallest first, until so many are found to be unknown.

        Returns:
            the pairs of ids that it was asked about, or that need no asking; how many of these ids were found to be unknown.

        Raises:
            TransientError: it cannot be asked.
        """
        unknown, looked_at, missed = self.unknown_ids(), set(), 0
        for schema_id in sorted({i for i, _ in keys}, key=ordered):
            if missed < room or schema_id in unknown or schema_id in self._verified or schema_id in self._archived:
                looked_at.add(schema_id)
                missed += self._compile(schema_id) is None and schema_id not in unknown
        return {key for key in keys if key[0] in looked_at}, missed

    def has(self, schema_id: SchemaId) -> bool:
        """Whether this process has met a schema with this id; nobody is asked."""
        return schema_id in self._compiled

    def plan(self, columns: ColumnMap, wanted: Iterable[TypeKey], rest: str | None = None) -> DecodePlan:
        """A plan that decodes the wanted pairs, each with its writer's schema, but those of types that are not selected.

        Args:
            columns: where fields land so far.
            wanted: the pairs.
            rest: why all other ids are unknown, if they are.

        Raises:
            TransientError: a wanted id is neither archived nor can the registry be asked.
            DataError: REGISTRY_CHANGED, the registry gives an archived id another meaning.
        """
        columns = replace(columns, kept=self._kept)
        schemas: dict[SchemaId, CompiledSchema] = {}
        types: set[TypeKey] = set()
        rejected: dict[TypeKey, tuple[Reason, str]] = {}
        undecoded: set[TypeKey] = set()
        for schema_id, path in sorted(set(wanted), key=lambda key: (ordered(key[0]), key[1])):
            compiled = self._compile(schema_id)
            if compiled is None:
                detail = f"the registry {self._registry.url} has no schema with id {schema_id}"
                rejected[(schema_id, ())] = (Reason.UNKNOWN_SCHEMA, detail)
                continue
            if isinstance(compiled, DataError):
                rejected[(schema_id, ())] = (Reason.BAD_SCHEMA, str(compiled))
                undecoded |= self._not_selected(schema_id, None)
                continue
            schemas[schema_id] = compiled
            key = (schema_id, path if compiled.indexed else ())
            if not compiled.has(key[1]):
                continue  # workers say BAD_INDEX, now that they know the schema
            others = self._not_selected(schema_id, compiled, key[1])
            undecoded |= others
            if key in others:
                continue
            decoder = self._message(compiled, key)
            if isinstance(decoder, DataError):
                rejected[key] = (Reason.BAD_SCHEMA, str(decoder))
                continue
            grown = columns.with_message(decoder.message, decoder.fields)
            unfit = self._unfit(key, decoder, columns, grown)
            if unfit is not None:
                rejected[key] = (Reason.BAD_SCHEMA, unfit)
                continue
            types.add(key)
            columns = grown
            self._note_two_meanings(compiled, key)
        limit = self.max_unknown_ids
        return DecodePlan(schemas, frozenset(types), rejected, columns, frozenset(undecoded), rest, limit)

    def _note_two_meanings(self, compiled: CompiledSchema, key: TypeKey) -> None:
        other = compiled.other_meaning(key[1]) if isinstance(compiled, ProtobufSchema) else None
        if other is not None and key not in self._ambiguous:
            self._ambiguous.add(key)
            log.warning(
                "ambiguous_index=true schema_id=%s index=%s read_as=%s could_be=%s reason='maps count in two ways'",
                key[0], list(key[1]), compiled.name_of(key[1]), other,
            )  # fmt: skip

    def _unfit(self, key: TypeKey, decoder: PayloadDecoder, columns: ColumnMap, grown: ColumnMap) -> str | None:
        """Why bronze cannot take records of a type, from its columns before and with those of the type."""
        if columns.width < grown.width > self._max_columns:
            return (
                f"schema id {key[0]}: {grown.width - columns.width:,} new columns beside the {columns.width:,} that there are "
                f"would be more than {self._max_columns:,} (GAME_EVENTS_MAX_COLUMNS)"
            )
        # The fields of two versions may share a column that the settings name (`gamer_id` as field 1, then as field 2).
        fields = defaultdict[str, list[str]](list)
        for field in decoder.fields:
            fields[grown.names[field_key(decoder.message, (field.id,), field.kind)]].append(field.name)
        shared = [f"{' and '.join(names)} ({column})" for column, names in fields.items() if len(names) > 1]
        return f"schema id {key[0]}: fields have one column in other versions: {', '.join(shared)}" if shared else None

    def message_columns(self, columns: ColumnMap, seen: Iterable[TypeKey]) -> ColumnMap:
        """The map with only the message types that really occurred added to it."""
        return self.plan(columns, seen).columns

    def other_types(self, undecoded: Mapping[TypeKey, int]) -> Counter[str]:
        """Rows of types that are not selected, by the types' full names."""
        found: Counter[str] = Counter()
        for key, rows in undecoded.items():
            found[self._names[key] or ""] += rows
        return +found

    def offer(self, schemas: Iterable[RegistrySchema]) -> None:
        """Schemas that came with the records themselves, as those of files do."""
        if isinstance(self._registry, FileSchemas):
            self._registry.offer(schemas)

    def knows(self, schema_id: SchemaId) -> bool:
        """Whether the registry, or the archive, has this id now: it is asked anew."""
        self._unknown_since.pop(schema_id, None)
        return self._compile(schema_id) is not None

    def messages(self, schema_id: SchemaId, nested: Container[str] = ()) -> dict[str, tuple[Field, ...]]:
        """Message types of a schema, by full name, with their fields: at most `MAX_TYPES`, those of `nested` first.

        Args:
            schema_id: the schema.
            nested: full names of the types that are wanted although they are nested in another one.

        Raises:
            DataError: the registry has no such id, or it does not compile; the message says why.
        """
        compiled = self._require(schema_id)
        paths = compiled.paths(nested)
        if len(paths) > MAX_TYPES:
            first = sorted(paths, key=lambda path: compiled.name_of(path) not in nested)
            paths = sorted(first[:MAX_TYPES])
        return {decoder.message: decoder.fields for decoder in first_decoders(compiled, paths)}

    def left_out(self, schema_id: SchemaId, nested: Container[str] = ()) -> int:
        """Message types of a schema that `messages` does not look at; raises as it does."""
        return max(0, len(self._require(schema_id).paths(nested)) - MAX_TYPES)

    def enums(self, schema_id: SchemaId) -> Mapping[str, EnumValues]:
        """Enums of a schema, by full name, with their values.

        Raises:
            DataError: as `messages`.
        """
        return self._require(schema_id).enums()

    def names(self, schema_id: SchemaId) -> list[str]:
        """Full names of a schema's message types that are not nested in others; none if it does not tell.

        Raises:
            TransientError: it is not archived, and the registry cannot be asked.
        """
        compiled = self._compile(schema_id)
        if compiled is None or isinstance(compiled, DataError):
            return sorted(self._declared(schema_id).values())
        return [name for path in compiled.paths() if (name := compiled.name_of(path)) is not None]

    def known_messages(self, schema_id: SchemaId) -> dict[str, tuple[Field, ...]]:
        """Message types that were decoded with this id so far, by full name; nobody is asked."""
        found = (d for (i, _), d in self._messages.items() if i == schema_id and not isinstance(d, DataError))
        return {decoder.message: decoder.fields for decoder in found}

    def comments(self, schema_id: SchemaId) -> Comments:
        """What the author of a schema that was met says of its fields; read once."""
        if schema_id not in self._comments:
            schema = self._fetched.get(schema_id) or self._archived.get(schema_id)
            self._comments[schema_id] = read_comments(schema) if schema is not None else NO_COMMENTS
        return self._comments[schema_id]

    def archive(self, schema_ids: Iterable[SchemaId]) -> list[SchemaId]:
        """Write the texts of these ids to the lakehouse, once each; before the first row that needs them is committed.

        Returns:
            the ids that were not there before.
        """
        used = (self._fetched.get(i) for i in sorted(set(schema_ids), key=ordered) if i not in self._archived)
        new = [schema for schema in used if schema is not None]
        if not new:
            return []
        added = self._archive.add(new, self._registry.url)
        self._archived |= {s.schema_id: s for s in new}
        return list(added)

    def _schema(self, schema_id: SchemaId) -> RegistrySchema | None:
        """From the registry, checked against the archive once per process; from the archive while the registry is down."""
        if schema_id in self._verified:
            return self._fetched.get(schema_id)
        since = self._unknown_since.get(schema_id)
        if since is not None and time.monotonic() < since + UNKNOWN_S:
            return None
        archived = self._archived.get(schema_id)
        try:
            found = self._registry.fetch(schema_id)
        except TransientError:
            if archived is None:
                raise
            return archived
        except DataError as error:  # more than anybody can read
            if archived is None:
                self._compiled[schema_id] = error
                self._verified.add(schema_id)
                return None
            found = archived
        if found is None and archived is None:
            self._unknown_since[schema_id] = time.monotonic()
            return None  # asked again later: it may be registered by then
        if found is not None:
            require_same(archived, found, self._registry.url, self._archive.uri)
        self._verified.add(schema_id)
        schema = found or archived
        if schema is not None:
            self._fetched[schema_id] = schema
        return schema

    def _compile(self, schema_id: SchemaId) -> CompiledSchema | DataError | None:
        if schema_id not in self._verified:
            schema = self._schema(schema_id)
            if schema is not None and schema_id not in self._compiled:
                self._compiled[schema_id] = _compile(schema)
        return self._compiled.get(schema_id)

    def _require(self, schema_id: SchemaId) -> CompiledSchema:
        compiled = self._compile(schema_id)
        if compiled is None:
            raise DataError(f"the registry {self._registry.url} has no schema with id {schema_id}")
        if isinstance(compiled, DataError):
            raise compiled
        return compiled

    def _not_selected(self, schema_id: SchemaId, compiled: CompiledSchema | None, *more: IndexPath) -> set[TypeKey]:
        """Types of a schema that nobody has selected: those at the top, so that none is reported as unknown, and `more`."""
        if not self._selected:
            return set()
        if compiled is not None:
            keys = [(schema_id, path) for path in (*compiled.paths(), *more)]
            self._names |= {key: compiled.name_of(key[1]) for key in keys if key not in self._names}
        else:
            declared = self._declared(schema_id)
            keys = [(schema_id, path) for path in declared]
            self._names |= {(schema_id, path): name for path, name in declared.items()}
        return {key for key in keys if self._names[key] is not None and self._names[key] not in self._selected}

    def _declared(self, schema_id: SchemaId) -> Mapping[IndexPath, str]:
        schema = self._fetched.get(schema_id) or self._archived.get(schema_id)
        return declared_names(schema) if schema is not None else {}

    def _message(self, compiled: CompiledSchema, key: TypeKey) -> PayloadDecoder | DataError:
        if key not in self._messages:
            try:
                self._messages[key] = first_decoder(compiled, key[1])
            except DataError as error:
                self._messages[key] = error
        return self._messages[key]


def _compile(schema: RegistrySchema) -> CompiledSchema | DataError:
    try:
        return compile_schema(schema)
    except DataError as error:
        return error
