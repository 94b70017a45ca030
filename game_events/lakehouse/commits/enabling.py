"""Table features that the setting `TABLE_FEATURES` gives this project's local tables: when they are made, and by maintenance.

Source: Delta Lake protocol, "Table Features", "Row Tracking", "In-Commit Timestamps".
"""

import json
import uuid
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from deltalake import DeltaTable

from game_events.errors import LostFileError
from game_events.lakehouse.entries import OwnAlterer, asked_of, completed, content_of, linked, now_ms, read_state
from game_events.lakehouse.open_table import PLAIN_READER, OpenTable
from game_events.lakehouse.tables import Layer, Table, layer_of

#: Feature -> the property that turns it on.
_PROPERTIES = {
    "changeDataFeed": "delta.enableChangeDataFeed",
    "inCommitTimestamp": "delta.enableInCommitTimestamps",
    "rowTracking": "delta.enableRowTracking",
}
#: Features that a table has by its version for writers, without a list (versions up to 4).
_BY_VERSION = (("appendOnly", 2), ("invariants", 2), ("checkConstraints", 3), ("changeDataFeed", 4), ("generatedColumns", 4))
_LISTED = 7


def lacking(table: Table, handle: DeltaTable) -> list[str]:
    """Features of the setting that a table has not turned on; none of tables that are no layer's.

    Without row tracking where checkpoints may have further files (`v2Checkpoint`): nothing here reads those.
    """
    if not table.features or not table.is_local or layer_of(table.key) is Layer.OWN:
        return []
    properties = handle.metadata().configuration
    refused = {"rowTracking"} if "v2Checkpoint" in (handle.protocol().writer_features or ()) else set()
    wanted = sorted({*table.features} - refused)
    return [name for name in wanted if str(properties.get(_PROPERTIES[name], "")).lower() != "true"]


def enable(table: Table, handle: OpenTable) -> bool:
    """Turn on what a table lacks, in one entry after a handle's; whether it lacked anything.

    Raises:
        CommitFailedError: another commit has taken the version.
        LostFileError: it is not known how many rows a file has, as it is gone or damaged.
    """
    names = lacking(table, handle)
    if not names:
        return False
    table.require_writable()
    version = handle.version() + 1
    now = now_ms()
    properties = {_PROPERTIES[name]: "true" for name in names}
    if "inCommitTimestamp" in names:
        properties["delta.inCommitTimestampEnablementVersion"] = str(version)
        properties["delta.inCommitTimestampEnablementTimestamp"] = str(now)
    numbered: list[dict[str, Any]] = []
    if "rowTracking" in names:
        for what, column in (("RowId", "_row-id-col-"), ("RowCommitVersion", "_row-commit-version-col-")):
            properties[f"delta.rowTracking.materialized{what}ColumnName"] = f"{column}{uuid.uuid4()}"
        numbered = _added_again(handle)
    info = {"timestamp": now, "operation": "SET TBLPROPERTIES", "operationParameters": {}, "engineInfo": "game_events"}
    changed = OwnAlterer(table.uri, handle, handle.require_same)
    entry = [{"commitInfo": info}, _protocol(handle, names), changed.metadata_action(properties), *numbered]
    asked = asked_of(handle, names, properties)
    # The files that the table has are added again whatever statistics they have.
    complete = completed(table.uri, handle.version(), replace(asked, clustered=False), entry) if asked is not None else entry
    if "inCommitTimestamp" in names:
        complete[0]["commitInfo"]["inCommitTimestamp"] = now
    linked(table.uri, version, content_of(complete), handle.require_same)
    return True


def _added_again(handle: OpenTable) -> list[dict[str, Any]]:
    """Actions that add a version's files once more, each with its number of rows: by that its rows get their numbers."""
    rows = {file.plain_path: file.rows for file in handle.files()}
    actions: list[dict[str, Any]] = []
    for path, file in read_state(handle.uri, handle.version(), whole=True).adds.items():
        statistics = json.loads(file.get("stats") or "{}")
        if statistics.get("numRecords") is None:
            statistics["numRecords"] = rows[path]
        if statistics["numRecords"] is None:
            raise LostFileError(f"{handle.uri}/{path} is gone or damaged, though the table's log lists it")
        actions.append({"add": {**file, "dataChange": False, "stats": json.dumps(statistics, ensure_ascii=False)}})
    return actions


def _protocol(handle: DeltaTable, names: Collection[str]) -> dict[str, Any]:
    """The table's protocol with more features of writers."""
    protocol = handle.protocol()
    held = protocol.writer_features or [name for name, since in _BY_VERSION if protocol.min_writer_version >= since]
    needed = ("domainMetadata",) if "rowTracking" in names else ()
    action: dict[str, Any] = {
        "minReaderVersion": max(PLAIN_READER, protocol.min_reader_version),
        "minWriterVersion": _LISTED,
        "writerFeatures": sorted({*held, *names, *needed}),
    }
    if protocol.reader_features:
        action["readerFeatures"] = sorted(protocol.reader_features)
    return {"protocol": action}
