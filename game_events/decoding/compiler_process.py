"""The process in which schemas are compiled and their decoders tried: a child of `compiler`, with limits of its own.

Whatever a schema does here, it does to this process: it has no environment, none of its parent's descriptors but two pipes, and
so much work and memory for each request. Reads and writes frames: four bytes of length, JSON.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from game_events.decoding.avro.schema import compile_avro
from game_events.decoding.core.column_map import ColumnMap
from game_events.decoding.core.protocols import CompiledSchema
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.decoding.core.wire_format import SchemaId
from game_events.decoding.formats import CALLS, as_json, from_json, make_decoder
from game_events.decoding.json.types import compile_json
from game_events.decoding.protobuf.files import STDERR, compile_files
from game_events.decoding.stored_columns import FORMAT as COLUMNS
from game_events.decoding.stored_columns import ColumnsSchema
from game_events.errors import DataError

#: Bytes that it may write to one file.
FILE_BYTES = 2**26
#: Characters of an error: each of the schema's rows in quarantine carries it.
MAX_WORDS = 2_000
#: Exit code for "no memory": a parent that sees it tries a new process.
NO_MEMORY = 3
#: Errors that say what the machine lacks. A file that is too large (EFBIG) is the schema's own.
LACKS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO})


def serve(memory: int, idle_s: float) -> None:
    """Answers requests until stdin ends, or nothing has come for a while.

    A request that takes more than its `work_s`, CPU seconds, ends the process by SIGPROF.

    Args:
        memory: bytes for one request, on top of what the process has at its start.
        idle_s: seconds to wait for a request.
    """
    pipe = os.fdopen(os.dup(1), "wb")
    # What C code prints is never an answer.
    os.dup2(STDERR, 1)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # Told to stop, it ends: a KeyboardInterrupt would be an answer about the schema.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    _limit(memory)
    # Where decoders are made later the stack is deeper, and the limit higher (`allow_deep_calls`).
    sys.setrecursionlimit(CALLS)
    _send(pipe, b"{}")
    while select.select([0], [], [], idle_s)[0]:
        request = json.loads(_read(int.from_bytes(_read(4), "big")))
        signal.setitimer(signal.ITIMER_PROF, request["work_s"])
        answer = json.dumps(_answer(request)).encode()
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


def _send(pipe: Any, answer: bytes) -> None:  # noqa: ANN401 - a binary file
    pipe.write(len(answer).to_bytes(4, "big") + answer)
    pipe.flush()


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """What it finds, with the id of the schema: a compiled one, nothing but the id, `error` or `unable` (no schema's fault)."""
    schema_id = request["schema_id"]
    return {"schema_id": schema_id} | _found(schema_id, request)


def _found(schema_id: SchemaId, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        if "schema" in request:
            compiled = from_json(request["schema"])
            for path in request["paths"]:
                _try_decoder(compiled, tuple(path))
            return {}
        references = tuple((name, text) for name, text in request["references"])
        schema = RegistrySchema(schema_id, request["format"], request["text"], references)
        return as_json(_compile(schema, Path(request["folder"]), *request["options"]))
    except MemoryError:
        os._exit(NO_MEMORY)
    except DataError as error:
        whose = f"schema id {schema_id}"
        return {"error": _words(str(error) if str(error).startswith(whose) else f"{whose} does not compile: {error}")}
    except BaseException as error:  # noqa: BLE001 - whatever else it is, a panic of native code too, it is this schema's fault
        if isinstance(error, OSError) and error.errno in LACKS:
            return {"unable": _words(f"{type(error).__name__}: {error}")}
        return {"error": _words(f"schema id {schema_id} does not compile: {type(error).__name__}: {error}")}


def _compile(schema: RegistrySchema, folder: Path, *options: str) -> CompiledSchema:
    match schema.format:
        case "PROTOBUF":
            return compile_files(schema, folder, *options)
        case "AVRO":
            return compile_avro(schema)
        case "JSON":
            return compile_json(schema)
        case str() if schema.format == COLUMNS:
            return ColumnsSchema(schema.schema_id, schema.text)
        case other:
            raise DataError(f"schema id {schema.schema_id} is {other}, which is not decoded")


def _try_decoder(schema: CompiledSchema, path: tuple[int, ...]) -> None:
    """Does all that is done with a message type before its first record, and reads an empty one."""
    decoder = make_decoder(schema, path)
    columns = ColumnMap().with_message(decoder.message, decoder.fields)
    for name in columns.columns:
        json.dumps(columns.metadata(name))
    pa.schema(list(columns.columns.items())).serialize()
    if not isinstance(schema, ColumnsSchema):
        decoder.decode(pa.array([b""], pa.binary()), columns)


def _words(text: str) -> str:
    """An error's text as any table and terminal can show it."""
    storable = text[: 2 * MAX_WORDS].encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in storable)[:MAX_WORDS]
