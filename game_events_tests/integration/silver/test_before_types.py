"""Rows from before tables said of which message type they are: what names types says so, and what to do."""

import pyarrow as pa
import pytest

from game_events.config.settings import load_settings
from game_events.errors import ExtensionError
from game_events.extending import DECLARATION, silver_transformation
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.pipeline.silver.transformations import transformed
from game_events_tests.support.tables import put
from game_events_tests.support.worlds.own_module import HEAD
from game_events_tests.support.worlds.quality import rule

ADVICE = "from before tables had _message_type: run `game-events redecode`"

AGGREGATES = """
@gold_aggregate("paid", keys=["gamer_id"], types=["Paid"])
def paid():
    return {"events": count()}

@gold_aggregate("paying", keys=["gamer_id"], mode="recompute", types=["Paid"])
def paying(silver):
    return silver.groupBy("_game", "gamer_id").count()
"""


@pytest.fixture
def old(make_pipeline, tmp_path):
    """A pipeline whose bronze is from before it had `_message_type`."""

    def pipeline(**settings):
        made = make_pipeline(load_settings(lakehouse=str(tmp_path / "lakehouse"), **settings))
        if made.bronze.open() is None:
            time = pa.array([0], pa.timestamp("us", "UTC"))
            rows = {"game_name": ["uno"], "gamer_id": ["ann"], "event_timestamp": time, "_kafka_timestamp": time, "_batch": [1]}
            put(made.bronze, rows, {"batch": 1}, {"batch": "1", "rows": "1"})
        return made

    return pipeline


def errors(refresh, pipeline, **options):
    report = RunReport()
    refresh(pipeline, report, **options)
    return [table.error for table in report.errors]


def test_aggregates_of_types(old, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(HEAD + AGGREGATES)
    assert errors(refresh_silver, old()) == []
    pipeline = old(extensions=(str(own),))
    for aggregate in pipeline.extensions.aggregates:
        (error,) = errors(refresh_gold, pipeline, aggregate=aggregate)
        assert f"{aggregate}: message types" in error
        assert ADVICE in error


def test_rules_of_types(old):
    (error,) = errors(refresh_silver, old(rules=[rule("known", "level > 0", types=["Paid"])]))
    assert "rule silver.known" in error
    assert ADVICE in error


def test_transformations_of_types(spark):
    declared = getattr(silver_transformation(types=["Paid"])(lambda rows: rows), DECLARATION)
    rows = spark.createDataFrame([("uno", 1)], "game string, n bigint")
    with pytest.raises(ExtensionError, match=ADVICE):
        transformed(rows, pa.schema([("game", pa.string()), ("n", pa.int64())]), "game", [declared])
