"""Entries of a local table's log that are written here, and what features of the table ask of them.

delta-rs 1.6.6 reads tables with in-commit timestamps, row tracking, clustering, domain metadata, the protocol check of
VACUUM, type widening and column defaults, and keeps in its checkpoints what these need, but commits nothing to them. So every
commit to such a table is made here, changes of columns and properties included (`OwnAlterer`). Tables in object stores are
delta-rs' alone.

Source: Delta Lake protocol, "Delta Log Entries", "Change Metadata", "Protocol Evolution", "Domain Metadata", "Row Tracking",
"Clustered Table", "In-Commit Timestamps"; "Checkpoints".
"""

from __future__ import annotations

import json
import math
import os
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable, Field, TableFeatures
from deltalake.exceptions import CommitFailedError
from deltalake.table import TableAlterer

from game_events.errors import DataError

#: Beginning of the name of a file that becomes an entry when it is complete.
UNFINISHED = "_commit_"

#: Features that only this module writes.
FOLLOWED = frozenset(
    {
        "allowColumnDefaults",
        "clustering",
        "domainMetadata",
        "inCommitTimestamp",
        "rowTracking",
        "typeWidening",
        "vacuumProtocolCheck",
    }
)
_ROW_TRACKING, _CLUSTERING = "delta.rowTracking", "delta.clustering"
_TIME = "inCommitTimestamp"
#: Beginning of an entry's line with the state of a feature.
_DOMAIN = b'{"domainMetadata"'

#: Times that the log is listed if something of it is gone when it is read: whoever makes checkpoints deletes old entries.
LOG_ATTEMPTS = 3

#: Checkpoints of one file, of numbered ones, and of those with an id. Source: Delta Lake protocol, "Checkpoints".
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.parquet")

Action = dict[str, Any]


def path_of(version: int) -> str:
    """Path of a version's entry, below the table's folder."""
    return f"_delta_log/{version:020}.json"


def identity_of(entry: os.stat_result) -> tuple[int, int, int]:
    """Identity of a local entry."""
    return entry.st_ino, entry.st_size, entry.st_mtime_ns


def now_ms() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


def content_of(actions: Iterable[Action]) -> bytes:
    """An entry.

    Unescaped: a text that is none in UTF-8 (a broken file name) is refused here. As an escape it would end in the log, which no
    reader could read from then on.
    """
    return "".join(json.dumps(action, ensure_ascii=False, separators=(",", ":")) + "\n" for action in actions).encode()


def linked(uri: str, version: int, content: bytes, require: Callable[[], None]) -> tuple[int, int, int]:
    """Make a text a version's entry, whole or not at all: a hard link fails if the name is there.

    `require`: raises if the entry must not be made. Asked once the file to be linked is there: whoever deletes the table from
    then on deletes it, too, and the link fails.

    A crash may leave the file that is linked: readers skip its name, and maintenance deletes it.
    """
    entry = Path(uri, path_of(version))
    written = entry.with_name(f"{UNFINISHED}{uuid.uuid4().hex}.json.tmp")
    try:
        with written.open("xb") as file:
            file.write(content)
            file.flush()
            identity = identity_of(os.fstat(file.fileno()))
        require()
        os.link(written, entry)
    except FileExistsError as error:
        raise CommitFailedError(f"version {version} of {uri} already exists") from error
    finally:
        written.unlink(missing_ok=True)
    return identity


def newest_checkpoint(names: Iterable[str], version: int) -> tuple[int, list[str]]:
    """Version and files of the newest complete checkpoint up to a version; -1 and none: there is none."""
    files: dict[tuple[int, int], list[str]] = defaultdict(list)
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match is not None and int(match[1]) <= version:
            files[int(match[1]), int(match[3] or 1)].append(name)
    complete = {of: names for (of, parts), names in files.items() if len(names) >= parts}
    newest = max(complete, default=-1)
    return newest, complete.get(newest, [])


@dataclass(frozen=True)
class Asked:
    """What the features of a table ask of each entry.

    Attributes:
        times: a time that is later than that of the entry before.
        ids: numbers for the rows of each added file.
        id_columns: columns of files, beside those of the table, in which rewritten rows keep their number and the version that
            they came with; None: these need not be kept.
        clustered: statistics of the columns by which the table is clustered.
    """

    times: bool
    ids: bool
    id_columns: tuple[str, str] | None
    clustered: bool


