"""A reader beside the chaos: every snapshot it sees must be whole."""

from __future__ import annotations

import threading
from pathlib import Path

import duckdb
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from game_events.config.settings import Settings

PAUSE_S = 0.5


class Watcher(threading.Thread):
    """Looks at the unified table, and at bronze, again and again.

    Attributes:
        looks: snapshots read.
        faults: what a snapshot may not show.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(name="watcher", daemon=True)
        self._root = Path(settings.lakehouse)
        self._ended = threading.Event()
        self._most = {"bronze_events": 0, "gold_unified_player_agg": 0}
        self.looks = 0
        self.faults: list[str] = []

    def run(self) -> None:
        """Until `stop`."""
        with duckdb.connect() as connection:
            while not self._ended.wait(PAUSE_S):
                for name, asked in (
                    ("gold_unified_player_agg", "sum(session_count), count(*) - count(DISTINCT (game_name, gamer_id))"),
                    ("bronze_events", "count(*), count(*) - count(DISTINCT (_kafka_topic, _kafka_partition, _kafka_offset))"),
                ):
                    self._look(connection, name, asked)

    def _look(self, connection: duckdb.DuckDBPyConnection, name: str, asked: str) -> None:
        uri = str(self._root / name)
        try:
            files = DeltaTable(uri).file_uris() if DeltaTable.is_deltatable(uri) else []
        except DeltaError as error:
            self.faults.append(f"{name} cannot be opened: {error}")
            return
        if not files:
            if self._most[name]:
                self.faults.append(f"{name} fell from {self._most[name]} to nothing")
            return
        listed = ", ".join(f"'{f}'" for f in files)
        try:
            row = connection.execute(f"SELECT {asked} FROM read_parquet([{listed}], union_by_name = true)").fetchone()
        except duckdb.Error as error:
            self.faults.append(f"{name} cannot be read: {error}")
            return
        rows, doubled = (int(n or 0) for n in row or (0, 0))
        self.looks += 1
        if doubled:
            self.faults.append(f"{name} holds {doubled} rows twice")
        if rows < self._most[name]:
            self.faults.append(f"{name} fell from {self._most[name]} to {rows}")
        self._most[name] = max(rows, self._most[name])

    def stop(self) -> None:
        """Return when the look under way is over."""
        self._ended.set()
        if self.is_alive():
            self.join(60)
