"""Application transaction ids (`txn`) of the Delta logs: the counters that make each step exactly-once."""

from collections.abc import Iterable
from enum import StrEnum

from deltalake import DeltaTable


class Txn(StrEnum):
    """Every application transaction id of the project. The values are in the tables' logs: changing one is a format change.

    A commit compares and advances them (`Commit.expected`, `Commit.advance`). An id "by x" ends with x: `Txn.REPLAY.of(x)`. It
    stays in the log for ever, so few ids are by run.
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
    #: Bronze: number of the record archive that all its batches are from, 0 if not all are; the source refuses another archive.
    #: Record archive, by bronze's key: last bronze batch in it; each of its commits compares it.
    ARCHIVE = "archive"

    # Contents of bronze and silver.
    #: Bronze: number of its last batch. Whatever adds or replaces rows compares and advances it.
    BATCH = "batch"
    #: Bronze: first batch after its rows were last replaced. Silver: how often its rows were replaced. Derived tables compare
    #: it, and are made again.
    INCARNATION = "generation"
    #: Any table: how often data subjects were erased from it; of bronze, it counts before the search, too. Commits planned from
    #: older rows compare it. Silver, by bronze's id: bronze's count when rows were erased from silver.
    ERASURES = "erasures"
    #: Bronze: batch of the last replay; the next one compares it. Quarantine, by bronze's id: last replay marked on its rows.
    REPLAY = "replay"
    #: Bronze: ticket of the last full refresh. Quarantine, by bronze's id: last full refresh completed; decisions compare it.
    FULL_REFRESH = "reset"
    #: Bronze: how often it was redecoded; a redecode compares it.
    REDECODE = "redecode"

    # Quarantine beside bronze and silver.
    #: Quarantine: commits of micro-batches and of bronze's full refreshes; each compares it.
    MICRO_BATCHES = "slices"
    #: Bronze: how often a micro-batch was about to commit to quarantine. Each micro-batch compares it.
    QUARANTINE_BEGUN = "quarantine_begun"
    #: Bronze: `QUARANTINE_BEGUN` at the last micro-batch. If they differ, quarantine may have rows that bronze does not count.
    QUARANTINE_DONE = "quarantine_done"
    #: Bronze: records put into quarantine since it was made. A quarantine that was deleted is found by it.
    RECORDS_QUARANTINED = "quarantined"
    #: Bronze: `MICRO_BATCHES` of quarantine at the last micro-batch with such records. An older copy has fewer.
    QUARANTINE_COMMITS = "quarantine_commits"
    #: Quarantine; by schema id: its rows that stayed undecodable when the schema became known. Compared before the next replay.
    REPLAY_LEFT = "replay_left"
    #: Quarantine; by bronze's key and game: bronze batch up to which silver's rejections are decided; a decision compares it.
    #: By bronze's key alone: 1 after the first decision; all runs decide then, with rules or without.
    DECIDED_BATCH = "silver_decided"
    #: Quarantine; by bronze's key and game: incarnation of the silver table that was decided again. By bronze's key alone: how
    #: many commits did so. A decision compares both.
    DECIDED_INCARNATION = "silver_generation"
    #: Silver: rows that rules have dropped since its rows were replaced. Reconciliation adds it to the table's rows.
    ROWS_DROPPED = "rows_dropped"
    #: Silver: rows that rules have put into quarantine since its rows were replaced. Reconciliation adds it, too.
    ROWS_QUARANTINED = "rows_quarantined"

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
    #: Gold, unified, outbox, event log, file log, `schemas`, `suppressed_entities`: number of commits. Each commit compares it,
    #: as its rows depend on all that were there before; an erasure advances it, too.
    COMMITS = "commits"
    #: `progress`: number of commits; each compares it.
    PROGRESS = "progress"
    #: File log: number of the next file. A file log without all of its rows is found by it.
    NEXT_FILE = "next"
    #: Delivery log of the export: number of the run that writes it. Each commit compares it: a second run stops the first.
    EXPORT_RUN = "run"
    #: Outbox; by run id: 1 after a requested `resend` or `go on` was carried out, so that a retried run does not repeat it.
    GRANTED = "granted"

    def of(self, *parts: object) -> str:
        """The id for one table, game, partition: `replay:<id>`."""
        return ":".join((self, *map(str, parts)))


def txn(handle: DeltaTable | None, app: str) -> int | None:
    """Value of a transaction id in a version of a table; None: it was never set, or there is no table."""
    return handle.transaction_version(app) if handle is not None else None


def counter(handle: DeltaTable | None, app: str) -> int:
    """As `txn`, with 0 for None."""
    return int(txn(handle, app) or 0)


def txns(handle: DeltaTable | None, apps: Iterable[str]) -> dict[str, int | None]:
    """Transaction id -> value, for `Commit.expected`."""
    return {app: txn(handle, app) for app in apps}
