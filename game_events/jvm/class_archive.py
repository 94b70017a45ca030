"""Archive of Spark's classes (class data sharing): a JVM that maps it neither reads most classes nor verifies them.

Java refuses an archive of another version, class path or jar (by size and time) by itself, and starts without it. Its content
is code, as that of jars, and has no pinned hash: so only one is used that no other user can have written.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pyspark

from game_events.errors import ConfigurationError
from game_events.jvm.jars import cache_dir
from game_events.jvm.java import find_java, version_text
from game_events.jvm.private_folders import only_mine, private_folder

SPARK_HOME = Path(pyspark.__file__).parent
#: Folder in the cache of Java parts.
FOLDER = "class-archives"
SUFFIX = ".jsa"
#: Archives of other versions that stay: each has about 200 MB.
KEPT = 2
#: Java would warn of an archive that it does not use.
QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
HOW_TO_MAKE = "python -m game_events.plugins.local.class_archive"


def archive_of(class_path: Sequence[Path], spark_home: Path = SPARK_HOME) -> Path:
    """Where the archive for this Java, these jars and those of Spark is, made or not; ConfigurationError without Java."""
    java = str(find_java())
    jars = [*class_path, *sorted((spark_home / "jars").glob("*.jar"))]
    parts = [str(Path(java).resolve()), version_text(java), *(f"{jar} {jar.stat().st_mtime_ns}" for jar in jars)]
    return cache_dir() / FOLDER / (hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16] + SUFFIX)


def sharing_options(archive: Path) -> tuple[str, ...]:
    """Java's options that use an archive; none if there is none, or another user could have written it."""
    return ("-Xshare:auto", f"-XX:SharedArchiveFile={archive}", *QUIET) if is_usable(archive) else ()


def is_usable(archive: Path) -> bool:
    """Whether an archive is there, and this user alone can write it and its folder."""
    return only_mine(archive, archive.parent)


def archiving_options(archive: Path) -> tuple[str, ...]:
    """Java's options that write an archive when the JVM ends."""
    return (f"-XX:ArchiveClassesAtExit={archive}", *QUIET)


def keep(written: Path, archive: Path) -> None:
    """Put a new archive in its place, and delete old ones.

    Raises:
        ConfigurationError: nothing was written; or the folder cannot be made, or belongs to another user.
    """
    if not written.is_file() or not written.stat().st_size:
        raise ConfigurationError("Java wrote no archive of Spark's classes")
    folder = private_folder(archive.parent)
    written.chmod(0o400)
    written.replace(archive)
    others = sorted((f for f in folder.glob(f"*{SUFFIX}") if f != archive), key=lambda f: f.stat().st_mtime, reverse=True)
    for old in others[KEPT:]:
        old.unlink(missing_ok=True)
