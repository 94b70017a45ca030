"""A lakehouse of two games by hand, without Spark: bronze, silver, gold and quarantine with rows of any age."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from deltalake import DeltaTable

from game_events.lakehouse.commits.commit import Commit
from game_events.lakehouse.commits.group import commit_group
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, silver_app
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.tables import Layer, Table, table_id
from game_events.pipeline.checks.reconcile import Reconciliation, RowCounts, reconcile
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import TableMaintenance
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put

US = pa.timestamp("us", tz="UTC")
TYPES = ("studio.Start", "studio.End")


def days_ago(days: float) -> datetime:
    """A time so long before now."""
    return datetime.fromtimestamp(time.time(), UTC) - timedelta(days=days)


def events(ages: Sequence[float], batch: int, game: object = "uno", **columns: object) -> pa.Table:
    """Rows that came so many days ago, with the event's time at the same time unless `event_ages` says otherwise."""
    n = len(ages)
    event_ages = columns.pop("event_ages", ages)
    return pa.table(
        {
            "_kafka_topic_id": pa.array(["t"] * n, pa.string()),
            "_kafka_partition": pa.array([0] * n, pa.int32()),
            "_kafka_offset": pa.array([batch * 1_000 + i for i in range(n)], pa.int64()),
            "_kafka_timestamp": pa.array([days_ago(age) for age in ages], US),
            "_message_type": pa.array([columns.get("of", TYPES[0])] * n, pa.string()),
            "_raw_value": pa.array([b"raw"] * n, pa.binary()),
            "_batch": pa.array([batch] * n, pa.int64()),
            "game_name": pa.array([game] * n, pa.string()),
            "gamer_id": pa.array([f"g{i}" for i in range(n)], pa.string()),
            "event_timestamp": pa.array([None if a is None else days_ago(a) for a in event_ages], US),
        }
    )


class World:
    """Batches go to bronze, and from there to a game's tables: `load` does all, `bronze`, `silver` and `gold` one layer."""

    def __init__(self, folder: object, retention: dict[str, float], **settings: object) -> None:
        self.pipeline = without_spark(folder, retention_days=retention, **settings)
        self.batch = 0

    @property
    def identity(self) -> BronzeIdentity:
        return BronzeIdentity.of(self.pipeline.bronze.open())

    def bronze(self, *rows: pa.Table) -> DeltaTable:
        """A commit to bronze with these rows, in one file."""
        self.batch += 1
        advance = {Txn.BATCH: self.batch}
        together = pa.concat_tables(rows)
        info = {"batch": str(self.batch), "rows": str(together.num_rows), "quarantined": "0"}
        return put(self.pipeline.bronze, together, advance, info)

    def silver(self, rows: pa.Table, game: str = "uno", *, floor: bool = True, replace: bool = False, **counters: int) -> None:
        """A game's rows of the newest batch, or all that it has (`replace`); `counters`: further transaction ids."""
        advance = {self.identity.app: self.batch, **counters}
        self._put(self.pipeline.lakehouse.silver(game), rows, advance, self.batch, replace=replace)
        if floor:
            self.pipeline.progress.update(self.identity.key, lambda now: now.done(Layer.SILVER, self.batch, {game: self.batch}))

    def gold(self, game: str = "uno") -> None:
        """Gold has all rows of silver."""
        silver = self.pipeline.lakehouse.silver(game).open()
        gold = self.pipeline.lakehouse.gold(game)
        taken = silver.transaction_version(self.identity.app)
        rows = pa.table({"game_name": [game], "gamer_id": ["g"], "session_count": [1]})
        self._put(gold, rows, {silver_app(silver): taken}, taken, replace=gold.open() is not None)

    def _put(self, table: Table, rows: pa.Table, advance: dict[str, int], batch: int, **options: object) -> None:
        """A commit to a table, or to a game's part of one."""
        if table.part is None:
            put(table, rows, advance, {BATCH_INFO: str(batch)}, **options)
            return
        writer = StagedWriter(table, rows.schema)
        writer.write(rows.select(writer.schema.names))
        of_part = table_id(table.open())
        plan = Commit(table, rows.schema, writer.close(), {}, advance, of_part, info={BATCH_INFO: str(batch)}, **options)
        (outcome,) = commit_group({str(table.part): plan}).values()
        assert not isinstance(outcome, Exception), outcome

    def load(self, ages: Sequence[float], game: str = "uno", **columns: object) -> None:
        """A batch of one game in all layers."""
        rows = events(ages, self.batch + 1, game, **columns)
        self.bronze(rows)
        self.silver(rows, game)
        self.gold(game)

    def maintained(self, *, dry_run: bool = False) -> dict[str, TableMaintenance]:
        """What maintenance did, or would do."""
        report = RunReport()
        maintain(self.pipeline, report, dry_run=dry_run)
        assert not [entry.error for entry in report.maintenance.values() if entry.error], report.maintenance
        return report.maintenance

    def ages(self, table: Table) -> list[int]:
        """The ages in days of a table's rows by their arrival, sorted."""
        rows = table.open().to_pyarrow_table().column("_kafka_timestamp").to_pylist()
        now = datetime.fromtimestamp(time.time(), UTC)
        return sorted(round((now - at).total_seconds() / 86_400) for at in rows)

    def raw_values(self) -> int:
        """Rows of bronze with a raw value."""
        column = self.pipeline.bronze.open().to_pyarrow_table().column("_raw_value")
        return len(column) - column.null_count

    def reconcile(self, changed: Sequence[str] | None = None) -> Reconciliation:
        """A check of all rows, or of what is new; raises if it does not add up."""
        result = reconcile(self.pipeline, changed, count_by_hand)
        assert result.passed, (result.summary(), result.metadata())
        return result


def count_by_hand(_pipeline, handle, _decisions, taken, settled, above) -> RowCounts:
    """As Spark's job counts bronze's rows; nothing is in quarantine."""
    counts = RowCounts(Counter(), Counter(), Counter(), Counter())
    for row in handle.to_pyarrow_table(columns=["game_name", "_batch"]).to_pylist():
        if row["_batch"] > above:
            game = row["game_name"] if row["game_name"] in taken else None
            late = game is not None and row["_batch"] > taken[game]
            counts.rows[game] += 1
            counts.pending[game] += late
            counts.settled[None if late else game] += row["_batch"] <= settled
    return counts
