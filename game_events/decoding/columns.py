"""Columns of decoded records: the permanent map of message fields to columns, Arrow types, reserved columns, bad values.

A field's identity is (message full name, path of field NUMBERS, kind), in Avro and JSON the path of names: a renamed protobuf
field keeps its column, and a number reused with another kind gets a new one. The first name wins; a taken name becomes
``name__kind``. The map is stored in the metadata of the Delta table's columns, so it exists as long as the data.

The settings reserve columns (entity, key, time) with their kinds: without that the first record would decide on the kind of
such a column, and one stray record could exclude all others for ever.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from game_events.errors import folded

if TYPE_CHECKING:  # its libraries would be imported by the compiler's child and by workers
    from game_events.config.definitions.computed import Definitions
    from game_events.config.settings import Settings

#: uint64 as Spark and Delta can hold it.
UINT64 = pa.decimal128(20, 0)
#: Microseconds of the years 1 to 9999: the timestamps of protobuf, Python and Spark.
TIMESTAMP_RANGE = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_NAMES = {
    pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint", pa.float32(): "float",
    pa.float64(): "double", pa.bool_(): "boolean", pa.string(): "string", pa.binary(): "binary", pa.date32(): "date",
}  # fmt: skip


def kind_of(kind: pa.DataType) -> str:
    """Spark's name of a type without members of structs: part of a field's identity, so these names never change.

    A uint64 is `decimal`, without its digits.
    """
    return type_name(kind, members=False).replace(type_name(UINT64), "decimal")


def type_name(kind: pa.DataType, *, members: bool = True) -> str:
    """Spark SQL's name of an Arrow type, for display; `members`: with members of structs."""
    # Of a struct the hash is made of all that is in it.
    name = _NAMES.get(kind) if not kind.num_fields else None
    if name is not None:
        return name
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{f.name}:{type_name(f.type)}' for f in kind)}>" if members else "struct"
    if pa.types.is_map(kind):
        return f"map<{type_name(kind.key_type, members=members)},{type_name(kind.item_type, members=members)}>"
    if pa.types.is_list(kind):
        return f"array<{type_name(kind.value_type, members=members)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return "timestamp" if pa.types.is_timestamp(kind) else str(kind)


def decimal_bytes(unscaled: int) -> bytes:
    """An unscaled value as a decimal of 128 bits."""
    return unscaled.to_bytes(16, "little", signed=True)


