"""Decoders of all payload formats: compilation of schemas, and batches of framed values into columns and rejected rows.

Batches are decoded in Spark's workers, each row by its own schema, with a plan of the driver, which alone uses the registry.
Message types that are not in the plan are reported, and the driver plans again before anything is committed. One topic may hold
all payload formats, by the registry's ``schemaType`` of each schema id.

A schema is untrusted text: it is compiled, and its decoders are tried, in a child process, so that a bad one affects only its
own records. If it is invalid, crashes the compiler, takes too long or too much memory, it raises a DataError. One that the
child has handled within its limits is then used in this process and in Spark's workers, which never compile.
"""

import base64
import json
import sys
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from game_events.config.definitions.computed import Definitions
from game_events.decoding import compiler_child
from game_events.decoding import frame as frames
from game_events.decoding.avro_decoder import AvroDecoder
from game_events.decoding.avro_schema import AvroSchema
from game_events.decoding.columns import NO_RULES, ColumnMap, ColumnRules, ValueRules
from game_events.decoding.frame import IndexPath, Reason, RegistrySchema, Rows, SchemaId, ordered
from game_events.decoding.json_decoder import JsonDecoder
from game_events.decoding.json_schema import UNNAMED, JsonSchema, SchemaText
from game_events.decoding.projection import ColumnsDecoder, ColumnsSchema, CompiledSchema, PayloadDecoder, Shape, cuts, pieces
from game_events.decoding.protobuf.decoder import ProtobufDecoder
from game_events.decoding.protobuf.schema import ProtobufSchema, from_base64, top_messages
from game_events.decoding.unframed.inferred import InferredDecoder, InferredSchema, topic_of
from game_events.decoding.unframed.topics import SchemaName, TopicPlan, distinct, unpacked_lengths
from game_events.errors import DataError, TransientError

#: Message type of a record: schema id and message index path.
TypeKey = tuple[SchemaId, IndexPath]
#: Index paths of one schema that are named from one batch, of types that are unknown or do not exist: records choose how many.
MAX_UNKNOWN_PATHS = 16


@dataclass(frozen=True)
class DecodePlan:
    """Everything a worker needs to decode; picklable.

    Attributes:
        schemas: schema id -> compiled schema.
        types: types that can be decoded; their fields are in `columns`.
        rejected: types, or whole ids (path ``()``), that cannot be decoded, with reason and detail.
        columns: the column map.
        undecoded: types, or whole ids, that are not selected: kept as raw values.
        rest: why other ids are UNKNOWN_SCHEMA; None: they are reported.
        max_unknown_ids: unknown ids that are reported from one batch, plus one.
        values: what becomes of single bad values.
        named: names of types that their schema does not give, or that have no schema.
        topics: rules for topics without frames; None: there are none.
        definitions: how game, player and time of a decoded row are computed; None: they are decoded fields.
        registries: source -> name of its registry in ids (`frame.named`), where it has one of its own.
    """

    schemas: Mapping[SchemaId, CompiledSchema] = field(default_factory=dict)
    types: frozenset[TypeKey] = frozenset()
    rejected: Mapping[TypeKey, tuple[Reason, str]] = field(default_factory=dict)
    columns: ColumnMap = field(default_factory=ColumnMap)
    undecoded: frozenset[TypeKey] = frozenset()
    rest: str | None = None
    max_unknown_ids: int = 10_000
    values: ValueRules = field(default_factory=ValueRules)
    named: Mapping[TypeKey, str] = field(default_factory=dict)
    topics: TopicPlan | None = None
    definitions: Definitions | None = None
    registries: Mapping[str, str] = field(default_factory=dict)

    def registry_of(self, source: str | None) -> str:
        """Name of the registry of which the ids of a source's records are (`frame.registry_of_source`)."""
        return frames.registry_of_source(source, self.registries)

    def name_of(self, key: TypeKey) -> str | None:
        """Full name of a message type; None: it is not known."""
        schema = self.schemas.get(key[0])
        return self.named.get(key) or (schema.name_of(key[1]) if schema is not None else None)


class GoodRows(NamedTuple):
    """Rows of a batch of one type: their positions, the schema's id (None: none), the decoded columns, the type's full name."""

    rows: Rows
    schema_id: SchemaId | None
    columns: pa.Table
    message_type: str | None


@dataclass(frozen=True)
class Rejected:
    """Rows of a batch that were not decoded, for one reason."""

    reason: Reason
    detail: str
    rows: Rows
    schema_id: SchemaId | None
    message_type: str | None = None


