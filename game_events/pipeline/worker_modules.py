"""Modules of a Python worker that may change while it lives: forgotten when their files have."""

import importlib
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, NamedTuple

#: Folders of Python's own modules and of installed libraries: those are believed not to change while a server runs.
_INSTALLED = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class FileState(NamedTuple):
    """What changes when a file is written."""

    modified_ns: int
    size: int


def _file(module: ModuleType) -> Path | None:
    """The file that a module was read from, or the archive with it; None for an installed module, or one without a file."""
    name = getattr(module, "__file__", None)
    if name is None:
        return None
    path = Path(name)
    while not path.is_file() and path != path.parent:
        path = path.parent
    return None if not path.is_file() or str(path.resolve()).startswith(_INSTALLED) else path


def _state(file: Path) -> FileState | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return FileState(found.st_mtime_ns, found.st_size)


class ChangingModules:
    """The modules that tasks of this worker have imported, other than installed ones, each with its file's state."""

    def __init__(self) -> None:
        """Nothing is imported yet beside what this process has."""
        self._installed = set(sys.modules)
        self._found: dict[str, tuple[Path, FileState | None]] = {}

    def run(self, task: Callable[[BinaryIO, BinaryIO], None], infile: BinaryIO, outfile: BinaryIO) -> None:
        """Run a task with modules as their files are now: a worker of a warm server lives longer than a version of a file."""
        if any(_state(file) != state for file, state in self._found.values()):
            self._forget()
        began_ns = time.time_ns()
        try:
            task(infile, outfile)
        finally:
            self._remember(began_ns)

    def _remember(self, began_ns: int) -> None:
        for name, module in list(sys.modules.items()):
            if name in self._installed or name in self._found:
                continue
            file = _file(module)
            if file is None:
                self._installed.add(name)
                continue
            state = _state(file)
            # Changed since it may have been imported: what was read is not known.
            self._found[name] = (file, state if state is not None and state.modified_ns < began_ns else None)

    def _forget(self) -> None:
        for name in self._found:
            sys.modules.pop(name, None)
        self._found.clear()
        importlib.invalidate_caches()
