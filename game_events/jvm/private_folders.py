"""Folders that only their user can read: those of the state folder, and those of Spark's temporary files.

Whoever shares the machine reads `/tmp`, and what a umask leaves open: shuffle files hold players' rows, logs hold names and
addresses. What is in a folder with the mode 0700 is nobody else's, whatever its own mode is.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from game_events.errors import ConfigurationError

PREFIX = "game-events-spark-"
#: Held by every process that uses a temporary folder; when nobody holds it, the folder is nobody's.
LOCK = "in-use"
#: A folder whose lock is not there yet is being made; after so long whoever made it was killed.
MAKING_S = 3_600


def private_folder(folder: Path) -> Path:
    """Make a folder, or make the one that is there private.

    What a command finds in it (process ids, addresses, a lock) is believed: so it must be the user's own.

    Raises:
        ConfigurationError: it belongs to somebody else, or cannot be made.
    """
    try:
        # Only what is made here: a state folder that is there may hold more than this project's files.
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        # Of a link its owner, too: who could make one here could lead it anywhere.
        owners = {folder.stat().st_uid, folder.lstat().st_uid}
        if owners == {os.geteuid()} and stat.S_IMODE(folder.stat().st_mode) != 0o700:
            folder.chmod(0o700)
    except OSError as error:
        raise ConfigurationError(f"GAME_EVENTS_STATE_DIR: cannot write the state folder {folder}: {error.strerror}") from error
    if owners != {os.geteuid()}:
        raise ConfigurationError(
            f"the folder {folder} belongs to another user, who could put process ids and addresses into it: set "
            "GAME_EVENTS_STATE_DIR to a folder of your own"
        )
    return folder


@dataclass(frozen=True)
class TemporaryFolder:
    """One folder below the system's temporary one.

    Attributes:
        path: the folder; nobody else can read it.
        lock: descriptor of its lock. A process that inherits it holds the folder for as long as it lives.
    """

    path: Path
    lock: int

    @classmethod
    def make(cls) -> TemporaryFolder:
        """A new one; those of processes that were killed go."""
        remove_left_behind()
        while True:
            path = Path(tempfile.mkdtemp(prefix=PREFIX))
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (path / LOCK).exists():  # else another process that cleans up held it first
                return cls(path, lock)
            os.close(lock)

    def release(self) -> None:
        """Hold it no more; it goes now if it is empty, else when the next one is made, as a JVM may still use it."""
        if [file.name for file in self.path.iterdir()] == [LOCK]:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)

    @property
    def java_option(self) -> str:
        """What tells a JVM: shuffle files, artifacts and unpacked libraries are put there."""
        escaped = str(self.path).replace("\\", "\\\\").replace('"', '\\"')
        return f'"-Djava.io.tmpdir={escaped}"'


@lru_cache
def process_temporary_folder() -> TemporaryFolder:
    """The folder of the one JVM that this process starts."""
    folder = TemporaryFolder.make()
    atexit.register(folder.release)
    return folder


def remove_left_behind() -> None:
    """Remove what nobody holds any more: Spark's own clean-up does not survive a SIGKILL, nor the end of its memory."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            if _is_held(path, found.st_mtime):
                continue
            shutil.rmtree(path, ignore_errors=True)


def _is_held(path: Path, changed_s: float) -> bool:
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return time.time() - changed_s < MAKING_S
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
