"""What the commits of a table say: transaction ids (`txn`), by which each step is exactly-once, restores, kinds of commits.

Appends keep the incarnation of a table's rows, a full refresh begins another one. Batch numbers never decrease, so the first
batch after a full refresh identifies bronze's incarnation: a silver table with an older batch holds rows that are gone, and is
replaced; no run that has read an older bronze can be ahead of it.

A restore (`RESTORE`) takes rows back and leaves every `txn` unchanged: progress then counts rows that are gone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.config.type_names import SEPARATOR, of_type
from game_events.lakehouse.commits.log import TableLog
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.open_table import COMMIT_ID, OpenTable
from game_events.lakehouse.parts import Part
from game_events.lakehouse.tables import QUARANTINE, Lakehouse, Layer, Table, add_actions, layer_of


class Txn(StrEnum):
    """Every application transaction id of the project. The values are in the tables' logs: changing one is a format change.

    A commit compares and sets them (`Commit.expect_transactions`, `Commit.set_transactions`). An id "by x" ends with x:
    `Txn.REPLAY.of(x)`. It stays in the log for ever, so few ids are by run.
    """

    # Where the records of bronze come from. Quarantine has the first three, too.
    #: Bronze, quarantine; by topic, topic id, partition: next Kafka offset. Each micro-batch compares it with its start.
    KAFKA = "kafka"
    #: Bronze, quarantine; by the source table's id: next batch to read from another pipeline's bronze. Compared likewise.
    #: Bronze; by that table's address and `high` or `low`: half of the id.
    TABLE = "table"
    #: Bronze, quarantine; by the file log's id: next position in files. Compared likewise.
    #: Bronze; by `files` and `high` or `low`: half of the id.
    FILES = "files"
    #: Bronze; by topic and `high` or `low`: half of the id of the topic that was read last. A recreated topic has another one.
    TOPIC = "topic"
    #: Bronze; by topic, topic id, partition: the leader's epoch when the last micro-batch was planned; no earlier record has a
    #: later one. A new leader's truncated log is found by it.
    EPOCH = "epoch"
    #: Bronze; by name of one of several sources: 1 once a commit was planned with it. Its settings say where a new one starts.
    #: By that name and `last`: seconds since 1970 at the last commit that read records of it, or that it came with.
    SOURCE = "source"
    #: Bronze: number of the record archive that all its batches are from, 0 if not all are; the source refuses another archive.
    #: Record archive, by bronze's key: last bronze batch in it; each of its commits compares it.
    ARCHIVE = "archive"

    # Contents of bronze and silver.
    #: Bronze: number of its last batch. Whatever adds or replaces rows compares and advances it.
    BATCH = "batch"
    #: Bronze: first batch after its rows were last replaced. Silver: how often its rows were replaced. Derived tables compare
    #: it, and are made again.
    INCARNATION = "incarnation"
    #: Any table: how often people were erased from it; of bronze, it counts before the search, too. Commits planned from
    #: older rows compare it. Silver, by bronze's id: bronze's count when rows were erased from silver.
    ERASURES = "erasures"
    #: Bronze: batch of the last replay; the next one compares it. Quarantine, by bronze's id: last replay marked on its rows.
    REPLAY = "replay"
    #: Bronze: ticket of the last full refresh. Quarantine, by bronze's id: last full refresh completed; decisions compare it.
    FULL_REFRESH = "full_refresh"
    #: Bronze: how often it was redecoded; a redecode compares it.
    REDECODE = "redecode"
    #: Bronze: number of the definitions of game, player and time that its rows were made by, 0: decoded fields; each commit of
    #: rows compares it, and under other definitions nothing is added. By `entity`, `key`, `time`: number of each, for messages.
    DEFINITION = "definition"

    # Quarantine beside bronze and silver.
    #: Quarantine: commits of micro-batches and of bronze's full refreshes; each compares it.
    MICRO_BATCHES = "micro_batches"
    #: Bronze: how often a micro-batch was about to commit to quarantine. Each micro-batch compares it.
    QUARANTINE_BEGUN = "quarantine_begun"
    #: Bronze: `QUARANTINE_BEGUN` at the last micro-batch. If they differ, quarantine may have rows that bronze does not count.
    QUARANTINE_DONE = "quarantine_done"
    #: Bronze: records put into quarantine since it was made. A quarantine that was deleted is found by it.
    RECORDS_QUARANTINED = "records_quarantined"
    #: Bronze: `MICRO_BATCHES` of quarantine at the last micro-batch with such records. An older copy has fewer.
    QUARANTINE_COMMITS = "quarantine_commits"
    #: Quarantine; by schema id: its rows that stayed undecodable when the schema became known. Compared before the next replay.
    REPLAY_LEFT = "replay_left"
    #: Quarantine; by bronze's key and game: bronze batch up to which silver's rejections are decided; a decision compares it.
    #: By bronze's key alone: 1 after the first decision; all runs decide then, with rules or without.
    DECIDED_BATCH = "decided_batch"
    #: Quarantine; by bronze's key and game: incarnation of the silver table that was decided again. By bronze's key alone: how
    #: many commits did so. A decision compares both.
    DECIDED_INCARNATION = "decided_incarnation"
    #: Silver: rows that rules have dropped since its rows were replaced. Reconciliation adds it to the table's rows.
    ROWS_DROPPED = "rows_dropped"
    #: Silver: rows that rules have put into quarantine since its rows were replaced. Reconciliation adds it, too.
    ROWS_QUARANTINED = "rows_quarantined"
    #: Silver: rows that were left out as they were sent twice, since its rows were replaced. Reconciliation adds it, too.
    ROWS_DUPLICATE = "rows_duplicate"
    #: Silver, a game's own table: digest of what the tables of its message types are called, by which a deleted one is found.
    TYPES = "types"

    # Rows by age.
    #: Any table: time up to which rows were removed by age, in milliseconds since 1970, or more; each such commit compares and
    #: advances it, and so does what replaces all rows by those that it has read.
    EXPIRED = "expired"
    #: Bronze: the same for raw values.
    RAW_EXPIRED = "raw_expired"
    #: Bronze, quarantine: rows removed by age; by game: those of a game (of quarantine: its rejected ones). Silver: rows that
    #: it lacks by age: removed from it, or from bronze before it was made. Gold: the same of silver when it was made.
    ROWS_EXPIRED = "rows_expired"
    #: Silver: quarantine's rows of the game that were removed by age when its rows were last replaced.
    REJECTED_EXPIRED = "rejected_expired"

    # From layer to layer.
    #: Silver and gold of all games, by game: 1 from a restore of the table on until the game's rows are replaced, then 0.
    RESTORED = "restored"
    #: Silver; by bronze's id: last bronze batch in it. Each of its commits compares it.
    BRONZE = "bronze"
    #: Gold; by silver's id, incarnation and erasures: last bronze batch in it; each of its commits compares it.
    #: Outbox; by game and table: last bronze batch of silver that was exported.
    SILVER = "silver"
    #: Unified; by gold's id: version of that table in it.
    #: Outbox; by game and table: last bronze batch of gold that was exported.
    GOLD = "gold"
    #: Gold, unified; by aggregate: definition that the table was made with. Another one causes a full refresh.
    AGGREGATE = "aggregate"

    # Single tables.
    #: Gold, unified, outbox, event log, file log, `schemas`, `erased_people`: number of commits. Each commit compares it,
    #: as its rows depend on all that were there before; an erasure advances it, too.
    COMMITS = "commits"
    #: `progress`: number of commits; each compares it.
    PROGRESS = "progress"
    #: File log: number of the next file. A file log without all of its rows is found by it.
    NEXT_FILE = "next_file"
    #: Delivery log of the export: number of the run that writes it. Each commit compares it: a second run stops the first.
    EXPORT_RUN = "export_run"
    #: Outbox; by run id: 1 after a requested `resend` or `go on` was carried out, so that a retried run does not repeat it.
    GRANTED = "granted"

    def of(self, *parts: object) -> str:
        """The id for one table, game, partition: `replay:<id>`."""
        return ":".join((self, *map(str, parts)))


#: Of silver: bronze's rows that are not in it.
ROW_COUNTERS = (Txn.ROWS_DROPPED, Txn.ROWS_QUARANTINED, Txn.ROWS_DUPLICATE)


def txn(handle: DeltaTable | None, app: str) -> int | None:
    """Value of a transaction id in a version of a table; None: it was never set, or there is no table."""
    return handle.transaction_version(app) if handle is not None else None


def counter(handle: DeltaTable | None, app: str) -> int:
    """As `txn`, with 0 for None."""
    return int(txn(handle, app) or 0)


def txns(handle: DeltaTable | None, apps: Iterable[str]) -> dict[str, int | None]:
    """Transaction id -> value, for `Commit.expect_transactions`."""
    return {app: txn(handle, app) for app in apps}


def incarnation(handle: DeltaTable | None) -> int:
    """0: its rows were never replaced, or there is no table."""
    return counter(handle, Txn.INCARNATION)


def oldest_batch(bronze: DeltaTable) -> int:
    """The oldest batch in bronze: its incarnation, or less after a repaired restore, which keeps rows of older batches."""
    actions = add_actions(bronze)
    held = pc.min(actions.column("min._batch")).as_py() if "min._batch" in actions.column_names else None
    return incarnation(bronze) if held is None else min(incarnation(bronze), int(held))


def erasures(handle: DeltaTable | None) -> int:
    """How often people were erased from a version of a table."""
    return counter(handle, Txn.ERASURES)


def silver_app(silver: DeltaTable, erased: int | None = None) -> str:
    """`txn` of gold with the highest bronze batch of its silver rows.

    Another silver table or incarnation, or an erasure, is another name: gold is rebuilt. `erased`: after so many erasures;
    None: all of silver's.
    """
    erased = erasures(silver) if erased is None else erased
    return Txn.SILVER.of(silver.metadata().id, incarnation(silver), *([erased] if erased else []))


#: What accepts that a full refresh has fewer rows.
WITHOUT_EXPIRED = "To go on without these rows, set GAME_EVENTS_ALLOW_REFRESH_WITHOUT_EXPIRED=true for one run"


def expired_rows(handle: DeltaTable | None, game: str | None = None) -> int:
    """`Txn.ROWS_EXPIRED`, of a game or of all; where no row was removed by age nothing is looked for by game."""
    rows = counter(handle, Txn.ROWS_EXPIRED)
    return rows if game is None or not rows else counter(handle, Txn.ROWS_EXPIRED.of(game))


def last_app(source: str) -> str:
    """`txn` of bronze: when records of one of several sources were read last."""
    return Txn.SOURCE.of(source, "last")


def types_digest(names: Collection[str]) -> int:
    """The value of `Txn.TYPES`: tells sets of tables of message types apart; 0: there are none."""
    return int(sha256("/".join(sorted(names)).encode()).hexdigest()[:15], 16) if names else 0


def games_of(lakehouse: Lakehouse) -> list[str]:
    """`Lakehouse.games` without the tables of message types that a full refresh has emptied, as the settings have none now.

    Nothing is opened but the own tables of games that seem to have some: these still say which there were.
    """
    games = lakehouse.games()
    if lakehouse.per_type or lakehouse.is_partitioned:
        return games
    types = dict[str, dict[str, str]]()
    for name in games:
        game, _, message_type = name.rpartition(SEPARATOR)
        types.setdefault(game, {})[name] = of_type(game, message_type)
    emptied = set[str]()
    for game in types.keys() & set(games):
        if counter(lakehouse.silver(game).open_to_read(), Txn.TYPES) == types_digest(types[game].values()):
            emptied.update(types[game])
    return [game for game in games if game not in emptied]


@dataclass(frozen=True)
class BronzeIdentity:
    """One incarnation of bronze.

    `table_id`: Delta's id of the table. `incarnation`: first batch of the incarnation; 0: rows were never replaced.
    """

    table_id: str
    incarnation: int = 0

    @classmethod
    def of(cls, bronze: DeltaTable) -> BronzeIdentity:
        """The identity of a version of bronze."""
        return cls(str(bronze.metadata().id), incarnation(bronze))

    @classmethod
    def of_key(cls, key: str) -> BronzeIdentity:
        """The identity with this `key`."""
        table, _, first_batch = key.partition("@")
        return cls(table, int(first_batch or 0))

    @property
    def key(self) -> str:
        """Key of the incarnation in `progress` and in quarantine's decisions."""
        return f"{self.table_id}@{self.incarnation}" if self.incarnation else self.table_id

    @property
    def app(self) -> str:
        """`txn` of silver with its highest batch of this bronze."""
        return Txn.BRONZE.of(self.table_id)

    @property
    def erased_app(self) -> str:
        """`txn` of silver: bronze's number of erasures when rows were last erased from silver."""
        return Txn.ERASURES.of(self.table_id)

    def erased(self, silver: DeltaTable | None) -> int:
        """The value of `erased_app`: rows read from a bronze with fewer erasures may hold subjects erased from silver."""
        return counter(silver, self.erased_app)

    def taken(self, silver: DeltaTable | None) -> int | None:
        """Highest batch of this bronze in a silver table; None: it has another incarnation, or there is no table."""
        batch = txn(silver, self.app)
        return int(batch) if batch is not None and batch >= self.incarnation else None


