"""Parts of a table that is partitioned by game: each is used like a game's own table (docs/decisions/0035).

A part's rows are those of its partition. Its transaction ids are in the table's log, with the game behind a slash
(`bronze:{bronze id}/rummy`); without the slash they are of the whole table. One commit may have changes of many parts
(`commits.group`).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable, Metadata, Schema
from deltalake.table import ProtocolVersions

from game_events.errors import DataError, TransientError
from game_events.lakehouse.handle import DataFile, Entry, Handle, KnownTable, read_add_actions

if TYPE_CHECKING:
    from deltalake._internal import RawDeltaTable

#: Between a transaction id and the game in whose part it counts. Neither an id nor a game's name has one.
SEPARATOR = "/"
#: Times that the log is listed again if an entry is gone when it is read: whoever makes checkpoints deletes old entries.
LOG_ATTEMPTS = 3
#: Checkpoints of one file, of numbered ones, and of those with an id. Source: Delta Lake protocol, "Checkpoints".
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.parquet")
_ENTRY = re.compile(r"(\d{20})\.json")


def of_part(app: str, game: str) -> str:
    """A part's transaction id, as the table's log has it."""
    return f"{app}{SEPARATOR}{game}"


@dataclass(frozen=True)
class PartState:
    """The files of a game, and its transaction ids; without any the game has no part, whatever files there are."""

    files: tuple[DataFile, ...] = ()
    transactions: Mapping[str, int] = field(default_factory=dict)


class PartedHandle(Handle):
    """A version of a table that is partitioned by game, and the states of its parts; all are read at once.

    Only a commit of this process moves it; its parts stay as they are.
    """

    def __init__(self, uri: str, options: dict[str, str], known: KnownTable | None = None) -> None:
        """As `Handle`."""
        super().__init__(uri, options, known)
        self._states: tuple[int, dict[str, PartState]] = -1, {}
        #: A version, and whether it was restored (`transactions.restored`).
        self.restored: tuple[int, bool] = -1, False
        #: A version, the files of its log with all statistics, and the numbers of each game's files.
        self._actions: tuple[int, pa.Table, Mapping[str, list[int]]] = -1, pa.table({}), {}

    def states(self) -> Mapping[str, PartState]:
        """Game -> its state; of the whole table's transaction ids the game is empty."""
        if self._states[0] != self.version():
            self._states = self.version(), self._read_states()
        return self._states[1]

    def games(self) -> list[str]:
        """The games with a part, sorted."""
        return sorted(game for game, state in self.states().items() if game and state.transactions)

    def part(self, game: str) -> Part | None:
        """The part of a game; None: there is none."""
        state = self.states().get(game)
        return Part(self, game, state) if state is not None and state.transactions else None

    def actions_of(self, game: str) -> pa.Table:
        """`tables.add_actions` of a game's files."""
        if self._actions[0] != self.version():
            found, numbers = read_add_actions(self), defaultdict[str, list[int]](list)
            for number, path in enumerate(found.column("path").to_pylist()):
                numbers[_game_of(path)].append(number)
            self._actions = self.version(), found, numbers
        return self._actions[1].take(pa.array(self._actions[2].get(game, []), pa.int64()))

    def files(self) -> tuple[DataFile, ...]:
        """The files of this version."""
        return tuple(file for state in self.states().values() for file in state.files)

    def transaction_version(self, app_id: str) -> int | None:
        """Value of a transaction id, as the log has it."""
        app, _, game = app_id.partition(SEPARATOR)
        state = self.states().get(game)
        return None if state is None else state.transactions.get(app)

    def note_after(self, sets: Mapping[str, int]) -> dict[str, str]:  # noqa: ARG002 - as `Handle.note_after`
        """Nothing: the ids of all games are too many for a commit's information."""
        return {}

    def note_commit(self, info: Mapping[str, str], files: tuple[DataFile, ...] | None) -> None:
        """Note the information of this version's commit, which this process has made."""
        super().note_commit(info, None)
        if isinstance(self._read, KnownTable) and self.version() == 0:
            self._states = 0, _states(((_game_of(file.path), file) for file in files or ()), _set_ones(self._read.transactions))

    def moved(
        self, sets: Mapping[str, int], info: Mapping[str, str], added: Sequence[DataFile], removed: Collection[str]
    ) -> None:
        """Move to the next version, as `Handle.moved`; only states of games that changed are made anew."""
        after, new = dict(self.states()), _states(((_game_of(file.path), file) for file in added), sets)
        for game in new.keys() | {_game_of(path) for path in removed}:
            before, change = after.get(game, PartState()), new.get(game, PartState())
            kept = before.files
            if removed:
                kept = tuple(file for file in kept if unquote(file.path) not in removed)
            after[game] = PartState((*kept, *change.files), {**before.transactions, **change.transactions})
        version = self.version() + 1
        self._moved = self._read.version(), version
        self._states = version, after
        self.note_commit(info, None)

    def _read_states(self) -> dict[str, PartState]:
        actions = read_add_actions(self)
        columns = [f"partition.{name}" for name in self.metadata().partition_columns]
        if len(columns) != 1:
            raise DataError(f"table {self.table_uri} is not partitioned by one column, as the layout `partitioned` is")
        unknown: list[Any] = [None] * actions.num_rows
        parts = (
            actions.column(name).to_pylist() if name in actions.column_names else unknown
            for name in ("path", "size_bytes", "num_records", "min._batch", "max._batch")
        )
        files = list(map(DataFile, *parts))
        games = actions.column(columns[0]).to_pylist() if columns[0] in actions.column_names else unknown
        for file, game in zip(files, games, strict=True):
            if _game_of(file.path) != game:
                raise DataError(
                    f"table {self.table_uri}: {file.path} is not in the folder of its partition: another engine has written "
                    "it. Delete the table: the next run makes it again"
                )
        return _states(zip(games, files, strict=True), self._read_transactions())

    def _read_transactions(self) -> Mapping[str, int]:
        """All transaction ids of this version: delta-rs replays the log for each, in half a millisecond."""
        if isinstance(self._read, KnownTable):
            return _set_ones(self._read.transactions)
        system, root = _log_of(self)
        for _ in range(LOG_ATTEMPTS):
            try:
                return read_transactions(system, root, self.version())
            except FileNotFoundError:
                continue
        raise TransientError(f"the log of {self.table_uri} keeps changing while it is read: run again")


