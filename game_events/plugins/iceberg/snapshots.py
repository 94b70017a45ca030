"""Iceberg snapshots of Delta versions: one commit makes an Iceberg table what its Delta table is.

The property `game_events.delta-version` says which version that is. It is set with the snapshot, by Iceberg's own
compare-and-set, and Delta's version is read after Iceberg's: so a crash before or after the commit changes nothing, and of two
processes one loses, looks again, and finds nothing to do. What is committed is the difference of the files: several versions
of Delta may become one snapshot.

Guarantee: each snapshot has the files of one Delta version. A snapshot by others is replaced by the next one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow.fs as pafs
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    ServerError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField, NameMapping, create_mapping_from_schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import ExpireSnapshots, _MergeAppendFiles, _OverwriteFiles

from game_events.errors import ConfigurationError, ConflictError, DataError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.log import TableLog
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.entries import asked_of
from game_events.lakehouse.open_table import COMMIT_ID, OpenTable, of_columns
from game_events.lakehouse.tables import Table, table_id
from game_events.plugins.iceberg.current import FOLDER, kept_s
from game_events.plugins.iceberg.files import data_files, live_files, location_of
from game_events.plugins.iceberg.schema import (
    NotInIcebergError,
    change_columns,
    iceberg_schema,
    partition_of,
    refuse_foreign,
    same_type,
)

#: Properties of an Iceberg table, and of its snapshots.
VERSION, TABLE_ID = "game_events.delta-version", "game_events.delta-table"

#: How a REST catalog says that a table's metadata is gone: by the class of Iceberg's own error.
LOST = "NotFoundException: "

#: Attempts until a table is left to the process that keeps committing to it.
ATTEMPTS = 10

#: Entries of Delta's log that are read to find that files were only added.
MOST_ENTRIES = 200

#: Each so many snapshots, what expired ones alone have named is deleted.
TIDY_EACH = 10

#: Ids, in the name mapping, of the columns of files in which Delta's row tracking keeps numbers and versions of rows: pyiceberg
#: reads no file with a column that has none. No column of a table gets so high a one, and Iceberg's own ones are above them.
ROW_IDS = (2_147_000_001, 2_147_000_002)

#: Seconds that metadata which no snapshot names stays.
YOUNG_S = 3600.0

#: Snapshots that a table keeps at most.
MOST_SNAPSHOTS = 100


@dataclass(frozen=True)
class Synced:
    """A table after its commit.

    Attributes:
        version: of Delta, which Iceberg has now.
        added, removed: numbers of files of the commit; `committed`: whether there was one.
        oldest_ms: time of the oldest snapshot beside the current one; None: there is no other.
        refused: why it cannot be an Iceberg table: there is none now.
    """

    table: str
    version: int
    added: int = 0
    removed: int = 0
    committed: bool = False
    oldest_ms: int | None = None
    refused: str | None = None


class _Transaction(Transaction):
    """A transaction that makes the metadata after its changes once for these, and not for each look at it: a deep copy."""

    _made_of: object = None

    @property
    def table_metadata(self) -> TableMetadata:
        """As of the base class, which nobody alters."""
        if self._made_of is not self._updates:
            self._made = super().table_metadata
            self._made_of = self._updates
        return self._made


class _Change(_OverwriteFiles, _MergeAppendFiles):
    """A snapshot by added and removed files, which merges manifests as an append does, and keeps none without files."""

    def _existing_manifests(self) -> list[ManifestFile]:
        kept = super()._existing_manifests() if self._deleted_data_files else _MergeAppendFiles._existing_manifests(self)
        return [manifest for manifest in kept if manifest.has_added_files() or manifest.has_existing_files()]

    def _deleted_entries(self) -> list[ManifestEntry]:
        return super()._deleted_entries() if self._deleted_data_files else []


def properties_of(table: Table) -> dict[str, str]:
    """Properties of a new Iceberg table.

    Its files are Delta's: engines must delete none (`gc.enabled`). A commit that lost is planned again here, not by pyiceberg.
    """
    return {
        TableProperties.FORMAT_VERSION: "2",
        TableProperties.WRITE_METADATA_PATH: f"{location_of(table)}/{FOLDER}",
        TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
        TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "10",
        TableProperties.COMMIT_NUM_RETRIES: "0",
        "gc.enabled": "false",
    }


def sync(
    table: Table, opened: Callable[[], OpenTable | None], catalog: Catalog, namespace: str, *, forget: bool = False
) -> Synced | None:
    """Make the Iceberg table what the newest version of the Delta table is; None: there is no Delta table.

    A table that has what Iceberg lacks leaves the catalog, so that nobody takes its old rows for its rows.

    `opened`: opens the newest version. `forget`: keep no other snapshot.

    Raises:
        ConflictError: others kept committing.
        ConfigurationError: the catalog has a table of that name that is another lakehouse's.
    """
    name = (*namespace.split("."), table.name)
    for _ in range(ATTEMPTS):
        held = _held(catalog, name, table)
        handle = opened()  # after Iceberg's: never older than what that was made of
        if handle is None:
            return None
        try:
            refuse_foreign(handle)
            held = held or _made(catalog, name, table, handle)
            return _commit(table, handle, held, forget=forget)
        except NotInIcebergError as error:
            if held is not None:
                _leave(catalog, name)
            return Synced(table.name, handle.version(), refused=str(error))
        except (CommitFailedException, TableAlreadyExistsError, ValidationException):
            continue
    raise ConflictError(f"{table.name}: other processes committed to its Iceberg table at each of {ATTEMPTS} attempts")


def _held(catalog: Catalog, name: tuple[str, ...], table: Table) -> IcebergTable | None:
    """The Iceberg table; one whose metadata went with the folder of the Delta table is none, and leaves the catalog."""
    try:
        return load(catalog, name, table)
    except LostMetadataError:
        _leave(catalog, name)
    return None


def _leave(catalog: Catalog, name: tuple[str, ...]) -> None:
    """Take a table of this lakehouse out of the catalog; no file is deleted."""
    with suppress(NoSuchTableError):  # another process did it
        catalog.drop_table(name)


class LostMetadataError(DataError):
    """The metadata of a table of this lakehouse is gone."""


def load(catalog: Catalog, name: tuple[str, ...], table: Table) -> IcebergTable | None:
    """The Iceberg table; None: there is none.

    Raises:
        ConfigurationError: it is elsewhere.
        LostMetadataError: its metadata is gone.
    """
    place = location_of(table)
    try:
        held = catalog.load_table(name)
    except NoSuchTableError:
        return None
    except (FileNotFoundError, ServerError) as error:
        if isinstance(error, ServerError) and LOST not in str(error):
            raise
        if not _is_below(place, str(error)):
            raise _of_another(name, "elsewhere, and its metadata is gone", place) from error
        raise LostMetadataError(f"the Iceberg metadata of {table.name} is gone") from error
    if held.location().rstrip("/") != place:
        raise _of_another(name, held.location(), place)
    return held


def _is_below(place: str, said: str) -> bool:
    """Whether an error names metadata of the table at a place: nothing else says whose the table was."""
    path = f"{place.partition('://')[2]}/{FOLDER}/"
    return re.search(rf"(^|['\"]|: |file:(//)?|[a-z0-9]://){re.escape(path)}", said) is not None


def _of_another(name: tuple[str, ...], where: str, place: str) -> ConfigurationError:
    return ConfigurationError(
        f"{'.'.join(name)} of the Iceberg catalog is {where}, not {place}: set GAME_EVENTS_ICEBERG_NAMESPACE to a namespace of "
        "this lakehouse's own, or drop that table from the catalog"
    )


def _made(catalog: Catalog, name: tuple[str, ...], table: Table, handle: DeltaTable) -> IcebergTable:
    schema = iceberg_schema(handle)
    spec = partition_of(schema, handle.metadata().partition_columns)
    return catalog.create_table(name, schema, location_of(table), spec, properties=properties_of(table))


def _commit(table: Table, handle: OpenTable, held: IcebergTable, *, forget: bool) -> Synced:
    version = {VERSION: str(handle.version()), TABLE_ID: str(table_id(handle))}
    added: list[DataFile] = []
    removed: list[DataFile] = []
    with _Transaction(held) as change:
        _change_columns(change, handle)
        new, removed = difference(table, handle, held)
        schema, spec = change.table_metadata.schema(), change.table_metadata.spec()
        added = list(data_files(table, handle, new, schema, spec))
        if added or removed:
            _add_snapshot(change, added, removed, version)
        _set(change, version)
        expired = expire(change, table, forget=forget)
        committed = bool(change._updates)
        failpoints.reach("iceberg_staged", table.name)
    if committed:
        failpoints.reach("iceberg_committed", table.name)
    current = held.metadata.current_snapshot()
    number = 0 if current is None else current.sequence_number or 0
    if expired and (forget or number % TIDY_EACH == 0):
        delete_unnamed(table, held)
    return Synced(table.name, handle.version(), len(added), len(removed), committed, oldest_ms(held.metadata))


def _change_columns(change: Transaction, handle: DeltaTable) -> None:
    """Columns, partition and name mapping as the Delta table has them."""
    columns = of_columns(handle, iceberg_schema)
    if not same_type(columns.as_struct(), change.table_metadata.schema().as_struct()):
        with change.update_schema(allow_incompatible_changes=True) as update:
            change_columns(update, change.table_metadata.schema(), columns)
    wanted = handle.metadata().partition_columns
    held = [field.name for field in change.table_metadata.spec().fields]
    if held != wanted:
        with change.update_spec() as spec:
            for name in held:
                spec.remove_field(name)
            for name in wanted:
                spec.add_identity(name)
    mapping = list(create_mapping_from_schema(change.table_metadata.schema()))
    asked = of_columns(handle, asked_of)
    if asked is not None and asked.id_columns is not None:
        mapping += [
            MappedField(**{"field-id": number, "names": [name]}) for number, name in zip(ROW_IDS, asked.id_columns, strict=True)
        ]
    _set(change, {TableProperties.DEFAULT_NAME_MAPPING: NameMapping(mapping).model_dump_json()})


def _set(change: Transaction, properties: Mapping[str, str]) -> None:
    """Set properties that have other values."""
    held = change.table_metadata.properties
    other = {key: value for key, value in properties.items() if held.get(key) != value}
    if other:
        change.set_properties(other)


def difference(table: Table, handle: DeltaTable, held: IcebergTable) -> tuple[list[str], list[DataFile]]:
    """Paths of the files that Iceberg lacks, and the entries of those that the Delta version has no more."""
    appended = _appended(table, handle, held.metadata)
    if appended is not None:
        return appended, []
    live = live_files(table, handle)
    entries = {entry.file_path: entry for entry in entries_of(held)}
    new = [path for address, path in live.items() if address not in entries]
    return new, [entry for address, entry in entries.items() if address not in live]


def _appended(table: Table, handle: DeltaTable, held: TableMetadata) -> list[str] | None:
    """Paths of the files since the version that Iceberg has, if they were only added, by commits of this project alone.

    None: that is not known, and the lists of all files have to be compared.
    """
    known = version_in(held, table_id(handle))
    if known is None or not 0 <= handle.version() - known <= MOST_ENTRIES:
        return None
    log = TableLog(table)
    added: list[str] = []
    for version in range(known + 1, handle.version() + 1):
        actions = log.actions(version)
        is_ours = any(COMMIT_ID in action.get("commitInfo", {}) for action in actions)
        if not is_ours or any("remove" in action for action in actions):
            return None
        added += [action["add"]["path"] for action in actions if "add" in action]
    return added


def version_in(held: TableMetadata, delta: str | None) -> int | None:
    """The version of the Delta table with that id that an Iceberg table has; None: of none, or others have committed to it."""
    current = held.current_snapshot()
    said = [dict(held.properties)]
    if current is not None:
        said.append(current.summary.additional_properties if current.summary is not None else {})
    if any(VERSION not in each or each.get(TABLE_ID) != delta for each in said):
        return None
    # A process that found nothing but the version to commit may have set the property back.
    return max(int(each[VERSION]) for each in said)


def entries_of(held: IcebergTable) -> Iterable[DataFile]:
    """The files of the current snapshot."""
    current = held.metadata.current_snapshot()
    for manifest in current.manifests(held.io) if current is not None else ():
        if manifest.content == ManifestContent.DATA:
            yield from (entry.data_file for entry in manifest.fetch_manifest_entry(held.io, discard_deleted=True))


def _add_snapshot(change: Transaction, added: list[DataFile], removed: list[DataFile], version: Mapping[str, str]) -> None:
    operation = Operation.OVERWRITE if added and removed else Operation.DELETE if removed else Operation.APPEND
    snapshot = _Change(operation, change, change._table.io, snapshot_properties=dict(version))
    for entry in added:
        snapshot.append_data_file(entry)
    for entry in removed:
        snapshot.delete_data_file(entry)
    snapshot.commit()


def expire(change: Transaction, table: Table, *, forget: bool) -> int:
    """Expire snapshots whose files Delta may delete, and those beyond the number that is kept; returns how many.

    A snapshot names files that were not replaced when it was made: one as young as versions that all stay has lost none.
    """
    snapshots = sorted(change.table_metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms)
    before = (time.time() - kept_s(table)) * 1000
    most = len(snapshots) - MOST_SNAPSHOTS
    old = [s.snapshot_id for n, s in enumerate(snapshots) if forget or n < most or s.timestamp_ms < before]
    current = change.table_metadata.current_snapshot_id
    old = [number for number in old if number != current]
    if old:
        ExpireSnapshots(change).by_ids(old).commit()
    return len(old)


def oldest_ms(held: TableMetadata) -> int | None:
    """Time of the oldest snapshot beside the current one; None: there is no other."""
    return min((s.timestamp_ms for s in held.snapshots if s.snapshot_id != held.current_snapshot_id), default=None)


def delete_unnamed(table: Table, held: IcebergTable) -> int:
    """Delete what no snapshot names any more in the table's folder of Iceberg's metadata; returns how many files.

    Not what is young: a commit under way may name it, or a reader may have begun with it.
    """
    named = {name.rpartition("/")[2] for name in _named(held)}
    system, prefix = file_system(table)
    before = time.time() - YOUNG_S
    deleted = 0
    for info in system.get_file_info(pafs.FileSelector(f"{prefix}{FOLDER}", allow_not_found=True)):
        is_old = info.mtime is not None and info.mtime.timestamp() < before
        if info.type == pafs.FileType.File and is_old and info.base_name not in named:
            with suppress(FileNotFoundError):  # another process has deleted it
                system.delete_file(info.path)
                deleted += 1
    return deleted


def _named(held: IcebergTable) -> Iterator[str]:
    """Addresses of the metadata of a table, and of all that its snapshots name."""
    yield held.metadata_location
    yield from (entry.metadata_file for entry in held.metadata.metadata_log)
    for snapshot in held.metadata.snapshots:
        yield snapshot.manifest_list
        yield from (manifest.manifest_path for manifest in snapshot.manifests(held.io))
