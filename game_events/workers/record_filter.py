"""Which records must not be stored: a plug-in's filter, sent to the workers that write records to bronze and quarantine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from game_events.decoding.decoder import DecodedBatch, Rejected
from game_events.decoding.frame import Rows

#: A truth value for each row.
Mask = npt.NDArray[np.bool_]


class RecordFilter(ABC):
    """The filter of one micro-batch, made by the driver; picklable. Its content is in no plan and no log."""

    @abstractmethod
    def open(self) -> OpenRecordFilter:
        """The filter of one worker's task."""


class OpenRecordFilter(ABC):
    """The filter of one worker's task."""

    @abstractmethod
    def decoded(self, rows: pa.Table) -> Mask:
        """Which decoded rows must not be stored."""

    @abstractmethod
    def undecodable(self, batch: pa.RecordBatch, topic_ids: pa.Array, rows: Rows) -> Mask:
        """Which of some rows of raw records must not be stored, as a mask of the batch.

        `batch`: columns `key`, `headers`, `partition`, `offset`; `topic_ids`: of each of its records.
        """

    def stored(
        self, batch: DecodedBatch, undecodable: Callable[[Rows], Mask], note: Callable[[Rows], None], *, with_rejected: bool
    ) -> DecodedBatch:
        """The rows of a decoded batch that may be stored; `note` gets the numbers of the others.

        `undecodable`: mask of the batch for some of its rows: undecoded ones and, `with_rejected`, rejected ones, too.
        """
        kept = DecodedBatch(rejected=[] if with_rejected else batch.rejected)
        for rows, schema_id, columns in batch.good:
            refused = self.decoded(columns)
            rest = _left(rows, refused, note)
            if len(rest):
                kept.good.append((rest, schema_id, columns.filter(pa.array(~refused)) if refused.any() else columns))
        self._keep_undecodable(batch, batch.rejected if with_rejected else [], undecodable, note, kept)
        return kept

    @staticmethod
    def _keep_undecodable(
        batch: DecodedBatch,
        rejected: Sequence[Rejected],
        undecodable: Callable[[Rows], Mask],
        note: Callable[[Rows], None],
        kept: DecodedBatch,
    ) -> None:
        unknown = [rows for rows, _ in batch.undecoded] + [item.rows for item in rejected]
        if not unknown:
            return
        mask = undecodable(np.concatenate(unknown))
        for item in rejected:
            rest = _left(item.rows, mask[item.rows], note)
            if len(rest):
                kept.rejected.append(replace(item, rows=rest))
        for rows, key in batch.undecoded:
            rest = _left(rows, mask[rows], note)
            if len(rest):
                kept.undecoded.append((rest, key))


def _left(rows: Rows, refused: Mask, note: Callable[[Rows], None]) -> Rows:
    """The rows that are not refused; `note` gets the others."""
    if refused.any():
        note(rows[refused])
    return rows[~refused]
