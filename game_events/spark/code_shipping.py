"""Ships this project's code, and modules of extensions, to Spark's workers.

Workers unpickle functions by name, so they need the driver's modules. As these are shipped, a cluster's machines need only the
libraries, and workers run the driver's version of the code.
"""

import atexit
import hashlib
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path

from pyspark.sql import SparkSession

import game_events
from game_events.config.local_addresses import workers_are_local
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError

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
    files = [_importable(name) for name in settings.spark_py_files]
    if settings.spark_ship_code == "always" or (settings.spark_ship_code == "auto" and not shares_python_environment(settings)):
        files.append(packed())
    for file in files:
        session.addArtifacts(str(file), pyfile=True)


def _importable(name: str) -> Path:
    path = Path(name).expanduser().resolve()
    if not path.is_file() or path.suffix not in SUFFIXES:
        raise ConfigurationError(f"GAME_EVENTS_SPARK_PY_FILES: {path} is no file that ends in {', '.join(SUFFIXES)}")
    return path


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