class Part(Handle):
    """A game's part of a version of a table; it never moves. What is not overridden here is of the whole version."""

    def __init__(self, whole: PartedHandle, game: str, state: PartState) -> None:
        """`whole`: at the version of the part, for now; `state`: the game's."""
        self.whole, self.game = whole, game
        self._state, self._version = state, whole.version()
        self._opened: RawDeltaTable | None = None

    @property  # type: ignore[misc]
    def _table(self) -> RawDeltaTable:  # type: ignore[override]
        if self._opened is None:
            uri, options = self.whole.uri, self.whole._storage_options
            self._opened = DeltaTable(uri, self._version, options)._table
        return self._opened

    @property
    def _storage_options(self) -> dict[str, str] | None:  # type: ignore[override]
        return self.whole._storage_options

    @property
    def entry(self) -> tuple[int, Entry | None] | None:  # type: ignore[override]
        """As of the whole table; None: it has moved since."""
        return self.whole.entry if self._is_newest_of_whole else None

    @property
    def store(self) -> pafs.FileSystem | None:  # type: ignore[override]
        """As of the whole table."""
        return self.whole.store

    @property
    def _is_newest_of_whole(self) -> bool:
        return self.whole.version() == self._version

    def version(self) -> int:
        """The version of the table."""
        return self._version

    def schema(self) -> Schema:
        """The columns of the table, with the one that names the game."""
        return self.whole.schema()

    def metadata(self) -> Metadata:
        """Metadata of the table."""
        return self.whole.metadata()

    def protocol(self) -> ProtocolVersions:
        """Protocol of the table."""
        return self.whole.protocol()

    @property
    def known_of_columns(self) -> dict[Any, Any]:
        """As of the whole table."""
        return self.whole.known_of_columns

    @property
    def table_uri(self) -> str:
        """Where the table is."""
        return self.whole.table_uri

    @property
    def is_young(self) -> bool:
        """Whether it may still be kept."""
        return self.whole.is_young

    def newest_commit(self) -> Mapping[str, Any]:
        """Information of the newest commit to the table."""
        return self.whole.newest_commit() if self._is_newest_of_whole else next(iter(self.history(1)), {})

    def files(self) -> tuple[DataFile, ...]:
        """The files of the game."""
        return self._state.files

    def file_uris(self) -> list[str]:  # type: ignore[override]
        """Addresses of the files of the game."""
        root = self.table_uri.rstrip("/")
        return [f"{root}/{file.path}" for file in self.files()]

    def actions(self) -> pa.Table:
        """`tables.add_actions` of the game's files."""
        if self._is_newest_of_whole:
            return self.whole.actions_of(self.game)
        found = read_add_actions(self)
        mine = {file.path for file in self.files()}
        return found.filter(pa.array([path in mine for path in found.column("path").to_pylist()], pa.bool_()))

    def transaction_version(self, app_id: str) -> int | None:
        """Value of a transaction id of the game."""
        return self._state.transactions.get(app_id)

    def identify(self) -> None:
        """Nothing: the whole table's version is known."""


