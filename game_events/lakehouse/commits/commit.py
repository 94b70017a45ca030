"""Compare-and-set commits: data and progress become one Delta version, or nothing does.

Progress is in the table's application transactions (`txn`). A commit names the value that each `txn` must have in the version
it follows. So of two concurrent writers with overlapping ranges one commits, and the other one deletes its files.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ParamSpec, TypeVar

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from game_events.errors import ConfigurationError, ConflictError, DataError, GameEventsError, TransientError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.enabling import enable, lacking
from game_events.lakehouse.commits.evolution import CommitOutcome, evolve, new_mark, outcome_of, same_columns, with_features
from game_events.lakehouse.commits.log import Changes, make_table, write_version
from game_events.lakehouse.commits.transactions import (
    RESTORE_CHECKED,
    erasures,
    marks_of,
    restored_between,
    restored_lately,
    txn,
    version_before_restores,
)
from game_events.lakehouse.commits.versions import thin_out_long_log
from game_events.lakehouse.data.columns import comments_in, describe, described
from game_events.lakehouse.data.constraints import require_fulfilled
from game_events.lakehouse.data.staging import StagedFile, discard, unseen
from game_events.lakehouse.open_table import COMMIT_ID, Entry, OpenTable, note_of, of_columns
from game_events.lakehouse.storage import storage_error, write_out
from game_events.lakehouse.table_properties import (
    CHECKPOINT_COMMITS,
    KEPT_CHECKPOINT_COMMITS,
    REBUILD,
    constraints_of,
    is_made_again,
    marked,
)
from game_events.lakehouse.tables import OWN_TABLES, QUARANTINE, Table, files_of, paths, table_id

log = logging.getLogger(__name__)

#: Key in `OpenTable.columns`: the columns and the description that a commit has found, or made, the table to have.
_WRITTEN = "written"

#: Attempts before a conflict is raised: each concurrent commit, of whatever kind, makes a commit compare again (some 20 ms on a
#: local disk), and a loop commits to a table about twice a second.
ATTEMPTS = 50


@dataclass(frozen=True)
class Commit:
    """A planned version of a table.

    Attributes:
        table: the table; it is created if `table_id` is None.
        schema: columns of the files; missing ones are added to the table first.
        expect_transactions: `txn` -> value it must have now (None: never set).
        set_transactions: `txn` -> value it has afterwards.
        table_id: id the table must have; None: the table must not exist.
        from_version: version that the plan was made from; the table must not have been restored since, as a restore leaves
            every `txn` unchanged. None: the commit is right after any restore.
        replace: remove every file of the version it follows: readers see the old rows or the new, nothing else.
        reshape: with `replace`: the table's columns become exactly those of `schema`.
        rewritten: paths of files that the new ones replace: they are removed.
        same_rows: with `rewritten`: the new files hold the same rows, so streaming readers skip the commit.
        partition_by: columns of the files' folders. With `replace`, a table with other ones is replaced by a new table, in one
            version of its log, which may follow one that was not compared with (`restored`).
        merges_column_map: the table's metadata holds the column map (bronze): entries by concurrent writers are kept.
        description: description of a new table.
        description_now: new description of an existing table; None: it stays.
        compared_again: a conflict leaves the files, as the caller plans with them again (`commits.group`).
        from_table: the opened table that the plan was made from; it is compared and followed if it is the newest version still,
            which saves opening the table again.
    """

    table: Table
    schema: pa.Schema
    files: Sequence[StagedFile]
    expect_transactions: Mapping[str, int | None]
    set_transactions: Mapping[str, int]
    table_id: str | None
    from_version: int | None = None
    replace: bool = False
    reshape: bool = False
    rewritten: frozenset[str] = frozenset()
    same_rows: bool = False
    partition_by: tuple[str, ...] = ()
    merges_column_map: bool = False
    info: Mapping[str, str] = field(default_factory=dict)
    description: str | None = None
    description_now: str | None = None
    compared_again: bool = False
    from_table: DeltaTable | None = None


def without_rows(
    table: Table,
    handle: DeltaTable,
    info: Mapping[str, str],
    expect_transactions: Mapping[str, int | None],
    set_transactions: Mapping[str, int],
) -> Commit:
    """A commit that follows a version of bronze or quarantine and changes no row and no column."""
    return Commit(
        table,
        pa.schema(handle.schema()),
        [],
        expect_transactions,
        set_transactions,
        table_id(handle),
        handle.version(),
        merges_column_map=True,
        info=info,
    )


@dataclass(frozen=True)
class Landed:
    """A visible commit: what it added, and the table after it (rows, bytes, column comments, opened)."""

    table: str
    version: int
    table_id: str
    rows: int
    files: int
    table_rows: int
    table_bytes: int
    bytes: int = 0
    comments: Mapping[str, str] = field(default_factory=dict)
    handle: OpenTable | None = field(default=None, compare=False, repr=False)


@dataclass
class _Attempt:
    """One attempt: its mark, the version it follows, and whether it was handed to the storage."""

    mark: str = field(default_factory=new_mark)
    handle: OpenTable | None = None
    sent: bool = False


#: Opens the table after a commit, without reading its log if all is known of that version.
_Following = Callable[[], OpenTable | None]


def commit(plan: Commit) -> Landed:
    """Make the files of a plan part of its table.

    Raises:
        ConflictError: a concurrent writer advanced a `txn`, or created, removed or replaced the table. The files are deleted.
        TransientError: it failed for another reason, and the files are deleted; or its outcome is unknown, or it is visible and
            cannot be read back: then the files are kept, and the next run's compare-and-set decides.
        DataError: a column of the table has another type, somebody else has altered the table so that the commit would not be
            right (`Table.writable`), or delta-rs refuses the commit. The files are deleted.
        ReadOnlyError: the table is read only.
        ConfigurationError: Spark's workers wrote the files to a disk that this process does not see.
    """
    plan.table.require_writable()
    if plan.table.part is not None:
        raise ValueError(f"{plan.table.name}: parts are committed in groups (commits.group)")
    elsewhere = unseen(plan.table, plan.files)
    if elsewhere:
        raise ConfigurationError(
            f"{plan.table.uri}: {len(elsewhere)} of {len(plan.files)} files that Spark's workers have written are not there "
            f"({elsewhere[0]}): GAME_EVENTS_LAKEHOUSE has to be storage that all machines share (docs/cluster.md)"
        )
    following: _Following = plan.table.open_to_read
    for number in range(ATTEMPTS):
        attempt = _Attempt()
        try:
            attempt.handle = _newest(plan, is_first=number == 0)
            require(plan, attempt.handle)
            following = _write(plan, attempt)
            break
        except (ConflictError, DataError, ConfigurationError) as error:  # of the comparison: nothing was sent
            if not (plan.compared_again and isinstance(error, ConflictError)):
                discard(plan.table, list(plan.files))
            raise
        except (CommitFailedError, DeltaError, OSError) as error:
            if _is_visible(plan, attempt, error, last=number == ATTEMPTS - 1):
                break
    return _landed(plan, following)


def _newest(plan: Commit, *, is_first: bool) -> OpenTable | None:
    """The newest version of a plan's table; at the first attempt the one that it was made from, if nothing followed it."""
    if is_first and isinstance(plan.from_table, OpenTable) and plan.from_table.is_newest():
        return plan.from_table
    return plan.table.open()


