"""Schemas by id, and what is made of them: decode plans, message types and comments. Runs in the driver.

They are fetched from the registry, checked against the archive, and compiled once per process.

A column has the comment of the newest schema of its rows: an older schema id never replaces the comment of a newer one, so
producers of several versions do not alternate it. Nothing but comments depends on this.
"""

import logging
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
from deltalake import DeltaTable

from game_events.config.definitions.computed import Definitions
from game_events.decoding.columns import ColumnMap, Field, Kept, ValueRules, computed_types, field_key
from game_events.decoding.comments import NO_COMMENTS, Comments, clean, read_comments
from game_events.decoding.decoder import (
    DecodePlan,
    RecentlyUsed,
    TypeKey,
    compile_schema,
    declared_names,
    first_decoders,
    json_title,
)
from game_events.decoding.frame import (
    IndexPath,
    Reason,
    RegistrySchema,
    SchemaId,
    bare,
    named,
    ordered,
    registry_of,
    registry_of_source,
)
from game_events.decoding.json_schema import JsonSchema
from game_events.decoding.projection import CompiledSchema, PayloadDecoder
from game_events.decoding.protobuf.schema import ProtobufSchema
from game_events.decoding.schema_diff import difference
from game_events.decoding.unframed import cloudevents
from game_events.decoding.unframed.inferred import InferredSchema, TopicDocuments, inferred_id, merged_texts, planned, topic_of
from game_events.decoding.unframed.topics import SchemaName, TopicRules
from game_events.errors import DataError, TransientError
from game_events.lakehouse.data.columns import FIRST_MESSAGE, StoredType, with_comments
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.schemas.archive import SchemaArchive, registry_changed
from game_events.pipeline.schemas.named import NamedSchemas, path_of
from game_events.schema_registry import SchemaLookup

log = logging.getLogger(__name__)
#: Message types of one schema that are described; records of the others are decoded, too.
MAX_TYPES = 1_000
BRONZE_DESCRIPTION = "Every decodable record of the source, once, decoded by its writer's schema"
#: Separates a table's own description from the comment of its message type.
MESSAGE = ". Message: "
_OF = re.compile(r" \(schema id (\d+)\)$")
#: Seconds without requests for an id that the registry did not know: a flood of such ids costs no request per micro-batch.
UNKNOWN_S = 60
#: Seconds between two requests for a subject's versions, and after a failed one (each costs a time-out).
IDS_S = 5.0
DOWN_S = 30.0


class RegistryChangedError(DataError):
    """The registry gives an archived id a schema that decodes otherwise: which field, and how."""


@dataclass
class _Known:
    """One known id; an error is the reason why there is no compiled schema or decoder.

    `digests`: of its archived texts; empty: it is not archived. `schema`: its text; None: it is too long to be read, or is read
    from the archive when it is needed. `verified_until`: the registry was asked, and is not asked again before that time.
    `json_name`: of a JSON Schema, its title or a subject's name; None: not looked up, or neither is known.
    """

    digests: set[str] = field(default_factory=set)
    schema: RegistrySchema | None = None
    verified_until: float = 0.0
    compiled: CompiledSchema | DataError | None = None
    decoders: dict[IndexPath, PayloadDecoder | DataError] = field(default_factory=dict)
    comments: Comments | None = None
    json_name: str | None = None

    @property
    def size(self) -> int:
        """Bytes of the texts in it."""
        size = 0
        if self.schema is not None:
            size += len(self.schema.text) + sum(len(text) for _, text in self.schema.references)
        if isinstance(self.compiled, CompiledSchema):
            size += self.compiled.size
        if self.comments is not None:
            size += self.comments.size
        return size

    def forget(self) -> None:
        """Drop what can be made again: of an archived schema all but its errors."""
        if self.digests:
            self.schema = None
        if isinstance(self.compiled, CompiledSchema):
            self.compiled = None
        self.decoders = {}
        self.comments = None


@dataclass
class _Subject:
    """Versions of a subject at the last request: their numbers, and schema id -> version; no request before `ask_again`."""

    ask_again: float = 0.0
    numbers: list[int] | None = None
    ids: dict[SchemaId, int] = field(default_factory=dict)


