"""Schema evolution: adding columns and nested fields to a table, merging its column map, and comparing column types.

The column map is in the columns' metadata; two runs may add columns to it at the same time.

And the outcome of a commit that raised, by the unique mark in its information. Its files are no proof: a concurrent commit may
have removed them again, and some commits have none.
"""

import json
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema, TableFeatures
from deltalake.exceptions import CommitFailedError, DeltaError

from game_events.decoding.columns import METADATA_KEY, level_of, type_name
from game_events.errors import ConflictError, DataError, GameEventsError, folded
from game_events.lakehouse import failpoints
from game_events.lakehouse.data.columns import DESCRIBING, metadata_of
from game_events.lakehouse.open_table import COMMIT_ID, OpenTable
from game_events.lakehouse.table_properties import KEEP_LOG
from game_events.lakehouse.tables import AnyTable, Table, table_id

#: Attempts to evolve a schema that concurrent writers evolve, too.
EVOLVE_ATTEMPTS = 5


def evolve(table: Table, handle: AnyTable, wanted: pa.Schema, *, merges_column_map: bool = False) -> AnyTable | OpenTable:
    """Add missing columns and nested fields in a separate commit; types never change.

    `create_write_transaction` with new columns would fail silently.

    `merges_column_map`: merge the column map with what concurrent writers have added to it. Returns the version that has the
    columns.

    Raises:
        ConflictError: concurrent writers keep changing the schema, or gave one of these fields another column.
        DataError: a column of the table has another type, or a name that differs by case alone; or delta-rs refuses to change
            its columns.
    """
    now: AnyTable | OpenTable = handle
    for _ in range(EVOLVE_ATTEMPTS):
        other = changed_types(now, wanted)
        if other and merges_column_map:
            raise ConflictError(f"{table.name}: a concurrent run has added columns of other types: {'; '.join(other)}")
        if other:
            raise DataError(
                f"{table.name}: the table's types are others than those of the new rows: {'; '.join(other)}. Give the columns "
                "other names, or refresh this table fully: that gives it the new types"
            )
        _refuse_other_case(table.name, (f.name for f in now.schema().fields), wanted.names, concurrent=merges_column_map)
        new, metadata = _differences(table, now, wanted, merges_column_map=merges_column_map)
        if not new and not metadata:
            return now
        now = _altered(table, now, new, metadata)
    raise ConflictError(f"{table.name}: its schema keeps changing: concurrent writers changed it {EVOLVE_ATTEMPTS} times")


def _altered(table: Table, handle: DeltaTable, new: list[Field], metadata: Mapping[str, dict[str, str]]) -> OpenTable:
    """The newest version, after columns and metadata were set; or after a concurrent writer was first: compare again."""
    table.require_writable()
    refused: CommitFailedError | None = None
    alter = handle.alter
    try:
        if new:
            alter.add_columns(new, post_commithook_properties=KEEP_LOG)
            failpoints.reach("columns_added", table.name)
        for column, values in metadata.items():
            alter.set_column_metadata(column, values, post_commithook_properties=KEEP_LOG)
    except CommitFailedError as error:
        refused = error
    reopened = table.open()
    if reopened is None:
        raise ConflictError(f"{table.name} was removed while its schema evolved")
    if refused is not None and not is_refusal(refused, handle, reopened):
        raise DataError(f"{table.name}: its columns cannot be changed: {refused}") from refused
    return reopened


def with_features(table: Table, handle: AnyTable, wanted: pa.Schema) -> AnyTable | OpenTable:
    """Give a table that gets its first times without a zone Delta's feature for them, in a separate commit.

    Delta-rs does so for an added column, but neither for one of maps nor for the columns of a replaced table: no reader would
    open it again. Returns a handle on the version that has the feature.
    """
    if not any(_is_without_zone(f.type) for f in wanted) or "timestampNtz" in (handle.protocol().writer_features or ()):
        return handle
    table.require_writable()
    feature = TableFeatures.TimestampWithoutTimezone
    handle.alter.add_feature(feature, allow_protocol_versions_increase=True, post_commithook_properties=KEEP_LOG)
    reopened = table.open()
    if reopened is None:
        raise ConflictError(f"{table.name} was removed while it was changed")
    return reopened


def _is_without_zone(kind: pa.DataType) -> bool:
    """Whether a type is a time without a zone, or holds one."""
    if pa.types.is_timestamp(kind):
        return kind.tz is None
    return any(map(_is_without_zone, _nested(kind)[1].values()))


