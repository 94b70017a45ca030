"""A pipeline whose source is a folder, without broker and registry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from game_events.config.settings import Settings, load_settings
from game_events.pipeline.context import Pipeline
from game_events_tests.files.samples import JSON, PROTO

MakeFiles = Callable[..., Pipeline]


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    """The folder that files come to; the schemas beside it are those of its protobuf files and JSON lines."""
    (tmp_path / "event.proto").write_text(PROTO)
    (tmp_path / "event.json").write_text(JSON)
    folder = tmp_path / "landing"
    folder.mkdir()
    return folder


@pytest.fixture
def file_settings(landing: Path, tmp_path: Path) -> Settings:
    """Settings of such a pipeline; nobody listens at the addresses of broker and registry."""
    return load_settings(
        source="files",
        files_path=str(landing),
        files_schema=str(tmp_path / "event.proto"),
        files_message_type="shop.Event",
        files_settle_s=1,
        time_column="event_timestamp__bigint",  # the samples' times are milliseconds
        lakehouse=str(tmp_path / "lakehouse"),
        state_dir=tmp_path / "state",
        kafka_bootstrap_servers="127.0.0.1:9",
        schema_registry_url="http://127.0.0.1:9",
        spark_master="local[2]",
    )


@pytest.fixture
def make_files(spark: SparkSession, file_settings: Settings) -> MakeFiles:
    """A pipeline as a new process would have it; with other settings if some are given."""
    return lambda **other: Pipeline(file_settings.model_copy(update=other), lambda: spark)