def require(plan: Commit, handle: DeltaTable | None) -> None:
    """The comparison: everything that the plan was made from is still true of this version, to which it may be committed.

    Raises:
        ConflictError: it is not. DataError: the table was altered, or has constraints that new rows break.
    """
    now = table_id(handle)
    if now != plan.table_id:
        raise ConflictError(f"{plan.table.name}: table is {now or 'absent'}, planned with {plan.table_id or 'none'}")
    if handle is not None:
        plan.table.writable(handle, replaced=_replaces_rows(plan))
    for app, expected in plan.expect_transactions.items():
        value = txn(handle, app)
        if value != expected:
            raise ConflictError(f"{plan.table.name}: a concurrent run moved {app} from {expected} to {value}")
    if handle is not None and handle.version() != plan.from_version:
        _require_kept(plan, handle)
    # Of parts for all plans together (`commits.group`).
    if handle is not None and plan.table.part is None and not plan.same_rows:
        require_fulfilled(plan.table, handle, plan.files)


def _replaces_rows(plan: Commit) -> bool:
    return plan.replace or bool(plan.rewritten and not plan.same_rows)


def _require_kept(plan: Commit, handle: DeltaTable) -> None:
    """The part of the comparison that no transaction shows: commits since the plan took nothing away that it is made from."""
    if plan.from_version is not None and restored_between(plan.table, plan.from_version, handle.version()):
        raise ConflictError(f"{plan.table.name}: it was restored since version {plan.from_version}, which was planned from")
    if plan.rewritten and not plan.rewritten <= set(paths(handle)):
        raise ConflictError(f"{plan.table.name}: files to be rewritten are gone: somebody else rewrote them first")


