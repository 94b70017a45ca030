"""What a table says of itself: features, constraints, retention, the version of its format, sizes.

Features and constraints of rows are added by somebody else's ALTER TABLE. What they ask is followed (`entries`), and new rows
are checked before their commit (`data/constraints.py`), where that is possible. A table that asks for more is refused before
anything is written for it: readers rely on it, and would lose rows, or fail.

Older versions stay for running readers and time travel. *Kept* tables (bronze, silver, quarantine, logs) hold rows that are
nowhere else: only compaction removes files. *Derived* tables (gold, the unified table, `progress`) are replaced by every
refresh, so their older versions are deleted sooner.

Source: Delta Lake protocol, "Table Features", "Requirements for Writers", "Column Invariants", "CHECK Constraints", "Generated
Columns", "Identity Columns", "Append-only Tables", "Schema Serialization Format".
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, PostCommitHookProperties

from game_events.config.names import FIXED, FORMER_OWN, OWN, PROGRESS
from game_events.errors import ConfigurationError, DataError, UnreadableTableError
from game_events.lakehouse.entries import FOLLOWED
from game_events.lakehouse.open_table import of_columns

#: Command that reads everything that the source still has.
REBUILD = "`game-events run --full-refresh bronze` with GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH=true"

#: Features that readers of single files would get wrong.
_UNREADABLE = frozenset({"deletionVectors", "columnMapping"})

#: Features that delta-rs can write, too. Those with rows to check ask nothing without a constraint, an invariant or a generated
#: column, which are looked for.
WRITABLE_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "generatedColumns",
        "invariants",
        "timestampNanos",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)

#: Versions of the protocol for writers: the last one that asks for these features alone, and the one that lists features.
_LAST_PLAIN, _LISTED = 5, 7

#: Name of what an unlisted version asks for.
_IDENTITY = "identityColumns"
_MAPPING = "delta.columnMapping.mode"
_CONSTRAINT = "delta.constraints."
_APPEND_ONLY = "delta.appendOnly"

#: Beginning of a key in a column's metadata -> what it makes of the column.
_MARKS = {
    "delta.generationExpression": "is a generated column",
    "delta.identity.": "is an identity column",
    "delta.typeChanges": "was given a wider type",
    "CURRENT_DEFAULT": "has a default value",
}
_INVARIANT = "delta.invariants"

#: What a column is -> what takes it back, after the column's name.
_UNDO = {"CURRENT_DEFAULT": "DROP DEFAULT"}

_NOT_NULL = ('"nullable":false', '"containsNull":false', '"valueContainsNull":false')


class Unsupported(NamedTuple):
    """One thing that a table asks for.

    `what`: in words. `undo`: what follows `ALTER TABLE ...` to take it back; empty: no such statement does.
    """

    what: str
    undo: str = ""


def refuse_unreadable(handle: DeltaTable, uri: str, key: str) -> None:
    """Raise DataError for a table with a feature without which its files cannot be read rightly."""
    items = of_columns(handle, _unreadable)
    if items:
        names = ", ".join(item.what for item in items)
        raise UnreadableTableError(f"table {uri} uses {names}, which this version does not read. {_way_out(items, uri, key)}")


def refuse_unwritable(handle: DeltaTable, uri: str, key: str, *, partitioned: bool, replaced: bool) -> None:
    """Raise DataError for a table to which rows of this project cannot be committed.

    `partitioned`: the table may have any partition columns: it is replaced if it has others than it should. `replaced`: files
    of the table are replaced by others with other rows.
    """
    items = [*of_columns(handle, _unwritable)]
    metadata = handle.metadata()
    if metadata.partition_columns and not partitioned:
        items.append(Unsupported(f"it is partitioned by {', '.join(metadata.partition_columns)}"))
    # Compaction removes no rows.
    if replaced and str(metadata.configuration.get(_APPEND_ONLY, "")).lower() == "true":
        items.append(Unsupported(f"{_APPEND_ONLY} forbids to replace rows", f"UNSET TBLPROPERTIES ('{_APPEND_ONLY}')"))
    if items:
        names = ", ".join(item.what for item in items)
        raise DataError(
            f"table {uri} was altered: {names}. Commits of game_events would break that, so nothing is written to the "
            f"table. {_way_out(items, uri, key)}"
        )


def is_made_again(key: str) -> bool:
    """Whether the next run makes a table again, by its key, from other tables if it is deleted."""
    return is_derived(key) or key.startswith("silver_")


def _way_out(items: Sequence[Unsupported], uri: str, key: str) -> str:
    undo = "; ".join(f"ALTER TABLE delta.`{uri}` {item.undo}" for item in items if item.undo)
    ways = [f"take it back by {undo}"] if undo else []
    if is_made_again(key):
        ways.append("delete the table: the next run makes it again")
    elif key.startswith(("bronze_", "quarantine_")):
        ways.append(f"delete the table and run {REBUILD}")
    return f"To go on, {', or '.join(ways or ['write the table again without it'])} (docs/maintenance.md)"


def _unreadable(handle: DeltaTable) -> tuple[Unsupported, ...]:
    protocol = handle.protocol()
    names = _UNREADABLE & set(protocol.reader_features or [])
    # Before features had names, readers of version 2 were those that know this one.
    if protocol.min_reader_version == 2 and handle.metadata().configuration.get(_MAPPING, "none") != "none":
        names |= {"columnMapping"}
    return tuple(Unsupported(name, f"DROP FEATURE {name}") for name in sorted(names))


def _unwritable(handle: DeltaTable) -> tuple[Unsupported, ...]:
    schema = handle.schema().to_json()
    # Values, in nested columns too, that a writer would have to check or to make.
    has_checked = any(text in schema for text in (*_NOT_NULL, *(f'"{mark}' for mark in (_INVARIANT, *_MARKS))))
    return (*_features(handle), *(_of_type(json.loads(schema), "") if has_checked else ()))


def _features(handle: DeltaTable) -> Iterator[Unsupported]:
    """Features that only others can write."""
    protocol = handle.protocol()
    listed = protocol.writer_features or ([] if protocol.min_writer_version <= _LAST_PLAIN else [_IDENTITY])
    if protocol.min_writer_version > _LISTED:
        yield Unsupported(f"version {protocol.min_writer_version} of Delta's protocol for writers")
    is_local = handle.table_uri.startswith("file:")
    known = WRITABLE_FEATURES | FOLLOWED if is_local else WRITABLE_FEATURES
    # Others depend on this one: it can only be dropped after them.
    for name in sorted(listed, key=lambda name: name == "domainMetadata"):
        if name not in known:
            first = f"CLUSTER BY NONE, then DROP FEATURE {name}" if name == "clustering" else f"DROP FEATURE {name}"
            where = " in an object store" if name in FOLLOWED else ""
            yield Unsupported(f"the table feature {name}{where}", first)
    if {"rowTracking", "v2Checkpoint"} <= set(listed) and is_local:
        yield Unsupported("the table features rowTracking and v2Checkpoint together", "DROP FEATURE rowTracking")


def _of_type(kind: Mapping[str, Any] | str, path: str) -> Iterator[Unsupported]:
    """Of a type, and what is in it, what is not checked; `path`: of the column that has it."""
    if isinstance(kind, str):
        return
    for name, child, nullable, metadata in _children(kind):
        inner = f"{path}.{name}" if path else name
        if not nullable and (path or not isinstance(child, str)):
            yield Unsupported(f"column {inner} is NOT NULL", f"ALTER COLUMN {inner} DROP NOT NULL")
        if path and _INVARIANT in metadata:
            yield Unsupported(f"column {inner} has an invariant")
        for mark, what in _MARKS.items():
            if any(key.startswith(mark) for key in metadata):
                yield Unsupported(f"column {inner} {what}", f"ALTER COLUMN {inner} {_UNDO[mark]}" if mark in _UNDO else "")
        yield from _of_type(child, inner)


@dataclass(frozen=True)
class Constraints:
    """What every row of a table has to fulfil.

    `not_null`: columns. `checks`: name -> condition, as SQL of Spark; of an invariant the column names it.
    """

    not_null: tuple[str, ...]
    checks: tuple[tuple[str, str], ...]


def constraints_of(handle: DeltaTable) -> Constraints | None:
    """The constraints of a table; None: it has none."""
    properties = handle.metadata().configuration.items()
    checks = {key.removeprefix(_CONSTRAINT): str(sql) for key, sql in properties if key.startswith(_CONSTRAINT)}
    schema = handle.schema()
    for column in schema.fields:
        text = column.metadata.get(_INVARIANT)
        if text is not None:
            checks[f"invariant of {column.name}"] = json.loads(text)["expression"]["expression"]
    not_null = tuple(column.name for column in schema.fields if not column.nullable)
    return Constraints(not_null, tuple(sorted(checks.items()))) if checks or not_null else None


def _children(kind: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool, Mapping[str, Any]]]:
    """Name, type, whether it may be NULL, and metadata of what a nested type has."""
    match kind["type"]:
        case "struct":
            for field in kind["fields"]:
                yield field["name"], field["type"], field["nullable"], field["metadata"]
        case "array":
            yield "element", kind["elementType"], kind["containsNull"], {}
        case "map":
            yield "key", kind["keyType"], True, {}
            yield "value", kind["valueType"], kind["valueContainsNull"], {}


#: Files that no version names are left alone so long by other programs' VACUUM, and Spark goes back so far in time: Delta's own
#: time for entries of the log. Checkpoints are not longer for it, as the project's removals have no time.
UNTOUCHED_S = 30 * 86_400

#: Commits between two checkpoints. Each commit since the last one costs whoever opens the table 0.3 ms (in an object store a
#: request), a checkpoint of a small table costs its writer 25 ms; a run opens each table with news several times.
CHECKPOINT_COMMITS = 10

#: The same for commits by a handle that is kept from commit to commit: they do not open the table.
KEPT_CHECKPOINT_COMMITS = 30

#: Of every commit: delta-rs would delete expired entries of the log by itself, and with them the checkpoint that versions
#: within the retention need; a handle reads its checkpoint only when it is asked for progress, and would fail then.
KEEP_LOG = PostCommitHookProperties(cleanup_expired_logs=False)

#: Number of columns, nested ones counted, whose statistics readers look at, and writers of other engines make: Delta's default.
INDEXED, INDEXED_COLUMNS = "delta.dataSkippingNumIndexedCols", 32

#: The only columns with statistics, where somebody else has set it.
STATISTICS_OF = "delta.dataSkippingStatsColumns"

#: Properties of the tables that this project makes.
PROPERTIES = frozenset(
    {
        "delta.checkpointInterval",
        INDEXED,
        "delta.deletedFileRetentionDuration",
        "delta.enableExpiredLogCleanup",
        "delta.logRetentionDuration",
    }
)


def is_derived(key: str) -> bool:
    """Whether a table, by its key, is derived from others and replaced as a whole."""
    return key.startswith("gold_") or key == PROGRESS


@dataclass(frozen=True)
class Retention:
    """Hours that older versions can be read, with their files and log entries (`commits.versions`).

    A log entry costs each opening of the table 2 microseconds: 2 hours of a commit a second are 15 ms.

    Attributes:
        every_h: every version; before that one an hour, and after a day one a day.
        kept_h, derived_h: those, of kept and of derived tables.
    """

    every_h: float = 2.0
    kept_h: float = 168.0
    derived_h: float = 24.0

    @property
    def every_s(self) -> float:
        """Seconds that every version can be read."""
        return 3600 * self.every_h

    def seconds(self, table: str) -> float:
        """Seconds that any older version of a table, by its key, can be read."""
        return 3600 * (self.derived_h if is_derived(table) else self.kept_h)

    def properties(self, table: str) -> Mapping[str, str]:
        """Delta's table properties with these times, which other writers of checkpoints, and VACUUM, follow."""
        every_s = max(1, round(self.every_s))
        untouched_s = round(max(UNTOUCHED_S, 2 * self.seconds(table)))
        return {
            "delta.checkpointInterval": str(CHECKPOINT_COMMITS),
            # As `KEEP_LOG`, for other writers: a restore by delta-rs would delete what its undo needs.
            "delta.enableExpiredLogCleanup": "false",
            "delta.logRetentionDuration": f"interval {every_s} seconds",
            "delta.deletedFileRetentionDuration": f"interval {untouched_s} seconds",
        }

    def apply(self, table: str, handle: DeltaTable, more: Mapping[str, str] = MappingProxyType({})) -> bool:
        """Set these properties, and more, in a separate commit, if the table has others; whether it had."""
        wanted = {**self.properties(table), **more}
        held = handle.metadata().configuration
        if all(held.get(key) == value for key, value in wanted.items()):
            return False
        handle.alter.set_table_properties(wanted, post_commithook_properties=KEEP_LOG)
        return True


