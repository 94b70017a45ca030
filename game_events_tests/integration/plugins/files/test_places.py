"""Where files come from: an object store, and a loop that sees new ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from game_events.config.settings import Settings
from game_events.lakehouse.storage import spark_options
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.loop import Loop
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.integration.plugins.files.test_pipeline import failed_checks, numbers
from game_events_tests.support.fixtures.files import MakeFiles
from game_events_tests.support.servers.object_store import BUCKET, ObjectStore
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.file_samples import avro, parquet, protobuf, put


@pytest.fixture
def bucket(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """The store's address is in the environment of delta-rs, as for a lakehouse there."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield store


def test_files_below_a_prefix_of_an_object_store_are_read_once(
    bucket: ObjectStore, file_settings: Settings, make_files: MakeFiles, spark: SparkSession
) -> None:
    files = bucket.files()

    def upload(name: str, body: bytes) -> None:
        with files.open_output_stream(f"{BUCKET}/landing/{name}") as sink:
            sink.write(body)

    other = {"files_path": f"s3://{BUCKET}/landing", "files_settle_s": 0, "storage_endpoint": bucket.endpoint}
    upload("a.pb", protobuf(range(5)))
    upload("below/b.avro", avro(range(5, 10)))
    upload("c.parquet", parquet(range(10, 15)))
    upload("no.avro", b"none")
    upload("half.parquet", parquet(range(3))[:-9])
    with files.open_output_stream(f"{BUCKET}/other/d.pb") as sink:
        sink.write(protobuf(range(100, 101)))
    for key, value in spark_options(file_settings.model_copy(update=other)).items():
        spark.conf.set(key.removeprefix("spark.hadoop."), value)
    report = refresh(make_files(**other))
    assert report.success, report.errors
    assert numbers(file_settings) == list(range(15))
    assert (report.files["taken"], report.files["waiting"]) == (4, 1)
    assert dict(report.rejected) == {"UNREADABLE_FILE": 1}
    upload("e.pb", protobuf(range(15, 16)))
    assert refresh(make_files(**other)).files["taken"] == 1
    assert numbers(file_settings) == list(range(16))
    assert failed_checks(make_files(**other)) == []


def test_a_loop_reads_new_files_as_they_come_and_is_idle_without_a_commit(
    landing: Path, file_settings: Settings, make_files: MakeFiles
) -> None:
    pipeline: Pipeline = make_files(poll_interval_s=0.1, gold_interval_s=0)
    put(landing, "a.avro", avro(range(5)))
    loop = Loop(pipeline)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        until(lambda: loop.report.total.rows("unified"), what="the first file in the unified table")
        put(landing, "b.avro", avro(range(5, 9)))
        until(lambda: loop.report.total.rows("silver") == 9, what="the second file in silver")
        until(lambda: loop.report.state == "idle", what="an idle loop")
        log = sorted((Path(file_settings.lakehouse) / "source_files" / "_delta_log").iterdir())
        looks = loop.report.looks
        until(lambda: loop.report.looks >= looks + 5, what="looks of an idle loop")
        assert sorted((Path(file_settings.lakehouse) / "source_files" / "_delta_log").iterdir()) == log
    finally:
        loop.stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert loop.report.total.files["taken"] == 2
    assert numbers(file_settings) == list(range(9))
