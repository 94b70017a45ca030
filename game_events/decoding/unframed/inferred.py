"""Documents of JSON topics without a schema: columns by what their members have, growing, never narrowing.

A topic is a message type of its own. Its members are in bronze's column map like those of any other type, and nowhere else:
what is known of a topic is read from there (`known_type`), so neither a crash nor a concurrent run can lose or narrow it. A
worker that meets members that the plan lacks reports their types, and the driver plans again with them (`planned`).

The first type of a member stays. A value that does not fit it is kept as it is in the column `_rescued`: a JSON object with the
same nesting as the document. So are values without a type (an empty list), members without a name, and those beyond the
bounds: of columns, levels, and lengths of names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, reduce
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from game_events.decoding.columns import MAX_NAME, UNSEEN, ColumnMap, ColumnRules, field_key, level_of, step_inside, width_of
from game_events.decoding.frame import DamageError, IndexPath, Reason, SchemaId
from game_events.decoding.json_decoder import LONG_RANGE, Convert, Real, converter, json_text, parse
from game_events.decoding.json_schema import MAX_DEPTH, TEXT, JsonType
from game_events.decoding.projection import BATCH_BYTES, CellBudget, Decoded, RowDecoder, SingleTypeSchema, cells_of_element

#: Begins the identity of a topic's type, where other types have a schema's id or GUID. No row has it.
_PREFIX = "json:"
#: The column of what does not fit. It begins with an underscore, which no member's column does.
RESCUED = "_rescued"
#: Its identity, which no member has: only JSON text has this suffix.
_RESCUED_ID = f"{RESCUED}:json"
#: SQL type -> kind of `JsonType`.
KINDS = {
    "bigint": "integer", "double": "number", "string": "string", "boolean": "boolean", "timestamp": "timestamp", "date": "date",
}  # fmt: skip
#: Integers up to here are float64 values.
_EXACT = 2**53
#: New members that a worker's task reports at most.
_MOST_REPORTED = 10_000
#: Names of a record's type: no control characters, nothing invisible, 200 characters at most.
_LEGAL_TYPE = re.compile(rf"(?!\s)[^\x00-\x1f{UNSEEN}]{{1,200}}(?<!\s)")
#: Members from the top of a document to a value; None: an element of a list.
MemberPath = tuple[str | None, ...]
_EMPTY = JsonType("struct")


def inferred_id(topic: str) -> str:
    """The identity of a topic's type."""
    return f"{_PREFIX}{topic}"


def topic_of(schema_id: SchemaId) -> str | None:
    """The topic of an identity; None: it is that of a schema."""
    is_topic = isinstance(schema_id, str) and schema_id.startswith(_PREFIX)
    return str(schema_id).removeprefix(_PREFIX) if is_topic else None


@dataclass(frozen=True)
class InferredSchema(SingleTypeSchema):
    """What is known of a topic's documents: `text` is their type.

    Attributes:
        room: columns that may be added; 0: what is not known is rescued.
        hints: path of members -> kind, for members that are not known yet.
        numbers: members at the top that take whole numbers as texts, as the key column does.
        type_field: member at the top with the name of a record's type.
    """

    room: int = 0
    hints: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    numbers: frozenset[str] = frozenset()
    type_field: str | None = None

    @property
    def type(self) -> JsonType:
        """The type of its documents."""
        return JsonType.from_json(json.loads(self.text))

    @property
    def names(self) -> dict[IndexPath, str]:
        """One type, named as the topic."""
        return {(): topic_of(self.schema_id) or self.message}


@lru_cache(10_000)
def is_legal_type(name: str) -> bool:
    """Whether a text may be the name of a record's type."""
    return _LEGAL_TYPE.fullmatch(name) is not None


