"""One Arrow batch of framed values -> decoded columns and rejected rows, by each row's own schema.

Runs in Spark's workers. The plan comes from the driver, which alone talks to the registry: a pair of schema id and message
index that the plan does not know is reported, not guessed, and the driver plans again with it before anything is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from game_events.decoding import frames
from game_events.decoding.columns import ColumnMap
from game_events.decoding.descriptors import CompiledSchema
from game_events.decoding.frames import IndexPath, Rows
from game_events.decoding.protobuf import MessageDecoder
from game_events.decoding.reasons import Reason

#: Which message type a record is of: schema id and message index path.
TypeKey = tuple[int, IndexPath]


@dataclass(frozen=True)
class DecodePlan:
    """Everything a worker needs to decode; picklable.

    Attributes:
        schemas: schema id -> compiled descriptors.
        types: the pairs that can be decoded; each one's fields are in `columns`.
        rejected: pairs, or whole ids (path ``()``), that cannot be decoded, with reason and detail.
        columns: where fields land.
    """

    schemas: Mapping[int, CompiledSchema] = field(default_factory=dict)
    types: frozenset[TypeKey] = frozenset()
    rejected: Mapping[TypeKey, tuple[Reason, str]] = field(default_factory=dict)
    columns: ColumnMap = field(default_factory=ColumnMap)


@dataclass(frozen=True)
class Rejected:
    """Rows of a batch that are no columns, for one reason."""

    reason: Reason
    detail: str
    rows: Rows
    schema_id: int | None


@dataclass
class DecodedBatch:
    """One batch, decoded.

    Attributes:
        good: (positions in the batch, schema id, decoded columns) for each group of rows of one type.
        rejected: the rows that could not be decoded.
        types: pairs that occurred and were decoded.
        unknown: pairs that occurred and the plan does not know; their rows are in neither list.
    """

    good: list[tuple[Rows, int, pa.Table]] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    types: set[TypeKey] = field(default_factory=set)
    unknown: set[TypeKey] = field(default_factory=set)


class BatchDecoder:
    """Decodes batch after batch with one plan; builds each message type's native decoder once."""

    def __init__(self, plan: DecodePlan) -> None:
        self._plan = plan
        self._decoders: dict[TypeKey, MessageDecoder] = {}

    def decode(self, values: pa.BinaryArray) -> DecodedBatch:
        """Decode the values of a batch; every row ends in `good`, `rejected` or, by its type, in `unknown`."""
        result = DecodedBatch()
        groups, bad_frames = frames.split(values)
        result.rejected += [Rejected(b.reason, b.reason.explanation, b.rows, b.schema_id) for b in bad_frames]
        for group in groups:
            key = (group.schema_id, group.path)
            refusal = self._plan.rejected.get(key) or self._plan.rejected.get((group.schema_id, ()))
            if refusal is not None:
                result.rejected.append(Rejected(*refusal, group.rows, group.schema_id))
            elif key not in self._plan.types:
                result.unknown.add(key)
            else:
                result.types.add(key)
                self._decode_group(values, group, result)
        result.rejected = _merged(result.rejected)
        return result

    def _decode_group(self, values: pa.BinaryArray, group: frames.FrameGroup, result: DecodedBatch) -> None:
        key = (group.schema_id, group.path)
        decoder = self._decoders.get(key)
        if decoder is None:
            decoder = self._decoders[key] = MessageDecoder(self._plan.schemas[group.schema_id], group.path)
        table, good, bad = decoder.decode(frames.payloads(values, group), self._plan.columns)
        if len(good):
            result.good.append((group.rows[good], group.schema_id, table))
        result.rejected += [Rejected(r, detail, group.rows[at], group.schema_id) for r, detail, at in bad]


def _merged(rejected: list[Rejected]) -> list[Rejected]:
    """One entry for all rows with the same reason, detail and schema id: a flood of bad rows comes row by row."""
    alike: dict[tuple[Reason, str, int | None], list[Rows]] = {}
    for item in rejected:
        alike.setdefault((item.reason, item.detail, item.schema_id), []).append(item.rows)
    return [Rejected(why, detail, np.sort(np.concatenate(rows)), i) for (why, detail, i), rows in alike.items()]
