"""google.protobuf.Struct, Value and ListValue as JSON text, by protobuf's own JSON mapping.

Whole numbers have no fraction, a Value without a kind is null; NaN and infinities, which JSON lacks, are the strings "NaN",
"Infinity" and "-Infinity", as in that mapping for ``double``.
"""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from game_events.decoding.core.wire_format import Rows

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
#: Integers up to this one are exact as floats.
_EXACT = 2**53


def json_texts(values: pa.Array, message: Descriptor) -> tuple[pa.Array, Rows]:
    """JSON of serialized messages (Struct, Value or ListValue), NULL for malformed ones, and positions of these."""
    encoded = pc.dictionary_encode(values)
    new: type[Message] = message_factory.GetMessageClass(message)
    texts: list[str | None] = []
    for value in encoded.dictionary.to_pylist():
        try:
            texts.append(json.dumps(_plain(new.FromString(value)), ensure_ascii=False, separators=(",", ":")))
        except DecodeError:
            texts.append(None)
    stored = pa.array(texts, pa.string()).take(encoded.indices)
    return stored, np.flatnonzero(np.asarray(stored.is_null()) & np.asarray(values.is_valid()))


def _plain(message: Message) -> Json:
    """A message as Python's own values."""
    match message.DESCRIPTOR.name:
        case "Struct":
            return {str(name): _plain(value) for name, value in message.fields.items()}  # type: ignore[attr-defined]
        case "ListValue":
            return [_plain(value) for value in message.values]  # type: ignore[attr-defined]
    kind = message.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    value = getattr(message, kind)
    if kind != "number_value":
        return _plain(value) if isinstance(value, Message) else bool(value) if kind == "bool_value" else str(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    whole = value.is_integer() and abs(value) <= _EXACT and (value != 0 or math.copysign(1, value) > 0)
    return int(value) if whole else float(value)
