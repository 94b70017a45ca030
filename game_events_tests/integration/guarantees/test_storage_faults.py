"""A disk that is full or cannot be written: a clear error, nothing half-visible, and a next run that goes on."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from game_events.errors import ConfigurationError, LostFileError, TransientError
from game_events.lakehouse.storage import storage_error
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.fanout import OnePass
from game_events.pipeline.runs.loop import Loop
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events_tests.support.reconciliation import count
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.quality import Event
from game_events_tests.support.worlds.topics import make_topic, put
from game_events_tests.support.worlds.waves import assert_gold_follows_silver, at_point, versions

WAVE = [*[Event("uno", note="n" * 100)] * 20, Event("chess"), b"no frame"]
GAMES = ("chess", "uno")


@pytest.fixture
def disk(tmp_path):
    """A small file system of its own below the lakehouse."""
    root = tmp_path / "lakehouse"
    root.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(root)], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"a file system cannot be mounted here: {made.stderr.decode().strip()}")
    yield root
    subprocess.run(["umount", "-l", str(root)], check=True)


def fill(disk: Path) -> Path:
    """Use up all that is free."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as sink:
        os.posix_fallocate(sink.fileno(), 0, os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize)
    return filler


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


def assert_whole(pipeline, waves):
    settings = pipeline.settings
    assert (count(settings, "bronze_events"), count(settings, "quarantine_events")) == (21 * waves, waves)
    assert_gold_follows_silver(settings, *GAMES)
    assert reconcile(pipeline).passed


@pytest.mark.scenario
def test_a_full_disk_at_any_layer_fails_the_run_with_its_name_and_the_next_run_goes_on(settings, make_pipeline, disk):
    make_topic(settings)
    put(settings, WAVE)
    assert refresh(make_pipeline(settings)).success
    for wave, point in enumerate((None, "bronze_committed", "silver_committed", "gold_committed"), 2):
        put(settings, WAVE)
        before, filler = versions(settings), None
        if point is None:
            filler = fill(disk)
        with pytest.MonkeyPatch.context() as patch:
            happened = [] if point is None else at_point(patch, point, lambda: fill(disk))
            with pytest.raises(TransientError, match=r"no space is left.*No space left on device") as caught:
                refresh(make_pipeline(settings))
        assert happened == ([] if point is None else [point])
        assert len(str(caught.value)) < 1_000, "words, no pages of stack"
        if point is None:
            assert versions(settings) == before
        (filler or disk / "filler").unlink()
        assert refresh(make_pipeline(settings)).success
        assert_whole(make_pipeline(settings), wave)
    assert refresh(make_pipeline(settings)).tables == []


@pytest.mark.scenario
def test_a_continuous_run_waits_out_a_full_disk(make_settings, make_pipeline, disk):
    settings = make_settings(poll_interval_s=0.1, gold_interval_s=0)
    make_topic(settings)
    put(settings, WAVE)
    loop = Loop(make_pipeline(settings), longest_pause_s=1.0)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        until(lambda: loop.report.state == "idle", what="an idle loop")
        filler = fill(disk)
        put(settings, WAVE)
        until(lambda: loop.report.state == "waiting", what="a waiting loop")
        assert "no space is left" in loop.report.why
        filler.unlink()
        until(lambda: loop.report.state == "idle", what="a loop that goes on")
    finally:
        loop.stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert_whole(make_pipeline(settings), 2)


@pytest.mark.scenario
def test_a_root_that_becomes_read_only_is_named_and_nothing_is_half_visible(settings, make_pipeline, disk, monkeypatch):
    make_topic(settings)
    remount(disk, "ro")
    put(settings, WAVE)
    with pytest.raises(ConfigurationError, match=r"cannot be read or written: .*Read-only file system"):
        refresh(make_pipeline(settings))
    assert list(disk.iterdir()) == []
    remount(disk, "rw")
    assert refresh(make_pipeline(settings)).success
    put(settings, WAVE)
    at_point(monkeypatch, "bronze_staged", lambda: remount(disk, "ro"))
    before = versions(settings)
    with pytest.raises(ConfigurationError, match=r"Read-only file system"):
        refresh(make_pipeline(settings))
    assert versions(settings) == before
    remount(disk, "rw")
    assert refresh(make_pipeline(settings)).success
    assert_whole(make_pipeline(settings), 2)


def test_a_table_that_may_no_longer_be_written_fails_alone_with_the_reason(settings, make_pipeline):
    make_topic(settings)
    put(settings, WAVE)
    refresh(make_pipeline(settings))
    log = Path(settings.lakehouse) / "silver_uno_events" / "_delta_log"
    # Root may write whatever the mode says, but not what is immutable.
    if subprocess.run(["chattr", "+i", str(log)], capture_output=True, check=False).returncode:
        pytest.skip("this file system has no immutable folders")
    try:
        put(settings, WAVE)
        report = refresh(make_pipeline(settings))
        assert [t.game for t in report.errors] == ["uno"]
        assert "silver_uno_events cannot be read or written: " in str(report.errors[0].error)
    finally:
        subprocess.run(["chattr", "-i", str(log)], check=True)
    assert refresh(make_pipeline(settings)).success
    assert_whole(make_pipeline(settings), 2)


def test_errors_that_are_not_storages_stay_what_they_are():
    assert storage_error(OSError("connection reset"), "here") is None
    assert isinstance(storage_error(OSError(28, "No space left on device"), "here"), TransientError)
    assert isinstance(storage_error(PermissionError(13, "Permission denied"), "here"), ConfigurationError)


@pytest.mark.parametrize("damage", ["damaged", "gone"])
def test_a_file_of_bronze_that_is_damaged_or_gone_is_named_in_words(settings, make_pipeline, monkeypatch, damage):
    make_topic(settings)
    put(settings, WAVE)
    hurt = []

    def hurt_it() -> None:
        (file,) = (Path(settings.lakehouse) / "bronze_events").glob("*.parquet")
        hurt.append(file)
        file.unlink() if damage == "gone" else file.write_bytes(file.read_bytes()[:-20] + b"\0" * 20)

    at_point(monkeypatch, "bronze_committed", hurt_it)
    with pytest.raises(LostFileError) as caught:
        refresh(make_pipeline(settings), one_pass=OnePass(enabled=False))  # else nobody reads it in this run
    said = str(caught.value)
    assert str(hurt[0]) in said
    assert "Traceback" not in said
    assert len(said) < 1_000
    assert not (Path(settings.lakehouse) / "silver_uno_events").exists()


def test_a_game_that_has_lost_a_file_of_silver_is_made_again_from_bronze(settings, make_pipeline):
    make_topic(settings)
    put(settings, WAVE)
    assert refresh(make_pipeline(settings)).success
    (file,) = (Path(settings.lakehouse) / "silver_uno_events").glob("*.parquet")
    file.unlink()
    pipeline = make_pipeline(settings)
    assert refresh(pipeline, selection=selection_of(pipeline, full_refresh=["silver_uno_events"])).success
    put(settings, WAVE)
    assert refresh(make_pipeline(settings)).success
    assert_whole(make_pipeline(settings), 2)
