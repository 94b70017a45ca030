"""Compare-and-set commits: data and progress in one Delta version, or nothing.

Progress stands in the table's application transactions (`txn`). A commit names the value each `txn` must have on the very
handle it commits with, so of two rivals whose ranges overlap in any way one lands and the other drops its files.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction, create_table_with_add_actions

from game_events.decoding.core.column_map import METADATA_KEY, type_name
from game_events.errors import ConfigurationError, ConflictError, DataError, GameEventsError, TransientError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.column_map_merge import merge_shares, refuse_other_case
from game_events.lakehouse.commits.outcome import CommitOutcome, is_refusal, new_mark, outcome_of
from game_events.lakehouse.commits.restores import COMMIT_ID, restored_between
from game_events.lakehouse.data.staging import StagedFile, discard, unseen
from game_events.lakehouse.descriptions import DESCRIBING, comments_of, describe, described, undescribed
from game_events.lakehouse.format_version import marked
from game_events.lakehouse.retention import CHECKPOINT_COMMITS, REMOTE_CHECKPOINT_COMMITS, Retention
from game_events.lakehouse.storage.errors import storage_error
from game_events.lakehouse.tables import Table

#: Attempts to commit beside commits that touch neither our rows nor our progress: compaction, another property.
BESIDE_ATTEMPTS = 5
#: Attempts of a commit that removes files: every commit that lands in between, of whatever kind, makes it compare again (some
#: 20 ms on a local disk), and a loop commits to a table about twice a second.
REMOVING_ATTEMPTS = 50
#: Attempts to evolve a schema against rivals that evolve it too.
EVOLVE_ATTEMPTS = 5


@dataclass(frozen=True)
class Commit:
    """What shall become one version of a table.

    Attributes:
        table: the table; it is created if `expected` says that it does not exist.
        schema: columns of the files; missing ones are added to the table first.
        files: staged files to add.
        expected: `txn` -> value it must have now (None: never set).
        advance: `txn` -> value it has afterwards.
        table_id: id the table must have; None: the table must not exist.
        seen: the version that the plan was made from: it must not have been restored since, as a restore leaves every `txn`
            where it was. None: whatever a restore did, this commit is right.
        replace: remove every file of the handle's version: readers see the old rows or the new, nothing else.
        reshape: with `replace`: the table's columns become exactly those of `schema`, whatever they were before.
        rewritten: paths of files that the new ones stand for: they are removed.
        same_rows: with `rewritten`: the new files hold the same rows, so whoever streams the table need not look.
        owns_map: the table's metadata is where the column map lives (bronze): what rivals added to it stays.
        info: written into the commit's own information.
        description: what a new table says of itself.
        about: what a table that is there says of itself from now on; None: what it says already.
    """

    table: Table
    schema: pa.Schema
    files: Sequence[StagedFile]
    expected: Mapping[str, int | None]
    advance: Mapping[str, int]
    table_id: str | None
    seen: int | None = None
    replace: bool = False
    reshape: bool = False
    rewritten: frozenset[str] = frozenset()
    same_rows: bool = False
    owns_map: bool = False
    info: Mapping[str, str] = field(default_factory=dict)
    description: str | None = None
    about: str | None = None

    @property
    def removes(self) -> bool:
        """Whether files of the table go with it."""
        return self.replace or bool(self.rewritten)


#: Times a commit to bronze or quarantine is planned again after concurrent writers committed first.
CONFLICT_ATTEMPTS = 50


@dataclass(frozen=True)
class Landed:
    """A commit that is visible: what it added (rows, files, bytes), and the rows and bytes of the table with it.

    `comments` are those of the table's columns: a commit may well have come with older ones, which do not take their place.
    """

    table: str
    version: int
    table_id: str
    rows: int
    files: int
    table_rows: int
    table_bytes: int
    bytes: int = 0
    comments: Mapping[str, str] = field(default_factory=dict)


def commit(plan: Commit) -> Landed:
    """Make the files of a plan part of its table.

    Returns:
        what landed.

    Raises:
        ConflictError: a rival moved a `txn` (or made, removed, replaced the table) first. The plan's files are deleted.
        TransientError: it failed for another reason, and the files are deleted; or its outcome is not known (or it landed, and
            cannot be looked at): then they are kept, and the next run's compare-and-set decides.
        DataError: a column of the table has another type. The plan's files are deleted.
        ConfigurationError: Spark's workers wrote its files to a disk that this process does not see.
    """
    elsewhere = unseen(plan.table, plan.files)
    if elsewhere:
        raise ConfigurationError(
            f"{plan.table.uri}: {len(elsewhere)} of {len(plan.files)} files that Spark's workers have written are not there "
            f"({elsewhere[0]}): GAME_EVENTS_LAKEHOUSE has to be storage that all machines share (docs/cluster.md)"
        )
    attempts = REMOVING_ATTEMPTS if plan.removes else BESIDE_ATTEMPTS
    for number in range(attempts):
        attempt = _Attempt()
        try:
            attempt.handle = plan.table.open()
            _require(plan, attempt.handle)
            _write(plan, attempt)
            break
        except (ConflictError, DataError, ConfigurationError):  # of what was looked at: nothing was sent
            discard(plan.table, list(plan.files))
            raise
        except (CommitFailedError, DeltaError, OSError) as error:
            if _landed_all_the_same(plan, attempt, error, last=number == attempts - 1):
                break
    return _landed(plan)


@dataclass
class _Attempt:
    """One attempt: its mark, the version it was made for, and whether it was handed to the storage."""

    mark: str = field(default_factory=new_mark)
    handle: DeltaTable | None = None
    sent: bool = False


def _properties(table: Table) -> Mapping[str, str]:
    """Delta's own properties of a new table."""
    interval = CHECKPOINT_COMMITS if table.local_path is not None else REMOTE_CHECKPOINT_COMMITS
    own = {"delta.checkpointInterval": str(interval), "delta.dataSkippingNumIndexedCols": "32"}
    return own | dict(Retention().properties(table.key))


