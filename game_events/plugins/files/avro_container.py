"""Reader of Avro object container files: the bytes of each record, to be decoded by the file's own schema.

Format: Apache Avro 1.12 specification, "Object Container Files". Positions count the records from 0, by the blocks' counts.
A damaged record hides where the next one begins: the rest of its block becomes one quarantine row, and reading continues with
the next block.
"""

import bz2
import json
import lzma
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from game_events.decoding.avro.encoding import (
    MAX_EMPTY_ITEMS,
    Budget,
    ByType,
    min_bytes,
    read_blocks,
    read_bytes,
    read_index,
    read_long,
    take,
)
from game_events.decoding.avro.schema import AvroSchema, AvroType
from game_events.decoding.frame import DAMAGE, KEPT_BYTES, DamageError, Reason, RegistrySchema, as_damage, schema_guid
from game_events.errors import DataError
from game_events.plugins.files.records import BATCH_ROWS, FILE_ROWS, FileLimits, FilePart, identity_bytes, records, unreadable
from game_events.sources.source import ReadNotes

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
#: Bytes of a header, and of a block, compressed or not.
MAX_HEADER = 4 * 1024 * 1024
MAX_BLOCK = 512 * 1024 * 1024
_NUMBER_BYTES = 10
#: Errors of decompressing a block.
BAD_BLOCK = (ValueError, OSError, EOFError, zlib.error, lzma.LZMAError)
#: (bytes, start of a value) -> its end; raises `DAMAGE` for malformed bytes.
Skip = Callable[[bytes, int], int]
_FIXED = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_LEAVES: dict[str, Skip] = {
    **dict.fromkeys(("int", "long", "enum"), lambda buf, at: read_long(buf, at)[1]),
    **dict.fromkeys(("bytes", "string"), lambda buf, at: read_bytes(buf, at)[1]),
}


def read_header(head: bytes) -> tuple[str, str, bytes, int]:
    """Schema text, codec, sync marker and size of the header in a file's first bytes; raises `DAMAGE` for others."""
    if not head.startswith(MAGIC):
        raise DamageError(Reason.MALFORMED, "it does not begin as an Avro file does")
    header: dict[str, bytes] = {}

    def entry(buf: bytes, pos: int) -> int:
        key, pos = read_bytes(buf, pos)
        header[key.decode()], pos = read_bytes(buf, pos)
        return pos

    _, at = read_blocks(head, len(MAGIC), 2, Budget(), entry)
    if len(head) < at + SYNC_BYTES or "avro.schema" not in header:
        raise DamageError(Reason.TRUNCATED, "its header is not complete")
    codec = header.get("avro.codec", b"null").decode()
    return header["avro.schema"].decode(), codec, head[at : at + SYNC_BYTES], at + SYNC_BYTES


def read_container(source: pa.NativeFile, file: FilePart, notes: ReadNotes, limits: FileLimits) -> Iterator[pa.RecordBatch]:
    """Batches of a file's records, and rows for what cannot be read; LimitExceededError if it decompresses to too much."""
    position = unpacked = 0
    try:
        text, codec, sync, at = read_header(source.read(MAX_HEADER))
        json.loads(text)
        guid = schema_guid("AVRO", text)
        skip = _skip_of(AvroSchema(guid, text).root)
    except (*DAMAGE, ValueError, DataError) as error:
        yield unreadable(file, 0, f"no Avro file: {_message(error)}")
        return
    notes.schemas[guid] = RegistrySchema(guid, "AVRO", text)
    identity = identity_bytes(guid, (), indexed=False)
    end = source.size()
    while at < end:
        try:
            # The next file's offsets begin after `FILE_ROWS`.
            count, stored, after = _stored_block(source, at, sync, FILE_ROWS - position)
        except DAMAGE as error:
            yield unreadable(file, position, f"from byte {at:,} on: {_message(error)}; {end - at:,} bytes are left of the file")
            return
        at = after
        try:
            block = unpack(stored, codec)
        except BAD_BLOCK as error:
            yield unreadable(file, position, f"a block of {count:,} records cannot be decompressed: {_message(error)}")
        else:
            unpacked += len(block)
            if unpacked > limits.unpacked:
                raise limits.too_much()
            yield from _block(block, count, skip, file, position, identity)
        position += count


def _stored_block(source: pa.NativeFile, at: int, sync: bytes, most: int) -> tuple[int, bytes, int]:
    """Number of records (below `most`), bytes and end of a compressed block; raises `DAMAGE`."""
    source.seek(at)
    head = source.read(2 * _NUMBER_BYTES)
    count, used = read_long(head, 0)
    size, used = read_long(head, used)
    if not 0 <= count < most or not 0 <= size <= MAX_BLOCK or (size and not count):
        raise DamageError(Reason.MALFORMED, f"a block of {count} records and {size} bytes")
    source.seek(at + used)
    stored = source.read(size + SYNC_BYTES)
    if len(stored) < size + SYNC_BYTES or stored[size:] != sync:
        raise DamageError(Reason.TRUNCATED, "a block does not end after its announced size")
    return count, stored[:size], at + used + size + SYNC_BYTES


