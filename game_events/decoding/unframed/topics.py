"""Rules of the settings for topics without a registry's frame, and a batch's records by them; picklable.

A rule names a schema (`SchemaName`), or each of its records does, in a header or the key. Only the driver knows what a name
stands for: a worker that meets another one reports it, like a type that it does not know, and the driver plans again.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from game_events.config.sources.schema_names import HEADER, KEY, SUBJECT
from game_events.decoding.frame import (
    GLUE_BYTES,
    GLUE_HEADS,
    BadFrames,
    FrameGroup,
    IndexPath,
    Reason,
    Rows,
    SchemaId,
    too_large,
)
from game_events.decoding.unframed.cloudevents import events_of
from game_events.decoding.unframed.inferred import KINDS, TopicDocuments, inferred_id
from game_events.errors import ConfigurationError

if TYPE_CHECKING:  # its libraries would be imported by workers
    from game_events.config.settings import Settings
    from game_events.config.sources.topic_decoding import TopicDecoding

SETTING = "GAME_EVENTS_DECODING"
#: Kinds of names of schemas besides subjects: an id; a file.
ID, FILE = "id:", "file:"
#: Bytes of a subject's name.
_MOST_BYTES = 255
#: How much zlib makes of a byte at most, and bytes of what is unpacked at a time.
_ZLIB_RATIO = 1_032
_UNPACKED_BYTES = 2**28


class SchemaName(NamedTuple):
    """What names a schema.

    Attributes:
        schema: `subject:NAME`, `subject:NAME@3`, `id:7`, `file:PATH`.
        message_type: full name of the protobuf message; None: the first.
        stored: id or GUID of the schema that a stored row was decoded with, which is taken if it is another version of the
            subject; None: it is a new record.
        registry: name of the registry (`frame.named`) of the source of the records; of files none.
    """

    schema: str
    message_type: str | None = None
    stored: SchemaId | None = None
    registry: str = ""

    @property
    def follows_rows(self) -> bool:
        """Whether stored rows keep the version that they were decoded with: of a subject without a number."""
        return self.schema.startswith(SUBJECT) and "@" not in self.schema

    def within(self, registry: str) -> SchemaName:
        """The name in a registry; a file is in none."""
        return self if self.schema.startswith(FILE) else self._replace(registry=registry)


@dataclass(frozen=True)
class TopicRule:
    """The rule of a topic, see `config.sources.topic_decoding.TopicDecoding`.

    Attributes:
        format: as registries name it.
        schema: as in a `SchemaName`, or where records name theirs; None: columns are inferred.
        framed: "" (never), "auto" or "glue".
        documents: of topics without a schema.
        cloudevents: records are CloudEvents.
    """

    format: str
    schema: str | None = None
    message_type: str | None = None
    framed: str = ""
    documents: TopicDocuments = field(default_factory=TopicDocuments)
    cloudevents: bool = False

    @property
    def is_named_by_records(self) -> bool:
        """Whether each record names its schema."""
        return self.schema is not None and (self.schema == KEY or self.schema.startswith(HEADER))

    @property
    def name(self) -> SchemaName | None:
        """The schema of all of its records; None: each names its own, or there is none."""
        return None if self.schema is None or self.is_named_by_records else SchemaName(self.schema, self.message_type)

    @classmethod
    def of(cls, entry: TopicDecoding) -> TopicRule:
        """The rule of an entry of the settings."""
        schema = f"{FILE}{entry.file}" if entry.file is not None else entry.schema_
        hints = {tuple(path.split(".")): KINDS[kind] for path, kind in entry.hints.items()}
        documents = TopicDocuments(hints, entry.type_field)
        return cls(entry.format.upper(), schema, entry.message_type, entry.framed or "", documents, entry.cloudevents)

    def __str__(self) -> str:
        """What is tried, for the detail of a record that does not decode."""
        parts = [self.format.lower(), "without a schema" if self.schema is None else f"schema {self.schema}"]
        return ", ".join([*parts, *([f"message type {self.message_type}"] if self.message_type else [])])


@dataclass(frozen=True)
class TopicRules:
    """All rules, perhaps none: `exact` by topic, `patterns` in their order; `max_bytes`: of one record, unpacked.

    `of_sources`: source -> the rules of its topics, where there are several; `read`: regular expression of the topics read.
    """

    exact: Mapping[str, TopicRule] = field(default_factory=dict)
    patterns: tuple[tuple[str, TopicRule], ...] = ()
    max_bytes: int = 2**26
    of_sources: Mapping[str, TopicRules] = field(default_factory=dict)
    read: str = ".*"

    @classmethod
    def of_settings(cls, settings: Settings, sources: Mapping[str, Settings] = MappingProxyType({})) -> TopicRules:
        """The rules of the settings; `sources`: source -> its settings, where there are several."""
        rules = {name: TopicRule.of(entry) for name, entry in settings.decoding.items()}
        patterns = settings.decoding_patterns
        exact = {name: rule for name, rule in rules.items() if name not in patterns}
        of_sources = {source: cls.of_settings(one) for source, one in sources.items()}
        named = tuple((name, rules[name]) for name in patterns)
        return cls(exact, named, settings.max_record_bytes, of_sources, settings.topic_pattern)

    @property
    def all(self) -> list[TopicRule]:
        """Every rule."""
        own = [*self.exact.values(), *(rule for _, rule in self.patterns)]
        return [*own, *(rule for rules in self.of_sources.values() for rule in rules.all)]

    def inferred(self, topic: str) -> TopicRule | None:
        """The rule without a schema for a topic, of the sources that read it, else of any (there may be stored rows of it).

        ConfigurationError: they differ, though topics of one name have the same columns.
        """
        reading = [known for known in self.of_sources.values() if re.fullmatch(known.read, topic)]
        found = [known.of(topic) for known in reading or (self, *self.of_sources.values())]
        rules = [rule for rule in found if rule is not None and rule.schema is None]
        if reading and any(rule.documents != rules[0].documents for rule in rules):
            raise ConfigurationError(
                f"{SETTING}: sources have other `hints` or another `type_field` for topics of one name, {topic}, which have "
                "the same columns: let all say the same"
            )
        return rules[0] if rules else None

    def of(self, topic: str | None, source: str | None = None) -> TopicRule | None:
        """The rule of a topic; None: its records have frames."""
        if topic is None:
            return None
        if source is not None and source in self.of_sources:
            return self.of_sources[source].of(topic)
        if topic in self.exact:
            return self.exact[topic]
        return next((rule for pattern, rule in self.patterns if re.fullmatch(pattern, topic)), None)


@dataclass(frozen=True)
class TopicPlan:
    """The rules, and what names of schemas stand for; picklable.

    Attributes:
        keys: type that a name stands for.
        refused: names that stand for none, with reason and detail.
        rest: why other names are UNKNOWN_SCHEMA; None: they are reported.
        room: names that are reported from one batch.
    """

    rules: TopicRules
    keys: Mapping[SchemaName, tuple[SchemaId, IndexPath]] = field(default_factory=dict)
    refused: Mapping[SchemaName, tuple[Reason, str]] = field(default_factory=dict)
    rest: str | None = None
    room: int = 1_000

    @cached_property
    def has_glue(self) -> bool:
        """Whether some payloads may be compressed."""
        return any(rule.framed == "glue" for rule in self.rules.all)


class Records(NamedTuple):
    """Records of one batch, each array of shape (n,): values, headers (or None), topics, keys.

    `stored`: of stored rows the schema that they were decoded with, and their message type; None: they are new. `source`: of
    all of them; None: there is one source. `registry`: name of its registry.
    """

    values: pa.BinaryArray
    headers: pa.ListArray | None
    topics: pa.Array
    keys: pa.Array
    stored: tuple[pa.Array, pa.Array, pa.Array] | None = None
    source: str | None = None
    registry: str = ""


class BareGroup(NamedTuple):
    """Rows of one type, their payloads, what is tried, and attributes of CloudEvents (None: they are none)."""

    group: FrameGroup
    payloads: pa.BinaryArray
    tried: str
    attributes: pa.RecordBatch | None


@dataclass
class BareRows:
    """Rows of a batch by the rules of their topics.

    Attributes:
        groups: rows that can be.
        bad: rows that cannot be.
        unknown: names of schemas that the plan lacks; their rows are in no list.
    """

    groups: list[BareGroup] = field(default_factory=list)
    bad: list[tuple[BadFrames, str]] = field(default_factory=list)
    unknown: set[SchemaName] = field(default_factory=set)


def by_topic(rules: TopicRules, records: Records) -> Iterator[tuple[str, TopicRule, Rows]]:
    """Topics that have a rule, with the rule and their rows."""
    for topic, rows in distinct(records.topics):
        rule = rules.of(topic, records.source)
        if rule is not None:
            yield topic, rule, rows


def distinct(values: pa.Array) -> Iterator[tuple[Any, Rows]]:
    """Each distinct value with its rows, without NULL."""
    encoded = pc.dictionary_encode(values)
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    names = encoded.dictionary.to_pylist()
    indices = pc.fill_null(encoded.indices, len(names)).to_numpy(zero_copy_only=False)
    if len(names) == 1 and not encoded.null_count:
        yield names[0], np.arange(len(values), dtype=np.int64)
        return
    order = np.argsort(indices, kind="stable").astype(np.int64)
    ends = np.cumsum(np.bincount(indices, minlength=len(names)))
    for number, name in enumerate(names):
        yield name, order[ends[number - 1] if number else 0 : ends[number]]


def split(plan: TopicPlan, topic: str, rule: TopicRule, rows: Rows, records: Records) -> BareRows:
    """Rows of one topic by schema, with their payloads; `rows` are those without a frame."""
    result = BareRows()
    taken = records.values.take(pa.array(rows)).cast(pa.binary())
    is_null = np.asarray(taken.is_null().to_numpy(zero_copy_only=False))
    if is_null.any():
        result.bad.append((BadFrames(Reason.TOMBSTONE, rows[is_null]), ""))
        rows = rows[~is_null]
        taken = taken.filter(pa.array(~is_null))
    for places, payloads in _unwrapped(plan, rule, rows, taken, result):
        part = _events(rule, places, payloads, records, result) if rule.cloudevents else _Part(places, payloads)
        _by_schema(plan, topic, rule, part, records, result)
    return result


class _Part(NamedTuple):
    rows: Rows
    payloads: pa.BinaryArray
    attributes: pa.RecordBatch | None = None


def _events(rule: TopicRule, rows: Rows, values: pa.BinaryArray, records: Records, result: BareRows) -> _Part:
    """Data and attributes of CloudEvents; records that are none become bad."""

    def texts(name: str) -> pa.Array:
        return _texts(records, f"{HEADER}{name}", rows)

    events = events_of(values.to_pylist(), texts, b"{}" if rule.format == "JSON" else b"")
    result.bad += [(replace(bad, rows=rows[bad.rows]), str(rule)) for bad in events.bad]
    return _Part(rows[events.positions], events.payloads, events.attributes)


def _by_schema(plan: TopicPlan, topic: str, rule: TopicRule, part: _Part, records: Records, result: BareRows) -> None:
    rows, payloads, attributes = part
    if rule.schema is None:
        result.groups.append(BareGroup(FrameGroup(inferred_id(topic), (), 0, rows), payloads, str(rule), attributes))
        return
    for name, positions in _names(rule, rows, records, result):
        if name in plan.keys:
            schema_id, path = plan.keys[name]
            chosen = pa.array(positions)
            mine = payloads if len(positions) == len(rows) else payloads.take(chosen)
            of_mine = attributes if attributes is None else attributes.take(chosen)
            tried = f"{rule}, which is schema id {schema_id}"
            result.groups.append(BareGroup(FrameGroup(schema_id, path, 0, rows[positions]), mine, tried, of_mine))
        elif name in plan.refused:
            reason, detail = plan.refused[name]
            result.bad.append((BadFrames(reason, rows[positions], None, detail), str(rule)))
        elif plan.rest is not None:
            result.bad.append((BadFrames(Reason.UNKNOWN_SCHEMA, rows[positions], None, plan.rest), str(rule)))
        elif len(result.unknown) < plan.room:
            result.unknown.add(name)


def _names(rule: TopicRule, rows: Rows, records: Records, result: BareRows) -> list[tuple[SchemaName, Rows]]:
    """Names of schemas with the positions of their records among `rows`; records that name none become bad."""
    if rule.name is not None:
        return _versions(rule.name.within(records.registry), rows, records)
    texts = _texts(records, rule.schema or "", rows).cast(pa.binary())
    fits = pc.and_(pc.greater(pc.binary_length(texts), 0), pc.less_equal(pc.binary_length(texts), _MOST_BYTES))
    is_bad = ~np.asarray(pc.fill_null(fits, False))
    if is_bad.any():
        where = "key" if rule.schema == KEY else f"header {(rule.schema or '').removeprefix(HEADER)!r}"
        detail = (
            f"the record's {where}, which should name its schema's subject or id, is missing or longer than {_MOST_BYTES} bytes"
        )
        result.bad.append((BadFrames(Reason.UNKNOWN_SCHEMA, rows[is_bad], None, detail), str(rule)))
    good = np.flatnonzero(~is_bad)
    named = distinct(texts.take(pa.array(good)))
    names = ((_name_of(bytes(text), rule.message_type), good[positions]) for text, positions in named)
    return [(name.within(records.registry), positions) for name, positions in names]


def _versions(name: SchemaName, rows: Rows, records: Records) -> list[tuple[SchemaName, Rows]]:
    """The name alone; of stored rows and a subject's newest version, with the schema that each was decoded with."""
    everywhere = np.arange(len(rows), dtype=np.int64)
    if records.stored is None or not name.follows_rows:
        return [(name, everywhere)]
    ids = records.stored[0].take(pa.array(rows))
    named = [(name._replace(stored=int(number)), positions) for number, positions in distinct(ids)]
    without = np.flatnonzero(np.asarray(ids.is_null().to_numpy(zero_copy_only=False)))
    return [*named, (name, without)] if len(without) else named


