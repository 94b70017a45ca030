"""Kafka -> archive -> files: a bronze that is rebuilt from its archive, without broker and registry, is the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.pipeline.bronze.full_refresh import replace_bronze
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.files.archive import archive
from game_events_tests.conftest import MakePipeline
from game_events_tests.integration.plugins.files.test_guarantees import kill
from game_events_tests.integration.plugins.files.test_pipeline import failed_checks, numbers
from game_events_tests.support.fixtures.cli import Cli, cli, environment  # noqa: F401 - fixtures
from game_events_tests.support.fixtures.files import MakeFiles
from game_events_tests.support.reconciliation import assert_books_balance, rows
from game_events_tests.support.worlds.file_samples import protobuf, put
from game_events_tests.support.worlds.topic import send_values
from game_events_tests.support.worlds.waves import power_cut_at, send

#: What is another in a bronze that was read in another order, from other places (`detail` names the registry that was asked).
OTHER = {"_batch", "_file_path", "_file_position", "quarantined_at", "run_id", "detail"}


def content(settings: Settings, table: str) -> list[tuple[Any, ...]]:
    """All rows of a table but for those columns, sorted."""
    names = {name for (name, *_) in rows(settings, table, "DESCRIBE SELECT * FROM t")} - OTHER
    listed = ", ".join(f'"{name}"' for name in sorted(names))
    return rows(settings, table, f"SELECT '{listed}', {listed} FROM t ORDER BY _kafka_partition, _kafka_offset")


def of_archive(settings: Settings, place: Path, lakehouse: Path) -> Settings:
    """Settings of a lakehouse whose source is an archive, without broker and registry."""
    return settings.model_copy(
        update={
            "source": "files",
            "files_path": str(place),
            "files_settle_s": 0,
            "lakehouse": str(lakehouse),
            "kafka_bootstrap_servers": "127.0.0.1:9",
            "schema_registry_url": "http://127.0.0.1:9",
        }
    )


def write(settings: Settings, make_pipeline: MakePipeline, to: Path) -> RunReport:
    report = RunReport()
    archive(make_pipeline(settings), report, str(to))
    return report


@pytest.mark.scenario
def test_a_bronze_rebuilt_from_its_archive_equals_it_and_goes_on_with_the_topic(
    settings: Settings, make_pipeline: MakePipeline, spark: SparkSession, tmp_path: Path
) -> None:
    to = settings.state_dir / "archive"
    sent = send(settings, version=2)
    refresh(make_pipeline(settings))
    first = write(settings, make_pipeline, to)
    assert first.parts["archive"].rows == sent.records_total
    again = write(settings, make_pipeline, to)
    assert (again.parts["archive"].rows, again.parts["archive"].files) == (0, 0)
    sent = sent.merge(send(settings, version=3))
    # A tombstone, and an id that no registry knows, with a key and headers.
    send_values(settings, [None, b"\0\x7f\0\0\0\0x"], headers=[("h", b"1"), ("h", None)], key=b"k")
    refresh(make_pipeline(settings))
    kill_archive(settings, spark, tmp_path)
    second = write(settings, make_pipeline, to)
    assert first.parts["archive"].rows + second.parts["archive"].rows == sent.records_total + 2

    rebuilt = of_archive(settings, to, tmp_path / "rebuilt")
    report = refresh(make_pipeline(rebuilt))
    assert report.success, report.errors
    for table in ("bronze_events", "quarantine_events"):
        assert content(rebuilt, table) == content(settings, table)
    for game in sent.records:
        assert content(rebuilt, f"silver_{game}_events") == content(settings, f"silver_{game}_events")
    assert failed_checks(make_pipeline(rebuilt)) == []

    # The topic goes on where the archive ends.
    live = settings.model_copy(update={"lakehouse": rebuilt.lakehouse})
    sent = sent.merge(send(settings, version=1))
    for one in (live, settings):
        report = refresh(make_pipeline(one))
        assert report.success, report.errors
    assert content(live, "bronze_events") == content(settings, "bronze_events")
    assert failed_checks(make_pipeline(live)) == []


@pytest.mark.scenario
def test_an_archive_has_nothing_of_a_slice_that_only_quarantine_has(
    settings: Settings, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    to = tmp_path / "archive"
    sent = send(settings, version=1, games=("uno",), poison=0)
    refresh(make_pipeline(settings))
    # The good records stand below a bad one in their partition.
    sent = sent.merge(send(settings, version=1, games=("uno",), poison=0))
    send_values(settings, [b"no frame"])
    with power_cut_at("quarantine_committed"):
        refresh(make_pipeline(settings))
    first = write(settings, make_pipeline, to)
    # Lost, rebuilt from what the archive has, and on with the topic: nothing is missing.
    rebuilt = of_archive(settings, to, tmp_path / "rebuilt")
    for one in (rebuilt, settings.model_copy(update={"lakehouse": rebuilt.lakehouse}), settings):
        report = refresh(make_pipeline(one))
        assert report.success, report.errors
    for table in ("bronze_events", "quarantine_events"):
        assert content(rebuilt, table) == content(settings, table)
    second = write(settings, make_pipeline, to)
    assert (first.parts["archive"].rows, second.parts["archive"].rows) == (sent.records_total // 2, sent.records_total // 2 + 1)
    third = write(settings, make_pipeline, to)
    assert third.parts["archive"].rows == 0


@pytest.mark.scenario
def test_no_record_comes_twice_from_an_archive_to_a_bronze_that_has_it(
    settings: Settings, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    to = tmp_path / "archive"
    rebuilt = of_archive(settings, to, tmp_path / "rebuilt")

    def load(one: Settings) -> None:
        load_bronze(make_pipeline(one), RunReport())

    def more(*others: Settings) -> None:
        send(settings, version=1, games=("uno",))
        for one in (settings, *others):
            load(one)
        write(settings, make_pipeline, to)

    def refused(one: Settings) -> None:
        before = rows(one, "bronze_events", "SELECT count(*) FROM t"), rows(one, "quarantine_events", "SELECT count(*) FROM t")
        with pytest.raises(ConfigurationError, match="would be there twice"):
            load(one)
        after = rows(one, "bronze_events", "SELECT count(*) FROM t"), rows(one, "quarantine_events", "SELECT count(*) FROM t")
        assert before == after

    more()
    refused(of_archive(settings, to, Path(settings.lakehouse)))
    # What the archive gets later is read, as long as the topic itself is not.
    load(rebuilt)
    more()
    load(rebuilt)
    for table in ("bronze_events", "quarantine_events"):
        assert content(rebuilt, table) == content(settings, table)
    # Its files under other paths.
    shutil.copytree(to, tmp_path / "copy")
    refused(of_archive(settings, tmp_path / "copy", Path(rebuilt.lakehouse)))
    live = settings.model_copy(update={"lakehouse": rebuilt.lakehouse})
    more(live)
    refused(rebuilt)
    # A full refresh replaces what came from elsewhere.
    replace_bronze(make_pipeline(rebuilt.model_copy(update={"allow_bronze_full_refresh": True})), RunReport())
    for one in (rebuilt, live):
        assert refresh(make_pipeline(one)).rows("bronze") == 0
    for table in ("bronze_events", "quarantine_events"):
        assert content(live, table) == content(settings, table)
    assert failed_checks(make_pipeline(live)) == []


@pytest.mark.scenario
def test_after_a_full_refresh_from_an_older_archive_the_topic_is_read_from_where_that_ends(
    settings: Settings, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    to = tmp_path / "archive"
    sent = send(settings, version=1, games=("uno",), poison=0)
    load_bronze(make_pipeline(settings), RunReport())
    write(settings, make_pipeline, to)
    sent = sent.merge(send(settings, version=1, games=("uno",), poison=0))
    load_bronze(make_pipeline(settings), RunReport())
    before = content(settings, "bronze_events")
    older = of_archive(settings, to, Path(settings.lakehouse)).model_copy(update={"allow_bronze_full_refresh": True})
    replace_bronze(make_pipeline(older), RunReport())
    assert len(content(settings, "bronze_events")) == sent.records_total // 2
    load_bronze(make_pipeline(settings), RunReport())
    assert content(settings, "bronze_events") == before
    assert failed_checks(make_pipeline(settings)) == []


@pytest.mark.scenario
def test_a_full_refresh_from_an_archive_leaves_the_topics_that_it_does_not_have(
    settings: Settings, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    to, others = tmp_path / "archive", settings.model_copy(update={"kafka_topic": f"{settings.kafka_topic}_others"})
    both = settings.model_copy(update={"kafka_topic": f"{settings.kafka_topic},{others.kafka_topic}"})
    archiving = settings.model_copy(update={"lakehouse": str(tmp_path / "archiving")})
    unknown = b"\0\x7f\0\0\0\0x"  # no registry has this id
    send(settings, version=1, games=("uno",))
    send_values(settings, [unknown])
    load_bronze(make_pipeline(archiving), RunReport())
    write(archiving, make_pipeline, to)
    more = send(others, version=1, games=("uno",))
    send_values(others, [unknown])
    load_bronze(make_pipeline(both), RunReport())

    def held() -> list[list[str]]:
        return [sorted(map(repr, content(settings, table))) for table in ("bronze_events", "quarantine_events")]

    before = held()
    archived = of_archive(settings, to, Path(settings.lakehouse)).model_copy(update={"allow_bronze_full_refresh": True})
    report = RunReport()
    replace_bronze(make_pipeline(archived), report)
    assert held() == before
    assert f"{more.decodable:,} rows of bronze_events stay: of topics that are not read now" in report.notices
    assert report.expired == 0
    # Whichever source is read next: nothing of it is new, nothing is missing.
    for one in (archived, both):
        load_bronze(make_pipeline(one), RunReport())
        assert held() == before
    sent = send(others, version=1, games=("uno",))
    load_bronze(make_pipeline(both), RunReport())
    assert len(held()[0]) == len(before[0]) + sent.decodable
    assert failed_checks(make_pipeline(both)) == []
    # An archive that has grown by records which are there from elsewhere is refused, as ever.
    replace_bronze(make_pipeline(archived), RunReport())
    before = held()
    load_bronze(make_pipeline(archiving.model_copy(update={"kafka_topic": both.kafka_topic})), RunReport())
    write(archiving, make_pipeline, to)
    with pytest.raises(ConfigurationError, match="would be there twice"):
        load_bronze(make_pipeline(archived), RunReport())
    assert held() == before
    # A folder without any file has none of the topics.
    (tmp_path / "folder").mkdir()
    replace_bronze(make_pipeline(archived.model_copy(update={"files_path": str(tmp_path / "folder")})), RunReport())
    assert held() == before


@pytest.mark.scenario
def test_an_archive_of_files_is_read_once_too_and_only_where_its_log_is(
    landing: Path, file_settings: Settings, make_files: MakeFiles, tmp_path: Path
) -> None:
    put(landing, "a.pb", protobuf(range(10)))
    refresh(make_files())
    to = tmp_path / "archives" / "one"
    archive(make_files(), RunReport(), str(to))
    with pytest.raises(ConfigurationError, match="would be there twice"):
        refresh(make_files(files_path=str(to), files_settle_s=0))
    put(landing, "b.pb", protobuf(range(10, 20)))
    refresh(make_files())
    archive(make_files(), RunReport(), str(to))
    rebuilt = {"files_path": str(to), "files_settle_s": 0, "lakehouse": str(tmp_path / "rebuilt")}
    refresh(make_files(**rebuilt))
    assert numbers(file_settings.model_copy(update=rebuilt)) == list(range(20))
    replace_bronze(make_files(**rebuilt, allow_bronze_full_refresh=True), RunReport())
    assert numbers(file_settings.model_copy(update=rebuilt)) == list(range(20))
    # The folder above it, and an archive that was compacted by hand: nothing of them is taken for records.
    for place, files in ((to.parent, 2), (to, 1)):
        if place == to:
            DeltaTable(to).optimize.compact()
        other = {**rebuilt, "files_path": str(place), "lakehouse": str(tmp_path / f"from_{place.name}")}
        report = refresh(make_files(**other))
        assert (report.rows("bronze"), report.rejected) == (0, {"UNREADABLE_FILE": files})
    # The one that was rebuilt has read them.
    assert refresh(make_files(**rebuilt)).rows("bronze") == 0


def kill_archive(settings: Settings, spark: SparkSession, tmp_path: Path) -> None:
    """The archive's run is killed when its files are written: none of them may be read."""
    kill(settings, spark, tmp_path / "log", "archive_staged", "archive")


