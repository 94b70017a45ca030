"""Configuration of Spark: jars, UTC, Arrow, the interpreter of the workers, and security of its JVM.

Ships this project's code, and modules of extensions, to Spark's workers.

Workers unpickle functions by name, so they need the driver's modules. As these are shipped, a cluster's machines need only the
libraries, and workers run the driver's version of the code.
"""

import atexit
import hashlib
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path

from pyspark.sql import SparkSession

import game_events
from game_events.config.masking import is_credential
from game_events.config.network import LOOPBACK, workers_are_local
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.jvm.jars import s3_jars, spark_jars
from game_events.jvm.private_folders import process_temporary_folder
from game_events.lakehouse.storage import is_s3, spark_options

#: The path is absolute: of an executor's archive of code it is none, and workers import this module, too.
LOG_OPTION = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').absolute().as_uri()}"

#: Java's options: those that precede the user's, and the user's.
DEFAULT_JAVA_OPTIONS, EXTRA_JAVA_OPTIONS = "spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions"

#: Options of the driver's JVM: ten times Java's own numbers of calls and loops before the optimizing compiler takes a
#: method. Otherwise it has a third of the JVM's processor time in the first minute, most of it for methods that plan jobs
#: (docs/decisions/0027-quick-starts.md).
LATE_OPTIMIZATION = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)

#: Records of an Arrow batch. Spark's Arrow writer takes time quadratic in a batch's rows for lists and maps that are NULL.
ARROW_RECORDS = 20_000

#: Bytes of an Arrow batch: some records are megabytes.
ARROW_BYTES = 64 * 1024 * 1024

#: Off, whatever a user sets: decoding reads Arrow's 32-bit offsets (decoding/frame.py).
LARGE_TYPES_KEY = "spark.sql.execution.arrow.useLargeVarTypes"

#: Class path before PySpark's own jars in the driver's JVM.
CLASS_PATH_KEY = "spark.driver.extraClassPath"

#: Names Delta's classes where its jar is there.
EXTENSIONS_KEY = "spark.sql.extensions"

#: Settings of every classic Spark.
_CLASSIC = {
    "spark.app.name": "game_events",
    EXTENSIONS_KEY: "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Else each call of a DataFrame's or column's method asks the JVM several times where in the code it is.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Continuous mode runs some 3,000 jobs an hour: bounds the heap.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "20",
    # Masks options with credentials in plans and the UI.
    "spark.redaction.regex": "(?i)secret|password|passwd|token|access[.]key|sasl|jaas|ssl[.]key",
}

#: Program that forks Python workers.
DAEMON_KEY, DAEMON = "spark.python.daemon.module", "game_events.workers.daemon"

AUTHENTICATE = "spark.authenticate"

#: Masters for which Spark generates a secret per application.
_MAKES_SECRETS = re.compile(r"local(\[.*\])?|yarn|k8s://.*")


@contextmanager
def changed(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session for the jobs of a block; then the former ones return."""
    usual = {key: spark.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, before in usual.items():
            if before is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, before)


@contextmanager
def null_on_error(spark: SparkSession) -> Iterator[None]:
    """Expressions that fail for a row give NULL, for the jobs of a block; then the former settings return.

    Besides ANSI mode, elimination of common subexpressions is off: it would move what two rules share out of the `try` around
    each (`pipeline.quality.holds`), and one row's error would end the job.
    """
    with changed(spark, {"spark.sql.ansi.enabled": "false", "spark.sql.subexpressionElimination.enabled": "false"}):
        yield


def reads_delta(spark: SparkSession) -> bool:
    """Whether the session has Delta Lake's own reader: a Connect server may lack the jar."""
    return "delta" in (spark.conf.get(EXTENSIONS_KEY, "") or "").lower()


def small_snapshots(spark: SparkSession) -> AbstractContextManager[None]:
    """Delta's reader replays a log in one task instead of 50: of ten small tables in 3 s of processor time instead of 10."""
    return changed(spark, {"spark.databricks.delta.snapshotPartitions": "1"})


def session_config(settings: Settings) -> dict[str, str]:
    """Settings of a session (`spark.sql.*`), classic or Connect; the user's take precedence."""
    conf = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_RECORDS),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BYTES),
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # For small jobs; large ones set their number of tasks by their rows.
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.debug.maxToStringFields": "50",
        # A crashed worker logs its stack.
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    }
    if not is_s3(settings.lakehouse):
        # More paths than this would be listed by a Spark job, though the Delta log has listed them already. In an object store
        # each path is a request, and the job is faster.
        conf["spark.sql.sources.parallelPartitionDiscovery.threshold"] = "100000"
    own = {key: value for key, value in settings.spark_conf.items() if key.startswith("spark.sql.")}
    return conf | own | {LARGE_TYPES_KEY: "false"}


