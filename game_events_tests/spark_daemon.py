"""The process that Spark's Python workers are forked off, for the JVM that the tests share (`spark.python.daemon.module`).

Two things cost a worker more than the tests' few rows, and neither is what a test is about:

* Spark puts its own jar and its zip of PySpark on the workers' path, and PySpark has Python read the directories of both again
  before each task: 6,500 entries, a tenth of a second. PySpark is installed here; the two are taken off the path.
* A new worker imports the project: three seconds. Here this process has done it.
"""

from __future__ import annotations

import sys

_ARCHIVES = (".jar", ".zip")
sys.path[:] = [place for place in sys.path if not place.endswith(_ARCHIVES)]
for place in [place for place in sys.path_importer_cache if place.endswith(_ARCHIVES)]:
    del sys.path_importer_cache[place]

import pyspark.worker  # noqa: E402, F401
from pyspark.daemon import manager  # noqa: E402

import game_events.pipeline.bronze_stage  # noqa: E402
import game_events.pipeline.fan_out  # noqa: E402, F401

if __name__ == "__main__":
    manager()
