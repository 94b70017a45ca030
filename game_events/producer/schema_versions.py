"""Version k of the message: the base `.proto` text plus k optional custom columns, and a Python class for each."""

from __future__ import annotations

import tempfile
from functools import cached_property
from importlib.resources import as_file, files
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

from game_events.errors import ConfigurationError

MAX_VERSION = 10
MESSAGE_NAME = "game_events.v1.GameEvent"
FILE_NAME = "game_event.proto"
CUSTOM = "col_custom_{}"
#: The game event ends with field 4.
FIRST_CUSTOM_FIELD = 5


def custom_columns(version: int) -> tuple[str, ...]:
    """Names of the columns that version k has beyond the base message: ``col_custom_0 .. col_custom_{k-1}``."""
    if not 1 <= version <= MAX_VERSION:
        raise ConfigurationError(f"schema version {version} does not exist: give 1 .. {MAX_VERSION}")
    return tuple(CUSTOM.format(index) for index in range(version))


class ProtoVersions:
    """Versions 1 .. 10 of a message: its `.proto` text, and so many optional custom columns at its end.

    The message is the last thing in its file, so that the last brace closes it; messages and enums that it uses come before.
    """

    #: Every custom column that there can be.
    custom = custom_columns(MAX_VERSION)

    def __init__(self, base: str, file: str) -> None:
        """Nothing is compiled yet.

        Args:
            base: the text without custom columns.
            file: its name, for messages.
        """
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
        """Where the message stands among its file's: what a record's frame says."""
        return [len(self._described.message_type) - 1]

    def text(self, version: int) -> str:
        """The `.proto` text of a version, as it is registered.

        Raises:
            ConfigurationError: no such version, or the text does not compile.
        """
        columns = custom_columns(version)
        numbers = [field.number for field in self._described.message_type[-1].field]
        first = max(numbers, default=0) + 1
        head, brace, tail = self._base.rpartition("}")
        added = "".join(f"  optional string {name} = {first + i};\n" for i, name in enumerate(columns))
        return f"{head}{added}{brace}{tail}"

    def message_class(self, version: int) -> type[Message]:
        """A Python class for a version, compiled here and now.

        Each version lives in a descriptor pool of its own: all of them carry the same message name.

        Raises:
            ConfigurationError: no such version, the text does not compile, or something follows the message.
        """
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
SHIPPED = ProtoVersions((files(__package__) / FILE_NAME).read_text("utf-8"), FILE_NAME)


def schema_text(version: int) -> str:
    """A version's text of the game event; as `ProtoVersions.text`."""
    return SHIPPED.text(version)


def message_class(version: int) -> type[Message]:
    """A version's class of the game event; as `ProtoVersions.message_class`."""
    return SHIPPED.message_class(version)


def compile_text(text: str, name: str = FILE_NAME) -> FileDescriptorSet:
    """The descriptors of a text and of its imports, dependencies first.

    Raises:
        ConfigurationError: the text does not compile (protoc itself says why, on stderr).
    """
    with as_file(files("grpc_tools") / "_proto") as well_known, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_text(text, "utf-8")
        out = Path(folder) / "out.bin"
        arguments = ["protoc", f"-I{folder}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={out}"]
        if protoc.main([*arguments, name]) != 0:
            raise ConfigurationError(f"{name} does not compile")
        return FileDescriptorSet.FromString(out.read_bytes())
