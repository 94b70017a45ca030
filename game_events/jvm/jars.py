"""Java, and the jars of ``ivy.xml``, pinned by ``jars.sha256``, fetched once into cache folders.

Ivy is part of PySpark, so only Java has to be installed. A folder is filled under a temporary name and renamed when complete.
Each file is compared with its SHA-256 after fetching and before every use, so that neither a repository, a proxy nor a writer
of the cache decides what runs.
"""

import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from game_events.errors import ConfigurationError, GameEventsError, TransientError

#: Spark 4, Kafka 4 and Apicurio 3 all need it.
MIN_JAVA = 17

HOW_TO_INSTALL = (
    f"install Java {MIN_JAVA} or newer (Debian, Ubuntu: apt-get install openjdk-{MIN_JAVA}-jre-headless) "
    "or set JAVA_HOME to where one is"
)

HERE = Path(__file__).parent
IVY_FILE = HERE / "ivy.xml"
#: SHA-256 of every file, as `sha256sum` writes it; made by scripts/pin_jars.py (`make lock-jars`).
PINS = HERE / "jars.sha256"
#: A cold resolution takes about 50 s; this is for slow lines.
RESOLVE_TIMEOUT_S = 1800
IVY_LINES_SHOWN = 15
PATTERN = "[conf]/[artifact]-[revision](-[classifier]).[ext]"
ARCHIVE = ".tar.gz"
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Group:
    """Jars that are fetched together: name, configurations of the Ivy file, and description with the size.

    `folder`: where Ivy file and pins are, if not beside this module: those of tests.
    """

    name: str
    confs: tuple[str, ...]
    what: str
    folder: Path | None = None

    @property
    def ivy_file(self) -> Path:
        """What is fetched."""
        return IVY_FILE if self.folder is None else self.folder / IVY_FILE.name

    @property
    def pins(self) -> Path:
        """The SHA-256 of every file."""
        return PINS if self.folder is None else self.folder / PINS.name


#: Minor versions of Spark for which Java parts are pinned: Delta's jar and Spark's way to S3 are other ones for each.
SPARK_SERIES = ("4.0", "4.1", "4.2")
#: Those of them that all tests have passed on; a PySpark of another one is refused.
SUPPORTED_SERIES = ("4.0",)
SPARK = {series: Group("spark", (f"spark-{series}",), "Delta (about 17 MB, once per machine)") for series in SPARK_SERIES}
S3 = {series: Group("s3", (f"s3-{series}",), "Spark's way to S3 (about 9 MB, once per machine)") for series in SPARK_SERIES}
STACK = Group("stack", ("kafka", "registry"), "a Kafka broker and a Schema Registry (about 150 MB, once per machine)")


def groups() -> Mapping[str, Group]:
    """The groups by name, with the jars for the installed PySpark; ConfigurationError if that is not supported."""
    series = spark_series()
    return {group.name: group for group in (SPARK[series], STACK, S3[series])}


def spark_series() -> str:
    """Minor version of the installed PySpark, e.g. 4.0; ConfigurationError if it is not one of `SUPPORTED_SERIES`."""
    try:
        installed = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigurationError("PySpark is not installed: install this project's requirements again") from None
    series = ".".join(installed.split(".")[:2])
    if series not in SUPPORTED_SERIES:
        raise ConfigurationError(
            f"PySpark {installed} is installed, and this version runs on {', '.join(SUPPORTED_SERIES)}: "
            f"pip install 'pyspark[connect]=={SUPPORTED_SERIES[-1]}.*'"
        )
    return series


def find_java() -> Path:
    """The java of JAVA_HOME, else of PATH; ConfigurationError if there is none, it does not run, or it is too old."""
    home = os.environ.get("JAVA_HOME")
    # As in Spark's scripts: JAVA_HOME alone decides if it is set.
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH, and JAVA_HOME is not set"
        raise ConfigurationError(f"no java {where}: {HOW_TO_INSTALL}")
    answer = _version_text(java)
    # 17 of `openjdk version "17.0.15"`, 8 of `java version "1.8.0_452"`.
    version = re.search(r'version "(?:1\.)?(\d+)', answer)
    if version is None:
        raise ConfigurationError(f"{java} -version failed ({answer.strip()[-300:]}): {HOW_TO_INSTALL}")
    if int(version[1]) < MIN_JAVA:
        raise ConfigurationError(f"{java} is Java {version[1]}: {HOW_TO_INSTALL}")
    return Path(java)


@functools.lru_cache
def _version_text(java: str) -> str:
    """All that an executable says of its version and build; ConfigurationError if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{java} does not run ({error}): {HOW_TO_INSTALL}") from None
    if answer.returncode != 0:
        output = (answer.stderr or answer.stdout).strip()
        raise ConfigurationError(f"{java} -version failed ({output[-300:] or answer.returncode}): {HOW_TO_INSTALL}")
    return answer.stderr + answer.stdout


def cache_dir() -> Path:
    """``$GAME_EVENTS_CACHE``, else ``game-events`` below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if own := os.environ.get("GAME_EVENTS_CACHE"):
        return Path(own).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).resolve() / "game-events"


def spark_jars() -> tuple[Path, ...]:
    """Delta's jars; otherwise as `folder_of`."""
    return _jars_of(SPARK[spark_series()])