def _write(plan: Commit, attempt: _Attempt) -> None:
    handle = attempt.handle
    wanted = described(plan.table, plan.schema)
    properties = CommitProperties(
        # 0 retries: the commit becomes the next version after the one that was compared, or fails. With retries, the second of
        # two creators would become version 1; and a commit that removes files would land after a compaction (of ours or of
        # another engine) that has moved the same rows, as delta-rs 1.6.6 finds no conflict with commits of `dataChange=false`:
        # the table would have these rows twice.
        max_commit_retries=0 if handle is None or plan.removes else None,
        custom_metadata={**plan.info, COMMIT_ID: attempt.mark},
        app_transactions=[Transaction(app, to) for app, to in plan.advance.items()],
    )
    if handle is None:
        failpoints.reach("before_create", plan.table.name)
        attempt.sent = True
        create_table_with_add_actions(
            plan.table.uri,
            Schema.from_arrow(marked(wanted)),
            [f.add_action() for f in plan.files],
            mode="error",
            name=plan.table.name,
            description=plan.description,
            configuration=_properties(plan.table),
            storage_options=plan.table.options,
            commit_properties=properties,
        )
        return
    actions: list[AddAction | RemoveAction] = [f.add_action(same_rows=plan.same_rows) for f in plan.files]
    if plan.replace and plan.reshape and not same_columns(handle, plan.schema):
        # delta-rs removes the old files itself, and writes the schema, in this mode.
        schema = Schema.from_arrow(marked(wanted))
        attempt.sent = True
        handle.create_write_transaction(actions, "overwrite", schema, commit_properties=properties)
        return
    known = frozenset(f.name for f in handle.schema().fields)
    evolved = evolve(plan.table, handle, undescribed(wanted, known), owns_map=plan.owns_map)
    evolved = describe(plan.table, evolved, wanted, plan.about)
    if evolved is not handle:
        handle = evolved
        _require(plan, handle)
    if plan.removes:
        actions += removals(handle, None if plan.replace else plan.rewritten, same_rows=plan.same_rows)
    attempt.sent = True
    handle.create_write_transaction(actions, "append", handle.schema(), commit_properties=properties)


