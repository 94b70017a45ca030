"""Files through the whole pipeline: each record once, whatever happens to runs and files."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, DataError
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.checks.table_checks import CHECKS
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode
from game_events.pipeline.runs.pending import backlog
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events_tests.support.fixtures.files import MakeFiles
from game_events_tests.support.reconciliation import rows
from game_events_tests.support.worlds.file_samples import avro, lines, parquet, protobuf, put


def numbers(settings: Settings, table: str = "bronze_events") -> list[int]:
    return sorted(n for (n,) in rows(settings, table, "SELECT n FROM t"))


def held(settings: Settings) -> list[tuple[str, str, int]]:
    """(Name of the file, reason, position) of quarantine's rows."""
    found = rows(settings, "quarantine_events", "SELECT _file_path, reason, _file_position FROM t")
    return sorted((Path(path).name, reason, position) for path, reason, position in found)


def failed_checks(pipeline: Pipeline) -> list[str]:
    return [c.summary for c in (check.run(pipeline) for check in CHECKS) if not c.passed]


def test_files_of_each_format_are_read_once_and_new_ones_as_they_come(
    landing: Path, file_settings: Settings, make_files: MakeFiles
) -> None:
    put(landing, "one.pb", protobuf(range(10)))
    put(landing, "deep/er/two.avro", avro(range(10, 20)))
    put(landing, "four.parquet", parquet(range(20, 30)))
    put(landing, "_hidden/five.avro", avro(range(1000, 1001)))
    put(landing, ".six.avro", avro(range(1000, 1001)))
    assert list(backlog(make_files()).records.values()) == [3]
    assert not (Path(file_settings.lakehouse) / "source_files").exists(), "a look wrote something"
    report = refresh(make_files())
    assert report.success, report.errors
    assert report.files["taken"] == 3
    assert (list(report.offsets.values()), list(report.lag.values())) == ([(0, 3)], [0])
    assert numbers(file_settings) == list(range(30))
    games = [n for game in ("chess", "rummy") for n in numbers(file_settings, f"silver_{game}_events")]
    assert sorted(games) == list(range(30))
    found = rows(file_settings, "bronze_events", "SELECT _file_path, _file_position, n, _kafka_topic, _kafka_partition FROM t")
    assert {(Path(path).name, position): n for path, position, n, _, _ in found} == {
        (name, n % 10): n
        for first, name in enumerate(("one.pb", "two.avro", "four.parquet"))
        for n in range(10 * first, 10 * first + 10)
    }
    assert {row[3:] for row in found} == {("files", 0)}
    assert failed_checks(make_files()) == []
    # Nothing new: nothing is written.
    assert refresh(make_files()).tables == []
    # What came before is not read again, also if it was written again; that is told.
    put(landing, "one.pb", protobuf(range(500, 502)))
    put(landing, "more.avro", avro(range(30, 33)))
    report = refresh(make_files())
    assert (report.files["taken"], report.files["changed"]) == (1, 1)
    assert any("written again" in notice for notice in report.notices)
    assert numbers(file_settings) == list(range(33))
    assert refresh(make_files()).notices == []
    # Rows of Parquet have no raw value, and keep their columns; the others are decoded again from theirs.
    redecode(make_files(), RunReport())
    assert numbers(file_settings) == list(range(33))
    assert reconcile(make_files()).passed


def test_what_cannot_be_read_is_quarantined_and_costs_nothing_else(
    landing: Path, tmp_path: Path, file_settings: Settings, make_files: MakeFiles
) -> None:
    put(landing, "good.jsonl", lines(range(4)) + b"{half\n" + lines(range(5, 6)))
    put(landing, "empty.avro", b"")
    put(landing, "no.parquet", b"PAR1 this is none PAR1")
    put(landing, "what.xyz", b"?")
    put(landing, "young.avro", avro(range(100, 101)), age_s=0)
    growing = put(landing, "growing.parquet", parquet(range(10, 13))[:-8])
    other = {"files_schema": str(tmp_path / "event.json"), "files_settle_s": 30}
    report = refresh(make_files(**other))
    assert report.success, report.errors
    assert numbers(file_settings) == [0, 1, 2, 3, 5]
    bad = [("empty.avro", "UNREADABLE_FILE", 0), ("good.jsonl", "MALFORMED", 4), ("no.parquet", "UNREADABLE_FILE", 0)]
    bad.append(("what.xyz", "UNREADABLE_FILE", 0))
    assert held(file_settings) == bad
    assert report.files["waiting"] == 2
    # A Parquet file that gets its end is read; one that never does is quarantined after its time.
    put(landing, "growing.parquet", parquet(range(10, 13)))
    never = put(landing, "never.parquet", parquet(range(3))[:-8])
    refresh(make_files(**other))
    assert numbers(file_settings) == [0, 1, 2, 3, 5, 10, 11, 12]
    put(landing, never.name, never.read_bytes(), age_s=4000)
    refresh(make_files(**other))
    assert held(file_settings) == sorted([*bad, ("never.parquet", "UNREADABLE_FILE", 0)])
    assert growing.exists()
    assert failed_checks(make_files(**other)) == []


