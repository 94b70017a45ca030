"""Compiles a registry's protobuf schema, with all imports, to descriptors.

Only for `compiler_process`: protoc is C++ code that reads untrusted text, and writes errors to the process's stderr. Nothing of
a schema becomes an argument of protoc or a path: each text is compiled as the only file of a folder, under a generated name;
imports are passed as data (`--descriptor_set_in`), under their names.
"""

import importlib.resources
import importlib.util
import os
import re
import runpy
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_tools import protoc

from game_events.decoding.core.registry_schema import RegistrySchema, schema_guid
from game_events.decoding.protobuf.schema import ProtobufSchema, from_base64
from game_events.decoding.protobuf.source_text import Names, imports, without_map_entries
from game_events.errors import DataError

#: Modules of confluent-kafka for files that Confluent's serializers register without a reference.
_CONFLUENT = {f"confluent/{name}.proto": f"confluent/{name}_pb2.py" for name in ("meta", "type/decimal", "type/variant")}
STDERR = 2
#: Lines of protoc's log among its errors.
_LOGGED = re.compile(r"WARNING: All log messages before|[IWEF]\d{4} ")
#: Free bytes that a folder needs, else protoc's failure is not the schema's fault.
ROOM = 2**20


def compile_files(schema: RegistrySchema, folder: Path, *options: str) -> ProtobufSchema:
    """Compile a schema in an empty folder, with options of protoc; DataError with protoc's message if it does not compile."""
    references = dict(schema.references)
    main = next(name for name in _names(f"schema_{schema.schema_id}") if name not in references)
    files = _Files(references, folder, options)
    try:
        files.add(main, schema.text)
        return ProtobufSchema(schema.schema_id, main, files.checked(), _counts_entries(schema))
    except DataError as error:
        raise DataError(f"schema id {schema.schema_id} does not compile: {error}") from None


def _counts_entries(schema: RegistrySchema) -> bool:
    """Whether message indexes count map entries (see `ProtobufSchema`), as they also do in schemas from files."""
    from_file = schema.schema_id == schema_guid(schema.format, schema.text, schema.references)
    return from_file or from_base64(schema.text) is not None or bool(without_map_entries(schema.text)[1])


def _names(stem: str) -> Iterable[str]:
    return (f"{stem}{'_' * number}.proto" for number in count())


class _Files:
    """Files by name, dependencies before dependents."""

    def __init__(self, references: Mapping[str, str], folder: Path, options: Sequence[str]) -> None:
        self._references, self._folder, self._options = references, folder, options
        self._begun: set[str] = set()
        self._done: dict[str, FileDescriptorProto] = {}

    def add(self, name: str, text: str) -> None:
        """Add a file and its imports."""
        self._begun.add(name)
        described = from_base64(text)
        for imported in imports(text) if described is None else described.dependency:
            self._import(imported, by=name)
            if described is not None and imported not in self._done:
                raise DataError(f"{name} imports {imported!r}, which the registry does not hold")
        described = described or self._compile(name, text)
        described.name = name
        self._done[name] = described

    def _import(self, name: str, by: str) -> None:
        if name in self._done:
            return
        if name in self._begun:
            raise DataError(f"{by} imports {name!r}, which imports it")
        if name in self._references:
            self.add(name, self._references[name])
            return
        for file in known_files(name):
            if file.name in self._references:
                self._import(file.name, by=name)
            else:
                self._done.setdefault(file.name, file)

    def _compile(self, name: str, text: str) -> FileDescriptorProto:
        text, entries = without_map_entries(text)
        taken = {*self._references, *self._done, *imports(text)}
        own = next(n for n in _names("f") if n not in taken)
        # Alone in its folder: imports are never files.
        alone, known, output = self._folder / "text", self._folder / "known.bin", self._folder / "compiled.bin"
        alone.mkdir(exist_ok=True)
        (alone / own).write_bytes(text.encode())
        known.write_bytes(FileDescriptorSet(file=self._needed(imports(text))).SerializeToString())
        error = _protoc([f"-I{alone}", f"--descriptor_set_in={known}", *self._options], output, [own])
        if error is not None:
            require_room(self._folder)
            raise DataError(error.replace(f"{alone}/", "").replace(own, name).strip())
        compiled = FileDescriptorSet.FromString(output.read_bytes()).file[-1]
        (alone / own).unlink()
        for path in entries:
            _make_map_entry(compiled, path)
        return compiled

    def _needed(self, names: Iterable[str]) -> list[FileDescriptorProto]:
        """Files by name with their imports, dependencies first."""
        wanted, left = set(), list(names)
        while left:
            name = left.pop()
            if name in self._done and name not in wanted:
                wanted.add(name)
                left += [*self._done[name].dependency, *self._done[name].option_dependency]
        return [file for name, file in self._done.items() if name in wanted]

    def checked(self) -> bytes:
        """All files, serialized; DataError for an invalid descriptor, such as one with a missing type."""
        pool = DescriptorPool()
        try:
            for file in self._done.values():
                pool.Add(file)
            for name in self._done:
                pool.FindFileByName(name)
        except (TypeError, ValueError, KeyError) as error:
            raise DataError(str(error)) from None
        return FileDescriptorSet(file=self._done.values()).SerializeToString()


