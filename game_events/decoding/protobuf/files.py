"""Compiles a registry's protobuf schema, with all imports, to descriptors with what decoding needs.

Only for `compiler_process`: protoc is C++ code that reads untrusted text, and writes errors to the process's stderr. Nothing of
a schema becomes an argument of protoc or a path: each text is compiled as the only file of a folder, under a generated name;
imports are passed as data (`--descriptor_set_in`), under their names.

Decoding needs message types, with fields, enums and imports. Services, JSON names and most options change nothing that is
decoded. They are cut out of `.proto` texts that do not compile with them, so that a mistake there (a rule of a validator, a
file of options that was never registered) loses no record, and out of all descriptors, so that no process keeps them.

Source: Protocol Buffers language specification; google/protobuf/descriptor.proto.
"""

import importlib.resources
import importlib.util
import os
import re
import runpy
import signal
import sys
import tempfile
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from functools import cache
from itertools import count, takewhile
from pathlib import Path
from typing import Any, cast

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from grpc_tools import protoc

from game_events.decoding.frame import RegistrySchema, bare, schema_guid
from game_events.decoding.protobuf.schema import Names, ProtobufSchema, from_base64, imports, without_map_entries, words_of
from game_events.errors import DataError

#: Modules of confluent-kafka for files that Confluent's serializers register without a reference.
_CONFLUENT = {f"confluent/{name}.proto": f"confluent/{name}_pb2.py" for name in ("meta", "type/decimal", "type/variant")}
STDERR = 2
#: Lines of protoc's log among its errors.
_LOGGED = re.compile(r"WARNING: All log messages before|[IWEF]\d{4} ")
#: Free bytes that a folder needs, else protoc's failure is not the schema's fault.
ROOM = 2**20


def compile_files(schema: RegistrySchema, folder: Path) -> ProtobufSchema:
    """Compile a schema in an empty folder, to descriptors with what decoding needs.

    If it does not compile, what decoding needs of it is compiled, the rest is cut out.

    Raises:
        DataError: that does not compile either; the message is protoc's of the first attempt.
    """
    main, _, reduced = _compiled(schema, folder)
    # As in `ProtobufSchema`; schemas from files count them, too.
    from_file = bare(schema.schema_id) == schema_guid(schema.format, schema.text, schema.references)
    counts = from_file or from_base64(schema.text) is not None or bool(without_map_entries(schema.text)[1])
    return ProtobufSchema(schema.schema_id, main, reduced, counts)


def described_files(schema: RegistrySchema, folder: Path) -> Sequence[FileDescriptorProto]:
    """The files of a schema with the comments of their texts; raises as `compile_files`."""
    return _compiled(schema, folder, "--include_source_info")[1]


def _compiled(schema: RegistrySchema, folder: Path, *options: str) -> tuple[str, Sequence[FileDescriptorProto], bytes]:
    """The main file's name, all files, dependencies before dependents, and what decoding needs of them, serialized."""
    references = dict(schema.references)
    main = next(name for name in _names(f"schema_{schema.schema_id}") if name not in references)
    work_s = signal.getitimer(signal.ITIMER_PROF)[0]
    first: DataError | None = None
    for essential in (False, True):
        files = _Files(references, folder, options, essential=essential)
        try:
            files.add(main, schema.text)
            return main, [*files.done.values()], files.reduced(main)
        except DataError as error:
            first = first or DataError(f"schema id {schema.schema_id} does not compile: {error}")
        # A second attempt takes as long as the first one: beyond the limit of work its reason would be lost.
        if signal.getitimer(signal.ITIMER_PROF)[0] < work_s / 2:
            break
    raise cast(DataError, first)


def _names(stem: str) -> Iterable[str]:
    return (f"{stem}{'_' * number}.proto" for number in count())


