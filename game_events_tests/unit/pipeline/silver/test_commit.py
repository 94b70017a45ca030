"""Silver's commits: rows of a subject who was erased after bronze was read do not come, and no file of them stays."""

from __future__ import annotations

import pyarrow as pa
import pytest

from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.data.staging import staged
from game_events.pipeline.quality import Decisions
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver.commit import settle
from game_events.pipeline.silver.stage import GameStart, SilverInput
from game_events.workers.results import FanOutResult
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import committed_files, data_files, put

SCHEMA = pa.schema([("game_name", pa.string()), ("gamer_id", pa.string()), ("_batch", pa.int64())])


def of(gamer, batch):
    return pa.table({"game_name": ["uno"], "gamer_id": [gamer], "_batch": [batch]}, schema=SCHEMA)


@pytest.mark.parametrize("erased", [True, False])
def test_rows_read_before_a_subject_was_erased_from_silver_are_staged_again_and_their_files_deleted(tmp_path, erased):
    pipeline = without_spark(tmp_path)
    source = SilverInput.of(pipeline, put(pipeline.bronze, of("a", 2), {Txn.BATCH: 2}))
    silver, bronze = pipeline.lakehouse.silver("uno"), source.bronze
    more = {bronze.erased_app: 1, Txn.ERASURES: 1} if erased else {}
    start = GameStart(put(silver, of("b", 1), {bronze.app: 1} | more, {BATCH_INFO: "1"}), 1, 1)
    result = FanOutResult({"uno": staged(silver, of("a", 2))})
    outcome = settle(source, Decisions.read(pipeline, bronze.key), {"uno": start}, result, RunReport())
    assert (outcome.again, set(outcome.landed)) == (({"uno"}, set()) if erased else (set(), {"uno"}))
    assert (len(committed_files(silver)), data_files(silver)) == (1 if erased else 2, committed_files(silver))
