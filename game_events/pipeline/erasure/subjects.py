"""Whose rows an erasure looks for, and which rows of a table are theirs."""

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

from game_events.lakehouse.tables import BRONZE, QUARANTINE, REST_DEAD_LETTERS, is_person
from game_events.pipeline.suppression.worker import as_texts

#: Shorter ids are not looked for in bytes that nobody can decode: they would be found in other gamers' records by chance.
MIN_SEARCHED_BYTES = 4
#: What tells whose a record is that is no columns.
BYTES = ("_kafka_key", "_raw_value")
#: Records whose bytes are looked through at once: they are Python's objects then.
_ROWS_AT_ONCE = 10_000
#: What dead letters say the receiver has answered.
ANSWER = "answer"
#: JSON's escapes (RFC 8259, section 7); characters beyond U+FFFF are two of them.
_ESCAPE = re.compile(rb"(?:\\u[0-9a-fA-F]{4})+|\\.", re.DOTALL)
_SHORT_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}

#: Which record a row is: NULLs are like nothing.
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
#: Quarantine holds a record under another batch than bronze once it was replayed; silver has no topic id, but its name, and of
#: one name a batch has one id.
_IN_QUARANTINE = ["_kafka_topic_id", "_kafka_partition", "_kafka_offset"]
_IN_SILVER = ["_kafka_topic", "_kafka_partition", "_kafka_offset", "_batch"]


@dataclass(frozen=True)
class Wanted:
    """Whose rows are looked for; picklable.

    Attributes:
        person: the column that says whose a row is.
        entity: the column that names the game.
        ids: as texts.
        records: rows of bronze that are theirs (`RECORDS`): rows of other tables are found by them too.
        oldest_batch: of bronze: rows of quarantine from batches before it have no row of bronze that leads to them.
    """

    person: str
    entity: str
    ids: frozenset[str] = field(repr=False)
    records: pa.Table = field(repr=False, default_factory=RECORDS.empty_table)
    oldest_batch: int = 0

    def with_records(self, found: Iterable[pa.Table]) -> Wanted:
        """With more records, each once."""
        records = pa.concat_tables([self.records, *found]).group_by(RECORDS.names).aggregate([])
        return replace(self, records=records.select(RECORDS.names))

    @cached_property
    def traces(self) -> re.Pattern[bytes] | None:
        """An id as a whole text within bytes: behind its length as protobuf or Avro has it, or in quotes as in JSON."""
        found = []
        for text in self.ids:
            raw = text.encode(errors="surrogatepass")
            if len(raw) >= MIN_SEARCHED_BYTES:
                heads = {_varint(len(raw)), _varint(2 * len(raw))}
                found += [re.escape(head + raw) for head in sorted(heads)]
                found.append(re.escape(b'"' + raw + b'"'))
        return re.compile(b"|".join(found), re.DOTALL) if found else None

    @cached_property
    def names(self) -> re.Pattern[bytes] | None:
        """An id anywhere in a text."""
        raws = [text.encode(errors="surrogatepass") for text in self.ids]
        found = [re.escape(raw) for raw in raws if len(raw) >= MIN_SEARCHED_BYTES]
        return re.compile(b"|".join(found)) if found else None

    def columns(self, table: str, names: Sequence[str]) -> list[str]:
        """What is read of a file to find their rows."""
        wanted = {*RECORDS.names, self.entity}
        if table == QUARANTINE:
            wanted |= {"layer", "replayed_table", "replayed_batch", *BYTES}
        if table == REST_DEAD_LETTERS:
            wanted |= {"key", ANSWER}
        return [n for n in names if n in wanted or is_person(n, self.person)]

    def mask(self, table: str, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Which rows of a table are theirs."""
        found = np.zeros(rows.num_rows, dtype=bool)
        if table == QUARANTINE:
            return found | self._recorded(rows, _IN_QUARANTINE) | self.traced(rows, self.unsearchable(rows))
        for name in rows.column_names:
            if is_person(name, self.person):
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
        """Rows that are theirs by what their key and their bytes hold (`BYTES`), of those that no column tells of."""
        found = np.zeros(rows.num_rows, dtype=bool)
        places = np.flatnonzero(among)
        searched, done = rows.select(list(BYTES)).filter(pa.array(among)), 0
        keys = {text.encode() for text in self.ids}
        for part in searched.to_batches(max_chunksize=_ROWS_AT_ONCE):
            for key, value in zip(*(part.column(name).to_pylist() for name in BYTES), strict=True):
                found[places[done]] = key in keys or (value is not None and _in_either_form(self.traces, value))
                done += 1
        return found

    def quoted(self, letters: pa.Table, gone: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Of dead letters that stay, those whose answer may speak of them: it names them, or is to a call with rows of theirs.

        Args:
            letters: columns `key` and `ANSWER`.
            gone: which of them are theirs.
        """
        calls = pc.unique(letters.column("key").filter(pa.array(gone)))
        found = pc.is_in(letters.column("key"), value_set=calls).to_numpy()
        answers = letters.column(ANSWER).combine_chunks().dictionary_encode()
        naming = [_in_either_form(self.names, answer.encode()) for answer in answers.dictionary.to_pylist()]
        which = pc.fill_null(answers.indices, len(naming)).to_numpy(zero_copy_only=False)
        found = found | np.array([*naming, False])[which]
        return np.asarray(found & ~gone & pc.is_valid(letters.column(ANSWER)).to_numpy(), dtype=bool)

    def nameless(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Rows of bronze in which no column says whose they are, or of which game: their message type is not decoded."""
        found = np.ones(rows.num_rows, dtype=bool)
        for name in rows.column_names:
            if name == self.entity or is_person(name, self.person):
                found &= pc.is_null(rows.column(name)).to_numpy()
        return found

    def unsearchable(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Rows of quarantine of which nobody can say for certain whose they are: they decode under nothing."""
        decodes = pc.equal(rows.column("layer"), "silver").to_numpy()
        if "replayed_batch" in rows.column_names:
            # Noted without a table: a rejected row that bronze does not have any more, so nothing leads to it.
            noted = pc.is_valid(rows.column("replayed_batch")).to_numpy()
            decodes = np.where(noted, pc.is_valid(rows.column("replayed_table")).to_numpy(), decodes)
        old = pc.fill_null(pc.less(rows.column("_batch"), self.oldest_batch), False).to_numpy()
        return np.asarray(~decodes | old, dtype=bool)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def _in_either_form(pattern: re.Pattern[bytes] | None, value: bytes) -> bool:
    """Whether bytes hold what is looked for, as they are or with JSON's escapes resolved: each writer has its own."""
    if pattern is None:
        return False
    return pattern.search(value) is not None or (b"\\" in value and pattern.search(_ESCAPE.sub(_resolved, value)) is not None)


def _resolved(escape: re.Match[bytes]) -> bytes:
    """What an escape, or a pair of them, of JSON stands for."""
    text = escape[0]
    if text[1:2] == b"u":
        return bytes.fromhex(text.replace(b"\\u", b"").decode()).decode("utf-16-be", "replace").encode()
    return _SHORT_ESCAPES.get(text[1:], text[1:])


def by_game_and_batch(records: pa.Table) -> Counter[tuple[str, int]]:
    """(game, batch) -> rows, each record once."""
    each = records.group_by(RECORDS.names).aggregate([])
    return Counter(zip(each.column("game").to_pylist(), each.column("_batch").to_pylist(), strict=True))
