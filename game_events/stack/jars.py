"""The JVM parts that ``ivy.xml`` pins, fetched once into a cache folder that its hash names.

Ivy comes with PySpark, so nothing but Java has to be installed. A folder appears whole or not at all: it is filled
under another name and renamed.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from game_events.errors import ConfigurationError, GameEventsError, TransientError
from game_events.stack.java import find_java

HERE = Path(__file__).parent
IVY_FILE = HERE / "ivy.xml"
#: A cold resolution takes about 50 s; this is for slow lines.
RESOLVE_TIMEOUT_S = 1800
IVY_LINES_SHOWN = 15
#: Configurations of the Ivy file that every user needs, and what only a lakehouse in an S3-compatible store does.
EVERYONE = ("spark", "kafka", "registry")
S3 = "s3"
PATTERN = "[conf]/[artifact]-[revision](-[classifier]).[ext]"


@dataclass(frozen=True)
class Jars:
    """Where the JVM parts are.

    Attributes:
        spark: jars for ``spark.jars``: the Kafka source and Delta.
        kafka: folder of jars, the broker's class path.
        registry: folder of the unpacked registry distribution.
    """

    spark: tuple[Path, ...]
    kafka: Path
    registry: Path


def cache_dir() -> Path:
    """``$GAME_EVENTS_CACHE``, else ``game-events`` below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if own := os.environ.get("GAME_EVENTS_CACHE"):
        return Path(own).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).resolve() / "game-events"


def resolve(on_progress: Callable[[str], None] | None = None) -> Jars:
    """The JVM parts, fetched at the first call on a machine; later calls take milliseconds.

    Processes that call it at once wait for one of them.

    Args:
        on_progress: called with one line before something takes long.

    Raises:
        ConfigurationError: no Java of version 17 or newer, or the cache folder cannot be written.
        TransientError: Ivy could not fetch something; what it did fetch is kept for the next try.
    """
    what = "Kafka, the registry, Delta and Spark's Kafka source (about 170 MB, once per machine)"
    folder = _filled("jars", EVERYONE, what, on_progress)
    return Jars(tuple(sorted((folder / "spark").glob("*.jar"))), folder / "kafka", folder / "registry")


def resolve_s3(on_progress: Callable[[str], None] | None = None) -> tuple[Path, ...]:
    """Jars with which Spark reads an S3-compatible store: fetched only where the lakehouse is in one. Else as `resolve`."""
    folder = _filled("s3", (S3,), "Spark's way to S3 (about 9 MB, once per machine)", on_progress)
    return tuple(sorted((folder / S3).glob("*.jar")))


def _filled(name: str, confs: Sequence[str], what: str, on_progress: Callable[[str], None] | None) -> Path:
    """The folder with some configurations of the Ivy file, made if it is not there."""
    folder = cache_dir() / f"{name}-{hashlib.sha256(IVY_FILE.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with (folder.parent / "jars.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not folder.is_dir():
                    (on_progress or (lambda _line: None))(f"fetching {what}")
                    _fill(folder, confs)
        except OSError as error:
            raise ConfigurationError(
                f"cannot write the cache {folder.parent}: {error}; set GAME_EVENTS_CACHE to another folder"
            ) from error
    return folder


def _fill(folder: Path, confs: Sequence[str]) -> None:
    """Resolve into a temporary folder beside `folder`, unpack, rename. Only the holder of the lock comes here."""
    java = find_java()
    ivy_cache = folder.parent / "ivy"
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="incomplete-") as temporary:
        whole = Path(temporary) / folder.name
        _run_ivy(java, ivy_cache, whole, confs)
        registry = whole / "registry"
        for archive in registry.glob("*.tar.gz"):
            with tarfile.open(archive) as tar:
                tar.extractall(registry, filter="data")
            archive.unlink()
        whole.rename(folder)
    shutil.rmtree(ivy_cache, ignore_errors=True)


def _run_ivy(java: Path, ivy_cache: Path, target: Path, confs: Sequence[str]) -> None:
    command = [
        *(str(java), f"-Dcache.dir={ivy_cache}", "-jar", str(_ivy_jar())),
        *("-settings", str(HERE / "ivysettings.xml"), "-ivy", str(IVY_FILE)),
        *("-confs", *confs),
        *("-retrieve", f"{target.name}/{PATTERN}"),
    ]
    try:
        # Relative to the working directory: brackets in the path would be read as part of Ivy's pattern.
        ivy = subprocess.run(command, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False, cwd=target.parent)
    except subprocess.TimeoutExpired:
        raise TransientError(f"Ivy did not fetch the JVM parts in {RESOLVE_TIMEOUT_S} s: try again") from None
    if ivy.returncode != 0:
        lines = [line for line in (ivy.stdout + ivy.stderr).splitlines() if line.strip("\t :.")]
        last = "\n".join(f"  {line.strip()[:300]}" for line in lines[-IVY_LINES_SHOWN:])
        raise TransientError(f"Ivy could not fetch the JVM parts (is the network there?); its last lines:\n{last}")


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    places = spec.submodule_search_locations if spec else None
    for place in places or ():
        for jar in (Path(place) / "jars").glob("ivy-*.jar"):
            return jar
    raise ConfigurationError("PySpark's jars/ivy-*.jar is missing: install this project's requirements again")


def main() -> int:
    """Resolve, and print one line that says where the parts are."""
    try:
        jars = resolve(on_progress=print)
    except GameEventsError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Java parts: {jars.kafka.parent} ({len(jars.spark)} jars for Spark)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