@dataclass
class DecodedBatch:
    """One batch, decoded.

    Attributes:
        good: each group of rows of one type.
        rejected: rows that could not be decoded.
        undecoded: (positions, type) of rows of message types that are not selected.
        types: decoded types.
        unknown: types that are not in the plan; their rows are in no list.
        nulled: column -> its bad values that became NULL.
        unknown_names: names of schemas that the plan lacks; their rows are in no list.
        grown: topic without a schema -> type of members that the plan lacks; its rows are in `good` without them.
        rescued: topic without a schema -> its rows with values that do not fit their columns.
    """

    good: list[GoodRows] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    undecoded: list[tuple[Rows, TypeKey]] = field(default_factory=list)
    types: set[TypeKey] = field(default_factory=set)
    unknown: set[TypeKey] = field(default_factory=set)
    nulled: Counter[str] = field(default_factory=Counter)
    unknown_names: set[SchemaName] = field(default_factory=set)
    grown: dict[str, str] = field(default_factory=dict)
    rescued: Counter[str] = field(default_factory=Counter)


#: Bytes of payloads that a batch is cut to, if they may be compressed.
UNPACKED_BYTES = 2**30
#: Names of types that the records of one batch without a schema are told apart by; the others have their topic's name.
MAX_NAMED_TYPES = 200


