"""The simulated message, and how records are written to the topic.

Version k of the message is the base `.proto` text with k optional custom columns. Delivery: every accepted record exactly once
and in order per partition (idempotent producer), or an error.
"""

import math
import struct
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import as_file, files
from pathlib import Path
from random import Random
from typing import Any, Literal, Self, cast

from confluent_kafka import KafkaError, Producer
from confluent_kafka import Message as KafkaMessage
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, GameEventsError
from game_events.plugins.local.settings import GAME_FIELDS, Fields, Generator, SampleDataSettings
from game_events.sources.kafka.client import CauseMemory, client_options, new_client

MAX_VERSION = 10

FILE_NAME = "game_event.proto"

CUSTOM = "col_custom_{}"


def custom_columns(version: int) -> tuple[str, ...]:
    """Names of version k's custom columns: ``col_custom_0 .. col_custom_{k-1}``."""
    if not 1 <= version <= MAX_VERSION:
        raise ConfigurationError(f"schema version {version} does not exist: give 1 .. {MAX_VERSION}")
    return tuple(CUSTOM.format(index) for index in range(version))


class ProtoVersions:
    """Versions 1 .. 10 of a message, which must be the last one in its `.proto` file."""

    #: All custom columns.
    custom = custom_columns(MAX_VERSION)

    def __init__(self, base: str, file: str) -> None:
        """`base`: text without custom columns, compiled later; `file`: its name, for errors."""
        self._base = base
        self._file = file
        self._classes: dict[int, type[Message]] = {}

    @cached_property
    def _described(self) -> FileDescriptorProto:
        file = compile_text(self._base, self._file).file[-1]
        if not file.message_type:
            raise ConfigurationError(f"{self._file} has no message")
        return file

    @property
    def message_name(self) -> str:
        """Full name of the message."""
        name = self._described.message_type[-1].name
        return f"{self._described.package}.{name}" if self._described.package else name

    @property
    def index(self) -> list[int]:
        """Message indexes in a record's frame."""
        return [len(self._described.message_type) - 1]

    def text(self, version: int) -> str:
        """The registered `.proto` text; ConfigurationError: no such version, or it does not compile."""
        columns = custom_columns(version)
        numbers = [field.number for field in self._described.message_type[-1].field]
        first = max(numbers, default=0) + 1
        head, brace, tail = self._base.rpartition("}")
        added = "".join(f"  optional string {name} = {first + i};\n" for i, name in enumerate(columns))
        return f"{head}{added}{brace}{tail}"

    def message_class(self, version: int) -> type[Message]:
        """The Python class of a version, in its own descriptor pool as all versions have the same name; raises as `text`."""
        if version not in self._classes:
            pool = DescriptorPool()
            for file in compile_text(self.text(version), self._file).file:
                pool.Add(file)
            message = pool.FindMessageTypeByName(self.message_name)
            if CUSTOM.format(0) not in message.fields_by_name:
                raise ConfigurationError(f"{self._file}: {self.message_name} must be the last thing in the file")
            self._classes[version] = GetMessageClass(message)
        return self._classes[version]


#: The game event.
BUILT_IN = ProtoVersions((files(__package__) / FILE_NAME).read_text("utf-8"), FILE_NAME)


def compile_text(text: str, name: str = FILE_NAME) -> FileDescriptorSet:
    """Descriptors of a text and its imports, dependencies first; ConfigurationError if it does not compile (see stderr)."""
    with as_file(files("grpc_tools") / "_proto") as well_known, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_text(text, "utf-8")
        out = Path(folder) / "out.bin"
        arguments = ["protoc", f"-I{folder}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={out}"]
        if protoc.main([*arguments, name]) != 0:
            raise ConfigurationError(f"{name} does not compile")
        return FileDescriptorSet.FromString(out.read_bytes())


@dataclass(frozen=True)
class MessageShape:
    """A message by version, its fields for entity, key and time, and generators of the other fields."""

    versions: ProtoVersions = BUILT_IN
    entity: str = "game_name"
    key: str = "gamer_id"
    time: str = "event_timestamp"
    fields: Fields = GAME_FIELDS

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The settings' message, default: the game event; ConfigurationError if it does not compile or fit the settings."""
        sample = SampleDataSettings.of(settings).producer
        if sample.proto is None:
            return cls()
        versions = _read(sample.proto)
        meant = (settings.entity_column, settings.key_column, settings.time_column)
        message = versions.message_class(1)
        _check(cast(Descriptor, message.DESCRIPTOR), meant, sample.proto)
        return cls(versions, *meant, _fields(message, meant, sample.fields, sample.proto))


@cache
def _read(proto: Path) -> ProtoVersions:
    try:
        return ProtoVersions(proto.read_text("utf-8"), proto.name)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"GAME_EVENTS_PRODUCER: {proto} cannot be read: {error}") from error


def _check(message: Descriptor, meant: tuple[str, str, str], proto: Path) -> None:
    kinds = {"ENTITY_COLUMN": "string", "KEY_COLUMN": "string", "TIME_COLUMN": "google.protobuf.Timestamp"}
    for (setting, wanted), name in zip(kinds.items(), meant, strict=True):
        field = message.fields_by_name.get(name)
        kind = "string" if field is not None and field.type == FieldDescriptor.TYPE_STRING else None
        if field is not None and field.message_type is not None:
            kind = field.message_type.full_name
        if field is None or field.is_repeated or kind != wanted:
            raise ConfigurationError(
                f"GAME_EVENTS_{setting}: {name!r} must be a field of type {wanted} of {message.full_name} ({proto}), as the "
                f"producer fills it. Fields: {', '.join(message.fields_by_name)}"
            )


