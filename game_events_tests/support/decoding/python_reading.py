"""The row that Python's protobuf reads of a message: what the decoder has to give, by field numbers."""

import json
import math
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
from google.protobuf import json_format, message_factory

from game_events.decoding.columns import field_key, path_inside

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OutOfRangeError(Exception):
    """A time that protobuf does not allow."""


def read(message, pool, above=()):
    """Field number -> value: NULL where there is presence and no value.

    Raises:
        OutOfRangeError: a time is outside protobuf's range.
        UnicodeDecodeError: a proto2 string is no UTF-8.
    """
    descriptor = message.DESCRIPTOR
    above = (*above, descriptor.full_name)
    row = {}
    extensions = list(pool.FindAllExtensions(descriptor)) if descriptor.is_extendable else []
    for field in [*descriptor.fields, *extensions]:
        value = message.Extensions[field] if field.is_extension else getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            item = field.message_type.fields_by_name["value"]
            row[field.number] = sorted(((k, one(item, v, pool, above)) for k, v in value.items()), key=lambda pair: pair[0])
        elif field.is_repeated:
            row[field.number] = [one(field, v, pool, above) for v in value]
        elif field.has_presence and not _is_set(message, field):
            row[field.number] = None
        else:
            row[field.number] = one(field, value, pool, above)
    return row


def _is_set(message, field):
    return message.HasExtension(field) if field.is_extension else message.HasField(field.name)


def one(field, value, pool, above):  # noqa: PLR0911 - one for each kind of value
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack("<d", value)
    message = field.message_type
    if message is None:
        # Python's protobuf gives bytes for a proto2 string that is not UTF-8; a column of strings cannot hold them.
        return value.decode() if field.type == field.TYPE_STRING and isinstance(value, bytes) else value
    if message.full_name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        try:
            value.ToJsonString()
        except ValueError as error:
            raise OutOfRangeError from error
        if message.name == "Timestamp":
            return EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)
        return value.seconds * 1_000_000 + int(math.copysign(abs(value.nanos) // 1_000, value.nanos))
    if message.full_name in ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"):
        return ("json", plain(value))
    if message.full_name.startswith("google.protobuf.") and message.name.endswith("Value"):
        return one(message.fields_by_name["value"], value.value, pool, above)
    if not message.fields and not (message.is_extendable and pool.FindAllExtensions(message)):
        return True
    if message.full_name in above:
        copy = message_factory.GetMessageClass(message)()
        copy.CopyFrom(value)
        copy.DiscardUnknownFields()
        return ("bytes", copy.SerializePartialToString(deterministic=True), copy)
    return read(value, pool, above)


def plain(value):
    """JSON as protobuf's own mapping has it, NaN and infinities apart."""
    name = value.DESCRIPTOR.name
    if name == "Struct":
        return {k: plain(v) for k, v in value.fields.items()}
    if name == "ListValue":
        return [plain(v) for v in value.values]
    if value.WhichOneof("kind") == "number_value" and not math.isfinite(value.number_value):
        return json.loads(json.dumps(value.number_value, allow_nan=True), parse_constant=lambda text: text)
    if value.WhichOneof("kind") in ("struct_value", "list_value"):
        return plain(getattr(value, value.WhichOneof("kind")))
    if value.WhichOneof("kind") is None:
        return None
    return json.loads(json_format.MessageToJson(value))


def as_read(row, like, decoder, columns):
    """A decoded row as `read` gives it: by number, in the light of what is expected (which knows what is JSON)."""
    return _fields(row, like, decoder.fields, lambda path, item: columns.names[field_key(decoder.message, path, item.kind)], ())


def _fields(row, like, fields, name_of, above):
    out = {}
    for item in fields:
        path = (*above, item.id)
        out[item.id] = _value(row[name_of(path, item)], like.get(item.id), item, name_of, path)
    return out


def _value(value, like, item, name_of, path):  # noqa: PLR0911 - one for each kind of value
    if isinstance(value, list) and pa.types.is_map(item.type):
        likes = dict(like) if isinstance(like, list) else {}
        pairs = ((_value(k, None, item, name_of, path), _value(v, likes.get(k), item, name_of, path)) for k, v in value)
        return sorted(pairs, key=lambda pair: pair[0])
    if isinstance(value, list):
        likes = like if isinstance(like, list) and len(like) == len(value) else [None] * len(value)
        return [_value(v, other, item, name_of, path) for v, other in zip(value, likes, strict=True)]
    if isinstance(value, dict):
        return _fields(value, like if isinstance(like, dict) else {}, item.children, name_of, path_inside(path, item))
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack("<d", value)
    if isinstance(value, Decimal):
        return int(value)
    kind = like[0] if isinstance(like, tuple) else None
    if kind == "json" and isinstance(value, str):
        return ("json", json.loads(value))
    if kind == "bytes" and isinstance(value, bytes):
        again = type(like[2])()
        again.ParseFromString(value)
        again.DiscardUnknownFields()
        return ("bytes", again.SerializePartialToString(deterministic=True), like[2])
    return value
