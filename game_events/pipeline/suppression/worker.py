"""Suppression of erased data subjects, in workers: which rows of a batch belong to them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from game_events.decoding.batch_decoder import DecodedBatch
from game_events.decoding.core.wire_format import Rows
from game_events.lakehouse.system_tables.suppressed import Record, entity_hash
from game_events.lakehouse.tables import is_person
from game_events.pipeline.suppression.record_texts import has_headers, header_values, texts_of

Mask = npt.NDArray[np.bool_]
#: Size of the cache of hashed ids: most ids occur many times.
REMEMBERED = 200_000


@dataclass(frozen=True)
class Suppression:
    """Data subjects to suppress; picklable. Sent to workers inside a function, so that no plan or log shows it.

    Attributes:
        column: the column with the id of a row's data subject.
        key: the key of the hashes.
        hashes: of the erased ids.
        records: erased undecodable records with other Kafka keys and headers: topic id, partition, offset of each.
    """

    column: str
    key: bytes = field(repr=False)
    hashes: frozenset[bytes] = field(repr=False)
    records: frozenset[Record] = frozenset()


class Suppressor:
    """One worker's pass."""

    def __init__(self, suppression: Suppression) -> None:
        self._suppression = suppression
        self._known: dict[str | bytes, bool] = {}

    def decoded(self, rows: pa.Table) -> Mask:
        """Which decoded rows belong to erased data subjects."""
        found = np.zeros(rows.num_rows, dtype=bool)
        for name in rows.column_names:
            if is_person(name, self._suppression.column):
                found |= self.values(rows.column(name))
        return found

    def without_erased(
        self, found: DecodedBatch, undecodable: Callable[[Rows], Mask], note: Callable[[Rows], None], *, rejected: bool
    ) -> DecodedBatch:
        """The rows of a decoded batch without those of erased data subjects, of which `note` gets the numbers.

        `undecodable`: mask of the batch for some of its rows: undecoded ones and, with `rejected`, rejected ones.
        """
        kept = DecodedBatch(rejected=[] if rejected else found.rejected)

        def left(rows: Rows, erased: Mask) -> Rows:
            if erased.any():
                note(rows[erased])
            return rows[~erased]

        for rows, schema_id, columns in found.good:
            erased = self.decoded(columns)
            if len(rest := left(rows, erased)):
                kept.good.append((rest, schema_id, columns.filter(pa.array(~erased)) if erased.any() else columns))
        unknown = [rows for rows, _ in found.undecoded] + [item.rows for item in found.rejected if rejected]
        if not unknown:
            return kept
        mask = undecodable(np.concatenate(unknown))
        if rejected and not mask.any():
            kept.rejected = found.rejected
        elif rejected:
            parts = [replace(item, rows=left(item.rows, mask[item.rows])) for item in found.rejected]
            kept.rejected += [item for item in parts if len(item.rows)]
        kept.undecoded += [(rest, key) for rows, key in found.undecoded if len(rest := left(rows, mask[rows]))]
        return kept

    def values(self, values: pa.Array | pa.ChunkedArray) -> Mask:
        """Which of these ids are erased; each distinct value is hashed once."""
        texts = as_texts(values)
        if texts is None:
            return np.zeros(len(values), dtype=bool)
        encoded = pc.dictionary_encode(texts)
        forgotten = [self._is_forgotten(value) for value in encoded.dictionary.to_pylist()]
        if not any(forgotten):
            return np.zeros(len(values), dtype=bool)
        which = pc.fill_null(encoded.indices, len(forgotten)).to_numpy(zero_copy_only=False)
        return np.asarray(np.array([*forgotten, False])[which], dtype=bool)

    def undecodable(self, batch: pa.RecordBatch, topic_ids: pa.Array, rows: Rows) -> Mask:
        """Which of some rows of raw records belong to erased data subjects, as a mask of the batch.

        By their Kafka key and headers (`texts_of`), or by `Suppression.records`.
        """
        found = np.zeros(len(batch), dtype=bool)
        taken, topic_ids = batch.take(pa.array(rows)), topic_ids.take(pa.array(rows))
        erased = self.written(taken.column("key"), taken.column("headers"))
        noted = self._suppression.records
        if noted:
            partitions, offsets = taken.column("partition").to_numpy(), taken.column("offset").to_numpy()
            for topic_id, partition in {(topic_id, partition) for topic_id, partition, _ in noted}:
                there = pc.equal(topic_ids, topic_id).to_numpy(zero_copy_only=False) & (partitions == partition)
                theirs = [offset for topic, of, offset in noted if (topic, of) == (topic_id, partition)]
                erased |= there & np.isin(offsets, np.array(theirs, dtype=np.int64))
        found[rows] = erased
        return found

    def written(self, keys: pa.Array, headers: pa.Array) -> Mask:
        """Which records have the id of an erased data subject in their key or headers."""
        found = np.array([self.erased_texts(key) != set() for key in keys.to_pylist()], dtype=bool)
        if has_headers(headers):
            found |= [any(self.erased_texts(value, is_header=True) for value in row) for row in header_values(headers)]
        return found

    def erased_texts(self, raw: bytes | None, *, is_header: bool = False) -> set[bytes]:
        """The ids of erased data subjects that a key or header may be."""
        texts = set[bytes]() if raw is None else texts_of(raw, is_header=is_header)
        return {text for text in texts if self._is_forgotten(text)}

    def _is_forgotten(self, value: str | bytes) -> bool:
        found = self._known.get(value)
        if found is None:
            if len(self._known) > REMEMBERED:
                self._known.clear()
            raw = value.encode() if isinstance(value, str) else value
            found = entity_hash(self._suppression.key, raw) in self._suppression.hashes
            self._known[value] = found
        return found


def as_texts(values: pa.Array | pa.ChunkedArray) -> pa.Array | None:
    """Ids as texts (numbers in decimal) or bytes, in one array; None: a type that is no id."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return values
    number = pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0)
    if number or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return values.cast(pa.string())
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return values.cast(pa.binary())
    return None