class BatchDecoder:
    """Decodes batches with one plan; builds each message type's decoder once, unless others have taken its memory."""

    def __init__(self, plan: DecodePlan) -> None:
        self._plan = plan
        self._decoders: dict[TypeKey, PayloadDecoder] = {}
        self._used: RecentlyUsed[TypeKey] = RecentlyUsed()
        self._rules = ColumnRules(plan.values, plan.columns)
        self._shape = Shape.of(plan.columns.columns.values())
        #: By registry: frames have ids without its name.
        self._indexless: dict[str, set[SchemaId]] = {}
        for schema_id, schema in plan.schemas.items():
            if not schema.indexed:
                self._indexless.setdefault(frames.registry_of(schema_id), set()).add(frames.bare(schema_id))
        self._is_all_indexed = not self._indexless

    def _indexless_of(self, registry: str) -> Set[SchemaId]:
        """Ids of a registry's schemas, as frames have them, whose records have no message indexes."""
        return self._indexless.get(registry, frozenset())

    def parts(self, rows: pa.RecordBatch, values: str) -> Iterator[pa.RecordBatch]:
        """Rows, cut where they could become too many cells (see `pieces`); `values`: name of the column with the values."""
        lengths = np.zeros(0, np.int64)
        if len(rows):
            lengths = pc.fill_null(pc.binary_length(rows.column(values)), 0).to_numpy(zero_copy_only=False)
        for begin, end in self._bounds(rows.column(values), lengths):
            # Copies: slices would count as the whole batch.
            yield rows if end - begin == len(rows) else rows.take(pa.array(np.arange(begin, end)))

    def _bounds(self, values: pa.BinaryArray, lengths: Rows) -> Iterator[tuple[int, int]]:
        # An element of protobuf has a tag and a length; one of Avro may have the index of a branch only.
        octets = 2 if self._is_all_indexed else 1
        topics = self._plan.topics
        if topics is None or not topics.has_glue or not len(values):
            yield from pieces(self._shape, lengths, octets)
            return
        lengths = unpacked_lengths(values, lengths, topics.rules.max_bytes)
        for first, last in cuts(lengths, UNPACKED_BYTES):
            for begin, end in pieces(self._shape, lengths[first:last], octets):
                yield first + begin, first + end

    def decode(self, values: pa.BinaryArray, headers: pa.ListArray | None = None, registry: str = "") -> DecodedBatch:
        """Decode values, NULL for tombstones, and headers (list of struct<key, value>), both of shape (n,).

        `registry`: whose ids their frames have. Each row is in `good`, `rejected`, `undecoded` or, by its type, in `unknown`.
        """
        result = DecodedBatch()
        self._decode_framed(values, headers, registry, result)
        return self._settled(result)

    def _decode_framed(self, values: pa.BinaryArray, headers: pa.ListArray | None, registry: str, result: DecodedBatch) -> None:
        self._decode_split(*frames.split(values, headers, self._indexless_of(registry)), values, registry, result)

    def _decode_split(
        self,
        groups: list[frames.FrameGroup],
        bad_frames: list[frames.BadFrames],
        values: pa.BinaryArray,
        registry: str,
        result: DecodedBatch,
    ) -> None:
        """Decode values that are split by their frames."""
        if registry:
            groups = [replace(group, schema_id=frames.named(registry, group.schema_id)) for group in groups]
            bad_frames = [_of_registry(bad, registry) for bad in bad_frames]
        for bad in bad_frames:
            self._add_bad(bad, result)
        known = self._known(groups, result)
        for group, payloads in zip(known, frames.payloads(values, known), strict=True):
            self._decode(group, payloads, result)

    def _settled(self, result: DecodedBatch) -> DecodedBatch:
        result.rejected = _merged(result.rejected)
        # The smallest ids are most likely to exist, as registries count upwards. Topics are no matter of the registry.
        ids = {schema_id for schema_id, _ in result.unknown if topic_of(schema_id) is None}
        left_out = set(sorted(ids, key=ordered)[self._plan.max_unknown_ids + 1 :])
        result.unknown = {key for key in result.unknown if key[0] not in left_out}
        return result

    def decode_columns(self, schema_id: SchemaId, rows: pa.StructArray) -> DecodedBatch:
        """Decode rows of columns, all of one schema (see `projection`); otherwise as `decode`."""
        result = DecodedBatch()
        if not self._knows(schema_id):
            result.unknown.add((schema_id, ()))
            return result
        for group in self._known([frames.FrameGroup(schema_id, (), 0, np.arange(len(rows), dtype=np.int64))], result):
            self._decode(group, rows, result)
        return result

    def _decode(self, group: frames.FrameGroup, payloads: pa.Array, result: DecodedBatch) -> None:
        key = (group.schema_id, group.path)
        name = self._plan.name_of(key)
        decoded = self._decoder(key).decode(payloads, self._plan.columns)
        result.nulled.update(decoded.nulled)
        topic = topic_of(group.schema_id)
        schema_id = group.schema_id if topic is None else None
        if len(decoded.good):
            result.good += by_names(GoodRows(group.rows[decoded.good], schema_id, decoded.table, name), decoded.names)
        if topic is not None:
            result.rescued.update({topic: decoded.rescued} if decoded.rescued else {})
            result.grown |= {topic: decoded.grown} if decoded.grown is not None else {}
        for why, detail, rows in decoded.bad:
            result.rejected.append(Rejected(why, detail, group.rows[rows], schema_id, name))

    def _known(self, groups: Iterable[frames.FrameGroup], result: DecodedBatch) -> list[frames.FrameGroup]:
        """The groups of types that are decoded; the others are added to the result."""
        known: list[frames.FrameGroup] = []
        paths: Counter[SchemaId] = Counter()
        for group in groups:
            schema_id = group.schema_id
            key = (schema_id, group.path)
            whole = (schema_id, ())
            unselected = next((type_ for type_ in (key, whole) if type_ in self._plan.undecoded), None)
            refusal = self._plan.rejected.get(key) or self._plan.rejected.get(whole)
            # First, as types that are not selected need not be decodable.
            if unselected is not None:
                result.undecoded.append((group.rows, unselected))
            elif refusal is not None:
                result.rejected.append(Rejected(*refusal, group.rows, schema_id, self._plan.name_of(key)))
            elif key in self._plan.types:
                result.types.add(key)
                known.append(group)
            elif not self._knows(schema_id):
                paths[schema_id] += 1
                self._report(key if paths[schema_id] <= MAX_UNKNOWN_PATHS else whole, group.rows, result)
            elif self._plan.schemas[schema_id].has(group.path):
                result.unknown.add(key)
            else:
                paths[schema_id] += 1
                where = f"index path {list(group.path)}" if paths[schema_id] <= MAX_UNKNOWN_PATHS else "the record's index path"
                detail = f"schema id {schema_id} has no message at {where}"
                result.rejected.append(Rejected(Reason.BAD_INDEX, detail, group.rows, schema_id))
        return known

    def _add_bad(self, bad: frames.BadFrames, result: DecodedBatch) -> None:
        refusal = bad.reason, bad.detail or bad.reason.explanation
        name = None
        if bad.schema_id is not None:
            whole = (bad.schema_id, ())
            if not self._knows(bad.schema_id):
                # Malformed only if the schema has indexes, which the driver finds out.
                self._report(whole, bad.rows, result)
                return
            if whole in self._plan.undecoded:
                result.undecoded.append((bad.rows, whole))
                return
            # A rejected schema may have no indexes: its own reason takes precedence.
            refusal = self._plan.rejected.get(whole, refusal)
            name = self._plan.name_of(whole)
        result.rejected.append(Rejected(*refusal, bad.rows, bad.schema_id, name))

    def _report(self, key: TypeKey, rows: Rows, result: DecodedBatch) -> None:
        if self._plan.rest is None:
            result.unknown.add(key)
        else:
            result.rejected.append(Rejected(Reason.UNKNOWN_SCHEMA, self._plan.rest, rows, key[0]))

    def _knows(self, schema_id: SchemaId) -> bool:
        return schema_id in self._plan.schemas or (schema_id, ()) in self._plan.rejected

    def _decoder(self, key: TypeKey) -> PayloadDecoder:
        decoder = self._decoders.get(key)
        schema = self._plan.schemas[key[0]]
        if decoder is None:
            allow_deep_calls()
            decoder = self._decoders[key] = make_decoder(schema, key[1], self._rules)
        for other in self._used.use(key, schema.size):
            del self._decoders[other]
            self._plan.schemas[other[0]].forget()
        return decoder


