"""Schemas by id: fetched from the registry, checked against the archive, compiled once per process.

The archive is the table `schemas`: texts by id, append-only, so that rows can be decoded without the registry. It is also the
cache: runs go on while the registry is down, and a registry that gives an old id another schema is detected.

Guarantee: each id is in the table once, with one meaning, also with concurrent runs and crashes; once more, if a registry had
lost a reference of it and has it again.
"""

import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from game_events.decoding.columns import Field
from game_events.decoding.comments import NO_COMMENTS, Comments, read_comments
from game_events.decoding.decoder import RecentlyUsed, TypeKey, compile_schema, declared_names, first_decoders
from game_events.decoding.frame import IndexPath, RegistrySchema, SchemaId, SchemaRef, ordered
from game_events.decoding.projection import CompiledSchema, PayloadDecoder
from game_events.decoding.protobuf.schema import ProtobufSchema
from game_events.decoding.schema_diff import difference
from game_events.errors import DataError, TransientError
from game_events.lakehouse.commits.commit import retry_on_conflict
from game_events.lakehouse.data.reading import may_hold
from game_events.lakehouse.system_tables import SystemTable, schema_of
from game_events.lakehouse.tables import SCHEMAS, Lakehouse, add_actions
from game_events.schema_registry import SchemaLookup

