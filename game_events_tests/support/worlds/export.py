"""Silver and gold tables as the pipeline leaves them, without a topic: rows with coordinates, and each table's progress."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from game_events.config.settings import Settings, load_settings
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn
from game_events.lakehouse.tables import BRONZE, Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.export.rows import OnReplaced
from game_events.plugins.export.run import export_rows
from game_events_tests.support.servers.rest_receiver import Receiver
from game_events_tests.support.tables import put

TIME = pa.timestamp("us", tz="UTC")
BEGAN = datetime(2026, 11, 21, 10, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        pa.field("game_name", pa.string()),
        pa.field("gamer_id", pa.string()),
        pa.field("event_timestamp", TIME),
        pa.field("score", pa.decimal128(20, 0)),
        pa.field("payload", pa.binary()),
        pa.field("parts", pa.list_(pa.struct([pa.field("price", pa.decimal128(10, 2)), pa.field("at", TIME)]))),
        pa.field("note", pa.string()),
        pa.field("_kafka_topic", pa.string()),
        pa.field("_kafka_topic_id", pa.string()),
        pa.field("_kafka_partition", pa.int32()),
        pa.field("_kafka_offset", pa.int64()),
        pa.field("_batch", pa.int64()),
    ]
)
#: Waits of retries that a test can afford.
QUICK = {"rest_retry_delay_s": 0.02, "rest_timeout_s": 0.4, "rest_calls_per_task": 4, "rest_tasks": 2}


class World:
    """A lakehouse whose batches a test makes."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder, self.spark = folder, spark
        self.sent: dict[str, list[dict[str, Any]]] = {}
        self.batch = self._offset = 0

    def settings(self, receiver: Receiver | str | None = None, **more: Any) -> Settings:
        """With small waits; `receiver`: it, or its address."""
        url = receiver.url if isinstance(receiver, Receiver) else receiver
        chosen = {"lakehouse": str(self.folder / "lakehouse"), "state_dir": self.folder / "state", "rest_url": url}
        return load_settings(**(chosen | {"spark_master": "local[2]"} | QUICK | more))

    def pipeline(self, receiver: Receiver | str | None = None, **more: Any) -> Pipeline:
        """The parts, as a new process has them."""
        return Pipeline(self.settings(receiver, **more), lambda: self.spark)

    def export(
        self, receiver: Receiver | str, on_replaced: OnReplaced | None = None, files: str | None = None, **more: Any
    ) -> RunReport:
        """One run of the export."""
        report = RunReport()
        export_rows(self.pipeline(receiver, **more), report, on_replaced, files)
        return report

    def events(self, generation: dict[str, int] | None = None, **games: int) -> None:
        """One batch: so many rows of each game, in bronze and in silver; `generation`: of silver tables replaced by it."""
        self.batch += 1
        rows = {game: [self._row(game) for _ in range(count)] for game, count in games.items()}
        pipeline = self.pipeline()
        everything = [row for part in rows.values() for row in part]
        bronze = pipeline.bronze
        self._append(bronze, everything, {Txn.BATCH: self.batch})
        handle = bronze.open()
        assert handle is not None
        for game, part in rows.items():
            again = self.sent.get(game, []) if game in (generation or {}) else []
            advance = {BronzeIdentity.of(handle).app: self.batch}
            if game in (generation or {}):
                advance[Txn.INCARNATION] = (generation or {})[game]
            self._append(pipeline.lakehouse.silver(game), [*again, *part], advance, replace=bool(again))
            self.sent.setdefault(game, []).extend(part)
        pipeline.progress.update(
            BronzeIdentity.of(handle).key, lambda now: now.done("silver", self.batch, dict.fromkeys(games, self.batch))
        )

    def gold(self) -> None:
        """Gold follows silver."""
        report = RunReport()
        refresh_gold(self.pipeline(), report)
        assert report.success, report.errors

    def _row(self, game: str) -> dict[str, Any]:
        number = self._offset
        self._offset += 1
        return {
            "game_name": game,
            "gamer_id": f"gamer-{number % 7}",
            "event_timestamp": BEGAN + timedelta(seconds=number),
            "score": Decimal(18_446_744_073_709_551_615),
            "payload": b"\x00\xff",
            "parts": [{"price": Decimal("1.50"), "at": BEGAN}],
            "note": None if number % 2 else 'a "quoted" ünïcode',
            "_kafka_topic": "events",
            "_kafka_topic_id": "t",
            "_kafka_partition": number % 2,
            "_kafka_offset": number,
            "_batch": self.batch,
        }

    @staticmethod
    def _append(table: Table, rows: list[dict[str, Any]], advance: dict[str, int], *, replace: bool = False) -> None:
        schema = SCHEMA if table.name == BRONZE else pa.schema([f for f in SCHEMA if f.name != "_kafka_topic_id"])
        put(table, pa.Table.from_pylist(rows, schema=schema), advance, replace=replace)

    def offsets(self, *games: str) -> list[int]:
        """What has to arrive: offsets are unique over all games."""
        return sorted(row["_kafka_offset"] for game in games or self.sent for row in self.sent[game])


def offsets_of(receiver: Receiver) -> list[int]:
    """Distinct rows that the receiver took."""
    return sorted({row["_kafka_offset"] for row in receiver.rows})


def texts_below(folder: Path) -> bytes:
    """Every byte of every file."""
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def only_same_calls_were_repeated(receiver: Receiver) -> None:
    """Under a key there was one body, and no row came under two keys."""
    assert {len(bodies) for bodies in receiver.bodies_by_key().values()} <= {1}
    keys: dict[int, set[str]] = {}
    for call in receiver.calls:
        for row in json.loads(json.dumps(call["body"])):
            keys.setdefault(row["_kafka_offset"], set()).add(call["key"])
    assert {len(found) for found in keys.values()} <= {1}
