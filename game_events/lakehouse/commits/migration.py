"""Migration of a lakehouse of game_events 0.1: its tables get today's transaction ids and names. No row changes.

Guarantee: killed anywhere, it is run again, and goes on. A table's ids and its format change in one commit; a table with a new
name is copied with its whole log, and removed after that. Bronze is the last one: until then every run refuses the lakehouse,
and 0.1 refuses each table that has today's format.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.fs as pafs
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError

from game_events.config.names import FORMER_OWN
from game_events.errors import ConfigurationError, ConflictError, DataError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import retry_on_conflict
from game_events.lakehouse.commits.evolution import new_mark
from game_events.lakehouse.commits.log import FOLDER, TableLog
from game_events.lakehouse.commits.transactions import MAINTENANCE_INFO
from game_events.lakehouse.data.staging import CopyingStore
from game_events.lakehouse.open_table import COMMIT_ID, OpenTable
from game_events.lakehouse.storage import store_errors_named, write_out
from game_events.lakehouse.table_properties import FORMAT, FORMER_IDS, KEEP_LOG, KEY, PARTITIONED, format_of, is_former
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Lakehouse, Table, table_id

#: Name of the list of a full refresh that was killed, in quarantine's folder, and what of it changes.
_LIST, _FORMER_LIST, _NEW_LIST = re.compile(r"_reset-\d+\.json"), "_reset-", "_full_refresh-"


@dataclass(frozen=True)
class Change:
    """What changes of a table.

    Attributes:
        table: the table, as it is called in 0.1.
        ids: transaction id of 0.1 -> today's, of those that it gets. They keep their values; those of 0.1 stay, unused.
        is_marked: it has today's format already.
        becomes: the table that it becomes; None: its name stays.
        lists: files in quarantine's folder that get new names.
    """

    table: Table
    ids: Mapping[str, str] = field(default_factory=dict)
    is_marked: bool = False
    becomes: Table | None = None
    lists: tuple[str, ...] = ()


def changes(lakehouse: Lakehouse) -> Iterator[Change]:
    """What is left to be changed, bronze at last; nothing of tables that are not this pipeline's.

    Raises:
        ConfigurationError, DataError: a table cannot be opened, or there are two where one belongs.
    """
    names = lakehouse.names()
    half_copied = {new for old, new in FORMER_OWN.items() if old in names}
    for key in sorted({*names} - half_copied, key=lambda key: (key == BRONZE, key)):
        table = lakehouse.table(key)
        if table.part is not None:
            continue
        becomes = lakehouse.table(FORMER_OWN[key]) if key in FORMER_OWN else None
        if becomes is not None and _is_copied(becomes):
            yield Change(table, is_marked=True, becomes=becomes)
            continue
        change = _unfinished(lakehouse, table, becomes)
        if change is not None:
            yield change


def _unfinished(lakehouse: Lakehouse, table: Table, becomes: Table | None) -> Change | None:
    """What is left to be changed of a table that is not copied; None: nothing, or there is no table."""
    handle = table.open_of_any_format()
    if handle is None:
        return None
    is_old = is_former(handle, table.key)
    lists = _former_lists(lakehouse, table) if table.key == QUARANTINE else ()
    if not (is_old or lists or becomes is not None):
        return None
    ids = {old: new for old, (new, _) in _new_ids(table, handle).items()} if is_old else {}
    return Change(table, ids, not is_old, becomes, lists)


def _former_lists(lakehouse: Lakehouse, table: Table) -> tuple[str, ...]:
    return tuple(name for name in _files(lakehouse, table) if _LIST.fullmatch(name))


def apply(lakehouse: Lakehouse, change: Change) -> None:
    """Make one change; what of it was made before is left out.

    Raises:
        ConflictError: a run commits to the table all the time.
        ReadOnlyError: the table is read only.
    """
    change.table.require_writable()
    for name in change.lists:
        _rename(lakehouse, change.table, name)
    if not change.is_marked:
        _mark(change.table)
        failpoints.reach("migration_marked", change.table.key)
    if change.becomes is not None:
        if not _is_copied(change.becomes):
            _copy(lakehouse, change.table, change.becomes)
        failpoints.reach("migration_copied", change.becomes.key)
        _remove(lakehouse, change.table)


def _new_ids(table: Table, handle: OpenTable) -> dict[str, tuple[str, int]]:
    """Transaction id of 0.1 -> today's id and its value, of those that the table has under the old id only."""
    values = TableLog(table).transactions(handle.version())
    renamed = {app: re.sub(r"^[a-z_]+", lambda word: FORMER_IDS.get(word[0], word[0]), app) for app in values}
    return {old: (new, values[old]) for old, new in renamed.items() if new not in values}