def infer(value: object, path: MemberPath, hints: Mapping[tuple[str, ...], str], most: list[int]) -> JsonType | None:
    """The type of a value, which is not null; None: it has none yet, or is beyond the bounds. `most`: members still allowed."""
    hint = hints.get(tuple(step for step in path if step is not None))
    if hint is not None:
        return JsonType(hint)
    if len(path) > MAX_DEPTH:
        return None
    if isinstance(value, dict):
        return _infer_object(value, path, hints, most)
    if isinstance(value, list):
        types = (infer(item, (*path, None), hints, most) for item in value if item is not None)
        known = [item for item in types if item is not None]
        return JsonType("list", item=reduce(together, known)) if known else None
    is_too_great = type(value) is int and not LONG_RANGE[0] <= value <= LONG_RANGE[1]
    return None if is_too_great else JsonType(_SCALARS[type(value)])


_SCALARS: Mapping[type, str] = {bool: "boolean", int: "integer", Real: "number", str: "string"}


def _infer_object(
    value: dict[str, Any], path: MemberPath, hints: Mapping[tuple[str, ...], str], most: list[int]
) -> JsonType | None:
    fields: list[tuple[str, JsonType]] = []
    for name, member in value.items():
        if member is None or not _may_be_column(name) or not most[0]:
            continue
        most[0] -= 1
        inner = infer(member, (*path, name), hints, most)
        if inner is not None:
            fields.append((name, inner))
    return JsonType("struct", tuple(fields)) if fields else None


def _may_be_column(name: str) -> bool:
    """Whether a member of this name may have a column; one without a name would be the level above it."""
    return 0 < len(name) <= MAX_NAME


def together(first: JsonType, second: JsonType) -> JsonType:
    """A type for values of both, where neither has a column yet: integers and numbers are numbers, else the first one wins."""
    if first == second:
        return first
    if first.kind == second.kind == "struct":
        fields = dict(first.fields)
        for name, inner in second.fields:
            fields[name] = together(fields[name], inner) if name in fields else inner
        return JsonType("struct", tuple(fields.items()))
    if first.item is not None and second.item is not None:
        return JsonType("list", item=together(first.item, second.item))
    return JsonType("number") if {first.kind, second.kind} == {"integer", "number"} else first


def merged_texts(first: str, second: str) -> str:
    """`together` of two types as texts, which travel from workers."""
    types = (JsonType.from_json(json.loads(text)) for text in (first, second))
    return type_text(together(*types))


def type_text(kind: JsonType) -> str:
    """A type as text."""
    return json.dumps(kind.to_json(), ensure_ascii=False, separators=(",", ":"))


@dataclass
class _Room:
    """Columns that may be added; `refused`: one was not."""

    columns: int
    refused: bool = False

    def takes(self, kind: JsonType) -> bool:
        width = width_of(kind.arrow)
        if width > self.columns:
            self.refused = True
            return False
        self.columns -= width
        return True


def _grown(known: JsonType, more: JsonType, room: _Room) -> JsonType:
    """The known type with the members that another one adds; types of known members stay."""
    if known.kind == more.kind == "struct":
        fields = dict(known.fields)
        for name, inner in more.fields:
            if name in fields:
                fields[name] = _grown(fields[name], inner, room)
            elif room.takes(inner):
                fields[name] = inner
        return JsonType("struct", tuple(fields.items()))
    if known.item is not None and more.item is not None:
        return JsonType("list", item=_grown(known.item, more.item, room))
    return known


def known_type(columns: ColumnMap, message: str, hints: Mapping[tuple[str, ...], str]) -> JsonType:
    """The type of a topic's documents, as bronze has it. Of a member of two kinds that of its hint, else the first."""
    levels: dict[str, list[tuple[str, str]]] = {}
    for key in columns.names:
        of, above = level_of(key)
        if of == message:
            path, _, kind = key[len(message) + 1 :].partition(":")
            levels.setdefault(above, []).append((path, kind))
    return _known_struct(levels, "", (), hints)


def _known_struct(
    levels: Mapping[str, list[tuple[str, str]]], above: str, path: tuple[str, ...], hints: Mapping[tuple[str, ...], str]
) -> JsonType:
    fields: dict[str, JsonType] = {}
    for place, kind in levels.get(above, ()):
        identity = _unescaped(place.rpartition(".")[2])
        name = identity.removesuffix(":plain")
        hint = hints.get((*path, name))
        if name in fields or not name or identity == _RESCUED_ID or (hint is not None and KINDS.get(kind) != hint):
            continue
        made = _known(kind, partial(_known_struct, levels, step_inside(place, kind), (*path, name), hints))
        if made is not None:
            fields[name] = made
    return JsonType("struct", tuple(fields.items()))


