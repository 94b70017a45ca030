"""Asset keys and partitions of some settings; and all interfaces of Dagster 1.13 that are not public and are used here.

A new version of Dagster is tried here first.

`DagsterAssetCheckFailedError`: a step that failed by a blocking check is recognized by the name of this class.
`AssetCheckExecutionRecordStatus`: of `event_log_storage.get_asset_check_execution_history`; the public API has only the newest
evaluation of a check. `SqliteEventLogStorage`: knows the files of runs, which Dagster empties and does not delete.
`AssetCheckExecutionsTable`, of a `SqlEventLogStorage`: evaluations of checks, which Dagster keeps when it deletes their run.
`UnresolvedAssetJobDefinition`: what `define_asset_job` returns, for annotations. `AssetPartitionStatus`: what the instance says
of a partition. `log_planned`: the event by which Dagster knows what a run is to materialize; it logs it for runs of assets, and
never for a job of ops. `execute_here`: as `JobDefinition.execute_in_process`, which replaces a job's executor.
`DefinitionsLoadContext`: by it the definitions of a run's process know something of those from which the run was started.
"""

import logging
import multiprocessing
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import dagster as dg
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext, DefinitionsLoadType
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.errors import DagsterAssetCheckFailedError
from dagster._core.events import AssetMaterializationPlannedData
from dagster._core.execution.execute_in_process import core_execute_in_process
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.partition_status_cache import AssetPartitionStatus

from game_events.config.names import Names
from game_events.config.settings import Settings
from game_events.lakehouse.tables import BRONZE, OWN_GOLD, QUARANTINE, UNIFIED
from game_events.sources.factory import class_of

#: Metadata key of the run's whole report.
REPORT = "report"


