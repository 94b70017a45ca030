"""Identity of a version's entry in a table's log: whether it is the same table still, and whether a version is the newest.

Source: Delta Lake protocol, "Delta Log Entries", "Commit Provenance Information".
"""

import json
import os

import pyarrow.fs as pafs

#: Key in the information of every commit, with a value of its own for each (the commit's mark).
COMMIT_ID = "game_events_commit"
#: Beginning of the name of a file that becomes an entry when it is complete.
UNFINISHED = "_commit_"
#: Identity of an entry: of a local table inode, bytes and time of its file; in an object store the mark of its commit.
Entry = tuple[int, int, int] | str
#: Bytes of an entry that are searched for its commit's information, its first line by Spark and delta-rs.
_HEAD = 64 * 1024


def entry_of(uri: str, store: pafs.FileSystem | None, version: int) -> Entry | None:
    """Identity of a version's entry; None: there is none, or (object store) its commit has no mark.

    `store`: the folder of a table in an object store; None: it is on a local disk, at `uri`.

    Cost: a call of the operating system, or two requests. Raises OSError if the storage fails.
    """
    try:
        if store is None:
            # A `Path` for each entry takes longer than the call, of which a run makes thousands.
            return identity_of(os.stat(f"{uri}/{path_of(version)}"))  # noqa: PTH116
        with store.open_input_file(path_of(version)) as source:
            first = source.read(_HEAD).partition(b"\n")[0]
    except FileNotFoundError:
        return None
    try:
        mark = json.loads(first).get("commitInfo", {}).get(COMMIT_ID)
    except ValueError:  # longer than what was read
        return None
    return mark if isinstance(mark, str) else None


def has_entry(uri: str, store: pafs.FileSystem | None, version: int) -> bool:
    """Whether a version has an entry; a call of the operating system, or a request. `store`, errors: as for `entry_of`."""
    if store is None:
        return entry_of(uri, None, version) is not None
    try:
        # `get_file_info` would list the folder of that name, too.
        store.open_input_file(path_of(version)).close()
    except FileNotFoundError:
        return False
    return True


def identity_of(entry: os.stat_result) -> tuple[int, int, int]:
    """Identity of a local entry."""
    return entry.st_ino, entry.st_size, entry.st_mtime_ns


def path_of(version: int) -> str:
    """Path of a version's entry, below the table's folder."""
    return f"_delta_log/{version:020}.json"
