"""A year of 20 games, 5 % of events late, in files of one day each (`LAYOUT`): what a query on 48 hours reads, and the cost.

Beside it the same rows without a layout, and written by Spark with partition columns. A query reads the row groups that are
left after the files' bounds in Delta's log, then the footers' ones. A first load of a few days, whose files are by day as they
are written, is measured by itself: in the year's one a day has too few rows, and maintenance divides the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import functions as F

from benchmarks.arena import PARTITIONS, Arena, settings_for
from benchmarks.figures import Figure, Target, ratio
from benchmarks.lakes import require
from game_events.lakehouse.data.reading import may_hold
from game_events.lakehouse.tables import Lakehouse, add_actions
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.local.producer.produce import produce_bulk
from game_events.plugins.local.producer.simulator import BulkSimulation

GAMES = 20
LATE = 0.05
FIRST = datetime(2025, 1, 1, tzinfo=UTC)
HOURS_48 = (FIRST + timedelta(days=200), FIRST + timedelta(days=202, microseconds=-1))
#: Records that are made at a time: a simulation has its events in memory.
PART = 100_000
TIME = "event_timestamp"
MAINTAINED, WRITTEN = "maintenance", "written from silver"
PLAIN, BY_DAY, SPARK = "without a layout", "by day", "by Spark, partitioned by game and day"


@dataclass(frozen=True)
class Span:
    """Events over so many days; more of them have files by day as they are written. `goal`: of a first load's ratio."""

    label: str
    days: int
    goal: Target | None = None


YEAR, FEW = Span("a year", 365, Target("<=", 1.15)), Span("3 days", 3, Target("<=", 1.15))


def layout(arena: Arena) -> list[Figure]:
    """First loads in pairs; of the year's last one bytes of a query, by layout, after maintenance."""
    reads: list[Figure] = []
    for span in (FEW, YEAR):
        topic = _produced(arena, span)
        for pair in range(-1, arena.pairs):
            with arena.lakehouse() as plain, arena.lakehouse() as by_day:
                _loaded(arena, span, topic, PLAIN, plain, pair)
                _loaded(arena, span, topic, BY_DAY, by_day, pair)
                if span is YEAR and pair == arena.pairs - 1:
                    reads = _reads(arena, topic, {PLAIN: plain, BY_DAY: by_day})
    return [*_costs(arena), *reads]


def _reads(arena: Arena, topic: str, roots: Mapping[str, Path]) -> list[Figure]:
    """Bytes of a query, and of all; and seconds of maintenance, and of Spark's write."""
    tables: dict[str, list[DeltaTable]] = {}
    for name, root in roots.items():
        arena.timed(_step(YEAR, name, MAINTAINED), GAMES, 0, partial(_maintained, arena, topic, name, root))
        tables[name] = _silver(root)
    target = roots[PLAIN] / "spark"
    arena.timed(_step(YEAR, SPARK, WRITTEN), GAMES, 0, partial(_written_by_spark, arena, tables[PLAIN], target))
    tables[SPARK] = [DeltaTable(str(target))]
    figures: list[Figure] = []
    for name, found in tables.items():
        read, size, files = _bytes_of(found, *HOURS_48)
        note = f"{read:,} of {size:,} bytes in {files:,} files"
        goal = Target("<=", 2.0) if name == BY_DAY else None
        figures.append(Figure(f"bytes that a query on 48 hours of a year reads, {name}", "%", [100 * read / size], goal, note))
    names = [_step(YEAR, PLAIN, MAINTAINED), _step(YEAR, BY_DAY, MAINTAINED), _step(YEAR, SPARK, WRITTEN)]
    return figures + [Figure(name, "s", arena.measured.seconds([name], GAMES)) for name in names]


def _costs(arena: Arena) -> Iterator[Figure]:
    for span in (FEW, YEAR):
        names = [_step(span, name, "first load") for name in (PLAIN, BY_DAY)]
        before, after = (arena.measured.seconds([name], GAMES) for name in names)
        for name, seconds in zip(names, (before, after), strict=True):
            yield Figure(name, "s", seconds)
        yield ratio(f"first load of {span.label}: by day / without a layout", after, before, span.goal)


def _step(span: Span, name: str, what: str) -> str:
    return f"{span.label}, {name}: {what}"


def _produced(arena: Arena, span: Span) -> str:
    """A topic with half of the events, each another one, in the order of their arrival."""
    topic = f"bench_layout_{span.days}"
    count = arena.events // 2
    arena.say(f"producing {count:,} events of {span.label}")
    between = span.days * 86_400 / count
    for start in range(0, count, PART):
        records = min(PART, count - start)
        simulation = BulkSimulation(
            records=records,
            games=GAMES,
            pool_per_version=records,
            gamers_per_game=10_000,
            seed=start,
            base_time=FIRST + timedelta(seconds=start * between),
            seconds_between=between,
            late_share=LATE,
        )
        produce_bulk(settings_for(arena.folder, topic, arena.folder / "unused"), simulation, partitions=PARTITIONS)
    return topic


def _options(name: str) -> dict[str, Any]:
    return {"layout": {"silver": "day", "bronze": "arrival_day"}} if name == BY_DAY else {}


def _loaded(arena: Arena, span: Span, topic: str, name: str, root: Path, pair: int) -> None:
    pipeline = arena.pipeline(topic, root, **_options(name))
    events = arena.events // 2
    arena.timed(_step(span, name, "first load"), GAMES, pair, partial(refresh, pipeline), events)
    require(root, events, name)


def _maintained(arena: Arena, topic: str, name: str, root: Path) -> None:
    report = RunReport()
    maintain(arena.pipeline(topic, root, **_options(name)), report, layout=True)
    assert report.success, report.errors
    assert not sum(entry.spread for entry in report.maintenance.values())


def _silver(root: Path) -> list[DeltaTable]:
    lakehouse = Lakehouse(str(root))
    return [DeltaTable(lakehouse.silver(game).uri) for game in lakehouse.games()]


def _written_by_spark(arena: Arena, tables: Iterable[DeltaTable], target: Path) -> None:
    rows = arena.spark.read.parquet(*[uri for table in tables for uri in table.file_uris()])
    rows = rows.withColumn("day", F.to_date(TIME)).repartition("game_name", "day")
    rows.write.format("delta").partitionBy("game_name", "day").save(str(target))


def _bytes_of(tables: Iterable[DeltaTable], low: datetime, high: datetime) -> tuple[int, int, int]:
    """Bytes of the row groups that may have rows of these times; of all; and the number of files."""
    read = size = files = 0
    for table in tables:
        actions = add_actions(table)
        remaining = may_hold(actions, TIME, low, high).to_pylist()
        root = Path(unquote(urlsplit(table.table_uri).path))
        for path, is_left in zip(actions.column("path").to_pylist(), remaining, strict=True):
            files += 1
            for length, is_read in _row_groups(root / unquote(path), low, high):
                size += length
                read += length if is_left and is_read else 0
    return read, size, files


def _row_groups(path: Path, low: datetime, high: datetime) -> Iterator[tuple[int, bool]]:
    """Compressed bytes of each row group, and whether its bounds leave it to be read."""
    metadata = pq.read_metadata(path)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(index) for index in range(group.num_columns)]
        times = next(column.statistics for column in columns if column.path_in_schema == TIME)
        is_read = times is None or not times.has_min_max or not (times.min > high or times.max < low)
        yield sum(column.total_compressed_size for column in columns), is_read
