"""Identity of a version's entry in a table's log: whether it is the same table still, and whether a version is the newest.

Source: Delta Lake protocol, "Delta Log Entries", "Commit Provenance Information".
"""

import json
import os
from collections.abc import Mapping
from functools import lru_cache

import pyarrow.fs as pafs
from deltalake.fs import DeltaStorageHandler

from game_events.lakehouse.storage.options import is_remote

#: Key in the information of every commit, with a value of its own for each (the commit's mark).
COMMIT_ID = "game_events_commit"
#: Identity of an entry: of a local table inode, bytes and time of its file; in an object store the mark of its commit.
Entry = tuple[int, int, int] | str
#: Bytes of an entry that are searched for its commit's information, its first line by Spark and delta-rs.
_HEAD = 64 * 1024


def entry_of(uri: str, options: Mapping[str, str], version: int) -> Entry | None:
    """Identity of a version's entry; None: there is none, or (object store) its commit has no mark.

    Cost: a call of the operating system, or two requests. Raises OSError if the storage fails.
    """
    path = _path(uri, version)
    try:
        if not is_remote(uri):
            found = os.stat(path)  # noqa: PTH116 - seven times for each game
            return found.st_ino, found.st_size, found.st_mtime_ns
        system, below = _store(uri, options, path)
        with system.open_input_file(below) as source:
            first = source.read(_HEAD).partition(b"\n")[0]
    except FileNotFoundError:
        return None
    try:
        mark = json.loads(first).get("commitInfo", {}).get(COMMIT_ID)
    except ValueError:  # longer than what was read
        return None
    return mark if isinstance(mark, str) else None


def has_entry(uri: str, options: Mapping[str, str], version: int) -> bool:
    """Whether a version has an entry; a call of the operating system, or a request. Raises OSError if the storage fails."""
    path = _path(uri, version)
    if not is_remote(uri):
        return os.path.exists(path)  # noqa: PTH110 - as above
    system, below = _store(uri, options, path)
    try:
        # `get_file_info` would list the folder of that name, too.
        system.open_input_file(below).close()
    except FileNotFoundError:
        return False
    return True


def _path(uri: str, version: int) -> str:
    return f"{uri}/_delta_log/{version:020}.json"


def _store(uri: str, options: Mapping[str, str], path: str) -> tuple[pafs.FileSystem, str]:
    """A client of the object store, which all tables of a folder share, and a path as it takes it."""
    root = uri.rpartition("/")[0]
    return _client(root, tuple(options.items())), path.removeprefix(f"{root}/")


@lru_cache(maxsize=8)
def _client(root: str, options: tuple[tuple[str, str], ...]) -> pafs.FileSystem:
    return pafs.PyFileSystem(DeltaStorageHandler(root, dict(options)))
