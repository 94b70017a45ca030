"""The data subjects of an erasure, and the masks that select their rows in each table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from game_events.lakehouse.event_columns import COORDINATES, HEADERS
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import BRONZE, QUARANTINE, REST_FAILED_CHUNKS, is_person
from game_events.pipeline.suppression.record_texts import MIN_SEARCHED_BYTES, header_values, texts_of
from game_events.pipeline.suppression.worker import as_texts

#: Undecoded columns that may hold an id.
BYTES = ("_kafka_key", HEADERS, "_raw_value")
#: Records that are Python objects at the same time.
_ROWS_AT_ONCE = 10_000
#: Column of failed chunks: the receiver's answer.
ANSWER = "answer"
#: JSON's escapes (RFC 8259, section 7); characters beyond U+FFFF are two of them.
_ESCAPE = re.compile(rb"(?:\\u[0-9a-fA-F]{4})+|\\.", re.DOTALL)
_SHORT_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}

#: Coordinates of a record; NULL matches nothing.
RECORDS = pa.schema(
    [
        pa.field("_kafka_topic", pa.string()),
        pa.field("_kafka_topic_id", pa.string()),
        pa.field("_kafka_partition", pa.int32()),
        pa.field("_kafka_offset", pa.int64()),
        pa.field("_batch", pa.int64()),
        pa.field("game", pa.string()),
    ]
)
#: A replayed record has another batch in quarantine than in bronze. Silver has the topic's name, but not its id, which is
#: unique for a name within a batch.
_IN_QUARANTINE = list(COORDINATES)
_IN_SILVER = ["_kafka_topic", "_kafka_partition", "_kafka_offset", "_batch"]


@dataclass(frozen=True)
class DataSubjects:
    """The data subjects of an erasure; picklable.

    Attributes:
        key: the column with a data subject's id.
        entity: the column with the game.
        ids: their ids, as texts.
        records: their rows of bronze (`RECORDS`), by which rows of other tables are found too.
        oldest_batch: bronze's; rows of quarantine from earlier batches cannot be found by a row of bronze.
    """

    key: str
    entity: str
    ids: frozenset[str] = field(repr=False)
    records: pa.Table = field(repr=False, default_factory=RECORDS.empty_table)
    oldest_batch: int = 0

    def with_records(self, found: Iterable[pa.Table]) -> DataSubjects:
        """A copy with more records, without duplicates."""
        records = pa.concat_tables([self.records, *found]).group_by(RECORDS.names).aggregate([])
        return replace(self, records=records.select(RECORDS.names))

    @cached_property
    def traces(self) -> re.Pattern[bytes] | None:
        """Pattern of an id as a whole text within bytes: after its length (protobuf, Avro), or in quotes (JSON)."""
        found = [head + raw for raw in self._searched for head in (_varint(len(raw)), _varint(2 * len(raw)))]
        return _any_of(found + [b'"' + raw + b'"' for raw in self._searched])

    @cached_property
    def names(self) -> re.Pattern[bytes] | None:
        """Pattern of an id anywhere in a text."""
        return _any_of(self._searched)

    @cached_property
    def _searched(self) -> list[bytes]:
        return [raw for raw in self._encoded if len(raw) >= MIN_SEARCHED_BYTES]

    def columns(self, table: str, names: Sequence[str]) -> list[str]:
        """The columns of a file that are needed to find rows."""
        wanted = {*RECORDS.names, self.entity}
        if table == QUARANTINE:
            wanted |= {"layer", "replayed_table", "replayed_batch", *BYTES}
        if table == REST_FAILED_CHUNKS:
            wanted |= {"key", ANSWER}
        return [n for n in names if n in wanted or is_person(n, self.key)]

    def mask(self, table: str, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Mask of the data subjects' rows."""
        found = np.zeros(rows.num_rows, dtype=bool)
        if table == QUARANTINE:
            return found | self._recorded(rows, _IN_QUARANTINE) | self.traced(rows, self.unsearchable(rows))
        for name in (n for n in rows.column_names if is_person(n, self.key)):
            found |= self._named(rows.column(name))
        if table != BRONZE:
            found |= self._recorded(rows, _IN_SILVER)
        return found

    def _named(self, values: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        texts = as_texts(values)
        if texts is None:
            return np.zeros(len(values), dtype=bool)
        ids = pa.array(sorted(self.ids), pa.string()).cast(texts.type)
        return np.asarray(pc.is_in(texts, value_set=ids).to_numpy(zero_copy_only=False), dtype=bool)

    def _recorded(self, rows: pa.Table, keys: list[str]) -> npt.NDArray[np.bool_]:
        found = np.zeros(rows.num_rows, dtype=bool)
        if not self.records.num_rows or not set(keys) <= set(rows.column_names):
            return found
        mine = pa.table({k: rows.column(k).cast(RECORDS.field(k).type) for k in keys} | {"_row": np.arange(rows.num_rows)})
        found[mine.join(self.records.select(keys), keys, join_type="left semi").column("_row").to_numpy()] = True
        return found

    def traced(self, rows: pa.Table, among: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Mask of the rows `among` the given ones with an id in their undecoded columns (`BYTES`)."""
        found = np.zeros(rows.num_rows, dtype=bool)
        places = np.flatnonzero(among)
        present = [name for name in BYTES if name in rows.column_names]
        searched, done = rows.select(present).filter(pa.array(among)), 0
        for part in searched.to_batches(max_chunksize=_ROWS_AT_ONCE):
            keys, values = (part.column(name).to_pylist() for name in ("_kafka_key", "_raw_value"))
            headers = header_values(part.column(HEADERS)) if HEADERS in present else iter([[]] * len(part))
            for key, value, more in zip(keys, values, headers, strict=True):
                in_header = any(self._is_written(text, is_header=True) for text in more)
                found[places[done]] = in_header or self._is_written(key) or self._is_traced(value)
                done += 1
        return found

    def _is_written(self, text: bytes | None, *, is_header: bool = False) -> bool:
        """Whether a key or header is an id or has one, as serializers write it."""
        if text is None:
            return False
        return not self._encoded.isdisjoint(texts_of(text, is_header=is_header)) or self._is_traced(text)

    def _is_traced(self, value: bytes | None) -> bool:
        return value is not None and _in_either_form(self.traces, value)

    @cached_property
    def _encoded(self) -> frozenset[bytes]:
        return frozenset(text.encode(errors="surrogatepass") for text in self.ids)

    def answered(self, failed: pa.Table, erased: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Mask of the remaining rows of failed chunks with an answer that has an id, or is to a call with erased rows."""
        calls = pc.unique(failed.column("key").filter(pa.array(erased)))
        found = pc.is_in(failed.column("key"), value_set=calls).to_numpy()
        answers = failed.column(ANSWER).combine_chunks().dictionary_encode()
        naming = [_in_either_form(self.names, answer.encode()) for answer in answers.dictionary.to_pylist()]
        which = pc.fill_null(answers.indices, len(naming)).to_numpy(zero_copy_only=False)
        found = found | np.array([*naming, False])[which]
        return np.asarray(found & ~erased & pc.is_valid(failed.column(ANSWER)).to_numpy(), dtype=bool)

    def nameless(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Mask of bronze's rows without a key and a game: their message type is not decoded."""
        found = np.ones(rows.num_rows, dtype=bool)
        for name in (n for n in rows.column_names if n == self.entity or is_person(n, self.key)):
            found &= pc.is_null(rows.column(name)).to_numpy()
        return found

    def unsearchable(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Mask of quarantine's rows that no schema decodes: they cannot be attributed to a data subject for certain."""
        decodes = pc.equal(rows.column("layer"), Layer.SILVER).to_numpy()
        if "replayed_batch" in rows.column_names:
            # Marked without a table: a rejected row that bronze does not have any more.
            noted = pc.is_valid(rows.column("replayed_batch")).to_numpy()
            decodes = np.where(noted, pc.is_valid(rows.column("replayed_table")).to_numpy(), decodes)
        old = pc.fill_null(pc.less(rows.column("_batch"), self.oldest_batch), False).to_numpy()
        return np.asarray(~decodes | old, dtype=bool)


def _any_of(texts: Sequence[bytes]) -> re.Pattern[bytes] | None:
    return re.compile(b"|".join(map(re.escape, texts))) if texts else None


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def _in_either_form(pattern: re.Pattern[bytes] | None, value: bytes) -> bool:
    """Whether a pattern is in bytes, as they are or with JSON's escapes resolved, which depend on the writer."""
    if pattern is None:
        return False
    return pattern.search(value) is not None or (b"\\" in value and pattern.search(_ESCAPE.sub(_resolved, value)) is not None)


def _resolved(escape: re.Match[bytes]) -> bytes:
    """The characters of one or more JSON escapes."""
    text = escape[0]
    if text[1:2] == b"u":
        return bytes.fromhex(text.replace(b"\\u", b"").decode()).decode("utf-16-be", "replace").encode()
    return _SHORT_ESCAPES.get(text[1:], text[1:])


def by_game_and_batch(records: pa.Table) -> Counter[tuple[str, int]]:
    """(game, batch) -> number of distinct records."""
    each = records.group_by(RECORDS.names).aggregate([])
    return Counter(zip(each.column("game").to_pylist(), each.column("_batch").to_pylist(), strict=True))
