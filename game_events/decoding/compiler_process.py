"""What runs in the child process of `compiler_child`: schemas are compiled, their comments read, and their decoders tried.

It has no environment, no descriptors of its parent except two pipes, and limits of CPU time and memory for each request.
Requests and answers are lines of JSON.
"""

import contextlib
import errno
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from game_events.decoding.avro_schema import compile_avro
from game_events.decoding.columns import MAX_NAME, ColumnMap
from game_events.decoding.comments import collect
from game_events.decoding.decoder import CALLS, as_json, from_json, make_decoder
from game_events.decoding.frame import RegistrySchema, SchemaId
from game_events.decoding.json_schema import compile_json
from game_events.decoding.projection import FORMAT as COLUMNS
from game_events.decoding.projection import MAX_SHORT_TEXT, ColumnsSchema, CompiledSchema
from game_events.decoding.protobuf.files import STDERR, compile_files, described_files
from game_events.errors import DataError

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


def serve(memory: int, idle_s: float) -> None:
    """Answer requests until stdin ends, or none has arrived for `idle_s` seconds.

    SIGPROF ends the process after a request's `work_s` CPU seconds. `memory`: bytes for one request, besides the initial ones.
    """
    answers: BinaryIO = os.fdopen(os.dup(1), "wb")
    requests: BinaryIO = os.fdopen(os.dup(0), "rb")
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
    _send(answers, {})
    while select.select([requests], [], [], idle_s)[0]:
        line = requests.readline()
        if not line.endswith(b"\n"):
            return  # the parent has ended
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["work_s"])
        schema_id = request["schema_id"]
        answer = {"schema_id": schema_id} | answer_request(schema_id, request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(answers, answer)


def _send(answers: BinaryIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _limit(memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    used = Path("/proc/self/statm")
    if used.is_file():
        total = int(used.read_text().split()[0]) * resource.getpagesize() + memory
        with contextlib.suppress(ValueError):  # there is a lower limit already
            resource.setrlimit(resource.RLIMIT_AS, (total, total))


def _compile(schema: RegistrySchema, folder: Path) -> CompiledSchema:
    compiled: CompiledSchema
    match schema.format:
        case "PROTOBUF":
            compiled = compile_files(schema, folder)
        case "AVRO":
            compiled = compile_avro(schema)
        case "JSON":
            compiled = compile_json(schema)
        case _ if schema.format == COLUMNS:
            compiled = ColumnsSchema(schema.schema_id, schema.text)
        case _:
            raise DataError(f"schema id {schema.schema_id} is {schema.format}, which is not decoded")
    for enum, values in compiled.enums().items():
        if any(len(name.encode()) > MAX_SHORT_TEXT for name in values.values()):
            raise DataError(f"a value of the enum {enum} has a name of more than {MAX_SHORT_TEXT} bytes")
    return compiled


def answer_request(
    schema_id: SchemaId, request: Mapping[str, Any], compile_schema: Callable[..., CompiledSchema] = _compile
) -> dict[str, Any]:
    """A compiled schema, comments, nothing, `error`, or `unable` (not the schema's fault)."""
    name = f"schema id {schema_id}"
    try:
        return _done(schema_id, request, compile_schema)
    except MemoryError:
        os._exit(NO_MEMORY)
    except DataError as error:
        return {"error": _printable(str(error) if str(error).startswith(name) else f"{name} does not compile: {error}")}
    except BaseException as error:  # noqa: BLE001 - also a panic of native code: the schema's fault
        if isinstance(error, OSError) and error.errno in NO_RESOURCES:
            return {"unable": _printable(f"{type(error).__name__}: {error}")}
        return {"error": _printable(f"{name} does not compile: {type(error).__name__}: {error}")}


def _done(schema_id: SchemaId, request: Mapping[str, Any], compile_schema: Callable[..., CompiledSchema]) -> dict[str, Any]:
    if "schema" in request:
        compiled = from_json(request["schema"])
        for path in request["paths"]:
            _try_decoder(compiled, tuple(path))
        return {}
    folder = Path(request["folder"])
    references = tuple((name, text) for name, text in request["references"])
    schema = RegistrySchema(schema_id, request["format"], request["text"], references)
    if request["wanted"] == "comments":
        files = described_files(schema, folder) if schema.format == "PROTOBUF" else ()
        return dict(collect(schema, files))
    return as_json(compile_schema(schema, folder))


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