def _require(plan: Commit, handle: DeltaTable | None) -> None:
    """The comparison: everything the plan was made from still holds on this handle."""
    found = str(handle.metadata().id) if handle is not None else None
    if found != plan.table_id:
        raise ConflictError(f"{plan.table.name}: table is {found or 'absent'}, planned with {plan.table_id or 'none'}")
    for app, value in plan.expected.items():
        now = handle.transaction_version(app) if handle is not None else None
        if now != value:
            raise ConflictError(f"{plan.table.name}: a rival run moved {app} from {value} to {now}")
    if handle is not None and plan.seen is not None and restored_between(plan.table, plan.seen, handle.version()):
        raise ConflictError(f"{plan.table.name}: it was restored since version {plan.seen}, which was planned from")
    if handle is not None and plan.rewritten and not plan.rewritten <= set(paths(handle)):
        raise ConflictError(f"{plan.table.name}: files to be rewritten are gone: somebody else rewrote them first")


def _landed_all_the_same(plan: Commit, attempt: _Attempt, error: Exception, *, last: bool) -> bool:
    """Whether a commit landed although there was an error; False: somebody else's came first, so compare again.

    The next comparison tells whether it touched what is ours: compaction does not, nor does a changed property of the table.
    The files are deleted only if it is known that the commit failed for good.
    """
    outcome, doubt = outcome_of(plan.table, attempt.handle, attempt.mark, error, sent=attempt.sent)
    if outcome is CommitOutcome.LANDED:
        return True
    if outcome is CommitOutcome.UNKNOWN:
        raise TransientError(
            f"{plan.table.name}: outcome of the commit is unknown ({error}; {doubt}). Run again: the table's own progress "
            "decides whether it landed"
        ) from error
    if isinstance(error, CommitFailedError) and attempt.handle is not None and not last:
        return False
    discard(plan.table, list(plan.files))
    if attempt.sent and is_refusal(error):
        raise ConflictError(f"{plan.table.name}: a rival run committed first ({error})") from error
    raise storage_error(error, plan.table.uri) or TransientError(
        f"{plan.table.name}: commit failed, nothing is visible: {error}"
    ) from error


def _landed(plan: Commit) -> Landed:
    """The table as it is now.

    Raises:
        TransientError: it cannot be looked at. The commit stands, so whatever the cause is its files must stay.
    """
    try:
        handle = plan.table.open()
        if handle is None:
            raise DataError(f"the table is gone: who else deletes below {plan.table.uri}?")
        actions = pa.table(handle.get_add_actions())
        total, size = (int(pc.sum(actions.column(name)).as_py() or 0) for name in ("num_records", "size_bytes"))
        rows, added = sum(f.rows for f in plan.files), sum(f.size for f in plan.files)
        found = (plan.table.name, handle.version(), str(handle.metadata().id), rows, len(plan.files), total, size, added)
        return Landed(*found, comments_of(pa.schema(handle.schema())))
    except (GameEventsError, DeltaError, OSError) as error:
        raise TransientError(
            f"{plan.table.name}: the commit landed, but the table cannot be read since: {error}. Run again: its own progress "
            "says how far it is"
        ) from error


def paths(handle: DeltaTable) -> list[str]:
    """Paths of a version's files, below the table's folder."""
    return [str(path) for path in pa.table(handle.get_add_actions()).column("path").to_pylist()]


def removals(handle: DeltaTable, only: frozenset[str] | None = None, *, same_rows: bool = False) -> list[RemoveAction]:
    """Actions that remove every file of a version, or only some."""
    now = int(time.time() * 1000)
    return [RemoveAction(path, not same_rows, now) for path in paths(handle) if only is None or path in only]


def evolve(table: Table, handle: DeltaTable, wanted: pa.Schema, *, owns_map: bool = False) -> DeltaTable:
    """Add missing columns and nested fields, in a commit of its own, and assert that it worked.

    `create_write_transaction` with new columns would fail silently. Types never change.

    Raises:
        ConflictError: rivals keep changing the schema, or have given one of our fields another column.
        DataError: a column of the table has another type, or a name that differs by case alone.
    """
    for _ in range(EVOLVE_ATTEMPTS):
        other = changed_types(handle, wanted)
        if other:
            raise DataError(
                f"{table.name}: the table's types are others than those of the new rows: {'; '.join(other)}. Give the columns "
                "other names, or refresh this table fully: that gives it the new types"
            )
        new, metadata = _missing(handle, wanted)
        refuse_other_case(table.name, (f.name for f in handle.schema().fields), (f.name for f in new), rival=owns_map)
        if owns_map:
            metadata = _merged(table, handle, wanted, metadata)
        if not new and not metadata:
            return handle
        try:
            if new:
                handle.alter.add_columns(new)
                failpoints.reach("columns_added", table.name)
            for column, values in metadata.items():
                handle.alter.set_column_metadata(column, values)
        except CommitFailedError:
            pass  # a rival evolved it first: look again
        reopened = table.open()
        if reopened is None:
            raise ConflictError(f"{table.name} was removed while its schema evolved")
        handle = reopened
    raise ConflictError(f"{table.name}: its schema keeps changing under us")