def spark_config(settings: Settings) -> dict[str, str]:
    """Settings of a classic Spark, JVM and session; the user's take precedence.

    Also sets variables of the environment, as `jvm_config` does.
    """
    # Other users can read the system's temporary folder, and shuffle files hold players' rows.
    options = (process_temporary_folder().java_option, *LATE_OPTIMIZATION)
    return {DEFAULT_JAVA_OPTIONS: " ".join(options)} | jvm_config(settings)


def jvm_config(settings: Settings) -> dict[str, str]:
    """`spark_config` without the options of Java that are this process's own.

    Also sets ``PYSPARK_PYTHON`` in this process: it must be in the environment before the session is created (settings of the
    session are ignored), or workers run any python3 of the PATH. The user's ``spark.pyspark.python`` names another path on a
    cluster's machines.
    """
    refuse_credentials(settings.spark_conf)
    jars = spark_jars()
    os.environ.setdefault("PYSPARK_PYTHON", settings.spark_conf.get("spark.pyspark.python", sys.executable))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    local = re.fullmatch(r"local(\[.*\])?", settings.spark_master) is not None
    # The driver's JVM runs the tasks then, and Spark copies none of the jars.
    on_path = jars if local else tuple(jar for jar in jars if jar.name.startswith("lz4-java-"))
    sent = () if local else jars
    if is_s3(settings.lakehouse):
        sent += s3_jars()
    conf = session_config(settings) | {
        **_CLASSIC,
        "spark.master": settings.spark_master,
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.jars": ",".join(map(str, sent)),
        EXTRA_JAVA_OPTIONS: LOG_OPTION,
    }
    if local:
        # Else an overflow of the stack in one row's expression ends the driver's JVM.
        conf["spark.executor.killOnFatalError.depth"] = "0"
    conf |= _driver_address(settings)
    if has_this_project(settings):
        conf[DAEMON_KEY] = DAEMON
    if settings.catalog is not None and "." not in settings.catalog:
        # A metastore: Spark's in-memory catalog ends with the session.
        conf["spark.sql.catalogImplementation"] = "hive"
    own = settings.spark_conf
    # Before PySpark's own jars: its lz4-java has known vulnerabilities, and the first jar with a class wins.
    class_path = ":".join(filter(None, (*map(str, on_path), own.get(CLASS_PATH_KEY))))
    more = {CLASS_PATH_KEY: class_path, LARGE_TYPES_KEY: "false"}
    return conf | authentication(settings) | spark_options(settings) | own | more


def _driver_address(settings: Settings) -> dict[str, str]:
    """Where the driver listens; sets the variable ``SPARK_LOCAL_IP``, too."""
    if not workers_are_local(settings):
        # Executors on other machines connect to the driver.
        return {"spark.driver.bindAddress": "0.0.0.0"}  # noqa: S104
    # Otherwise Spark looks up a network address of this machine, with a warning.
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    return {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}