class _Files:
    """Files by name (`done`), dependencies before dependents.

    `essential`: of each only what decoding needs, without the imports that there are not.
    """

    def __init__(self, references: Mapping[str, str], folder: Path, options: Sequence[str], *, essential: bool = False) -> None:
        self._references = references
        self._folder = folder
        self._options = options
        self._essential = essential
        self._begun: set[str] = set()
        self.done: dict[str, FileDescriptorProto] = {}
        self._lacks_imports = False

    def add(self, name: str, text: str) -> None:
        """Add a file and its imports."""
        self._begun.add(name)
        described = from_base64(text)
        if described is None:
            text, entries = without_map_entries(text)
            if self._essential:
                text = self._essential_text(name, text)
            else:
                self._import_all(imports(text), by=name)
            described = self._compile(name, text)
            for path in entries:
                _make_map_entry(described, path)
        else:
            if self._essential:
                described.dependency.extend(self._homes(str(described), described.dependency))
            missing = self._import_all(described.dependency, by=name)
            if missing and not self._essential:
                raise DataError(f"{name} imports {next(iter(missing))!r}, which the registry does not hold")
            without_imports(described, missing)
        described.name = name
        self.done[name] = described

    def _import_all(self, names: Iterable[str], by: str) -> dict[str, None]:
        """Add the imports of a file; returns those that there are not, in order."""
        missing: dict[str, None] = {}
        for name in names:
            try:
                self._import(name, by=by)
            except DataError:
                if not self._essential:
                    raise
            if name not in self.done:
                missing[name] = None
        self._lacks_imports |= bool(missing)
        return missing

    def _essential_text(self, name: str, text: str) -> str:
        """A text without what decoding does not need, and with the imports of known files whose types it uses."""
        named = imports(text)
        added = self._homes(text, named)
        missing = self._import_all([*named, *added], by=name)
        return essential_text(text, missing, [file for file in added if file not in missing])

    def _homes(self, text: str, named: Collection[str]) -> list[str]:
        """Known files that define types of which a text has the full names, without those it imports by itself."""
        types = sorted({(match[1], match[2]) for match in _KNOWN_TYPE.finditer(text)})
        homes = dict.fromkeys(file for package, name in types for file in _homes(package, name))
        return [file for file in homes if file not in named and file not in self._begun]

    def _import(self, name: str, by: str) -> None:
        if name in self.done:
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
                self.done.setdefault(file.name, file)

    def _compile(self, name: str, text: str) -> FileDescriptorProto:
        taken = {*self._references, *self.done, *imports(text)}
        own = next(n for n in _names("f") if n not in taken)
        # Alone in its folder: imports are never files.
        alone = self._folder / "text"
        known = self._folder / "known.bin"
        output = self._folder / "compiled.bin"
        alone.mkdir(exist_ok=True)
        (alone / own).write_bytes(text.encode())
        known.write_bytes(FileDescriptorSet(file=self._needed(imports(text))).SerializeToString())
        error = _protoc([f"-I{alone}", f"--descriptor_set_in={known}", *self._options], output, [own])
        if error is not None:
            require_room(self._folder)
            raise DataError(error.replace(f"{alone}/", "").replace(own, name).strip())
        compiled = FileDescriptorSet.FromString(output.read_bytes()).file[-1]
        (alone / own).unlink()
        return compiled

    def _needed(self, names: Iterable[str]) -> list[FileDescriptorProto]:
        wanted = set()
        left = list(names)
        while left:
            name = left.pop()
            if name in self.done and name not in wanted:
                wanted.add(name)
                left += [*self.done[name].dependency, *self.done[name].option_dependency]
        return [file for name, file in self.done.items() if name in wanted]

    def reduced(self, main: str) -> bytes:
        """What decoding needs of all files, serialized; DataError for an invalid one, such as one with a missing type."""
        files = FileDescriptorSet(file=self.done.values())
        pool = DescriptorPool()
        try:
            for file in files.file:
                reduce_file(file)
                pool.Add(file)
            for name in self.done:
                pool.FindFileByName(name)
            if self._lacks_imports:
                refuse_missing_extensions(pool, main)
        except (TypeError, ValueError, KeyError) as error:
            raise DataError(str(error)) from None
        return files.SerializeToString()


#: Name, number and label of a map entry's fields.
_ENTRY_FIELDS = [("key", 1, FieldDescriptorProto.LABEL_OPTIONAL), ("value", 2, FieldDescriptorProto.LABEL_OPTIONAL)]


def _on_path(file: FileDescriptorProto, path: Names) -> list[DescriptorProto]:
    """The messages on the path to a nested one, with that."""
    messages: Sequence[DescriptorProto] = file.message_type
    passed: list[DescriptorProto] = []
    for name in path:
        passed.append(next(m for m in messages if m.name == name))
        messages = passed[-1].nested_type
    return passed


def _make_map_entry(file: FileDescriptorProto, path: Names) -> None:
    """Restore a message's option `map_entry`, if it has the form of a map entry."""
    full = ".".join([file.package, *path] if file.package else path)
    outer, entry = [DescriptorProto(), *_on_path(file, path)][-2:]
    fields = [(f.name, f.number, f.label) for f in entry.field]
    is_used = any(f.type_name == f".{full}" and f.label == FieldDescriptorProto.LABEL_REPEATED for f in outer.field)
    if fields != _ENTRY_FIELDS or entry.oneof_decl or entry.nested_type or not is_used:
        raise DataError(f"{full} has the option map_entry and is no entry of a map")
    entry.options.map_entry = True


