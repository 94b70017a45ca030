"""Messages that are decimals: their exact values as Arrow decimals, if the setting `decimal_messages` asks for that.

Sources: confluent/type/decimal.proto (unscaled value, big endian; scale), google/type/decimal.proto (a text), and
google/type/money.proto (units, nanos of the same sign).
"""

import re
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from game_events.decoding.core.column_types import decimal_array
from game_events.decoding.core.wire_format import Mask

#: Columns of `confluent.type.Decimal` and `google.type.Decimal`, whose values have a scale each; and of a sum of money.
DECIMAL, MONEY = pa.decimal128(38, 18), pa.decimal128(28, 9)
#: Bytes of an unscaled value, and characters of a text, at most: far more than 38 digits.
_MOST = 100
_TEXT = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,5}))?", re.ASCII)
_NANOS = 10**9

#: Values of the fields 1, 2, ... of a message, None if it lacks one (fields with presence) -> unscaled value of its column;
#: None: the column cannot hold it exactly.
Unscaled = Callable[..., int | None]


def _scaled(number: int, exponent: int) -> int | None:
    """``number * 10**exponent`` in units of `DECIMAL`."""
    shift, limit = exponent + DECIMAL.scale, 10**DECIMAL.precision
    if not number:
        return 0
    if shift < -4 * _MOST or shift > DECIMAL.precision:
        return None
    found, rest = (number * 10**shift, 0) if shift >= 0 else divmod(number, 10**-shift)
    return found if not rest and -limit < found < limit else None


def _confluent(value: bytes | None, _precision: int | None, scale: int | None) -> int | None:
    raw = value or b""
    return _scaled(int.from_bytes(raw, "big", signed=True), -(scale or 0)) if len(raw) <= _MOST else None


def _google(value: str | None) -> int | None:
    found = _TEXT.fullmatch(value or "") if len(value or "") <= _MOST else None
    if found is None or not (found[2] or found[3]):
        return None
    digits = found[2] + (found[3] or "")
    return _scaled(int(found[1] + digits), int(found[4] or 0) - len(found[3] or ""))


def _money(_currency: str | None, units: int | None, nanos: int | None) -> int | None:
    units, nanos = units or 0, nanos or 0
    return units * _NANOS + nanos if abs(nanos) < _NANOS and units * nanos >= 0 else None


#: Full name of a message -> its reading.
_READ: Mapping[str, Unscaled] = {
    "confluent.type.Decimal": _confluent,
    "google.type.Decimal": _google,
    "google.type.Money": _money,
}


def amounts(name: str, fields: list[pa.Array], kind: pa.DataType, present: Mask) -> tuple[pa.Array, Mask]:
    """Decimals of messages, NULL where there is none, and a mask of those that the column cannot hold exactly.

    `fields`: their fields by number, shape (n,) each; `present`: messages that are set.
    """
    read, rows = _READ[name], zip(*(field.to_pylist() for field in fields), strict=True)
    values = [read(*row) if is_set else None for row, is_set in zip(rows, present.tolist(), strict=True)]
    bad = present & np.fromiter((value is None for value in values), dtype=bool, count=len(values))
    return decimal_array(values, kind), bad