def _texts(records: Records, schema: str, rows: Rows) -> pa.Array:
    """What a header (of several of the name the last), or the key, of each row has; NULL: nothing."""
    if schema == KEY:
        return records.keys.take(pa.array(rows))
    headers = records.headers
    if headers is None or not len(headers.flatten()):
        return pa.nulls(len(rows), pa.binary())
    items = headers.flatten()
    mine = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(items.field("key"), schema.removeprefix(HEADER)), False)))
    last = np.full(len(headers), -1, dtype=np.int64)
    last[pc.list_parent_indices(headers).to_numpy()[mine]] = mine
    places = last[rows]
    return items.field("value").take(pa.array(places, mask=places < 0))


def _name_of(text: bytes, message_type: str | None) -> SchemaName:
    """The name of a schema as a record has it: digits are an id."""
    written = text.decode("utf-8", "backslashreplace").strip()
    kind = ID if written.isascii() and written.isdigit() and len(written) <= 10 else SUBJECT
    return SchemaName(f"{kind}{written}", message_type)


def without_rule(records: Records, rows: Rows) -> list[tuple[SchemaName, Rows]]:
    """Stored rows without a frame, of topics that have no rule any more: by the schema that each was decoded with."""
    if records.stored is None or not len(rows):
        return []
    numbers, guids, types = (column.take(pa.array(rows)) for column in records.stored)
    refs = pc.coalesce(numbers.cast(pa.string()), guids)
    both = pc.binary_join_element_wise(refs, pc.fill_null(types, ""), "\n")
    named = []
    for text, positions in distinct(both):
        ref, _, message = text.partition("\n")
        named.append((SchemaName(f"{ID}{ref}", message or None, registry=records.registry), rows[positions]))
    return named


