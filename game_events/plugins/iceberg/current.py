"""Which tables Iceberg has to catch up with: a look at each table's newest version, without a catalog.

A file below the lakehouse, `_iceberg/{catalog}.{namespace}.json`, says which version of each table Iceberg has, by the process
that has committed it. It only saves asking the catalog for each table: where it is missing or damaged all tables are looked
at, and the check `iceberg_is_current` asks the catalog itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from deltalake.exceptions import DeltaError

from game_events.config.masking import cause_of
from game_events.config.network import UNTRUSTED
from game_events.config.settings import Settings
from game_events.errors import UnreadableTableError
from game_events.lakehouse.data.staging import file_system, system_below
from game_events.lakehouse.open_table import Entry, OpenTable, entry_of, has_entry
from game_events.lakehouse.tables import Lakehouse, Layer, Table, layer_of
from game_events.pipeline.event_log import INTERVAL_S
from game_events.plugins.iceberg.settings import IcebergSettings

log = logging.getLogger(__name__)

#: Folder of Iceberg's metadata, below the lakehouse and below each table: not `metadata`, which Delta's VACUUM would delete.
FOLDER = "_iceberg"


class Known(msgspec.Struct, frozen=True):
    """What is known of a table in Iceberg.

    Attributes:
        version: of Delta that it has; `entry`: identity of that version's log entry (local tables).
        oldest_ms: time of the oldest snapshot beside the current one; None: there is no other.
        refused: why the table is no Iceberg table.
    """

    version: int
    entry: tuple[int, int, int] | str | None = None
    oldest_ms: int | None = None
    refused: str | None = None


_DECODER = msgspec.json.Decoder(dict[str, Known])


def tables_of(lakehouse: Lakehouse) -> list[Table]:
    """The tables of events and aggregates: all but the pipeline's own (progress, event log)."""
    return [lakehouse.table(key) for key in lakehouse.names() if layer_of(key) != Layer.OWN]


def why(error: Exception, settings: Settings) -> str:
    """What is said of an error, of whatever library of a catalog."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:  # its text quotes the file, which may hold secrets
        return f"pyiceberg's configuration (.pyiceberg.yaml) cannot be read: see its line {mark.line + 1}"
    if UNTRUSTED in str(error):
        return "the catalog's certificate is not trusted (GAME_EVENTS_TLS_CA_FILE names its authority's PEM file)"
    return cause_of(error, settings)


def newest(table: Table, opened: Callable[[Table], OpenTable | None]) -> OpenTable | None:
    """The newest version of a table, also of one that this project cannot read: Iceberg cannot have it either."""
    try:
        return opened(table)
    except UnreadableTableError:
        return table.open_of_any_format()


def kept_s(table: Table) -> float:
    """Seconds that a snapshot of a table stays: as every version of Delta's, but for two looks of a loop at its tables."""
    return max(0.0, table.retention.every_s - 2 * INTERVAL_S)


class KnownTables:
    """What is known of all tables; `save` keeps it for the next run."""

    def __init__(self, settings: Settings, lakehouse: Lakehouse) -> None:
        chosen = IcebergSettings.of(settings)
        self._settings = settings
        self._lakehouse = lakehouse
        self._name = f"{FOLDER}/{chosen.iceberg_catalog or 'game_events'}.{chosen.iceberg_namespace}.json"
        self._catalog_file = None if chosen.iceberg_catalog is not None else Path(lakehouse.root, FOLDER, "catalog.db")
        self.tables: dict[str, Known] = self._read()

    def due(self, tables: Iterable[Table]) -> list[Table]:
        """Those that Iceberg has another version of, or too old snapshots of."""
        now_ms = time.time() * 1000
        return [table for table in tables if self._is_due(table, now_ms)]

    def _is_due(self, table: Table, now_ms: float) -> bool:
        known = self.tables.get(table.name)
        try:
            if known is None or not _is_newest(table, known):
                return True
        except (OSError, DeltaError):  # of this table alone: its commit says what it is
            return True
        return known.oldest_ms is not None and known.oldest_ms < now_ms - 1000 * kept_s(table)

    def save(self, news: Mapping[str, Known]) -> None:
        """Add what was found out; what another process has saved meanwhile stays."""
        self.tables = self._read() | dict(news)
        try:
            system, prefix = system_below(self._lakehouse.root, self._lakehouse.options)
            system.create_dir(f"{prefix}{FOLDER}")
            written = msgspec.json.encode(self.tables)
            # One write, of bytes: delta-rs takes no buffer.
            with system.open_output_stream(f"{prefix}{self._name}", buffer_size=len(written) + 1) as file:
                file.write(written)
        except OSError as error:
            log.warning("file=%s not_written=%r", self._name, why(error, self._settings))

    def _read(self) -> dict[str, Known]:
        if self._catalog_file is not None and not self._catalog_file.exists():
            return {}
        try:
            system, prefix = system_below(self._lakehouse.root, self._lakehouse.options)
            with system.open_input_file(f"{prefix}{self._name}") as file:
                return _DECODER.decode(file.read())
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, ValueError) as error:
            log.warning("file=%s not_read=%r all_tables_looked_at=true", self._name, why(error, self._settings))
            return {}


def _is_newest(table: Table, known: Known) -> bool:
    """Whether a version is the newest one; of a table in an object store that was made again it may be another one's."""
    store = None if table.is_local else file_system(table)[0]
    if has_entry(table.uri, store, known.version + 1):
        return False
    return (
        entry_of(table.uri, None, known.version) == known.entry if store is None else has_entry(table.uri, store, known.version)
    )


def entry_known(table: Table, version: int) -> Entry | None:
    """Identity of a version's entry, as `Known` has it."""
    return entry_of(table.uri, None, version) if table.is_local else None