#: Key in the commit information of maintenance: such a commit adds no row, and is made without a check for restores.
MAINTENANCE_INFO = "maintenance"
#: Key in that of a commit that removes rows by age: their number.
EXPIRED_INFO = "expired_rows"

#: Keys in the information of the layers' commits that are made only after a check for restores.
BATCHES = frozenset({"bronze_batch", "batch"})

#: Of tables without batches: any commit of a run.
ANY_COMMIT = frozenset({COMMIT_ID})

#: Key in the information of a commit without changes: the restores before it were checked.
RESTORE_CHECKED = "restore_looked_at"

#: Operations that take rows back, or replace them all, and leave every `txn` unchanged.
REPLACING = frozenset({"RESTORE", "CREATE OR REPLACE TABLE"})

#: Commits (maintenance, erasures) behind which a restore is still found.
LOOK_BACK = 200

#: Newest commits that are searched for one of this project's own, in steps: nearly always the first one is it.
RESTORE_HISTORY = (1, 8, 100)


def _is_checked(info: Mapping[str, Any], marks: frozenset[str]) -> bool:
    """Whether a commit was made after a check for restores; maintenance makes none."""
    return MAINTENANCE_INFO not in info and (RESTORE_CHECKED in info or not marks.isdisjoint(info))


def restored_lately(table: Table, marks: frozenset[str] = BATCHES, version: int | None = None) -> bool:
    """Whether a table was restored since the newest commit that was made after a check for restores.

    `marks`: keys in the information of such commits. `version`: the version to begin with; None: the newest, found by listing
    the log, which may be long.
    """
    log = TableLog(table)
    if version is None:
        # A local folder that is not there has no versions.
        version = max(log.versions(), default=-1) if table.is_local or table.exists() else -1
    for info in log.infos(version, version - LOOK_BACK):
        if _is_checked(info, marks):
            return False
        if info.get("operation") == "RESTORE":
            return True
    return False