def indexed_up_to(schema: pa.Schema, columns: Collection[str], held: str | None = None) -> dict[str, str]:
    """The property with which statistics of these columns are looked at, too; nothing if the one that is held will do."""
    ends = np.cumsum([sum(1 for _ in _leaves(field.type)) for field in schema]).tolist()
    last = max((end for field, end in zip(schema, ends, strict=True) if field.name in columns), default=0)
    now = int(held) if held is not None and held.lstrip("-").isdigit() else INDEXED_COLUMNS
    return {} if now < 0 or last <= now else {INDEXED: str(last)}


def _leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    if not pa.types.is_struct(kind):
        yield kind
        return
    for part in kind:
        yield from _leaves(part.type)


#: Version of the tables' own format, in the metadata of a table's first column, as delta-rs takes no table properties but
#: Delta's own. Increased when tables are written in a way that other code would misread; the second one is that of partitioned
#: tables. The first release begins with 3: game_events 0.1, which was never released and knows other transaction ids, wrote 1
#: and 2, and refuses what is higher.
FORMAT, PARTITIONED = 3, 4
KEY = "game_events.format"


def marked(schema: pa.Schema, *, partitioned: bool = False) -> pa.Schema:
    """A schema with the format in its metadata."""
    first = schema.field(0)
    return schema.set(0, first.with_metadata((first.metadata or {}) | {KEY: str(PARTITIONED if partitioned else FORMAT)}))