def _known(kind: str, struct: Callable[[], JsonType]) -> JsonType | None:
    """The type of a field's kind; None: it has members, and none that is used."""
    if kind.startswith("array<"):
        item = _known(kind[len("array<") : -1], struct)
        return None if item is None else JsonType("list", item=item)
    made = struct() if kind == "struct" else JsonType(KINDS[kind])
    return None if made == _EMPTY else made


def _unescaped(step: str) -> str:
    """The step of a path before `ColumnMap` escaped it."""
    for escape, character in (("~3", ":"), ("~2", "#"), ("~1", "."), ("~0", "~")):
        step = step.replace(escape, character)
    return step


@dataclass(frozen=True)
class TopicDocuments:
    """What the settings say of a topic's documents: `hints` as in `InferredSchema`; `type_field`."""

    hints: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    type_field: str | None = None


def planned(
    columns: ColumnMap, schema_id: str, grown: str | None, documents: TopicDocuments, max_columns: int
) -> tuple[InferredSchema, ColumnMap]:
    """The schema of a topic with members that workers have met, and the columns with those of it.

    `grown`: type of what workers met; None: nothing new. `max_columns`: of bronze. Inferred ones are at most half of them, and
    those of one topic a tenth: names that records choose leave room for others.
    """
    known = known_type(columns, schema_id, documents.hints)
    mine = width_of(known.arrow)
    room = _Room(max(0, min(max_columns // 2 - columns.width, max_columns // 10 - mine)))
    made = known if grown is None else _grown(known, JsonType.from_json(json.loads(grown)), room)
    kept = {item.field: KINDS.get(item.kind) for item in columns.kept.values()}
    reserved = {(name,): kind for name, kind in kept.items() if kind is not None}
    schema = InferredSchema(
        schema_id,
        type_text(made),
        schema_id,
        0 if room.refused else room.columns,
        reserved | dict(documents.hints),
        frozenset(item.field for item in columns.kept.values() if item.numbers),
        documents.type_field,
    )
    decoder = InferredDecoder(schema)
    rescued = {field_key(schema_id, (item.id,), item.kind): RESCUED for item in decoder.fields if item.id == _RESCUED_ID}
    names = {**columns.names, **rescued}
    return schema, replace(columns, names=names).with_message(schema_id, decoder.fields)


class InferredDecoder(RowDecoder):
    """Decodes documents of one topic (see `PayloadDecoder`), and notes the types of members that the plan lacks."""

    def __init__(self, schema: InferredSchema, rules: ColumnRules | None = None) -> None:
        members = schema.type
        root = JsonType("struct", (*members.fields, (RESCUED, TEXT)))
        super().__init__(schema.message, root.children, root.arrow, CellBudget())
        zone = rules.rules.zone if rules is not None else None
        self._zone = None if zone is None else ZoneInfo(zone)
        self._schema = schema
        self._room = min(schema.room, _MOST_REPORTED)
        self._members = self._object(members, ())
        self._grown = _EMPTY
        self._noted: set[tuple[MemberPath, JsonType]] = set()
        self._types: list[str | None] = []

    def decode(self, payloads: pa.BinaryArray, columns: ColumnMap, batch_bytes: int = BATCH_BYTES) -> Decoded:
        """As `RowDecoder.decode`; also the rows' names of types, if a member has them, and the types of new members."""
        self._types = []
        self._grown = _EMPTY
        decoded = super().decode(payloads, columns, batch_bytes)
        if self._schema.type_field is not None:
            decoded.names = pa.array(self._types, pa.string()).take(pa.array(decoded.good))
        decoded.grown = None if self._grown == _EMPTY else type_text(self._grown)
        decoded.rescued = len(decoded.good) - decoded.table.column(RESCUED).null_count
        return decoded

    def _read(self, payload: bytes) -> dict[str, Any]:
        self._types.append(None)
        document = parse(payload)
        if type(document) is not dict:
            raise DamageError(Reason.MALFORMED, "the document is no JSON object")
        if self._schema.type_field is not None:
            named = document.get(self._schema.type_field)
            self._types[-1] = named if type(named) is str and is_legal_type(named) else None
        row, rest = self._members(document)
        if rest:
            row[RESCUED] = json_text(rest)
        return row

    def _object(self, kind: JsonType, path: MemberPath) -> Callable[[dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]:
        """A function from an object to its row, and to what of it does not fit."""
        objects = {name: self._object(inner, (*path, name)) for name, inner in kind.fields if inner.kind == "struct"}
        values = {name: self._value(inner, (*path, name)) for name, inner in kind.fields}

        def read(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
            row: dict[str, Any] = {}
            rest: dict[str, Any] = {}
            for name, member in document.items():
                if member is None:
                    continue
                if name not in values:
                    self._note((*path, name), member)
                    rest[name] = member
                elif name in objects and type(member) is dict:
                    row[name], left = objects[name](member)
                    if left:
                        rest[name] = left
                else:
                    try:
                        row[name] = values[name](member)
                    except DamageError as damage:
                        if damage.reason is Reason.TOO_MANY_VALUES:
                            raise
                        rest[name] = member
            return row, rest

        return read

    def _value(self, kind: JsonType, path: MemberPath) -> Convert:
        """A function from a value, not null, to that of its column; DamageError if it does not fit as a whole."""
        if kind.kind == "struct":
            return self._whole_object(kind, path)
        if kind.item is not None:
            return self._list(self._value(kind.item, (*path, None)), cells_of_element(kind.arrow))
        convert = converter(kind, self.budget, self._zone)
        takes_numbers = kind.kind == "string" and len(path) == 1 and path[0] in self._schema.numbers
        return _exact(convert) if kind.kind == "number" else _text_of_numbers(convert) if takes_numbers else convert

    def _whole_object(self, kind: JsonType, path: MemberPath) -> Convert:
        read = self._object(kind, path)

        def convert(value: object) -> dict[str, Any]:
            row, rest = read(value) if isinstance(value, dict) else ({}, {"": value})
            if rest:
                raise _misfit()
            return row

        return convert

    def _list(self, item: Convert, cells: int) -> Convert:
        """Of a list, all elements fit or none is kept. `item`: for elements; `cells`: of one."""

        def convert(values: object) -> list[Any]:
            if not isinstance(values, list):
                raise _misfit()
            self.budget.spend(len(values) * cells)
            return [None if value is None else item(value) for value in values]

        return convert

    def _note(self, path: MemberPath, member: object) -> None:
        """Note the type of a member that the plan lacks, if there may be more columns."""
        if not self._room or path == (RESCUED,) or not _may_be_column(str(path[-1])):
            return
        made = infer(member, path, self._schema.hints, [self._room])
        if made is None or (path, made) in self._noted:
            return
        self._noted.add((path, made))
        self._room = max(0, self._room - width_of(made.arrow))
        self._grown = together(self._grown, _inside(made, path))


def _misfit() -> DamageError:
    return DamageError(Reason.MALFORMED, "does not fit")


def _inside(kind: JsonType, path: Iterable[str | None]) -> JsonType:
    """The type of a document that has a value of this type at a path."""
    for step in reversed(list(path)):
        kind = JsonType("list", item=kind) if step is None else JsonType("struct", ((step, kind),))
    return kind


def _exact(convert: Convert) -> Convert:
    """A conversion to float64 that refuses integers which would be rounded."""

    def exact(value: object) -> object:
        made = convert(value)
        if type(value) is int and abs(value) > _EXACT and int(made) != value:
            raise _misfit()
        return made

    return exact


def _text_of_numbers(convert: Convert) -> Convert:
    """A conversion that also takes whole numbers: 7 and "7" are the same key."""
    return lambda value: str(value) if type(value) is int else convert(value)