def _protoc(arguments: Sequence[str], output: Path, names: Sequence[str]) -> str | None:
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


def _homes(package: str, name: str) -> list[str]:
    """Files that registries do not hold which define a type of a package."""
    folder = package.replace(".", "/")
    declared = re.compile(rf"^(?:message|enum)\s+{name}\b", re.MULTILINE | re.ASCII)
    homes = [
        file
        for file, root in _google_files().items()
        if file.rpartition("/")[0] == folder and declared.search((root / file).read_text("utf-8"))
    ]
    of_confluent = [file for file in _CONFLUENT if file.rpartition("/")[0] == folder]
    return homes + [file for file in of_confluent if any(m.name == name for m in _of_confluent(file)[-1].message_type)]


@cache
def _google_files() -> Mapping[str, Path]:
    """Files of google/protobuf (protoc's own copies) and google/type (googleapis-common-protos), each with its folder."""
    folders = [Path(str(importlib.resources.files("grpc_tools") / "_proto"))]
    folders += [Path(p) for p in sys.path if (Path(p) / "google" / "type" / "date.proto").is_file()]
    files: dict[str, Path] = {}
    for folder in folders:
        for path in (folder / "google").rglob("*.proto"):
            files.setdefault(path.relative_to(folder).as_posix(), folder)
    return files


@cache
def _of_google(name: str) -> Sequence[FileDescriptorProto]:
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
    described = FileDescriptorProto()
    for folder in folders or ():
        module = runpy.run_path(str(Path(folder) / "schema_registry" / _CONFLUENT[name]))
        module["DESCRIPTOR"].CopyToProto(described)
    return [*(file for imported in described.dependency for file in known_files(imported)), described]


#: Words behind which a statement begins; and those before a message type, which editions may qualify.
_ENDS = frozenset("{};")
_BEFORE_MESSAGE = _ENDS | {"export", "local"}
_OPEN = frozenset("{[(")
_CLOSED = frozenset("}])")
#: Options of Google's that change what is decoded, or whether a text is valid at all; `features`: those without an import.
_NEEDED = re.compile(r"allow_alias|message_set_wire_format|packed|default|features(?:\.[a-z_]+)*")
#: The messages that custom options extend.
_EXTENDED = re.compile(
    r"\.?google\.protobuf\.(?:File|Message|Field|Oneof|ExtensionRange|Enum|EnumValue|Service|Method|Stream)Options"
)
#: Protoc refuses two fields with one JSON name unless the message has this option.
_ANY_JSON_NAMES = " option deprecated_legacy_json_field_conflicts = true; "
#: The same options in descriptors.
_NEEDED_FIELDS = ("map_entry", "message_set_wire_format", "packed", "allow_alias", "features")
#: A type of a file that registries do not hold: its package, its name.
_KNOWN_TYPE = re.compile(r"(?<![\w.])\.?((?:google|confluent)(?:\.[a-z]\w*)+)\.([A-Z]\w*)", re.ASCII)


def essential_text(text: str, without: Container[str], added: Iterable[str] = ()) -> str:
    """A `.proto` text without what decoding does not need, and without imports of the files `without`; imports are `added`.

    Message types keep their order, and so their indexes. Linear in the length of the text.

    Raises:
        DataError: brackets do not match.
    """
    imports = "".join(f'\nimport "{name}";' for name in added)
    return _Cutter(text, without).cut() + imports


