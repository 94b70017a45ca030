"""Spark's settings for this project: jars, UTC, Arrow, and the interpreter that the workers run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from game_events.config.local_addresses import LOOPBACK, workers_are_local
from game_events.config.settings import Settings
from game_events.jvm.jars import s3_jars, spark_jars
from game_events.jvm.java import DEFAULT_JAVA_OPTIONS
from game_events.jvm.private_folders import process_temporary_folder
from game_events.lakehouse.storage.options import is_s3, spark_options
from game_events.spark.security import authentication, refuse_credentials

LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")

#: Records of an Arrow batch. Spark's Arrow writer takes time quadratic in a batch's rows for lists and maps that are NULL.
ARROW_RECORDS = 20_000
#: The same for Kafka records, which travel without NULL lists: so many that 20 schema versions are large groups each.
KAFKA_ARROW_RECORDS = 50_000
#: Bytes of it: some records are megabytes.
ARROW_BYTES = 64 * 1024 * 1024


ARROW_RECORDS_KEY = "spark.sql.execution.arrow.maxRecordsPerBatch"
#: Off, whatever a user sets: decoding reads Arrow's 32-bit offsets (decoding/core/wire_format.py).
LARGE_TYPES_KEY = "spark.sql.execution.arrow.useLargeVarTypes"
#: What comes before PySpark's own jars in the driver's JVM.
CLASS_PATH_KEY = "spark.driver.extraClassPath"


@contextmanager
def kafka_arrow_batches(spark: SparkSession) -> Iterator[None]:
    """Arrow batches as Kafka records take them, for the jobs of a block; a user's own setting stays."""
    usual = spark.conf.get(ARROW_RECORDS_KEY)
    if usual != str(ARROW_RECORDS):
        yield
        return
    spark.conf.set(ARROW_RECORDS_KEY, str(KAFKA_ARROW_RECORDS))
    try:
        yield
    finally:
        spark.conf.set(ARROW_RECORDS_KEY, str(ARROW_RECORDS))


@contextmanager
def null_on_error(spark: SparkSession) -> Iterator[None]:
    """Expressions that cannot be computed for a row give NULL, for the jobs of a block; a user's own settings come back.

    Besides ANSI mode, Spark's elimination of common subexpressions is off: it would compute what two rules share outside of
    the `try` that each of them is wrapped in (`rule_columns.holds`), and one row's error would end the job.
    """
    wanted = {"spark.sql.ansi.enabled": "false", "spark.sql.subexpressionElimination.enabled": "false"}
    usual = {key: spark.conf.get(key) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, before in usual.items():
            spark.conf.set(key, str(before))


def session_config(settings: Settings) -> dict[str, str]:
    """What a session is told, wherever it runs; the user's own settings of this kind last."""
    conf = {
        "spark.sql.session.timeZone": "UTC",
        ARROW_RECORDS_KEY: str(ARROW_RECORDS),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BYTES),
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Batches here are small; the right number of tasks is chosen for each job from its rows.
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.debug.maxToStringFields": "50",
        # A worker whose process dies says where.
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    }
    if not is_s3(settings.lakehouse):
        # More paths than this would start a Spark job only to list them: the Delta log has listed them already. In a store each
        # path is a request: many of them are asked for by a Spark job, as Spark does by itself.
        conf["spark.sql.sources.parallelPartitionDiscovery.threshold"] = "100000"
    own = {key: value for key, value in settings.spark_conf.items() if key.startswith("spark.sql.")}
    return conf | own | {LARGE_TYPES_KEY: "false"}


def spark_config(settings: Settings) -> dict[str, str]:
    """Settings of a Spark of our own: of its JVM and of its session, user's own last.

    Also sets ``PYSPARK_PYTHON`` in this process: it must stand in the environment before the session is made (the session's
    own settings for it are ignored), or workers run whatever python3 the PATH finds. Where the cluster's machines have it
    elsewhere than this one, the user's ``spark.pyspark.python`` names it.
    """
    refuse_credentials(settings.spark_conf)
    os.environ.setdefault("PYSPARK_PYTHON", settings.spark_conf.get("spark.pyspark.python", sys.executable))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    jars = spark_jars()
    if is_s3(settings.lakehouse):
        jars += s3_jars()
    conf = session_config(settings) | {
        "spark.app.name": "game_events",
        "spark.master": settings.spark_master,
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG_CONFIGURATION.as_uri()}",
        # Everybody may read what the system's temporary folder holds: shuffle files are players' rows.
        DEFAULT_JAVA_OPTIONS: process_temporary_folder().java_option,
        # A loop runs some 3,000 jobs an hour: what Spark remembers of each is bounded, or the heap grows for hours.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "500",
        "spark.sql.ui.retainedExecutions": "20",
        # What a plan or the UI may show of options that hold credentials.
        "spark.redaction.regex": "(?i)secret|password|passwd|token|access[.]key|sasl|jaas|ssl[.]key",
    }
    if workers_are_local(settings):
        conf |= {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}
        # Otherwise Spark looks for a network address of this machine, and warns about what it finds.
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    else:
        # Its executors have to reach it.
        conf["spark.driver.bindAddress"] = "0.0.0.0"  # noqa: S104
    if settings.catalog is not None and "." not in settings.catalog:
        # A metastore: tables that are registered in Spark's own memory would be gone with the session.
        conf["spark.sql.catalogImplementation"] = "hive"
    own = settings.spark_conf
    # PySpark has an lz4-java of its own, with known holes, and a class that is there twice is taken from what comes first.
    first = ":".join(str(jar) for jar in jars if jar.name.startswith("lz4-java-"))
    more = {CLASS_PATH_KEY: ":".join(filter(None, (first, own.get(CLASS_PATH_KEY)))), LARGE_TYPES_KEY: "false"}
    return conf | authentication(settings) | spark_options(settings) | own | more


def server_only_settings(settings: Settings) -> list[str]:
    """Names of the user's Spark settings that a session on a Connect server cannot have: they are the server's own."""
    return sorted(key for key in settings.spark_conf if not key.startswith("spark.sql."))