def asked_of(handle: DeltaTable, more: Collection[str] = (), more_properties: Mapping[str, str] | None = None) -> Asked | None:
    """What is asked of entries that only this module writes; None: delta-rs can write all.

    `more`: features, and properties, that the table is about to get.
    """
    features = {*(handle.protocol().writer_features or ()), *more}
    if features.isdisjoint(FOLLOWED):
        return None
    properties = {**handle.metadata().configuration, **(more_properties or {})}
    ids = "rowTracking" in features and not _is_true(properties, "delta.rowTrackingSuspended")
    columns = [properties.get(f"{_ROW_TRACKING}.materialized{name}ColumnName") for name in ("RowId", "RowCommitVersion")]
    kept = ids and _is_true(properties, "delta.enableRowTracking") and all(columns)
    return Asked(
        "inCommitTimestamp" in features and _is_true(properties, "delta.enableInCommitTimestamps"),
        ids,
        (str(columns[0]), str(columns[1])) if kept else None,
        "clustering" in features,
    )


def _is_true(properties: Mapping[str, str], key: str) -> bool:
    return str(properties.get(key, "")).lower() == "true"


@dataclass
class LogState:
    """What no reader tells of a version.

    `domains`: name -> configuration. `files`: path of each file -> number of its first row, and the version that it came with;
    None: it has none. `adds`: path -> the whole action that added it, if that is wanted.
    """

    domains: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)
    adds: dict[str, Action] = field(default_factory=dict)

    @property
    def next_row(self) -> int:
        """The lowest number that no row has had."""
        return int(self.domains.get(_ROW_TRACKING, {}).get("rowIdHighWaterMark", -1)) + 1

    @property
    def clustering_columns(self) -> list[str]:
        """The columns, with a dot before a field."""
        columns = self.domains.get(_CLUSTERING, {}).get("clusteringColumns", [])
        return [".".join(column) if isinstance(column, list) else str(column) for column in columns]

    def add(self, action: Action) -> None:
        """Follow an action of the log."""
        if (domain := action.get("domainMetadata")) is not None:
            self.domains.pop(domain["domain"], None)
            if not domain.get("removed"):
                self.domains[domain["domain"]] = json.loads(domain["configuration"] or "{}")
        elif (file := action.get("add")) is not None:
            self.files[unquote(file["path"])] = file.get("baseRowId"), file.get("defaultRowCommitVersion")
            self.adds[unquote(file["path"])] = file
        elif (file := action.get("remove")) is not None:
            self.files.pop(unquote(file["path"]), None)
            self.adds.pop(unquote(file["path"]), None)


def read_state(uri: str, version: int, *, whole: bool = False) -> LogState:
    """The state of a version of a local table, from its newest checkpoint and the entries after it.

    `whole`: `adds` have all that the log says of a file.

    Raises:
        DataError: an entry is missing.
    """
    leaves = ["add"] if whole else [f"add.{name}" for name in ("path", "baseRowId", "defaultRowCommitVersion")]

    def read(begin: int, checkpoint: Sequence[Path]) -> LogState:
        state = LogState()
        for action in _checkpointed(checkpoint, leaves):
            state.add(action)
        for number in range(begin + 1, version + 1):
            for action in _in_entry(uri, number, (b'{"add"', b'{"remove"', _DOMAIN)):
                state.add(action)
        return state

    return _of_log(uri, version, read)


def read_domains(uri: str, version: int, wanted: Collection[str]) -> LogState:
    """As `read_state`, of these domains alone: mostly the newest entry has them, and no other is read."""

    def read(begin: int, checkpoint: Sequence[Path]) -> LogState:
        state = LogState()
        missing = set(wanted)
        number = version
        while missing and number > begin:
            for action in _in_entry(uri, number, (_DOMAIN,)):
                if action["domainMetadata"]["domain"] in missing:
                    missing.remove(action["domainMetadata"]["domain"])
                    state.add(action)
            number -= 1
        for action in _checkpointed(checkpoint, []) if missing else ():
            if action["domainMetadata"]["domain"] in missing:
                state.add(action)
        return state

    return _of_log(uri, version, read)


def _of_log(uri: str, version: int, read: Callable[[int, Sequence[Path]], LogState]) -> LogState:
    """What is read of the log from its newest checkpoint on: again, if others have made a newer one and shortened the log."""
    log = Path(uri, "_delta_log")
    lacking: FileNotFoundError | None = None
    for _ in range(LOG_ATTEMPTS):
        begin, checkpoint = newest_checkpoint((file.name for file in log.iterdir()), version)
        try:
            return read(begin, [log / name for name in checkpoint])
        except FileNotFoundError as error:
            lacking = error
    raise DataError(f"the log of {uri} lacks entries, and has no checkpoint from then on: {lacking}") from lacking