def _unwrapped(
    plan: TopicPlan, rule: TopicRule, rows: Rows, values: pa.BinaryArray, result: BareRows
) -> Iterator[tuple[Rows, pa.Array]]:
    """Rows with their payloads: as they are, or without the frame of AWS Glue."""
    if rule.framed != "glue":
        yield rows, values
        return
    heads = pc.is_in(pc.binary_slice(values, 0, stop=2), pa.array(GLUE_HEADS))
    is_glue = np.asarray(pc.and_(heads, pc.greater_equal(pc.binary_length(values), GLUE_BYTES)))
    if not is_glue.all():
        detail = "it does not begin with an AWS Glue frame (03, 00 or 05, a UUID)"
        result.bad.append((BadFrames(Reason.BAD_MAGIC, rows[~is_glue], None, detail), str(rule)))
        rows = rows[is_glue]
        values = values.filter(pa.array(is_glue))
    is_packed = np.asarray(pc.equal(pc.binary_slice(values, 1, stop=2), b"\5"))
    bodies = pc.binary_slice(values, GLUE_BYTES, stop=2**31 - 1)
    if not is_packed.all():
        yield rows[~is_packed], bodies.filter(pa.array(~is_packed))
    yield from _unpacked(plan.rules.max_bytes, rule, rows[is_packed], bodies.filter(pa.array(is_packed)), result)


