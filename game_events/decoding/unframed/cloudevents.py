"""CloudEvents: attributes become columns (`ce_id`, `ce_type`, ...), the data is a payload like any other.

Binary mode: attributes in headers `ce_...`, the value is the data. Structured mode: the value is a JSON object with attributes
and data. Source: CloudEvents 1.0.2, JSON event format; Kafka protocol binding.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from game_events.decoding.columns import Field
from game_events.decoding.frame import DAMAGE, BadFrames, Reason, Rows, as_damage
from game_events.decoding.json_decoder import MAX_BRACKETS, converter, parse
from game_events.decoding.json_schema import JsonType
from game_events.decoding.projection import CellBudget
from game_events.decoding.unframed.inferred import inferred_id

ATTRIBUTES = ("id", "source", "type", "subject", "time", "specversion", "datacontenttype", "dataschema")
#: Identity of the type that the attributes are; no topic has a slash.
TYPE_ID = inferred_id("*cloudevents")
_TIME = pa.timestamp("us", tz="UTC")
FIELDS = tuple(Field(name, f"ce_{name}", _TIME if name == "time" else pa.string()) for name in ATTRIBUTES)
SCHEMA = pa.schema([(str(f.id), f.type) for f in FIELDS])
_timestamp = converter(JsonType("timestamp"), CellBudget())
#: Texts of a header by its name, of each of some rows.
HeaderTexts = Callable[[str], pa.Array]


class _Envelope(msgspec.Struct):
    specversion: str
    id: str | None = None
    source: str | None = None
    type: str | None = None
    subject: str | None = None
    time: str | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"")
    data_base64: str | None = None


_parse = msgspec.json.Decoder(_Envelope).decode


class Events(NamedTuple):
    """Positions of records that are events, their payloads, their attributes (`SCHEMA`), and those that are none."""

    positions: Rows
    payloads: pa.BinaryArray
    attributes: pa.RecordBatch
    bad: list[BadFrames]


def events_of(values: Sequence[bytes], headers: HeaderTexts, nothing: bytes) -> Events:
    """The events in some records; `nothing`: the payload of one without data."""
    texts = [headers(f"ce_{name}").to_pylist() for name in ATTRIBUTES]
    version = ATTRIBUTES.index("specversion")
    positions: list[int] = []
    payloads: list[bytes] = []
    rows: list[dict[str, object]] = []
    bad: list[BadFrames] = []
    for position, value in enumerate(values):
        try:
            if texts[version][position] is not None:
                named = {name: text[position] for name, text in zip(ATTRIBUTES, texts, strict=True)}
                row, payload = {name: text.decode() for name, text in named.items() if text is not None}, value
            else:
                row, payload = _structured(value)
            rows.append(row | ({"time": _timestamp(row["time"])} if "time" in row else {}))
            payloads.append(payload or nothing)
            positions.append(position)
        except (msgspec.MsgspecError, binascii.Error) as error:
            bad.append(_bad(position, Reason.MALFORMED, str(error)))
        except DAMAGE as error:
            damage = as_damage(error)
            bad.append(_bad(position, damage.reason, damage.what))
    attributes = pa.RecordBatch.from_pylist(rows, SCHEMA)
    return Events(np.array(positions, np.int64), pa.array(payloads, pa.binary()), attributes, bad)


def _bad(position: int, reason: Reason, said: str) -> BadFrames:
    return BadFrames(reason, np.array([position]), None, f"no CloudEvent in either mode: {said}")


def _structured(value: bytes) -> tuple[dict[str, str], bytes]:
    """Attributes and data of an event in structured mode."""
    if value.count(b"{") + value.count(b"[") > MAX_BRACKETS:
        parse(value)  # refuses one that is nested deeper than msgspec may read
    event = _parse(value)
    row = {name: text for name in ATTRIBUTES if (text := getattr(event, name)) is not None}
    if event.data_base64 is not None:
        return row, base64.b64decode(event.data_base64, validate=True)
    data = bytes(event.data)
    return row, b"" if data == b"null" else data
