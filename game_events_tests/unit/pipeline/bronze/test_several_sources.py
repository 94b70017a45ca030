"""Bronze of several sources by its transactions and notes alone: names, new sources, one that fails while others are read."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError, DataError, TransientError
from game_events.lakehouse.commits.transactions import Txn, last_app
from game_events.lakehouse.data.columns import OWN_COLUMNS, SOURCE, bronze_schema, own_columns
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.tables import BRONZE, Lakehouse
from game_events.pipeline.bronze import load
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.bronze.offsets import changes, known_of_others, sources_noted, topics_known
from game_events.pipeline.checks import table_checks
from game_events.pipeline.checks.table_checks import LastRecords, fresh, offsets_continuous
from game_events.pipeline.offsets import batch_info, bronze_commit, identity, next_offsets
from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.files.archive import archive
from game_events.sources.factory import make_source
from game_events.sources.several import source as several
from game_events.sources.several.source import SeveralSources
from game_events.sources.source import KAFKA, Gap, Partition, SourceContext, SourceSnapshot
from game_events.workers.results import StagedRows
from game_events_tests.support.pipelines import reading, stage_by_hand, without_spark
from game_events_tests.support.sources import ScriptedSource
from game_events_tests.support.tables import put

ONE, TWO = "5cB9Bc9QRbCeqUM/tZO+tg", "AAAAAAAAAAAAAAAAAAAAAQ"
PLAIN = Partition("events", ONE, 0)
EU, US = Partition("events", ONE, 0, KAFKA, "eu"), Partition("events", TWO, 0, KAFKA, "us")
SOURCES = {"eu": {"kafka_topic_pattern": "e.*"}, "us": {"kafka_topic_pattern": "e.*"}}
SETTINGS = load_settings(sources=SOURCES, on_data_loss="record_gap")


@pytest.fixture
def table(tmp_path):
    """Bronze that has read the topic `events` of one cluster up to 9, before there were several sources."""
    bronze = Lakehouse(str(tmp_path)).table(BRONZE)
    add(bronze, 1, {PLAIN: (0, 9)})
    return bronze


def add(bronze, batch, ranges, gaps=(), known=()):
    now = SourceSnapshot({}, dict.fromkeys([*ranges, *known], 0))
    advance = {p.app: end for p, (_, end) in ranges.items()} | identity([*ranges, *known]) | {"batch": batch}
    advance |= sources_noted(bronze.open(), now)
    put(bronze, OWN_COLUMNS.empty_table(), advance, info=batch_info(batch, 0, 0, ranges, gaps, 0, known))


def changed(table, earliest, latest, settings=SETTINGS, wants=lambda _: True):
    """What has changed since bronze's last commit."""
    bronze = table.open()
    source: Any = SimpleNamespace(wants=wants, offsets_at=None)
    return changes(source, settings, bronze, SourceSnapshot(earliest, latest), next_offsets(bronze, latest))


def test_a_topic_that_gets_the_name_of_a_source_goes_on_and_one_of_the_same_name_joins(table):
    found = changed(table, {EU: 0, US: 3}, {EU: 9, US: 7})
    assert (found.joined, found.start, found.gaps) == (["us/events"], {US: 3}, [])
    add(table, 2, {US: (3, 7)}, known=(EU,))
    assert not changed(table, {EU: 0, US: 3}, {EU: 9, US: 7}).anything
    assert next_offsets(table.open(), (EU, US)) == {EU: 9, US: 7}
    # And back, as if there had never been a second one.
    without = load_settings(kafka_topic_pattern="e.*")
    assert not changed(table, {PLAIN: 0}, {PLAIN: 9}, without, wants=lambda place: "/" not in place).anything


def test_a_new_source_starts_where_it_says_and_its_later_topics_at_their_first_record(table):
    settings = load_settings(sources={"eu": {}, "us": {"starting_offsets": "latest", "kafka_topic_pattern": "e.*"}})
    assert changed(table, {EU: 0, US: 3}, {EU: 9, US: 7}, settings).start == {US: 7}
    add(table, 2, {US: (7, 7)}, known=(EU,))
    later = Partition("e2", ONE.lower()[:21] + "A", 0, KAFKA, "us")
    assert changed(table, {EU: 0, US: 3, later: 1}, {EU: 9, US: 7, later: 4}, settings).start == {later: 1}
    assert sources_noted(table.open(), SourceSnapshot({}, {EU: 9, US: 7})) == {}
    assert table.open().transaction_version(Txn.SOURCE.of("us")) == 1


