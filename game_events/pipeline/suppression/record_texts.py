"""Texts that a record's Kafka key or a value of its headers may be, as the usual serializers write them.

By these a record that is not decoded is attributed to a data subject, both when rows are erased and when records come later.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from game_events.decoding.core.wire_format import PREFIXES

#: Shorter ids are not searched among several texts: they would match other subjects' records by chance.
MIN_SEARCHED_BYTES = 4
#: Longer keys and headers are compared as a whole only, and so many texts of one.
MOST_BYTES, MOST_TEXTS = 4_096, 64


def texts_of(raw: bytes, *, is_header: bool = False) -> set[bytes]:
    """The bytes themselves, and what they are as a JSON text, an Avro text, or values of a record; with and without a frame.

    Of an object of JSON, a record of Avro that has only texts, and a message of protobuf the values of the top level. A frame
    is a magic byte with a schema's id or GUID; protobuf's message indexes may follow.

    `is_header`: the value of a header; a record has several, most of which are no ids (`retries: 1`).
    """
    found = {raw}
    if len(raw) <= MOST_BYTES:
        bodies = [raw]
        if raw and (prefix := PREFIXES.get(raw[0])) is not None and len(raw) > prefix:
            bodies.append(raw[prefix:])
        for body in bodies:
            found |= {body, *_json_texts(body), *_avro_texts(body), *_protobuf_texts(body)}
    return set(_long(found)) if is_header else found


def header_values(headers: pa.Array | pa.ChunkedArray) -> Iterator[list[bytes]]:
    """The values of each row's headers."""
    for row in headers.to_pylist():
        yield [item["value"] for item in row or () if item["value"] is not None]


def has_headers(headers: pa.Array | pa.ChunkedArray) -> bool:
    """Whether any row has one."""
    return bool(pc.any(pc.greater(pc.list_value_length(headers), 0)).as_py())


def _json_texts(body: bytes) -> list[bytes]:
    """A text, or the texts and numbers of an object."""
    if body.lstrip()[:1] not in (b'"', b"{"):
        return []
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return []
    values = list(value.values()) if isinstance(value, dict) else [value]
    texts = (text for text in values if isinstance(text, str | int) and not isinstance(text, bool))
    found = [str(text).encode(errors="surrogatepass") for text in islice(texts, MOST_TEXTS)]
    return found if len(values) == 1 else _long(found)


def _avro_texts(body: bytes) -> list[bytes]:
    """The texts that the bytes are made of, if they are made of texts."""
    found, at = list[bytes](), 0
    while at < len(body) and len(found) < MOST_TEXTS:
        length, at = _varint(body, at)
        if length % 2 or at + length // 2 > len(body):
            return []
        found.append(body[at : at + length // 2])
        at += length // 2
    return found if len(found) == 1 else _long(found)


def _protobuf_texts(body: bytes) -> list[bytes]:
    """Texts of a message; after its indexes, if there are some. A short one, if the message has nothing else."""
    count, at = _varint(body, 0)
    for _ in range(min(count // 2, 32)):
        _, at = _varint(body, at)
    found = list[bytes]()
    for begin in (0, at):
        texts = _fields(body, begin)
        is_all = len(texts) == 1 and begin + 2 + len(texts[0]) == len(body)  # one byte each: tag, length
        found += texts if is_all else _long(texts)
    return found


def _fields(body: bytes, at: int) -> list[bytes]:
    found = list[bytes]()
    while at < len(body) and len(found) < MOST_TEXTS:
        tag, at = _varint(body, at)
        kind = tag & 7
        length, at = _varint(body, at) if kind in (0, 2) else ({1: 8, 5: 4}.get(kind, len(body)), at)
        if kind == 2:
            found.append(body[at : at + length])
        at += 0 if kind == 0 else length
    return found


def _long(texts: Iterable[bytes]) -> list[bytes]:
    return [text for text in texts if len(text) >= MIN_SEARCHED_BYTES]


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A number and the place after it."""
    number = shift = 0
    while at < len(body) and shift < 64:
        byte = body[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return number, at
