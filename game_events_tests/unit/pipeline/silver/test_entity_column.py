"""Tables that two entity columns have made: no run adds to them before a full refresh has replaced all of them."""

from collections import Counter

import pyarrow as pa
import pytest

from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.transactions import BronzeIdentity
from game_events.lakehouse.system_tables import Mark
from game_events.lakehouse.tables import Layer
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver import refresh
from game_events.pipeline.silver.stage import SilverInput
from game_events.workers.results import FanOutResult
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put

SCHEMA = pa.schema([("game_name", pa.string()), ("region", pa.string()), ("_batch", pa.int64())])


def row(number):
    return pa.table({"game_name": ["uno"], "region": ["eu"], "_batch": [number]}, schema=SCHEMA)


@pytest.fixture
def by(tmp_path, monkeypatch):
    """Pipelines over tables that `game_name` has made, by their entity column."""
    made = {name: without_spark(tmp_path / "lake", entity_column=name) for name in ("game_name", "region")}
    bronze = BronzeIdentity.of(put(made["region"].bronze, row(1), {"batch": 1}))
    put(made["region"].lakehouse.silver("uno"), row(1), {f"bronze:{bronze.table_id}": 1})
    made["region"].progress.update(
        bronze.key, lambda now: now.done(Layer.SILVER, 1, {"uno": 1}).marked(Layer.SILVER, Mark("game_name")).done("silver", 1)
    )
    monkeypatch.setattr(refresh, "new_games", lambda *_, **__: [])
    return made


def staged(monkeypatch, stage):
    monkeypatch.setattr(refresh, "stage_games", stage)


def refused(*pipelines):
    for pipeline in pipelines:
        with pytest.raises(ConfigurationError, match="made by 'game_name' and 'region'"):
            refresh.refresh_silver(pipeline, RunReport())


def refreshed(pipeline, **options):
    report = RunReport()
    refresh.refresh_silver(pipeline, report, **options)
    return [table.game for table in report.errors]


def test_after_a_full_refresh_that_failed_for_a_table_only_another_one_adds_rows(by, monkeypatch):
    staged(monkeypatch, lambda *_: FanOutResult(failed={"uno": "disk full"}))
    assert refreshed(by["region"], full=True) == ["uno"]
    refused(*by.values())
    staged(monkeypatch, lambda *_: FanOutResult())
    assert refreshed(by["region"], full=True) == []
    assert refreshed(by["region"]) == []
    with pytest.raises(ConfigurationError, match="made by 'region'"):
        refresh.refresh_silver(by["game_name"], RunReport())


def test_after_a_full_refresh_that_was_killed_the_column_cannot_be_set_back(by, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    staged(monkeypatch, killed)
    with pytest.raises(KeyboardInterrupt):
        refresh.refresh_silver(by["region"], RunReport(), full=True)
    refused(*by.values())


def test_a_run_with_the_column_of_before_that_ends_after_a_full_refresh_is_noticed(by, monkeypatch):
    def stage(*_):
        staged(monkeypatch, lambda *_: FanOutResult())
        assert refreshed(by["region"], full=True) == []
        return FanOutResult()

    put(by["region"].bronze, row(2), {"batch": 2})
    staged(monkeypatch, stage)
    assert refreshed(by["game_name"]) == []
    refused(*by.values())


def test_a_run_with_the_column_of_before_that_reads_a_later_batch_than_a_full_refresh_is_noticed(by, monkeypatch):
    pipeline = by["region"]

    def stage(*_):
        key = BronzeIdentity.of(put(pipeline.bronze, row(2), {"batch": 2})).key
        pipeline.progress.update(key, lambda now: now.done(Layer.SILVER, 2))
        return FanOutResult()

    staged(monkeypatch, stage)
    assert refreshed(pipeline, full=True) == []
    refused(*by.values())


@pytest.mark.parametrize("refused_rows", [{"invalid": 3}, {"not_allowed": 3}, {}])
def test_a_run_of_which_most_rows_have_no_games_name_says_so_first(refused_rows, tmp_path, monkeypatch):
    pipeline = without_spark(tmp_path)
    put(pipeline.bronze, row(1), {"batch": 1})
    staged(monkeypatch, lambda *_: FanOutResult(refused={why: Counter({"": rows}) for why, rows in refused_rows.items()}))
    report = RunReport()
    refresh.refresh_silver(pipeline, report)
    loud = [notice for notice in report.notices if notice.startswith("MOST ROWS ARE IN NO TABLE OF SILVER: their game_name")]
    assert bool(loud) == ("invalid" in refused_rows)


def test_a_wrong_column_is_answered_by_the_setting_and_the_columns_most_like_it(tmp_path):
    pipeline = without_spark(tmp_path, entity_column="games_nam")
    columns = {"game_name": ["uno"], "_batch": [1]} | {f"column_{n}": [n] for n in range(200)}
    handle = put(pipeline.bronze, columns, {"batch": 1})
    with pytest.raises(ConfigurationError) as raised:
        SilverInput.of(pipeline, handle)
    assert str(raised.value).startswith("set GAME_EVENTS_ENTITY_COLUMN")
    assert "no column 'games_nam'. It has game_name, " in str(raised.value)
    assert len(str(raised.value)) < 500
