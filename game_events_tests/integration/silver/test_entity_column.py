"""Another entity column: nothing of it comes to silver by halves."""

import pyarrow as pa
import pytest

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.data.columns import OWN_COLUMNS
from game_events.lakehouse.data.reading import row_count
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh_downstream
from game_events.pipeline.silver.refresh import refresh_silver
from game_events_tests.support.tables import put

TIME = pa.timestamp("us", tz="UTC")


def add(pipeline, batch, games, regions):
    """A batch of bronze."""
    count = len(games)
    own = {f.name: pa.nulls(count, f.type) for f in OWN_COLUMNS} | {
        "_kafka_topic_id": ["AAAAAAAAAAAAAAAAAAAAAQ"] * count,
        "_kafka_partition": pa.array([0] * count, pa.int32()),
        "_kafka_offset": [batch * 100 + n for n in range(count)],
        "_batch": [batch] * count,
    }
    events = {"game_name": games, "region": regions, "gamer_id": ["u"] * count, "event_timestamp": pa.array([0] * count, TIME)}
    info = {"batch": str(batch), "rows": str(count), "quarantined": "0"}
    put(pipeline.bronze, own | events, {"batch": batch}, info)


def refreshed(pipeline, **options):
    report = RunReport()
    refresh_downstream(pipeline, report, **options)
    assert report.success, report.errors


def test_another_entity_column_is_refused_until_silver_is_refreshed_fully_and_then_no_older_row_is_missing(
    make_pipeline, tmp_path
):
    def pipeline(**settings):
        return make_pipeline(load_settings(lakehouse=str(tmp_path), **settings))

    by_game = pipeline()
    add(by_game, 1, ["uno", "uno", "chess"], ["eu", "us", "eu"])
    refreshed(by_game)
    # There is room for one name more: `us` has to wait.
    by_region = pipeline(entity_column="region", max_games=3)
    add(by_region, 2, ["uno", "chess"], ["eu", "us"])
    for some in ({}, {"games": frozenset({"eu"}), "full": True}):
        with pytest.raises(ConfigurationError, match=r"made by 'game_name'.* --full-refresh silver"):
            refresh_silver(by_region, RunReport(), **some)
    assert by_region.lakehouse.silver("eu").open() is None
    refreshed(by_region, full=True)
    later = pipeline(entity_column="region")
    add(later, 3, ["uno", "chess"], ["eu", "us"])
    refreshed(later)
    held = {name: row_count(later.lakehouse.silver(name).open()) for name in ("eu", "us", "uno", "chess")}
    assert held == {"eu": 4, "us": 3, "uno": 0, "chess": 0}
    assert reconcile(later, changed=["eu", "us"]).passed
    assert reconcile(later).passed
    with pytest.raises(ConfigurationError, match="made by 'region'"):
        refresh_silver(pipeline(), RunReport())
