"""Schemas compiled, and their decoders tried, in a process of their own: what one of them does harms only its own records.

A schema is text that somebody else wrote. Whether it means nothing, breaks the compiler, never ends or fills the memory: here
it becomes a DataError that says so. What has passed the child within its limits is done again in this process, and in Spark's
workers, which never compile: `CompiledSchema` travels to them.

One child serves all threads of a process, and ends by itself when it has had nothing to do for a while: starting it takes some
tenths of a second, a schema some milliseconds.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from game_events.decoding.core.protocols import CompiledSchema, PayloadDecoder
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.decoding.core.wire_format import IndexPath, SchemaId
from game_events.decoding.formats import allow_deep_calls, as_json, from_json, make_decoder
from game_events.decoding.protobuf.schema import ProtobufSchema
from game_events.errors import DataError, TransientError

#: CPU seconds for one request; the same on an idle machine and on a busy one.
WORK_S = 2.0
#: The same for each reference, and for each message type after the first: up to `STEPS` of them.
STEP_S, STEPS = 0.01, 1_000
#: Seconds after which it is given up though it does not work: far more than any machine needs for `WORK_S` of work.
WAIT_S = 120.0
#: Bytes that one schema may take.
MEMORY = 2**29
#: Seconds without a schema after which the child ends.
IDLE_S = 30.0
#: Bytes of a request, and of an answer.
MAX_REQUEST, MAX_ANSWER = 2**28, 2**28
#: Of the names of temporary folders.
PREFIX = "game_events_compiler"
#: Signals by which a machine, or who looks after it, stops processes.
STOPS = frozenset({-signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT})
_START = (
    "import json, sys; arguments = json.loads(sys.argv[1]); sys.path[:] = arguments.pop('path'); "
    "from game_events.decoding.compiler_process import serve; serve(**arguments)"
)


def compile_schema(schema: RegistrySchema) -> CompiledSchema:
    """Compile a registry's schema.

    Raises:
        DataError: the text does not compile, within `WORK_S` and `MEMORY`, or its format is not decoded; the message holds the
            compiler's own words.
        TransientError: no child can be started, or it was stopped, or the machine lacks what it needs (as room for files).
    """
    return _ask_to_compile(schema)


def described_files(schema: RegistrySchema) -> list[FileDescriptorProto]:
    """The files of a protobuf schema with what protoc knows of their source: comments; raises as `compile_schema`."""
    found = _ask_to_compile(schema, "--include_source_info")
    return list(FileDescriptorSet.FromString(found.files).file) if isinstance(found, ProtobufSchema) else []


def first_decoder(schema: CompiledSchema, path: IndexPath) -> PayloadDecoder:
    """The decoder of a message type that was not decoded before; workers make theirs by `make_decoder`.

    Raises:
        DataError: there is no such type, or it cannot be decoded, within `WORK_S` and `MEMORY`.
        TransientError: as `compile_schema`.
    """
    return first_decoders(schema, [path])[0]


def first_decoders(schema: CompiledSchema, paths: Sequence[IndexPath]) -> list[PayloadDecoder]:
    """The decoders of several message types: one request for each `STEPS` of them; raises as `first_decoder`."""
    for begin in range(0, len(paths), STEPS):
        some = paths[begin : begin + STEPS]
        _CHILD.ask(schema.schema_id, {"schema": as_json(schema), "paths": some, "work_s": WORK_S + STEP_S * (len(some) - 1)})
    allow_deep_calls()
    try:
        return [make_decoder(schema, path) for path in paths]
    except (ValueError, TypeError, RecursionError, ArithmeticError, LookupError) as error:
        raise DataError(f"schema id {schema.schema_id} cannot be decoded: {type(error).__name__}: {error}") from None


def _ask_to_compile(schema: RegistrySchema, *options: str) -> CompiledSchema:
    allow_deep_calls()
    request = {"format": schema.format, "text": schema.text, "references": schema.references, "options": options}
    work_s = WORK_S + STEP_S * min(len(schema.references), STEPS)
    try:
        with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
            return from_json(_CHILD.ask(schema.schema_id, request | {"folder": folder, "work_s": work_s}))
    except OSError as error:
        raise TransientError(f"schema id {schema.schema_id}: no temporary folder can be made: {error}") from error


class _Child:
    """The child process: started when it is needed, again after it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        #: Whether it has answered to anything: one that has may have ended for a reason of its own.
        self._used = False
        #: Whether it was given up after `WAIT_S`.
        self._late = False

    def ask(self, schema_id: SchemaId, request: dict[str, Any]) -> dict[str, Any]:
        """An answer to a request.

        Raises:
            DataError: what the child says is wrong with the schema, that the schema ended it, or that it is too long.
            TransientError: no child can be started, it was stopped, or it lacks what the machine has to give.
        """
        packed = json.dumps({"schema_id": schema_id, **request}).encode()
        if len(packed) > MAX_REQUEST:
            raise DataError(
                f"schema id {schema_id} does not compile: with what it imports it is longer than {MAX_REQUEST // 2**20} MiB"
            )
        killed = False
        with self._lock:
            while True:
                fresh = self._started()
                answer = self._exchange(packed)
                if answer is not None:
                    break
                ended = self._end()
                if ended in STOPS and fresh:
                    raise TransientError(f"schema id {schema_id}: the compiler of schemas was stopped (signal {-ended})")
                # The kernel kills what is large when a machine has no memory left, whoever has taken it. And a child to which
                # nothing came for a while ends by itself.
                if fresh and ended in (0, -signal.SIGKILL) and not (killed or self._late):
                    killed = True
                    continue
                # What an old child has died of is not certain: a new one is the judge.
                if fresh or ended == -signal.SIGPROF:
                    raise DataError(f"schema id {schema_id} does not compile: {_cause(ended, request['work_s'])}")
            if answer.get("schema_id") != schema_id:
                self.end()
                raise TransientError(f"schema id {schema_id}: the compiler answered to another request")
        if "unable" in answer:
            raise TransientError(f"schema id {schema_id} cannot be compiled now: {answer['unable']}")
        if "error" in answer:
            raise DataError(answer["error"])
        return answer

    def end(self) -> None:
        """Ends it, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
        self._end()

    def _started(self) -> bool:
        """Starts it if it does not run; whether it is new."""
        if self._process is not None and self._process.poll() is None:
            return not self._used
        self._end()
        try:
            self._start()
        except OSError as error:
            raise TransientError(f"the compiler of schemas cannot be started: {error}") from error
        return True

    def _start(self) -> None:
        arguments = {"path": [str(Path(p).absolute()) for p in sys.path], "memory": MEMORY, "idle_s": IDLE_S}
        with tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START, json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # Arrow's own allocator would set aside more memory than there is for a schema.
                env={"ARROW_DEFAULT_MEMORY_POOL": "system"},
                cwd="/",
                start_new_session=True,
            )
            self._used = False
            if self._exchange(b"") is None:
                self._end()
                errors.seek(0)
                raise TransientError(f"the compiler of schemas cannot be started: {errors.read().decode(errors='replace')}")

    def _exchange(self, request: bytes) -> dict[str, Any] | None:
        """Sends a request, if it is one, and reads the answer; None: the child has ended."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        self._late = False
        watch = threading.Timer(WAIT_S, self._give_up, [process])
        watch.daemon = True
        try:
            watch.start()
            if request:
                process.stdin.write(len(request).to_bytes(4, "big") + request)
                process.stdin.flush()
            head = process.stdout.read(4)
            size = int.from_bytes(head, "big")
            answer = process.stdout.read(size) if len(head) == 4 and size <= MAX_ANSWER else b""
        except OSError:
            return None
        except BaseException:
            # Interrupted: what it answers now would be taken for the answer to the next request.
            self.end()
            raise
        finally:
            watch.cancel()
        if not answer or len(answer) != size:
            return None
        self._used = bool(request)
        found: dict[str, Any] = json.loads(answer)
        return found

    def _give_up(self, process: subprocess.Popen[bytes]) -> None:
        self._late = True
        process.kill()

    def _end(self) -> int:
        """Ends it; what it has ended with."""
        process, self._process = self._process, None
        if process is None:
            return 0
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            return process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _cause(code: int, work_s: float) -> str:
    if code == -signal.SIGPROF:
        return f"it takes more than {work_s:g} s of work"
    if code == -signal.SIGKILL:
        return f"it is not done after {WAIT_S:g} s, or takes more memory than there is"
    return f"it takes more than {MEMORY // 2**20} MiB of memory, or breaks the compiler (code {code})"


_CHILD = _Child()


def _forget_child() -> None:
    """A forked process has a child of its own."""
    global _CHILD  # noqa: PLW0603 - one for each process
    _CHILD = _Child()


def _end_child() -> None:
    _CHILD.end()


os.register_at_fork(after_in_child=_forget_child)
atexit.register(_end_child)
