"""Bronze, silver and gold that are written by hand, and gold's plans from them; no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, silver_app
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.pipeline.gold.plan import GamePlan, GoldRun, plan_games, player_agg
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put

TIME = pa.timestamp("us", tz="UTC")


class GoldWorld:
    """A bronze of two batches, and the tables that follow from it."""

    def __init__(self, folder: Path) -> None:
        self.pipeline = without_spark(folder)
        self.bronze = BronzeIdentity.of(put(self.pipeline.bronze, {"game_name": ["uno"], "_batch": [2]}, {Txn.BATCH: 2}))

    def silver(self, game: str, batch: int, **columns: object) -> None:
        """Append a row of a batch to a game's silver."""
        columns = {"gamer_id": ["a"], "event_timestamp": pa.array([0], TIME), **columns, "_batch": [batch]}
        put(self.pipeline.lakehouse.silver(game), columns, {self.bronze.app: batch}, {BATCH_INFO: str(batch)})

    def gold(self, game: str, batch: int) -> None:
        """Append a row to a game's gold, which then has silver up to a batch."""
        app = silver_app(self.pipeline.lakehouse.silver(game).open())
        put(self.pipeline.lakehouse.gold(game), {"gamer_id": ["a"]}, {app: batch}, {BATCH_INFO: str(batch)})

    def run(self, *, full: bool = False) -> GoldRun:
        """A run of the built-in aggregate."""
        return GoldRun(self.pipeline, player_agg(self.pipeline.settings), self.bronze, full)

    def plans(self, *games: str, full: bool = False) -> tuple[Mapping[str, GamePlan], Mapping[str, str]]:
        """Plans of games; game that cannot be planned -> reason."""
        return plan_games(self.run(full=full), games)