def storage_type(kind: pa.DataType) -> pa.DataType:
    """The type a decoded Arrow type is stored as.

    Integers are 64 bits from the start (a later int32 -> int64 changes nothing), uint64 is decimal(20,0), durations and
    times of day are microseconds, a message without fields is ``true``, everything is nullable.
    """
    if pa.types.is_struct(kind):
        # Parquet has no struct without fields: of an empty message, its presence is kept.
        return pa.struct([pa.field(f.name, storage_type(f.type)) for f in kind]) if kind.num_fields else pa.bool_()
    if pa.types.is_map(kind):
        return pa.map_(storage_type(kind.key_type), storage_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(storage_type(kind.value_type))
    if kind == pa.uint64():
        return UINT64
    return pa.int64() if any(is_a(kind) for is_a in (pa.types.is_integer, pa.types.is_duration, pa.types.is_time)) else kind


def merge_types(old: pa.DataType, new: pa.DataType) -> pa.DataType:
    """The old type with fields that the new one adds inside structs; the kinds are equal."""
    if not struct_fields(old):
        return old
    merged = {f.name: f.type for f in struct_fields(old)}
    for item in struct_fields(new):
        merged[item.name] = merge_types(merged[item.name], item.type) if item.name in merged else item.type
    return with_inner(old, pa.struct(list(merged.items())))


def struct_fields(kind: pa.DataType) -> list[pa.Field]:
    """Fields of a struct, or of the structs in a list or map; else none."""
    inner = inner_type(kind)
    return list(inner) if pa.types.is_struct(inner) else []


def width_of(kind: pa.DataType) -> int:
    """Number of fields of a column, itself included."""
    return 1 + sum(width_of(f.type) for f in struct_fields(kind))


def inner_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values in a list or map, or in those inside it; of any other type, itself."""
    if pa.types.is_list(kind):
        return inner_type(kind.value_type)
    return inner_type(kind.item_type) if pa.types.is_map(kind) else kind


def with_inner(kind: pa.DataType, inner: pa.DataType) -> pa.DataType:
    """A type with another `inner_type`."""
    if pa.types.is_list(kind):
        return pa.list_(with_inner(kind.value_type, inner))
    return pa.map_(kind.key_type, with_inner(kind.item_type, inner)) if pa.types.is_map(kind) else inner


#: Suffix, after a double underscore, of a column of another kind than the first one of its name.
SUFFIXES = ("string", "bigint", "decimal", "float", "double", "boolean", "binary", "date", "timestamp")
#: Kinds that a string column also holds, as decimal digits: 7 and "7" are the same key.
WHOLE_NUMBERS = ("bigint", "decimal")


@dataclass(frozen=True)
class Kept:
    """A reserved column.

    Attributes:
        column: its name.
        field: name of the fields that it holds.
        kind: their kind.
        numbers: it also holds whole numbers, as strings.
    """

    column: str
    field: str
    kind: str
    numbers: bool = False

    def takes(self, name: str, kind: str) -> bool:
        """Whether it holds fields of this clean name and kind."""
        wanted = kind == self.kind or (self.numbers and kind in WHOLE_NUMBERS)
        return wanted and folded(name) == folded(self.field)


def kept_columns(settings: Settings) -> Mapping[str, Kept]:
    """Reserved columns by lower-case name: entity and key are strings, the time is a timestamp.

    A name that ends in a kind (`device_id__bigint`) is reserved for fields `device_id` of that kind.
    """
    time = _kept(settings.time_column, "timestamp")
    entity = _kept(settings.entity_column, "string")
    key = _kept(settings.key_column, "string", numbers=True)
    return {folded(kept.column): kept for kept in (time, entity, key)}


def computed_types(definitions: Definitions | None) -> Mapping[str, pa.DataType]:
    """Types of the columns that the settings compute."""
    computed = definitions.computed if definitions is not None else ()
    return {item.column: pa.timestamp("us", tz="UTC") if item.is_time else pa.string() for item in computed}


#: What a column's name has behind that of its fields if another one has that: a kind, or numbers.
_SUFFIX = re.compile(rf"__(?:(?:{'|'.join((*SUFFIXES, 'struct', 'array', 'map'))})(?:_\d+)*|\d+(?:_\d+)*)")


def column_of(name: str, columns: Iterable[str]) -> str | None:
    """The column of a field of this name, of any kind: `ts`, else `ts__bigint`; None: there is none."""
    wanted = folded(name)
    alike = [c for c in columns if folded(c).startswith(wanted) and (len(c) == len(name) or _SUFFIX.fullmatch(c, len(name)))]
    return min(alike, key=len, default=None)


def base_of(column: str) -> str:
    """Name of a column's fields: without the suffix of a kind."""
    return _kept(column, "").field


def is_of_any_kind(column: str, named: str) -> bool:
    """Whether a column holds the same fields as `named`, of any kind: `device_id`, `device_id__bigint`."""
    field = base_of(named)
    return column == field or column.startswith(f"{field}__")


def _kept(column: str, kind: str, *, numbers: bool = False) -> Kept:
    field, double, suffix = column.rpartition("__")
    if field and double and suffix in SUFFIXES:
        return Kept(column, field, suffix)
    return Kept(column, column, kind, numbers)


#: Key of the column metadata that holds the column's share of the map.
METADATA_KEY = "game_events.fields"
#: Invisible characters: Unicode's ignorable ones, marks of text direction, all blanks except the usual one.
UNSEEN = (
    r"\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000"
    r"\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
#: Characters that Delta and Parquet refuse in names, those that need quoting (dot, backtick), and invisible ones.
_REFUSED = re.compile(rf"[ ,;{{}}()\n\t=.`\x00-\x1f{UNSEEN}]")
#: Characters of a new column's name, without a suffix that makes it unique.
MAX_NAME = 200
#: What separates the parts of a field key.
_ESCAPES = str.maketrans({"~": "~0", ".": "~1", "#": "~2", ":": "~3"})
#: The end of a name that looks like the step of a list or map.
_LIKE_INSIDE = re.compile(r"\[(?:(?:array|map)<[\w<>,()]*>|struct)\]\Z")
#: One step of a field's path: its number (protobuf) or its name (Avro, JSON).
FieldId = int | str


@dataclass(frozen=True)
class Field:
    """One field of a message type as the decoder delivers it.

    Attributes:
        id: its number, which a renaming keeps; in Avro and JSON its name.
        name: its name in this version.
        type: Arrow type after `storage_type`, in this version's own names.
        children: fields of the message, for a message, a list of messages or a map of messages.
        declared: the type as the schema declares it.
    """

    id: FieldId
    name: str
    type: pa.DataType
    children: tuple[Field, ...] = ()
    declared: str = field(default="", compare=False)

    @property
    def kind(self) -> str:
        """See `kind_of`."""
        return kind_of(self.type)


@dataclass(frozen=True)
class ColumnMap:
    """The map, and the Arrow type of each column.

    Attributes:
        columns: column name -> type, in table order.
        names: field key (see `field_key`) -> name, at its own level.
        owners: field key -> the top-level column it belongs to.
        kept: columns reserved for fields of one kind, by `folded` name.
        sourced: beside them the table has the pipeline's own column of several sources' names.
    """

    columns: Mapping[str, pa.DataType] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, Kept] = field(default_factory=dict)
    sourced: bool = False

    def with_message(self, message: str, fields: Iterable[Field]) -> ColumnMap:
        """This map with a message type added; unchanged if it is known."""
        fields = list(fields)
        columns = dict(self.columns)
        names = dict(self.names)
        owners = dict(self.owners)
        #: Names used by fields of this message, by parent path: two fields of one message never share a column.
        owned: dict[str, set[str]] = {}
        for key, name in names.items():
            of, above = level_of(key)
            if of == message:
                owned.setdefault(above, set()).add(name)

        def named_type(item: Field, path: tuple[FieldId, ...], known: pa.DataType | None, column: str) -> pa.DataType:
            """The type of a field inside a top-level column, with the names that the map gives to nested fields."""
            if not item.children:
                return item.type
            taken = {} if known is None else {f.name: f.type for f in struct_fields(known)}
            path = path_inside(path, item)
            mine = owned.setdefault(_joined(path), set())
            level = _Level(taken, mine)
            members: list[pa.Field] = []
            for child in item.children:
                child_path = (*path, child.id)
                key = field_key(message, child_path, child.kind)
                if key not in names:
                    names[key] = level.free_name(child)
                    level.bar(names[key])
                    mine.add(names[key])
                owners[key] = column
                members.append(pa.field(names[key], named_type(child, child_path, taken.get(names[key]), column)))
                level.use(names[key], members[-1].type)
            return with_inner(item.type, pa.struct(members))

        level = _Level(columns, owned.get("", ()), self._still_kept())
        keys = [field_key(message, (item.id,), item.kind) for item in fields]
        # By name, not number; no two fields of one version share a column.
        taken = {folded(names[key]) for key in keys if key in names}
        for key, item in zip(keys, fields, strict=True):
            if key not in names:
                names[key] = level.column_for(item, taken)
                taken.add(folded(names[key]))
                level.bar(names[key])
            column = owners[key] = names[key]
            known = columns.get(column)
            kind = named_type(item, (item.id,), known, column)
            columns[column] = level.type_of(column, item, kind) if known is None else merge_types(known, kind)
            level.use(column, columns[column])
        return replace(self, columns=columns, names=names, owners=owners)

    def with_columns(self, columns: Mapping[str, pa.DataType]) -> ColumnMap:
        """This map with columns that no field needs to have: their values are computed."""
        return replace(self, columns={**columns, **self.columns}) if columns.keys() - self.columns.keys() else self

    def _still_kept(self) -> dict[str, Kept]:
        """Reserved columns, except those that another kind has taken before they were reserved."""
        kinds = {folded(name): kind_of(kind) for name, kind in self.columns.items()}
        return {name: kept for name, kept in self.kept.items() if kinds.get(name, kept.kind) == kept.kind}

    def metadata(self, column: str) -> dict[str, str]:
        """Metadata of a column: its part of the map."""
        return {METADATA_KEY: json.dumps(self._by_owner.get(column, {}), separators=(",", ":"))}

    @cached_property
    def width(self) -> int:
        """Number of columns, nested fields included."""
        return sum(width_of(kind) for kind in self.columns.values())

    @cached_property
    def messages(self) -> frozenset[str]:
        """Full names of the message types that it knows."""
        return frozenset(level_of(key)[0] for key in self.names)

    @cached_property
    def _by_owner(self) -> dict[str, dict[str, str]]:
        shares: dict[str, dict[str, str]] = {}
        for key, name in sorted(self.names.items()):
            shares.setdefault(self.owners[key], {})[key] = name
        return shares

    @classmethod
    def from_metadata(cls, columns: Iterable[tuple[str, pa.DataType, Mapping[str, object]]]) -> ColumnMap:
        """The map from (name, type, metadata) of a table's columns; columns without a part of it are ignored."""
        types: dict[str, pa.DataType] = {}
        names: dict[str, str] = {}
        owners: dict[str, str] = {}
        for column, kind, metadata in columns:
            if (stored := metadata.get(METADATA_KEY)) is not None:
                types[column] = kind
                share = json.loads(str(stored))
                names |= share
                owners |= dict.fromkeys(share, column)
        return cls(types, names, owners)


def clean_name(name: str) -> str:
    """A valid column name for a field's name."""
    clean = _REFUSED.sub("_", name)[:MAX_NAME]
    # Reserved for the pipeline's columns (`_kafka_offset`).
    return f"field{clean}" if clean.startswith("_") or not clean else clean


def field_key(message: str, path: tuple[FieldId, ...], kind: str) -> str:
    """Identity of a field: ``pkg.Message#5.1:string``."""
    return f"{message}#{_joined(path)}:{kind}"


def level_of(key: str) -> tuple[str, str]:
    """Message and parent path in a field's key; names are unique within both."""
    message, _, rest = key.rpartition("#")
    return message, rest.split(":", 1)[0].rpartition(".")[0]


def path_inside(path: tuple[FieldId, ...], item: Field) -> tuple[FieldId, ...]:
    """The parent path of nested fields: a list or map of a message has other columns than the message."""
    inside = step_inside(str(item.id), item.kind)
    return path if inside == str(item.id) else (*path[:-1], inside)


def step_inside(step: str, kind: str) -> str:
    """The last step of the parent path of fields inside a field; a name that looks like one of them gets the kind, too."""
    return step if kind == "struct" and _LIKE_INSIDE.search(step) is None else f"{step}[{kind}]"


def _joined(path: Iterable[FieldId]) -> str:
    return ".".join(str(step).translate(_ESCAPES) for step in path)


class _Level:
    """The names of a table's columns, or of the fields of one struct; case-insensitive, as in Spark."""

    def __init__(self, types: Mapping[str, pa.DataType], barred: Iterable[str], kept: Mapping[str, Kept] | None = None) -> None:
        """`types`: names in use; `barred`: names that cannot be shared; `kept`: reserved columns by `folded` name."""
        self._kept = kept or {}
        self._in_use = {folded(name): name for name in types}
        self._kinds = {name: kind_of(kind) for name, kind in types.items()}
        self._barred = {folded(name) for name in barred}
        #: Name -> last number appended to it.
        self._last_numbers: dict[str, int] = {}

    def use(self, name: str, kind: pa.DataType) -> None:
        """Mark a name as used."""
        if name not in self._kinds:
            self._in_use[folded(name)] = name
            self._kinds[name] = kind_of(kind)

    def bar(self, name: str) -> None:
        """Forbid sharing a name."""
        self._barred.add(folded(name))

    def column_for(self, item: Field, taken: Container[str]) -> str:
        """A name for a new field: of the reserved column that takes it, if no other field has that; `taken`: `folded` names."""
        for kept in self._kept.values():
            if kept.takes(clean_name(item.name), item.kind):
                return (
                    self.free_name(item) if folded(kept.column) in taken else self._in_use.get(folded(kept.column), kept.column)
                )
        return self.free_name(item)

    def type_of(self, column: str, item: Field, kind: pa.DataType) -> pa.DataType:
        """The type of a new column: a reserved one may hold whole numbers as strings."""
        kept = self._kept.get(folded(column))
        return kind if kept is None or kept.kind == item.kind else pa.string()

    def free_name(self, item: Field) -> str:
        """A name for a new field, none that is reserved."""
        wanted = clean_name(item.name)
        simple = _REFUSED.sub("_", item.kind.split("<", 1)[0]).rstrip("_")
        candidates = [wanted, f"{wanted}__{simple}"]
        if isinstance(item.id, int):
            candidates += [f"{wanted}__{item.id}", f"{wanted}__{simple}_{item.id}"]
        for candidate in candidates:
            lower = folded(candidate)
            spelled = self._in_use.get(lower, candidate)
            free = lower not in self._kept and lower not in self._barred
            if free and self._kinds.get(spelled, item.kind) == item.kind:
                return spelled
        # With the first free number from 2 on.
        last = folded(candidates[-1])
        number = self._last_numbers.get(last, 1) + 1
        while f"{last}_{number}" in self._in_use or f"{last}_{number}" in self._barred:
            number += 1
        self._last_numbers[last] = number
        return f"{candidates[-1]}_{number}"


#: Stands for all columns that are not named.
OTHERS = "*"


@dataclass(frozen=True)
class ValueRules:
    """The rules of the settings; picklable.

    Attributes:
        null: lower-case column, or `OTHERS` -> whether its bad values become NULL; columns without an entry: no.
        never: lower-case columns of which no value becomes NULL, whatever kind they have.
        zone: time zone of times in JSON that name none; None: they are bad values.
        decimals: messages of protobuf that are decimals become decimals.
    """

    null: Mapping[str, bool] = field(default_factory=dict)
    never: frozenset[str] = frozenset()
    zone: str | None = None
    decimals: bool = False

    @classmethod
    def of(cls, settings: Settings) -> ValueRules:
        """As `on_bad_value`, `naive_times_zone` and `decimal_messages` say; entity, key and time column stay as they are."""
        chosen = settings.on_bad_value
        choices = chosen if isinstance(chosen, Mapping) else {OTHERS: chosen}
        never = (settings.entity_column, settings.key_column, settings.time_column)
        null = {column.lower(): choice == "null" for column, choice in choices.items()}
        decimals = settings.decimal_messages == "decimal"
        return cls(null, frozenset(map(str.lower, never)), settings.naive_times_zone, decimals)

    def takes(self, column: str) -> bool:
        """Whether bad values of a column become NULL."""
        name = column.lower()
        return self.null.get(name, self.null.get(OTHERS, False)) and not any(is_of_any_kind(name, kept) for kept in self.never)


@dataclass(frozen=True)
class ColumnRules:
    """The rules for the columns of a map."""

    rules: ValueRules = field(default_factory=ValueRules)
    columns: ColumnMap = field(default_factory=ColumnMap)

    def nullable(self, message: str, fields: Iterable[Field]) -> dict[FieldId, str]:
        """Fields at the top of a message type whose bad values become NULL -> their columns."""
        if not any(self.rules.null.values()):
            return {}
        names = {item.id: self.columns.names[field_key(message, (item.id,), item.kind)] for item in fields}
        return {id_: column for id_, column in names.items() if self.rules.takes(column)}


#: The default: a row with a bad value is bad.
NO_RULES = ColumnRules()
