"""Interfaces of Dagster 1.13 that are not public, all that this project uses; a new version of Dagster is tried here first.

`DagsterAssetCheckFailedError`: a step that failed by a blocking check is recognized by the name of this class.
`AssetCheckExecutionRecordStatus`: of `event_log_storage.get_asset_check_execution_history`; the public API has only the newest
evaluation of a check. `SqliteEventLogStorage`: knows the files of runs, which Dagster empties and does not delete.
"""

from dagster._core.errors import DagsterAssetCheckFailedError
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage

__all__ = [
    "AssetCheckExecutionRecordStatus",
    "DagsterAssetCheckFailedError",
    "SqliteEventLogStorage",
]
