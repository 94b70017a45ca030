"""Files below a local folder.

Unreadable files and folders are skipped and reported, so that one file's name or permissions cannot stop the others. Symbolic
links are not followed: they could lead to any file of this machine.
"""

import errno
import os
from collections.abc import Iterator

from game_events.errors import ConfigurationError

#: Nested folders at most.
MAX_DEPTH = 100
#: Why a symbolic link is skipped.
LINK = "it is a symbolic link"
#: Permission errors, and errors caused by one file's name; others are the storage's.
REFUSED = (errno.EACCES, errno.EPERM)
_OF_A_NAME = (*REFUSED, errno.ENAMETOOLONG)
#: The file or folder was deleted or replaced meanwhile.
_GONE = (FileNotFoundError, NotADirectoryError)


def files_below(root: str, skipped: dict[str, str]) -> Iterator[tuple[str, int, int]]:
    """Files that are not hidden: relative path, bytes, modification time (nanoseconds since 1970).

    `skipped` gets the paths of skipped files and folders, with the reason.

    Raises:
        ConfigurationError: the folder itself does not exist or may not be read.
        OSError: the storage fails.
    """
    if not os.access(root, os.X_OK):
        raise _no_folder(root, "its files may not be opened")
    folders = [(root, 0)]
    while folders:
        folder, depth = folders.pop()
        found: list[tuple[str, int, int]] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        if not hidden(entry.name) and _wanted(entry, depth, skipped):
                            if entry.is_dir(follow_symlinks=False):
                                folders.append((entry.path, depth + 1))
                            elif entry.is_file(follow_symlinks=False):
                                about = entry.stat(follow_symlinks=False)
                                found.append((entry.path.removeprefix(f"{root}/"), about.st_size, about.st_mtime_ns))
                    except OSError as error:
                        _skip(entry.path, error, skipped)
        except OSError as error:
            if folder == root and isinstance(error, (*_GONE, PermissionError)):
                raise _no_folder(root, str(error.strerror)) from None
            _skip(folder, error, skipped)
        yield from found


def hidden(name: str) -> bool:
    """Whether a name marks an unfinished file or folder."""
    return name.startswith(("_", "."))


def _wanted(entry: os.DirEntry[str], depth: int, skipped: dict[str, str]) -> bool:
    if entry.is_symlink():
        skipped[entry.path] = LINK
    elif not _is_text(entry.name):
        skipped[entry.path] = "its name is no UTF-8"
    elif depth == MAX_DEPTH and entry.is_dir(follow_symlinks=False):
        skipped[entry.path] = f"it is more than {MAX_DEPTH} folders deep"
    return entry.path not in skipped


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _skip(path: str, error: OSError, skipped: dict[str, str]) -> None:
    """Record an error of one file or folder; raise any other."""
    if isinstance(error, _GONE):
        return
    if error.errno not in _OF_A_NAME:
        raise error
    skipped[path] = str(error.strerror)


def _no_folder(root: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"GAME_EVENTS_FILES_PATH: {root} cannot be read ({why}): give this user read permission, or name another"
    )
