"""Sends events: `produce` (with faults, at a steady rate) and `produce_bulk` (as fast as possible).

Both register the schemas, create the topic, write records by the Confluent serializer, wait for all acknowledgements, and
return the manifest: the expected results in all tables. An undelivered record raises an error.
"""

import json
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Self, cast

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, prefix_schema_id_serializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.schema_registry.serde import SchemaId
from google.protobuf.message import DecodeError, Message
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, DataError, TransientError
from game_events.plugins.local.producer.messages import (
    BATCH_TUNING,
    BatchMessage,
    KafkaWriter,
    MessageShape,
    custom_columns,
)
from game_events.plugins.local.producer.simulator import (
    BulkSimulation,
    GameEvent,
    PoisonKind,
    SimulatedRecord,
    Simulation,
)
from game_events.plugins.local.settings import GAME_FIELDS, Fields
from game_events.schema_registry import FORBIDDEN, registry_client
from game_events.sources.kafka.client import ensure_topic
from game_events.sources.kafka.source import subject_of

#: The largest possible id of a registry (a Java int).
UNKNOWN_SCHEMA_ID = 2**31 - 1

#: 0 and 1 are magic bytes (schema id, schema GUID); this is neither.
WRONG_MAGIC = b"\x2a"

#: Every game event ends with a string of at least 8 bytes, so cutting this many always breaks it.
CUT_BYTES = 3

PACES_PER_S = 20

#: Tag of a string in field 1, and a length without content.
UNFINISHED = b"\x0a\x7f"


class EventEncoder:
    """Frames and serializes events, each with the schema id of its own version.

    With ``use.schema.id`` confluent-kafka 2.16.0 parses the registry's schema as a base64 FileDescriptorProto and fails on
    registered text (binascii.Error); without it, the serializer registers or looks up its own base64 form. So it runs without
    a context, which skips the registry, and the public option ``schema.id.serializer`` writes the id of the registered text.
    """

    def __init__(
        self, schema_ids: Mapping[int, int], registry: SchemaRegistryClient, shape: MessageShape | None = None
    ) -> None:
        """`schema_ids`: version -> schema id; `registry`: required by the serializer; `shape`: default: the game event."""
        self.shape = shape or MessageShape()
        self._names = tuple(name for name, _ in self.shape.fields)
        self._classes = {version: self.shape.versions.message_class(version) for version in schema_ids}
        self._serializers = {
            version: ProtobufSerializer(
                self._classes[version],
                registry,
                {"auto.register.schemas": False, "schema.id.serializer": framer(schema_id, self.shape.versions.index)},
            )
            for version, schema_id in schema_ids.items()
        }

    def event(self, event: GameEvent) -> bytes:
        """Frame and payload of one event."""
        return cast(bytes, self._serializers[event.version](self.message(event), None))  # None only for a None message

    def record(self, record: SimulatedRecord) -> bytes:
        """The value of a record, malformed if it has a poison kind."""
        if record.poison is None:
            return self.event(record.event)
        return self._malformed(record.poison, record.event, self.event(record.event))

    def message(self, event: GameEvent) -> Message:
        """The protobuf message of an event, in the class of its version."""
        shape = self.shape
        fields: dict[str, object] = {shape.entity: event.game, shape.key: event.gamer, shape.time: event.time}
        fields.update(zip(self._names, event.values, strict=True))
        for name, value in zip(custom_columns(event.version), event.custom, strict=True):
            if value is not None:
                fields[name] = value
        return cast(Callable[..., Message], self._classes[event.version])(**fields)

    def _malformed(self, kind: PoisonKind, event: GameEvent, frame: bytes) -> bytes:
        match kind:
            case PoisonKind.UNFRAMED_JSON:
                return json.dumps({self.shape.entity: event.game, self.shape.key: event.gamer}).encode()
            case PoisonKind.WRONG_MAGIC:
                return WRONG_MAGIC + frame[1:]
            case PoisonKind.TRUNCATED:
                return self._truncated(event.version, frame)
            case PoisonKind.UNKNOWN_SCHEMA:
                return frame[:1] + struct.pack(">I", UNKNOWN_SCHEMA_ID) + frame[5:]
            case PoisonKind.EMPTY:
                return b""

    def _truncated(self, version: int, frame: bytes) -> bytes:
        """A frame with a payload that ends within a field."""
        cut = frame[:-CUT_BYTES]
        head = len(framer(1, self.shape.versions.index)(b"", None, None))
        if len(frame) >= head + CUT_BYTES:
            try:
                self._classes[version].FromString(cut[head:])
            except DecodeError:
                return cut
        # The message is valid without its last bytes: append the start of a string of 127 bytes.
        return frame + UNFINISHED


def encode_pool(pool: list[SimulatedRecord], encoder: EventEncoder) -> list[BatchMessage]:
    """The pool as framed messages, key = gamer."""
    return [{"key": record.event.gamer.encode(), "value": encoder.record(record)} for record in pool]


