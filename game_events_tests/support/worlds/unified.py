"""Gold tables that are written by hand, and the unified table that is refreshed from them; no Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.data.staging import partition_of
from game_events.lakehouse.tables import UNIFIED, Layer, paths
from game_events.pipeline.gold.unified import gold_app, refresh_unified
from game_events.pipeline.reporting.report import RunReport
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put

TIME = pa.timestamp("us", tz="UTC")
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
#: Information of a commit that this project made.
OWN_COMMIT = {BATCH_INFO: "1"}
#: Gamer -> session count.
Sessions = dict[str, int]


class UnifiedWorld:
    """A bronze of one batch, and the tables that follow from it."""

    def __init__(self, folder: Path) -> None:
        self.pipeline = without_spark(folder)
        self.table = self.pipeline.lakehouse.table(UNIFIED)
        bronze = put(self.pipeline.bronze, {"game_name": ["uno"], "_batch": [1]}, {Txn.BATCH: 1}, OWN_COMMIT)
        self.key = BronzeIdentity.of(bronze).key
        self.batch = 0

    def gold(self, game: str, sessions: Sessions, **columns: pa.Array) -> None:
        """Replace a game's gold; the unified table has not seen it yet."""
        table = self.pipeline.lakehouse.gold(game)
        put(table, _aggregates(sessions) | columns, info=OWN_COMMIT, replace=table.exists())
        self.note_batch(game)

    def note_batch(self, *games: str) -> None:
        """Note in the progress that a batch with rows of these games is in gold."""
        self.batch += 1
        at = dict.fromkeys(games, self.batch)
        self.pipeline.progress.update(self.key, lambda now: now.done(Layer.SILVER, self.batch, at).done(Layer.GOLD, self.batch))

    def refresh(self, *, full: bool = False) -> RunReport:
        """One refresh of the unified table."""
        report = RunReport()
        refresh_unified(self.pipeline, report, full=full)
        return report

    def handle(self) -> DeltaTable:
        """The newest version."""
        handle = self.table.open()
        assert handle is not None
        return handle

    def shown(self) -> dict[str, Sessions]:
        """Game -> its rows, as polars reads the table."""
        found: dict[str, Sessions] = {}
        for row in pl.scan_delta(self.table.uri).collect().to_dicts():
            gamers = found.setdefault(row["game_name"], {})
            assert row["gamer_id"] not in gamers, "a row is there twice"
            gamers[row["gamer_id"]] = row["session_count"]
        return found

    def files(self) -> dict[str, list[Path]]:
        """Game -> its files in the newest version."""
        found: dict[str, list[Path]] = {}
        for path in paths(self.handle()):
            found.setdefault(partition_of(path)["game_name"], []).append(Path(self.table.uri, path))
        return found

    def on_disk(self) -> set[Path]:
        """All data files in the table's folder."""
        return set(Path(self.table.uri).rglob("*.parquet"))

    def write_old_form(self, rows: dict[str, Sessions]) -> None:
        """Write the table as earlier versions of this project did: one file, with the games in a column."""
        golds = [self.pipeline.lakehouse.gold(game).open() for game in rows]
        versions = {gold_app(gold): gold.version() for gold in golds if gold is not None}
        parts = [pa.table({"game_name": [game] * len(found)} | _aggregates(found)) for game, found in rows.items()]
        put(self.table, pa.concat_tables(parts), {**versions, Txn.COMMITS: 1}, OWN_COMMIT)
        self.pipeline.progress.update(self.key, lambda now: now.done(Layer.UNIFIED, self.batch))


def _aggregates(sessions: Sessions) -> dict[str, pa.Array]:
    """Columns of gold."""
    times = pa.array([NOON] * len(sessions), TIME)
    gamers, counts = pa.array(sessions, pa.string()), pa.array(sessions.values(), pa.int64())
    return {"gamer_id": gamers, "session_count": counts, "min_timestamp": times, "max_timestamp": times}
