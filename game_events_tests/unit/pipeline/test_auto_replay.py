"""What an automatic replay notes about rows that still do not decode; no Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from game_events.decoding.frame import Reason
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.columns import OWN_COLUMNS, QUARANTINE_COLUMNS
from game_events.lakehouse.tables import Layer
from game_events.pipeline.reprocessing import _note_left
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put

FOUND, LEFT = 7, 8


@pytest.fixture
def pipeline(tmp_path):
    """Three rows of a schema that is known since and that do not decode with it."""
    made = without_spark(tmp_path)
    put(made.bronze, OWN_COLUMNS.empty_table(), {Txn.BATCH: 1})
    row = {"layer": str(Layer.BRONZE), "reason": str(Reason.UNKNOWN_SCHEMA), "_schema_id": LEFT}
    put(made.quarantine, pa.Table.from_pylist([row] * 3, schema=QUARANTINE_COLUMNS))
    return made


def noted(pipeline):
    handle = pipeline.quarantine.open()
    return {schema: handle.transaction_version(Txn.REPLAY_LEFT.of(schema)) for schema in (FOUND, LEFT)}


def test_only_schemas_with_rows_that_are_left_get_an_id_that_stays_in_the_log(pipeline):
    _note_left(pipeline, frozenset({FOUND, LEFT}), 3)
    assert noted(pipeline) == {FOUND: None, LEFT: 3}


def test_nothing_is_noted_if_a_rival_has_added_rows_that_were_not_tried(pipeline):
    _note_left(pipeline, frozenset({FOUND, LEFT}), 2)
    assert noted(pipeline) == {FOUND: None, LEFT: None}