def restored(handle: DeltaTable) -> bool:
    """Whether a table was restored or replaced since this project's newest commit of rows; mostly reads one log entry."""
    if isinstance(handle, Part):
        whole = handle.whole
        if whole.restored is None:  # looked at once for all parts
            whole.restored = restored(whole)
        return counter(handle, Txn.RESTORED) > 0 or whole.restored
    if isinstance(handle, OpenTable) and _is_checked(handle.newest_commit(), BATCHES):
        return False
    for limit in RESTORE_HISTORY:
        history = handle.history(limit)
        for number, entry in enumerate(history):
            if _is_checked(entry, BATCHES):
                return False
            if entry.get("operation") in REPLACING:
                # Behind a gap it is of an older version that stays: what came after it is not known.
                return not isinstance(handle, OpenTable) or handle.has_entries(history[0]["version"] - number)
    return False


def marks_of(table: Table) -> frozenset[str]:
    """Keys in the information of the table's commits that are made only after a check for restores."""
    return ANY_COMMIT if table.key == QUARANTINE else BATCHES


def restored_between(table: Table, seen: int, version: int) -> bool:
    """Whether a restore is among the versions after `seen` up to `version`; mostly there are none, then nothing is read.

    By the files of the log: delta-rs' history of a handle also has entries of later versions.
    """
    return version > seen and any(info.get("operation") == "RESTORE" for info in TableLog(table).infos(version, seen))


