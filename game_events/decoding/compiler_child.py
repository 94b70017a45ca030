"""The child process in which schemas are compiled: its start and end, requests and answers. `compiler_process` runs in it.

One child serves all threads of a process, and ends after some idle time: starting it takes some tenths of a second, a schema
some milliseconds.

Not an executor of `concurrent.futures`: that gives the child the environment with its secrets, runs the main program's module
again, and unpickles answers, which lets a child that a schema has taken over run code here. JSON is only read.
"""

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from game_events.errors import DataError, TransientError

#: Bytes of an answer.
MAX_ANSWER = 2**28
#: Exit codes of an orderly stop.
STOPS = frozenset({-signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT})
_START = (
    "import json, sys; arguments = json.loads(sys.argv[1]); sys.path[:] = arguments.pop('path'); "
    "from game_events.decoding.compiler_process import serve; serve(**arguments)"
)


@dataclass(frozen=True)
class CompilerLimits:
    """What compiling may take.

    Attributes:
        work_s: CPU seconds for one request; the same on an idle machine and on a busy one.
        wait_s: seconds after which a request is given up: far more than `work_s` of work takes on any machine.
        memory: bytes of memory for one schema.
        idle_s: seconds without a schema after which the child ends.
    """

    work_s: float = 2.0
    wait_s: float = 120.0
    memory: int = 2**29
    idle_s: float = 30.0


class CompilerChild:
    """The child process: started at the first request, restarted after its end."""

    def __init__(self, limits: CompilerLimits | None = None) -> None:
        self.limits = limits or CompilerLimits()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        #: Whether it has answered a request: then its end may have another cause than the current one.
        self._used = False
        #: Whether it was killed after `CompilerLimits.wait_s`.
        self._late = False

    def ask(self, schema_id: int | str, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request; raises as `compile_schema`."""
        line = json.dumps({"schema_id": schema_id, **request}).encode() + b"\n"
        with self._lock:
            answer = self._answer(f"schema id {schema_id}", line, request["work_s"])
            if answer.get("schema_id") != schema_id:
                self.end()
                raise TransientError(f"schema id {schema_id}: the compiler answered to another request")
        if "unable" in answer:
            raise TransientError(f"schema id {schema_id} cannot be compiled now: {answer['unable']}")
        if "error" in answer:
            raise DataError(answer["error"])
        return answer

    def end(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
        self._end()

    def _answer(self, what: str, line: bytes, work_s: float) -> dict[str, Any]:
        """Send a request until a child answers, or its end is the schema's fault."""
        was_killed = False
        while True:
            is_new = self._started()
            answer = self._exchange(line)
            if answer is not None:
                return answer
            code = self._end()
            if not is_new and code != -signal.SIGPROF:
                continue  # an old child may have ended for another cause: only a new one's end counts
            if code in STOPS:
                raise TransientError(f"{what}: the compiler of schemas was stopped (signal {-code})")
            # The kernel may have killed it for lack of memory, or it has ended after its idle time: one more attempt.
            if code not in (0, -signal.SIGKILL) or was_killed or self._late:
                raise DataError(f"{what} does not compile: {_cause(code, work_s, self.limits)}")
            was_killed = True

    def _started(self) -> bool:
        """Start it if it does not run; returns whether it has not answered a request yet."""
        if self._process is not None and self._process.poll() is None:
            return not self._used
        self._end()
        limits = {"memory": self.limits.memory, "idle_s": self.limits.idle_s}
        arguments = {"path": [str(Path(p).absolute()) for p in sys.path], **limits}
        try:
            with tempfile.TemporaryFile() as errors:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-c", _START, json.dumps(arguments)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    # Arrow's own allocator would reserve more than `CompilerLimits.memory`.
                    env={"ARROW_DEFAULT_MEMORY_POOL": "system"},
                    cwd="/",
                    start_new_session=True,
                )
                self._used = False
                if self._exchange(b"") is None:
                    self._end()
                    errors.seek(0)
                    raise OSError(errors.read().decode(errors="replace"))
        except OSError as error:
            raise TransientError(f"the compiler of schemas cannot be started: {error}") from error
        return True

    def _exchange(self, line: bytes) -> dict[str, Any] | None:
        """Send a request (none if empty) and read the answer; None: the child has ended."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        self._late = False

        def give_up() -> None:
            self._late = True
            process.kill()

        watch = threading.Timer(self.limits.wait_s, give_up)
        watch.daemon = True
        watch.start()
        try:
            process.stdin.write(line)
            process.stdin.flush()
            answer = process.stdout.readline(MAX_ANSWER)
        except OSError:
            return None
        except BaseException:
            # Interrupted: its answer would be taken for that to the next request.
            self.end()
            raise
        finally:
            watch.cancel()
        if not answer.endswith(b"\n"):
            return None
        self._used = bool(line)
        read: dict[str, Any] = json.loads(answer)
        return read

    def _end(self) -> int:
        process = self._process
        self._process = None
        if process is None:
            return 0
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            return process.wait(self.limits.wait_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _cause(code: int, work_s: float, limits: CompilerLimits) -> str:
    if code == -signal.SIGPROF:
        return f"it takes more than {work_s:g} s of work"
    if code == -signal.SIGKILL:
        return f"it is not done after {limits.wait_s:g} s, or takes more memory than there is"
    return f"it takes more than {limits.memory // 2**20} MiB of memory, or breaks the compiler (code {code})"


CHILD = CompilerChild()


def _forget_child() -> None:
    global CHILD  # noqa: PLW0603 - one for each process
    CHILD = CompilerChild()


os.register_at_fork(after_in_child=_forget_child)


@atexit.register
def _end_child() -> None:
    CHILD.end()
