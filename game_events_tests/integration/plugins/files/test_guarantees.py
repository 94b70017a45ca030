"""Many files, some of them corrupt: each good record once, wherever runs are cut off and whoever runs beside them."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from game_events.config.settings import Settings
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.files.location import SourceLocation
from game_events.plugins.files.source import FileLog
from game_events_tests.integration.plugins.files.test_pipeline import failed_checks, numbers
from game_events_tests.support.fixtures.files import MakeFiles
from game_events_tests.support.reconciliation import rows
from game_events_tests.support.servers.attached_driver import start_driver
from game_events_tests.support.worlds.file_samples import avro, protobuf, put
from game_events_tests.support.worlds.waves import power_cut_at, run_rivals, wait_all

PER_FILE = 2
#: Where runs are cut off, one after another, while the files are read in slices of three tenths of them.
CUTS = ("bronze_staged", "quarantine_committed", "bronze_committed", "game_committed:1")


def many(folder: Path, first: int, count: int, seed: int) -> tuple[set[int], int]:
    """So many files of one or two records, some cut off or no file at all: numbers of the good records, rows of quarantine."""
    chance, good, bad = random.Random(seed), set(), 0  # noqa: S311 - which files are bad
    then = time.time() - 60
    for n in range(first, first + count):
        body = protobuf(range(PER_FILE * n, PER_FILE * n + PER_FILE))
        fate = chance.random()
        if fate < 0.05:
            body, bad = body[:-1], bad + 1
            good.add(PER_FILE * n)
        elif fate < 0.1:
            body, bad = b"\xff" * 20, bad + 1
        else:
            good.update(range(PER_FILE * n, PER_FILE * n + PER_FILE))
        path = folder / f"{n // 1000}"
        path.mkdir(exist_ok=True)
        (path / f"{n}.pb").write_bytes(body)
        os.utime(path / f"{n}.pb", (then, then))
    return good, bad


def kill(settings: Settings, spark: SparkSession, log: Path, point: str, work: str = "run") -> None:
    """A driver of its own on these files, ended by SIGKILL at a point."""
    named = {
        name: str(value)
        for name in (
            "source",
            "files_path",
            "files_schema",
            "files_message_type",
            "files_settle_s",
            "files_per_batch",
            "time_column",
        )
        if (value := getattr(settings, name)) is not None
    }
    driver = start_driver(settings, spark, log, point, work, **named)
    assert wait_all([driver], 180) == [-signal.SIGKILL], log.read_text()


@pytest.mark.scenario
def test_of_many_files_some_of_them_corrupt_each_good_record_is_there_once_through_crashes_at_every_point(
    landing: Path,
    file_settings: Settings,
    make_files: MakeFiles,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    files = 10_000
    good, bad = many(landing, 0, files * 9 // 10, seed=1)
    settings = file_settings.model_copy(update={"files_per_batch": files * 3 // 10})
    kill(settings, spark, tmp_path / "log", "files_taken_in")
    assert not (Path(settings.lakehouse) / "bronze_events").exists()
    for point in CUTS:
        with power_cut_at(point):
            refresh(make_files(files_per_batch=settings.files_per_batch))
    more, worse = many(landing, files * 9 // 10, files // 10, seed=2)
    report = refresh(make_files(files_per_batch=settings.files_per_batch))
    assert report.success, report.errors
    assert list(report.lag.values()) == [0]
    assert numbers(settings) == sorted(good | more)
    assert sorted(n for game in ("chess", "rummy") for n in numbers(settings, f"silver_{game}_events")) == sorted(good | more)
    held = rows(settings, "quarantine_events", "SELECT reason, count(*), count(DISTINCT _file_path) FROM t GROUP BY reason")
    assert held == [("UNREADABLE_FILE", bad + worse, bad + worse)]
    assert failed_checks(make_files()) == []
    assert refresh(make_files()).tables == []


@pytest.mark.scenario
def test_rivals_take_in_each_file_once_and_load_each_record_once(
    landing: Path, file_settings: Settings, make_files: MakeFiles, spark: SparkSession, tmp_path: Path
) -> None:
    for n in range(8):
        put(landing, f"{n}.avro", avro(range(10 * n, 10 * n + 10)))
    named = {"source": "files", "files_path": str(landing), "files_settle_s": "1", "time_column": file_settings.time_column}
    run_rivals(file_settings, [{**named, "files_per_batch": count} for count in ("2", "2", "3")], spark, tmp_path)
    refresh(make_files())
    assert numbers(file_settings) == list(range(80))
    listed = rows(file_settings, "source_files", "SELECT number FROM t ORDER BY number")
    assert listed == [(n,) for n in range(8)]
    assert failed_checks(make_files()) == []


def test_two_logs_that_see_the_same_files_give_each_one_number(landing: Path, tmp_path: Path) -> None:
    files = [put(landing, f"{n}.avro", b"x") for n in range(4)]
    found, lakehouse = SourceLocation(str(landing)).listing(), Lakehouse(str(tmp_path / "lake"))
    first, second = FileLog(lakehouse), FileLog(lakehouse)
    first.known(), second.known()
    assert len(first.take_in(found[:3], []).entries) == 3
    known = second.take_in(found, [])
    assert sorted(known.numbers.values()) == [0, 1, 2, 3]
    assert first.known().numbers == known.numbers
    # A change is noted once, and the file keeps its number.
    put(landing, "0.avro", b"longer")
    _, changed = known.compare(SourceLocation(str(landing)).listing())
    assert [f.path for f in changed] == [str(files[0])]
    assert first.take_in([], changed).compare(SourceLocation(str(landing)).listing()) == ([], [])
    assert second.take_in([], changed).numbers == known.numbers