def _make_map_entry(file: FileDescriptorProto, path: Names) -> None:
    """Restore a message's option `map_entry`, if it has the form of a map entry."""
    messages: Sequence[DescriptorProto] = file.message_type
    outer, inner = DescriptorProto(), DescriptorProto()
    for name in path:
        outer, inner = inner, next(m for m in messages if m.name == name)
        messages = inner.nested_type
    full = ".".join(["", *([file.package] if file.package else []), *path])
    fields = [(f.name, f.number, f.label) for f in inner.field]
    optional, repeated = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED
    used = any(f.type_name == full and f.label == repeated for f in outer.field)
    if fields != [("key", 1, optional), ("value", 2, optional)] or not used or inner.oneof_decl or inner.nested_type:
        raise DataError(f"{full[1:]} has the option map_entry and is no entry of a map")
    inner.options.map_entry = True


def _protoc(arguments: Sequence[str], output: Path, names: Sequence[str]) -> str | None:
    """Run protoc; returns its error, or None."""
    os.lseek(STDERR, 0, os.SEEK_SET)
    os.ftruncate(STDERR, 0)
    if protoc.main(["protoc", *arguments, f"--descriptor_set_out={output}", *names]) == 0:
        return None
    lines = os.pread(STDERR, 2**16, 0).decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if not _LOGGED.match(line))


def require_room(folder: Path) -> None:
    """Raise OSError if the folder is full: then protoc's failure is not the schema's fault."""
    probe = folder / "room"
    probe.write_bytes(bytes(ROOM))
    probe.unlink()


def known_files(name: str) -> Sequence[FileDescriptorProto]:
    """A file that registries do not hold, with its imports, dependencies first; empty: unknown."""
    if name in _CONFLUENT:
        return _of_confluent(name)
    return _of_google(name) if name in _google_files() else ()


@cache
def _google_files() -> Mapping[str, Path]:
    """Files of google/protobuf (protoc's own copies) and google/type (googleapis-common-protos), each with its folder."""
    folders = [Path(str(importlib.resources.files("grpc_tools") / "_proto"))]
    folders += [Path(p) for p in sys.path if (Path(p) / "google" / "type" / "date.proto").is_file()]
    found: dict[str, Path] = {}
    for folder in folders:
        for path in (folder / "google").rglob("*.proto"):
            found.setdefault(path.relative_to(folder).as_posix(), folder)
    return found


@cache
def _of_google(name: str) -> Sequence[FileDescriptorProto]:
    """Compile one of `_google_files`."""
    folders = dict.fromkeys(_google_files().values())
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "compiled.bin"
        error = _protoc([*(f"-I{folder}" for folder in folders), "--include_imports"], output, [name])
        if error is not None:
            require_room(Path(folder))
            raise DataError(f"{name}: {error}")
        return list(FileDescriptorSet.FromString(output.read_bytes()).file)


@cache
def _of_confluent(name: str) -> Sequence[FileDescriptorProto]:
    """The descriptor of a generated module of confluent-kafka, without importing its package, which loads an HTTP client."""
    package = importlib.util.find_spec("confluent_kafka")
    folders = package.submodule_search_locations if package is not None else None
    found = FileDescriptorProto()
    for folder in folders or ():
        module = runpy.run_path(str(Path(folder) / "schema_registry" / _CONFLUENT[name]))
        module["DESCRIPTOR"].CopyToProto(found)
    return [*(file for imported in found.dependency for file in known_files(imported)), found]
