"""Version k of the message: the base `.proto` text plus k optional custom columns, and a Python class for each."""

from __future__ import annotations

import tempfile
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

from game_events.errors import ConfigurationError

MAX_VERSION = 10
MESSAGE_NAME = "game_events.v1.GameEvent"
FILE_NAME = "game_event.proto"
#: The base message ends with field 4.
FIRST_CUSTOM_FIELD = 5


def custom_columns(version: int) -> tuple[str, ...]:
    """Names of the columns that version k has beyond the base message: ``col_custom_0 .. col_custom_{k-1}``."""
    if not 1 <= version <= MAX_VERSION:
        raise ConfigurationError(f"schema version {version} does not exist: give 1 .. {MAX_VERSION}")
    return tuple(f"col_custom_{index}" for index in range(version))


@cache
def schema_text(version: int) -> str:
    """The `.proto` text of a version, as it is registered.

    Raises:
        ConfigurationError: no such version.
    """
    columns = custom_columns(version)
    base = (files(__package__) / FILE_NAME).read_text("utf-8")
    head, brace, tail = base.rpartition("}")
    added = "".join(f"  optional string {name} = {FIRST_CUSTOM_FIELD + i};\n" for i, name in enumerate(columns))
    return f"{head}{added}{brace}{tail}"


@cache
def message_class(version: int) -> type[Message]:
    """A Python class for a version, compiled here and now.

    Each version lives in a descriptor pool of its own: all of them carry the same message name.
    """
    pool = DescriptorPool()
    for file in compile_text(schema_text(version)).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(MESSAGE_NAME))


def compile_text(text: str) -> FileDescriptorSet:
    """The descriptors of a text and of its imports, dependencies first.

    Raises:
        ConfigurationError: the text does not compile (protoc itself says why, on stderr).
    """
    with as_file(files("grpc_tools") / "_proto") as well_known, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILE_NAME).write_text(text, "utf-8")
        out = Path(folder) / "out.bin"
        arguments = ["protoc", f"-I{folder}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={out}"]
        if protoc.main([*arguments, FILE_NAME]) != 0:
            raise ConfigurationError(f"{FILE_NAME} does not compile")
        return FileDescriptorSet.FromString(out.read_bytes())