def test_a_topic_that_was_made_anew_is_that_of_its_source_alone(table):
    add(table, 2, {EU: (9, 12), US: (0, 7)})
    anew = Partition("events", TWO[:-1] + "w", 0, KAFKA, "us")
    found = changed(table, {EU: 0, anew: 0}, {EU: 12, anew: 2})
    assert found.gaps == [Gap("us/events", TWO, 0, 7, None)]
    assert found.joined == []


def test_a_topic_of_a_source_that_does_not_answer_is_neither_lost_nor_forgotten(table):
    add(table, 2, {EU: (9, 12), US: (0, 7)})
    now = SourceSnapshot({EU: 0}, {EU: 12})
    found = changed(table, now.earliest, now.latest, wants=lambda place: place.startswith("eu/"))
    assert not found.anything
    others = known_of_others(SETTINGS, table.open(), now)
    assert others == [US]
    add(table, 3, {EU: (12, 13)}, known=others)
    assert topics_known(table.open())["us/events"] == US
    # It is told once the source answers, and the topic is gone.
    gone = changed(table, {EU: 0}, {EU: 13}, wants=lambda _: True)
    assert gone.gaps == [Gap("us/events", TWO, 0, 7, None)]


def test_a_note_tells_topics_of_one_name_apart_and_its_gaps():
    ranges = {EU: (3, 5), US: (0, 2), Partition("a", ONE, 1): (0, 1)}
    note = bronze_commit(batch_info(4, 3, 0, ranges, [Gap("us/events", TWO, 0, 0, None)], 0, [PLAIN]))
    assert note.offsets == ranges
    assert note.known == {"eu/events": EU, "us/events": US, "a": Partition("a", ONE, 0), "events": PLAIN}
    assert note.gaps == (Gap("us/events", TWO, 0, 0, None),)


@pytest.fixture
def sourced(tmp_path):
    """Bronze with the names of sources."""
    bronze = Lakehouse(str(tmp_path / "sourced")).table(BRONZE)
    put(bronze, own_columns(OWN_COLUMNS, sourced=True).empty_table(), {"batch": 1})
    return bronze


def test_rows_of_several_registries_are_no_archive_and_no_source_of_another_pipeline(sourced, tmp_path):
    with pytest.raises(ConfigurationError, match="has rows of several sources"):
        archive(without_spark(tmp_path / "sourced"), RunReport(), str(tmp_path / "archive"))
    theirs = load_settings(source_table=sourced.uri, lakehouse=str(tmp_path / "ours"))
    with pytest.raises(ConfigurationError, match="has rows of several sources"):
        make_source(theirs).snapshot()


class Topic(ScriptedSource):
    """A topic whose end the test sets; its reading fails, if it says so."""

    one_by_one = True

    def __init__(self, context: SourceContext) -> None:
        self.at = {"eu": EU, "us": US}[context.name]
        self.first = 0
        self.latest = 4

    def snapshot(self, *, take_in=True, full_refresh=False):  # noqa: ARG002
        return SourceSnapshot({self.at: self.first}, {self.at: self.latest})

    def batch_limit(self, reached):  # noqa: ARG002
        return 1_000


class World:
    """A pipeline of two sources without Spark, Kafka and registry; `broken`: name -> why none of its records can be read."""

    def __init__(self, root, monkeypatch):
        self.root = root
        self.broken: dict[str, Exception] = {}
        self.staged = Counter()
        monkeypatch.setattr(several, "class_of", lambda _: Topic)
        stage_by_hand(monkeypatch, self.stage)
        self.settings = load_settings(sources={"eu": {}, "us": {}}, lakehouse=str(root))
        self.source = SeveralSources(SourceContext(self.settings, None))

    def stage(self, pipeline, *planned):
        columns, part, batch, _ = planned[-4:]
        names = {p.source for p in part.end}
        self.staged["+".join(sorted(names))] += 1
        for name in names & self.broken.keys():
            raise self.broken[name]
        places = [(p, o) for p in part.end for o in range(part.start[p], part.end[p])]
        rows = [
            {SOURCE: p.source, "_kafka_topic_id": p.topic_id, "_kafka_partition": p.number, "_kafka_offset": o, "_batch": batch}
            for p, o in places
        ]
        files = staged(pipeline.bronze, pa.Table.from_pylist(rows, schema=bronze_schema(columns)))
        return StagedRows(files, [], set(), set(), Counter())

    def run(self):
        report = RunReport()
        load_bronze(reading(without_spark(self.root, sources={"eu": {}, "us": {}}), self.source), report)
        return report

    def pipeline(self):
        return without_spark(self.root, sources={"eu": {}, "us": {}}, freshness_s=100)

    def rows(self):
        bronze = self.pipeline().bronze
        return Counter(read_arrow(bronze, bronze.open(), [SOURCE])[SOURCE].to_pylist())

    def assert_sound(self):
        found = offsets_continuous(self.pipeline())
        assert found.passed, found.summary


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


