"""Column builders of Avro's simple types: lists of Python values, converted to Arrow arrays at the end."""

import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from game_events.decoding.avro.encoding import INT_RANGE, LONG_RANGE, SIMPLE, read_bytes, read_long, read_text, take
from game_events.decoding.avro.types import AvroType, Logical
from game_events.decoding.core.column_types import TIMESTAMP_RANGE, decimal_array
from game_events.decoding.core.reasons import DamageError, Reason

#: Days of the years 1 to 9999, the range of Python and Spark.
DATE_RANGE = (-719_162, 2_932_896)
DAY_US = 86_400_000_000
DURATION = pa.struct([("months", pa.int64()), ("days", pa.int64()), ("milliseconds", pa.int64())])

#: Digits that Spark's and Delta's decimals hold.
MAX_DIGITS = 38


class Column(Protocol):
    """A column under construction: Arrow type of `finish`; whether it holds JSON text, or lists or maps of it."""

    type: pa.DataType
    is_text: bool

    def read(self, buf: bytes, at: int, /) -> int:
        """Read one value at a position into the column; returns the position after it."""

    def truncate(self, count: int) -> None:
        """Keep the first values: removes those of a malformed payload."""

    def finish(self) -> pa.Array:
        """The values so far; the column is empty then."""


class Leaf:
    """A column of single values."""

    def __init__(self, type_: pa.DataType, parse: Callable[[bytes, int], tuple[Any, int]], *, is_text: bool = False) -> None:
        self.type, self.is_text = type_, is_text
        self.values: list[Any] = []
        self.read = self._reader(parse)

    def _reader(self, parse: Callable[[bytes, int], tuple[Any, int]]) -> Callable[[bytes, int], int]:
        append = self.values.append

        def read(buf: bytes, at: int) -> int:
            value, at = parse(buf, at)
            append(value)
            return at

        return read

    def null_bad_values(self, nulled: list[str], column: str) -> None:
        """From now on values outside of the type's range are NULL, and their column is noted."""
        strict, append = self.read, self.values.append

        def read(buf: bytes, at: int) -> int:
            try:
                return strict(buf, at)
            except DamageError as damage:
                if damage.end is None:
                    raise
                nulled.append(column)
                append(None)
                return damage.end

        self.read = read

    def truncate(self, count: int) -> None:
        """Keeps the first values."""
        del self.values[count:]

    def finish(self) -> pa.Array:
        """The values so far."""
        array = self.array(self.values)
        self.values.clear()
        return array

    def array(self, values: list[Any]) -> pa.Array:
        """Python values, None included, as an array of this type."""
        return pa.array(values, self.type)


class _StringLeaf(Leaf):
    """Strings, the most frequent type: read without further calls."""

    def __init__(self) -> None:
        super().__init__(pa.string(), read_text)

    def _reader(self, parse: Callable[[bytes, int], tuple[Any, int]]) -> Callable[[bytes, int], int]:
        append = self.values.append

        def read(buf: bytes, at: int) -> int:
            size = buf[at]
            if size < 0x80 and not size & 1:
                end = at + 1 + (size >> 1)
                if end <= len(buf):
                    append(str(buf[at + 1 : end], "utf-8"))
                    return end
            text, at = parse(buf, at)
            append(text)
            return at

        return read


