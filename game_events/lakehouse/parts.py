"""Parts of a table that is partitioned by game: each is used like a game's own table (docs/decisions/0035).

A part's rows are those of its partition. Its transaction ids are in the table's log, with the game behind a slash
(`bronze:{bronze id}/rummy`); without the slash they are of the whole table. One commit may have changes of many parts
(`commits.group`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.fs as pafs

from game_events.errors import DataError, TransientError
from game_events.lakehouse.entries import LOG_ATTEMPTS, newest_checkpoint
from game_events.lakehouse.open_table import DataFile, KnownVersion, OpenTable, data_files, read_add_actions

if TYPE_CHECKING:
    from deltalake._internal import RawDeltaTable

#: Between a transaction id and the game in whose part it counts. Neither an id nor a game's name has one.
SEPARATOR = "/"


def of_part(app: str, game: str) -> str:
    """A part's transaction id, as the table's log has it."""
    return f"{app}{SEPARATOR}{game}"


@dataclass(frozen=True)
class PartState:
    """The files of a game, and its transaction ids; without any the game has no part, whatever files there are."""

    files: tuple[DataFile, ...] = ()
    transactions: Mapping[str, int] = field(default_factory=dict)


class PartedTable(OpenTable):
    """A version of a table that is partitioned by game, and the states of its parts; all are read at once."""

    #: Whether it was restored (`transactions.restored`); None: nobody has looked.
    restored: bool | None = None
    _states: dict[str, PartState] | None = None
    #: The files with all statistics, and the numbers of each game's files.
    _actions: tuple[pa.Table, Mapping[str, list[int]]] | None = None

    def _know(self, known: KnownVersion) -> None:
        super()._know(known)
        set_ones = {app: value for app, value in known.transactions.items() if value is not None}
        self._states = _states(((_game_of(f.path), f) for f in known.files), set_ones)

    def states(self) -> Mapping[str, PartState]:
        """Game -> its state; of the whole table's transaction ids the game is empty."""
        if self._states is None:
            self._states = self._read_states()
        return self._states

    def games(self) -> list[str]:
        """The games with a part, sorted."""
        return sorted(game for game, state in self.states().items() if game and state.transactions)

    def part(self, game: str) -> Part | None:
        """The part of a game; None: there is none."""
        state = self.states().get(game)
        return Part(self, game, state) if state is not None and state.transactions else None

    def actions_of(self, game: str) -> pa.Table:
        """`tables.add_actions` of a game's files."""
        if self._actions is None:
            numbers = defaultdict[str, list[int]](list)
            read = read_add_actions(self)
            for number, path in enumerate(read.column("path").to_pylist()):
                numbers[_game_of(path)].append(number)
            self._actions = read, numbers
        actions, of_game = self._actions
        return actions.take(pa.array(of_game.get(game, []), pa.int64()))

    def files(self) -> tuple[DataFile, ...]:
        """The files of this version."""
        return tuple(file for state in self.states().values() for file in state.files)

    def transaction_version(self, app_id: str) -> int | None:
        """Value of a transaction id, as the log has it."""
        app, _, game = app_id.partition(SEPARATOR)
        state = self.states().get(game)
        return None if state is None else state.transactions.get(app)

    def noted_after(self, transactions: Mapping[str, int]) -> dict[str, str]:  # noqa: ARG002 - as `OpenTable.noted_after`
        """Nothing: the ids of all games are too many for a commit's information."""
        return {}

    def _follow(
        self, before: OpenTable, transactions: Mapping[str, int], added: Sequence[DataFile], removed: Collection[str]
    ) -> None:
        """Know the states by those of the version before; only those of games that changed are made anew."""
        states = dict(cast("PartedTable", before).states())
        new = _states(((_game_of(file.path), file) for file in added), transactions)
        for game in new.keys() | {_game_of(path) for path in removed}:
            old = states.get(game, PartState())
            change = new.get(game, PartState())
            kept = tuple(file for file in old.files if file.plain_path not in removed) if removed else old.files
            states[game] = PartState((*kept, *change.files), {**old.transactions, **change.transactions})
        self._states = states
        self._actions = self.restored = None

    def _read_states(self) -> dict[str, PartState]:
        actions = read_add_actions(self)
        columns = [f"partition.{name}" for name in self.metadata().partition_columns]
        if len(columns) != 1:
            raise DataError(f"table {self.table_uri} is not partitioned by one column, as the layout `partitioned` is")
        files = data_files(actions)
        games: list[Any] = actions.column(columns[0]).to_pylist() if columns[0] in actions.column_names else [None] * len(files)
        for file, game in zip(files, games, strict=True):
            if _game_of(file.path) != game:
                raise DataError(
                    f"table {self.table_uri}: {file.path} is not in the folder of its partition: another engine has written "
                    "it. Delete the table: the next run makes it again"
                )
        return _states(zip(games, files, strict=True), self._read_transactions())

    def _read_transactions(self) -> Mapping[str, int]:
        """All transaction ids of this version: delta-rs replays the log for each, in half a millisecond."""
        system = pafs.LocalFileSystem() if self.store is None else self.store
        log = f"{self.uri}/_delta_log/" if self.store is None else "_delta_log/"
        for _ in range(LOG_ATTEMPTS):
            try:
                return read_transactions(system, log, self.version())
            except FileNotFoundError:
                continue
        raise TransientError(f"the log of {self.table_uri} keeps changing while it is read: run again")