def _fields(message: type[Message], meant: tuple[str, ...], wanted: Mapping[str, Generator], proto: Path) -> Fields:
    described = cast(Descriptor, message.DESCRIPTOR)
    fields = {field.name: field for field in described.fields if field.name not in (*meant, *ProtoVersions.custom)}
    _require_known(wanted, fields, f"{described.full_name} ({proto})")
    generators: list[tuple[str, Generator]] = []
    for name, field in fields.items():
        values = wanted.get(name) or _usual(field)
        if values is None:  # a list, map or message stays unset
            continue
        if field.type == FieldDescriptor.TYPE_FLOAT:
            values = _Single(**values.model_dump())
        try:
            _require_fit(message, name, values)
        except (TypeError, ValueError, OverflowError, struct.error) as error:
            which = f"{name} of {described.full_name} ({proto})"
            raise ConfigurationError(
                f"GAME_EVENTS_PRODUCER: {which} cannot hold values of kind {values.kind}: {error}"
            ) from None
        generators.append((name, values))
    return tuple(generators)


def _require_known(wanted: Iterable[str], fields: Iterable[str], message: str) -> None:
    """Raise ConfigurationError if values are described for a field that a message does not have."""
    unknown = [name for name in wanted if name not in fields]
    if unknown:
        raise ConfigurationError(
            f"GAME_EVENTS_PRODUCER: no values can be described for {', '.join(unknown)}: {message} has the fields "
            f"{', '.join(fields)}"
        )


def _require_fit(message: type[Message], name: str, values: Generator) -> None:
    """Raise an error if a field cannot hold the extremes of a generator's values, or changes them."""
    for value in values.extremes():
        held = getattr(cast(Callable[..., Message], message)(**{name: value}), name)
        # An enum's value may be given by its name.
        is_same = held == value or (isinstance(value, str) and isinstance(held, int))
        if not is_same or held in (math.inf, -math.inf):
            raise ValueError(f"{value!r} would be {held!r}")


class _Single(Generator):
    """Values rounded to 32-bit floats, so that the manifest equals the message."""

    def make(self, draw: Random) -> object:
        return _single(super().make(draw))

    def extremes(self) -> tuple[object, ...]:
        return tuple(map(_single, super().extremes()))


def _single(value: object) -> object:
    return struct.unpack("<f", struct.pack("<f", value))[0]


#: Type of a field -> default kind of its values; of all others `integer`.
_USUAL_KINDS: Mapping[int, Literal["text", "boolean", "number"]] = {
    FieldDescriptor.TYPE_STRING: "text",
    FieldDescriptor.TYPE_BOOL: "boolean",
    FieldDescriptor.TYPE_FLOAT: "number",
    FieldDescriptor.TYPE_DOUBLE: "number",
}


def _usual(field: FieldDescriptor) -> Generator | None:
    if field.is_repeated or field.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_BYTES):
        return None
    if field.enum_type is not None:
        return Generator(kind="choice", values=tuple({value.number for value in field.enum_type.values}))
    return Generator(kind=_USUAL_KINDS.get(field.type, "integer"))


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
    "linger.ms": 50,
    "batch.num.messages": 100_000,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": QUEUE_LIMIT + BATCH,
    "queue.buffering.max.kbytes": 1_000_000,
}

#: Seconds to serve callbacks before checking again for free space in the queue.
QUEUE_ROOM_S = 0.05

#: Key and value of one message for `Producer.produce_batch` (which knows no headers).
BatchMessage = dict[str, bytes]


class KafkaWriter:
    """A producer for one topic; a context manager that waits for the delivery of all records at its end."""

    def __init__(self, settings: Settings, tuning: Mapping[str, object] | None = None) -> None:
        """`tuning`: librdkafka options, overridden by settings; ConfigurationError for a bad one."""
        self.topic = settings.produced_topic
        self._failure: GameEventsError | None = None
        options = client_options(settings, {**DEFAULTS, **(tuning or {})})
        self._memory = CauseMemory.of(options)
        self._producer = new_client(Producer, options | {"error_cb": self._memory})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Flush; after an error (also Ctrl-C) drop queued records."""
        if kind is None:
            self.flush()
        else:
            self._producer.purge()

    def write(self, value: bytes, key: bytes | None, headers: Mapping[str, str]) -> None:
        """Queue one record; GameEventsError if an earlier record was not delivered."""
        listed: list[Any] = [(name, text.encode()) for name, text in headers.items()]
        while True:
            try:
                self._producer.produce(self.topic, value, key, on_delivery=self._on_delivery, headers=listed)
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

    def _on_delivery(self, error: KafkaError | None, message: KafkaMessage) -> None:
        if error is not None and self._failure is None:
            where = f"{message.topic()}[{message.partition()}]"
            self._failure = self._memory.explain(f"record not delivered to {where} ({error.str()})", error)