# Dagster 1.13 calls its own deprecated property for every nested resource.
@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
def test_the_command_writes_an_archive_of_one_bronze_and_refuses_another(
    cli: Cli,  # noqa: F811 - the fixture
    environment: Settings,  # noqa: F811 - the fixture
    make_pipeline: MakePipeline,
    tmp_path: Path,
) -> None:
    settings = environment
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    sent = send(settings, version=1)
    refresh(make_pipeline(settings))
    assert_books_balance(settings, sent)
    with pytest.raises(ConfigurationError, match="not empty"):
        write(settings, make_pipeline, tmp_path / "full")
    with pytest.raises(ConfigurationError, match="no archive"):
        write(settings, make_pipeline, Path(settings.lakehouse) / "bronze_events")
    with pytest.raises(ConfigurationError, match="KEEP_RAW"):
        write(settings.model_copy(update={"keep_raw": "failures"}), make_pipeline, tmp_path / "archive")
    said = cli("archive", "--to", str(tmp_path / "archive"))
    assert said.code == 0, said.everything
    assert f"{sent.records_total:,} records in 1 files" in said.out
    assert cli("archive", "--to", str(tmp_path / "archive"), "--json").result["archive"]["rows"] == 0
    replace_bronze(make_pipeline(settings.model_copy(update={"allow_bronze_full_refresh": True})), RunReport())
    with pytest.raises(ConfigurationError, match="another bronze_events"):
        write(settings, make_pipeline, tmp_path / "archive")