def has_this_project(settings: Settings) -> bool:
    """Whether Spark's workers import this project from this process's Python environment, before any code is shipped."""
    pythons = {os.environ[name] for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON") if name in os.environ}
    pythons |= {settings.spark_conf.get("spark.pyspark.python", sys.executable)}
    return pythons <= {sys.executable} and settings.spark_ship_code != "always" and shares_python_environment(settings)


def refuse_credentials(conf: Mapping[str, str]) -> None:
    """Raise ConfigurationError for credentials in a user's Spark settings: `ps` and Spark's UI show these."""
    names = sorted(name for name, value in conf.items() if is_credential(name, value))
    if names:
        raise ConfigurationError(
            f"GAME_EVENTS_SPARK_CONF: {', '.join(names)} would be in the command line of Spark's JVM, which every user of this "
            "machine can read: give them by the environment, a role, a core-site.xml in HADOOP_CONF_DIR or a "
            "spark-defaults.conf in SPARK_CONF_DIR (docs/security.md)"
        )


def authentication(settings: Settings) -> dict[str, str]:
    """Spark's settings that require the application's secret on the ports of driver and executors.

    Without it every process that reaches a port of the driver (on this machine any) may send it Java objects and read the
    blocks of its jobs, which hold logins and tokens. ConfigurationError for a standalone cluster whose settings do not say it.
    """
    if AUTHENTICATE in settings.spark_conf or _MAKES_SECRETS.fullmatch(settings.spark_master):
        return {AUTHENTICATE: "true"}
    raise ConfigurationError(
        f"GAME_EVENTS_SPARK_CONF: {AUTHENTICATE} must be set for the master {settings.spark_master}: "
        f'"{AUTHENTICATE}": "true" and its {AUTHENTICATE}.secret in the spark-defaults.conf of SPARK_CONF_DIR here and on the '
        'cluster\'s machines; or "false" where no other users reach the ports of the driver and the cluster (docs/cluster.md)'
    )


def server_only_settings(settings: Settings) -> list[str]:
    """Names of the user's Spark settings that only a Connect server can have, not its sessions."""
    return sorted(key for key in settings.spark_conf if not key.startswith("spark.sql."))


PACKAGE = Path(game_events.__file__).parent

#: Files that Python can import from.
SUFFIXES = (".py", ".zip", ".egg")

#: A constant time (the oldest of zip files), so that the same code gives the same file.
_TIME = (1980, 1, 1, 0, 0, 0)


def shares_python_environment(settings: Settings) -> bool:
    """Whether Spark's workers use this machine's Python environment: `local`, or a Connect server on this machine."""
    return workers_are_local(settings) and (settings.spark_remote is not None or settings.spark_master.startswith("local"))


def ship_code(session: SparkSession, settings: Settings) -> None:
    """Send the code that the settings ask for; ConfigurationError for a bad file in `spark_py_files`."""
    files = [Path(name).expanduser().resolve() for name in settings.spark_py_files]
    for path in files:
        if not path.is_file() or path.suffix not in SUFFIXES:
            raise ConfigurationError(f"GAME_EVENTS_SPARK_PY_FILES: {path} is no file that ends in {', '.join(SUFFIXES)}")
    if settings.spark_ship_code == "always" or (settings.spark_ship_code == "auto" and not shares_python_environment(settings)):
        files.append(packed())
    for file in files:
        session.addArtifacts(str(file), pyfile=True)


@lru_cache
def packed(package: Path = PACKAGE) -> Path:
    """A zip file of a package's modules, named by its content; one per process, deleted at its exit."""
    # Spark's driver serves the file to later executors, so it is kept.
    folder = tempfile.TemporaryDirectory(prefix="game-events-code-")
    atexit.register(folder.cleanup)
    whole = Path(folder.name) / "whole.zip"
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.rglob("*.py")):
            name = file.relative_to(package.parent).as_posix()
            archive.writestr(zipfile.ZipInfo(name, _TIME), file.read_bytes(), zipfile.ZIP_DEFLATED)
    digest = hashlib.sha256(whole.read_bytes()).hexdigest()[:12]
    return whole.rename(whole.with_name(f"{package.name}-{digest}.zip"))