def unchecked_restore(table: Table, handle: DeltaTable) -> str | None:
    """Why maintenance skips a table that was restored and that no run has checked yet, in words; None: it does not skip it.

    Maintenance would delete the files that an undo needs, and in time the log's entry of the restore. Tables that no run
    compares with others (`event_log`, `schemas`, `progress`) are not skipped.
    """
    if layer_of(table.key) is Layer.OWN:
        return None
    return "it was restored: a run has to check it first" if restored_lately(table, marks_of(table), handle.version()) else None


def version_before_restores(table: Table, version: int, marks: frozenset[str] = BATCHES) -> int:
    """The version before the first of the unchecked restores up to a version; without any, that version."""
    before = version
    for number, info in enumerate(TableLog(table).infos(version, -1)):
        if _is_checked(info, marks):
            break
        if info.get("operation") == "RESTORE":
            before = version - number - 1
    return before


#: Key of a commit's information -> kind of commit; the first key that a commit has decides.
_KINDS = {
    EXPIRED_INFO: "rows by age",
    MAINTENANCE_INFO: "maintenance",
    RESTORE_CHECKED: "restore looked at",
    "redecode": "redecode",
    "erasure": "erasure",
    "full_refresh": "full refresh",
    "full_refresh_of": "full refresh",
    "replay_of": "replay",
    "rejected_rows": "rejections",
    "batch": "rows",
    BATCH_INFO: "rows",
}