def read_transactions(system: pafs.FileSystem, log: str, version: int) -> dict[str, int]:
    """All transaction ids of a version, from its newest checkpoint and the entries after it.

    `log`: folder of the log in the file system, with its slash.

    Raises:
        FileNotFoundError: an entry is gone since the log was listed, or missing.
    """
    # Parquet's reader is slow to load, and not every process needs it.
    import pyarrow.parquet as pq  # noqa: PLC0415

    listed = system.get_file_info(pafs.FileSelector(log.rstrip("/"), recursive=False))
    names = [info.base_name for info in listed]
    begin, checkpoint = _newest_checkpoint(names, version)
    found: dict[str, int] = {}
    for name in checkpoint:
        with system.open_input_file(log + name) as source:
            file = pq.ParquetFile(source)
            if "txn" in file.schema_arrow.names:
                rows = file.read(["txn"]).column("txn").drop_null().to_pylist()
                found |= {row["appId"]: row["version"] for row in rows if row["appId"] is not None}
    for number in range(begin + 1, version + 1):
        with system.open_input_file(f"{log}{number:020}.json") as source:
            lines = source.read().splitlines()
        actions = (json.loads(line) for line in lines if b'"txn"' in line)
        found |= {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
    return found


def _newest_checkpoint(names: Iterable[str], version: int) -> tuple[int, list[str]]:
    """Version and files of the newest complete checkpoint up to a version; -1 and none: there is none."""
    files: dict[tuple[int, int], list[str]] = defaultdict(list)
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match is not None and int(match[1]) <= version:
            files[int(match[1]), int(match[3] or 1)].append(name)
    complete = {of: found for (of, parts), found in files.items() if len(found) >= parts}
    newest = max(complete, default=-1)
    return newest, complete.get(newest, [])


def _log_of(handle: PartedHandle) -> tuple[pafs.FileSystem, str]:
    if handle.store is not None:
        return handle.store, "_delta_log/"
    return pafs.LocalFileSystem(), f"{handle.uri}/_delta_log/"


def _states(files: Iterable[tuple[str, DataFile]], transactions: Mapping[str, int]) -> dict[str, PartState]:
    by_game: dict[str, list[DataFile]] = defaultdict(list)
    for game, file in files:
        by_game[game].append(file)
    ids: dict[str, dict[str, int]] = defaultdict(dict)
    for app_id, value in transactions.items():
        app, _, game = app_id.partition(SEPARATOR)
        ids[game][app] = value
    return {game: PartState(tuple(by_game.get(game, ())), ids.get(game, {})) for game in by_game.keys() | ids.keys()}


def _set_ones(transactions: Mapping[str, int | None]) -> dict[str, int]:
    return {app: value for app, value in transactions.items() if value is not None}


def _game_of(path: str) -> str:
    """The game of a file, from its folder; empty without one."""
    folder = path.rpartition("/")[0].rpartition("/")[2]
    return folder.partition("=")[2]