def _unpacked(
    most: int, rule: TopicRule, rows: Rows, bodies: pa.BinaryArray, result: BareRows
) -> Iterator[tuple[Rows, pa.Array]]:
    """Payloads that zlib has compressed, in parts; those that are damaged or too large become bad."""
    good: list[int] = []
    payloads: list[bytes] = []
    size = 0
    for row, body in zip(rows.tolist(), bodies.to_pylist(), strict=True):
        bad = None
        unpacking = zlib.decompressobj()
        try:
            payload = unpacking.decompress(body, most + 1)
        except zlib.error as error:
            bad = BadFrames(Reason.MALFORMED, np.array([row]), None, f"AWS Glue's frame: zlib cannot unpack it: {error}")
        else:
            if len(payload) > most:
                bad = BadFrames(Reason.TOO_LARGE, np.array([row]), None, too_large(f"more than {most:,}", most))
            elif not unpacking.eof:
                bad = BadFrames(Reason.TRUNCATED, np.array([row]), None, "AWS Glue's frame: the compressed payload ends early")
        if bad is not None:
            result.bad.append((bad, str(rule)))
            continue
        good.append(row)
        payloads.append(payload)
        size += len(payload)
        if size > _UNPACKED_BYTES:
            yield np.array(good, np.int64), pa.array(payloads, pa.binary())
            good = []
            payloads = []
            size = 0
    if good:
        yield np.array(good, np.int64), pa.array(payloads, pa.binary())


def unpacked_lengths(values: pa.BinaryArray, lengths: Rows, most: int) -> Rows:
    """Bytes that payloads may have once those that are compressed are unpacked, each to at most so many."""
    is_packed = np.asarray(pc.fill_null(pc.equal(pc.binary_slice(values, 0, stop=2), GLUE_HEADS[1]), False))
    return np.where(is_packed, np.minimum(lengths.astype(np.int64) * _ZLIB_RATIO, most), lengths)
