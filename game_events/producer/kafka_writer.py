"""Writes records to the topic, one by one or in batches, and checks their delivery.

Delivery: every accepted record exactly once and in order per partition (idempotent producer), or an error.
"""

import time
from typing import Any, Self, TypedDict

from confluent_kafka import KafkaError, Message, Producer

from game_events.config.settings import Settings
from game_events.errors import GameEventsError
from game_events.sources.kafka.client import CauseMemory, client_options, new_client

#: The manifest is exact only if a retry does not write twice. With replication 1 acks=all costs what acks=1 costs.
DEFAULTS: dict[str, object] = {
    "enable.idempotence": True,
    "delivery.report.only.error": True,
    # librdkafka's default is 5 minutes.
    "message.timeout.ms": 60_000,
    "linger.ms": 20,
    "compression.type": "lz4",
}
#: Messages of one call into librdkafka.
BATCH = 10_000
#: Messages that may wait in librdkafka: about 100 MB at 90 bytes each.
QUEUE_LIMIT = 500_000
#: For batches. Measured on 2 cores against one broker on the same machine.
BATCH_TUNING: dict[str, object] = {
    "linger_ms": 50,
    "batch_num_messages": 100_000,
    "batch_size": 1_000_000,
    "queue_buffering_max_messages": QUEUE_LIMIT + BATCH,
    "queue_buffering_max_kbytes": 1_000_000,
}
#: Seconds to serve callbacks before checking again for free space in the queue.
QUEUE_ROOM_S = 0.05


class BatchMessage(TypedDict):
    """One message for `Producer.produce_batch` (which knows no headers)."""

    key: bytes
    value: bytes


class KafkaWriter:
    """A producer for one topic; a context manager that waits for the delivery of all records at its end."""

    def __init__(self, settings: Settings, **tuning: object) -> None:
        """`tuning`: librdkafka options with ``_`` for ``.``, overridden by settings; ConfigurationError for a bad one."""
        self.topic = settings.produced_topic
        self._header = settings.names.entity
        self._memory = CauseMemory(settings.kafka_bootstrap_servers)
        self._failure: GameEventsError | None = None
        defaults = DEFAULTS | {key.replace("_", "."): value for key, value in tuning.items()}
        self._producer = new_client(Producer, client_options(settings, defaults) | {"error_cb": self._memory})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Flush; after an error (also Ctrl-C) drop queued records."""
        if kind is None:
            self.flush()
        else:
            self._producer.purge()

    def write(self, value: bytes, key: bytes, game: str) -> None:
        """Queue one record, with the game as header; GameEventsError if an earlier record was not delivered."""
        while True:
            try:
                headers: list[Any] = [(self._header, game.encode())]
                self._producer.produce(self.topic, value, key, on_delivery=self._on_delivery, headers=headers)
            except BufferError:
                self.poll(QUEUE_ROOM_S)
            else:
                return

    def write_batch(self, messages: list[BatchMessage]) -> None:
        """Queue a batch once fewer than `QUEUE_LIMIT` messages are queued; raises as `write`."""
        while len(self._producer) >= QUEUE_LIMIT:
            self.poll(QUEUE_ROOM_S)
        batch: list[Any] = list(messages)
        queued = self._producer.produce_batch(self.topic, batch, on_delivery=self._on_delivery)
        if queued != len(messages):
            raise self._memory.explain(f"{len(messages) - queued} records did not fit librdkafka's queue")
        self.poll()

    def poll(self, timeout_s: float = 0) -> None:
        """Serve callbacks, and check for failed deliveries; raises as `write`."""
        self._producer.poll(timeout_s)
        self._check()

    def flush(self) -> None:
        """Wait until all records are acknowledged; raises as `write`."""
        while self._producer.flush(QUEUE_ROOM_S):
            self._check()
        self._check()

    def _check(self) -> None:
        if self._failure is None and self._memory.refused:
            self._failure = self._memory.explain(f"writing to {self.topic}")
        if self._failure is not None:
            raise self._failure

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failure is None:
            where = f"{message.topic()}[{message.partition()}]"
            self._failure = self._memory.explain(f"record not delivered to {where} ({error.str()})", error)


class Pacer:
    """Keeps a steady rate by sleeping between chunks."""

    #: Chunks per second: often enough to look steady, rare enough to cost nothing.
    STEPS = 20

    def __init__(self, rate: float | None) -> None:
        """`rate`: records per second; None: as fast as possible."""
        self._rate = rate
        self._start = time.monotonic()
        self.chunk = 1_000 if rate is None else max(1, min(1_000, int(rate / self.STEPS)))

    def pace(self, sent: int) -> None:
        """Sleep until `sent` records are due."""
        if self._rate is not None:
            time.sleep(max(0.0, self._start + sent / self._rate - time.monotonic()))