def _block(block: bytes, count: int, skip: Skip, file: FilePart, position: int, identity: bytes) -> Iterator[pa.RecordBatch]:
    """Batches of a block's records, and a row for the rest after damage."""
    done = 0
    at = 0
    damage = ""
    # A record takes at least a byte, except for those of empty types.
    if count > len(block) + MAX_EMPTY_ITEMS:
        damage = f"{count:,} records are announced in {len(block):,} bytes"
    while done < count and not damage:
        bounds = [at]
        try:
            for _ in range(min(count - done, BATCH_ROWS)):
                bounds.append(skip(block, bounds[-1]))
        except DAMAGE as error:
            damage = _message(error)
        if done + len(bounds) - 1 == count and bounds[-1] != len(block):
            damage = f"{len(block) - bounds.pop():,} bytes are behind the last record of a block"
        edges = np.asarray(bounds, dtype=np.int64)
        good = len(edges) - 1
        at = bounds[-1]
        yield from records(file, position + done + np.arange(good), block, edges[:-1], edges[1:], identity)
        done += good
    if damage:
        detail = f"{count - done:,} records are left of a block: {damage}"
        yield unreadable(file, position + done, detail, block[at:][:KEPT_BYTES])


def _skip_of(root: AvroType) -> Skip:
    """Finds the end of a value without decoding it: values have no separators."""

    def make(type_: AvroType) -> Skip:
        match type_.kind:
            case "record":
                return _all_of([of(f.type) for f in type_.fields])
            case "union":
                return _one_of([of(inner) for inner in type_.items])
            case "array":
                item = of(type_.items[0])
                least = min_bytes(type_.items[0])
                return lambda buf, at: read_blocks(buf, at, least, Budget(), item)[1]
            case "map":
                value = of(type_.items[0])
                return lambda buf, at: read_blocks(buf, at, 1, Budget(), lambda b, a: value(b, read_bytes(b, a)[1]))[1]
            case kind if kind in _LEAVES:
                return _LEAVES[kind]
            case kind:
                size = type_.size if kind == "fixed" else _FIXED[kind]
                return lambda buf, at: take(buf, at, size)[1]

    of = ByType[int](make).of
    return of(root)


def _all_of(members: list[Skip]) -> Skip:
    def record(buf: bytes, at: int) -> int:
        for member in members:
            at = member(buf, at)
        return at

    return record


def _one_of(branches: list[Skip]) -> Skip:
    def union(buf: bytes, at: int) -> int:
        index, at = read_index(buf, at, len(branches), "branch")
        return branches[index](buf, at)

    return union


def unpack(data: bytes, codec: str) -> bytes:
    """Decompress a block; one of `BAD_BLOCK` if it is damaged, too large, or of an unknown codec."""
    match codec:
        case "null":
            return data
        case "deflate":
            packer = zlib.decompressobj(-15)
            unpacked = packer.decompress(data, MAX_BLOCK)
            if packer.unconsumed_tail or not packer.eof:
                raise ValueError("it is truncated, or too large")
            return unpacked
        case "snappy":
            unpacked = pa.decompress(data[:-4], decompressed_size=_snappy_size(data), codec="snappy", asbytes=True)
            if zlib.crc32(unpacked) != int.from_bytes(data[-4:], "big"):
                raise ValueError("wrong checksum")
            return bytes(unpacked)
        case "bzip2":
            return _bounded(bz2.BZ2Decompressor().decompress(data, MAX_BLOCK))
        case "xz":
            return _bounded(lzma.LZMADecompressor().decompress(data, MAX_BLOCK))
        case "zstandard":
            with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
                return _bounded(stream.read(MAX_BLOCK))
        case other:
            raise ValueError(f"codec {other!r} is not known")


def _bounded(unpacked: bytes) -> bytes:
    if len(unpacked) >= MAX_BLOCK:
        raise ValueError(f"it is larger than {MAX_BLOCK:,} bytes")
    return unpacked


def _snappy_size(data: bytes) -> int:
    """The size that snappy announces, a varint."""
    size = shift = 0
    for octet in data[:5]:
        size |= (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:
            break
    if size > MAX_BLOCK:
        raise ValueError(f"it is larger than {MAX_BLOCK:,} bytes")
    return size


def _message(error: BaseException) -> str:
    return as_damage(error).what if isinstance(error, DAMAGE) else str(error).partition("\n")[0]
