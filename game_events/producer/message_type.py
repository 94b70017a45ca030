"""The simulated message: the versions of its `.proto`, meaning of its fields, and generators of values.

Version k is the base `.proto` text with k optional custom columns.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import as_file, files
from pathlib import Path
from random import Random
from struct import pack, unpack
from sys import float_info
from typing import Self, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

from game_events.config.producer import GAME_FIELDS, Fields, Generator
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError

MAX_VERSION = 10
FILE_NAME = "game_event.proto"
CUSTOM = "col_custom_{}"
_SINGLE_MAX: float = unpack("<f", b"\xff\xff\x7f\x7f")[0]
#: Type of a number -> its name, the lowest and the highest value that it holds.
_LIMITS: dict[int, tuple[str, float, float]] = {
    getattr(FieldDescriptor, f"TYPE_{name.upper()}"): (name, low, high)
    for names, low, high in (
        (("int32", "sint32", "sfixed32"), -(2**31), 2**31 - 1),
        (("int64", "sint64", "sfixed64"), -(2**63), 2**63 - 1),
        (("uint32", "fixed32"), 0, 2**32 - 1),
        (("uint64", "fixed64"), 0, 2**64 - 1),
        (("float",), -_SINGLE_MAX, _SINGLE_MAX),
        (("double",), -float_info.max, float_info.max),
    )
    for name in names
}
_NUMBERS = {FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT}
_INTEGERS = set(_LIMITS) - _NUMBERS
#: Kind of a generator -> types of fields that take its values.
_FITS = {
    "integer": _INTEGERS | _NUMBERS,
    "number": _NUMBERS,
    "boolean": {FieldDescriptor.TYPE_BOOL},
    "numbered": {FieldDescriptor.TYPE_STRING},
    "text": {FieldDescriptor.TYPE_STRING},
}


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
        self._base, self._file = base, file
        self._classes: dict[int, type[Message]] = {}

    @cached_property
    def _described(self) -> FileDescriptorProto:
        """The file without custom columns."""
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
            found = pool.FindMessageTypeByName(self.message_name)
            if CUSTOM.format(0) not in found.fields_by_name:
                raise ConfigurationError(f"{self._file}: {self.message_name} must be the last thing in the file")
            self._classes[version] = GetMessageClass(found)
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
        sample = settings.producer
        if sample.proto is None:
            return cls()
        versions = _read(sample.proto)
        meant = (settings.entity_column, settings.key_column, settings.time_column)
        message = cast(Descriptor, versions.message_class(1).DESCRIPTOR)
        _check(message, meant, sample.proto)
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
        if field is None or field.is_repeated or _type(field) != wanted:
            raise ConfigurationError(
                f"GAME_EVENTS_{setting}: {name!r} must be a field of type {wanted} of {message.full_name} ({proto}), as the "
                f"producer fills it. Fields: {', '.join(message.fields_by_name)}"
            )


def _type(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        return str(field.message_type.full_name)
    return "string" if field.type == FieldDescriptor.TYPE_STRING else str(field.type)


def _fields(message: Descriptor, meant: tuple[str, ...], wanted: Mapping[str, Generator], proto: Path) -> Fields:
    unknown = [name for name in wanted if name not in message.fields_by_name or name in meant]
    if unknown:
        raise ConfigurationError(
            f"GAME_EVENTS_PRODUCER: no values can be described for {', '.join(unknown)}: {message.full_name} ({proto}) has "
            f"the fields {', '.join(n for n in message.fields_by_name if n not in (*meant, *ProtoVersions.custom))}"
        )
    found: list[tuple[str, Generator]] = []
    for field in message.fields:
        if field.name in meant or field.name in ProtoVersions.custom:
            continue
        given = wanted.get(field.name)
        if given is not None and (misfit := _misfit(given, field)) is not None:
            raise ConfigurationError(f"GAME_EVENTS_PRODUCER: {field.name} of {message.full_name} ({proto}) {misfit}")
        values = given or _usual(field)
        if values is not None:  # a list, map or message stays unset
            found.append((field.name, _stored(field, values)))
    return tuple(found)


class _Single(Generator):
    """Values rounded to 32-bit floats, so that the manifest equals the message."""

    def make(self, draw: Random) -> object:
        return unpack("<f", pack("<f", super().make(draw)))[0]


def _stored(field: FieldDescriptor, values: Generator) -> Generator:
    return _Single(**values.model_dump()) if field.type == FieldDescriptor.TYPE_FLOAT and values.numeric else values


def _usual(field: FieldDescriptor) -> Generator | None:
    """Default generator of a field."""
    if field.is_repeated or field.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_BYTES):
        return None
    if field.type == FieldDescriptor.TYPE_ENUM:
        return Generator(kind="choice", values=tuple(set(_enum(field).values())))
    if field.type == FieldDescriptor.TYPE_STRING:
        return Generator(kind="text")
    if field.type == FieldDescriptor.TYPE_BOOL:
        return Generator(kind="boolean")
    return Generator(kind="integer" if field.type in _INTEGERS else "number")


def _fits(given: Generator, field: FieldDescriptor) -> bool:
    if field.is_repeated:
        return False
    if given.kind != "choice":
        return field.type in _FITS[given.kind]
    if field.type == FieldDescriptor.TYPE_ENUM:
        return all(value in _enum(field) or value in _enum(field).values() for value in given.values)
    kinds: tuple[type, ...] = (str,) if field.type == FieldDescriptor.TYPE_STRING else ()
    kinds = (int,) if field.type in _INTEGERS else (int, float) if field.type in _NUMBERS else kinds
    return all(isinstance(value, kinds) for value in given.values)


def _misfit(given: Generator, field: FieldDescriptor) -> str | None:
    """Error for values that are not of the field's type, or numbers outside it; None: all fit."""
    if not _fits(given, field):
        return f"cannot hold values of kind {given.kind}"
    if field.type not in _LIMITS:
        return None
    name, lowest, highest = _LIMITS[field.type]
    # The comparison is also False for .nan.
    numbers = (
        [value for value in given.values if not isinstance(value, str)] if given.kind == "choice" else [given.low, given.high]
    )
    if all(lowest <= number <= highest for number in numbers):
        return None
    wanted = ", ".join(map(str, numbers)) if given.kind == "choice" else f"from {given.low:g} to {given.high:g}"
    return f"cannot hold values {wanted}: its type is {name}, from {lowest:g} to {highest:g}"


def _enum(field: FieldDescriptor) -> dict[str, int]:
    return {value.name: value.number for value in field.enum_type.values} if field.enum_type is not None else {}
