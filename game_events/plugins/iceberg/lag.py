"""Which version of each Delta table Iceberg has: for `game-events iceberg`, `doctor`, and the check `iceberg_is_current`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from game_events.config.network import within
from game_events.config.settings import Settings
from game_events.errors import DataError, GameEventsError, TransientError, first_few
from game_events.lakehouse.commits.group import in_threads
from game_events.lakehouse.tables import Lakehouse, Table, table_id
from game_events.pipeline.checks.table_checks import TableCheck
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.result import CheckResult
from game_events.plugins.iceberg import PLUGIN
from game_events.plugins.iceberg.current import newest, tables_of, why
from game_events.plugins.iceberg.observer import CURRENT, SHOWN
from game_events.plugins.iceberg.settings import IcebergSettings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

OFF = "off (GAME_EVENTS_ICEBERG)"


@dataclass(frozen=True)
class Lag:
    """A table in both formats.

    Attributes:
        delta: newest version; `iceberg`: the version that Iceberg has, None: none.
        snapshots: number of snapshots; `metadata`: address of the newest metadata, as `iceberg_scan` of DuckDB takes it.
        refused: why it cannot be an Iceberg table.
        error: why it is not known how far Iceberg is.
    """

    table: str
    delta: int | None = None
    iceberg: int | None = None
    snapshots: int = 0
    metadata: str | None = None
    refused: str | None = None
    error: str | None = None

    @property
    def why(self) -> str | None:
        """What keeps it from being current, beside time."""
        return self.error or self.refused

    @property
    def is_current(self) -> bool:
        """Whether Iceberg shows the newest version, or no other one of a table that it cannot have."""
        if self.why is not None:
            return self.error is None and self.metadata is None
        return self.iceberg == self.delta

    @property
    def behind(self) -> str:
        """Both versions as text, and why."""
        held = "none" if self.iceberg is None else self.iceberg
        return f"{self.table} ({held} of {'?' if self.delta is None else self.delta}{f': {self.why}' if self.why else ''})"


def lags(settings: Settings, lakehouse: Lakehouse) -> list[Lag]:
    """Of each table; nothing is made.

    Raises as `open_catalog`, and errors of opening the catalog as they are; TransientError after `ICEBERG_TIMEOUT_S`.
    """
    PLUGIN.load("game_events.plugins.iceberg.catalog:open_catalog")  # says which extra is missing
    seconds = IcebergSettings.of(settings).iceberg_timeout_s
    try:
        return within(seconds, partial(_lags, settings, lakehouse), "iceberg")
    except TimeoutError as error:
        raise TransientError(f"Iceberg's catalog did not answer within {seconds:g} s") from error


def _lags(settings: Settings, lakehouse: Lakehouse) -> list[Lag]:
    from game_events.plugins.iceberg.catalog import is_there, open_catalog, refuse_root  # noqa: PLC0415 - slow to load

    refuse_root(settings, lakehouse.root)
    with open_catalog(settings, lakehouse) if is_there(settings, lakehouse) else nullcontext() as catalog:
        found = in_threads(tables_of(lakehouse), partial(_guarded, settings, catalog))
    return [lag for lag in found if lag is not None]


def _guarded(settings: Settings, catalog: Catalog | None, table: Table) -> Lag | None:
    """Of one table, whose error is not another's."""
    try:
        return _lag(table, catalog, IcebergSettings.of(settings).iceberg_namespace)
    except Exception as error:  # noqa: BLE001 - of any catalog; it is shown
        return Lag(table.name, error=why(error, settings))


def _lag(table: Table, catalog: Catalog | None, namespace: str) -> Lag | None:
    from game_events.plugins.iceberg.schema import NotInIcebergError, iceberg_schema, refuse_foreign  # noqa: PLC0415 - see above
    from game_events.plugins.iceberg.snapshots import LostMetadataError, load, version_in  # noqa: PLC0415

    handle = newest(table, Table.open_to_read)
    if handle is None:
        return None
    refused = None
    try:
        refuse_foreign(handle)
        iceberg_schema(handle)
    except NotInIcebergError as error:
        refused = str(error)
    try:
        held = None if catalog is None else load(catalog, (*namespace.split("."), table.name), table)
    except LostMetadataError:
        held = None
    if held is None:
        return Lag(table.name, handle.version(), refused=refused)
    version = version_in(held.metadata, table_id(handle))
    return Lag(table.name, handle.version(), version, len(held.metadata.snapshots), held.metadata_location, refused)


def iceberg_is_current(pipeline: Pipeline) -> CheckResult:
    """Check that Iceberg has the newest version of every table, as its catalog says."""
    if not IcebergSettings.of(pipeline.settings).iceberg:
        return CheckResult(CURRENT, "bronze", True, OFF)
    try:
        found = lags(pipeline.settings, pipeline.lakehouse)
    except Exception as error:  # noqa: BLE001 - of any catalog
        return CheckResult(CURRENT, "bronze", False, _unanswered(pipeline.settings, error))
    behind = [lag for lag in found if not lag.is_current]
    counts = {"tables": len(found), "behind": len(behind), "refused": sum(lag.refused is not None for lag in found)}
    return CheckResult(CURRENT, "bronze", not behind, summary(found), counts)


def summary(found: Sequence[Lag]) -> str:
    """One sentence: how many tables Iceberg has, which are behind, which it cannot have."""
    behind = [lag.behind for lag in found if not lag.is_current]
    refused = [f"{lag.table}: {lag.refused}" for lag in found if lag.is_current and lag.refused is not None]
    text = f"{len(found) - len(behind) - len(refused):,} of {len(found):,} tables are in Iceberg as they are in Delta"
    text += f"; behind, until the next run: {first_few(behind, SHOWN, ', ')}" if behind else ""
    return text + (f"; cannot be Iceberg tables: {first_few(refused, SHOWN)}" if refused else "")


def _unanswered(settings: Settings, error: Exception) -> str:
    return f"the Iceberg catalog could not be asked: {why(error, settings)}"


def doctor(settings: Settings) -> dict[str, Callable[[], str]]:
    """What `game-events doctor` shows of Iceberg; nothing where it is off."""
    return {"iceberg": lambda: _shown(settings)} if IcebergSettings.of(settings).iceberg else {}


def _shown(settings: Settings) -> str:
    with own_errors(settings):
        return summary(lags(settings, Lakehouse.of(settings)))


@contextmanager
def own_errors(settings: Settings) -> Iterator[None]:
    """Errors of any catalog become one of this project's, whose text has no secrets."""
    try:
        yield
    except GameEventsError:
        raise
    except Exception as error:  # noqa: BLE001 - of any catalog
        raise DataError(_unanswered(settings, error)) from None  # the cause may quote pyiceberg's configuration


CHECKS = (TableCheck(CURRENT, "bronze", iceberg_is_current),)
