"""Spark's Python daemon, prepared before it forks workers: the program of `spark.python.daemon.module`.

What each worker, or each task, would do otherwise is done once, or not at all:

- imports: the workers inherit all libraries and this project. Where their session ships files, which may be this project in
  another version, each worker imports this project's modules itself (beside `game-events up`, `spark/session.py` refuses
  edited ones instead);
- garbage: PySpark collects it after each task, and imported modules are no garbage, but many objects to look at;
- the path: before each task Python reads again which files each zip file of the path has. PySpark's own ones (`pyspark.zip`,
  `spark-core.jar`) hold the modules that are installed beside them anyway.
"""

import gc
import importlib
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

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


def main() -> None:
    """Prepare this process, and be PySpark's daemon."""
    sys.path[:] = without_archives(sys.path)
    sys.path_importer_cache.clear()
    import game_events.workers.decode  # noqa: F401, PLC0415 - from the path as it is now

    if SESSION_WITH_FILES in os.environ:
        for name in [name for name in sys.modules if name.partition(".")[0] == "game_events"]:
            del sys.modules[name]
    importlib.import_module("pyspark.worker")  # PySpark's daemon of 4.2 leaves it to each worker
    daemon: Any = importlib.import_module("pyspark.daemon")
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
