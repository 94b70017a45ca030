"""What the source of files says of itself: which files there are, how many a slice may have, from where on."""

from __future__ import annotations

import pickle
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from game_events.config.settings import Settings, load_settings
from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.bronze import full_refresh as bronze_reset
from game_events.pipeline.bronze import load as bronze
from game_events.pipeline.context import Pipeline
from game_events.pipeline.offsets import batch_info, bronze_commit, next_offsets
from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.files.location import SourceLocation
from game_events.plugins.files.records import FILE_ROWS, FileGap
from game_events.plugins.files.source import FileSource
from game_events.sources.source import Partition, SourceContext
from game_events.workers.results import StagedRows
from game_events_tests.support.pipelines import stage_by_hand
from game_events_tests.support.worlds.file_samples import put


def source(settings: Settings, **other: object) -> FileSource:
    settings = settings.model_copy(update=other)
    return FileSource(SourceContext(settings, Lakehouse.of(settings)))


def test_a_slice_has_as_many_files_and_bytes_as_the_settings_say_and_one_at_least(
    landing: Path, file_settings: Settings
) -> None:
    for n, size in enumerate((10, 20, 30, 500, 1)):
        put(landing, f"{n}.pb", b"x" * size, age_s=100 - n)
    for files, size, rooms in ((2, 1000, (2, 2)), (10, 60, (3, 2)), (10, 1, (1, 1))):
        one = source(file_settings, files_per_batch=files, files_bytes_per_batch=size)
        (split,) = one.snapshot().latest
        assert (one.batch_limit({split: 0}) // FILE_ROWS, one.batch_limit({split: 1 * FILE_ROWS}) // FILE_ROWS) == rooms
        assert one.batch_limit({split: 5 * FILE_ROWS}) == FILE_ROWS


def test_a_new_bronze_may_start_with_the_files_of_a_time(landing: Path, file_settings: Settings) -> None:
    for n in range(3):
        put(landing, f"{n}.pb", b"x", age_s=3600 * (3 - n))
    one = source(file_settings)
    seen = one.snapshot()
    now = datetime.now(UTC)
    assert list(one.offsets_at(seen.latest, now - timedelta(hours=2.5)).values()) == [FILE_ROWS]
    assert one.offsets_at(seen.latest, now) == {}


def test_only_files_that_match_and_are_nobodys_own_are_listed(landing: Path) -> None:
    for name in ("a.pb", "x/b.pb", "x/y/c.avro", "_d.pb", ".e.pb", "_f/g.pb", "x/.h/i.pb"):
        put(landing, name, b"x")

    def names(pattern: str) -> set[str]:
        return {f.path.removeprefix(f"{landing}/") for f in SourceLocation(str(landing)).listing(pattern)}

    assert names("*") == {"a.pb", "x/b.pb", "x/y/c.avro"}
    assert names("x/*") == {"x/b.pb", "x/y/c.avro"}
    assert names("*.pb") == {"a.pb", "x/b.pb"}


def test_a_restored_log_stops_the_run(landing: Path, file_settings: Settings) -> None:
    put(landing, "a.pb", b"x")
    source(file_settings).snapshot()
    put(landing, "b.pb", b"x")
    source(file_settings).snapshot()
    DeltaTable(f"{file_settings.lakehouse}/source_files").restore(0)
    with pytest.raises(DataError, match="restored"):
        source(file_settings).snapshot()


def test_a_folder_that_is_a_table_is_no_source(landing: Path, file_settings: Settings) -> None:
    put(landing, "a.pb", b"x")
    source(file_settings).snapshot()
    with pytest.raises(ConfigurationError, match="Delta table"):
        source(file_settings, files_path=f"{file_settings.lakehouse}/source_files").snapshot()


def test_a_place_that_holds_a_password_is_refused_and_one_source_is_enough() -> None:
    with pytest.raises(ConfigurationError, match="password"):
        load_settings(source="files", files_path="s3://key:secret@bucket/landing")
    with pytest.raises(ConfigurationError, match="exclude each other"):
        load_settings(source="files", files_path="/landing", source_table="/other/bronze_events")


def test_the_gap_of_a_file_names_it_and_travels() -> None:
    gap = FileGap("files", "id", 0, FILE_ROWS, 2 * FILE_ROWS, "/landing/a.pb")
    assert (str(gap), gap.offsets) == ("file /landing/a.pb", None)
    assert str(pickle.loads(pickle.dumps(gap))) == str(gap)  # noqa: S301 - our own bytes
    split = Partition("files", "id", 0, "files")
    note = bronze_commit(batch_info(1, 0, 0, {split: (FILE_ROWS, 2 * FILE_ROWS)}, [gap]))
    assert note is not None
    assert [(str(g), g.offsets, g.start) for g in note.gaps] == [("file number 1 of source_files", None, FILE_ROWS)]


def test_a_full_refresh_goes_on_behind_an_archive_that_has_grown(
    landing: Path, file_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As each slice's commit does: else a run that reads the topic would have its records twice."""
    put(landing, "a.pb", b"x")
    allowed = file_settings.model_copy(update={"allow_bronze_full_refresh": True})
    pipeline = Pipeline(allowed, lambda: pytest.fail("no Spark here"))
    bronze._create(pipeline, pipeline.source.snapshot(), RunReport())
    topic = Partition("games", "5cB9Bc9QRbCeqUM/tZO+tg", 2)
    staged = StagedRows([], [], set(), set(), Counter(), origins={topic: 7})
    stage_by_hand(monkeypatch, lambda *_: staged)
    report = RunReport()
    bronze_reset.replace_bronze(pipeline, report)
    handle = pipeline.bronze.open()
    assert (next_offsets(handle, [topic]), list(report.offsets.values())) == ({topic: 7}, [(0, 1)])


def test_a_schema_may_import_the_files_beside_it_but_not_in_a_circle(landing: Path, file_settings: Settings) -> None:
    folder = landing.parent
    (folder / "inner.proto").write_text('syntax = "proto3"; message Inner { int64 n = 1; }')
    (folder / "a.proto").write_text('syntax = "proto3";\nimport "inner.proto";\nmessage A { Inner inner = 1; }')
    one = source(file_settings, files_schema=str(folder / "a.proto"), files_message_type="A")._schema
    assert one is not None
    assert [name for name, _ in one.schema.references] == ["inner.proto"]
    (folder / "inner.proto").write_text('syntax = "proto3";\nimport "other.proto";\nmessage Inner { Other other = 1; }')
    (folder / "other.proto").write_text('syntax = "proto3";\nimport "inner.proto";\nmessage Other { Inner inner = 1; }')
    with pytest.raises(ConfigurationError, match=r"a\.proto"):
        source(file_settings, files_schema=str(folder / "a.proto"), files_message_type="A")._schema  # noqa: B018