def _missing(handle: DeltaTable, wanted: pa.Schema) -> tuple[list[Field], dict[str, dict[str, str]]]:
    known = {f.name: f for f in handle.schema().fields}
    arrow = pa.schema(handle.schema())
    new: list[Field] = []
    metadata: dict[str, dict[str, str]] = {}
    for item in wanted:
        target = Field.from_arrow(item)
        if item.name not in known:
            new.append(target)
            continue
        if _adds(arrow.field(item.name).type, item.type):
            new.append(Field(item.name, target.type, nullable=True, metadata=known[item.name].metadata))
        extra = {k.decode(): v.decode() for k, v in (item.metadata or {}).items() if k.decode() not in DESCRIBING}
        if any(known[item.name].metadata.get(key) != value for key, value in extra.items()):
            metadata[item.name] = extra
    return new, metadata


def _merged(
    table: Table, handle: DeltaTable, wanted: pa.Schema, metadata: dict[str, dict[str, str]]
) -> dict[str, dict[str, str]]:
    """Changes of metadata that keep what rivals have added to the column map."""
    held = ((f.name, f.metadata) for f in handle.schema().fields)
    shares = merge_shares(table.name, held, ((f.name, Field.from_arrow(f).metadata) for f in wanted))
    known = {f.name for f in handle.schema().fields}
    others = {c: {k: v for k, v in values.items() if k != METADATA_KEY} for c, values in metadata.items()}
    for column, share in shares.items():
        if column in known:
            others.setdefault(column, {})[METADATA_KEY] = share
    return {column: values for column, values in others.items() if values}


def _adds(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether the new type has nested fields that the old one lacks."""
    if pa.types.is_struct(new) and pa.types.is_struct(old):
        have = {f.name: f.type for f in old}
        return any(f.name not in have or _adds(have[f.name], f.type) for f in new)
    if pa.types.is_map(new) and pa.types.is_map(old):
        return _adds(old.item_type, new.item_type)
    if _is_list(new) and _is_list(old):
        return _adds(old.value_type, new.value_type)
    return False


def changed_types(handle: DeltaTable, wanted: pa.Schema) -> list[str]:
    """Columns that a table has with another type than wanted, in words; columns and nested fields on one side only are fine."""
    held = pa.schema(handle.schema())
    # The same way through Delta's types, which have one form of text, list and so on.
    new = pa.schema(Schema.from_arrow(wanted))
    both = [(held.field(f.name).type, f) for f in new if f.name in held.names]
    return [
        f"{f.name} is {type_name(old)} in the table and {type_name(f.type)} in the rows"
        for old, f in both
        if _differ(old, f.type)
    ]


def same_columns(handle: DeltaTable, wanted: pa.Schema) -> bool:
    """Whether a table has exactly these columns, with these types."""
    held, new = pa.schema(handle.schema()), pa.schema(Schema.from_arrow(wanted))
    nested = any(
        _adds(f.type, held.field(f.name).type) or _adds(held.field(f.name).type, f.type) for f in new if f.name in held.names
    )
    return set(held.names) == set(new.names) and not nested and not changed_types(handle, wanted)


def _differ(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether two types differ in more than the fields of structs."""
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        have = {f.name: f.type for f in old}
        return any(f.name in have and _differ(have[f.name], f.type) for f in new)
    if pa.types.is_map(old) and pa.types.is_map(new):
        return _differ(old.key_type, new.key_type) or _differ(old.item_type, new.item_type)
    if _is_list(old) and _is_list(new):
        return _differ(old.value_type, new.value_type)
    return bool(old != new)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