def test_both_are_read_by_one_micro_batch(world):
    report = world.run()
    assert world.staged == {"eu+us": 1}
    assert world.rows() == {"eu": 4, "us": 4}
    assert (report.success, report.left_out) == (True, {})
    assert report.by_source == {"eu": {"read": 4, "lag": 0}, "us": {"read": 4, "lag": 0}}
    world.assert_sound()


@pytest.mark.parametrize("error", [TransientError("its registry"), DataError("its schema")])
def test_a_source_whose_records_cannot_be_read_is_set_aside_and_the_next_run_has_them(world, error):
    world.broken["us"] = error
    report = world.run()
    assert world.rows() == {"eu": 4}
    assert world.staged == {"eu+us": 1, "eu": 1, "us": 1}
    assert (report.success, report.left_out) == (False, {"us": str(error)})
    assert report.notices == [f"source us was left out, the next run catches up: {error}"]
    world.source._of["eu"].latest = 6
    assert world.run().by_source["eu"] == {"read": 2, "lag": 0}
    world.broken.clear()
    world.source._failed.clear()
    assert world.run().by_source == {"eu": {"lag": 0}, "us": {"read": 4, "lag": 0}}
    assert world.rows() == {"eu": 6, "us": 4}
    world.assert_sound()


def test_records_that_one_source_has_lost_stop_that_one_alone(world):
    world.run()
    world.source._of["us"].first = 6
    world.source._of["us"].latest = 8
    world.source._of["eu"].latest = 5
    report = world.run()
    assert world.rows() == {"eu": 5, "us": 4}
    assert "us/events[0]: offsets 4 to 5" in report.left_out["us"]


def test_a_failure_of_all_is_raised(world):
    world.broken |= {"eu": TransientError("the lakehouse"), "us": TransientError("the lakehouse")}
    with pytest.raises(TransientError, match="the lakehouse"):
        world.run()


def at_clock(monkeypatch, seconds):
    """Bronze's commits are made at this time."""
    monkeypatch.setattr(load, "time", SimpleNamespace(time=lambda: seconds, monotonic=time.monotonic))


def test_freshness_is_that_of_each_source_however_often_others_commit(world, monkeypatch):
    now = int(time.time())
    at_clock(monkeypatch, now - 150)
    world.run()
    assert fresh(world.pipeline(), now - 100).passed
    at_clock(monkeypatch, now)
    for end in (5, 6, 7):
        world.source._of["eu"].latest = end
        world.run()
    found = fresh(world.pipeline(), now)
    assert not found.passed
    assert "no records came from us for 150 s, 100 s are allowed" in found.summary
    assert (found.counts["seconds_since_eu"], found.counts["seconds_since_us"]) == (0, 150)


def test_a_source_that_never_sent_a_record_is_silent_since_it_came(world, monkeypatch):
    world.source._of["us"].latest = 0
    world.run()
    bronze = world.pipeline().bronze
    now = bronze.open().metadata().created_time / 1000 + 150
    put(bronze, OWN_COLUMNS.empty_table(), {"batch": 2, last_app("eu"): int(now)})
    monkeypatch.setattr(table_checks, "last_records", lambda *_: LastRecords(datetime.fromtimestamp(now, UTC)))
    assert "no records came from us for 150 s" in fresh(world.pipeline(), now).summary
    bronze_of_eu = Lakehouse(str(world.root / "other")).table(BRONZE)
    add(bronze_of_eu, 1, {EU: (0, 4)})
    at_clock(monkeypatch, 7_000)
    world.root = world.root / "other"
    world.run()
    assert bronze_of_eu.open().transaction_version(last_app("us")) == 7_000, "it came with this commit, without a record"


def test_files_that_are_all_read_are_no_silent_source(world, tmp_path):
    world.run()
    add(world.pipeline().bronze, 2, {Partition("old", str(UUID(int=1)), 0, "files", "old"): (0, 1)})
    chosen = {"eu": {}, "us": {}, "old": {"source": "files", "files_path": str(tmp_path)}}
    found = fresh(without_spark(world.root, sources=chosen, freshness_s=100), time.time() + 50)
    assert found.passed, found.summary
    assert "seconds_since_old" not in found.counts
