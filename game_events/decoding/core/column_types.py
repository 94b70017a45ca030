"""Arrow types of columns: stored types, Spark's names of types, and types inside lists and maps."""

from collections.abc import Sequence

import pyarrow as pa

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
        inner = ",".join(f"{f.name}:{type_name(f.type)}" for f in kind) if members else ""
        return f"struct<{inner}>" if members else "struct"
    if pa.types.is_map(kind):
        return f"map<{type_name(kind.key_type, members=members)},{type_name(kind.item_type, members=members)}>"
    if pa.types.is_list(kind):
        return f"array<{type_name(kind.value_type, members=members)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return "timestamp" if pa.types.is_timestamp(kind) else str(kind)


def decimal_array(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """Unscaled values, which fit the type, as decimals of 128 bits."""
    raw = b"".join(b"\0" * 16 if v is None else v.to_bytes(16, "little", signed=True) for v in values)
    valid = pa.array([v is not None for v in values], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(raw)])


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
