"""Arrow arrays as Spark's JVM sends them: a list that has no element anywhere comes without a single offset."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_TEXTS = pa.list_(pa.string())
_MAP = pa.map_(pa.string(), pa.int64())
#: Lists whose elements hold lists or maps, at any depth.
NESTED = [
    pa.list_(_TEXTS),
    pa.list_(_MAP),
    pa.list_(pa.struct([("name", pa.string()), ("tags", _TEXTS)])),
    pa.list_(pa.struct([("inner", pa.struct([("of", pa.list_(pa.struct([("deep", _MAP)])))]))])),
    pa.map_(pa.string(), _TEXTS),
    pa.map_(pa.string(), pa.struct([("tags", _TEXTS)])),
]


def as_the_jvm_sends_it(kind: pa.DataType, rows: int) -> pa.Array:
    """Rows of empty lists or maps; what is inside has no offsets buffer to read from."""
    offsets = pa.py_buffer(np.zeros(rows + 1, dtype=np.int32).tobytes())
    return pa.Array.from_buffers(kind, rows, [None, offsets], children=[_nothing(_inner(kind))])


def _nothing(kind: pa.DataType) -> pa.Array:
    if pa.types.is_struct(kind):
        return pa.Array.from_buffers(kind, 0, [None], children=[_nothing(f.type) for f in kind])
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        # Zero bytes at an address that nobody may read.
        nowhere = pa.foreign_buffer(1 << 40, 0)
        return pa.Array.from_buffers(kind, 0, [None, nowhere], children=[_nothing(_inner(kind))])
    return pa.array([], kind)


def _inner(kind: pa.DataType) -> pa.DataType:
    return pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type
