"""Settings of every JVM that the tests start: it lives for minutes, over tables of a few files."""

from __future__ import annotations

#: Tests are over before the optimizing compiler has paid for itself: without it they take two thirds of the processor time.
#: Without it Java reserves a fifth of the usual room for compiled code, too, which the JVM that all tests share fills.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
#: For Spark; Delta's own jobs are over a log of a few lines.
SMALL = {"spark.databricks.delta.snapshotPartitions": "2"}
#: The same for a command in a process of its own: `GAME_EVENTS_SPARK_CONF`.
OF_A_COMMAND = {**SMALL, "spark.driver.extraJavaOptions": JAVA_OPTIONS}
