"""What a power cut leaves on local disks: writing out what is only in memory yet, and logs of which nothing was written out.

A kernel writes out names and deletions within seconds, and what is in new files within half a minute (Linux:
`vm.dirty_expire_centisecs`). So a power cut takes the newest commits back: their log entries are there, and empty. All readers
take these for commits without changes, and the next run makes the commits again. That is right unless files that the versions
before them name were deleted meanwhile: whoever deletes such files writes out the newer versions first.

In an object store an answered request is durable.
"""

import os
from contextlib import suppress
from pathlib import Path

from game_events.errors import DataError
from game_events.lakehouse.storage.options import is_remote

#: Seconds after which everything is on the disks by itself, with a wide margin.
WRITTEN_OUT_S = 600.0


def write_out(uri: str) -> None:
    """Return once all that this machine has written is on its disks; nothing is done for an object store.

    By one call for all file systems: which files are new is known to Spark's workers, delta-rs and this process together, and a
    call for each file would wait for the disk as often. It also waits for what other programs have written.
    """
    if not is_remote(uri):
        os.sync()


def has_no_content(uri: str) -> bool:
    """Whether a local table's log has entries, and all of them are empty: none was written out before a power cut."""
    sizes = _sizes(uri)
    return bool(sizes) and not any(sizes)


def has_empty_entry(uri: str) -> bool:
    """Whether an entry of a local table's log is empty."""
    return not all(_sizes(uri))


def unopenable(uri: str, error: Exception) -> DataError:
    """What to say of a table that cannot be opened."""
    empty = not is_remote(uri) and has_empty_entry(uri)
    why = ". An entry of its log is empty, as a power cut leaves it" if empty else ""
    return DataError(f"table {uri} cannot be opened: {error}{why}: restore its log, or delete the table to have it rebuilt")


def _sizes(uri: str) -> list[int]:
    """Bytes of a log's entries and checkpoints; others may delete some at this moment."""
    found = list[int]()
    for file in Path(uri, "_delta_log").glob("*"):
        if file.name[:20].isdigit():
            with suppress(FileNotFoundError):
                found.append(file.stat().st_size)
    return found
