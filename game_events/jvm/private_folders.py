"""Folders with the mode 0700: those of the state folder, and of Spark's temporary files.

Other users of the machine can read `/tmp`, and files by the umask: shuffle files hold players' rows, logs hold names and
addresses.
"""

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
from typing import Self

from game_events.errors import ConfigurationError

PREFIX = "game-events-spark-"
#: File locked by every process that uses a temporary folder; without a lock the folder can be removed.
LOCK = "in-use"
#: Seconds after which a folder without a lock file was left by a killed process.
MAKING_S = 3_600


def private_folder(folder: Path) -> Path:
    """Create a folder, or make an existing one private.

    Raises:
        ConfigurationError: it belongs to another user (its process ids and addresses are trusted), or cannot be created.
    """
    try:
        # Only new folders: an existing state folder may hold other files, too.
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        # Of a symbolic link its owner, too.
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


def only_mine(*paths: Path) -> bool:
    """Whether files and folders are there, no links, belong to this user, and no other user can write them."""
    try:
        states = [path.lstat() for path in paths]
    except OSError:
        return False
    return all(f.st_uid == os.geteuid() and not stat.S_ISLNK(f.st_mode) and not f.st_mode & 0o022 for f in states)


@dataclass(frozen=True)
class TemporaryFolder:
    """A private folder below the system's temporary one; a process that inherits its lock keeps the folder until it ends."""

    path: Path
    lock: int

    @classmethod
    def make(cls) -> Self:
        """Create one; removes those of killed processes."""
        remove_left_behind()
        while True:
            path = Path(tempfile.mkdtemp(prefix=PREFIX))
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (path / LOCK).exists():  # else another process has removed it
                return cls(path, lock)
            os.close(lock)

    def release(self) -> None:
        """Unlock it; removed now if empty, else when the next one is created, as a JVM may still use it."""
        if [file.name for file in self.path.iterdir()] == [LOCK]:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)

    @property
    def java_option(self) -> str:
        """JVM option for temporary files: shuffle files, artifacts and unpacked libraries."""
        escaped = str(self.path).replace("\\", "\\\\").replace('"', '\\"')
        return f'"-Djava.io.tmpdir={escaped}"'


@lru_cache
def process_temporary_folder() -> TemporaryFolder:
    """The folder of the one JVM that this process starts."""
    folder = TemporaryFolder.make()
    atexit.register(folder.release)
    return folder


def remove_left_behind() -> None:
    """Remove unlocked folders: Spark's own clean-up does not run after a SIGKILL or lack of memory."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            state = path.lstat()
            if stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not _is_held(path, state.st_mtime):
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
