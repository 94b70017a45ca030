"""Older versions of a table: which can be read, and what of its log and of its files they need (docs/decisions/0047).

They are thinned out as backups are: every version of the last hours stays; before that the one that was the newest at each
full hour of a day, then at each midnight (UTC). Such a version has a checkpoint of its own, and the entries between two of them
are deleted. A file goes with the last part of the log that names it: nothing else is noted, and nothing else is kept.

Order of work: checkpoints of what stays, files of what goes, then its entries, the newest first. Killed anywhere, all versions
that should stay can be read, and the next maintenance finds the same things to do.

Source: Delta Lake protocol, "Checkpoints", "Action Reconciliation", "Metadata Cleanup", "Add CDC File".
"""

import json
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from game_events.errors import ConflictError, DataError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.log import CHECKPOINT, FOLDER, SOURCES, TableLog, version_of
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.entries import UNFINISHED
from game_events.lakehouse.open_table import log_retention_s
from game_events.lakehouse.parts import SEPARATOR
from game_events.lakehouse.storage import WRITTEN_OUT_S, write_out
from game_events.lakehouse.table_pool import forget_summary
from game_events.lakehouse.tables import BRONZE, Table, paths

HOUR_S, DAY_S = 3600, 86_400

#: More versions than promised are left alone up to this number: each costs an opening 2 microseconds, and to thin them out a
#: checkpoint for each hour. So nothing happens to a table with a few commits a day.
FEW = 50

#: The same for commits, which thin out where no maintenance does.
FEW_FOR_COMMITS = 1_000

#: Where no other checkpoint comes in time, the last version is kept by so much longer than promised before it gets one.
OVERDUE = 1.125

#: Colons in the transaction id of gold if people were erased from its silver (`transactions.silver_app`).
_COLONS = 3

#: Times that the log is listed again if something of it is gone when it is read: other maintenance is at work.
ATTEMPTS = 3

#: Parts of a log in an object store that are read at a time: each is an answer to wait for.
READ_AT_ONCE = 16


@dataclass(frozen=True)
class Named:
    """What an entry adds, or a checkpoint has.

    Attributes:
        paths: of files, below the table's folder; of an entry also those with the changed rows (Delta's change data feed).
        marks: of erasures: id -> value.
        names_topics: the entry names the topics that bronze was read from.
    """

    paths: frozenset[str]
    marks: Mapping[str, int]
    names_topics: bool = False


@dataclass(frozen=True)
class LogFiles:
    """A listing of a log.

    Attributes:
        entries: version -> when it was made, never earlier than the version before.
        checkpoints: version -> when its checkpoint was written; without those of several parts, which other writers make.
        based: versions with a checkpoint of any kind.
        all: every file of a version, the oldest versions first.
        unfinished: files that never became an entry.
    """

    entries: Mapping[int, float]
    checkpoints: Mapping[int, float]
    based: frozenset[int]
    all: tuple[pafs.FileInfo, ...]
    unfinished: tuple[pafs.FileInfo, ...]

    @classmethod
    def of(cls, log: TableLog) -> "LogFiles":
        """The listing of now."""
        listed = log.files()
        files = sorted((info for info in listed if info.base_name[:20].isdigit()), key=lambda info: str(info.base_name))
        entries = [info for info in files if info.base_name[20:] == ".json"]
        times = accumulate((_time(info) for info in entries), max)
        return cls(
            dict(zip(map(version_of, entries), times, strict=True)),
            {version_of(info): _time(info) for info in files if info.base_name[20:] == CHECKPOINT},
            frozenset(version_of(info) for info in files if info.base_name[20:].startswith(".checkpoint")),
            tuple(files),
            tuple(info for info in listed if info.base_name.startswith(UNFINISHED)),
        )

    def readable(self) -> list[int]:
        """Versions that can be read, sorted: those with a checkpoint, and those that follow one."""
        versions = list[int]()
        for version in self.entries:
            if version == 0 or version in self.based or (versions and versions[-1] == version - 1):
                versions.append(version)
        return versions

    def newest_at(self, moment: float) -> int:
        """The version that was the newest one at a time; -1: there was none."""
        place = bisect_right(list(self.entries.values()), moment) - 1
        return list(self.entries)[place] if place >= 0 else -1

    def begins(self, version: int) -> bool:
        """Whether a version's files are known by its checkpoint alone, as the entry before it is gone."""
        return version in self.based and version - 1 not in self.entries