def by_names(good: GoodRows, names: pa.Array | None) -> list[GoodRows]:
    """Rows by the names of types that they have themselves, the most frequent ones; the others keep theirs."""
    if names is None or names.null_count == len(names):
        return [good]
    counts = pc.value_counts(names.drop_null())
    if len(counts) > MAX_NAMED_TYPES:
        most = pc.array_sort_indices(counts.field("counts"), order="descending")[:MAX_NAMED_TYPES]
        names = pc.if_else(pc.is_in(names, counts.field("values").take(most)), names, None)
    parts = []
    for name, rows in distinct(pc.fill_null(names, "")):
        columns = good.columns if len(rows) == len(good.rows) else good.columns.take(pa.array(rows))
        parts.append(good._replace(rows=good.rows[rows], columns=columns, message_type=name or good.message_type))
    return parts


def _of_registry(bad: frames.BadFrames, registry: str) -> frames.BadFrames:
    """The rows with the name of the registry in their id, if they have one."""
    return bad if bad.schema_id is None else replace(bad, schema_id=frames.named(registry, bad.schema_id))


def _merged(rejected: list[Rejected]) -> list[Rejected]:
    """One entry for all rows with the same reason, detail and schema id."""
    alike: dict[tuple[Reason, str, SchemaId | None, str | None], list[Rows]] = {}
    for item in rejected:
        alike.setdefault((item.reason, item.detail, item.schema_id, item.message_type), []).append(item.rows)
    return [
        Rejected(why, detail, np.sort(np.concatenate(rows)), schema_id, name)
        for (why, detail, schema_id, name), rows in alike.items()
    ]


#: Depth of Python calls that a schema may need; the compiler's child allows no more.
CALLS = 1_500


