"""Program that `spark-submit` runs for a Connect server whose sessions share Python workers: it ends with its JVM.

Spark's own program (`SparkConnectServer`) gives each session Python workers of its own, and keeps their daemon, of 150 MB, when
the session has ended. It overrides the setting for this, so the server is a plugin here instead.
"""

import os
import sys
from pathlib import Path

#: Settings of a Spark that is such a server. Files that a session ships replace those of the same name.
SETTINGS = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.sql.artifact.isolation.enabled": "false",
    "spark.files.overwrite": "true",
}


def main() -> None:
    """Start Spark, write the file of the first argument, and wait until the JVM, which writes the standard input, ends.

    Before the file is there, the plugin answers, but can make no sessions.
    """
    # This file's folder: its modules are no top-level ones.
    del sys.path[0]
    from pyspark.sql import SparkSession  # noqa: PLC0415

    SparkSession.builder.getOrCreate()
    Path(sys.argv[1]).touch()
    sys.stdin.read()
    # No exit handlers: PySpark's would ask the JVM that has ended.
    os._exit(0)


if __name__ == "__main__":
    main()