def _write(plan: Commit, attempt: _Attempt) -> _Following:
    """Write the next version; returns what opens it."""
    handle = attempt.handle
    if handle is None or (plan.replace and plan.partition_by != tuple(handle.metadata().partition_columns)):
        return _create(plan, attempt)
    reshaped = plan.replace and plan.reshape and not same_columns(handle, plan.schema)
    handle = _with_columns(plan, handle, reshaped=reshaped)
    changes = _changes(plan, attempt, handle.noted_after(plan.set_transactions))
    changes = (
        replace(changes, columns=_kept_not_null(handle, _new_columns(plan)))
        if reshaped
        else replace(changes, removed=_removed(plan, handle))
    )
    attempt.sent = True
    entry = write_version(plan.table, handle, changes)
    if reshaped:  # nothing is known of that version
        return plan.table.open_to_read
    return partial(_followed, plan.table, handle, changes, entry)


def _removed(plan: Commit, handle: DeltaTable) -> dict[str, int | None]:
    """Path -> bytes of the files that a plan removes from a version."""
    if not (plan.replace or plan.rewritten):
        return {}
    sizes = {file.plain_path: file.size for file in files_of(handle)}
    return dict(sizes) if plan.replace else {path: sizes.get(path) for path in sorted(plan.rewritten)}


def _with_columns(plan: Commit, handle: OpenTable, *, reshaped: bool) -> OpenTable:
    """A version that has the plan's columns and descriptions; `reshaped`: that the plan's columns can replace."""
    if not reshaped:
        schema, description = handle.columns.get(_WRITTEN, (None, None))
        if schema is not None and description == plan.description_now and schema.equals(plan.schema, check_metadata=True):
            return handle
    wanted = described(plan.table, plan.schema)
    evolved = with_features(plan.table, handle, wanted)
    if not reshaped:
        evolved = evolve(plan.table, evolved, wanted, merges_column_map=plan.merges_column_map)
        evolved = describe(plan.table, evolved, wanted, plan.description_now)
    if evolved is not handle:
        require(plan, evolved)
    elif not reshaped:
        handle.columns[_WRITTEN] = plan.schema, plan.description_now
    return evolved


def _new_columns(plan: Commit) -> Schema:
    return Schema.from_arrow(marked(described(plan.table, plan.schema), partitioned=bool(plan.partition_by)))


def _kept_not_null(handle: DeltaTable, columns: Schema) -> Schema:
    """New columns of a table, of which those stay NOT NULL that are."""
    constraints = of_columns(handle, constraints_of)
    if constraints is None or not constraints.not_null:
        return columns
    nullable = {field.name: field.name not in constraints.not_null for field in columns.fields}
    return Schema([Field(f.name, f.type, nullable=nullable[f.name], metadata=f.metadata) for f in columns.fields])


