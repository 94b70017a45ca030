"""Which records must not be stored: a plug-in's filter, sent to the workers that write records to bronze and quarantine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from game_events.decoding.decoder import DecodedBatch
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

        def left(rows: Rows, refused: Mask) -> Rows:
            if refused.any():
                note(rows[refused])
            return rows[~refused]

        for rows, schema_id, columns in batch.good:
            refused = self.decoded(columns)
            rest = left(rows, refused)
            if len(rest):
                kept.good.append((rest, schema_id, columns.filter(pa.array(~refused)) if refused.any() else columns))
        unknown = [rows for rows, _ in batch.undecoded]
        if with_rejected:
            unknown += [item.rows for item in batch.rejected]
        if not unknown:
            return kept
        mask = undecodable(np.concatenate(unknown))
        if with_rejected and not mask.any():
            kept.rejected = batch.rejected
        elif with_rejected:
            parts = [replace(item, rows=left(item.rows, mask[item.rows])) for item in batch.rejected]
            kept.rejected += [item for item in parts if len(item.rows)]
        for rows, key in batch.undecoded:
            rest = left(rows, mask[rows])
            if len(rest):
                kept.undecoded.append((rest, key))
        return kept
