"""Which topics and partitions the settings mean; the broker's answers are made by hand."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from game_events.config.settings import Settings, load_settings
from game_events.errors import ConfigurationError, TransientError
from game_events.lakehouse.tables import Lakehouse
from game_events.sources.kafka.reader import DEFAULTS, REQUIRED, Range
from game_events.sources.kafka.source import KafkaAdmin, KafkaSource
from game_events.sources.source import MicroBatch, Partition, SourceContext


def settled(answer):
    found = Future()
    (found.set_exception if isinstance(answer, Exception) else found.set_result)(answer)
    return found


class Broker:
    """Topics: name -> number of partitions; `listed`: names that it told of before some were deleted."""

    def __init__(self, listed=(), **topics):
        self.topics, self.listed, self.ids = topics, listed, {}

    def list_topics(self, timeout):  # noqa: ARG002
        names = ["__consumer_offsets", "__transaction_state", *self.listed, *self.topics]
        return SimpleNamespace(topics=dict.fromkeys(names))

    def describe_topics(self, asked, request_timeout):  # noqa: ARG002
        return {name: settled(self.describe(name)) for name in asked.topic_names}

    def describe(self, name):
        if name not in self.topics:
            return KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such topic"))
        topic_id = self.ids.get(name, f"id of {name}")
        return SimpleNamespace(topic_id=topic_id, partitions=[SimpleNamespace(id=n) for n in range(self.topics[name])])

    def list_offsets(self, asked, **_):
        return {place: settled(SimpleNamespace(offset=place.partition, leader_epoch=None)) for place in asked}


def source(broker, **given):
    settings = Settings(**given)
    return KafkaSource(SourceContext(settings, Lakehouse.of(settings)), KafkaAdmin(settings, connect=lambda _: broker))


def places(found):
    return sorted((split.topic, split.topic_id, split.number) for split in found.latest)


def test_a_list_is_these_topics_with_all_their_partitions():
    found = source(Broker(a=2, b=1, c=1), kafka_topic="a, b").snapshot()
    assert places(found) == [("a", "id of a", 0), ("a", "id of a", 1), ("b", "id of b", 0)]
    with pytest.raises(ConfigurationError, match="has no topic 'x', 'y': create it, or set GAME_EVENTS_KAFKA_TOPIC"):
        source(Broker(a=1), kafka_topic="a,x,y").snapshot()


def test_a_pattern_matches_whole_names_and_never_kafkas_own_and_a_topic_that_goes_meanwhile_is_left_out():
    broker = Broker(listed=["ab"], a=1, aa=1, ba=1)
    watching = source(broker, kafka_topic_pattern="a.*|.*offsets")
    assert [topic for topic, *_ in places(watching.snapshot())] == ["a", "aa"]
    broker.topics["ac"] = 1
    assert [topic for topic, *_ in places(watching.snapshot())] == ["a", "aa", "ac"]
    # It may be made later, so a loop waits for it.
    with pytest.raises(
        TransientError, match=r"no topic that matches 'z\.\*': create one, or correct GAME_EVENTS_KAFKA_TOPIC_PATTERN"
    ):
        source(broker, kafka_topic_pattern="z.*").snapshot()


def test_workers_get_a_clients_options_that_users_may_replace_but_not_those_that_the_reading_depends_on():
    split = Partition("a", "id of a", 0)
    batch = MicroBatch({split: 3}, {split: 9}, {})
    given = {"fetch.max.bytes": "1000000", "check.crcs": "false", "ssl.key.password": "secret"}
    found = source(Broker(a=1), kafka_options=given).reading(batch)
    assert (found.options["fetch.max.bytes"], found.options["ssl.key.password"]) == ("1000000", "secret")
    assert found.options["fetch.wait.max.ms"] == DEFAULTS["fetch.wait.max.ms"]
    assert {name: found.options[name] for name in REQUIRED} == REQUIRED
    assert found.parts == [[Range(split, 3, 9)]]
    assert "secret" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301 - our own bytes


def test_partitions_that_are_assigned_are_these_and_one_that_is_not_there_is_named():
    found = source(Broker(a=3, b=1), kafka_assign={"a": [2, 0]}).snapshot()
    assert places(found) == [("a", "id of a", 0), ("a", "id of a", 2)]
    with pytest.raises(ConfigurationError, match=r"has no partition a\[3\], b\[1\]: correct GAME_EVENTS_KAFKA_ASSIGN"):
        source(Broker(a=3, b=1), kafka_assign={"a": [0, 3], "b": [1]}).snapshot()


@pytest.mark.parametrize("no_id", ["A" * 22, None])
def test_topics_without_an_id_are_refused_as_one_that_is_made_anew_could_not_be_told_from_the_old_one(no_id):
    broker = Broker(a=1, b=1)
    broker.ids = {"b": no_id}
    with pytest.raises(ConfigurationError, match=r"gives topic b no id.*Ids come with Kafka 2\.8.*GAME_EVENTS_SOURCE=files"):
        source(broker, kafka_topic="a,b").snapshot()


def test_a_topic_that_is_made_anew_while_it_is_read_is_noticed():
    reading = source(Broker(a=1, b=1), kafka_topic="a,b")
    a, b = Partition("a", "id of a", 0), Partition("b", "other", 0)
    assert reading.changed(MicroBatch({a: 0}, {a: 1})) is None
    assert reading.changed(MicroBatch({a: 0, b: 0}, {a: 1, b: 1})) == "topic b was deleted and made again while it was read"
    assert reading.subjects([b, a, a]) == ("a-value", "b-value")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kafka_topic": "a,a"}, "KAFKA_TOPIC: .*each once"),
        ({"kafka_topic": "a b"}, "KAFKA_TOPIC: .*letters, digits"),
        ({"kafka_topic_pattern": "("}, "KAFKA_TOPIC_PATTERN: .*not a regular expression"),
        ({"kafka_assign": {"a": []}}, "KAFKA_ASSIGN: .*its partitions"),
        (
            {"kafka_assign": {"a": [0]}, "source_table": "/lake/bronze_events"},
            "KAFKA_ASSIGN and SOURCE_TABLE exclude each other",
        ),
        ({"starting_offsets": '{"a": {"0": -3}}'}, "STARTING_OFFSETS.*greater than or equal to -2"),
        ({"source_table": "s3://key:secret@bucket/bronze_events"}, "SOURCE_TABLE: .*no key or password"),
    ],
)
def test_settings_of_the_source_that_mean_nothing_are_named(given, says):
    with pytest.raises(ConfigurationError, match=says) as caught:
        load_settings(**given)
    assert "secret@" not in str(caught.value)
