"""The invariants after a chaos run, each as one number that must be 0: DuckDB over the files that Delta's log lists.

Nothing of the code under test reads here: the log is delta-rs's, the rows are DuckDB's, the truth is the topic's.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from game_events.config.settings import Settings

REJECTED_DEVICE, DROPPED_DEVICE = "device_3", "device_7"
#: What the run's rules say; in silver is what they let through.
RULES = [
    {"name": "not_device_3", "sql": f"device_id <> '{REJECTED_DEVICE}'", "action": "quarantine"},
    {"name": "not_device_7", "sql": f"device_id <> '{DROPPED_DEVICE}'", "action": "drop"},
]
_IN_SILVER = f"decodable AND device NOT IN ('{REJECTED_DEVICE}', '{DROPPED_DEVICE}')"
_US = "epoch_us({})"


def tables(settings: Settings) -> dict[str, DeltaTable]:
    """Every Delta table below the root."""
    root = Path(settings.lakehouse)
    return {f.name: DeltaTable(str(f)) for f in sorted(root.iterdir()) if (f / "_delta_log").is_dir()}


def versions(settings: Settings) -> dict[str, int]:
    """Delta version of each table."""
    return {name: table.version() for name, table in tables(settings).items()}


class Books:
    """The tables as views of one DuckDB connection: `truth`, `bronze`, `quarantine`, `silver`, `gold`, `unified`, `schemas`."""

    def __init__(self, settings: Settings, truth: pa.Table) -> None:
        self.connection = duckdb.connect()
        self.connection.execute("SET TimeZone = 'UTC'")
        self.connection.register("truth", truth)
        found = tables(settings)
        self.games = [n.removeprefix("silver_").removesuffix("_events") for n in found if n.startswith("silver_")]
        self._view("bronze", [("", found["bronze_events"])])
        self._view("quarantine", [("", found["quarantine_events"])])
        self._view("silver", [(g, found[f"silver_{g}_events"]) for g in self.games])
        self._view("gold", [(g, found[f"gold_{g}_player_agg"]) for g in self.games if f"gold_{g}_player_agg" in found])
        self._view("unified", [("", found["gold_unified_player_agg"])])
        self._view("schemas", [("", found["schemas"])])

    def _view(self, name: str, parts: list[tuple[str, DeltaTable]]) -> None:
        selects = []
        for game, table in parts:
            files = ", ".join(f"'{uri}'" for uri in table.file_uris())
            if files:
                selects.append(f"SELECT '{game}' AS table_game, * FROM read_parquet([{files}], union_by_name = true)")
        self.connection.execute(f"CREATE VIEW {name} AS {' UNION ALL BY NAME '.join(selects)}")

    def count(self, sql: str) -> int:
        """A single number."""
        row = self.connection.execute(sql).fetchone()
        assert row is not None
        return int(row[0])

    def differ(self, left: str, right: str) -> int:
        """Rows of one query that the other lacks, both ways; a row that is there twice instead of once counts."""
        both = f"(({left}) EXCEPT ALL ({right})) UNION ALL (({right}) EXCEPT ALL ({left}))"
        return self.count(f"SELECT count(*) FROM ({both})")


def broken(books: Books) -> dict[str, int]:
    """Requirement -> number of rows that break it."""
    at = "_kafka_partition::BIGINT, _kafka_offset::BIGINT"
    place = "SELECT _kafka_partition, _kafka_offset FROM"
    decided = f"{place} bronze UNION ALL {place} quarantine WHERE layer = 'bronze'"
    aggregate = "SELECT {}, count(*), min({}), max({}) FROM {} GROUP BY ALL"
    in_gold = f"gamer_id, session_count, {_US.format('min_timestamp')}, {_US.format('max_timestamp')}"
    event_us = _US.format("event_timestamp")
    return {
        "bronze holds each decodable record once, byte for byte": books.differ(
            f"SELECT {at}, _raw_value FROM bronze", 'SELECT partition, "offset", value FROM truth WHERE decodable'
        ),
        "bronze says of each what the record says": books.differ(
            f"SELECT {at}, game_name, gamer_id, {event_us}, device_id FROM bronze",
            'SELECT partition, "offset", game, gamer, time_us, device FROM truth WHERE decodable',
        ),
        "quarantine holds each other record once, byte for byte": books.differ(
            f"SELECT {at}, _raw_value FROM quarantine WHERE layer = 'bronze'",
            'SELECT partition, "offset", value FROM truth WHERE NOT decodable',
        ),
        "offsets are contiguous, none twice": books.count(
            "SELECT coalesce(sum(abs(n - distinct_n) + abs(n - (last + 1)) + first), 0) FROM (SELECT count(*) AS n, "
            "count(DISTINCT _kafka_offset) AS distinct_n, min(_kafka_offset) AS first, max(_kafka_offset) AS last "
            f"FROM ({decided}) GROUP BY _kafka_partition)"
        ),
        "all rows are of one topic": books.count("SELECT count(DISTINCT _kafka_topic_id) - 1 FROM bronze"),
        "silver of each game holds each row that rules let through, once": books.differ(
            f"SELECT table_game, game_name, {at} FROM silver",
            f'SELECT game, game, partition, "offset" FROM truth WHERE {_IN_SILVER}',
        ),
        "quarantine holds each rejected row once": books.differ(
            f"SELECT game, {at} FROM quarantine WHERE layer = 'silver' AND replayed_batch IS NULL",
            f"SELECT game, partition, \"offset\" FROM truth WHERE decodable AND device = '{REJECTED_DEVICE}'",
        ),
        "no silver row has another batch than in bronze": books.count(
            "SELECT count(*) FROM silver s JOIN bronze b USING (_kafka_partition, _kafka_offset) WHERE s._batch <> b._batch"
        ),
        "gold is what its silver says": books.differ(
            f"SELECT table_game, {in_gold} FROM gold", aggregate.format("table_game, gamer_id", event_us, event_us, "silver")
        ),
        "gold is what the topic says": books.differ(
            f"SELECT table_game, {in_gold} FROM gold",
            aggregate.format("game, gamer", "time_us", "time_us", f"truth WHERE {_IN_SILVER}"),
        ),
        "each schema is archived once": books.count("SELECT count(*) - count(DISTINCT schema_id) FROM schemas"),
        "the unified table is all games' gold": books.differ(
            f"SELECT game_name, {in_gold} FROM unified", f"SELECT table_game, {in_gold} FROM gold"
        ),
    }


def leaks(folder: Path, settings: Settings, secret: str) -> list[str]:
    """Places where a planted secret can be read: any file but the stack's own, and the text columns of every table."""
    found = []
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix != ".parquet" and "stack" not in file.relative_to(folder).parts[:2]:
            try:
                if secret.encode() in file.read_bytes():
                    found.append(str(file.relative_to(folder)))
            except FileNotFoundError:
                continue
    with duckdb.connect() as connection:
        for name, table in tables(settings).items():
            if table.file_uris():
                listed = ", ".join(f"'{uri}'" for uri in table.file_uris())
                asked = f"SELECT count(*) FROM read_parquet([{listed}], union_by_name = true) t WHERE contains(t::VARCHAR, ?)"
                row = connection.execute(asked, [secret]).fetchone()
                if row is not None and row[0]:
                    found.append(name)
    return found


def missing_files(settings: Settings) -> list[str]:
    """Files that a table's log names and that are not there."""
    return [uri for table in tables(settings).values() for uri in table.file_uris() if not Path(uri).exists()]
