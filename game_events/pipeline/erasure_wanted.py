"""Whose rows an erasure looks for, and which rows of a table are theirs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from game_events.lakehouse.tables import BRONZE, QUARANTINE, is_person
from game_events.pipeline.suppressor import as_texts

#: Shorter ids are not looked for in bytes that nobody can decode: they would be found in other gamers' records by chance.
MIN_SEARCHED_BYTES = 4
#: What tells whose a record is that is no columns.
BYTES = ("_kafka_key", "_raw_value")
#: Records whose bytes are looked through at once: they are Python's objects then.
_ROWS_AT_ONCE = 10_000
#: A length in one byte, as protobuf has it.
_SHORT = 128

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
            raw = text.encode()
            if MIN_SEARCHED_BYTES <= len(raw) < _SHORT // 2:
                heads = {bytes([len(raw)]), bytes([2 * len(raw)])}
                found += [re.escape(head + raw) for head in sorted(heads)]
            if len(raw) >= MIN_SEARCHED_BYTES:
                found.append(re.escape(json.dumps(text).encode()))
        return re.compile(b"|".join(found), re.DOTALL) if found else None

    def columns(self, table: str, names: Sequence[str]) -> list[str]:
        """What is read of a file to find their rows."""
        wanted = {*RECORDS.names, self.entity}
        if table == QUARANTINE:
            wanted |= {"layer", "replayed_batch", *BYTES}
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
                in_value = value is not None and self.traces is not None and bool(self.traces.search(value))
                found[places[done]] = key in keys or in_value
                done += 1
        return found

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
            decodes |= pc.is_valid(rows.column("replayed_batch")).to_numpy()
        old = pc.fill_null(pc.less(rows.column("_batch"), self.oldest_batch), False).to_numpy()
        return np.asarray(~decodes | old, dtype=bool)


def by_game_and_batch(records: pa.Table) -> Counter[tuple[str, int]]:
    """(game, batch) -> rows, each record once."""
    each = records.group_by(RECORDS.names).aggregate([])
    return Counter(zip(each.column("game").to_pylist(), each.column("_batch").to_pylist(), strict=True))