def s3_jars() -> tuple[Path, ...]:
    """Jars for a lakehouse in an S3-compatible store; otherwise as `folder_of`."""
    return _jars_of(S3[spark_series()])


def _jars_of(group: Group) -> tuple[Path, ...]:
    return tuple(sorted(folder_of(group).glob("*/*.jar")))


def folder_of(group: Group, on_progress: Progress | None = None) -> Path:
    """The folder with a group's files, fetched at the first call on a machine, by one process at a time, and verified by each.

    `on_progress` gets one line before a long step.

    Raises:
        ConfigurationError: no Java of version 17 or newer, the cache folder cannot be written, or a file differs from its pin.
        TransientError: Ivy could not fetch something; fetched files are kept for the next attempt.
    """
    pins = pinned(group)
    named = hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in pins.items()).encode()).hexdigest()[:12]
    folder = cache_dir() / f"{group.name}-{named}"
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with (folder.parent / "jars.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not folder.is_dir():
                    (on_progress or (lambda _line: None))(f"fetching {group.what}")
                    _fill(folder, group, pins)
        except OSError as error:
            raise ConfigurationError(
                f"cannot write the cache {folder.parent}: {error}; set GAME_EVENTS_CACHE to another folder"
            ) from error
    unpacked = {name: digest for name, digest in pins.items() if not name.endswith(ARCHIVE)}
    check_pins(folder, unpacked, f"it has changed since it was fetched: delete {folder}, and the next start fetches it again")
    return folder


def pinned(group: Group) -> Mapping[str, str]:
    """Path below a group's folder -> pinned SHA-256, of archives and of their content."""
    lines = (line.split(maxsplit=1) for line in group.pins.read_text().splitlines() if not line.startswith("#"))
    return {name: digest for digest, name in lines if name.split("/")[0] in group.confs}


def digests(folder: Path) -> Mapping[str, str]:
    """Path below a folder -> SHA-256 of the file there."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if not path.is_dir()):
        with path.open("rb") as source:
            files[path.relative_to(folder).as_posix()] = hashlib.file_digest(source, "sha256").hexdigest()
    return files


def check_pins(folder: Path, pins: Mapping[str, str], what_to_do: str) -> None:
    """Raise ConfigurationError for the first file of a folder that differs from its pin, is missing, or has no pin."""
    files = digests(folder)
    for name in sorted(pins.keys() | files.keys()):
        if files.get(name) == pins.get(name):
            continue
        if name not in files:
            problem = "is missing"
        elif name not in pins:
            problem = "is in no list of this version"
        else:
            problem = f"has the SHA-256 {files[name]}, not the pinned {pins[name]}"
        raise ConfigurationError(f"the Java part {name} {problem}; nothing of it is run: {what_to_do}")


def fetch(group: Group, target: Path, ivy_cache: Path) -> None:
    """Fetch a group's files into a new folder, without verification."""
    command = [
        *(str(find_java()), f"-Dcache.dir={ivy_cache}", "-jar", str(_ivy_jar())),
        *("-settings", str(HERE / "ivysettings.xml"), "-ivy", str(group.ivy_file)),
        *("-confs", *group.confs),
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


def unpack(folder: Path) -> None:
    """Unpack a folder's archives in place, and delete them."""
    for archive in folder.glob(f"*/*{ARCHIVE}"):
        with tarfile.open(archive) as tar:
            tar.extractall(archive.parent, filter="data")
        archive.unlink()


def _fill(folder: Path, group: Group, pins: Mapping[str, str]) -> None:
    """Fetch into a temporary folder beside `folder`, verify, unpack, rename; the caller holds the lock."""
    ivy_cache = folder.parent / "ivy"
    # The content of archives is verified after unpacking.
    archived = {str(Path(name).parent) for name in pins if name.endswith(ARCHIVE)}
    as_fetched = {n: d for n, d in pins.items() if n.endswith(ARCHIVE) or n.split("/")[0] not in archived}
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="incomplete-") as temporary:
        whole = Path(temporary) / folder.name
        fetch(group, whole, ivy_cache)
        check_pins(
            whole,
            as_fetched,
            "the repository, or a proxy before it, has other files than the pinned ones. Ask its administrator; if "
            f"{group.ivy_file.name} was changed on purpose, renew the pins (`make lock-jars`)",
        )
        unpack(whole)
        whole.rename(folder)
    shutil.rmtree(ivy_cache, ignore_errors=True)


def spark_home() -> Path:
    """The folder of the installed PySpark, which is a whole Spark; nothing of it is imported."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigurationError("PySpark is not installed: install this project's requirements again")
    return Path(spec.origin).parent


def _ivy_jar() -> Path:
    for jar in (spark_home() / "jars").glob("ivy-*.jar"):
        return jar
    raise ConfigurationError("PySpark's jars/ivy-*.jar is missing: install this project's requirements again")


def main(names: Sequence[str] = ()) -> int:
    """Fetch some groups (default: Spark's and the local stack's), and print the folder of each."""
    try:
        known = groups()
        unknown = sorted(set(names) - known.keys())
        if unknown:
            raise ConfigurationError(f"there are no Java parts {', '.join(unknown)}; there are {', '.join(known)}")
        for name in names or ("spark", "stack"):
            print(f"Java parts, {name}: {folder_of(known[name], on_progress=print)}")
    except GameEventsError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
