"""The only files that a DuckDB connection can reach: named ones, to be read, and temporary ones in a folder of their own.

DuckDB's own file system is switched off, so this is no list of what is refused: nothing here can create, change or delete any
other file, whatever a statement asks for.
"""

from __future__ import annotations

import errno
import io
import os
import re
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
from fsspec import AbstractFileSystem

from game_events.lakehouse.duckdb_connection import text

PROTOCOL = "lake"
_PREFIX = f"{PROTOCOL}://"
#: Where DuckDB's temporary files are, as it sees them. A path on the disk begins with a slash: none can be the same.
_TEMPORARY = f"{_PREFIX}temporary"
#: What DuckDB calls them.
_TEMPORARY_NAME = re.compile(re.escape(_TEMPORARY) + r"/(duckdb_temp_[A-Za-z0-9_.-]+)")


class ConnectionFiles(AbstractFileSystem):  # type: ignore[misc]
    """The file system of one connection. Closing it deletes the temporary files."""

    protocol = PROTOCOL
    cachable = False

    def __init__(self, temporary_bytes: int | None = None) -> None:
        """`temporary_bytes`: of all temporary files together; None: as many as there is room for."""
        super().__init__()
        self._readable = set[str]()
        self._bytes = temporary_bytes
        self._folder = tempfile.TemporaryDirectory(prefix="game_events_sql")
        #: The last error of a file: DuckDB's own text repeats it as a traceback.
        self.failed: OSError | None = None

    def restrict(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Make these the only files that the connection can reach, for good: its settings are locked."""
        connection.register_filesystem(self)
        connection.execute(f"SET temp_directory = {text(_TEMPORARY)}")
        if self._bytes is not None:
            connection.execute(f"SET max_temp_directory_size = '{self._bytes}B'")
        connection.execute("SET disabled_filesystems = 'LocalFileSystem'")
        connection.execute(f"SET allowed_directories = [{text(_PREFIX)}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")

    def readable(self, paths: Iterable[str]) -> list[str]:
        """Let local files be read; gives their addresses for the connection."""
        addresses = [_PREFIX + path for path in paths]
        self._readable.update(addresses)
        return addresses

    def close(self) -> None:
        """Delete the temporary files."""
        self._folder.cleanup()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Keep the last error of a file."""
        try:
            yield
        except OSError as error:
            self.failed = error
            raise

    # --- What DuckDB calls. Every other method of the class raises, or does nothing.

    def open(self, path: str, mode: str = "rb", **_: object) -> _File:
        """A file to be read, or a temporary one; PermissionError for any other."""
        temporary = self._temporary(path)
        if temporary is not None:
            with self.noted():
                if "+" in mode:  # one that is to be written to in places is created by that
                    temporary.touch()
                return _File(temporary, mode, self)
        with self.noted():
            if path in self._readable and mode == "rb":
                return _File(path.removeprefix(_PREFIX), mode, self)
            raise PermissionError(f"{path} is no file of a table that can be read: the tables are only read here")

    def info(self, path: str, **_: object) -> dict[str, Any]:
        """Size and time of a file."""
        place = self._place(path)
        if path == _TEMPORARY:
            return {"name": path, "size": 0, "type": "directory"}
        found = place.stat()
        return {"name": path, "size": found.st_size, "type": "file", "mtime": found.st_mtime}

    def modified(self, path: str) -> datetime:
        """When a file was changed last."""
        return datetime.fromtimestamp(self._place(path).stat().st_mtime, UTC)

    def glob(self, path: str, **_: object) -> list[str]:
        """The file of that very name: its characters are no pattern."""
        return [path.removeprefix(_PREFIX)] if path in self._readable else []

    def ls(self, path: str, detail: bool = True, **_: object) -> list[Any]:
        """Names of the temporary files."""
        names = [f"{_TEMPORARY}/{file.name}" for file in Path(self._folder.name).iterdir()] if path == _TEMPORARY else []
        return [self.info(name) for name in names] if detail else names

    def touch(self, path: str, truncate: bool = True, **_: object) -> None:
        """Called for a temporary file that may become shorter, but not with its new length: it stays as it is."""

    def rm_file(self, path: str) -> None:
        """Delete a temporary file."""
        temporary = self._temporary(path)
        if temporary is None:
            with self.noted():
                raise PermissionError(f"{path}: the tables are only read here")
        temporary.unlink()

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete temporary files."""
        del recursive, maxdepth
        for each in [path] if isinstance(path, str) else path:
            self.rm_file(each)

    def _place(self, path: str) -> Path:
        if path == _TEMPORARY:
            return Path(self._folder.name)
        place = Path(path.removeprefix(_PREFIX)) if path in self._readable else self._temporary(path)
        if place is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return place

    def _temporary(self, path: str) -> Path | None:
        found = _TEMPORARY_NAME.fullmatch(path)
        return Path(self._folder.name) / found[1] if found is not None else None

    def room_for(self, more: int) -> None:
        """OSError if the temporary files would become too many bytes. DuckDB bounds those that it makes of itself."""
        if self._bytes is None or more <= 0:
            return
        taken = 0
        with suppress(FileNotFoundError), os.scandir(self._folder.name) as files:
            taken = sum(file.stat().st_size for file in files)
        if taken + more > self._bytes:
            raise OSError(errno.ENOSPC, f"temporary files of more than {self._bytes:,} bytes (GAME_EVENTS_SQL_DISK_BYTES)")


class _File(io.FileIO):
    """A file that DuckDB's threads share: each has a position of its own, as each seeks before it reads or writes."""

    def __init__(self, path: str | Path, mode: str, files: ConnectionFiles) -> None:
        super().__init__(path, mode)
        self._files, self._position = files, threading.local()

    def __del__(self) -> None:
        # DuckDB closes files by forgetting them.
        self.close()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set this thread's position."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: os.fstat(self.fileno()).st_size}[whence]
        self._position.at = start + offset
        return self.tell()

    def tell(self) -> int:
        """This thread's position."""
        return int(getattr(self._position, "at", 0))

    def read(self, size: int | None = -1, /) -> bytes:
        """Exactly so many bytes; OSError if the file has fewer, which DuckDB would not notice."""
        wanted = size if size is not None and size >= 0 else max(0, os.fstat(self.fileno()).st_size - self.tell())
        parts = list[bytes]()
        while wanted > 0 and (part := os.pread(self.fileno(), wanted, self.tell())):
            parts.append(part)
            wanted -= len(part)
            self.seek(len(part), os.SEEK_CUR)
        if wanted > 0:
            with self._files.noted():
                raise OSError(errno.EIO, f"the file ends {wanted:,} bytes too early", str(self.name))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - any bytes
        """Write all of it."""
        rest = memoryview(data).cast("B")
        written = len(rest)
        with self._files.noted():
            self._files.room_for(self.tell() + written - os.fstat(self.fileno()).st_size)
            while rest:
                done = os.pwrite(self.fileno(), rest, self.tell())
                self.seek(done, os.SEEK_CUR)
                rest = rest[done:]
        return written
