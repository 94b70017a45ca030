"""Child process of `compiler_child`, in which schemas are compiled and their decoders tried.

It has no environment, no descriptors of its parent except two pipes, and limits of CPU time and memory for each request. Its
protocol: four bytes of length, JSON.

Comments of schemas: of `.proto` files, Avro's `doc`, JSON Schema's `description`.

They are read from the text in the compiler's child process (`collect`); the driver keeps only them.
"""

import contextlib
import errno
import json
import logging
import os
import re
import resource
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from game_events.decoding.avro.schema import AvroSchema, AvroType, compile_avro
from game_events.decoding.columns import MAX_NAME, UNSEEN, ColumnMap
from game_events.decoding.decoder import CALLS, as_json, ask_about, from_json, make_decoder
from game_events.decoding.frame import RegistrySchema, SchemaId
from game_events.decoding.json.schema import INNER, JsonSchema, SchemaNode, compile_json, typed
from game_events.decoding.projection import FORMAT as COLUMNS
from game_events.decoding.projection import MAX_SHORT_TEXT, ColumnsSchema, CompiledSchema
from game_events.decoding.protobuf.files import STDERR, compile_files, described_files
from game_events.errors import DataError

log = logging.getLogger(__name__)

#: Bytes that it may write to one file.
FILE_BYTES = 2**26

#: Characters of an error, which is in each quarantine row of the schema.
MAX_MESSAGE = 2_000

#: Characters of a message type's field keys, which bronze's metadata holds for ever: 400 for each of 10,000 fields.
MAX_KEYS = 2**22

#: Exit code for "no memory".
NO_MEMORY = 3

#: Errors for lack of resources. A file that is too large (EFBIG) is the schema's fault.
NO_RESOURCES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO})

_COMPILERS: Mapping[str, Callable[[RegistrySchema], CompiledSchema]] = {
    "AVRO": compile_avro,
    "JSON": compile_json,
    COLUMNS: lambda schema: ColumnsSchema(schema.schema_id, schema.text),
}


def serve(memory: int, idle_s: float) -> None:
    """Answer requests until stdin ends, or none has arrived for `idle_s` seconds.

    SIGPROF ends the process after a request's `work_s` CPU seconds. `memory`: bytes for one request, besides the initial ones.
    """
    pipe = os.fdopen(os.dup(1), "wb")
    # Output of C code goes to stderr.
    os.dup2(STDERR, 1)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # Ends the process: a KeyboardInterrupt would be reported as the schema's error.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    # Arrow imports pandas for it, which every first schema would wait for, and which is no schema's memory.
    pa.array([b""], pa.binary())
    _limit(memory)
    # Other processes, with deeper stacks, have a higher limit (`allow_deep_calls`).
    sys.setrecursionlimit(CALLS)
    _send(pipe, b"{}")
    while select.select([0], [], [], idle_s)[0]:
        request = json.loads(_read(int.from_bytes(_read(4), "big")))
        signal.setitimer(signal.ITIMER_PROF, request["work_s"])
        schema_id = request["schema_id"]
        answer = json.dumps({"schema_id": schema_id} | answer_request(schema_id, request)).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(pipe, answer)