log = logging.getLogger(__name__)
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
    """

    digests: set[str] = field(default_factory=set)
    schema: RegistrySchema | None = None
    verified_until: float = 0.0
    compiled: CompiledSchema | DataError | None = None
    decoders: dict[IndexPath, PayloadDecoder | DataError] = field(default_factory=dict)
    comments: Comments | None = None

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
    ids: dict[int, int] = field(default_factory=dict)


class SchemaStore:
    """Schema ids known in this process.

    Texts, compiled schemas, decoders and comments of those used last are kept, up to `KEPT_SCHEMA_BYTES`, and texts that are
    not archived yet. Ids that are unknown expire after `unknown_s`, as do those with another meaning.
    """

    def __init__(
        self, registry: SchemaLookup, lakehouse: Lakehouse, unknown_s: float = UNKNOWN_S, *, decimals: bool = False
    ) -> None:
        """Read the archive's ids; the registry is asked later, id by id.

        `decimals`: messages of protobuf that are decimals become decimals.
        """
        self._unknown_s = unknown_s
        self._decimals = decimals
        self._registry = registry
        self._archive = SchemaArchive(lakehouse)
        self._known = {i: _Known(digests) for i, digests in self._archive.digests().items()}
        self._used: RecentlyUsed[SchemaId] = RecentlyUsed()
        self._unknown_since: dict[SchemaId, float] = {}
        self._subjects: dict[str, _Subject] = {}

    def expected_ids(self, subject: str) -> list[int]:
        """Ids of a subject to plan for: those that have occurred, or all if none has, as each planned id makes columns."""
        ids = self.ids_of(subject)
        return [i for i in ids if i in self._known and self._known[i].digests] or ids

    def ids_of(self, subject: str) -> list[int]:
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
        if not isinstance(schema_id, int):
            return None
        return next(((subject, s.ids[schema_id]) for subject, s in self._subjects.items() if schema_id in s.ids), None)

    def unknown_ids(self) -> set[SchemaId]:
        """Ids that the registry does not know, and is not asked about now."""
        now = time.monotonic()
        self._unknown_since = {i: since for i, since in self._unknown_since.items() if now < since + self._unknown_s}
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
            if self._decimals and isinstance(known.compiled, ProtobufSchema):
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
        if now < self._unknown_since.get(schema_id, -math.inf) + self._unknown_s:
            return None
        try:
            schema = self._registry.fetch(schema_id)
        except TransientError:
            if known is None:
                raise
            return known
        except DataError as error:  # too long to be read
            known = known or _Known(compiled=error)
        else:
            if schema is not None:
                known = self._verified(known, schema)
        if known is None:
            self._unknown_since[schema_id] = now
            return None
        self._known[schema_id] = known
        known.verified_until = now + self._unknown_s if isinstance(known.compiled, RegistryChangedError) else math.inf
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
            said = registry_changed(schema.schema_id, changed, self._registry.url, self._archive.uri)
            known.compiled = RegistryChangedError(said)
            return known
        # Perhaps the registry had lost a reference when this id was archived.
        return _Known(schema=schema) if schema.completes(archived) else known

    def require(self, schema_id: SchemaId) -> CompiledSchema:
        """The compiled schema; DataError with the reason if the id is unknown, or the schema does not compile."""
        compiled = self.compiled(schema_id)
        if compiled is None:
            raise DataError(self.no_such_id(schema_id))
        if isinstance(compiled, DataError):
            raise compiled
        return compiled

    def no_such_id(self, schema_id: SchemaId) -> str:
        """The reason why records with an unknown id are not decoded."""
        said = f"the registry {self._registry.url} has no schema with id {schema_id}"
        if schema_id == 0:
            said += (
                ", which no registry issues: are these ids of 8 bytes, as Apicurio's serializers write them? That is another "
                "wire format: let the producer write ids of 4 bytes (apicurio.registry.id-handler)"
            )
        return said

    def decoder(self, compiled: CompiledSchema, key: TypeKey) -> PayloadDecoder:
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

    def knows(self, schema_id: SchemaId) -> bool:
        """Whether the registry or the archive has this id now: unknown ids are requested again."""
        self._unknown_since.pop(schema_id, None)
        return self.compiled(schema_id) is not None

    def known_messages(self, schema_id: SchemaId) -> dict[str, tuple[Field, ...]]:
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

    def declared(self, schema_id: SchemaId) -> Mapping[IndexPath, str]:
        """Message types by index path, read from the text alone: of a schema that does not compile."""
        known = self._known.get(schema_id)
        if known is None or (known.schema is None and not known.digests):
            return {}
        return declared_names(self._text(schema_id, known))

    def offer(self, schemas: Iterable[RegistrySchema]) -> None:
        """Add schemas that came with the records."""
        self._registry.offer(schemas)

    def archive(self, schema_ids: Iterable[SchemaId]) -> list[SchemaId]:
        """Add the texts of these ids to the archive, before the first row that needs them is committed; return the new ids."""
        used = [(i, self._known[i]) for i in sorted(set(schema_ids), key=ordered) if i in self._known]
        new = [known.schema for _, known in used if known.schema is not None and not known.digests]
        added = list(self._archive.add(new, self._registry.url)) if new else []
        for schema_id, known in used:
            if known.schema is not None and not known.digests:
                known.digests = {known.schema.digest}
                self._use(schema_id)
        return added


_REFERENCES = pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("text", pa.string())]))

SCHEMA = schema_of(
    registry=(pa.string(), "Address of the registry that the text is from"),
    schema_id=(pa.int64(), "Id in the registry"),
    schema_guid=(pa.string(), "GUID, of schemas that records name by one"),
    format=(pa.string(), "PROTOBUF, AVRO or JSON"),
    text=(pa.string(), "Schema text as the registry had it"),
    references=(_REFERENCES, "Schemas that it refers to, with their texts"),
    digest=(pa.string(), "Hash of text and references"),
    archived_at=(pa.timestamp("us", tz="UTC"), "When its first record was read (UTC)"),
)

#: Without the time: to make Python's times of times with a zone Arrow imports pandas.
_READ_COLUMNS = [name for name in SCHEMA.names if name != "archived_at"]


class SchemaArchive:
    """Reads and adds to the table."""

    def __init__(self, lakehouse: Lakehouse) -> None:
        description = "Schema texts by id, as the registry had them when their first record was read"
        self.declaration = SystemTable(lakehouse.table(SCHEMAS), SCHEMA, description)

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self.declaration.table.uri

    def digests(self) -> dict[SchemaId, set[str]]:
        """Every id with the digests of its texts: more than one if a reference was lost; no text is read."""
        handle = self.declaration.table.open()
        rows = self.declaration.read(handle, ["schema_id", "schema_guid", "digest"])
        digests: dict[SchemaId, set[str]] = {}
        for row in rows.to_pylist():
            schema_id = SchemaRef(row["schema_id"], row["schema_guid"]).schema_id
            if schema_id is not None:
                digests.setdefault(schema_id, set()).add(row["digest"])
        return digests

    def read(self, schema_ids: Collection[SchemaId] | None = None) -> dict[SchemaId, RegistrySchema]:
        """Ids with their schemas: all, or those of some; only files that may have them are read."""
        return self._schemas(self.declaration.table.open(), schema_ids)

    @retry_on_conflict()
    def add(self, schemas: Sequence[RegistrySchema], registry: str) -> dict[SchemaId, RegistrySchema]:
        """Add what is not there yet, in one commit.

        Returns:
            what was added; a concurrent run may have added the same ids before.

        Raises:
            DataError: REGISTRY_CHANGED, another meaning of one of these ids is archived.
            ConflictError: concurrent runs won every attempt.
        """
        handle = self.declaration.table.open()
        archived = self._schemas(handle, [schema.schema_id for schema in schemas])
        new: dict[SchemaId, RegistrySchema] = {}
        for schema in schemas:
            known = archived.get(schema.schema_id)
            changed = difference(known, schema) if known is not None else None
            if changed is not None:
                raise DataError(f"REGISTRY_CHANGED: {registry_changed(schema.schema_id, changed, registry, self.uri)}")
            if known is None or schema.completes(known):
                new[schema.schema_id] = schema
        if new:
            self.declaration.commit(handle, pa.Table.from_pylist([_row(s, registry) for s in new.values()], schema=SCHEMA))
        return new

    def _schemas(self, handle: DeltaTable | None, schema_ids: Collection[SchemaId] | None) -> dict[SchemaId, RegistrySchema]:
        paths = None if handle is None or schema_ids is None else _paths(handle, schema_ids)
        if paths == []:
            return {}
        schemas: dict[SchemaId, RegistrySchema] = {}
        for row in self.declaration.read(handle, _READ_COLUMNS, paths).to_pylist():
            schema = _schema_of(row)
            schema_id = schema.schema_id
            if schema_ids is not None and schema_id not in schema_ids:
                continue
            if schema_id not in schemas or schema.completes(schemas[schema_id]):
                schemas[schema_id] = schema
        return schemas


def _schema_of(row: Mapping[str, Any]) -> RegistrySchema:
    schema_id = row["schema_guid"] if row["schema_id"] is None else row["schema_id"]
    references = tuple((part["name"], part["text"]) for part in row["references"] or [])
    return RegistrySchema(schema_id, row["format"], row["text"], references)


def _paths(handle: DeltaTable, schema_ids: Collection[SchemaId]) -> list[str]:
    """Files that may have rows of these ids, by their statistics."""
    files = add_actions(handle)
    chosen: set[str] = set()
    numbers = [schema_id for schema_id in schema_ids if isinstance(schema_id, int)]
    guids = [schema_id for schema_id in schema_ids if isinstance(schema_id, str)]
    if numbers:
        chosen.update(files.filter(may_hold(files, "schema_id", min(numbers), max(numbers)))["path"].to_pylist())
    if guids:
        chosen.update(files.filter(may_hold(files, "schema_guid", min(guids), max(guids)))["path"].to_pylist())
    return sorted(chosen)


def registry_changed(schema_id: SchemaId, changed: str, registry: str, uri: str) -> str:
    """The message for a registry's schema of an id that decodes otherwise than the archived one: `changed`, as `difference`."""
    return (
        f"{registry} gives schema id {schema_id} another meaning than the records already read with it "
        f"(archive: {uri}): {changed}. Point GAME_EVENTS_SCHEMA_REGISTRY_URL at the right registry, or restore it, and replay: "
        "`game-events quarantine replay --reason REGISTRY_CHANGED`"
    )


def _row(schema: RegistrySchema, registry: str) -> Mapping[str, object]:
    number, guid = SchemaRef.of(schema.schema_id)
    return {
        "registry": registry,
        "schema_id": number,
        "schema_guid": guid,
        "format": schema.format,
        "text": schema.text,
        "references": [{"name": name, "text": text} for name, text in schema.references],
        "digest": schema.digest,
        "archived_at": datetime.now(UTC),
    }
