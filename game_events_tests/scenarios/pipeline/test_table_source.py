"""Another pipeline's bronze as the source: each of its rows once, and nothing of it replaced in silence."""

from __future__ import annotations

import pytest

from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.tables import BRONZE
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.checks.table_checks import offsets_continuous, offsets_unique
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.pending import backlog
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events_tests.support.reconciliation import coordinates, gold
from game_events_tests.support.worlds.quality import Event, send_events
from game_events_tests.support.worlds.topics import put
from game_events_tests.support.worlds.waves import assert_gold_follows_silver

WAVE = [Event("uno", 1), Event("chess", 2), Event("uno", 3, gamer="bob")]


@pytest.fixture
def theirs(make_settings):
    """Settings of the pipeline that reads Kafka."""
    return make_settings(max_records_per_batch=2, allow_bronze_full_refresh=True)


@pytest.fixture
def ours(theirs, make_settings, tmp_path):
    """Settings of the one that reads its bronze: it has no broker."""
    return make_settings(
        source_table=f"{theirs.lakehouse}/{BRONZE}",
        lakehouse=str(tmp_path / "ours"),
        kafka_bootstrap_servers="127.0.0.1:1",
        max_records_per_batch=3,
    )


def test_rows_of_another_pipeline_come_once_however_often_and_in_whatever_slices(theirs, ours, make_pipeline):
    send_events(theirs, WAVE * 2)
    put(theirs, [b"no frame"])
    load_bronze(make_pipeline(theirs), RunReport())
    assert sum(backlog(make_pipeline(ours)).records.values()) == 4
    report = refresh(make_pipeline(ours))
    assert report.success
    assert len(report.batches) > 1, "slices are bounded"
    assert (report.rows("bronze"), report.rows("silver"), sum(report.lag.values())) == (6, 6, 0)
    assert coordinates(ours, BRONZE) == coordinates(theirs, BRONZE)
    assert_gold_follows_silver(ours, "uno", "chess")
    assert refresh(make_pipeline(ours)).tables == []
    # Rows that came, and files that were joined.
    put(theirs, WAVE)
    load_bronze(make_pipeline(theirs), RunReport())
    maintain(make_pipeline(theirs), RunReport())
    assert refresh(make_pipeline(ours)).rows("bronze") == 3
    assert coordinates(ours, BRONZE) == coordinates(theirs, BRONZE)
    for check in (offsets_continuous(make_pipeline(ours)), offsets_unique(make_pipeline(ours))):
        assert check.passed, check.summary

    # Its rows are replaced: ours are not added to, until they are, too.
    refresh(make_pipeline(theirs), selection=selection_of(make_pipeline(theirs), select=("bronze",), full_refresh=("bronze",)))
    with pytest.raises(DataError, match=r"has other rows than those .* refreshed fully.*--full-refresh bronze"):
        refresh(make_pipeline(ours))
    allowed = ours.model_copy(update={"allow_bronze_full_refresh": True})
    report = refresh(make_pipeline(allowed), selection=selection_of(make_pipeline(allowed), full_refresh=("bronze", "all")))
    assert (report.success, report.expired) == (True, 0)
    assert coordinates(ours, BRONZE) == coordinates(theirs, BRONZE)
    assert gold(ours, "chess")["ann"][0] == 3
    assert_gold_follows_silver(ours, "uno", "chess")
    assert refresh(make_pipeline(ours)).tables == []
    # One bronze has one source.
    with pytest.raises(ConfigurationError, match="one bronze has one source"):
        load_bronze(make_pipeline(theirs.model_copy(update={"lakehouse": ours.lakehouse})), RunReport())