def allow_deep_calls() -> None:
    """Raise this process's recursion limit to that of the compiler's child; never lowers it."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 2 * CALLS))


#: Class of a compiled schema -> its decoder.
_DECODERS: Mapping[type, Callable[[Any, IndexPath, ColumnRules], PayloadDecoder]] = {
    ProtobufSchema: ProtobufDecoder,
    AvroSchema: lambda schema, _, rules: AvroDecoder(schema, rules),
    JsonSchema: lambda schema, _, rules: JsonDecoder(schema, rules),
    ColumnsSchema: lambda schema, *_: ColumnsDecoder(schema),
    InferredSchema: lambda schema, _, rules: InferredDecoder(schema, rules),
}

_SCHEMAS: Mapping[str, Any] = {kind.__name__: kind for kind in _DECODERS}


def make_decoder(schema: CompiledSchema, path: IndexPath, rules: ColumnRules = NO_RULES) -> PayloadDecoder:
    """The decoder of one message type; DataError if there is no such type, or it cannot be decoded.

    `rules`: what becomes of single bad values; by default their record is bad.
    """
    return _DECODERS[type(schema)](schema, path, rules)


def as_json(schema: CompiledSchema) -> dict[str, Any]:
    """A compiled schema as JSON for `from_json`."""
    values = {f.name: getattr(schema, f.name) for f in fields(schema)}
    if "files" in values:
        values["files"] = base64.b64encode(values["files"]).decode()
    return {"kind": type(schema).__name__} | values


def from_json(stored: Mapping[str, Any]) -> CompiledSchema:
    """The compiled schema from `as_json`."""
    kind = _SCHEMAS[stored["kind"]]
    values = {f.name: stored[f.name] for f in fields(kind)}
    if "files" in values:
        values["files"] = base64.b64decode(values["files"])
    compiled: CompiledSchema = kind(**values)
    return compiled


def declared_names(schema: RegistrySchema) -> Mapping[IndexPath, str]:
    """Index path -> full name of the top-level message types in the text of a schema that may not compile; empty: unknown."""
    match schema.format:
        case "PROTOBUF":
            return _of_protobuf(schema.text)
        case "AVRO":
            name = _of_avro(schema.text)
        case "JSON":
            name = _of_json(schema)
        case _:
            name = None
    return {} if name is None else {(): name}


def _of_protobuf(text: str) -> dict[IndexPath, str]:
    described = from_base64(text)
    if described is not None and described.message_type:
        package = described.package
        names = [item.name for item in described.message_type]
    else:
        package, names = top_messages(text)
    return {(index,): f"{package}.{name}" if package else name for index, name in enumerate(names)}


def _of_avro(text: str) -> str | None:
    try:
        node: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    while isinstance(node, dict) and isinstance(node.get("type"), dict):
        node = node["type"]
    name = node.get("name") if isinstance(node, dict) else None
    if not isinstance(name, str) or not name:
        return None
    namespace = node.get("namespace")
    return f"{namespace}.{name}" if "." not in name and isinstance(namespace, str) and namespace else name


def _of_json(schema: RegistrySchema) -> str | None:
    try:
        name = SchemaText(schema).message
    except DataError:
        return None
    return None if name == UNNAMED else name


def json_title(schema: RegistrySchema) -> str | None:
    """The title of a JSON Schema; None: it has none, or is none."""
    try:
        return SchemaText(schema).title
    except DataError:
        return None


Key = TypeVar("Key")
#: Bytes of the schemas whose texts and compiled forms are kept, in the driver and in each worker: others are made again when
#: they are needed. A compiled form takes up to some 15 times as much memory. Most schemas have a few thousand bytes.
KEPT_SCHEMA_BYTES = 2**25


class RecentlyUsed(Generic[Key]):
    """Keys by their last use, with the bytes of what they stand for."""

    def __init__(self, most: int = KEPT_SCHEMA_BYTES) -> None:
        """`most`: bytes in all."""
        self._most = most
        self._sizes: OrderedDict[Key, int] = OrderedDict()
        self._total = 0

    def use(self, key: Key, size: int) -> list[Key]:
        """Note a use; returns what is to be dropped, never `key` itself."""
        self._total += size - self._sizes.pop(key, 0)
        self._sizes[key] = size
        dropped = []
        while self._total > self._most and len(self._sizes) > 1:
            oldest, bytes_ = self._sizes.popitem(last=False)
            self._total -= bytes_
            dropped.append(oldest)
        return dropped


#: CPU seconds for each reference, and for each message type after the first: up to `STEPS` of them.
STEP_S = 0.01
STEPS = 1_000
#: Of names of temporary folders.
PREFIX = "game_events_compiler"


def compile_schema(schema: RegistrySchema) -> CompiledSchema:
    """Compile a registry's schema.

    Raises:
        DataError: the text does not compile within the limits, or its format is not supported; the message holds the
            compiler's.
        TransientError: the child cannot be started, was stopped, or the machine lacks resources (room for files).
    """
    allow_deep_calls()
    return from_json(ask_about(schema, "compiled"))


def ask_about(schema: RegistrySchema, wanted: str) -> dict[str, Any]:
    """What the child makes of a schema (`answer_request`); raises as `compile_schema`."""
    too_long = schema.too_long()
    if too_long is not None:
        raise DataError(f"schema id {schema.schema_id} does not compile: {too_long}")
    request = {"wanted": wanted, "format": schema.format, "text": schema.text, "references": schema.references}
    work_s = compiler_child.CHILD.limits.work_s + STEP_S * min(len(schema.references), STEPS)
    try:
        with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
            return compiler_child.CHILD.ask(schema.schema_id, request | {"folder": folder, "work_s": work_s})
    except OSError as error:
        raise TransientError(f"schema id {schema.schema_id}: no temporary folder can be made: {error}") from error


def first_decoders(schema: CompiledSchema, paths: Sequence[IndexPath]) -> list[PayloadDecoder]:
    """The decoders of new message types, tried in the child first (workers use `make_decoder`), `STEPS` in one request.

    Raises:
        DataError: there is no such type, or it cannot be decoded within the limits.
        TransientError: as `compile_schema`.
    """
    for begin in range(0, len(paths), STEPS):
        some = paths[begin : begin + STEPS]
        work_s = compiler_child.CHILD.limits.work_s + STEP_S * (len(some) - 1)
        compiler_child.CHILD.ask(schema.schema_id, {"schema": as_json(schema), "paths": some, "work_s": work_s})
    allow_deep_calls()
    try:
        return [make_decoder(schema, path) for path in paths]
    except (ValueError, TypeError, RecursionError, ArithmeticError, LookupError) as error:
        raise DataError(f"schema id {schema.schema_id} cannot be decoded: {type(error).__name__}: {error}") from None
