"""Several topics in one bronze: by a list, a pattern or partitions; topics that join, go, and are beside rivals and crashes."""

from __future__ import annotations

import json
import uuid

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer

from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.checks.table_checks import offsets_continuous, offsets_lost, offsets_unique
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.pending import backlog, read_lag
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events_tests.support.fixtures.crashes import crash  # noqa: F401 - a fixture
from game_events_tests.support.fixtures.files import file_settings, landing  # noqa: F401 - fixtures
from game_events_tests.support.reconciliation import coordinates, count, gold, rows
from game_events_tests.support.worlds.file_samples import protobuf
from game_events_tests.support.worlds.file_samples import put as put_file
from game_events_tests.support.worlds.quality import Event
from game_events_tests.support.worlds.topic import register
from game_events_tests.support.worlds.topics import admin, before_reading, expire, make_topic, put

EVENT = [Event("uno", gamer="ann")]
BAD = [b"no frame"]
#: Another message, in a subject of its own; its payload is written by hand: game_name, gamer_id, score.
MATCH = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Match { string game_name = 1; string gamer_id = 2; google.protobuf.Timestamp event_timestamp = 3; int64 score = 7; }
"""
MATCHES = [b"\x0a\x03uno\x12\x03bob\x1a\x02\x08\x09\x38" + bytes([n]) for n in range(1, 4)]


@pytest.fixture
def named(make_settings):
    """Settings of topics with a common beginning: (of one topic, by its last letter; of whatever else is said)."""
    prefix = f"t{uuid.uuid4().hex[:8]}"

    def of(letters="", **more):
        return make_settings(kafka_topic=",".join(f"{prefix}.{letter}" for letter in letters or "a"), **more)

    of.prefix = prefix
    return of


def put_matches(settings, partition=0):
    frame = b"\0" + register(settings, MATCH).to_bytes(4, "big") + b"\0"
    producer = Producer({"bootstrap.servers": settings.kafka_bootstrap_servers})
    for match in MATCHES:
        producer.produce(settings.kafka_topic, frame + match, partition=partition)
    assert producer.flush(60) == 0


def load(pipeline):
    report = RunReport()
    load_bronze(pipeline, report)
    return report


def held(settings, prefix):
    """Last letter of the topic -> partition and offset of each record, in bronze or quarantine."""
    found: dict[str, list[tuple[int, int]]] = {}
    for topic, partition, offset in sorted(coordinates(settings, BRONZE) + coordinates(settings, QUARANTINE)):
        found.setdefault(topic.removeprefix(f"{prefix}."), []).append((partition, offset))
    return found


def assert_told(pipeline):
    for check in (offsets_continuous(pipeline), offsets_unique(pipeline)):
        assert check.passed, check.summary


def first(count, partition=0):
    return [(partition, offset) for offset in range(count)]


def test_topics_with_subjects_and_messages_of_their_own_share_one_bronze_and_join_and_leave_it(named, make_pipeline):
    one, other, both = named("a"), named("b"), named("ab", max_records_per_batch=4, consumer_group=named.prefix)
    make_topic(one, 2)
    put(one, [*EVENT * 2, *BAD], 0)
    put(one, EVENT, 1)
    assert load(make_pipeline(one)).rows("bronze") == 3
    # A topic with a past joins: what it has forgotten before was never bronze's.
    make_topic(other)
    put(other, BAD)
    expire(other, {0: 1})
    put_matches(other)
    pattern = named(kafka_topic_pattern=rf"{one.kafka_topic[:-1]}[ab]")
    assert read_lag(pattern, 15).total_lag == sum(backlog(make_pipeline(pattern)).records.values()) == 3
    report = refresh(make_pipeline(pattern))
    assert report.success
    assert (report.gaps, report.notices) == ([], [f"topic {other.kafka_topic} joins: all that it has is read"])
    assert report.to_dict()["offsets"] == {f"{other.kafka_topic}[0]": [1, 4]}
    assert list(report.new_schemas.values()) == [(f"{other.kafka_topic}-value", 1)]
    assert rows(pattern, BRONZE, "SELECT sum(score), count(DISTINCT _kafka_topic_id) FROM t") == [(6, 2)]
    assert dict(rows(pattern, "gold_uno_player_agg", "SELECT gamer_id, session_count FROM t")) == {"ann": 3, "bob": 3}
    # Slices are shared between the partitions of both.
    put(one, EVENT * 6, 0)
    put(other, EVENT * 6)
    report = load(make_pipeline(both))
    assert (len(report.batches), report.notices) == (3, [])
    assert {(p.topic, p.number): at for p, at in report.offsets.items()} == {
        (one.kafka_topic, 0): (3, 9),
        (other.kafka_topic, 0): (4, 10),
    }
    assert held(both, named.prefix) == {"a": sorted([*first(9), (1, 0)]), "b": first(10)[1:]}
    assert_told(make_pipeline(both))
    client = admin(both)  # without a name it would be gone before it has its answer
    asked = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(named.prefix)])
    told = asked[named.prefix].result(30).topic_partitions
    assert {(p.topic[-1], p.partition): p.offset for p in told} == {("a", 0): 9, ("a", 1): 1, ("b", 0): 10}

    # With a list, a topic that is gone is a mistake; with a pattern it is a loss.
    client.delete_topics([other.kafka_topic])[other.kafka_topic].result(30)
    with pytest.raises(ConfigurationError, match=f"has no topic '{other.kafka_topic}'"):
        load(make_pipeline(both))
    with pytest.raises(DataError, match=rf"{other.kafka_topic}\[0\] of the topic that was deleted.*from offset 10 on"):
        load(make_pipeline(pattern))
    assert not read_lag(pattern, 15).made, "the sensor asks for the run that says so"
    going_on = pattern.model_copy(update={"on_data_loss": "record_gap"})
    assert [str(gap.topic) for gap in load(make_pipeline(going_on)).gaps] == [other.kafka_topic]
    assert load(make_pipeline(pattern)).gaps == [], "once"
    # Recreated, it is read from its start, and its end is not reported a second time.
    make_topic(other)
    put(other, EVENT)
    assert load(make_pipeline(pattern)).rows("bronze") == 1
    assert offsets_lost(make_pipeline(pattern)).counts["gaps"] == 1
    assert_told(make_pipeline(pattern))


def test_partitions_and_offsets_that_are_named_are_where_a_new_bronze_starts(named, make_pipeline, tmp_path):
    one, other = named("a"), named("b")
    for settings in (one, other):
        make_topic(settings, 2)
        put(settings, EVENT * 4, 0)
        put(settings, EVENT * 2, 1)

    def started(number, **more):
        settings = named("ab", lakehouse=str(tmp_path / f"lakehouse_{number}"), **more)
        load(make_pipeline(settings))
        return held(settings, named.prefix)

    assigned = {"kafka_assign": {one.kafka_topic: [1], other.kafka_topic: [0]}}
    assert started(1, **assigned) == {"a": first(2, 1), "b": first(4)}
    offsets = {one.kafka_topic: {"0": 3, "1": -1}, other.kafka_topic: {"1": -2}}
    assert started(2, starting_offsets=json.dumps(offsets)) == {"a": [(0, 3)], "b": first(4) + first(2, 1)}
    assert started(3, starting_offsets="latest") == {}
    for wrong, says in (
        ({"x": {"0": 0}}, "names x\\[0\\], which is not"),
        ({one.kafka_topic: {"0": 5}}, "ends at 4, before 5"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            started(4, starting_offsets=json.dumps(wrong))
    with pytest.raises(ConfigurationError, match=r"has no partition .*\.a\[7\]: correct GAME_EVENTS_KAFKA_ASSIGN"):
        started(5, kafka_assign={one.kafka_topic: [7]})


def test_a_rival_that_meets_a_new_topic_first_and_a_crash_between_two_tables_leave_every_record_once(
    named,
    make_pipeline,
    crash,  # noqa: F811 - the fixture
):
    one, other, both = named("a"), named("b"), named("ab")
    for settings in (one, other):
        make_topic(settings)
        put(settings, EVENT * 2 + BAD)
    crash("quarantine_committed", using=both)
    assert (count(both, BRONZE), count(both, QUARANTINE)) == (0, 2)
    put(other, EVENT + BAD)  # the next slice has another end
    pattern = named(kafka_topic_pattern=rf"{one.kafka_topic[:-1]}.")
    late = named("c")

    def other_run():
        make_topic(late)
        put(late, EVENT + BAD)
        put(one, EVENT)
        load(make_pipeline(pattern))

    pipeline, happened = before_reading(make_pipeline(both), other_run)
    load(pipeline)
    assert happened
    assert held(pattern, named.prefix) == {"a": first(4), "b": first(5), "c": first(2)}
    assert (count(pattern, BRONZE), count(pattern, QUARANTINE)) == (7, 4)
    put(late, EVENT)
    assert load(make_pipeline(pattern)).rows("bronze") == 1
    assert_told(make_pipeline(pattern))


def test_a_full_refresh_of_bronze_leaves_what_is_not_named_just_now_as_it_is(named, make_pipeline):
    """Nobody would read it again: its offsets stay."""
    both, one, part = named("ab"), named("a"), {f"{named.prefix}.a": [1]}
    make_topic(one, 2)
    make_topic(named("b"))
    put(one, [*EVENT * 3, *BAD], 0)
    put(one, EVENT * 2, 1)
    put(named("b"), [*EVENT * 2, *BAD, *EVENT])
    refresh(make_pipeline(both))
    before = held(both, named.prefix)
    expire(one, {0: 1})
    expire(named("b"), {0: 3})
    allowed = named("a", allow_bronze_full_refresh=True)
    report = refresh(make_pipeline(allowed), selection=selection_of(make_pipeline(allowed), full_refresh=["bronze"]))
    assert report.success, report.errors
    assert report.expired == 1, "of topic b nothing was looked for"
    assert "3 rows of bronze_events stay: of topics that are not read now" in report.notices
    assert held(both, named.prefix) == before | {"a": before["a"][1:]}
    assert gold(both, "uno")["ann"][0] == 4 + 3
    assert_told(make_pipeline(both))

    assigned = named("a", kafka_assign=part, allow_bronze_full_refresh=True)
    report = refresh(make_pipeline(assigned), selection=selection_of(make_pipeline(assigned), full_refresh=["bronze"]))
    assert "5 rows of bronze_events stay: of topics that are not read now" in report.notices
    assert held(both, named.prefix) == before | {"a": before["a"][1:]}
    put(named("b"), EVENT * 2)
    assert refresh(make_pipeline(both)).rows("bronze") == 2, "it goes on where it was"
    assert gold(both, "uno")["ann"][0] == 4 + 3 + 2
    assert_told(make_pipeline(both))


def test_a_topic_and_files_fill_one_bronze_in_turn_and_each_continues_where_it_was(
    named,
    make_pipeline,
    landing,  # noqa: F811 - the fixture
    file_settings,  # noqa: F811 - the fixture
):
    topic = named()
    make_topic(topic)
    of_files = ("source", "files_path", "files_schema", "files_message_type", "files_settle_s")
    files = topic.model_copy(update={name: getattr(file_settings, name) for name in of_files})
    read = []
    for number, settings in enumerate((topic, files, topic, files)):
        put(topic, EVENT)
        put_file(landing, f"{number}.pb", protobuf(range(number, number + 1)))
        report = refresh(make_pipeline(settings))
        assert report.success, report.errors
        read.append(report.rows("bronze"))
    # Each turn reads what has come to its own source since its last one.
    assert read == [1, 2, 2, 2]
    by_source = rows(topic, BRONZE, "SELECT _file_path IS NULL, count(*) FROM t GROUP BY ALL ORDER BY ALL")
    assert by_source == [(False, 4), (True, 3)]
    silver = sum(rows(topic, f"silver_{game}_events", "SELECT count(*) FROM t")[0][0] for game in ("uno", "chess", "rummy"))
    assert silver == 7