def report_in(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """The run's report in the metadata of an event; empty if it has none."""
    value = (metadata or {}).get(REPORT)
    return dict(value.data) if isinstance(value, dg.JsonMetadataValue) and isinstance(value.data, dict) else {}


OpEvent = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation | dg.Output[None]

JOB = "continuous"
#: Metadata keys of check results: the games that it failed for, and what it covers.
FAILED_GAMES, COVERS = "failed_games", "covers"


@dataclass(frozen=True)
class Keys:
    """Names of the assets of some settings; `catalog`: database that tables are registered in, if they are."""

    names: Names
    catalog: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The keys of some settings."""
        return cls(settings.names, settings.catalog)

    @property
    def bronze(self) -> dg.AssetKey:
        """`bronze_events`."""
        return dg.AssetKey([self.names.name_of(BRONZE)])

    @property
    def quarantine(self) -> dg.AssetKey:
        """`quarantine_events`."""
        return dg.AssetKey([self.names.name_of(QUARANTINE)])

    @property
    def silver(self) -> dg.AssetKey:
        """`silver_events`, partitioned."""
        return self._key(self.names.silver_asset)

    @property
    def silver_types(self) -> dg.AssetKey:
        """`silver_events_by_type`, partitioned by game and message type."""
        return self._key(f"{self.names.silver_asset}_by_type")

    @property
    def gold(self) -> dg.AssetKey:
        """`gold_player_agg`, partitioned."""
        return self._key(self.names.gold_asset)

    @property
    def unified(self) -> dg.AssetKey:
        """`gold_unified_player_agg`."""
        return dg.AssetKey([self.names.name_of(UNIFIED)])

    @property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        """One partition for each game; grows with the data, without a list in the settings."""
        return dg.DynamicPartitionsDefinition(name=self.names.asset(self.names.entities))

    @property
    def type_partitions(self) -> dg.DynamicPartitionsDefinition:
        """One partition for each message type of a game that has a table (`rummy/level_start`)."""
        return dg.DynamicPartitionsDefinition(name=self.names.asset(f"{self.names.entities}_and_types"))

    @property
    def by_layer(self) -> dict[str, dg.AssetKey]:
        """Layer of a report's entry -> the asset that it materializes."""
        return {
            "bronze": self.bronze,
            "quarantine": self.quarantine,
            "silver": self.silver,
            "gold": self.gold,
            "unified": self.unified,
        }

    def layer(self, layer: str) -> dg.AssetKey:
        """The asset of a report's entry: an aggregate of one's own has `gold:{name}` for a layer."""
        known = self.by_layer
        return known[layer] if layer in known else self._key(f"gold_{layer.removeprefix(OWN_GOLD)}")

    def named(self, part: str) -> str:
        """Name of a job, op, sensor, schedule, pool or resource of this pipeline."""
        return self.names.asset(part)

    def table_name(self, table: str) -> str:
        """A table's name as its readers know it: with the catalog's database, where it is registered in one."""
        return f"{self.catalog}.{table}" if self.catalog else table

    def _key(self, name: str) -> dg.AssetKey:
        return dg.AssetKey([self.names.asset(name)])


DEFAULT = Keys(Names())
#: For assets of one's own beside those with default names (docs/reading.md).
GAMES, GOLD_KEY = DEFAULT.partitions, DEFAULT.gold
OWNERS = ["team:data-engineering"]


def source_key(settings: Settings, topic: str) -> dg.AssetKey:
    """The external asset of a topic that the settings name, or of what else the source reads."""
    return key_of(class_of(settings).asset_key(settings, topic))


def schema_key(settings: Settings, subject: str) -> dg.AssetKey:
    """The external asset of a subject; of all subjects of a pattern's topics."""
    return key_of(class_of(settings).subject_key(settings, subject))


def key_of(parts: Iterable[str]) -> dg.AssetKey:
    """A key as Dagster accepts it: with another character it would keep the whole project from loading."""
    return dg.AssetKey([re.sub(r"[^A-Za-z0-9_.-]", "_", part) for part in parts])


__all__ = [
    "AssetCheckExecutionRecordStatus",
    "AssetCheckExecutionsTable",
    "AssetPartitionStatus",
    "DagsterAssetCheckFailedError",
    "SqlEventLogStorage",
    "SqliteEventLogStorage",
    "UnresolvedAssetJobDefinition",
    "as_when_loaded",
    "execute_here",
    "log_planned",
    "plan_process",
]

_IN_PROCESS, _STEP_PROCESS = "dagster._core.executor.in_process", "dagster._core.executor.child_process_executor"


def plan_process() -> int | None:
    """Id of the process that executes the plan of the run that calls this; None: the run's executor is none of these two.

    It is this process, or with the multi-process executor the parent of the step's process.
    """
    frame = sys._getframe()
    while frame is not None:
        executor = frame.f_globals.get("__name__")
        if executor == _IN_PROCESS:
            return os.getpid()
        if executor == _STEP_PROCESS:
            parent = multiprocessing.parent_process()
            return parent.pid if parent is not None else None
        frame = frame.f_back  # type: ignore[assignment]
    return None


def log_planned(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, key: dg.AssetKey, partition: str | None = None
) -> None:
    """Log at once that the run of a step is to materialize an asset, or a partition of it.

    Until an event of a materialization follows, Dagster shows it as materializing while the run is at work, and as failed if
    the run failed. Without a partition that is about the asset as a whole, and no state of one of its partitions.
    """
    inner = context.op_execution_context if isinstance(context, dg.AssetExecutionContext) else context
    step = inner.get_step_execution_context().step.key
    planned = AssetMaterializationPlannedData(key, partition=partition)
    event = dg.DagsterEvent.build_asset_materialization_planned_event(inner.job_name, step, planned)
    inner.instance.report_dagster_event(event, inner.run_id, logging.DEBUG)


def as_when_loaded(name: str, value: str) -> str:
    """What the definitions had under a name when the UI loaded them; the given value where these are those.

    A run's process makes the definitions again, from what there is by then.
    """
    context = DefinitionsLoadContext.get()
    if context.load_type == DefinitionsLoadType.RECONSTRUCTION:
        return str(context.reconstruction_metadata.get(name, value))
    context.add_to_pending_reconstruction_metadata(name, value)
    return value


def execute_here(
    job: dg.JobDefinition,
    instance: dg.DagsterInstance,
    run_config: Mapping[str, Any],
    tags: Mapping[str, str] | None = None,
    op_selection: Sequence[str] | None = None,
) -> dg.ExecuteInProcessResult:
    """Execute a job in this process with its own executor, one that starts no processes; errors are in the result."""
    chosen = job.get_subset(op_selection=op_selection) if op_selection else job
    return core_execute_in_process(
        run_config=run_config,
        job=InMemoryJob(chosen),
        instance=instance,
        output_capturing_enabled=False,
        raise_on_error=False,
        run_tags=tags,
    )