def _changes(plan: Commit, attempt: _Attempt, noted: Mapping[str, str]) -> Changes:
    """What a plan adds; `noted`: values of transaction ids, for whoever opens the version."""
    info = {**plan.info, COMMIT_ID: attempt.mark, **noted}
    return Changes(plan.files, same_rows=plan.same_rows, set_transactions=plan.set_transactions, info=info)


def _create(plan: Commit, attempt: _Attempt) -> _Following:
    """Make the table, or a new one in place of another; returns what opens it."""
    # Which version a new table in place of another becomes is not known.
    first = attempt.handle is None
    noted = note_of(0, {**dict.fromkeys(plan.expect_transactions), **plan.set_transactions}) if first else {}
    changes = _changes(plan, attempt, noted)
    failpoints.reach("before_create", plan.table.name)
    if first:
        plan.table.clear_void()
    attempt.sent = True
    made = make_table(
        plan.table,
        _new_columns(plan),
        changes,
        description=plan.description,
        partition_by=plan.partition_by,
        replaces=not first,
    )
    if plan.table.key in OWN_TABLES and not is_made_again(plan.table.key):
        write_out(plan.table.uri)  # a power cut would leave a log that only a person could clear away
    return plan.table.open_to_read if made is None else partial(plan.table.opened, made)


def _is_visible(plan: Commit, attempt: _Attempt, error: Exception, *, last: bool) -> bool:
    """Whether a commit succeeded in spite of an error; False: another commit came first, so compare again.

    The next comparison decides whether that commit matters: a compaction does not, nor does a changed table property. The files
    are deleted only if the commit is known to have failed for good.
    """
    outcome, doubt = outcome_of(plan.table, attempt.handle, attempt.mark, error, sent=attempt.sent)
    if outcome is CommitOutcome.LANDED:
        return True
    if outcome is CommitOutcome.UNKNOWN:
        raise TransientError(
            f"{plan.table.name}: outcome of the commit is unknown ({error}; {doubt}). Run again: the table's own progress "
            "decides whether it landed"
        ) from error
    if outcome is CommitOutcome.OVERTAKEN and attempt.handle is not None and not last:
        return False
    if not (plan.compared_again and outcome is CommitOutcome.OVERTAKEN):
        discard(plan.table, list(plan.files))
    if outcome is CommitOutcome.OVERTAKEN:
        raise ConflictError(f"{plan.table.name}: a concurrent run committed first ({error})") from error
    raise _failure(plan, error) from error


def _failure(plan: Commit, error: Exception) -> GameEventsError:
    """The project's error for a commit of which nothing is visible."""
    what = f"{plan.table.name}: commit failed, nothing is visible: {error}"
    # delta-rs does not make this commit to this version of the table: the same call will not succeed later.
    other = DataError(what) if isinstance(error, CommitFailedError) else TransientError(what)
    return storage_error(error, plan.table.uri) or other


def _landed(plan: Commit, following: _Following) -> Landed:
    """The table after its commit.

    Raises:
        TransientError: it cannot be read. The commit is visible, so whatever the cause is its files must stay.
    """
    try:
        handle = following()
        if handle is not None and plan.table_id is None and lacking(plan.table, handle):
            handle = _enabled(plan.table, handle)
        if handle is None:
            raise DataError(
                f"the table was deleted right after the commit; another program deletes files below {plan.table.uri}"
            )
        return landed_of(plan, handle)
    except (GameEventsError, DeltaError, OSError) as error:
        raise TransientError(
            f"{plan.table.name}: the commit landed, but the table cannot be read since: {error}. Run again: its own progress "
            "says how far it is"
        ) from error


def _enabled(table: Table, handle: OpenTable) -> OpenTable | None:
    """A table that was just made, with the features that it is to have."""
    try:
        enable(table, handle)
    except (CommitFailedError, OSError) as error:  # a concurrent commit: maintenance does it
        log.info("table=%s features_not_set=true cause=%s", table.name, type(error).__name__)
    return table.open_to_read()