def unmarked(schema: pa.Schema) -> pa.Schema:
    """A schema without the format: columns of another table, which may have another one."""
    fields = [f.with_metadata({k: v for k, v in (f.metadata or {}).items() if k != KEY.encode()}) for f in schema]
    return pa.schema(fields, schema.metadata)


def format_of(handle: DeltaTable) -> int:
    """A table's format; 0: it has none, as another program has made it, or replaced it."""
    fields = handle.schema().fields
    return int(fields[0].metadata.get(KEY, 0)) if fields else 0


#: Transaction ids of game_events 0.1, or their first parts -> today's (`Txn`).
FORMER_IDS = {
    "generation": "incarnation",
    "slices": "micro_batches",
    "reset": "full_refresh",
    "silver_decided": "decided_batch",
    "silver_generation": "decided_incarnation",
    "quarantined": "records_quarantined",
    "next": "next_file",
    "run": "export_run",
}

FORMER = (
    'this lakehouse was written by game_events 0.1: run "game-events migrate" (shows what it would do), then '
    '"game-events migrate --apply"'
)


def is_former(handle: DeltaTable, key: str) -> bool:
    """Whether a table, with its key, has the transaction ids of game_events 0.1.

    Of tables that are not this pipeline's (an archive, the bronze that is its source) those that have any of them; of its own
    tables without a format, too, as another program may have replaced one.
    """
    version = format_of(handle)
    known = key in (*OWN, *FIXED, *FORMER_OWN) or key.startswith(("silver_", "gold_"))
    if version >= FORMAT or not (version or known):
        return False
    if version and known:
        return True
    pairs = FORMER_IDS.items()
    return any(handle.transaction_version(old) is not None and handle.transaction_version(new) is None for old, new in pairs)