def _limit(memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    used = Path("/proc/self/statm")
    if used.is_file():
        total = int(used.read_text().split()[0]) * resource.getpagesize() + memory
        with contextlib.suppress(ValueError):  # there is a lower limit already
            resource.setrlimit(resource.RLIMIT_AS, (total, total))


def _read(size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        more = os.read(0, min(size - len(found), 2**20))
        if not more:
            raise SystemExit(0)
        found += more
    return bytes(found)


def _send(pipe: BinaryIO, answer: bytes) -> None:
    pipe.write(len(answer).to_bytes(4, "big") + answer)
    pipe.flush()


def _compile(schema: RegistrySchema, folder: Path) -> CompiledSchema:
    if schema.format == "PROTOBUF":
        compiled: CompiledSchema = compile_files(schema, folder)
    elif schema.format in _COMPILERS:
        compiled = _COMPILERS[schema.format](schema)
    else:
        raise DataError(f"schema id {schema.schema_id} is {schema.format}, which is not decoded")
    for enum, values in compiled.enums().items():
        if any(len(name.encode()) > MAX_SHORT_TEXT for name in values.values()):
            raise DataError(f"a value of the enum {enum} has a name of more than {MAX_SHORT_TEXT} bytes")
    return compiled


def answer_request(
    schema_id: SchemaId, request: Mapping[str, Any], compile_schema: Callable[..., CompiledSchema] = _compile
) -> dict[str, Any]:
    """A compiled schema, comments, nothing, `error`, or `unable` (not the schema's fault)."""
    try:
        if "schema" in request:
            compiled = from_json(request["schema"])
            for path in request["paths"]:
                _try_decoder(compiled, tuple(path))
            return {}
        references = tuple((name, text) for name, text in request["references"])
        schema = RegistrySchema(schema_id, request["format"], request["text"], references)
        if request["wanted"] == "comments":
            return dict(collect(schema, Path(request["folder"])))
        return as_json(compile_schema(schema, Path(request["folder"])))
    except MemoryError:
        os._exit(NO_MEMORY)
    except DataError as error:
        name = f"schema id {schema_id}"
        return {"error": _printable(str(error) if str(error).startswith(name) else f"{name} does not compile: {error}")}
    except BaseException as error:  # noqa: BLE001 - also a panic of native code: the schema's fault
        if isinstance(error, OSError) and error.errno in NO_RESOURCES:
            return {"unable": _printable(f"{type(error).__name__}: {error}")}
        return {"error": _printable(f"schema id {schema_id} does not compile: {type(error).__name__}: {error}")}


def _try_decoder(schema: CompiledSchema, path: tuple[int, ...]) -> None:
    """Prepare a message type as for its first record, and decode an empty payload."""
    decoder = make_decoder(schema, path)
    columns = ColumnMap().with_message(decoder.message, decoder.fields)
    if sum(map(len, columns.names)) > MAX_KEYS:
        names = f"the names of its fields, each with those around it and that of {decoder.message[:MAX_NAME]}"
        raise DataError(f"{names}, have more than {MAX_KEYS:,} characters")
    for name in columns.columns:
        json.dumps(columns.metadata(name))
    pa.schema(list(columns.columns.items())).serialize()
    if not isinstance(schema, ColumnsSchema):
        decoder.decode(pa.array([b""], pa.binary()), columns)


def _printable(text: str) -> str:
    """An error's text for tables and terminals."""
    storable = text[: 2 * MAX_MESSAGE].encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in storable)[:MAX_MESSAGE]


#: Schemas visited for one property of a JSON Schema, and types of one schema that may have comments.
MAX_PLACES, MAX_TYPES = 200, 10_000

#: Numbers of `message_type`, `nested_type` and `field` in the messages that describe a file, and a message.
_MESSAGE, _NESTED, _FIELD = 4, 3, 2

Place = tuple[int, ...]

#: Characters of a comment: each commit that changes a column repeats all comments.
MAX_CHARS = 500

_UNSEEN = re.compile(rf"[\x00-\x08\x0b\x0c\x0e-\x1f{UNSEEN}\ud800-\udfff]")

#: A field's comment, and the keys of the types of its value, without lists and maps around them.
Member = tuple[str, Sequence[str]]


@dataclass
class Comments:
    """The comments of one schema.

    Attributes:
        types: key of a type -> its comment; of a message type the key is its full name.
        members: key of a type -> its fields by name.
    """

    types: dict[str, str] = field(default_factory=dict)
    members: dict[str, dict[str, Member]] = field(default_factory=dict)

    def of(self, message: str, names: tuple[str, ...] = ()) -> str:
        """The comment of a message type, by its full name, or of the field at a path of names; "": none."""
        text, kinds = self.types.get(message, ""), [message]
        for name in names:
            found = [self.members[kind][name] for kind in kinds if name in self.members.get(kind, {})]
            text = next((member[0] for member in found if member[0]), "")
            kinds = [kind for member in found for kind in member[1]]
        return text

    @property
    def size(self) -> int:
        """Its memory, about, in bytes."""
        return sum(len(name) + len(member[0]) for fields in self.members.values() for name, member in fields.items())


NO_COMMENTS = Comments()


def read_comments(schema: RegistrySchema) -> Comments:
    """The comments of a schema, none if they cannot be read; TransientError if the compiler cannot be used now."""
    try:
        found = ask_about(schema, "comments")
    except DataError as error:
        log.info("comments_not_read=true schema_id=%s cause=%s", schema.schema_id, type(error).__name__)
        return NO_COMMENTS
    return Comments(found["types"], found["members"])


def collect(schema: RegistrySchema, folder: Path) -> Mapping[str, Any]:
    """`types` and `members` of a schema's comments, each as it is stored; only for `compiler_process`."""
    readers: dict[str, Callable[[RegistrySchema, Path], Comments]] = {
        "PROTOBUF": _of_protobuf,
        "AVRO": lambda schema, _: _of_avro(AvroSchema(schema.schema_id, schema.text, schema.references).root),
        "JSON": lambda schema, _: _of_json(JsonSchema(schema.schema_id, schema.text, schema.references)),
    }
    reader = readers.get(schema.format)
    read = reader(schema, folder) if reader is not None else NO_COMMENTS
    members = {
        kind: {name: (clean(text), kinds) for name, (text, kinds) in fields.items()} for kind, fields in read.members.items()
    }
    return {"types": {kind: clean(text) for kind, text in read.types.items()}, "members": members}


def _of_protobuf(schema: RegistrySchema, folder: Path) -> Comments:
    """Comments before a field or after it on its line; a base64 descriptor has none.

    Source: google/protobuf/descriptor.proto, "SourceCodeInfo.Location".
    """
    found = Comments()
    for file in described_files(schema, folder):
        _add_messages(found, file.message_type, file.package, (_MESSAGE,), _texts(file))
    return found


def _texts(file: FileDescriptorProto) -> dict[Place, str]:
    """Place in the descriptor -> the comment there."""
    return {
        tuple(location.path): " ".join(
            part.strip() for part in (location.leading_comments, location.trailing_comments) if part.strip()
        )
        for location in file.source_code_info.location
        if location.leading_comments or location.trailing_comments
    }


def _add_messages(
    found: Comments, messages: Sequence[DescriptorProto], package: str, place: Place, texts: Mapping[Place, str]
) -> None:
    for index, message in enumerate(messages):
        name, here = f"{package}.{message.name}" if package else message.name, (*place, index)
        found.types[name] = texts.get(here, "")
        # The value of a map is a field of a generated message.
        values = {
            f".{name}.{inner.name}": next((f.type_name for f in inner.field if f.number == 2), "")
            for inner in message.nested_type
            if inner.options.map_entry
        }
        found.members[name] = {
            item.name: (
                texts.get((*here, _FIELD, at), ""),
                [kind for kind in [values.get(item.type_name, item.type_name).removeprefix(".")] if kind],
            )
            for at, item in enumerate(message.field)
        }
        _add_messages(found, message.nested_type, name, (*here, _NESTED), texts)


def _of_avro(root: AvroType) -> Comments:
    """`doc` of fields and named types; of a union at the top each branch is a column."""
    found, waiting = Comments(types={root.name: root.doc}), [root]
    if root.kind == "union":
        found.members[root.name] = {name: (b.doc, _names(b)) for b in root.items for name in (b.name, b.short_name)}
    while waiting:
        for record in waiting.pop().records():
            if record.name not in found.members:
                found.members[record.name] = {f.name: (f.doc, _names(f.type)) for f in record.fields}
                waiting += [f.type for f in record.fields]
    return found


def _names(kind: AvroType) -> list[str]:
    return [record.name for record in kind.records()]


def _of_json(schema: JsonSchema) -> Comments:
    """`description` of properties; beside a `$ref` the local one takes precedence.

    Source: JSON Schema, "A Vocabulary for Basic Meta-Data Annotations".
    """
    top = _parts(schema, [schema.root])
    found, keys, waiting = Comments(types={schema.message: _description(top)}), {_identity(top): schema.message}, [top]
    while waiting and len(found.members) < MAX_TYPES:
        places = waiting.pop()
        members = found.members[keys[_identity(places)]] = {}
        for name, inner in _properties(places):
            parts = _parts(schema, inner)
            key = _identity(parts)
            if key not in keys:
                keys[key] = f"#{len(keys)}"
                waiting.append(parts)
            members[name] = (_description(parts), [keys[key]])
    return found


def _identity(places: Sequence[SchemaNode]) -> tuple[int, ...]:
    return tuple(id(place.node) for place in places)


def _properties(places: Sequence[SchemaNode]) -> Iterator[tuple[str, list[SchemaNode]]]:
    found: dict[str, list[SchemaNode]] = {}
    for place in places:
        for name, node in typed(place.node, "properties", dict).items():
            found.setdefault(name, []).append(place.inner(node))
    yield from found.items()


def _description(places: Sequence[SchemaNode]) -> str:
    return next((str(p.node["description"]) for p in places if isinstance(p.node.get("description"), str)), "")


def _parts(schema: JsonSchema, places: Sequence[SchemaNode]) -> list[SchemaNode]:
    """The schemas of a value: itself, references, parts, items of a list or map, up to a broken reference."""
    found: list[SchemaNode] = []
    with suppress(DataError):  # reported by decoding
        for place in islice(schema.parts(places, INNER), MAX_PLACES):
            found += [place] if isinstance(place.node, dict) else []
    return found


def clean(text: object) -> str:
    """A comment as stored: one line of visible characters, at most `MAX_CHARS`; "" for other values than text."""
    if not isinstance(text, str):
        return ""
    # Cut first: a comment may be megabytes.
    line = " ".join(_UNSEEN.sub(" ", text[: 20 * MAX_CHARS]).split())
    return line if len(line) <= MAX_CHARS else line[: MAX_CHARS - 3].rstrip() + "..."