class _NumberLeaf(Leaf):
    """Integers within a range; also dates and times, which are integers."""

    def __init__(self, type_: pa.DataType, bounds: tuple[int, int], times: int = 1, per: int = 1) -> None:
        """A column of ``value * times // per``; values outside `bounds` are rejected."""
        self._bounds, self._times, self._per = bounds, times, per
        super().__init__(type_, read_long)

    def _reader(self, parse: Callable[[bytes, int], tuple[Any, int]]) -> Callable[[bytes, int], int]:
        append = self.values.append
        low, high = self._bounds

        def read(buf: bytes, at: int) -> int:
            value, at = parse(buf, at)
            if not low <= value <= high:
                raise DamageError(Reason.OUT_OF_RANGE, f"a number outside {low}..{high}", at)
            append(value)
            return at

        return read

    def array(self, values: list[Any]) -> pa.Array:
        raw = pa.int32() if pa.types.is_date(self.type) else pa.int64()
        return pa.array(self._scaled(values), raw).cast(self.type)

    def _scaled(self, values: list[Any]) -> list[Any]:
        if self._times == self._per:
            return values
        # Rounded down also before 1970.
        return [None if v is None else v * self._times // self._per for v in values]


class _LocalTimeLeaf(_NumberLeaf):
    """Times without a zone as ISO text: timestamps would be read as UTC."""

    def __init__(self, bounds: tuple[int, int], times: int, per: int) -> None:
        super().__init__(pa.timestamp("us"), bounds, times, per)
        self.type = pa.string()

    def array(self, values: list[Any]) -> pa.Array:
        return pc.strftime(pa.array(self._scaled(values), pa.timestamp("us")), "%Y-%m-%dT%H:%M:%S")


class _DecimalLeaf(Leaf):
    """Decimals; as text if they have more than `MAX_DIGITS` digits."""

    def __init__(self, type_: AvroType, logical: Logical) -> None:
        self._scale = logical.scale
        fits = logical.precision <= MAX_DIGITS
        limit = 10**logical.precision

        def parse(buf: bytes, at: int) -> tuple[int, int]:
            raw, at = take(buf, at, type_.size) if type_.kind == "fixed" else read_bytes(buf, at)
            value = int.from_bytes(raw, "big", signed=True)
            if not -limit < value < limit:
                raise DamageError(Reason.OUT_OF_RANGE, f"a decimal of more than {logical.precision} digits", at)
            return value, at

        super().__init__(pa.decimal128(logical.precision, logical.scale) if fits else pa.string(), parse)

    def array(self, values: list[Any]) -> pa.Array:
        if pa.types.is_decimal(self.type):
            return decimal_array(values, self.type)
        return pa.array([None if v is None else f"{Decimal(f'{v}E-{self._scale}'):f}" for v in values], pa.string())


def leaf(type_: AvroType) -> Leaf:
    """The column of a simple type."""
    logical = type_.logical
    if logical is not None and logical.name == "decimal":
        return _DecimalLeaf(type_, logical)
    if logical is not None and "timestamp" in logical.name:
        return _timestamp(logical.name)
    name = type_.kind if logical is None else f"{type_.kind} {logical.name}"
    return Leaf(_PLAIN[name], SIMPLE[name](type_)) if name in _PLAIN else _LEAVES[name]()


def _timestamp(name: str) -> Leaf:
    times, per = {"millis": (1_000, 1), "micros": (1, 1), "nanos": (1, 1_000)}[name.rpartition("-")[2]]
    # All nanoseconds of 64 bits are within this range.
    low, high = TIMESTAMP_RANGE
    bounds = (low * per // times, high * per // times)
    if name.startswith("local"):
        return _LocalTimeLeaf(bounds, times, per)
    return _NumberLeaf(pa.timestamp("us", tz="UTC"), bounds, times, per)


def _uuid(buf: bytes, at: int) -> tuple[str, int]:
    raw, at = take(buf, at, 16)
    return str(uuid.UUID(bytes=raw)), at


def _duration(buf: bytes, at: int) -> tuple[dict[str, int], int]:
    raw, at = take(buf, at, 12)
    return dict(zip(("months", "days", "milliseconds"), struct.unpack("<III", raw), strict=True)), at


#: Type whose values are stored as they are -> type of its column; null: a column without values.
_PLAIN = {
    "null": pa.bool_(), "boolean": pa.bool_(), "float": pa.float32(), "double": pa.float64(), "bytes": pa.binary(),
    "enum": pa.string(), "fixed": pa.binary(),
}  # fmt: skip
#: Other types, or type and logical type -> its column.
_LEAVES: dict[str, Callable[[], Leaf]] = {
    "int": lambda: _NumberLeaf(pa.int64(), INT_RANGE),
    "long": lambda: _NumberLeaf(pa.int64(), LONG_RANGE),
    "string": _StringLeaf,
    "int date": lambda: _NumberLeaf(pa.date32(), DATE_RANGE),
    "int time-millis": lambda: _NumberLeaf(pa.int64(), (0, DAY_US // 1_000 - 1), times=1_000),
    "long time-micros": lambda: _NumberLeaf(pa.int64(), (0, DAY_US - 1)),
    "string uuid": _StringLeaf,
    "fixed uuid": lambda: Leaf(pa.string(), _uuid),
    "fixed duration": lambda: Leaf(DURATION, _duration),
}
