"""Bronze that is restored by hand after the step that has loaded it: silver's step checks again, as steps may wait between."""

import pytest

from game_events.config.settings import load_settings
from game_events.errors import DataError
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn
from game_events.lakehouse.tables import Layer
from game_events.pipeline.fanout import OnePass
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import TriggeredRun, cycle
from game_events.pipeline.silver.refresh import refresh_silver
from game_events_tests.support.faults import at_opening
from game_events_tests.support.model.bronze import Reader, Topic, pipeline_of
from game_events_tests.support.tables import put


@pytest.fixture
def pipeline(tmp_path):
    """Its topic has no more records."""
    made = pipeline_of(load_settings(lakehouse=str(tmp_path)), Reader(Topic(), ()))
    for batch, rows in ((1, 1), (2, 5)):
        columns = {"game_name": ["uno"] * rows, "gamer_id": ["a"] * rows, "_batch": [batch] * rows}
        put(made.bronze, columns, {Txn.BATCH: batch}, {"batch": str(batch)})
    return made


def floor(pipeline):
    return pipeline.progress.read(str(pipeline.bronze.open().metadata().id)).floor(Layer.SILVER)


def test_the_step_of_silver_refuses_a_bronze_that_was_restored_after_the_step_of_bronze(pipeline):
    run = TriggeredRun(pipeline, RunReport())
    run.bronze()
    pipeline.bronze.open().restore(0)
    with pytest.raises(DataError, match="bronze_events was restored"):
        run.silver()
    assert floor(pipeline) == 0


def test_continuous_mode_refuses_it_too(pipeline):
    def restored_once_loaded():
        pipeline.bronze.open().restore(0)
        return True

    with pytest.raises(DataError, match="bronze_events was restored"):
        cycle(
            pipeline, RunReport(), until=pipeline.source.snapshot(), gold=False, go_on=restored_once_loaded, one_pass=OnePass()
        )
    assert floor(pipeline) == 0


def test_a_bronze_that_is_restored_between_two_attempts_of_silver_is_refused(pipeline):
    silver, opened = pipeline.lakehouse.silver("uno"), []
    # A run that has read a newer bronze was faster: this one tries again.
    put(silver, {"game_name": ["uno"], "_batch": [3]}, {BronzeIdentity.of(pipeline.bronze.open()).app: 3})

    def during_the_first(usual, table):
        if table.key == silver.key:
            opened.append(table)
            if len(opened) == 1:
                pipeline.bronze.open().restore(0)
        return usual(table)

    with at_opening(during_the_first), pytest.raises(DataError, match="bronze_events was restored"):
        refresh_silver(pipeline, RunReport(), frozenset({"uno"}), full=True)
    assert len(opened) == 1
    assert floor(pipeline) == 0