class Part(OpenTable):
    """A game's part of a version of a table. What is not overridden here is of the whole version."""

    def __init__(self, whole: PartedTable, game: str, state: PartState) -> None:
        vars(self).update(vars(whole))
        self._raw = None
        self.whole = whole
        self.game = game
        self._files = state.files
        self._transactions = dict(state.transactions)
        self._has_all = True

    @property  # type: ignore[misc]
    def _table(self) -> RawDeltaTable:  # type: ignore[override]
        return self.whole._table

    def is_newest(self) -> bool:
        """As of the whole table."""
        return self.whole.is_newest()

    def newest_commit(self) -> Mapping[str, Any]:
        """Information of the newest commit to the table."""
        return self.whole.newest_commit()

    def file_uris(self, *_filters: Any, **_more: Any) -> list[str]:  # noqa: ANN401 - as delta-rs has it
        """Addresses of the files of the game."""
        root = self.table_uri.rstrip("/")
        return [f"{root}/{file.path}" for file in self.files()]


def read_transactions(system: pafs.FileSystem, log: str, version: int) -> dict[str, int]:
    """All transaction ids of a version, from its newest checkpoint and the entries after it.

    `log`: folder of the log in the file system, with its slash.

    Raises:
        FileNotFoundError: an entry is gone since the log was listed, or missing.
    """
    listed = system.get_file_info(pafs.FileSelector(log.rstrip("/"), recursive=False))
    begin, checkpoint = newest_checkpoint((info.base_name for info in listed), version)
    transactions: dict[str, int] = {}
    for name in checkpoint:
        transactions |= _in_checkpoint(system, log + name)
    for number in range(begin + 1, version + 1):
        with system.open_input_file(f"{log}{number:020}.json") as source:
            lines = source.read().splitlines()
        for action in (json.loads(line) for line in lines if b'"txn"' in line):
            if "txn" in action:
                transactions[action["txn"]["appId"]] = action["txn"]["version"]
    return transactions


def _in_checkpoint(system: pafs.FileSystem, path: str) -> dict[str, int]:
    """The transaction ids in one file of a checkpoint."""
    # Parquet's reader is slow to load, and not every process needs it.
    import pyarrow.parquet as pq

    with system.open_input_file(path) as source:
        file = pq.ParquetFile(source)
        if "txn" not in file.schema_arrow.names:
            return {}
        rows = file.read(["txn"]).column("txn").drop_null().to_pylist()
        return {row["appId"]: row["version"] for row in rows if row["appId"] is not None}


def _states(files: Iterable[tuple[str, DataFile]], transactions: Mapping[str, int]) -> dict[str, PartState]:
    by_game: dict[str, list[DataFile]] = defaultdict(list)
    for game, file in files:
        by_game[game].append(file)
    ids: dict[str, dict[str, int]] = defaultdict(dict)
    for app_id, value in transactions.items():
        app, _, game = app_id.partition(SEPARATOR)
        ids[game][app] = value
    return {game: PartState(tuple(by_game.get(game, ())), ids.get(game, {})) for game in by_game.keys() | ids.keys()}


def _game_of(path: str) -> str:
    """The game of a file, from its folder; empty without one."""
    folder = path.rpartition("/")[0].rpartition("/")[2]
    return folder.partition("=")[2]