def _differences(
    table: Table, handle: DeltaTable, wanted: pa.Schema, *, merges_column_map: bool
) -> tuple[list[Field], dict[str, dict[str, str]]]:
    """Columns to add (also for new nested fields), and column -> metadata to set; descriptions are none of it."""
    held = {f.name: f for f in handle.schema().fields}
    types = {f.name: f.type for f in pa.schema(handle.schema())}
    left_out = set(DESCRIBING)
    shares: dict[str, str] = {}
    if merges_column_map:
        left_out.add(METADATA_KEY)
        shares = _merged_shares(table.name, held.values(), map(Field.from_arrow, wanted))
    new: list[Field] = []
    metadata: dict[str, dict[str, str]] = {}
    for item in wanted:
        have = held.get(item.name)
        if have is None:
            new.append(Field.from_arrow(item))
            continue
        if _adds(types[item.name], item.type):
            new.append(Field(item.name, Field.from_arrow(item).type, nullable=True, metadata=have.metadata))
        wants = _without(metadata_of(item), left_out)
        if item.name in shares:
            wants[METADATA_KEY] = shares[item.name]
        if not wants.items() <= have.metadata.items():
            metadata[item.name] = wants
    return new, metadata


def _without(metadata: Mapping[str, str], left_out: Collection[str]) -> dict[str, str]:
    return {key: value for key, value in metadata.items() if key not in left_out}


def _merged_shares(table: str, held: Iterable[Field], wanted: Iterable[Field]) -> dict[str, str]:
    """Add a plan's share of the column map to the table's; fields that concurrent writers have added are kept.

    Returns:
        column -> share, for columns with a changed share.

    Raises:
        ConflictError: a concurrent writer gave a field another column, or its column to another field of the same message: the
            files have it in the wrong place; plan again.
    """
    shares = {field.name: _share(field) for field in held}
    places = {key: (column, name) for column, share in shares.items() for key, name in share.items()}
    owners: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for key, (column, name) in places.items():
        owners[column, name, *level_of(key)].append(key)
    changed: dict[str, str] = {}
    for field in wanted:
        column = field.name
        ours = _share(field)
        _refuse_other_places(table, column, ours, places, owners)
        before = shares.get(column, {})
        merged = before | ours
        if merged != before:
            changed[column] = json.dumps(dict(sorted(merged.items())), separators=(",", ":"))
    return changed


def _refuse_other_places(
    table: str,
    column: str,
    ours: Mapping[str, str],
    places: Mapping[str, tuple[str, str]],
    owners: Mapping[tuple[str, ...], list[str]],
) -> None:
    """Refuse a plan's share of a column if the table has its fields at other places, or other fields at its places.

    `places`: field -> column and name in it, in the table. `owners`: the same by place.

    Raises:
        ConflictError: as `_merged_shares`.
    """
    for key, name in ours.items():
        place = places.get(key)
        if place is None:
            # Fields that share a column on purpose (a key with a new kind or number) are all in the plan's own share.
            others = [other for other in owners.get((column, name, *level_of(key)), ()) if other not in ours]
            if others:
                raise ConflictError(f"{table}: a concurrent run gave {column} to the field {others[0]}, not to {key}")
        elif place != (column, name):
            raise ConflictError(f"{table}: a concurrent run gave the field {key} the column {place[0]}, not {column}")


def _refuse_other_case(table: str, held: Iterable[str], wanted: Iterable[str], *, concurrent: bool) -> None:
    """Refuse new columns with names that differ from a table's by case alone: Delta and Spark compare names without case.

    `concurrent`: a concurrent writer may have added the other name: rows that are planned again find it.

    Raises:
        ConflictError: names differ by case alone.
        DataError: the same, where planning again changes nothing.
    """
    names = {folded(name): name for name in held}
    other = ", ".join(f"{name} is {names[folded(name)]} there" for name in wanted if names.get(folded(name), name) != name)
    if other and concurrent:
        raise ConflictError(f"{table}: a concurrent run has added columns with names that differ by case alone: {other}")
    if other:
        raise DataError(
            f"{table}: names of new columns differ from those of the table by case alone: {other}. Refresh this table fully: "
            "that gives it the new names"
        )


def _share(field: Field) -> dict[str, str]:
    return dict(json.loads(str(field.metadata.get(METADATA_KEY, "{}"))))


def changed_types(handle: DeltaTable, wanted: pa.Schema) -> list[str]:
    """Descriptions of the columns with another type in a table than wanted; missing columns and fields are fine."""
    held = {f.name: f.type for f in pa.schema(handle.schema())}
    others = pa.schema([f for f in wanted if f.name in held and held[f.name] != f.type])
    return [
        f"{f.name} is {type_name(held[f.name])} in the table and {type_name(f.type)} in the rows"
        for f in (_as_delta(others) if others.names else ())
        if _differ(held[f.name], f.type)
    ]


