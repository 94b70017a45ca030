"""Versions of the message: version k is the base `.proto` text with k optional custom columns."""

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