def test_files_that_ask_for_too_much_and_links_harm_nobody_and_are_told(
    landing: Path, tmp_path: Path, file_settings: Settings, make_files: MakeFiles
) -> None:
    put(landing, "good.jsonl", lines(range(4)))
    put(landing, "many.jsonl", lines(range(50, 60)))
    put(landing, "bomb.jsonl.gz", gzip.compress(b"\n" * 3_000_000 + lines(range(100, 101))))
    put(landing, "large.jsonl", lines(range(4, 5)) + b'{"n": "' + b"x" * 50_000 + b'"}\n' + lines(range(5, 6)))
    put(tmp_path, "secret.jsonl", b"secret")
    (landing / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    (landing / "loop").symlink_to(landing)
    other = {
        "files_schema": str(tmp_path / "event.json"),
        "files_max_rows": 7,
        "files_max_unpacked_bytes": 2_000_000,
        "max_record_bytes": 10_000,
    }
    report = refresh(make_files(**other))
    assert report.success, report.errors
    assert numbers(file_settings) == [0, 1, 2, 3, 4, 5, *range(50, 57)]
    assert held(file_settings) == [
        ("bomb.jsonl.gz", "TOO_LARGE", 0),
        ("large.jsonl", "TOO_LARGE", 1),
        ("many.jsonl", "TOO_LARGE", 7),
    ]
    assert (report.files["taken"], report.files["links"]) == (4, 2)
    assert any("2 symbolic links" in notice for notice in report.notices)
    assert any("TOO_LARGE" in notice for notice in report.notices)
    assert not rows(file_settings, "quarantine_events", "SELECT 1 FROM t WHERE contains(_raw_value::VARCHAR, 'secret')")
    assert failed_checks(make_files(**other)) == []
    assert refresh(make_files(**other)).tables == [], "nothing of them is tried again"


def test_a_file_that_is_gone_before_it_was_read_stops_the_run_or_is_a_recorded_gap(
    landing: Path, file_settings: Settings, make_files: MakeFiles
) -> None:
    put(landing, "a.avro", avro(range(2)))
    refresh(make_files())
    gone, stays = put(landing, "b.avro", avro(range(2, 4))), put(landing, "c.avro", avro(range(4, 6)))
    make_files().source.snapshot()
    gone.unlink()
    with pytest.raises(
        DataError, match=rf"records are gone that {landing} does not have .*b\.avro.* leave files where they are"
    ):
        refresh(make_files())
    report = refresh(make_files(on_data_loss="record_gap"))
    assert [str(gap) for gap in report.gaps] == [f"file {gone}"]
    assert numbers(file_settings) == [0, 1, 4, 5]
    # Nothing but files that are gone is a slice, too.
    put(landing, "d.avro", avro(range(6, 7)))
    make_files().source.snapshot()
    (landing / "d.avro").unlink()
    assert len(refresh(make_files(on_data_loss="record_gap")).gaps) == 1
    assert refresh(make_files()).gaps == []
    assert stays.exists()


@pytest.mark.scenario
def test_a_full_refresh_reads_the_files_that_are_there_again(
    landing: Path, file_settings: Settings, make_files: MakeFiles
) -> None:
    for n in range(4):
        put(landing, f"{n}.pb", protobuf(range(n, n + 1)) + (b"\xff" if n == 3 else b""))
    refresh(make_files(files_per_batch=1))
    assert rows(file_settings, "bronze_events", "SELECT max(_batch) FROM t") == [(4,)]
    with pytest.raises(ConfigurationError, match=r"0 of the 4 rows .* are gone from there and would be lost"):
        refresh(make_files(), selection=selection_of(make_files(), full_refresh=["bronze"]))
    late = make_files(starting_timestamp=datetime.now(UTC) + timedelta(days=1))
    with pytest.raises(ConfigurationError, match=r"4 of the 4 rows .* would be lost"):
        refresh(late, selection=selection_of(late, full_refresh=["bronze"]))
    (landing / "1.pb").unlink()
    allowed = make_files(allow_bronze_full_refresh=True)
    report = refresh(allowed, selection=selection_of(allowed, full_refresh=["all"]))
    assert (report.success, report.expired) == (True, 1)
    assert [
        n for n in report.notices if f"replaced by what {landing} has; lost with it, as it is gone from there: 1 of the 4" in n
    ]
    assert numbers(file_settings) == [0, 2, 3]
    assert held(file_settings) == [("3.pb", "UNREADABLE_FILE", 1)]
    put(landing, "5.pb", protobuf(range(5, 6)))
    refresh(make_files())
    assert numbers(file_settings) == [0, 2, 3, 5]
    assert failed_checks(make_files()) == []


def test_a_file_log_that_is_gone_stops_the_run_before_files_are_read_twice(
    landing: Path, file_settings: Settings, make_files: MakeFiles
) -> None:
    put(landing, "a.avro", avro(range(2)))
    refresh(make_files())
    log = Path(file_settings.lakehouse) / "source_files"
    log.rename(landing.parent / "kept")
    for _ in range(2):
        with pytest.raises(DataError, match="source_files"):
            refresh(make_files())
    (landing.parent / "kept").rename(log)
    assert refresh(make_files()).tables == []
    assert numbers(file_settings) == [0, 1]


def test_settings_that_do_not_fit_say_so(landing: Path, make_files: MakeFiles) -> None:
    put(landing, "a.pb", protobuf(range(1)))
    for other, said in (
        ({"files_path": None}, "GAME_EVENTS_FILES_PATH"),
        ({"files_path": str(landing / "nowhere")}, "is not a folder"),
        ({"files_message_type": "shop.None"}, r"it has shop\.Event, shop\.Other"),
        ({"files_schema": str(landing / "no.proto")}, "cannot be read"),
        ({"files_schema": str(landing / "a.pb")}, "ends in none of"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            refresh(make_files(**other))
