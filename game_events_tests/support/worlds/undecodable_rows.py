"""Rows of quarantine that a forgotten gamer may be in."""

import pyarrow as pa

WHOM = "gamer-to-forget"


def quarantined(values, **more):
    columns = {
        "_kafka_topic_id": ["t"] * len(values),
        "_kafka_partition": pa.array([0] * len(values), pa.int32()),
        "_kafka_offset": pa.array(range(len(values)), pa.int64()),
        "_batch": pa.array([1] * len(values), pa.int64()),
        "_kafka_key": pa.array([None] * len(values), pa.binary()),
        "_raw_value": pa.array(values, pa.binary()),
        "layer": ["bronze"] * len(values),
        "replayed_table": pa.array([None] * len(values), pa.string()),
        "replayed_batch": pa.array([None] * len(values), pa.int64()),
    }
    return pa.table(columns | more)
