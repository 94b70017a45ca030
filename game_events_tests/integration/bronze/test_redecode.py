"""Bronze's columns are rebuilt from its raw values: atomically, without Kafka, and no row is lost."""

import time

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import RemoveAction
from pyspark.sql import functions as F

from game_events.errors import ConflictError
from game_events.lakehouse.tables import BRONZE, paths
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import NO_RAW_VALUE, redecode
from game_events.pipeline.runs.refresh import refresh, refresh_downstream
from game_events_tests.support.reconciliation import assert_books_balance, coordinates, count, rows
from game_events_tests.support.worlds.waves import at_point, power_cut_at, send, versions


def everything(settings):
    return sorted(rows(settings, BRONZE, "SELECT * FROM t"), key=repr)


def spoil(pipeline, change=lambda frame: frame.drop("device_id", "col_custom_0")):
    """Bronze as another decoder would have left it: one that did not know two columns, or what a test says."""
    table = pipeline.bronze.open()
    files = change(pipeline.spark.read.parquet(*table.file_uris())).toArrow()
    write_deltalake(table.table_uri, files, mode="append", schema_mode="merge")
    spoiled = DeltaTable(table.table_uri)
    new = set(spoiled.file_uris()) - set(table.file_uris())
    old = [p for p in paths(spoiled) if not any(uri.endswith(p) for uri in new)]
    removed = [RemoveAction(path, True, int(time.time() * 1000), None, {}) for path in old]
    spoiled.create_write_transaction(removed, "append", spoiled.schema())


def test_lost_columns_come_back_from_the_raw_values_and_rows_batches_and_progress_stay(settings, make_settings, make_pipeline):
    sent = send(settings, version=2)
    refresh(make_pipeline(settings))
    sent = sent.merge(send(settings, version=3))
    pipeline = make_pipeline(settings)
    refresh(pipeline)
    before = everything(settings)
    spoil(pipeline)
    assert everything(settings) != before

    without_broker = make_settings(kafka_bootstrap_servers="127.0.0.1:9")
    done = redecode(make_pipeline(without_broker), RunReport())
    assert (done.rows, dict(done.kept)) == (sent.decodable, {})
    assert everything(settings) == before

    after = versions(settings)
    assert refresh(make_pipeline(settings)).tables == []
    assert versions(settings) == after
    refresh_downstream(make_pipeline(settings), RunReport(), full=True)
    assert_books_balance(settings, sent)


@pytest.mark.scenario
def test_games_and_aggregates_that_were_wrong_are_right_afterwards(settings, make_pipeline):
    sent = send(settings, version=2)
    load_bronze(make_pipeline(settings), RunReport())
    later = F.col("event_timestamp") + F.expr("INTERVAL 1 DAY")
    no_uno = F.when(F.col("game_name") != "uno", F.col("game_name"))
    spoil(make_pipeline(settings), lambda f: f.withColumns({"game_name": no_uno, "event_timestamp": later}))
    refresh(make_pipeline(settings))
    assert count(settings, "silver_uno_events") == 0
    redecode(make_pipeline(settings), RunReport())
    refresh_downstream(make_pipeline(settings), RunReport(), full=True)
    assert_books_balance(settings, sent)
    after = versions(settings)
    assert refresh(make_pipeline(settings)).tables == []
    assert versions(settings) == after


@pytest.mark.scenario
def test_rows_without_a_raw_value_keep_their_columns(make_settings, make_pipeline):
    settings = make_settings(keep_raw="failures")
    sent = send(settings, version=2)
    refresh(make_pipeline(settings))
    before = everything(settings)
    done = redecode(make_pipeline(settings), RunReport())
    assert done.kept == {NO_RAW_VALUE: sent.decodable}
    assert everything(settings) == before


def test_a_run_that_commits_meanwhile_wins_and_the_redecode_says_so(settings, make_pipeline, monkeypatch):
    sent = send(settings)
    refresh(make_pipeline(settings))
    more = []

    def commit_more():
        more.append(send(settings, version=2))
        refresh(make_pipeline(settings))

    at_point(monkeypatch, "redecode_staged", commit_more)
    with pytest.raises(ConflictError, match=r"Nothing was changed: run `game-events redecode` again"):
        redecode(make_pipeline(settings), RunReport())
    assert_books_balance(settings, sent.merge(more[0]))
    assert len(coordinates(settings, BRONZE)) == sent.decodable + more[0].decodable


def test_an_empty_lakehouse_has_nothing_to_redecode(settings, make_pipeline):
    assert redecode(make_pipeline(settings), RunReport()).rows == 0


@pytest.mark.scenario
def test_gold_follows_a_silver_that_was_replaced_after_a_crash_too(settings, make_pipeline):
    sent = send(settings, version=2)
    refresh(make_pipeline(settings))
    with power_cut_at("silver_committed"):
        refresh_downstream(make_pipeline(settings), RunReport(), full=True)
    report = refresh(make_pipeline(settings))
    assert {t.layer for t in report.tables} == {"gold", "unified"}
    assert_books_balance(settings, sent)
    assert refresh(make_pipeline(settings)).tables == []