class SchemaCatalog:
    """Schema ids known in this process.

    Texts, compiled schemas, decoders and comments of those used last are kept, up to `KEPT_SCHEMA_BYTES`, and texts that are
    not archived yet. Ids that are unknown expire after `UNKNOWN_S`, as do those with another meaning.
    """

    def __init__(  # noqa: PLR0913
        self,
        registry: SchemaLookup,
        lakehouse: Lakehouse,
        selected: Collection[str] = frozenset(),
        *,
        kept: Mapping[str, Kept] | None = None,
        values: ValueRules | None = None,
        definitions: Definitions | None = None,
        max_columns: int = 10_000,
        max_unknown_ids: int = 1_000,
    ) -> None:
        """Read the archive's ids; the registry is asked later, id by id.

        `selected`: full names of the message types that are decoded; empty: all. `kept`: the columns that settings name.
        `values`: what becomes of single values. `definitions`: how some columns are computed.
        A type that would make more than `max_columns` is not decoded. After
        `max_unknown_ids` unknown ids in one micro-batch, the registry is asked about no others.
        """
        self._registry = registry
        #: Source -> name of its registry in ids.
        self.registries = registry.registries
        self._archive = SchemaArchive(lakehouse)
        self._known = {i: _Known(digests) for i, digests in self._archive.digests().items()}
        self._used: RecentlyUsed[SchemaId] = RecentlyUsed()
        self._unknown_since: dict[SchemaId, float] = {}
        self._subjects: dict[str, _Subject] = {}
        self._values = values or ValueRules()
        self._selected = frozenset(selected)
        self._kept = kept or {}
        self._definitions = definitions
        self._computed = computed_types(definitions)
        self._max_columns = max_columns
        self.max_unknown_ids = max_unknown_ids
        self._names: dict[TypeKey, str | None] = {}
        self._ambiguous: set[TypeKey] = set()
        self._met: set[TypeKey] = set()
        self._added: dict[SchemaId, RegistrySchema] = {}
        self._named: NamedSchemas | None = None
        self._grown: dict[str, str] = {}

    def expected_ids(self, subject: str) -> list[SchemaId]:
        """Ids of a subject to plan for: those that have occurred, or all if none has, as each planned id makes columns."""
        ids = self.ids_of(subject)
        return [i for i in ids if i in self._known and self._known[i].digests] or ids

    def ids_of(self, subject: str) -> list[SchemaId]:
        """Ids of all versions of a subject, to plan for them before their first record; empty while the registry is down.

        The registry is asked at most every `IDS_S` seconds; a newer version is found by its first record.
        """
        known = self._subjects.setdefault(subject, _Subject())
        if time.monotonic() >= known.ask_again:
            known.ask_again = time.monotonic() + IDS_S
            try:
                numbers = self._registry.version_numbers(subject)
                if numbers != known.numbers:
                    known.ids = {v.schema_id: v.version for v in self._registry.versions(subject)}
                    known.numbers = numbers
            except TransientError:
                known.ask_again = time.monotonic() + DOWN_S
                log.info("registry_down=true subject=%s going_on_with=archive", subject)
        return list(known.ids)

    def version_of(self, schema_id: SchemaId) -> tuple[str, int] | None:
        """Subject and version of an id at the last `ids_of`; no request."""
        return next(((subject, s.ids[schema_id]) for subject, s in self._subjects.items() if schema_id in s.ids), None)

    def unknown_ids(self) -> set[SchemaId]:
        """Ids that the registry does not know, and is not asked about now."""
        now = time.monotonic()
        self._unknown_since = {i: since for i, since in self._unknown_since.items() if now < since + UNKNOWN_S}
        return set(self._unknown_since)

    def compiled(self, schema_id: SchemaId) -> CompiledSchema | DataError | None:
        """The compiled schema, or why there is none; None: neither the registry nor the archive has the id.

        `RegistryChangedError`: the registry gives an archived id another meaning.

        Raises:
            TransientError: the id is not archived, and the registry does not answer.
        """
        known = self._fetch(schema_id)
        if known is None:
            return None
        if known.compiled is None:
            schema = self._text(schema_id, known)
            try:
                known.compiled = compile_schema(schema)
            except DataError as error:
                known.compiled = error
            if self._values.decimals and isinstance(known.compiled, ProtobufSchema):
                known.compiled = replace(known.compiled, decimals=True)
        compiled = known.compiled
        self._use(schema_id)  # may drop it
        return compiled

    def _use(self, schema_id: SchemaId) -> None:
        """Note that a schema was used, and drop what others have that were not used for longest."""
        for other in self._used.use(schema_id, self._known[schema_id].size):
            self._known[other].forget()

    def _text(self, schema_id: SchemaId, known: _Known) -> RegistrySchema:
        """The text of an id that has one."""
        if known.schema is None:
            known.schema = self._archive.read([schema_id]).get(schema_id)
        if known.schema is None:
            raise DataError(f"{self._archive.uri} has lost schema id {schema_id}, which it had when this run began")
        return known.schema

    def _fetch(self, schema_id: SchemaId) -> _Known | None:
        """The entry of an id: from the registry, once per process; from the archive while the registry is down."""
        known = self._known.get(schema_id)
        now = time.monotonic()
        if known is not None and now < known.verified_until:
            return known
        if now < self._unknown_since.get(schema_id, -math.inf) + UNKNOWN_S:
            return None
        try:
            schema = self._added.get(schema_id) or self._registry.fetch(schema_id)
        except TransientError:
            if known is None:
                raise
            return known
        except DataError as error:  # too long to be read
            known = known or _Known(compiled=error)
        else:
            if schema is not None:
                known = self._verified(known, schema)
        return self._answered(schema_id, known, now)

    def _answered(self, schema_id: SchemaId, known: _Known | None, now: float) -> _Known | None:
        """Note the answer of the registry, and how long it holds; None: it does not know the id, and the archive neither."""
        if known is None:
            self._unknown_since[schema_id] = now
            return None
        self._known[schema_id] = known
        known.verified_until = now + UNKNOWN_S if isinstance(known.compiled, RegistryChangedError) else math.inf
        return known

    def _verified(self, known: _Known | None, schema: RegistrySchema) -> _Known:
        """The entry of an id for which the registry gives a text."""
        if known is None or not (known.digests or known.schema):
            return _Known(schema=schema)
        if isinstance(known.compiled, RegistryChangedError):
            known.compiled = None
        if known.digests == {schema.digest}:
            known.schema = schema
            return known
        archived = self._text(schema.schema_id, known)
        changed = difference(archived, schema)
        if changed is not None:
            known.forget()
            url = self._registry.url_of(schema.schema_id)
            said = registry_changed(schema.schema_id, changed, url, self._archive.uri)
            known.compiled = RegistryChangedError(said)
            return known
        # Perhaps the registry had lost a reference when this id was archived.
        return _Known(schema=schema) if schema.completes(archived) else known

    def require(self, schema_id: SchemaId) -> CompiledSchema:
        """The compiled schema; DataError with the reason if the id is unknown, or the schema does not compile."""
        compiled = self.compiled(schema_id)
        if compiled is None:
            raise DataError(self._no_such_id(schema_id))
        if isinstance(compiled, DataError):
            raise compiled
        return compiled

    def _no_such_id(self, schema_id: SchemaId) -> str:
        said = f"the registry {self._registry.url_of(schema_id)} has no schema with id {schema_id}"
        if bare(schema_id) == 0:
            said += (
                ", which no registry issues: are these ids of 8 bytes, as Apicurio's serializers write them? That is another "
                "wire format: let the producer write ids of 4 bytes (apicurio.registry.id-handler)"
            )
        return said

    def _decoder(self, compiled: CompiledSchema, key: TypeKey) -> PayloadDecoder:
        """The decoder of a message type; DataError if there is none."""
        decoders = self._known[key[0]].decoders
        if key[1] not in decoders:
            try:
                decoders[key[1]] = first_decoders(compiled, [key[1]])[0]
            except DataError as error:
                decoders[key[1]] = error
        self._use(key[0])
        decoder = decoders[key[1]]
        if isinstance(decoder, DataError):
            raise decoder
        return decoder

    def is_known(self, schema_id: SchemaId) -> bool:
        """Whether the archive has this id, or it was asked for; no request."""
        return schema_id in self._known or schema_id in self._added

    def knows(self, schema_id: SchemaId) -> bool:
        """Whether the registry or the archive has this id now: unknown ids are requested again."""
        self._unknown_since.pop(schema_id, None)
        return self.compiled(schema_id) is not None

    def _known_messages(self, schema_id: SchemaId) -> dict[str, tuple[Field, ...]]:
        """Message types that were decoded with this id in this process, by full name; no request."""
        decoders = self._known[schema_id].decoders.values() if schema_id in self._known else ()
        return {decoder.message: decoder.fields for decoder in decoders if not isinstance(decoder, DataError)}

    def comments(self, schema_id: SchemaId) -> Comments:
        """The authors' comments on the fields of a known schema; no request."""
        known = self._known.get(schema_id)
        if known is None or isinstance(known.compiled, DataError):
            return NO_COMMENTS
        if known.comments is None:
            known.comments = read_comments(self._text(schema_id, known))
        comments = known.comments
        self._use(schema_id)  # may drop them
        return comments

    def _declared(self, schema_id: SchemaId) -> Mapping[IndexPath, str]:
        """Message types by index path, read from the text alone: of a schema that does not compile."""
        known = self._known.get(schema_id)
        if known is None or (known.schema is None and not known.digests):
            return {}
        return declared_names(self._text(schema_id, known))

    def offer(self, schemas: Iterable[RegistrySchema]) -> None:
        """Add schemas that came with the records."""
        self._registry.offer(schemas)

    def add(self, schema: RegistrySchema) -> None:
        """Add a schema that the settings name, which no registry knows."""
        self._added[schema.schema_id] = schema

    def use_rules(self, rules: TopicRules) -> None:
        """Decode topics of these rules without frames, too."""
        self._named = NamedSchemas(rules, self._registry, self)

    @property
    def named(self) -> NamedSchemas | None:
        """Schemas that the settings name for topics without frames; None: there are no such topics."""
        return self._named

    def types_of_topics(self, topics: Iterable[tuple[str, str]]) -> list[TypeKey]:
        """Types to plan for before the first record of these topics, each with its source; raises as `NamedSchemas`."""
        return [] if self._named is None else self._named.types_of(topics)

    def types_of_stored(self, stored: Sequence[StoredType]) -> list[TypeKey]:
        """Types to plan for before rows are decoded again; raises as `compiled`."""
        # First by the rules, which add schemas of files.
        types = [] if self._named is None else [key for item in stored for key in self._named.types_of_stored(item)]
        for item in stored:
            if item.schema_id is not None:
                schema_id = item.schema_id
                if isinstance(schema_id, int) or not self.is_known(schema_id):  # the GUID of a file is of no registry
                    schema_id = named(registry_of_source(item.source, self.registries), schema_id)
                types.append((schema_id, path_of(self.compiled(schema_id), item.message_type) or FIRST_MESSAGE))
        return list(dict.fromkeys(types))

    def look_up_names(self, names: Collection[SchemaName], room: int) -> int:
        """As `look_up`, of schemas that records name; returns the number of unknown ones."""
        return 0 if self._named is None else self._named.look_up(names, room)

    def grow(self, grown: Mapping[str, str]) -> None:
        """Note types of members that workers have met in topics without schemas, for the next plans."""
        for topic, text in grown.items():
            self._grown[topic] = merged_texts(self._grown[topic], text) if topic in self._grown else text

    def archive(self, schema_ids: Iterable[SchemaId]) -> list[SchemaId]:
        """Add the texts of these ids to the archive, before the first row that needs them is committed; return the new ids."""
        used = [(i, self._known[i]) for i in sorted(set(schema_ids), key=ordered) if i in self._known]
        new = [known.schema for _, known in used if known.schema is not None and not known.digests]
        by_registry = defaultdict[str, list[RegistrySchema]](list)
        for schema in new:
            by_registry[self._registry.url_of(schema.schema_id)].append(schema)
        added = [schema_id for url, schemas in by_registry.items() for schema_id in self._archive.add(schemas, url)]
        for schema_id, known in used:
            if known.schema is not None and not known.digests:
                known.digests = {known.schema.digest}
                self._use(schema_id)
        return added

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
            if topic_of(schema_id) is not None:
                looked_at.add(schema_id)
            elif missed < room or schema_id in unknown or schema_id in self._known:
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
        names: dict[TypeKey, str] = {}
        for schema_id, path in sorted(set(wanted), key=lambda key: (ordered(key[0]), key[1])):
            topic = topic_of(schema_id)
            if topic is not None:
                schemas[schema_id], columns = self._inferred(columns, topic)
                types.add((schema_id, ()))
                continue
            compiled = self.compiled(schema_id)
            if compiled is None:
                rejected[(schema_id, ())] = (Reason.UNKNOWN_SCHEMA, self._no_such_id(schema_id))
                continue
            if isinstance(compiled, RegistryChangedError):  # of no type: it is not known what its records are
                rejected[(schema_id, ())] = (Reason.REGISTRY_CHANGED, str(compiled))
                continue
            if isinstance(compiled, DataError):
                rejected[(schema_id, ())] = (Reason.BAD_SCHEMA, str(compiled))
                undecoded |= self._not_selected(schema_id, None)
                names |= {(schema_id, at): name for at, name in self._declared(schema_id).items() if at == path or not at}
                continue
            schemas[schema_id] = compiled
            key = (schema_id, path if compiled.indexed else ())
            if not compiled.has(key[1]):
                continue  # workers reject its records as BAD_INDEX
            if isinstance(compiled, JsonSchema):
                names[key] = self._json_name(schema_id) or compiled.message
            others = self._not_selected(schema_id, compiled, key[1])
            undecoded |= others
            if key not in others:
                try:
                    columns = self._with_type(columns, compiled, key)
                    types.add(key)
                except DataError as error:
                    rejected[key] = (Reason.BAD_SCHEMA, str(error))
        limit = self.max_unknown_ids
        return DecodePlan(
            schemas=schemas,
            types=frozenset(types),
            rejected=rejected,
            columns=columns,
            undecoded=frozenset(undecoded),
            rest=rest,
            max_unknown_ids=limit,
            values=self._values,
            named=names,
            topics=self._named.plan(rest, limit) if self._named is not None else None,
            definitions=self._definitions,
            registries=self.registries,
        )

    def _inferred(self, columns: ColumnMap, topic: str) -> tuple[InferredSchema, ColumnMap]:
        """The schema of a topic without one, or of the attributes of CloudEvents, and the columns with those of it."""
        columns = columns.with_columns(self._computed)
        if inferred_id(topic) == cloudevents.TYPE_ID:
            return InferredSchema(cloudevents.TYPE_ID, "{}"), columns.with_message(cloudevents.TYPE_ID, cloudevents.FIELDS)
        rule = self._named.rules.inferred(topic) if self._named is not None else None
        documents = rule.documents if rule is not None else TopicDocuments()
        return planned(columns, inferred_id(topic), self._grown.get(topic), documents, self._max_columns)

    def _json_name(self, schema_id: SchemaId) -> str | None:
        """What `_message_type` has for a JSON Schema: its title, else a subject that has it; None: neither is known."""
        known = self._known[schema_id]
        # Without it while the registry is down, or if the archive has lost the text.
        with suppress(TransientError, DataError):
            if known.json_name is None:
                known.json_name = json_title(self._text(schema_id, known))
            if known.json_name is None:
                version = self.version_of(schema_id)
                subject = version[0] if version is not None else self._registry.subject_of(schema_id)
                known.json_name = _plain_subject(subject, registry_of(schema_id))
        return known.json_name

    def _with_type(self, columns: ColumnMap, compiled: CompiledSchema, key: TypeKey) -> ColumnMap:
        """The columns with those of a type; DataError: it has no decoder, or bronze cannot take its records."""
        decoder = self._decoder(compiled, key)
        grown = columns.with_columns(self._computed).with_message(decoder.message, decoder.fields)
        if columns.width < grown.width > self._max_columns:
            raise DataError(
                f"schema id {key[0]}: {grown.width - columns.width:,} new columns beside the {columns.width:,} that there are "
                f"would be more than {self._max_columns:,} (GAME_EVENTS_MAX_COLUMNS)"
            )
        # The fields of two versions may share a column that the settings name (`gamer_id` as field 1, then as field 2).
        fields = defaultdict[str, list[str]](list)
        for item in decoder.fields:
            fields[grown.names[field_key(decoder.message, (item.id,), item.kind)]].append(item.name)
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
            return sorted(self._declared(schema_id).values())
        return [name for path in compiled.paths() if (name := compiled.name_of(path)) is not None]

    def _not_selected(self, schema_id: SchemaId, compiled: CompiledSchema | None, *more: IndexPath) -> set[TypeKey]:
        """Types of a schema that are not selected: of those that are not nested (so that none is reported), and of `more`."""
        if not self._selected:
            return set()
        if compiled is None:
            names: Mapping[IndexPath, str | None] = self._declared(schema_id)
        else:
            names = {path: compiled.name_of(path) for path in (*compiled.paths(), *more)}
        self._names |= {(schema_id, path): name for path, name in names.items()}
        return {(schema_id, path) for path, name in names.items() if name is not None and name not in self._selected}

    def documented(self, schema: pa.Schema, columns: ColumnMap, types: Iterable[TypeKey]) -> pa.Schema:
        """Bronze's schema with the comments of the message types that occurred; GUIDs have no order and count as the oldest."""
        texts: dict[str, tuple[str, int]] = {}
        for schema_id, _ in sorted(set(types), key=lambda key: (ordered(key[0]), key[1])):
            comments = self.comments(schema_id)
            for message, fields in self._known_messages(schema_id).items():
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
        texts = [clean(comments.of(message)) for message in self._known_messages(newest)]
        text = next(filter(None, texts), "")
        return f"{BRONZE_DESCRIPTION}{MESSAGE}{text} (schema id {newest})" if text else None


def _plain_subject(subject: str | None, registry: str) -> str | None:
    """A subject without the name of its registry."""
    return subject.removeprefix(f"{registry}/") if subject is not None and registry else subject


def message_comment(bronze: DeltaTable) -> str:
    """The comment of the message type in bronze's description, for derived tables; or an empty text."""
    about = _OF.sub("", bronze.metadata().description or "")
    return f"{MESSAGE}{about.partition(MESSAGE)[2]}" if MESSAGE in about else ""