def landed_of(plan: Commit, handle: OpenTable) -> Landed:
    """What a plan has added, and the table after it."""
    files = files_of(handle)
    return Landed(
        plan.table.name,
        handle.version(),
        str(handle.metadata().id),
        sum(f.rows for f in plan.files),
        len(plan.files),
        sum(f.rows or 0 for f in files),
        sum(f.size for f in files),
        sum(f.size for f in plan.files),
        of_columns(handle, comments_in),
        handle,
    )


def _followed(table: Table, before: OpenTable, changes: Changes, entry: Entry | None) -> OpenTable:
    """The version that was written after another one; its log gets a checkpoint, and is shortened, if that is due."""
    files = [file.data_file() for file in changes.files]
    handle = before.after(changes.set_transactions, changes.info, files, frozenset(changes.removed), entry)
    opened_anew = handle.was_read and handle.version() == handle.opened_version + 1
    interval = CHECKPOINT_COMMITS if opened_anew else KEPT_CHECKPOINT_COMMITS
    if (handle.version() + 1) % interval == 0:
        try:
            if entry is not None:  # else delta-rs has made the checkpoint
                handle.create_checkpoint()
            thin_out_long_log(table, handle)
        except (OSError, DeltaError, DataError, ConflictError) as error:  # stays for the next time, or for maintenance
            log.warning("table=%s log_not_shortened=%r", table.name, str(error))
    return handle


def refuse_restored(table: Table, handle: DeltaTable, rebuild: str | None = None) -> DeltaTable:
    """Return a version of the table that lacks no row because of a restore (`RESTORE`); one small file is read.

    A restore takes rows back but no `txn`: offsets of rows that are gone stay committed, so no run would read them again.
    Commits that are planned from the returned version compare it (`Commit.from_version`). A restore that was undone is
    acknowledged by a commit without rows.

    `rebuild`: the way out where the restore cannot be undone; None: the table's usual one.

    Raises:
        DataError: the table was restored; the message names table, version and command.
    """
    while restored_lately(table, marks_of(table), handle.version()):
        version = version_before_restores(table, handle.version(), marks_of(table))
        before = _before(table, handle, version)
        if before is None or set(before.file_uris()) != set(handle.file_uris()):
            raise DataError(_refusal(table, version if before is not None else None, rebuild))
        with suppress(ConflictError):  # another process was first, or the table was restored again
            commit(without_rows(table, handle, {RESTORE_CHECKED: "nothing was lost"}, {}, {}))
        handle = table.open() or handle
    return handle


def _before(table: Table, handle: DeltaTable, version: int) -> DeltaTable | None:
    """The table before the restore; None: the log does not reach back, or it has rows that were erased since."""
    with suppress(DeltaError, OSError):
        before = DeltaTable(table.uri, version=version, storage_options=table.options)
        return before if erasures(before) == erasures(handle) else None
    return None


def _refusal(table: Table, version: int | None, rebuild: str | None) -> str:
    ways = [rebuild or f"delete the table and run {REBUILD}" if table.key == QUARANTINE else rebuild or f"run {REBUILD}"]
    if version is not None:
        undo = f"RESTORE TABLE delta.`{table.uri}` TO VERSION AS OF {version}"
        ways.insert(0, f'undo the restore ({undo}; or in Python deltalake.DeltaTable("{table.uri}").restore({version}))')
    return (
        f"{table.name} was restored to an older version: rows that came since are gone, and no run reads them again, as their "
        f"offsets are committed. Nothing was done. To go on, {', or '.join(ways)}"
    )


P = ParamSpec("P")
R = TypeVar("R")


def retry_on_conflict(attempts: int = ATTEMPTS) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of a function that reads tables, plans and commits: it runs again at once, from its reads on, after a conflict.

    After `attempts` runs the last `ConflictError` is raised.
    """
    return retry(retry=retry_if_exception_type(ConflictError), stop=stop_after_attempt(attempts), reraise=True)
