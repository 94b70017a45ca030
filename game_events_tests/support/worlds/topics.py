"""What happens to a topic: records to chosen partitions, expiry, deletion, new partitions, transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from game_events.config.settings import Settings
from game_events.pipeline.context import Pipeline
from game_events_tests.support.pipelines import at_progress
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.quality import SCHEMA, Event, encoded
from game_events_tests.support.worlds.topic import register


def admin(settings: Settings) -> AdminClient:
    return AdminClient({"bootstrap.servers": settings.kafka_bootstrap_servers, "log_level": 2})


def make_topic(settings: Settings, partitions: int = 1) -> None:
    """Make it; right after a delete the name may be taken for a moment."""

    client = admin(settings)  # without a name it would be gone before it has its answer

    def made() -> bool:
        try:
            topic = NewTopic(settings.kafka_topic, partitions, 1)
            client.create_topics([topic])[settings.kafka_topic].result(30)
        except KafkaException:
            return False
        return True

    until(made, 30, what="the topic")


def make_anew(settings: Settings, partitions: int = 1) -> None:
    """Delete the topic and make one of the same name."""
    client, old = admin(settings), topic_id(settings)
    client.delete_topics([settings.kafka_topic])[settings.kafka_topic].result(30)
    make_topic(settings, partitions)
    # The broker has agreed before it tells of the new topic to those who ask.
    until(lambda: topic_id(settings) not in (None, old), 30, what="the new topic")


def topic_id(settings: Settings) -> str | None:
    """That of the topic that the broker knows now."""
    client = admin(settings)
    asked = client.describe_topics(TopicCollection([settings.kafka_topic]))
    try:
        return str(asked[settings.kafka_topic].result(30).topic_id)
    except KafkaException:
        return None


def add_partitions(settings: Settings, total: int) -> None:
    client = admin(settings)
    asked = client.create_partitions([NewPartitions(settings.kafka_topic, total)])
    asked[settings.kafka_topic].result(30)


def expire(settings: Settings, before: dict[int, int]) -> None:
    """Kafka forgets the records before these offsets of its partitions."""
    asked = [TopicPartition(settings.kafka_topic, p, o) for p, o in before.items()]
    client = admin(settings)
    for future in client.delete_records(asked).values():
        future.result(30)


def framed(settings: Settings, events: Iterable[Event]) -> list[bytes]:
    frame = b"\0" + register(settings, SCHEMA).to_bytes(4, "big") + b"\0"
    return [frame + encoded(event) for event in events]


def put(settings: Settings, events: Iterable[Event | bytes], partition: int = 0, timestamp: int | None = None) -> None:
    """Events, or any bytes, at the end of a partition of the topic that there is."""
    producer = Producer({"bootstrap.servers": settings.kafka_bootstrap_servers})
    for event in events:
        value = event if isinstance(event, bytes) else framed(settings, [event])[0]
        extra = {} if timestamp is None else {"timestamp": timestamp}
        producer.produce(settings.kafka_topic, value, partition=partition, on_delivery=delivered, **extra)
    assert producer.flush(60) == 0


def delivered(error: KafkaError | None, _message: Message) -> None:
    assert error is None, error


def transaction(settings: Settings, events: Iterable[Event], partition: int = 0) -> Producer:
    """A producer with these events in a transaction that is neither committed nor aborted."""
    producer = Producer({"bootstrap.servers": settings.kafka_bootstrap_servers, "transactional.id": settings.kafka_topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in framed(settings, events):
        producer.produce(settings.kafka_topic, value, partition=partition)
    assert producer.flush(60) == 0
    return producer


def before_reading(pipeline: Pipeline, action: Callable[[], None]) -> tuple[Pipeline, list[str]]:
    """The pipeline, with an action once a slice is planned and Spark is about to read it; the list then is not empty."""
    happened: list[str] = []

    def at_message(message: str) -> None:
        if message.startswith("bronze: ") and not happened:
            happened.append(message)
            action()

    return at_progress(pipeline, at_message), happened
