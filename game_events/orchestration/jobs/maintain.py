"""The job `maintain` and its schedule: small files joined, old ones deleted, logs shortened."""

from collections.abc import Iterable, Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from game_events.orchestration.events.texts import table
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import REPORT
from game_events.pipeline.maintenance.run import maintain as maintain_tables
from game_events.pipeline.reporting.steps import TableMaintenance


class MaintenanceConfig(dg.Config):
    """Which tables, and whether to count only."""

    tables: list[str] = Field(default=[], description="Tables, or layers; empty: all of them.")
    dry_run: bool = Field(default=False, description="Only count what would be joined and deleted.")


def build_maintain(graph: Graph) -> dg.JobDefinition:
    """The job: all tables, or some; a table that fails alone fails the run after the others are done."""

    @graph.op(
        "look_after_tables",
        "Joins small files of append-only tables, deletes files that were replaced long enough ago or left by crashes, "
        "shortens the tables' logs. No row and no progress changes; starts no Spark.",
        # Work that rewrites rows would lose its last commit to a compaction; the continuous run has a pool of its own, and
        # takes a compaction beside it calmly.
        "bronze",
    )
    def look_after_tables(context: dg.OpExecutionContext, config: MaintenanceConfig) -> Iterator[dg.Output[None]]:
        with graph.lakehouse(context).recorded(context, "maintain") as (pipeline, report):
            maintain_tables(pipeline, report, config.tables, dry_run=config.dry_run)
        tables = report.maintenance.values()
        failed = [entry for entry in tables if entry.error]
        metadata: dict[str, Any] = {
            REPORT: dg.MetadataValue.json(report.to_dict()),
            "tables": _table(tables),
            "files_joined": sum(entry.joined for entry in tables),
            "files_deleted": sum(entry.replaced + entry.orphans for entry in tables),
        }
        if failed:
            words = "; ".join(f"{entry.table}: {entry.error}" for entry in failed[:10])
            raise dg.Failure(f"{len(failed)} tables failed: {words}", metadata=metadata, allow_retries=False)
        yield dg.Output(None, metadata=metadata)

    return graph.job(
        "maintain",
        "Maintenance of the tables, safe beside any run and reader. The same as `game-events maintain`.",
        look_after_tables,
    )


def build_hourly_maintenance(graph: Graph, maintain: dg.JobDefinition) -> dg.ScheduleDefinition:
    """The schedule of the job."""
    return dg.ScheduleDefinition(
        name=graph.keys.named("hourly_maintenance"),
        job=maintain,
        cron_schedule="41 * * * *",
        execution_timezone="UTC",
        description="Maintains the tables each hour, so that runs in triggered mode leave no small files behind; continuous "
        "mode does it by itself meanwhile.",
        default_status=graph.schedule_status,
    )


def _table(tables: Iterable[TableMaintenance]) -> dg.TableMetadataValue:
    """The tables that were changed."""
    numbers = ("joined", "into", "renewed", "replaced", "orphans", "waiting")
    rows = [
        {"table": entry.table, **{name: getattr(entry, name) for name in numbers}, "note": entry.error or entry.skipped or ""}
        for entry in tables
        if entry.anything
    ]
    return table(("table", *numbers, "note"), rows)
