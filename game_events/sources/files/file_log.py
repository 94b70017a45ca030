"""The file log (table `source_files`, append-only): every source file with its number, which orders the source.

Guarantee: a path has one number for ever, also with concurrent runs and crashes; numbers have no gaps. So a file is read once:
bronze's progress is a number. A file that is overwritten later is recorded as changed and not read again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import DeltaTable

from game_events.errors import DataError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.restores import ANY_COMMIT, restored_lately
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.system_tables.system_table import SystemTable, schema_of
from game_events.lakehouse.tables import SOURCE_FILES, Lakehouse, paths
from game_events.sources.files.location import SourceFile

TAKEN, CHANGED = "taken", "changed"

SCHEMA = schema_of(
    number=(pa.int64(), "Number that the path has for ever; a file's records count up from number * 2^32"),
    path=(pa.string(), "File"),
    size=(pa.int64(), "Bytes"),
    modified_at=(pa.timestamp("us", tz="UTC"), "When it was written (UTC)"),
    kind=(pa.string(), "taken, or changed: another size or time under a path that was taken before"),
    seen_at=(pa.timestamp("us", tz="UTC"), "When a run saw it so (UTC)"),
    run_id=(pa.string(), "Run that did"),
)


@dataclass
class LogContent:
    """The log in memory: files as last listed, by number, and their numbers by path."""

    entries: list[SourceFile] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    log_id: str = ""

    def compare(self, found: Sequence[SourceFile]) -> tuple[list[SourceFile], list[SourceFile]]:
        """Listed files that are not in the log, and those that changed since they were logged."""
        known = [file for file in found if file.path in self.numbers]
        changed = [file for file in known if file != self.entries[self.numbers[file.path]]]
        return [file for file in found if file.path not in self.numbers], changed


class FileLog:
    """Reads and appends to the table."""

    def __init__(self, lakehouse: Lakehouse, run_id: str = "") -> None:
        """Nothing is read yet."""
        description = "Files that are the source, each with its number: bronze has read them up to one"
        self.declaration = SystemTable(lakehouse.table(SOURCE_FILES), SCHEMA, description)
        self._run_id = run_id
        self._read: set[str] = set()
        self._known = LogContent()
        self._handle: DeltaTable | None = None

    def known(self) -> LogContent:
        """Every file that was taken in; reads what came since the last look; DataError if the table was restored."""
        table = self.declaration.table
        self._handle = handle = table.open()
        if handle is None:
            self._read, self._known = set(), LogContent()
            return self._known
        if restored_lately(table, ANY_COMMIT, handle.version()):
            raise DataError(
                f"{SOURCE_FILES} was restored to an older version: files that came since would get numbers that bronze has "
                "read already. Nothing was done: restore its newest version"
            )
        there = set(paths(handle))
        log_id = str(handle.metadata().id)
        if log_id != self._known.log_id or not self._read <= there:  # another table, or after compaction
            self._read, self._known = set(), LogContent(log_id=log_id)
        self._add(self.declaration.read(handle, paths=sorted(there - self._read)))
        self._read = there
        if len(self._known.entries) != int(handle.transaction_version(Txn.NEXT_FILE) or 0):
            raise DataError(f"{table.uri}: its rows were changed: restore its newest version")
        return self._known

    @retry_on_conflict()
    def take_in(self, new: Sequence[SourceFile], changed: Sequence[SourceFile]) -> LogContent:
        """Number new files, in this order, and record changed ones, in one commit; ConflictError if others won every attempt.

        After a conflict the log is read again: files that the concurrent run has added are not new any more.
        """
        known = self.known()
        left, other = known.compare(new)[0], known.compare(changed)[1]
        if not left and not other and self._handle is not None:
            return known
        self._commit(known, left, other)
        return self.known()

    def _commit(self, known: LogContent, new: Sequence[SourceFile], changed: Sequence[SourceFile]) -> None:
        first, now = len(known.entries), datetime.now(UTC)
        rows = [(first + n, f, TAKEN) for n, f in enumerate(new)] + [(known.numbers[f.path], f, CHANGED) for f in changed]
        columns = {
            "number": [n for n, _, _ in rows],
            "path": [f.path for _, f, _ in rows],
            "size": [f.size for _, f, _ in rows],
            "modified_at": pa.array([f.modified_us for _, f, _ in rows], pa.int64()).cast(SCHEMA.field("modified_at").type),
            "kind": [kind for _, _, kind in rows],
            "seen_at": [now] * len(rows),
            "run_id": [self._run_id] * len(rows),
        }
        self.declaration.commit(
            self._handle,
            pa.table(columns, schema=SCHEMA),
            advance={Txn.NEXT_FILE: first + len(new)},
            info={"files": str(len(new)), "changed": str(len(changed))},
        )
        failpoints.reach("files_taken_in")

    def _add(self, rows: pa.Table) -> None:
        entries, numbers = self._known.entries, self._known.numbers
        columns = [rows.column(n) for n in ("number", "path", "size", "modified_at", "kind", "seen_at")]
        columns[3] = columns[3].cast(pa.int64())
        found = zip(*(c.to_pylist() for c in columns), strict=True)
        # By number, then changes in the order of their time.
        ordered = sorted(found, key=lambda r: (True, r[5]) if r[4] == CHANGED else (False, r[0]))
        for number, path, size, modified, kind, _ in ordered:
            entry = SourceFile(path, size, modified)
            if kind == TAKEN and number == len(entries):
                entries.append(entry)
                numbers[path] = number
            elif kind == CHANGED and number < len(entries):
                entries[number] = entry