#: Operation -> kind, of commits without such a key.
_OPERATIONS = {
    "RESTORE": "restore",
    "ADD COLUMN": "columns",
    "UPDATE COLUMN METADATA": "comments",
    "UPDATE TABLE METADATA": "description",
    "VACUUM END": "maintenance",
    "VACUUM START": "maintenance",
    "OPTIMIZE": "maintenance",
    "CREATE TABLE": "created",
}


@dataclass(frozen=True)
class Version:
    """One version of a table.

    Attributes:
        kind: sort of commit, in a word or two.
        added, removed: rows of the files it added and removed, by their statistics; None: a file has none.
        batch: batch of bronze that it added, or up to which the table has rows.
        offsets: of bronze: the offsets of its rows.
        info: the commit's whole information.
    """

    version: int
    time: datetime
    kind: str
    added: int | None
    removed: int | None
    files_added: int
    files_removed: int
    batch: int | None
    offsets: str | None
    run_id: str | None
    mark: str | None
    info: Mapping[str, Any]


def versions(table: Table, numbers: Iterable[int]) -> Iterator[Version]:
    """What the log says of versions of a table, without those of which it has no entry any more."""
    log = TableLog(table)
    for number in numbers:
        actions = log.actions(number)
        if actions:
            yield _version(number, actions)


def _version(number: int, actions: list[dict[str, Any]]) -> Version:
    info: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
    adds = [a["add"] for a in actions if "add" in a]
    removes = [a["remove"] for a in actions if "remove" in a]
    batch = info.get("batch", info.get(BATCH_INFO))
    return Version(
        number,
        datetime.fromtimestamp(int(info.get("timestamp", 0)) / 1_000, UTC),
        _kind(info, adds, removes),
        _rows(adds),
        _rows(removes),
        len(adds),
        len(removes),
        int(batch) if batch is not None else None,
        info.get("offsets"),
        info.get("run_id"),
        info.get(COMMIT_ID),
        info,
    )


def _kind(info: Mapping[str, Any], adds: list[Any], removes: list[Any]) -> str:
    operation = str(info.get("operation", ""))
    kind = next((kind for key, kind in _KINDS.items() if key in info), None) or _OPERATIONS.get(operation)
    if kind is None:
        kind = "rows" if COMMIT_ID in info else operation.lower() or "unknown"
    return "no rows" if kind == "rows" and not (adds or removes) else kind


def _rows(files: list[dict[str, Any]]) -> int | None:
    """Rows of files; a removed file need not say how many it had."""
    counts = [json.loads(f["stats"]).get("numRecords") if f.get("stats") else None for f in files]
    known = [int(count) for count in counts if count is not None]
    return sum(known) if len(known) == len(files) else None