def same_columns(handle: DeltaTable, wanted: pa.Schema) -> bool:
    """Whether a table has exactly these columns, with these types."""
    held = pa.schema(handle.schema())
    new = _as_delta(wanted)
    if set(held.names) != set(new.names) or changed_types(handle, wanted):
        return False
    return not any(_adds(f.type, held.field(f.name).type) or _adds(held.field(f.name).type, f.type) for f in new)


def _as_delta(schema: pa.Schema) -> pa.Schema:
    """A schema converted to Delta's types and back: they have one form of text, list and so on."""
    return pa.schema(Schema.from_arrow(schema))


def _adds(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether the new type has nested fields that the old one lacks."""
    (kind, have), (other, wanted) = _nested(old), _nested(new)
    return kind == other and any(name not in have or _adds(have[name], item) for name, item in wanted.items())


def _differ(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether two types differ in more than the fields of structs."""
    (kind, have), (other, wanted) = _nested(old), _nested(new)
    if kind != other or not kind:
        return bool(old != new)
    return any(name in have and _differ(have[name], item) for name, item in wanted.items())


def _nested(item: pa.DataType) -> tuple[str, dict[str, pa.DataType]]:
    """Kind of a nested type and the types in it, by name; no kind for any other type."""
    if pa.types.is_struct(item):
        return "struct", {f.name: f.type for f in item}
    if pa.types.is_map(item):
        return "map", {"key": item.key_type, "value": item.item_type}
    if pa.types.is_list(item) or pa.types.is_large_list(item):
        return "list", {"element": item.value_type}
    return "", {}


class CommitOutcome(StrEnum):
    """The outcomes. After `OVERTAKEN` the same plan may be compared with the newer version."""

    LANDED = "landed"
    OVERTAKEN = "overtaken"
    FAILED = "failed"
    UNKNOWN = "unknown"


def new_mark() -> str:
    """A mark that no other commit has."""
    return uuid.uuid4().hex


def is_refusal(error: Exception, before: DeltaTable | None, now: DeltaTable | None) -> bool:
    """Whether a commit was refused because another one has taken its version: the log has one that it had not before.

    `before`: the version that the commit follows; None: it was to create the table. `now`: the newest version.
    """
    if not _is_answer(error):
        return False
    if before is None or now is None:
        return True
    if (table_id(before), before.version()) != (table_id(now), now.version()):
        return True
    # The log entry of a local table has an identity, too: a copy of the folder may have been put in its place.
    entries = {handle.entry for handle in (before, now) if isinstance(handle, OpenTable) and handle.store is None}
    return len(entries - {None}) > 1


def outcome_of(
    table: Table, before: DeltaTable | None, mark: str, error: Exception, *, sent: bool
) -> tuple[CommitOutcome, str]:
    """Determine the outcome of a commit.

    Returns the outcome, and why it is unknown if it is. `before`: the version it follows; None: it was to create the table.
    `sent`: whether the commit was handed to the storage.
    """
    if not sent and not _is_answer(error):
        return CommitOutcome.FAILED, ""
    try:
        now = table.open_to_read()
        if sent and _holds(now, before, mark):
            return CommitOutcome.LANDED, ""
        if is_refusal(error, before, now):
            return CommitOutcome.OVERTAKEN, ""
    except (GameEventsError, DeltaError, OSError) as second:
        return (CommitOutcome.UNKNOWN if sent else CommitOutcome.FAILED), str(second)
    if sent and _is_pending(table, error):
        return CommitOutcome.UNKNOWN, "the storage may still carry it out"
    return CommitOutcome.FAILED, ""


def _is_pending(table: Table, error: Exception) -> bool:
    """Whether the storage may still carry out a request that it was sent.

    A local file exists, or not, when the call has returned. A request to an object store without an answer may still be
    carried out, unless the answer was that it is not.
    """
    return not (table.is_local or _is_answer(error))


def _is_answer(error: Exception) -> bool:
    """Whether delta-rs says that it has not made the commit, for whatever reason; else it may not know."""
    return isinstance(error, CommitFailedError) or "already exists" in str(error)


def _holds(now: DeltaTable | None, before: DeltaTable | None, mark: str) -> bool:
    """Whether one of the versions after `before` up to `now` has the mark; None: there is no table."""
    if now is None:
        return False
    versions = now.version() - (before.version() if before is not None else -1)
    return versions > 0 and any(entry.get(COMMIT_ID) == mark for entry in now.history(versions))