def framer(schema_id: int, index: list[int]) -> Callable[[bytes, Any, Any], bytes]:
    """The ``schema.id.serializer`` of one version."""
    frame = SchemaId("PROTOBUF", schema_id, message_indexes=index)
    return lambda payload, ctx, _: prefix_schema_id_serializer(payload, ctx, frame)


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


#: In the file always with six digits, so that equal manifests are equal bytes.
Moment = Annotated[datetime, PlainSerializer(_iso, return_type=str, when_used="json")]


class NumberTruth(BaseModel):
    """Sum, minimum and maximum of one key's numeric field."""

    model_config = ConfigDict(frozen=True)

    total: float
    low: float
    high: float

    def merge(self, other: Self) -> Self:
        """Both together."""
        return type(self)(total=self.total + other.total, low=min(self.low, other.low), high=max(self.high, other.high))


class GamerTruth(BaseModel):
    """Expected gold values of one gamer, duplicates included, and aggregates of the numeric fields."""

    model_config = ConfigDict(frozen=True)

    session_count: int
    min_timestamp: Moment
    max_timestamp: Moment
    numbers: dict[str, NumberTruth] = Field(default_factory=dict)

    def merge(self, other: Self) -> Self:
        """Both together."""
        return type(self)(
            session_count=self.session_count + other.session_count,
            min_timestamp=min(self.min_timestamp, other.min_timestamp),
            max_timestamp=max(self.max_timestamp, other.max_timestamp),
            numbers={name: own.merge(other.numbers[name]) for name, own in self.numbers.items() if name in other.numbers},
        )


class Manifest(BaseModel):
    """All records sent to one topic.

    Attributes:
        records_total: Kafka records, poison included.
        records: {game: {version: decodable records, duplicates included}}.
        duplicates: number of repeated events among them.
        poison: {kind: records}.
        truth: {game: {gamer: truth}}.
    """

    model_config = ConfigDict(frozen=True)

    topic: str
    seeds: tuple[int, ...]
    schema_ids: dict[int, int]
    records_total: int = 0
    records: dict[str, dict[int, int]] = Field(default_factory=dict)
    duplicates: int = 0
    poison: dict[PoisonKind, int] = Field(default_factory=dict)
    truth: dict[str, dict[str, GamerTruth]] = Field(default_factory=dict)

    @property
    def decodable(self) -> int:
        """Records that silver must hold, over all games."""
        return sum(sum(by_version.values()) for by_version in self.records.values())

    def merge(self, other: Self) -> Self:
        """This wave and another one; DataError for another topic, or other schema ids."""
        if self.topic != other.topic:
            raise DataError(f"manifests of two topics do not add up: {self.topic!r} and {other.topic!r}")
        for version in self.schema_ids.keys() & other.schema_ids.keys():
            own = self.schema_ids[version]
            others = other.schema_ids[version]
            if own != others:
                raise DataError(f"version {version} of {self.topic!r} has schema id {own} and {others}: registry reset?")
        truth = {game: dict(gamers) for game, gamers in self.truth.items()}
        for game, gamers in other.truth.items():
            known = truth.setdefault(game, {})
            for gamer, value in gamers.items():
                known[gamer] = known[gamer].merge(value) if gamer in known else value
        return type(self)(
            topic=self.topic,
            seeds=self.seeds + other.seeds,
            schema_ids=self.schema_ids | other.schema_ids,
            records_total=self.records_total + other.records_total,
            records={
                game: dict(Counter(self.records.get(game, {})) + Counter(other.records.get(game, {})))
                for game in self.records | other.records
            },
            duplicates=self.duplicates + other.duplicates,
            poison=dict(Counter(self.poison) + Counter(other.poison)),
            truth=truth,
        )

    def save(self, path: Path) -> None:
        """Write JSON atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".tmp")
        draft.write_text(self.model_dump_json(indent=1) + "\n", "utf-8")
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a saved manifest."""
        return cls.model_validate_json(path.read_text("utf-8"))


class ManifestBuilder:
    """Counts records as they are sent."""

    def __init__(self, fields: Fields = GAME_FIELDS) -> None:
        """`fields`: fields of the events' values; numeric ones are aggregated."""
        self._numeric = [(place, name) for place, (name, generator) in enumerate(fields) if generator.numeric]
        self._records: dict[str, Counter[int]] = defaultdict(Counter)
        self._poison: Counter[PoisonKind] = Counter()
        self._duplicates = 0
        self._truth: dict[str, dict[str, GamerTruth]] = defaultdict(dict)

    def add(self, record: SimulatedRecord, times: int = 1) -> None:
        """One record of the simulation that was sent `times` times."""
        if record.poison is not None:
            self._poison[record.poison] += times
            return
        event = record.event
        self._duplicates += times - 1 + record.duplicate
        self._records[event.game][event.version] += times
        numbers = {}
        for place, name in self._numeric:
            value = cast(float, event.values[place])
            numbers[name] = NumberTruth(total=value * times, low=value, high=value)
        more = GamerTruth(session_count=times, min_timestamp=event.time, max_timestamp=event.time, numbers=numbers)
        known = self._truth[event.game].get(event.gamer)
        self._truth[event.game][event.gamer] = more if known is None else known.merge(more)

    def build(self, topic: str, seed: int, schema_ids: dict[int, int]) -> Manifest:
        """The manifest of everything added."""
        return Manifest(
            topic=topic,
            seeds=(seed,),
            schema_ids=schema_ids,
            records_total=sum(counts.total() for counts in self._records.values()) + self._poison.total(),
            records={game: dict(sorted(counts.items())) for game, counts in self._records.items()},
            duplicates=self._duplicates,
            poison=dict(self._poison),
            truth={game: dict(sorted(gamers.items())) for game, gamers in self._truth.items()},
        )