def _in_entry(uri: str, version: int, beginnings: tuple[bytes, ...]) -> Iterator[Action]:
    """The actions of an entry that begin so."""
    lines = Path(uri, path_of(version)).read_bytes().splitlines()
    return (json.loads(line) for line in lines if line.startswith(beginnings))


def _checkpointed(files: Iterable[Path], leaves: Sequence[str]) -> Iterator[Action]:
    """The domains of a checkpoint, and of its files these columns."""
    # Parquet's reader is slow to load, and not every process needs it.
    import pyarrow.parquet as pq  # noqa: PLC0415

    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(columns=[*leaves, "domainMetadata"]):
            for row in batch.to_pylist(maps_as_pydicts="strict"):
                if (row.get("add") or {}).get("path") is not None:
                    yield {"add": _as_in_entry(row["add"])}
                elif (row.get("domainMetadata") or {}).get("domain") is not None:
                    yield {"domainMetadata": row["domainMetadata"]}


def _as_in_entry(file: Action) -> Action:
    """The action of a file as an entry has it: with statistics as JSON, also where a checkpoint has them in columns alone."""
    action = {key: value for key, value in file.items() if value is not None and not key.endswith("_parsed")}
    if "stats" not in action and file.get("stats_parsed") is not None:
        action["stats"] = json.dumps(_plain(file["stats_parsed"]), ensure_ascii=False)
    return action


def _plain(value: object) -> object:
    """Statistics, or one of them, as JSON; None: Delta has no form for it that every reader takes."""
    if isinstance(value, dict):
        return {key: plain for key, item in value.items() if (plain := _plain(item)) is not None}
    if isinstance(value, datetime):
        utc = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return utc.isoformat(timespec="microseconds") + ("Z" if value.tzinfo is not None else "")
    if isinstance(value, date):
        return value.isoformat()
    is_known = isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    return value if is_known else None


def completed(uri: str, version: int, asked: Asked, actions: Iterable[Action]) -> list[Action]:
    """The actions of the entry after a version, its information first, with what the table's features ask.

    Raises:
        DataError: an added file lacks statistics of a column by which the table is clustered, or the log lacks entries.
    """
    complete = list(actions)
    info = complete[0]["commitInfo"]
    added = [action["add"] for action in complete if "add" in action]
    removed = [action["remove"] for action in complete if "remove" in action]
    if (asked.ids and (added or removed)) or (asked.clustered and added):
        # Only what is removed is looked for among all files.
        state = read_state(uri, version) if asked.ids and removed else read_domains(uri, version, _domains_of(asked))
        if asked.clustered:
            _require_statistics(uri, state.clustering_columns, added)
        if asked.ids:
            complete += _number_rows(state, version + 1, added, removed)
    if asked.ids:
        kept = not removed or (
            asked.id_columns is not None and all(_has_columns(uri, file, asked.id_columns) for file in added)
        )
        info["tags"] = {f"{_ROW_TRACKING}.preserved": str(kept).lower()}
    if asked.times:
        info[_TIME] = max(now_ms(), _time_of(uri, version) + 1)
    return complete


def _domains_of(asked: Asked) -> list[str]:
    return [name for name, is_asked in ((_ROW_TRACKING, asked.ids), (_CLUSTERING, asked.clustered)) if is_asked]


def _require_statistics(uri: str, columns: Collection[str], added: Sequence[Action]) -> None:
    for file in added:
        counts = json.loads(file["stats"]).get("nullCount", {})
        lacking = [column for column in columns if column not in counts]
        if lacking:
            raise DataError(
                f"table {uri} is clustered by {', '.join(lacking)}, of which new files have no statistics: they have them of "
                "the first 32 columns that are neither structs, lists nor maps. Nothing was written. To go on, name the "
                "columns in GAME_EVENTS_STATISTICS_COLUMNS, or cluster the table by others: "
                f"ALTER TABLE delta.`{uri}` CLUSTER BY (...) (docs/maintenance.md)"
            )


def _number_rows(state: LogState, version: int, added: Sequence[Action], removed: Sequence[Action]) -> list[Action]:
    """Number the rows of added files, repeat the numbers of removed ones; returns the new high-water mark, if it changed."""
    for file in removed:
        base, since = state.files.get(unquote(file["path"]), (None, None))
        if base is not None:
            file["baseRowId"] = base
        if since is not None:
            file["defaultRowCommitVersion"] = since
    following = state.next_row
    for file in added:
        file["baseRowId"] = following
        file["defaultRowCommitVersion"] = version
        following += int(json.loads(file["stats"])["numRecords"])
    if following == state.next_row:
        return []
    configuration = json.dumps({"rowIdHighWaterMark": following - 1})
    return [{"domainMetadata": {"domain": _ROW_TRACKING, "configuration": configuration, "removed": False}}]


