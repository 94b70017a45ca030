"""The folder, or prefix of an object store, with the source files: lists and opens them."""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.storage.errors import store_errors_named
from game_events.lakehouse.storage.options import delta_options, is_remote
from game_events.lakehouse.tables import Table, add_actions
from game_events.sources.files.archive_format import RECORDS
from game_events.sources.files.folder import REFUSED, files_below, hidden

#: Follows no links and does not block on a pipe.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotAFileError(Exception):
    """A path that is not a regular file of the folder (a link, a pipe), or may not be read."""


@dataclass(frozen=True)
class SourceFile:
    """One listed file.

    Attributes:
        path: its full path or URI.
        size: bytes.
        modified_us: modification time, microseconds since 1970.
    """

    path: str
    size: int
    modified_us: int


@dataclass(frozen=True)
class SourceLocation:
    """Location of the files; picklable, used by workers to open files.

    Attributes:
        root: folder or URI, without a trailing slash.
        options: of the object store, without credentials.
    """

    root: str
    options: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, settings: Settings, root: str) -> SourceLocation:
        """The location of a path or URI; raises ConfigurationError for an unknown or incomplete object store."""
        if is_remote(root):
            root = root.replace("s3a://", "s3://", 1).rstrip("/")
            return cls(root, delta_options(settings.model_copy(update={"lakehouse": root})))
        return cls(str(Path(root.removeprefix("file://")).expanduser().resolve()))

    @property
    def local(self) -> bool:
        """Whether it is a local folder."""
        return "://" not in self.root

    def listing(self, pattern: str = "*", skipped: dict[str, str] | None = None) -> list[SourceFile]:
        """All matching files below it, oldest first, without hidden files and folders (names that begin with `_` or `.`).

        Args:
            pattern: of the relative path, as in a shell; a `*` also matches slashes.
            skipped: gets the paths of skipped files and folders, with the reason.

        Raises:
            ConfigurationError: there is no such folder, it may not be read, or the object store refuses access.
            TransientError: the object store does not answer.
        """
        if self.local and not Path(self.root).is_dir():
            raise ConfigurationError(f"GAME_EVENTS_FILES_PATH: {self.root} is not a folder: create it, or name another")
        found = []
        files = files_below(self.root, {} if skipped is None else skipped) if self.local else self._in_store()
        for below, size, mtime_ns in files:
            if fnmatch.fnmatchcase(below, pattern):
                found.append(SourceFile(f"{self.root}/{below}", size, mtime_ns // 1000))
        return sorted(found, key=lambda f: (f.modified_us, f.path))

    def _in_store(self) -> Iterator[tuple[str, int, int]]:
        system, prefix = self._system()
        with store_errors_named(self.root):
            infos = system.get_file_info(pafs.FileSelector(prefix.rstrip("/"), recursive=True))
        for info in infos:
            if info.type == pafs.FileType.File:
                below = info.path.removeprefix(prefix)
                if not any(hidden(part) for part in PurePosixPath(below).parts):
                    yield below, info.size, info.mtime_ns or 0

    def archive(self) -> DeltaTable | None:
        """The record archive at this location; None: plain files. ConfigurationError for another Delta table."""
        archive = Table("archive", self.root, self.options).open()
        if archive is not None and [f.name for f in archive.schema().fields] != RECORDS.names:
            raise ConfigurationError(
                f"GAME_EVENTS_FILES_PATH: {self.root} is a Delta table: its files are rewritten, so they cannot be a source"
            )
        return archive

    def files_of(self, archive: DeltaTable) -> list[SourceFile]:
        """The files that the archive's Delta log names; others were left by a crash."""
        actions = add_actions(archive)
        times = actions.column("modification_time").cast(pa.int64()).to_pylist()
        columns = zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), times, strict=True)
        # delta-rs gives times of its log in milliseconds.
        found = [SourceFile(f"{self.root}/{path}", size, ms * 1000) for path, size, ms in columns]
        return sorted(found, key=lambda f: (f.modified_us, f.path))

    @contextmanager
    def open(self, path: str) -> Iterator[pa.NativeFile]:
        """Open one of its files for random access.

        Raises:
            FileNotFoundError: it does not exist.
            NotAFileError: it is a link or a pipe, or this user may not read it.
        """
        below = path.removeprefix(f"{self.root}/")
        if self.local:
            with open(self._descriptor(below), "rb", buffering=0) as file, pa.PythonFile(file, mode="r") as source:  # noqa: PTH123
                yield source
            return
        system, prefix = self._system()
        with system.open_input_file(prefix + below) as source:
            yield source

    def _descriptor(self, below: str) -> int:
        """Descriptor of a file, opened folder by folder, so that no part of the path is a link."""
        *folders, name = PurePosixPath(below).parts
        if {"..", "/"} & {*folders, name}:
            raise NotAFileError("it is no file of the folder")
        held = os.open(self.root, _READ | os.O_DIRECTORY)
        try:
            for folder in folders:
                inner = os.open(folder, _READ | os.O_DIRECTORY, dir_fd=held)
                os.close(held)
                held = inner
            found = os.open(name, _READ, dir_fd=held)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
                raise NotAFileError(f"it is no file of the folder any more ({error.strerror})") from None
            if error.errno in REFUSED:
                raise NotAFileError(
                    f"it may not be read ({error.strerror}): give this user read permission, and add it under another name"
                ) from None
            raise
        finally:
            os.close(held)
        if stat.S_ISREG(os.fstat(found).st_mode):
            return found
        os.close(found)
        raise NotAFileError("it is no file of the folder")

    def _system(self) -> tuple[pafs.FileSystem, str]:
        """A file system, and the prefix of relative paths in it."""
        if self.local:
            return pafs.LocalFileSystem(), self.root + "/"
        return pafs.PyFileSystem(DeltaStorageHandler(self.root, self.options)), ""