def produce(settings: Settings, simulation: Simulation, *, partitions: int = 4, rate: float | None = None) -> Manifest:
    """Send one wave of simulated events, with the fields of the settings' message.

    `partitions`: of a new topic; `rate`: records per second, None: as fast as possible.

    Raises:
        ConfigurationError: refused by broker or registry.
        TransientError: not reachable, or a record was not delivered.
    """
    encoder, schema_ids = _prepare(settings, simulation.version_numbers, partitions)
    simulation = simulation.model_copy(update={"fields": encoder.shape.fields})
    truth = ManifestBuilder(simulation.fields)
    # Often enough to look steady, rare enough to cost nothing.
    at_once = 1_000 if rate is None else max(1, min(1_000, int(rate / PACES_PER_S)))
    began = time.monotonic()
    with KafkaWriter(settings) as writer:
        for sent, record in enumerate(simulation.records(), 1):
            writer.write(encoder.record(record), record.event.gamer.encode(), {settings.names.entity: record.event.game})
            truth.add(record)
            if sent % at_once == 0:
                writer.poll()
                if rate is not None:
                    time.sleep(max(0.0, began + sent / rate - time.monotonic()))
    return truth.build(settings.produced_topic, simulation.seed, schema_ids)


def produce_bulk(settings: Settings, simulation: BulkSimulation, *, partitions: int = 4) -> Manifest:
    """Send a bulk load, without headers (librdkafka's batch call has none); otherwise as `produce`."""
    encoder, schema_ids = _prepare(settings, simulation.version_numbers, partitions)
    simulation = simulation.model_copy(update={"fields": encoder.shape.fields})
    pool = simulation.pool()
    messages = encode_pool(pool, encoder)
    with KafkaWriter(settings, BATCH_TUNING) as writer:
        for batch in simulation.batches(messages):
            writer.write_batch(batch)
    truth = ManifestBuilder(simulation.fields)
    for record, times in zip(pool, simulation.times_sent(len(pool)), strict=True):
        truth.add(record, times)
    return truth.build(settings.produced_topic, simulation.seed, schema_ids)


def _prepare(settings: Settings, versions: tuple[int, ...], partitions: int) -> tuple[EventEncoder, dict[int, int]]:
    """Check the message, then create the topic, then register: an unavailable broker leaves no schemas behind."""
    shape = MessageShape.of(settings)
    ensure_topic(settings, partitions)
    registry = registry_client(settings)
    schema_ids = register_versions(registry, settings, versions)
    return EventEncoder(schema_ids, registry, shape), schema_ids


def register_versions(client: SchemaRegistryClient, settings: Settings, versions: Iterable[int]) -> dict[int, int]:
    """Register each version under ``<topic>-value``, lowest first; returns {version: schema id}. Idempotent.

    Raises:
        ConfigurationError: a message that does not compile, refused login, wrong address, or an incompatible version.
        TransientError: the registry cannot be reached, or answers with a server error.
    """
    subject = subject_of(settings.produced_topic)
    shape = MessageShape.of(settings)
    return {v: _register(client, settings, subject, v, shape.versions.text(v)) for v in sorted(versions)}


def _register(client: SchemaRegistryClient, settings: Settings, subject: str, version: int, text: str) -> int:
    what = f"schema registry {settings.schema_registry_url}, subject {subject!r}, version {version}"
    try:
        return client.register_schema(subject, Schema(text, "PROTOBUF"))
    except SchemaRegistryError as error:
        status = error.http_status_code
        if status in FORBIDDEN:
            raise ConfigurationError(
                f"{what}: login refused (HTTP {status}): check GAME_EVENTS_SCHEMA_REGISTRY_USER and "
                "GAME_EVENTS_SCHEMA_REGISTRY_PASSWORD"
            ) from None
        if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:  # a retry may help
            raise TransientError(f"{what}: {error}") from error
        raise ConfigurationError(f"{what}: not accepted ({error}): check the address and the compatibility level") from error
    except (httpx2.HTTPError, OSError, ValueError) as error:
        raise TransientError(
            f"{what}: no usable answer ({type(error).__name__}: {error}): "
            "is GAME_EVENTS_SCHEMA_REGISTRY_URL right, and is it up?"
        ) from error