class _Cutter:
    """One pass over the words of a text; a statement begins behind `{`, `}` or `;`."""

    def __init__(self, text: str, without: Container[str]) -> None:
        self._text = text
        self._without = without
        matches = words_of(text)
        self._words = [match["word"] for match in matches]
        self._spans = [match.span("word") for match in matches]
        self._parts: list[str] = []
        self._copied = 0

    def cut(self) -> str:
        """The text that is left."""
        pos = depth = 0
        begins = True
        while pos < len(self._words):
            word = self._words[pos]
            end = self._statement(pos, depth) if begins else None
            if end is not None:
                pos = end
                continue
            if word == "[":
                pos = self._field_options(pos)
            else:
                depth += (word == "{") - (word == "}")
                begun = self._words[pos - 3] if pos > 2 else ";"
                if word == "{" and self._words[max(0, pos - 2)] == "message" and begun in _BEFORE_MESSAGE:
                    self._replace(pos + 1, pos + 1, _ANY_JSON_NAMES)
                pos += 1
            begins = word in _ENDS
        return "".join([*self._parts, self._text[self._copied :]])

    def _statement(self, pos: int, depth: int) -> int | None:
        """The end of a statement that is looked at as a whole, and cut out unless it is needed; None: any other."""
        words = self._words
        following = words[pos + 1] if pos + 1 < len(words) else ""
        match words[pos]:
            case "option":
                end = self._end(pos, ";")
                needed = self._is_needed(pos + 1, end)
            case "import" if not depth:
                end = self._end(pos, ";")
                needed = not any(word[1:-1] in self._without for word in words[pos:end] if word[0] in "\"'")
            case "service" if not depth:
                end = self._end(pos, "}")
                needed = False
            case "extend" if _EXTENDED.fullmatch(following):
                end = self._end(pos, "}")
                # A group declares a message type, which has an index.
                needed = "group" in words[pos:end]
            case _:
                return None
        if not needed:
            self._replace(pos, end, "")
        return end

    def _field_options(self, pos: int) -> int:
        """Cut the options between brackets, except the needed ones; returns the end."""
        end = self._end(pos, "]")
        depth = 0
        begin = pos + 1
        kept = []
        for here in range(pos + 1, end):
            word = self._words[here]
            if (word == "," and not depth) or here == end - 1:
                if self._is_needed(begin, here):
                    kept.append(self._text[self._spans[begin][0] : self._spans[here][0]])
                begin = here + 1
            depth += (word in _OPEN) - (word in _CLOSED)
        self._replace(pos, end, f"[{', '.join(kept)}]" if kept else "")
        return end

    def _is_needed(self, begin: int, end: int) -> bool:
        """Whether decoding needs an option; its name may be several words (`features . enum_type`)."""
        name = "".join(takewhile(lambda word: word != "=", self._words[begin:end]))
        return _NEEDED.fullmatch(name) is not None

    def _end(self, pos: int, last: str) -> int:
        """The position behind the next word `last` outside of brackets, or that closes them."""
        depth = 0
        for here in range(pos, len(self._words)):
            word = self._words[here]
            depth += (word in _OPEN) - (word in _CLOSED)
            if depth < 0:
                break
            if word == last and not depth:
                return here + 1
        raise DataError(f"brackets do not match behind {self._words[pos]!r}")

    def _replace(self, begin: int, end: int, new: str) -> None:
        start = self._spans[begin][0] if begin < len(self._spans) else len(self._text)
        stop = self._spans[end - 1][1] if end > begin else start
        self._parts += [self._text[self._copied : start], new]
        self._copied = stop


def refuse_missing_extensions(pool: DescriptorPool, main: str) -> None:
    """Raise DataError if files that there are not may add fields to messages of a file: their values would be lost.

    Not to messages that it defines: such a file would have to import the one by which it is imported.
    """
    waiting = [*pool.FindFileByName(main).message_types_by_name.values()]
    seen = set[str]()
    while waiting:
        message = waiting.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        fields = [*message.fields]
        if message.is_extendable:
            if message.file.name != main:
                raise DataError(f"a file that there is not may add fields to {message.full_name}")
            fields += pool.FindAllExtensions(message)
        waiting += [*message.nested_types, *(f.message_type for f in fields if f.message_type is not None)]


def reduce_file(file: FileDescriptorProto) -> None:
    """Remove from a file what decoding does not need; JSON names become the fields' own, which are distinct."""
    file.ClearField("source_code_info")
    file.ClearField("service")
    waiting: list[Message] = [file]
    while waiting:
        described = waiting.pop()
        if isinstance(described, FieldDescriptorProto):
            described.json_name = described.name
        for field, value in described.ListFields():
            if field.name == "options":
                _reduce_options(described)
            elif field.message_type is not None:
                waiting += value


def _reduce_options(described: Any) -> None:  # noqa: ANN401 - any message with options
    options = described.options
    kept = type(options)()
    for name in _NEEDED_FIELDS:
        if name in options.DESCRIPTOR.fields_by_name and options.HasField(name):
            if options.DESCRIPTOR.fields_by_name[name].message_type is not None:
                getattr(kept, name).CopyFrom(getattr(options, name))
            else:
                setattr(kept, name, getattr(options, name))
    if kept.ByteSize():
        options.CopyFrom(kept)
    else:
        described.ClearField("options")


def without_imports(file: FileDescriptorProto, missing: Container[str]) -> None:
    """Remove imports of files that there are not."""
    kept = [name for name in file.dependency if name not in missing]
    public = {file.dependency[index] for index in file.public_dependency}
    for field in ("dependency", "public_dependency", "weak_dependency", "option_dependency"):
        file.ClearField(field)
    file.dependency.extend(kept)
    file.public_dependency.extend(index for index, name in enumerate(kept) if name in public)
