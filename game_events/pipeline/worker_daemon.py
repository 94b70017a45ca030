"""Spark's Python daemon, prepared before it forks workers: the program of `spark.python.daemon.module`.

What each worker, or each task, would do otherwise is done once, or not at all:

- imports: the workers inherit those of libraries (not of this project, as a session may ship other modules of it);
- garbage: PySpark collects it after each task, and imported modules are no garbage, but many objects to look at;
- waiting: Spark's JVM sends a task in several parts, and the system holds back each small one until the part before it is
  acknowledged, for which Linux takes 40 ms: more than a small task. A worker acknowledges at once (`PromptInput`);
- the path: before each task Python reads again which files each zip file of the path has. PySpark's own ones (`pyspark.zip`,
  `spark-core.jar`) hold the modules that are installed beside them anyway.

On a Connect server, besides: a worker has modules as their files are now (`ChangingModules`), and a daemon ends some time
after its session.
"""

import gc
import importlib
import io
import os
import select
import socket
import sys
import sysconfig
import time
from collections.abc import Callable
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

Task = Callable[[BinaryIO, BinaryIO], None]
#: Spark's variable that names the session whose daemon this is, and its value for one of all sessions.
SESSION, NO_SESSION = "SPARK_JOB_ARTIFACT_UUID", "default"
#: Bytes that a worker reads at once, as PySpark's daemon does by default.
BUFFER_BYTES = 65_536
#: Seconds: longer than a Connect server keeps a session without requests (60 minutes by default). For a living session Spark
#: connects to its daemon's port, and another program could have taken that of a daemon that has ended.
IDLE_S = 3_900.0
#: Folders of Python's own modules and of installed libraries, and their names elsewhere (a user's own, a distribution's): these
#: modules are believed not to change while a server runs.
_INSTALLED = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_INSTALLED_NAMES = frozenset({"site-packages", "dist-packages"})


def without_archives(path: list[str]) -> list[str]:
    """A path without the archives in the folder of a PySpark that the rest of the path has as modules."""
    folders = [entry for entry in path if not os.path.isfile(entry)]  # noqa: PTH113 - "" is the current folder
    found = PathFinder.find_spec("pyspark", folders)
    if found is None or found.origin is None or PathFinder.find_spec("py4j", folders) is None:
        return path
    home = Path(found.origin).resolve().parent
    return [entry for entry in path if entry in folders or not Path(entry).resolve().is_relative_to(home)]


def _file(module: ModuleType) -> Path | None:
    """The file that a module was read from, or the archive with it; None for an installed module, or one without a file."""
    name = getattr(module, "__file__", None)
    if name is None:
        return None
    file = next((path for path in (Path(name), *Path(name).parents) if path.is_file()), None)
    if file is None or str(file.resolve()).startswith(_INSTALLED) or not _INSTALLED_NAMES.isdisjoint(file.parts):
        return None
    return file


def _package(name: str) -> str:
    """The first part of a module's name."""
    return name.partition(".")[0]


def _is_compiled(module: ModuleType) -> bool:
    return str(getattr(module, "__file__", None)).endswith(tuple(EXTENSION_SUFFIXES))


def _state(file: Path) -> tuple[int, int] | None:
    """When a file was changed last, in ns, and its size; None: it is gone."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


class PromptInput(io.RawIOBase):
    """What a socket receives, each part acknowledged as soon as it was read; where the system has no option for it, as usual.

    Linux forgets the option after a while, so it is set each time: it also sends what is due.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._option: int | None = getattr(socket, "TCP_QUICKACK", None)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - whatever has room for bytes
        """Receive up to so many bytes as there is room for; 0: the other side has closed the connection."""
        received = self._connection.recv_into(buffer)
        if self._option is not None:
            self._connection.setsockopt(socket.IPPROTO_TCP, self._option, 1)
        return received

    def close(self) -> None:
        """Close this end's handle."""
        self._connection.close()
        super().close()


def promptly(task: Task) -> Task:
    """A task of a worker that neither waits for parts that the JVM holds back, nor holds back its own."""

    def run(infile: BinaryIO, outfile: BinaryIO) -> None:
        with socket.socket(fileno=os.dup(infile.fileno())) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):  # as later versions of Spark may have it
                task(infile, outfile)
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with io.BufferedReader(PromptInput(connection), BUFFER_BYTES) as prompt:
                task(prompt, outfile)

    return run


class ChangingModules:
    """The modules that tasks of this worker have imported, other than installed ones, each with its file's state.

    Packages with a compiled module stay as they are: most of those cannot be loaded twice in a process.
    """

    def __init__(self) -> None:
        self._installed = set(sys.modules)
        self._compiled: set[str] = set()
        self._found: dict[str, tuple[Path, tuple[int, int] | None]] = {}

    def run(self, task: Task, infile: BinaryIO, outfile: BinaryIO) -> None:
        """Run a task with modules as their files are now: a worker of a warm server lives longer than a version of a file."""
        if any(_state(file) != state for file, state in self._found.values()):
            for name in self._found:
                sys.modules.pop(name, None)
            self._found.clear()
            importlib.invalidate_caches()
        began_ns = time.time_ns()
        try:
            task(infile, outfile)
        finally:
            self._remember(began_ns)

    def _remember(self, began_ns: int) -> None:
        new = {n: m for n, m in list(sys.modules.items()) if n not in self._installed and n not in self._found}
        self._compiled |= {_package(name) for name, module in new.items() if _is_compiled(module)}
        for name in [name for name in self._found if _package(name) in self._compiled]:
            del self._found[name]
            self._installed.add(name)
        for name, module in new.items():
            file = None if _package(name) in self._compiled else _file(module)
            if file is None:
                self._installed.add(name)
                continue
            state = _state(file)
            # Changed since it may have been imported: what was read is not known.
            self._found[name] = (file, state if state is not None and state[0] < began_ns else None)


class UntilIdle:
    """`select.select` for the daemon: ends it after `IDLE_S` in which nothing was asked of it and no worker lived.

    A session of a Connect server has a daemon of its own, which Spark keeps when the session has ended.
    """

    #: What the daemon catches.
    error = select.error

    def __init__(self) -> None:
        self._used = time.monotonic()

    def select(self, *arguments: Any) -> tuple[list[Any], list[Any], list[Any]]:  # noqa: ANN401 - those of `select.select`
        """What is ready; SystemExit if the daemon has nothing to live for."""
        ready = select.select(*arguments)
        if ready[0] or _has_children():
            self._used = time.monotonic()
        elif time.monotonic() - self._used > IDLE_S:
            raise SystemExit(0)
        return ready


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def main() -> None:
    """Prepare this process, and be PySpark's daemon."""
    sys.path[:] = without_archives(sys.path)
    sys.path_importer_cache.clear()
    import game_events.workers.decode  # noqa: F401, PLC0415 - from the path as it is now

    for name in [name for name in sys.modules if _package(name) == "game_events"]:
        del sys.modules[name]
    daemon: Any = importlib.import_module("pyspark.daemon")
    daemon.worker_main = partial(ChangingModules().run, promptly(daemon.worker_main))
    # Bytecode of a shipped file would be used for one of the same size that was written within the same second.
    sys.dont_write_bytecode = True
    if os.environ.get(SESSION, NO_SESSION) != NO_SESSION:
        daemon.select = UntilIdle()
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
