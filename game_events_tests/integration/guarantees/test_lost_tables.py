"""Tables that somebody deleted or restored while nothing new came: noticed by the next run, whole again, or a clear refusal."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from game_events.config.names import PROGRESS
from game_events.errors import DataError
from game_events.lakehouse.tables import BRONZE, QUARANTINE, UNIFIED, gold_name, silver_name
from game_events.pipeline.bronze.full_refresh import replace_bronze
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.checks.table_checks import offsets_continuous, offsets_unique
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.support.reconciliation import coordinates, count
from game_events_tests.support.worlds.quality import Event
from game_events_tests.support.worlds.topics import expire, make_topic, put
from game_events_tests.support.worlds.waves import assert_gold_follows_silver, versions

GAMES = ("chess", "uno")
WAVE = [Event("uno"), Event("chess"), b"no frame", Event("uno", gamer="bob")]


def delete(settings, table):
    shutil.rmtree(Path(settings.lakehouse) / table)


def restore(settings, table, version, spark=None):
    uri = f"{settings.lakehouse}/{table}"
    if spark is None:
        DeltaTable(uri).restore(version)
    else:
        spark.sql(f"RESTORE TABLE delta.`{uri}` TO VERSION AS OF {version}")


class Grown:
    """A topic and its tables, wave by wave, each wave a run of its own; nothing new is in the topic.

    Attributes:
        older: bronze's version before the last wave.
        newest: its version after it.
        whole: every record is in its place: the next test begins with it then.
    """

    def __init__(self, settings, make_pipeline):
        self.settings, self.make_pipeline = settings, make_pipeline
        self.waves, self.newest = 0, None
        make_topic(settings)
        for _ in range(2):
            self.grow()
        self.whole = True

    def grow(self):
        put(self.settings, WAVE)
        assert refresh(self.make_pipeline(self.settings)).success
        self.waves += 1
        self.older, self.newest = self.newest, versions(self.settings)[BRONZE]

    def assert_whole(self):
        """Every record of the topic is in its place once, in every layer."""
        settings, pipeline = self.settings, self.make_pipeline(self.settings)
        bronze, held = coordinates(settings, BRONZE), coordinates(settings, QUARANTINE)
        assert [c[2] for c in sorted(bronze + held)] == list(range(4 * self.waves))
        assert len(held) == self.waves
        assert [count(settings, silver_name(g)) for g in GAMES] == [self.waves, 2 * self.waves]
        assert_gold_follows_silver(settings, *GAMES)
        for found in (offsets_continuous(pipeline), offsets_unique(pipeline)):
            assert found.passed, found.summary
        assert reconcile(pipeline).passed
        self.whole = True


@pytest.fixture(scope="module")
def worlds():
    """Those of this file: more than one where a test has left the one before unfinished."""
    return []


@pytest.fixture
def world(worlds, make_settings, make_pipeline, tmp_path_factory):
    if not worlds or not worlds[-1].whole:
        place = tmp_path_factory.mktemp("grown")
        settings = make_settings(lakehouse=str(place / "lakehouse"), state_dir=place / "state", allow_bronze_full_refresh=True)
        worlds.append(Grown(settings, make_pipeline))
    worlds[-1].whole = False
    return worlds[-1]


@pytest.fixture
def grown(world):
    return world.settings


@pytest.mark.scenario
def test_derived_tables_deleted_or_restored_while_nothing_new_comes_are_made_whole_by_the_next_run(
    world, grown, make_pipeline, spark
):
    faults = [
        (lambda s, t: restore(s, t, 0), silver_name("uno")),
        (lambda s, t: restore(s, t, 0, spark), gold_name("chess")),
        (lambda s, t: restore(s, t, 0), UNIFIED),
        (delete, silver_name("uno")),
        (delete, gold_name("uno")),
        (delete, UNIFIED),
    ]
    for fault, table in faults:
        fault(grown, table)
        report = refresh(make_pipeline(grown))
        assert report.success, report.errors
        assert table in {t.table for t in report.tables}
        if table != UNIFIED:
            assert f"made whole again: {table}" in report.notices[0]
        assert_gold_follows_silver(grown, *GAMES)
    world.assert_whole()


def test_derived_tables_and_progress_lost_at_once_are_made_whole_by_the_next_run(world, grown, make_pipeline):
    before = versions(grown)
    # First an old state of progress, then none.
    for lost in (lambda: restore(grown, PROGRESS, 1), lambda: delete(grown, PROGRESS)):
        delete(grown, silver_name("chess"))
        delete(grown, gold_name("uno"))
        lost()
        assert refresh(make_pipeline(grown)).success
        world.assert_whole()
    assert refresh(make_pipeline(grown)).tables == []
    assert versions(grown)[BRONZE] == before[BRONZE]


def refusal(table, version):
    """A pattern of the error: table, version and command."""
    return rf"{table} was restored.*RESTORE TABLE delta.`.*{table}` TO VERSION AS OF {version};.*--full-refresh bronze"


@pytest.mark.parametrize("by", ["delta-rs", pytest.param("spark", marks=pytest.mark.scenario)])
def test_a_restored_bronze_is_refused_and_the_undo_that_the_error_names_loses_and_doubles_nothing(
    world, grown, make_pipeline, spark, by
):
    whole = versions(grown)[BRONZE]
    restore(grown, BRONZE, world.older, spark if by == "spark" else None)
    assert count(grown, BRONZE) == 3 * (world.waves - 1)
    before = versions(grown)
    put(grown, WAVE)
    world.waves += 1
    with pytest.raises(DataError, match=refusal(BRONZE, whole)) as refused:
        refresh(make_pipeline(grown))
    assert versions(grown) == before, "nothing was touched"
    spark.sql(re.search(r"RESTORE TABLE \S+ TO VERSION AS OF \d+", str(refused.value))[0])
    assert refresh(make_pipeline(grown)).success
    world.assert_whole()
    world.older, world.newest = whole, versions(grown)[BRONZE]
    assert refresh(make_pipeline(grown)).tables == []


@pytest.mark.scenario
def test_the_full_refresh_that_the_error_names_brings_bronze_or_quarantine_back(world, grown, make_pipeline):
    for table, version in ((BRONZE, world.older), (QUARANTINE, 0)):
        restore(grown, table, version)
        with pytest.raises(DataError, match=r"--full-refresh bronze. with GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH=true"):
            refresh(make_pipeline(grown))
        if table == QUARANTINE:  # as the error says
            delete(grown, QUARANTINE)
        replace_bronze(make_pipeline(grown), RunReport())
        assert refresh(make_pipeline(grown)).success
        world.assert_whole()
    world.newest = versions(grown)[BRONZE]


@pytest.mark.scenario
def test_a_deleted_bronze_is_made_again_and_what_kafka_has_forgotten_stops_it_or_is_a_gap(world, grown, make_pipeline):
    delete(grown, BRONZE)
    assert refresh(make_pipeline(grown)).success
    world.assert_whole()
    world.whole = False
    delete(grown, BRONZE)
    expire(grown, {0: 3})
    with pytest.raises(DataError, match=r"bronze_events is gone \(put the table back.*offsets 0 to 2.*ON_DATA_LOSS"):
        refresh(make_pipeline(grown))
    assert not (Path(grown.lakehouse) / BRONZE / "_delta_log").exists()
    going_on = grown.model_copy(update={"on_data_loss": "record_gap", "starting_offsets": "latest"})
    report = refresh(make_pipeline(going_on))
    assert [(g.start, g.end) for g in report.gaps] == [(0, 3)]
    left = [offset for offset in range(3, 4 * world.waves) if WAVE[offset % 4] != b"no frame"]
    assert [c[2] for c in coordinates(grown, BRONZE)] == left, "a bronze that is made again does not start at the end"
    assert_gold_follows_silver(grown, *GAMES)


def test_a_quarantine_that_was_deleted_or_restored_stops_the_run_with_what_to_do(world, grown, make_pipeline):
    newest = versions(grown)[QUARANTINE]
    restore(grown, QUARANTINE, 0)
    before = versions(grown)
    with pytest.raises(DataError, match=refusal(QUARANTINE, newest)):
        refresh(make_pipeline(grown))
    assert versions(grown) == before
    restore(grown, QUARANTINE, newest)
    world.grow()
    world.assert_whole()
    world.whole = False

    delete(grown, QUARANTINE)
    with pytest.raises(DataError, match=rf"quarantine_events is gone, and with it {world.waves} records.*ON_DATA_LOSS"):
        refresh(make_pipeline(grown))
    put(grown, WAVE)
    report = refresh(make_pipeline(grown.model_copy(update={"on_data_loss": "record_gap"})))
    assert f"the {world.waves} records" in report.notices[0]
    assert (count(grown, BRONZE), count(grown, QUARANTINE)) == (3 * (world.waves + 1), 1)
    assert refresh(make_pipeline(grown)).success


def test_an_older_copy_of_bronze_is_refused_and_after_a_full_refresh_no_row_is_missing(world, grown, make_pipeline, tmp_path):
    copy = shutil.copytree(Path(grown.lakehouse) / BRONZE, tmp_path / "copy")
    world.grow()
    delete(grown, BRONZE)
    shutil.copytree(copy, Path(grown.lakehouse) / BRONZE)
    before = versions(grown)
    with pytest.raises(DataError, match="bronze_events is an older copy"):
        refresh(make_pipeline(grown))
    assert versions(grown) == before, "nothing was touched"
    replace_bronze(make_pipeline(grown), RunReport())
    world.grow()
    world.assert_whole()


def test_an_older_copy_of_quarantine_is_refused_until_its_newest_one_is_back(world, grown, make_pipeline, tmp_path):
    place = Path(grown.lakehouse) / QUARANTINE
    old = shutil.copytree(place, tmp_path / "old")
    world.grow()
    new = shutil.copytree(place, tmp_path / "new")
    for copy in (old, new):
        shutil.rmtree(place)
        shutil.copytree(copy, place)
        if copy == old:
            with pytest.raises(DataError, match="quarantine_events is an older copy"):
                refresh(make_pipeline(grown))
    world.grow()
    world.assert_whole()