#: Version -> its marks of erasures (`Named.marks`).
Marks = Mapping[int, Mapping[str, int]]


@dataclass(frozen=True)
class Thinning:
    """What is to be done to a table.

    Attributes:
        checkpoints: versions that get a checkpoint first.
        files: paths of the files that no version needs any more.
        log: parts of the log that go, in this order.
        waiting: files that older versions need, and the newest one does not.
    """

    checkpoints: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    log: tuple[pafs.FileInfo, ...] = ()
    waiting: int = 0


def promised(times: Mapping[int, float], now: float, every_s: float, kept_s: float) -> set[int]:
    """Of versions, with the times when they were made, those that were the newest at a full hour, or a midnight, to be kept."""
    versions = list(times)
    made = list(times.values())
    until = now - every_s
    hours = range(int(until // HOUR_S) * HOUR_S, int(now - min(kept_s, DAY_S)), -HOUR_S)
    days = range(int(until // DAY_S) * DAY_S, int(now - kept_s), -DAY_S)
    places = (bisect_right(made, moment) - 1 for moment in chain(hours, days))
    return {versions[place] for place in places if place >= 0}


@dataclass
class OldVersions:
    """The older versions of one table; each part of its log is read once.

    `few`: versions beyond the promised ones that are left alone. `entries`: those since the newest checkpoint, when it was last
    looked at; `waiting`: files that older versions need and the newest one does not.
    """

    table: Table
    few: int = FEW
    entries: int = 0
    waiting: int = 0
    _known: dict[tuple[str, float], Named] = field(default_factory=dict)
    _log: TableLog = field(init=False)

    def __post_init__(self) -> None:
        self._log = TableLog(self.table)

    def thin_out(self, handle: DeltaTable) -> int:
        """Thin out the versions before one that is the newest; returns the number of deleted files.

        Raises:
            ConflictError: other maintenance is at work.
        """
        self.table.require_writable()
        todo = self.plan(handle)
        self.waiting = todo.waiting
        for version in todo.checkpoints:
            self._keep(version)
        deleted = self._delete_files(todo.files)
        self._delete_log(todo.log)
        return deleted

    def _keep(self, version: int) -> None:
        """Give a version a checkpoint, which is on the disk before anything else of that version goes."""
        try:
            DeltaTable(self.table.uri, version, self.table.options).create_checkpoint()
        except DeltaError as error:
            if self._log.has(version):
                raise
            raise ConflictError(f"{self.table.name}: version {version} is gone: other maintenance is at work") from error
        if self.table.is_local:
            with Path(self.table.uri, FOLDER, f"{version:020}{CHECKPOINT}").open("rb") as written:
                os.fsync(written.fileno())
        failpoints.reach("version_kept", self.table.name)

    def plan(self, handle: DeltaTable) -> Thinning:
        """What `thin_out` would do now."""
        for _ in range(ATTEMPTS):
            listed = LogFiles.of(self._log)
            self._read_together(listed)
            try:
                return self._plan(listed, handle)
            except FileNotFoundError:
                continue
        raise ConflictError(f"{self.table.name}: its log keeps changing: other maintenance is at work")

    def named(self, handle: DeltaTable, last: int | None = None) -> set[str]:
        """Paths of the files that a version, and any in the log up to the `last`, needs. Raises as `thin_out`."""
        for _ in range(ATTEMPTS):
            listed = LogFiles.of(self._log)
            self._read_together(listed)
            versions = {version for version in self._whole(listed) if last is None or version <= last}
            with suppress(FileNotFoundError):
                return self._named_by(listed, versions, listed.entries) | set(paths(handle))
        raise ConflictError(f"{self.table.name}: its log keeps changing: other maintenance is at work")

    def _plan(self, listed: LogFiles, handle: DeltaTable) -> Thinning:
        self._forget(listed)
        newest = handle.version()
        self.entries = sum(version > max(listed.based, default=-1) for version in listed.entries)
        marks = self._marks(listed)
        keep, below = self._kept(listed, newest, marks)
        note = self._naming_topics(listed)
        gone = [info for info in listed.all if version_of(info) < below and version_of(info) not in keep and not note(info)]
        going = {v for v in self._whole(listed) if v < below and v not in keep}
        new = [v for v in sorted(keep) if 0 < v < below and v not in listed.checkpoints and v - 1 not in keep]
        live = set(paths(handle))
        named = self._named_by(listed, keep, keep) | set(chain.from_iterable(map(self._files_at, new)))
        files = self._named_by(listed, going, listed.entries) - named - live
        since = time.time() - self.table.retention.every_s
        # The newest first: what a kill leaves can be read.
        log = (*(info for info in listed.unfinished if _time(info) < since), *reversed(gone))
        new += [version for version in self._later_begin(listed, newest, marks) if version not in new]
        live |= self._entry(listed, newest).paths if newest in listed.entries else set()
        return Thinning(tuple(new), tuple(sorted(files)), log, len(named - live))

    def _kept(self, listed: LogFiles, newest: int, marks: Marks) -> tuple[set[int], int]:
        """Versions of which entries and checkpoints stay, and the version below which others go."""
        now = time.time()
        every_s, kept_s = self.table.retention.every_s, self.table.retention.seconds(self.table.key)
        whole = self._whole(listed)
        begin = self._begin(listed, newest, now - every_s)
        recent = {version for version in listed.entries.keys() | listed.based if version >= begin}
        made = {version: at for version, at in listed.entries.items() if version <= begin}
        wanted = promised(made, now, every_s, kept_s) & whole
        # Nothing of people who were erased is kept longer than a reader may need it.
        erased = {version for version in whole if version < begin and _is_before_erasure(version, newest, marks)}
        if erased or sum(version < begin for version in whole - wanted) > self.few:
            return recent | (wanted - erased), begin
        expired = self._begin(listed, listed.newest_at(now - max(every_s, kept_s)), now - every_s)
        return recent | {version for version in whole if version >= expired}, expired

    def _whole(self, listed: LogFiles) -> set[int]:
        """Versions of which the log has more than a note that stays (`_naming_topics`)."""
        return set(listed.readable()) | listed.based

    def _naming_topics(self, listed: LogFiles) -> Callable[[pafs.FileInfo], bool]:
        """Whether a file is the last entry that names bronze's topics: it stays as a note, though its version goes."""
        newest_first = sorted(listed.entries, reverse=True) if self.table.key == BRONZE else ()
        last = next((v for v in newest_first if self._entry(listed, v).names_topics), -1)
        return lambda info: str(info.base_name) == f"{last:020}.json"

    def _begin(self, listed: LogFiles, last: int, before: float) -> int:
        """The newest checkpoint up to a version that was written before a time; 0: there is none.

        Whoever has opened the table since began with it, or with a later one.
        """
        written = listed.checkpoints.items()
        return max((v for v, at in written if at < before and v <= last and v in listed.entries), default=0)

    def _later_begin(self, listed: LogFiles, newest: int, marks: Marks) -> list[int]:
        """Version that needs a checkpoint, so that what is before it can go when nobody begins with that any more."""
        if marks.get(newest, {}) != marks.get(max(listed.based, default=-1), {}):
            return [newest]  # people were erased since
        kept_s = max(self.table.retention.every_s, self.table.retention.seconds(self.table.key))
        now = time.time()
        # Of a version that is a note alone nobody knows the files.
        readable = listed.readable()
        last = max((version for version in readable if version <= listed.newest_at(now - kept_s)), default=-1)
        begin = max((version for version in listed.based if version <= last), default=min(readable, default=0))
        # Not at once: a version that expires each hour would have a checkpoint made each hour.
        return [last] if min(last, listed.newest_at(now - kept_s * OVERDUE)) > begin else []

    def _marks(self, listed: LogFiles) -> Marks:
        """Version -> its marks of erasures."""
        marks: Mapping[str, int] = {}
        by_version: dict[int, Mapping[str, int]] = {}
        for version in sorted(listed.entries.keys() | listed.based):
            if listed.begins(version):
                marks = self._marks_at(listed, version)
            new = self._entry(listed, version).marks if version in listed.entries else {}
            marks = {**marks, **new} if new else marks
            by_version[version] = marks
        return by_version

    def _marks_at(self, listed: LogFiles, version: int) -> Mapping[str, int]:
        """Those of a version with a checkpoint."""
        if version in listed.checkpoints:
            return self._checkpoint(listed, version).marks
        with suppress(DataError):  # in a form that only delta-rs reads
            return dict(_marks_in(self._log.transactions(version).items()))
        return {}

    def _named_by(self, listed: LogFiles, versions: Collection[int], entries: Collection[int]) -> set[str]:
        """Paths of files that versions add, and of all that those have whose version before is not among these entries."""
        added = (self._entry(listed, v).paths for v in versions if v in listed.entries)
        had = (self._checkpoint(listed, v).paths for v in versions if v in listed.based and v - 1 not in entries)
        return set(chain(chain.from_iterable(added), chain.from_iterable(had)))

    def _files_at(self, version: int) -> list[str]:
        try:
            return paths(DeltaTable(self.table.uri, version, self.table.options))
        except DeltaError as error:  # of a version that could be read when the log was listed
            raise FileNotFoundError(str(error)) from error

    def _entry(self, listed: LogFiles, version: int) -> Named:
        return self._read(f"{version:020}.json", listed.entries[version])

    def _checkpoint(self, listed: LogFiles, version: int) -> Named:
        if version in listed.checkpoints:
            return self._read(f"{version:020}{CHECKPOINT}", listed.checkpoints[version])
        return Named(frozenset(self._files_at(version)), {})  # in several parts

    def _read(self, name: str, written: float) -> Named:
        """A part of the log; FileNotFoundError if it is gone."""
        key = name, written
        if key not in self._known:
            with self._log.opened(name) as source:
                self._known[key] = (_in_checkpoint if name.endswith(CHECKPOINT) else _in_entry)(source)
        return self._known[key]

    def _read_together(self, listed: LogFiles) -> None:
        """Read what is not known of a log in an object store: one part after the other would take a minute for a thousand."""
        if self.table.is_local:
            return
        parts = [(f"{version:020}.json", made) for version, made in listed.entries.items()]
        parts += [(f"{v:020}{CHECKPOINT}", at) for v, at in listed.checkpoints.items() if v - 1 not in listed.entries]

        def read(part: tuple[str, float]) -> None:
            with suppress(FileNotFoundError):  # whoever needs it says so
                self._read(*part)

        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            list(pool.map(read, [part for part in parts if part not in self._known]))

    def _forget(self, listed: LogFiles) -> None:
        """Forget what the log does not have any more."""
        entries = {(f"{version:020}.json", made) for version, made in listed.entries.items()}
        checkpoints = {(f"{version:020}{CHECKPOINT}", at) for version, at in listed.checkpoints.items()}
        self._known = {key: self._known[key] for key in self._known.keys() & (entries | checkpoints)}

    def _delete_files(self, names: Collection[str]) -> int:
        newest = self.table.open() if names else None
        if newest is None:
            return 0
        # A restore may have brought some back meanwhile.
        return delete_files(self.table, sorted(set(names) - set(paths(newest))), self.table.retention.every_s)

    def _delete_log(self, files: Iterable[pafs.FileInfo]) -> None:
        """Delete parts of the log; the checkpoints that stay are on the disk first."""
        listed = tuple(files)
        if not listed:
            return
        if self.table.retention.every_s < WRITTEN_OUT_S:
            write_out(self.table.uri)
        # First: with the entries after it gone, it would name an older version as the newest one.
        forget_summary(self.table, max((version_of(f) for f in listed if f.base_name[:20].isdigit()), default=-1))
        for info in listed:
            self._log.delete(info)
            failpoints.reach("entry_deleted", self.table.name)


def delete_files(table: Table, names: Iterable[str], removed_s: float) -> int:
    """Delete files of a table; returns how many existed.

    `removed_s`: for so many seconds at least no version has named them. Those versions are on the disk first.
    """
    table.require_writable()
    chosen = list(names)
    if chosen and removed_s < WRITTEN_OUT_S:
        write_out(table.uri)
    system, prefix = file_system(table)
    deleted = 0
    for name in chosen:
        try:
            system.delete_file(prefix + name)
        except FileNotFoundError:
            continue
        deleted += 1
        failpoints.reach("file_deleted", table.name)
    return deleted


def files_there(table: Table, names: Collection[str]) -> int:
    """How many of these files of a table `delete_files` would find: a maintenance that was killed may have deleted some."""
    system, prefix = file_system(table)
    found = system.get_file_info([prefix + name for name in names]) if names else []
    return sum(info.type == pafs.FileType.File for info in found)


def _is_before_erasure(version: int, newest: int, marks: Marks) -> bool:
    """Whether a version has other marks of erasures than the newest one: rows of its were erased since."""
    return newest in marks and marks.get(version, {}) != marks[newest]


def _in_entry(source: pa.NativeFile) -> Named:
    lines = source.read().splitlines()
    actions = [json.loads(line) for line in lines if any(kind in line for kind in (b'"add"', b'"cdc"', b'"txn"'))]
    added = (action[kind]["path"] for action in actions for kind in ("add", "cdc") if kind in action)
    ids = ((action["txn"]["appId"], int(action["txn"]["version"])) for action in actions if "txn" in action)
    infos = (json.loads(line).get("commitInfo") for line in lines if b'"commitInfo"' in line and SOURCES.encode() in line)
    return Named(_below(added), dict(_marks_in(ids)), any(SOURCES in info for info in infos if info is not None))


def _in_checkpoint(source: pa.NativeFile) -> Named:
    rows = pq.ParquetFile(source).read(columns=["add.path", "txn.appId", "txn.version"])
    added = (add["path"] for add in rows.column("add").to_pylist() if add is not None and add["path"] is not None)
    txns = rows.column("txn").to_pylist() if "txn" in rows.column_names else ()
    ids = ((txn["appId"], txn["version"]) for txn in txns if txn is not None and txn["appId"] is not None)
    return Named(_below(added), dict(_marks_in(ids)))


def _below(added: Iterable[str]) -> frozenset[str]:
    """Paths below the table's folder; files that are elsewhere, as those of a clone are, are not the table's."""
    return frozenset(path for path in map(unquote, added) if "://" not in path and not path.startswith("/"))


def _marks_in(ids: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Of transaction ids those that change when people are erased; of gold the id says it, not its value."""
    for app, value in ids:
        name = app.partition(SEPARATOR)[0]
        if name == Txn.ERASURES:
            yield app, value
        elif name.startswith(f"{Txn.SILVER}:") and name.count(":") == _COLONS:
            yield app, 0


def _time(info: pafs.FileInfo) -> float:
    return float(info.mtime.timestamp()) if info.mtime is not None else 0.0


def readable_versions(table: Table) -> list[int]:
    """Versions of a table that can be read, the oldest first; one listing."""
    return LogFiles.of(TableLog(table)).readable()


def thin_out_long_log(table: Table, handle: DeltaTable) -> None:
    """Thin out a table's versions if they are so many that no maintenance can be at work; else this lists the log.

    Not those of a table that has other times, as tables of others have.
    """
    if log_retention_s(handle) > max(1, round(table.retention.every_s)):
        return
    before = time.time() - table.retention.every_s
    if sum(made < before for made in LogFiles.of(TableLog(table)).entries.values()) > FEW_FOR_COMMITS:
        OldVersions(table, FEW_FOR_COMMITS).thin_out(handle)
