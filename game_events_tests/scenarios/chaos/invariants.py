"""The invariants after a chaos run, each as one number that must be 0: DuckDB over the files that Delta's log lists.

Nothing of the code under test reads here: the log is delta-rs's, the rows are DuckDB's, the truth is the topics'. Of bronze it
takes the order of the rows, `_batch` and the topics' ids, by which the first of the records with one event id counts.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from game_events.config.settings import Settings
from game_events_tests.scenarios.chaos.declared import (
    DROPPED_DEVICE,
    ITS_TABLES,
    REJECTED_DEVICE,
    TYPE_WITH_TABLES,
    Definitions,
)

#: Transaction ids of silver.
DUPLICATE, DROPPED = "rows_duplicate", "rows_dropped"
_US = "epoch_us({})"
#: Where a row is from.
_AT = "_source, _kafka_topic, _kafka_partition::BIGINT, _kafka_offset::BIGINT"
_PLACE = 'source, topic, partition, "offset"'
_SAME_PLACE = (
    't.topic = b._kafka_topic AND t.partition = b._kafka_partition AND t."offset" = b._kafka_offset AND t.source = b._source'
)


def tables(settings: Settings) -> dict[str, DeltaTable]:
    """Every Delta table below the root."""
    root = Path(settings.lakehouse)
    return {f.name: DeltaTable(str(f)) for f in sorted(root.iterdir()) if (f / "_delta_log").is_dir()}


def versions(settings: Settings) -> dict[str, int]:
    """Delta version of each table."""
    return {name: table.version() for name, table in tables(settings).items()}


class Books:
    """The tables as views of one DuckDB connection: `bronze`, `quarantine`, `silver`, `gold`, `unified`, `schemas`, `counted`.

    Beside them `truth`, and `expected`: its rows of games that rules let through; `nth` counts those of one event.
    """

    def __init__(self, settings: Settings, truth: pa.Table, definitions: Definitions) -> None:
        self.connection = duckdb.connect()
        self.connection.execute("SET TimeZone = 'UTC'")
        self.definitions = definitions
        found = tables(settings)
        self._silver = {
            name: name.removeprefix("silver_").removesuffix("_events") for name in found if name.startswith("silver_")
        }
        self.games = sorted({_game(name) for name in self._silver.values()})
        self._view("bronze", [("", found["bronze_events"])])
        self._view("quarantine", [("", found["quarantine_events"])])
        self._view("silver", [(name, found[table]) for table, name in self._silver.items()])
        self._view("gold", [(g, found[f"gold_{g}_player_agg"]) for g in self.games if f"gold_{g}_player_agg" in found])
        self._view("unified", [("", found["gold_unified_player_agg"])])
        self._view("schemas", [("", found["schemas"])])
        self.connection.register("counted", self._counters(found))
        self.connection.register("sent", truth)
        self._expect()

    def _view(self, name: str, parts: list[tuple[str, DeltaTable]]) -> None:
        selects = []
        for of, table in parts:
            files = ", ".join(f"'{uri}'" for uri in table.file_uris())
            if files:
                columns = f"'{_game(of)}' AS table_game, '{of.removeprefix(_game(of))}' AS table_type"
                selects.append(f"SELECT {columns}, * FROM read_parquet([{files}], union_by_name = true)")
        self.connection.execute(f"CREATE VIEW {name} AS {' UNION ALL BY NAME '.join(selects)}")

    def _counters(self, found: dict[str, DeltaTable]) -> pa.Table:
        rows = [
            {"game": _game(name)}
            | {counter: found[table].transaction_version(counter) or 0 for counter in (DUPLICATE, DROPPED)}
            for table, name in self._silver.items()
        ]
        return pa.Table.from_pylist(rows)

    def _expect(self) -> None:
        told = self.definitions
        self.connection.execute(
            f"CREATE VIEW truth AS SELECT *, {told.name_sql()} AS named, {told.game_sql()} AS game, "
            f"time_us + {told.later_us} AS at_us FROM sent"
        )
        self.connection.execute(
            "CREATE VIEW expected AS SELECT t.*, row_number() OVER (PARTITION BY t.game, t.event_id "
            "ORDER BY b._batch, b._kafka_topic_id, b._kafka_partition, b._kafka_offset) AS nth "
            f"FROM truth t JOIN bronze b ON {_SAME_PLACE} "
            f"WHERE t.decodable AND t.game IS NOT NULL AND t.device NOT IN ('{REJECTED_DEVICE}', '{DROPPED_DEVICE}')"
        )

    def count(self, sql: str) -> int:
        """A single number."""
        row = self.connection.execute(sql).fetchone()
        assert row is not None
        return int(row[0])

    def columns(self, view: str) -> list[str]:
        """Names of its columns."""
        return self.connection.sql(f"FROM {view}").columns

    def differ(self, left: str, right: str) -> int:
        """Rows of one query that the other lacks, both ways; a row that is there twice instead of once counts."""
        both = f"(({left}) EXCEPT ALL ({right})) UNION ALL (({right}) EXCEPT ALL ({left}))"
        return self.count(f"SELECT count(*) FROM ({both})")


def _game(name: str) -> str:
    """Whose table of silver it is: two underscores stand between game and type."""
    return name.partition("__")[0]


def broken(books: Books) -> dict[str, int]:
    """Requirement -> number of rows that break it."""
    return _broken_bronze(books) | _broken_silver(books) | _broken_gold(books)


def _broken_bronze(books: Books) -> dict[str, int]:
    place = "SELECT _kafka_topic, _kafka_partition, _kafka_offset FROM"
    decided = f"{place} bronze UNION ALL {place} quarantine WHERE layer = 'bronze'"
    says = f"_message_type, game_name, gamer_id, {_US.format('event_timestamp')}, device_id, event_id"
    return {
        "bronze holds each decodable record of each source once, byte for byte": books.differ(
            f"SELECT {_AT}, _raw_value FROM bronze", f"SELECT {_PLACE}, value FROM truth WHERE decodable"
        ),
        "bronze says of each what the record says, by the definitions in force": books.differ(
            f"SELECT {_AT}, {says} FROM bronze",
            f"SELECT {_PLACE}, type, named, gamer, at_us, device, event_id FROM truth WHERE decodable",
        ),
        "quarantine holds each other record of each source once, byte for byte": books.differ(
            f"SELECT {_AT}, _raw_value FROM quarantine WHERE layer = 'bronze'",
            f"SELECT {_PLACE}, value FROM truth WHERE NOT decodable",
        ),
        "offsets are contiguous, none twice": books.count(
            "SELECT coalesce(sum(abs(n - distinct_n) + abs(n - (last + 1)) + first), 0) FROM (SELECT count(*) AS n, "
            "count(DISTINCT _kafka_offset) AS distinct_n, min(_kafka_offset) AS first, max(_kafka_offset) AS last "
            f"FROM ({decided}) GROUP BY _kafka_topic, _kafka_partition)"
        ),
        "a topic has one id": books.count("SELECT count(DISTINCT _kafka_topic_id) - count(DISTINCT _kafka_topic) FROM bronze"),
        "each schema is archived once": books.count("SELECT count(*) - count(DISTINCT schema_id) FROM schemas"),
    }


def _broken_silver(books: Books) -> dict[str, int]:
    type_of_table = f"CASE type WHEN '{TYPE_WITH_TABLES}' THEN '__{ITS_TABLES}' ELSE '' END"
    sent = ", ".join(name for name in books.columns("bronze") if not name.startswith(("_", "table_")))
    counted = "SELECT game, sum({})::BIGINT AS n FROM counted GROUP BY game HAVING n > 0"
    routed = "FROM truth WHERE decodable AND game IS NOT NULL AND device"
    return {
        "silver of each game holds the first row of each event that rules let through, in the table of its type": books.differ(
            f"SELECT table_game, table_type, game_name, {_AT} FROM silver",
            f"SELECT game, {type_of_table}, game, {_PLACE} FROM expected WHERE nth = 1",
        ),
        "silver says of each row what bronze says": books.differ(
            # What no game has sent is no column of silver.
            f"SELECT {_AT}, _batch, _message_type, {sent} FROM (FROM silver UNION ALL BY NAME FROM bronze WHERE false)",
            f"SELECT {_AT}, _batch, _message_type, {sent} FROM bronze b "
            f"WHERE EXISTS (FROM expected t WHERE nth = 1 AND {_SAME_PLACE})",
        ),
        "duplicates are counted": books.differ(
            counted.format(DUPLICATE), "SELECT game, count(*) FROM expected WHERE nth > 1 GROUP BY game"
        ),
        "dropped rows are counted": books.differ(
            counted.format(DROPPED), f"SELECT game, count(*) {routed} = '{DROPPED_DEVICE}' GROUP BY game"
        ),
        "quarantine holds each rejected row once": books.differ(
            f"SELECT game, {_AT} FROM quarantine WHERE layer = 'silver' AND replayed_batch IS NULL",
            f"SELECT game, {_PLACE} {routed} = '{REJECTED_DEVICE}'",
        ),
    }


def _broken_gold(books: Books) -> dict[str, int]:
    aggregate = "SELECT {}, count(*), min({}), max({}) FROM {} GROUP BY ALL"
    in_gold = f"gamer_id, session_count, {_US.format('min_timestamp')}, {_US.format('max_timestamp')}"
    event_us = _US.format("event_timestamp")
    return {
        "gold is what its silver says": books.differ(
            f"SELECT table_game, {in_gold} FROM gold", aggregate.format("table_game, gamer_id", event_us, event_us, "silver")
        ),
        "gold is what the topics say": books.differ(
            f"SELECT table_game, {in_gold} FROM gold",
            aggregate.format("game, gamer", "at_us", "at_us", "expected WHERE nth = 1"),
        ),
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