@retry_on_conflict()
def _mark(table: Table) -> None:
    """Give a table today's ids and format, in one commit."""
    handle = table.open_of_any_format()
    if handle is None or not is_former(handle, table.key):
        return
    table.writable(handle)
    properties = CommitProperties(
        # 0: the ids have the values of the version before.
        max_commit_retries=0,
        # As of maintenance: a restore before it is still to be checked by a run.
        custom_metadata={COMMIT_ID: new_mark(), MAINTENANCE_INFO: "migrated"},
        app_transactions=[Transaction(new, value) for new, value in _new_ids(table, handle).values()],
    )
    mark = {KEY: str(PARTITIONED if handle.metadata().partition_columns else FORMAT)}
    try:
        with store_errors_named(table.uri):
            first = handle.schema().fields[0].name
            handle.alter.set_column_metadata(first, mark, commit_properties=properties, post_commithook_properties=KEEP_LOG)
    except CommitFailedError as error:
        raise ConflictError(f"{table.name}: a run commits to it: stop all runs, and migrate again ({error})") from error


def _is_copied(table: Table) -> bool:
    """Whether all of a table is there under its new name: its newest entry, which has today's format, is copied last."""
    handle = _opened(table)
    return handle is not None and format_of(handle) >= FORMAT


def _opened(table: Table) -> OpenTable | None:
    """A table that is being copied; None: there is none, or only half a log."""
    try:
        return table.open_of_any_format()
    except DataError:
        return None


def _copy(lakehouse: Lakehouse, old: Table, new: Table) -> None:
    """Copy a table: its files, then its log, the newest entry last."""
    there = _opened(new)
    if there is not None and table_id(there) != table_id(old.open_of_any_format()):
        raise ConfigurationError(f"{lakehouse.root} has a table {old.name} and another table {new.name}: move one of them away")
    root = _root(lakehouse)
    with store_errors_named(lakehouse.root):
        if new.local_path is not None:
            (new.local_path / FOLDER).mkdir(parents=True, exist_ok=True)
        for path in _files(lakehouse, old):
            if new.local_path is not None:
                (new.local_path / path).parent.mkdir(parents=True, exist_ok=True)
            root.copy_file(f"{old.name}/{path}", f"{new.name}/{path}")
    write_out(new.uri)


def _remove(lakehouse: Lakehouse, table: Table) -> None:
    """Remove a table's folder, its log last."""
    root = _root(lakehouse)
    with store_errors_named(lakehouse.root):
        for path in _files(lakehouse, table):
            root.delete_file(f"{table.name}/{path}")
        if table.is_local:
            root.delete_dir(table.name)


def _rename(lakehouse: Lakehouse, table: Table, name: str) -> None:
    root = _root(lakehouse)
    with store_errors_named(lakehouse.root):
        root.copy_file(f"{table.name}/{name}", f"{table.name}/{name.replace(_FORMER_LIST, _NEW_LIST)}")
        root.delete_file(f"{table.name}/{name}")


def _files(lakehouse: Lakehouse, table: Table) -> list[str]:
    """Paths of all files below a table's folder: its files, then its log by version, entries before checkpoints."""
    with store_errors_named(lakehouse.root):
        listed = _root(lakehouse).get_file_info(pafs.FileSelector(table.name, recursive=True, allow_not_found=True))
    paths = (info.path.partition(f"{table.name}/")[2] for info in listed if info.type == pafs.FileType.File)
    return sorted(paths, key=_place)


def _place(path: str) -> tuple[bool, bool, str, bool]:
    """The place of a file among those that are copied."""
    name = Path(path).name
    return path.startswith(f"{FOLDER}/"), name == "_last_checkpoint", name[:20], not name.endswith(".json")


def _root(lakehouse: Lakehouse) -> pafs.FileSystem:
    """The lakehouse's folder, or prefix of an object store, as a file system."""
    if "://" not in lakehouse.root:
        return pafs.SubTreeFileSystem(lakehouse.root, pafs.LocalFileSystem())
    return pafs.PyFileSystem(CopyingStore(lakehouse.root, lakehouse.options))
