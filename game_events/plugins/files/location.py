"""The folder, or prefix of an object store, with the source files: lists and opens them.

Unreadable files and folders are skipped and reported, so that one file's name or permissions cannot stop the others. Symbolic
links are not followed: they could lead to any file of this machine.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.storage import delta_options, is_remote, store_errors_named
from game_events.lakehouse.tables import Table, add_actions
from game_events.sources.source import RAW_SCHEMA

#: Follows no links and does not block on a pipe.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Nested folders at most.
MAX_DEPTH = 100
#: Why a symbolic link is skipped.
LINK = "it is a symbolic link"
#: Permission errors, and errors caused by one file's name; others are the storage's.
REFUSED = (errno.EACCES, errno.EPERM)
_OF_A_NAME = (*REFUSED, errno.ENAMETOOLONG)
#: The file or folder was deleted or replaced meanwhile.
_GONE = (FileNotFoundError, NotADirectoryError)


class NotAFileError(Exception):
    """A path that is not a regular file of the folder (a link, a pipe), or may not be read."""


@dataclass(frozen=True)
class SourceFile:
    """One listed file: its full path or URI, bytes, modification time in microseconds since 1970."""

    path: str
    size: int
    modified_us: int


@dataclass(frozen=True)
class SourceLocation:
    """Folder or URI (without a trailing slash), and the store's options (without credentials); picklable, for workers."""

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

        `pattern`: of the relative path, as in a shell; a `*` also matches slashes. `skipped` gets the paths of skipped files
        and folders, with the reason.

        Raises:
            ConfigurationError: there is no such folder, it may not be read, or the object store refuses access.
            TransientError: the object store does not answer.
        """
        if self.local and not Path(self.root).is_dir():
            raise ConfigurationError(f"GAME_EVENTS_FILES_PATH: {self.root} is not a folder: create it, or name another")
        below_root = _files_below(self.root, {} if skipped is None else skipped) if self.local else self._in_store()
        return _ordered(
            SourceFile(f"{self.root}/{below}", size, mtime_ns // 1000)
            for below, size, mtime_ns in below_root
            if fnmatch.fnmatchcase(below, pattern)
        )

    def _in_store(self) -> Iterator[tuple[str, int, int]]:
        with store_errors_named(self.root):
            infos = self._store().get_file_info(pafs.FileSelector("", recursive=True))
        for info in infos:
            if info.type == pafs.FileType.File and not any(_hidden(part) for part in PurePosixPath(info.path).parts):
                yield info.path, info.size, info.mtime_ns or 0

    def archive(self) -> DeltaTable | None:
        """The record archive at this location; None: plain files. ConfigurationError for another Delta table."""
        archive = Table("archive", self.root, self.options).open_to_read()
        if archive is not None and [f.name for f in archive.schema().fields] != RAW_SCHEMA.names:
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
        return _ordered(SourceFile(f"{self.root}/{path}", size, ms * 1000) for path, size, ms in columns)

    @contextmanager
    def open(self, path: str) -> Iterator[pa.NativeFile]:
        """Open one of its files for random access; FileNotFoundError, or NotAFileError for a link, a pipe, or no permission."""
        below = path.removeprefix(f"{self.root}/")
        if self.local:
            with open(self._descriptor(below), "rb", buffering=0) as file, pa.PythonFile(file, mode="r") as source:  # noqa: PTH123
                yield source
            return
        with self._store().open_input_file(below) as source:
            yield source

    def _descriptor(self, below: str) -> int:
        """Descriptor of a file, opened folder by folder, so that no part of the path is a link."""
        *folders, name = PurePosixPath(below).parts
        if {"..", "/"} & {*folders, name}:
            raise NotAFileError("it is no file of the folder")
        parent = os.open(self.root, _READ | os.O_DIRECTORY)
        try:
            for folder in folders:
                inner = os.open(folder, _READ | os.O_DIRECTORY, dir_fd=parent)
                os.close(parent)
                parent = inner
            opened = os.open(name, _READ, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
                raise NotAFileError(f"it is no file of the folder any more ({error.strerror})") from None
            if error.errno in REFUSED:
                raise NotAFileError(
                    f"it may not be read ({error.strerror}): give this user read permission, and add it under another name"
                ) from None
            raise
        finally:
            os.close(parent)
        if stat.S_ISREG(os.fstat(opened).st_mode):
            return opened
        os.close(opened)
        raise NotAFileError("it is no file of the folder")

    def _store(self) -> pafs.FileSystem:
        return pafs.PyFileSystem(DeltaStorageHandler(self.root, self.options))


def _ordered(files: Iterable[SourceFile]) -> list[SourceFile]:
    return sorted(files, key=lambda file: (file.modified_us, file.path))


def _files_below(root: str, skipped: dict[str, str]) -> Iterator[tuple[str, int, int]]:
    """Files that are not hidden: relative path, bytes, modification time (nanoseconds since 1970).

    `skipped`: as in `listing`. Raises ConfigurationError for the folder itself, OSError if the storage fails.
    """
    if not os.access(root, os.X_OK):
        raise _no_folder(root, "its files may not be opened")
    folders = [(root, 0)]
    while folders:
        folder, depth = folders.pop()
        files: list[tuple[str, int, int]] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        if _hidden(entry.name) or not _wanted(entry, depth, skipped):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            folders.append((entry.path, depth + 1))
                        elif entry.is_file(follow_symlinks=False):
                            about = entry.stat(follow_symlinks=False)
                            files.append((entry.path.removeprefix(f"{root}/"), about.st_size, about.st_mtime_ns))
                    except OSError as error:
                        _skip(entry.path, error, skipped)
        except OSError as error:
            _skip_folder(root, folder, error, skipped)
        yield from files


def _hidden(name: str) -> bool:  # an unfinished file or folder
    return name.startswith(("_", "."))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # Python's form of other bytes
        return False
    return True


def _wanted(entry: os.DirEntry[str], depth: int, skipped: dict[str, str]) -> bool:
    if entry.is_symlink():
        skipped[entry.path] = LINK
    elif not _is_text(entry.name):
        skipped[entry.path] = "its name is no UTF-8"
    elif depth == MAX_DEPTH and entry.is_dir(follow_symlinks=False):
        skipped[entry.path] = f"it is more than {MAX_DEPTH} folders deep"
    return entry.path not in skipped


def _skip_folder(root: str, folder: str, error: OSError, skipped: dict[str, str]) -> None:
    """Record an error of one folder; raise any other, and ConfigurationError if the root cannot be listed."""
    if folder == root and isinstance(error, (*_GONE, PermissionError)):
        raise _no_folder(root, str(error.strerror)) from None
    _skip(folder, error, skipped)


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
