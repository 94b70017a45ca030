"""The process that Spark's Python workers are forked off, for the JVM that the tests share (`spark.python.daemon.module`).

Two things cost a worker more than the tests' few rows, and neither is what a test is about:

* Spark puts its own jar and its zip of PySpark on the workers' path, and PySpark has Python read the directories of both again
  before each task: 6,500 entries, a tenth of a second. PySpark is installed here; the two are taken off the path.
* A new worker imports the project: three seconds. Here this process has done it.
"""

from __future__ import annotations

import sys
from importlib import import_module

ARCHIVES = (".jar", ".zip")
#: What every worker needs.
PRELOADED = ("pyspark.worker", "game_events.pipeline.bronze.worker", "game_events.pipeline.fanout.job")


def main() -> None:
    """Fork workers as Spark asks for them, until it goes."""
    sys.path[:] = [place for place in sys.path if not place.endswith(ARCHIVES)]
    for place in [place for place in sys.path_importer_cache if place.endswith(ARCHIVES)]:
        del sys.path_importer_cache[place]
    # Only now: PySpark is to come from where it is installed, not from Spark's zip of it.
    for module in PRELOADED:
        import_module(module)
    import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
