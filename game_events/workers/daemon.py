"""Spark's Python daemon, prepared before it forks workers: the program of `spark.python.daemon.module`.

What each worker, or each task, would do otherwise is done once, or not at all:

- imports: the workers inherit all libraries and this project. Where their session ships files, which may be this project in
  another version, each worker imports this project's modules itself (beside `game-events up`, `spark/session.py` refuses
  edited ones instead);
- garbage: PySpark collects it after each task, and imported modules are no garbage, but many objects to look at;
- waiting: Spark's JVM sends a task in several parts, and the system holds back each small one until the part before it is
  acknowledged, for which Linux takes 40 ms: more than a small task. A worker acknowledges at once (`PromptInput`);
- the path: before each task Python reads again which files each zip file of the path has. PySpark's own ones (`pyspark.zip`,
  `spark-core.jar`) hold the modules that are installed beside them anyway.
"""

import gc
import importlib
import io
import os
import socket
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, BinaryIO

Task = Callable[[BinaryIO, BinaryIO], None]
#: Bytes that a worker reads at once, as PySpark's daemon does by default.
BUFFER_BYTES = 65_536

#: Environment variable by which Spark gives a Connect session that ships files a daemon of its own.
SESSION_WITH_FILES = "SPARK_JOB_ARTIFACT_UUID"


def without_archives(path: list[str]) -> list[str]:
    """A path without the archives in the folder of a PySpark that the rest of the path has as modules."""
    folders = [entry for entry in path if not os.path.isfile(entry)]  # noqa: PTH113 - "" is the current folder
    found = PathFinder.find_spec("pyspark", folders)
    if found is None or found.origin is None or PathFinder.find_spec("py4j", folders) is None:
        return path
    home = Path(found.origin).resolve().parent
    return [entry for entry in path if entry in folders or not Path(entry).resolve().is_relative_to(home)]


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


def main() -> None:
    """Prepare this process, and be PySpark's daemon."""
    sys.path[:] = without_archives(sys.path)
    sys.path_importer_cache.clear()
    import game_events.workers.decode  # noqa: F401, PLC0415 - from the path as it is now

    if SESSION_WITH_FILES in os.environ:
        for name in [name for name in sys.modules if name.partition(".")[0] == "game_events"]:
            del sys.modules[name]
    daemon: Any = importlib.import_module("pyspark.daemon")
    daemon.worker_main = promptly(daemon.worker_main)
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
