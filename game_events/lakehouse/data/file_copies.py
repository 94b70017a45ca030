"""Copies of data files of a lakehouse, in the same table or in another one, without reading them."""

import os
import shutil
import uuid
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler

from game_events.lakehouse.data.file_statistics import statistics_text
from game_events.lakehouse.data.staging import StagedFile, file_system
from game_events.lakehouse.storage.errors import store_errors_named
from game_events.lakehouse.tables import Lakehouse, Table


class _Store(DeltaStorageHandler):
    """An object store that copies on its own side."""

    def copy_file(self, src: str, dst: str) -> None:
        """Copy a file; deltalake 1.6.6 names an argument that its own library does not have."""
        self._handler.copy_file(src, dst)


def copy_file(lakehouse: Lakehouse, source: Table, path: str, to: Table, name: str) -> StagedFile:
    """Copy a file to a path below a table's folder, which names no other file; its Delta statistics are made again.

    On a local disk the copy is a hard link, where the disk has them.

    Raises:
        FileNotFoundError: the file is gone.
        pa.ArrowInvalid: it is damaged.
    """
    to.require_writable()
    if source.local_path is not None and to.local_path is not None:
        _link(source.local_path / path, to.local_path / name)
    else:
        with store_errors_named(to.uri):
            store = pafs.PyFileSystem(_Store(lakehouse.root, to.options))
            store.copy_file(f"{source.name}/{path}", f"{to.name}/{name}")
    system, prefix = file_system(to)
    try:
        with store_errors_named(to.uri), system.open_input_file(prefix + name) as copied:
            metadata, size = pq.read_metadata(copied), copied.size()
    except pa.ArrowInvalid:
        system.delete_file(prefix + name)
        raise
    return StagedFile(to.name, name, size, metadata.num_rows, statistics_text(metadata, to.person))


def name_of_copy(path: str, folder: str) -> str:
    """A new path in a folder for a copy; it ends with the old name (`copied_name`)."""
    return f"{folder}/{uuid.uuid4().hex}-{PurePosixPath(path).name}"


def copied_name(path: str) -> str:
    """The old name of a copy; of any other file a name that no file has had."""
    return PurePosixPath(path).name.partition("-")[2]


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Both names have one time: maintenance deletes old files that no commit names yet.
        os.utime(source)
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a disk without hard links, another user's file, too many links
        shutil.copyfile(source, target)
