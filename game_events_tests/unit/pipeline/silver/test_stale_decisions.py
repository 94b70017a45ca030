"""A run that has read a bronze which was replaced since decides nothing about its rows."""

import pytest

from game_events.lakehouse.data.columns import OWN_COLUMNS, QUARANTINE_COLUMNS
from game_events.pipeline.quality import Decisions, RejectionDecision, decide
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver.commit import settle
from game_events.pipeline.silver.stage import GameStart, SilverInput
from game_events.rules import Rule
from game_events.workers.results import FanOutResult
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put


def advance(table, schema, **txn):
    put(table, schema.empty_table(), {k.replace("__", ":"): v for k, v in txn.items()})


@pytest.fixture
def pipeline(tmp_path):
    made = without_spark(tmp_path / "lake")
    advance(made.bronze, OWN_COLUMNS, batch=1)
    advance(made.quarantine, QUARANTINE_COLUMNS, other=1)
    return made


def test_a_decision_planned_before_a_full_refresh_of_bronze_came_to_quarantine_does_not_land(pipeline):
    bronze = SilverInput.of(pipeline, pipeline.bronze.open()).bronze
    planned = Decisions.read(pipeline, bronze.key)
    advance(pipeline.quarantine, QUARANTINE_COLUMNS, **{f"full_refresh__{bronze.table_id}": 7})
    assert decide(pipeline, planned, {"uno": RejectionDecision(1)}) == (None, {"uno"})


def test_a_run_that_has_read_the_bronze_before_decides_nothing(pipeline):
    source = SilverInput.of(pipeline, pipeline.bronze.open())
    rules = type("Rules", (), {"rules": (Rule(name="r", sql="true", action="quarantine"),), "has": lambda *_: True})()
    source.__dict__["rules"] = rules  # validated already: that is Spark's part
    advance(pipeline.bronze, OWN_COLUMNS, batch=2, incarnation=2)
    before = pipeline.quarantine.open().version()
    decisions = Decisions.read(pipeline, source.bronze.key)
    outcome = settle(source, decisions, {"uno": GameStart(None, None, 0)}, FanOutResult(), RunReport())
    assert outcome.again == {"uno"}
    assert pipeline.quarantine.open().version() == before
    assert pipeline.lakehouse.silver("uno").open() is None
