"""Silver's load with `DEDUPLICATE` beside the same load without, in turns: new rows beside few and many rows of history.

A day has as many rows as are new. One new row in fifty was sent the day before, one in a hundred twice among the new ones.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.arena import Arena, settings_for
from benchmarks.figures import Figure, Target, ratio
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.columns import BRONZE_ONLY, OWN_COLUMNS
from game_events.lakehouse.data.staging import StagedFile, staged
from game_events.lakehouse.tables import BRONZE, Lakehouse, Table, table_id
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.rules import Deduplicate

GAMES = 10
DAY_H = 24
#: Days of history -> the most that a load may cost, in loads without the setting.
HISTORIES = {0.5: 1.5, 25: 2.0}
#: A way to load, and the windows in hours: a day and a half, and one that reaches all of the history.
WITHOUT, WITH, WIDE = "without", "with", "all of it within the window"
WINDOWS = {WITHOUT: None, WITH: 1.5 * DAY_H, WIDE: 1_000 * DAY_H}
RESENT, TWICE = 50, 100
#: Rows of a file of bronze.
PART = 500_000
BEGIN_US = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1e6)
COLUMNS = pa.schema(
    [
        ("game_name", pa.string()),
        ("gamer_id", pa.string()),
        ("event_id", pa.string()),
        ("event_timestamp", pa.timestamp("us", "UTC")),
        ("device_id", pa.string()),
        ("level", pa.int64()),
        ("amount", pa.float64()),
        ("note", pa.string()),
    ]
)


def deduplicate(arena: Arena) -> list[Figure]:
    """Bronze's new rows to silver; one round of each is left out."""
    figures = list[Figure]()
    for days, most in HISTORIES.items():
        beside = f"{arena.events:,} new rows beside {int(arena.events * days):,}"
        ways = [way for way in WINDOWS if way != WIDE or days > 1]
        with arena.lakehouse() as made:
            arena.say(f"making {days:g} days of history")
            _make(arena, made, days)
            for pair in range(-1, arena.pairs):
                for way in ways:
                    _load(arena, made, f"{beside}, {way}", pair, WINDOWS[way])
        times = {way: arena.measured.seconds([f"{beside}, {way}"], GAMES) for way in ways}
        figures += [Figure(f"{beside}, {way}", "s", times[way]) for way in ways]
        figures.append(ratio(f"{beside}: with / without", times[WITH], times[WITHOUT], Target("<=", most)))
    return figures


def _load(arena: Arena, made: Path, name: str, pair: int, window_h: float | None) -> None:
    entries = () if window_h is None else (Deduplicate(key=("event_id",), window_h=window_h),)
    with arena.lakehouse() as root:
        # Links instead of copies: files are never changed.
        shutil.copytree(made, root, copy_function=os.link)
        pipeline = arena.pipeline("bench_deduplicate", root, deduplicate=entries)
        report = RunReport()
        arena.timed(name, GAMES, pair, lambda: refresh_silver(pipeline, report))
        assert report.success, report.errors
        sent_again = len(range(0, arena.events, RESENT)) + len(range(1 + GAMES, arena.events, TWICE)) if entries else 0
        assert (rows := report.rows("silver")) == arena.events - sent_again, f"{rows} rows, {sent_again} were sent again"


def _make(arena: Arena, root: Path, days: float) -> None:
    """A first batch of a row for each game, so many rows of history in silver, and a batch of new rows in bronze."""
    settings = settings_for(arena.folder, "bench_deduplicate", root)
    lakehouse = Lakehouse.of(settings)
    bronze = lakehouse.table(BRONZE)
    random = np.random.default_rng(1)
    _commit(bronze, [_rows(_ids(random, GAMES), np.arange(GAMES), 1, 0)], {Txn.BATCH: 1})
    refresh_silver(Pipeline(settings, lambda: arena.spark), report := RunReport())
    assert report.success, report.errors
    known = _ids(random, 0)
    old = int(arena.events * days)
    for start in range(0, old, arena.events):
        for game in range(GAMES):
            numbers = np.arange(start + game, min(old, start + arena.events), GAMES)
            ids = _ids(random, len(numbers))
            rows = _rows(ids, numbers, 1, DAY_H * start / arena.events).drop_columns(list(BRONZE_ONLY))
            _commit(lakehouse.silver(f"game_{game}"), [rows], {})
            known = ids if game == 0 else known
    _commit(bronze, _new(arena.events, known, random, DAY_H * days), {Txn.BATCH: 2})


def _new(count: int, known: pa.StringArray, random: np.random.Generator, hour: float) -> Iterator[pa.Table]:
    """New rows: some with an id of the history of their game, some with that of the row of their game before."""
    for start in range(0, count, PART):
        numbers = np.arange(start, min(count, start + PART))
        source = np.arange(len(numbers))
        source[1 + GAMES :: TWICE] -= GAMES
        source[::RESENT] = len(numbers) + numbers[::RESENT] // RESENT
        ids = pa.concat_arrays([_ids(random, len(numbers)), known]).take(pa.array(source))
        yield _rows(ids, numbers, 2, hour)


def _ids(random: np.random.Generator, count: int) -> pa.StringArray:
    """Random texts of 32 characters."""
    offsets = np.arange(0, 32 * (count + 1), 32, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(random.bytes(16 * count).hex().encode()))


def _rows(ids: pa.StringArray, numbers: npt.NDArray[np.int64], batch: int, hour: float) -> pa.Table:
    """Rows of bronze with these ids; the number says which game and gamer."""
    count = len(numbers)
    times = pa.array(BEGIN_US + int(hour * 3.6e9) + numbers % 1_000_000).cast(pa.timestamp("us", "UTC"))
    values = {
        "game_name": _texts("game_", numbers % GAMES),
        "gamer_id": _texts("gamer-", numbers % 99_991),
        "event_id": ids,
        "event_timestamp": times,
        "device_id": _texts("device_", numbers % 20),
        "level": pa.array(numbers % 77),
        "amount": pa.array(numbers * 0.25),
        "note": _texts("note ", numbers % 999),
        "_kafka_topic": pa.repeat("bench", count),
        "_kafka_topic_id": pa.repeat("bench-id", count),
        "_kafka_partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "_kafka_offset": pa.array(numbers),
        "_kafka_timestamp": times,
        "_batch": pa.repeat(batch, count),
    }
    schema = pa.schema([*OWN_COLUMNS, *COLUMNS])
    return pa.table({f.name: values.get(f.name, pa.nulls(count, f.type)) for f in schema}).cast(schema)


def _texts(prefix: str, numbers: npt.NDArray[np.int64]) -> pa.Array:
    codes = pa.array(numbers).dictionary_encode()
    names = [f"{prefix}{number}" for number in codes.dictionary.to_pylist()]
    return pa.array(names, pa.string()).take(codes.indices)


def _commit(table: Table, parts: Iterable[pa.Table], set_transactions: Mapping[str, int]) -> None:
    """Add rows, a file for each part."""
    files = list[StagedFile]()
    for rows in parts:
        files += staged(table, rows)
    schema = pa.schema([*OWN_COLUMNS, *COLUMNS])
    columns = schema if table.key == BRONZE else pa.schema([f for f in schema if f.name not in BRONZE_ONLY])
    commit(Commit(table, columns, files, {}, set_transactions, table_id(table.open())))
