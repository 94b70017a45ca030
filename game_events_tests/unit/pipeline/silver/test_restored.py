"""Bronze that is restored by hand after the step that has loaded it: silver's step checks again, as steps may wait between."""

import pytest

from game_events.errors import DataError
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.layers import Layer
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs import refresh as steps
from game_events.pipeline.runs.refresh import TriggeredRun, cycle
from game_events.pipeline.silver import refresh as silver
from game_events.pipeline.silver.passes import PassResult
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put


@pytest.fixture
def pipeline(tmp_path):
    made = without_spark(tmp_path)
    for batch, rows in ((1, 1), (2, 5)):
        columns = {"game_name": ["uno"] * rows, "gamer_id": ["a"] * rows, "_batch": [batch] * rows}
        put(made.bronze, columns, {Txn.BATCH: batch}, {"batch": str(batch)})
    return made


@pytest.fixture
def restored_once_loaded(pipeline, monkeypatch):
    monkeypatch.setattr(steps, "load_bronze", lambda *_args, **_options: pipeline.bronze.open().restore(0))
    monkeypatch.setattr(steps, "replay_what_became_known", lambda *_: None)


def floor(pipeline):
    return pipeline.progress.read(str(pipeline.bronze.open().metadata().id)).floor(Layer.SILVER)


@pytest.mark.usefixtures("restored_once_loaded")
def test_the_step_of_silver_refuses_a_bronze_that_was_restored_after_the_step_of_bronze(pipeline):
    run = TriggeredRun(pipeline, RunReport())
    run.bronze()
    with pytest.raises(DataError, match="bronze_events was restored"):
        run.silver()
    assert floor(pipeline) == 0


@pytest.mark.usefixtures("restored_once_loaded")
def test_continuous_mode_refuses_it_too(pipeline):
    with pytest.raises(DataError, match="bronze_events was restored"):
        cycle(pipeline, RunReport(), until=None, gold=False, go_on=lambda: True)
    assert floor(pipeline) == 0


def test_a_bronze_that_is_restored_between_two_attempts_of_silver_is_refused(pipeline, monkeypatch):
    def lost_to_another_run(*_):
        pipeline.bronze.open().restore(0)
        return PassResult(retry=frozenset({"uno"}))

    monkeypatch.setattr(silver, "run_pass", lost_to_another_run)
    with pytest.raises(DataError, match="bronze_events was restored"):
        TriggeredRun(pipeline, RunReport()).silver()
    assert floor(pipeline) == 0