def refuse_other_format(handle: DeltaTable, key: str) -> None:
    """Raise ConfigurationError for a table whose format is newer than this code or older, which would misread it."""
    version = format_of(handle)
    if is_former(handle, key):
        raise ConfigurationError(f"{FORMER}; table {handle.table_uri}")
    if version > PARTITIONED:
        raise ConfigurationError(
            f"table {handle.table_uri} has format {version}, this version of game_events reads formats up to {PARTITIONED}: "
            "update game_events, or use the lakehouse of this version"
        )


@dataclass(frozen=True)
class Sizes:
    """The sizes of one lakehouse's tables, in the driver and in Spark's workers. No settings: the defaults were measured.

    With tiny ones a few rows go the ways of millions (`game_events_tests/scenarios/fuzz`).

    Attributes:
        read_rows: rows that are read at a time, and rows of bronze that the driver counts by itself.
        read_whole_bytes: size of a file up to which it is read as a whole.
        row_group_rows: rows of a row group: columnar enough for readers, small enough that some hundred open writers fit in
            memory.
        sent_rows: rows that a worker sends to Spark together: each batch costs Spark more than some hundred rows.
        sorted_rows: rows that a worker sorts by game at a time: so many that a game's part is more than a handful of rows.
        day_rows: rows for which a day gets a file of its own as they are written (`data/layout.py`).
    """

    read_rows: int = 1_048_576
    read_whole_bytes: int = 1024 * 1024
    row_group_rows: int = 131_072
    sent_rows: int = 10_000
    sorted_rows: int = 262_144
    day_rows: int = 5_000
