"""Interfaces of Dagster 1.13 that are not public, all that this project uses; a new version of Dagster is tried here first.

`DagsterAssetCheckFailedError`: a step that failed by a blocking check is recognized by the name of this class.
`AssetCheckExecutionRecordStatus`: of `event_log_storage.get_asset_check_execution_history`; the public API has only the newest
evaluation of a check. `SqliteEventLogStorage`: knows the files of runs, which Dagster empties and does not delete.
`AssetCheckExecutionsTable`, of a `SqlEventLogStorage`: evaluations of checks, which Dagster keeps when it deletes their run.
`UnresolvedAssetJobDefinition`: what `define_asset_job` returns, for annotations. `plan_process`: the names of the modules of
Dagster's executors.
"""

import multiprocessing
import os
import sys

from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.errors import DagsterAssetCheckFailedError
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage

__all__ = [
    "AssetCheckExecutionRecordStatus",
    "AssetCheckExecutionsTable",
    "DagsterAssetCheckFailedError",
    "SqlEventLogStorage",
    "SqliteEventLogStorage",
    "UnresolvedAssetJobDefinition",
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
