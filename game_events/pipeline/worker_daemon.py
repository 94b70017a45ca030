"""Spark's Python daemon, prepared before it forks workers: the program of `spark.python.daemon.module`.

What each worker, or each task, would do otherwise is done once:

- imports: the workers inherit those of libraries (not of this project, as a session may ship other modules of it);
- garbage: PySpark collects it after each task, and imported modules are no garbage, but many objects to look at;
- the path: before each task Python reads again which files each zip file of the path has. PySpark's own ones (`pyspark.zip`,
  `spark-core.jar`) hold the modules that are installed beside them anyway.
"""

import gc
import os
import runpy
import sys
from importlib.machinery import PathFinder
from pathlib import Path


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
    import game_events.pipeline.bronze.stored_worker  # noqa: PLC0415 - from the path as it is now
    import game_events.pipeline.bronze.worker  # noqa: PLC0415
    import game_events.pipeline.fanout.worker  # noqa: F401, PLC0415

    for name in [name for name in sys.modules if name.partition(".")[0] == "game_events"]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
