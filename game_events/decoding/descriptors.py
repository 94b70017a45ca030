"""Protobuf descriptors from what a registry holds: `.proto` text or a base64 ``FileDescriptorProto``, with references.

protoc runs in this process (grpcio-tools, ~2 ms); its messages go to C's stderr, which is caught for the error's text.
"""

from __future__ import annotations

import base64
import binascii
import importlib.resources
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import ClassVar

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from grpc_tools import protoc

from game_events.decoding.frames import IndexPath, SchemaId
from game_events.decoding.registry_schema import RegistrySchema
from game_events.errors import DataError

FileSet = descriptor_pb2.FileDescriptorSet


@dataclass(frozen=True)
class ProtobufSchema:
    """One schema id's descriptors: small, picklable, with a descriptor pool of its own (see `payloads.CompiledSchema`).

    Attributes:
        schema_id: the id.
        main: name of the file that holds the message types.
        files: a serialized ``FileDescriptorSet``, dependencies before dependents.
    """

    schema_id: SchemaId
    main: str
    files: bytes
    indexed: ClassVar[bool] = True

    @cached_property
    def pool(self) -> DescriptorPool:
        """A pool with exactly this schema's files: two ids may define one name differently."""
        pool = DescriptorPool()
        for file in FileSet.FromString(self.files).file:
            pool.Add(file)
        return pool

    def has(self, path: IndexPath) -> bool:
        """Whether there is a message type at an index path."""
        return self.message(path) is not None

    def paths(self) -> list[IndexPath]:
        """Index paths of the file's own message types, nested ones left out."""
        return [(index,) for index in range(len(self.main_file().message_type))]

    def name_of(self, path: IndexPath) -> str | None:
        """Full name of the message type at an index path; None if there is none."""
        found = self.message(path)
        return None if found is None else str(found.full_name)

    def message(self, path: IndexPath) -> Descriptor | None:
        """The message type at an index path of the frame, or None if there is none."""
        if not path:
            return None  # asked for a frame whose indexes cannot be read
        file = self.main_file()
        level, name = file.message_type, file.package
        for index in path:
            if not 0 <= index < len(level):
                return None
            name = f"{name}.{level[index].name}" if name else level[index].name
            level = level[index].nested_type
        return self.pool.FindMessageTypeByName(name)

    def main_file(self) -> descriptor_pb2.FileDescriptorProto:
        """The file that holds the message types."""
        return next(f for f in FileSet.FromString(self.files).file if f.name == self.main)

    def __getstate__(self) -> dict[str, object]:
        """Without the pool, which does not pickle."""
        return {"schema_id": self.schema_id, "main": self.main, "files": self.files}


def compile_protobuf(schema: RegistrySchema) -> ProtobufSchema:
    """Compile a registry's protobuf schema once.

    Raises:
        DataError: the text does not compile; the message holds the compiler's own words.
    """
    main = f"schema_{schema.schema_id}.proto"
    return ProtobufSchema(schema.schema_id, main, FileSet(file=_files(schema, main)).SerializeToString())


def described_files(schema: RegistrySchema) -> list[descriptor_pb2.FileDescriptorProto]:
    """The files of a schema with what protoc knows of their source: comments.

    Raises:
        DataError: the text does not compile.
    """
    return _files(schema, f"schema_{schema.schema_id}.proto", "--include_source_info")


def _files(schema: RegistrySchema, main: str, *options: str) -> list[descriptor_pb2.FileDescriptorProto]:
    """The schema's files and all they import, dependencies before dependents."""
    with tempfile.TemporaryDirectory(prefix="game_events_protoc") as name:
        folder = Path(name)
        binary = FileSet()
        texts: list[str] = []
        for file_name, text in (*schema.references, (main, schema.text)):
            described = from_base64(text)
            if described is not None:
                described.name = file_name
                binary.file.append(described)
            else:
                _write(folder, file_name, text)
                texts.append(file_name)
        # What the base64 files import and the registry does not hold: the well-known types, compiled from protoc's copies.
        known = {f.name for f in binary.file} | set(texts)
        imported = {d for f in binary.file for d in f.dependency} - known
        compiled = _protoc(folder, sorted(imported) + texts, binary, schema.schema_id, options)
        return _in_order([*compiled.file, *binary.file])


def from_base64(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """The file that a registry's text holds in base64; None: it is `.proto` text."""
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None


def _write(folder: Path, name: str, text: str) -> None:
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise DataError(f"schema reference {name!r} points outside its own folder")
    path = folder / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _include_folders() -> list[str]:
    """Where protoc finds google/protobuf (its own copies) and google/type (googleapis-common-protos)."""
    packaged = str(importlib.resources.files("grpc_tools") / "_proto")
    return [packaged] + [p for p in sys.path if (Path(p) / "google" / "type" / "date.proto").is_file()]


def _protoc(
    folder: Path, names: list[str], binary: descriptor_pb2.FileDescriptorSet, schema_id: SchemaId, options: Sequence[str]
) -> FileSet:
    if not names:
        return FileSet()
    output, known = folder / "compiled.bin", folder / "known.bin"
    known.write_bytes(binary.SerializeToString())
    arguments = ["protoc", f"-I{folder}", *(f"-I{f}" for f in _include_folders())]
    if binary.file:
        arguments.append(f"--descriptor_set_in={known}")
    with _stderr_of_c() as said:
        code = protoc.main([*arguments, *options, "--include_imports", f"--descriptor_set_out={output}", *names])
    if code != 0:
        raise DataError(f"schema id {schema_id} does not compile: {said[0].replace(str(folder) + '/', '').strip()}")
    return FileSet.FromString(output.read_bytes())


def _in_order(files: list[descriptor_pb2.FileDescriptorProto]) -> list[descriptor_pb2.FileDescriptorProto]:
    """Each file once, dependencies first."""
    by_name = {f.name: f for f in files}
    done: dict[str, descriptor_pb2.FileDescriptorProto] = {}

    def visit(name: str) -> None:
        if name in by_name and name not in done:
            file = by_name.pop(name)
            for dependency in file.dependency:
                visit(dependency)
            done[name] = file

    for file in files:
        visit(file.name)
    return list(done.values())


@contextmanager
def _stderr_of_c() -> Iterator[list[str]]:
    """Catches what C code writes to file descriptor 2."""
    said: list[str] = [""]
    with tempfile.TemporaryFile(mode="w+b") as catch:
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(catch.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            catch.seek(0)
            said[0] = catch.read().decode(errors="replace")