def _has_columns(uri: str, file: Action, columns: Iterable[str]) -> bool:
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    return set(columns) <= set(pq.read_schema(Path(uri, file["path"])).names)


def _time_of(uri: str, version: int) -> int:
    """The time in a version's entry; 0: it has none."""
    with Path(uri, path_of(version)).open("rb") as entry:
        return int(json.loads(entry.readline()).get("commitInfo", {}).get(_TIME) or 0)


class OwnAlterer(TableAlterer):
    """Changes of a local table's columns and metadata, as entries that are written here, each after the one before.

    What delta-rs' own has, as far as this project uses it.
    """

    def __init__(self, uri: str, handle: DeltaTable, require: Callable[[], None]) -> None:
        """Begins after the version of a handle; `require`: raises if that version is gone."""
        metadata = handle.metadata()
        self._uri = uri
        self._asked = asked_of(handle)
        self._require = require
        self._version = handle.version()
        self._protocol = handle.protocol()
        self._schema: Action = json.loads(handle.schema().to_json())
        self._metadata: Action = {
            "id": str(metadata.id),
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "partitionColumns": metadata.partition_columns,
            "createdTime": metadata.created_time,
            "configuration": dict(metadata.configuration),
        }

    def metadata_action(self, properties: Mapping[str, str] | None = None) -> Action:
        """The table's metadata as an action, with further properties."""
        self._metadata["configuration"].update(properties or {})
        return {"metaData": self._metadata | {"schemaString": json.dumps(self._schema, separators=(",", ":"))}}

    def with_columns(self, schema: str) -> OwnAlterer:
        """The same with other columns, as JSON; nothing is written."""
        self._schema = json.loads(schema)
        return self

    def add_columns(self, fields: Field | Sequence[Field], *_: object, **__: object) -> None:
        """Add columns, nested fields and keys of metadata."""
        for new in [fields] if isinstance(fields, Field) else fields:
            _merge(self._schema["fields"], [json.loads(new.to_json())])
        self._write("ADD COLUMN")

    def set_column_metadata(self, column: str, metadata: Mapping[str, str], *_: object, **__: object) -> None:
        """Set keys of a column's metadata."""
        next(f for f in self._schema["fields"] if f["name"] == column)["metadata"].update(metadata)
        self._write("UPDATE COLUMN METADATA")

    def set_table_description(self, description: str, *_: object, **__: object) -> None:
        """Set the table's description."""
        self._metadata["description"] = description
        self._write("UPDATE TABLE METADATA")

    def set_table_properties(self, properties: Mapping[str, str], *_: object, **__: object) -> None:
        """Set properties; none that asks for a feature."""
        self._metadata["configuration"].update(properties)
        self._write("SET TBLPROPERTIES")

    def add_feature(self, feature: TableFeatures | list[TableFeatures], *_: object, **__: object) -> None:
        """Add a feature of readers and writers: that of times without a zone."""
        if feature != TableFeatures.TimestampWithoutTimezone:
            raise NotImplementedError(f"the feature {feature}")
        name = "timestampNtz"
        features = {
            "readerFeatures": sorted({*(self._protocol.reader_features or ()), name}),
            "writerFeatures": sorted({*(self._protocol.writer_features or ()), name}),
        }
        self._write("ADD FEATURE", {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})

    def _write(self, operation: str, *actions: Action) -> None:
        info = {"timestamp": now_ms(), "operation": operation, "operationParameters": {}, "engineInfo": "game_events"}
        entry = [{"commitInfo": info}, *(actions or (self.metadata_action(),))]
        complete = completed(self._uri, self._version, self._asked, entry) if self._asked is not None else entry
        linked(self._uri, self._version + 1, content_of(complete), self._require)
        self._version += 1
        self._require = _nothing


def _nothing() -> None:
    """What the second entry of an `OwnAlterer` requires: the first one has just been made."""


def _merge(held: list[Action], new: Iterable[Action]) -> None:
    """Add fields to those of a struct, and what they have more than one of its fields."""
    by_name = {one["name"]: one for one in held}
    for one in new:
        have = by_name.get(one["name"])
        if have is None:
            held.append(one)
        else:
            have["metadata"].update(one["metadata"])
            _merge_types(have["type"], one["type"])


def _merge_types(held: Action | str, new: Action | str) -> None:
    if isinstance(held, str) or isinstance(new, str):
        return
    if held["type"] == "struct":
        _merge(held["fields"], new["fields"])
    for name in ("elementType", "keyType", "valueType"):
        if name in held:
            _merge_types(held[name], new[name])
