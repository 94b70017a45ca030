"""A random history of a lakehouse with Iceberg beside Delta, of which no step needs Spark or a server."""

from __future__ import annotations

import random
import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.maintenance import join_files
from game_events.lakehouse.tables import paths, table_id
from game_events_tests.support.faults import at_failpoints
from game_events_tests.support.iceberg import caught_up, iceberg_table, rows_in_delta, rows_in_iceberg
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put, thin_out, without_retention

NESTED = pa.struct([("a", pa.int64()), ("l", pa.list_(pa.string()))])
MORE_NESTED = pa.struct([*NESTED, ("late", pa.int32())])
EVENTS = pa.schema(
    [
        ("_batch", pa.int64()),
        ("gamer_id", pa.string()),
        ("n", pa.int32()),
        ("f", pa.float64()),
        ("big", pa.decimal128(20, 0)),
        ("event_at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("ok", pa.bool_()),
        ("nested", NESTED),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
GOLD = pa.schema([("gamer_id", pa.string()), ("score", pa.int64())])

#: Values at the edges of what statistics hold, and none.
EDGES = {
    "gamer_id": ["", "p\0", "zz\U0002070e", "é" * 64, None],
    "n": [-(2**31), 2**31 - 1, 0, None],
    "f": [float("nan"), -0.0, float("inf"), None],
    "big": [Decimal(2**64 - 1), Decimal(0), None],
    "event_at": [datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 999_999, UTC), None],
    "day": [date(1, 1, 1), date(9999, 12, 31), None],
    "raw": [b"", b"\xff\xff", None],
    "ok": [True, False, None],
}

#: The same predicate for Iceberg and for DuckDB.
PREDICATES = [
    ("gamer_id = 'zz\U0002070e'", "gamer_id = 'zz\U0002070e'"),
    ("gamer_id > 'zz'", "gamer_id > 'zz'"),
    ("n = 2147483647", "n = 2147483647"),
    ("n <= -2147483648", "n <= -2147483648"),
    ("n is null", "n is null"),
    ("event_at > '2026-01-01T00:00:00.999998+00:00'", "event_at > timestamptz '2026-01-01 00:00:00.999998+00:00'"),
    ("day = '9999-12-31'", "day = date '9999-12-31'"),
    ("big = 18446744073709551615", "big = 18446744073709551615"),
    ("ok = false", "ok = false"),
    ("f = 0.0", "f = 0.0"),
    ("f > 1000", "f > 1000 and not isnan(f)"),
]
OF_A_GAME = [("game_name = 'uno'", "game_name = 'uno'")]


class KilledError(BaseException):
    """The process ended."""


class History:
    """Tables, and what may happen to them."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)  # noqa: S311 - an order of steps
        self.pipeline = self.new_process()
        lakehouse = self.pipeline.lakehouse
        self.silver = lakehouse.table("silver_rummy_events")
        self.gold = lakehouse.table("gold_rummy_player_agg")
        self.unified = lakehouse.table("gold_unified_player_agg")
        self.batch = 0
        self.extra: list[pa.Field] = []
        self.nested = NESTED

    def new_process(self):
        return without_spark(self.root, iceberg=True)

    def step(self) -> str:
        """Do something; returns its name."""
        steps = [name for name in dir(self) if name.startswith("may_")]
        name = self.random.choice([*steps, *["may_append"] * 4])
        getattr(self, name)()
        return name

    def some_rows(self) -> pa.Table:
        self.batch += 1
        pick = self.random.choice
        rows = []
        for _ in range(self.random.randint(1, 4)):
            row = {name: pick(values) for name, values in EDGES.items()}
            row |= {"_batch": self.batch, "nested": {"a": self.batch, "l": [None, "x"]}, "counts": [("k", self.batch)]}
            row |= {field.name: pick([None, 7]) for field in self.extra}
            rows.append(row)
        fields = [field.with_type(self.nested) if field.name == "nested" else field for field in EVENTS]
        return pa.Table.from_pylist(rows, pa.schema([*fields, *self.extra]))

    def may_append(self):
        put(self.silver, self.some_rows())

    def may_append_twice(self):
        self.may_append()
        self.may_append()

    def may_get_a_column(self):
        self.extra.append(pa.field(f"new_{self.batch}_{len(self.extra)}", pa.int64()))
        self.may_append()

    def may_get_a_nested_column(self):
        self.nested = MORE_NESTED
        self.may_append()

    def may_commit_no_rows(self):
        handle = self.silver.open()
        if handle is not None:
            put(self.silver, EVENTS.empty_table(), {"seen": handle.version()})

    def may_replace_gold(self):
        rows = [{"gamer_id": f"p{n}", "score": self.random.randint(0, 9)} for n in range(self.random.randint(1, 3))]
        put(self.gold, pa.Table.from_pylist(rows, GOLD), replace=True, reshape=True)

    def may_reshape_gold(self):
        kind = self.random.choice([pa.int64(), pa.string(), pa.date32()])
        put(self.gold, pa.table({"gamer_id": ["p"], "other": pa.nulls(1, kind)}), replace=True, reshape=True)

    def may_compact(self):
        handle = self.silver.open()
        files = [] if handle is None else paths(handle)
        if len(files) > 1:
            join_files(self.silver, handle, self.random.sample(files, self.random.randint(2, len(files))))

    def may_erase(self):
        handle = self.silver.open()
        if handle is not None and (files := paths(handle)):
            put(self.silver, self.some_rows(), rewritten=frozenset(self.random.sample(files, 1)), info={"why": "erased"})
            caught_up(self.new_process(), forget=True)
            held = iceberg_table(self.pipeline, self.silver)
            assert len(held.metadata.snapshots) == 1

    def may_restore(self):
        if self.silver.open() is not None:
            table = DeltaTable(self.silver.uri)
            if table.version():
                table.restore(self.random.randint(max(0, table.version() - 3), table.version() - 1), ignore_missing_files=True)

    def may_be_written_by_others(self):
        if self.silver.open() is not None:
            write_deltalake(self.silver.uri, self.some_rows(), mode="append", schema_mode="merge")

    def may_be_emptied_by_others(self):
        """Of single rows delta-rs would write files with a type of text that pyiceberg cannot read beside others."""
        if self.silver.open() is not None:
            DeltaTable(self.silver.uri).delete()

    def may_be_made_again(self):
        shutil.rmtree(self.silver.uri, ignore_errors=True)
        self.may_append()

    def may_replace_a_game(self):
        game = self.random.choice(["uno", "poker"])
        handle = self.unified.open()
        old = [] if handle is None else [path for path in paths(handle) if path.startswith(f"game_name={game}/")]
        rows = pa.table({"gamer_id": [f"{game}{n}" for n in range(self.random.randint(1, 3))]})
        Path(self.unified.uri, f"game_name={game}").mkdir(parents=True, exist_ok=True)
        writer = StagedWriter(self.unified, rows.schema, folder=f"game_name={game}/")
        writer.write(rows)
        schema = pa.schema([("game_name", pa.string()), *rows.schema])
        made = {"table_id": table_id(handle), "rewritten": frozenset(old), "partition_by": ("game_name",)}
        commit(Commit(self.unified, schema, writer.close(), {}, {"c": self.batch}, **made))

    def may_lose_replaced_files(self):
        """Files that no version needs are deleted as if the retention was over, after the snapshots that named them."""
        caught_up(self.new_process(), forget=True)
        for table in (self.silver, self.gold):
            handle = table.open()
            if handle is not None:
                thin_out(without_retention(table))

    def may_be_killed(self):
        self.may_append()
        point = self.random.choice(["iceberg_staged", "iceberg_committed"])

        def kill(name, _):
            if name == point:
                raise KilledError

        with at_failpoints(kill), pytest.raises(KilledError):
            caught_up(self.new_process())

    def may_have_a_rival(self):
        """Another process commits to the same tables while this one is about to."""
        self.may_append()
        others = [self.new_process()]

        def rival(name, _):
            if name == "iceberg_staged" and others:
                caught_up(others.pop())

        with at_failpoints(rival):
            caught_up(self.pipeline)

    def compare(self, after: str) -> None:
        for table in (self.silver, self.gold, self.unified):
            if table.open() is None:
                continue
            held = iceberg_table(self.pipeline, table)
            assert rows_in_iceberg(held) == rows_in_delta(table), after
            some = self.random.sample(PREDICATES, 3) if table == self.silver else OF_A_GAME if table == self.unified else []
            for ours, theirs in some:
                assert rows_in_iceberg(held, ours) == rows_in_delta(table, theirs), (after, ours)
