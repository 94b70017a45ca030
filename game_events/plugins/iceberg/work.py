"""What a run does for Iceberg: a commit for each table that has changed. One table's error is not another's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add, or_
from typing import Any, ClassVar, Protocol, Self

from pyiceberg.catalog import Catalog

from game_events.lakehouse.commits.group import in_threads
from game_events.lakehouse.tables import Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.result import PluginResult
from game_events.plugins.iceberg.catalog import open_catalog, own_file_of
from game_events.plugins.iceberg.current import Known, KnownTables, entry_known, newest, why
from game_events.plugins.iceberg.settings import IcebergSettings
from game_events.plugins.iceberg.snapshots import sync
from game_events.workers.results import merge, merged

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IcebergResult(PluginResult):
    """What a run has committed to Iceberg.

    Attributes:
        tables: commits; `added`, `removed`: files of these.
        failed: name of each table that was left for the next run -> why.
        refused: name of each table that Iceberg cannot have -> why.
    """

    key: ClassVar[str] = "iceberg"

    tables: int = merged(add, int)
    added: int = merged(add, int)
    removed: int = merged(add, int)
    failed: Mapping[str, str] = merged(or_, dict)
    refused: Mapping[str, str] = merged(or_, dict)

    def merged_with(self, later: Self) -> Self:
        """All of both."""
        return merge(self, later)

    def event_rows(self) -> Iterator[dict[str, Any]]:
        """One for all commits, one for each table without."""
        if self.tables:
            detail = {"added": self.added, "removed": self.removed}
            yield {"kind": "iceberg", "rows": self.tables, "status": "done", "detail": detail}
        for status, tables in (("failed", self.failed), ("refused", self.refused)):
            for table, cause in tables.items():
                yield {"kind": "iceberg", "table": table, "status": status, "detail": {"error": cause}}


class CatchUp(Protocol):
    """As `catch_up`, for those who load it late."""

    def __call__(
        self, pipeline: Pipeline, known: KnownTables, tables: Sequence[Table], *, forget: bool = False
    ) -> IcebergResult:
        """As there."""


def catch_up(pipeline: Pipeline, known: KnownTables, tables: Sequence[Table], *, forget: bool = False) -> IcebergResult:
    """Commit what these tables have become; what a catalog does not take is left for the next run.

    `forget`: keep no other snapshot of them.
    """
    namespace = IcebergSettings.of(pipeline.settings).iceberg_namespace
    try:
        catalog = open_catalog(pipeline.settings, pipeline.lakehouse)
    except Exception as error:  # noqa: BLE001 - the rows are committed: no error here may fail the run
        return _none_of(pipeline, tables, error)
    with catalog:
        try:
            catalog.create_namespace_if_not_exists(namespace)
        except Exception as error:  # noqa: BLE001 - see above
            return _none_of(pipeline, tables, error)
        one = partial(_guarded, pipeline, partial(_synced, pipeline, catalog, namespace, forget))
        # Beside its file nobody waits: threads would take turns.
        done = map(one, tables) if own_file_of(pipeline.settings, pipeline.lakehouse) else in_threads(tables, one)
        outcomes = dict(zip((table.name for table in tables), done, strict=True))
    known.save({name: seen for name, (_, seen) in outcomes.items() if seen is not None})
    return reduce(IcebergResult.merged_with, (result for result, _ in outcomes.values()), IcebergResult())


def _none_of(pipeline: Pipeline, tables: Sequence[Table], error: Exception) -> IcebergResult:
    return IcebergResult(failed=dict.fromkeys((table.name for table in tables), why(error, pipeline.settings)))


Outcome = tuple[IcebergResult, Known | None]


def _synced(pipeline: Pipeline, catalog: Catalog, namespace: str, forget: bool, table: Table) -> Outcome:
    done = sync(table, partial(newest, table, pipeline.tables.open_to_read), catalog, namespace, forget=forget)
    if done is None:
        return IcebergResult(), None
    known = Known(done.version, entry_known(table, done.version), done.oldest_ms, done.refused)
    if done.refused is not None:
        return IcebergResult(refused={table.name: done.refused}), known
    log.info("iceberg=%s version=%d added=%d removed=%d", table.name, done.version, done.added, done.removed)
    return IcebergResult(int(done.committed), done.added, done.removed), known


def _guarded(pipeline: Pipeline, work: Callable[[Table], Outcome], table: Table) -> Outcome:
    try:
        return work(table)
    except Exception as error:  # noqa: BLE001 - see above
        return IcebergResult(failed={table.name: why(error, pipeline.settings)}), None
