"""Files that are written again: rows keep their numbers, names of files what they say, whichever way writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from game_events.config.file_layout import FileLayout
from game_events.lakehouse import laying_out, maintenance
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.enabling import enable
from game_events.lakehouse.data import rewriting
from game_events.lakehouse.data.reading import read_arrow, without_views
from game_events.lakehouse.data.rewriting import Rewriting, row_ids
from game_events.lakehouse.data.staging import StagedWriter, mark_of, new_name, staged
from game_events.lakehouse.laying_out import lay_out, not_laid_out, without_statistics
from game_events.lakehouse.maintenance import (
    FULL_GOAL,
    OutdatedFile,
    join_files,
    join_groups,
    outdated_files,
    renew,
    small_files,
)
from game_events.lakehouse.tables import Table, paths, table_id
from game_events.plugins.governance.commits import without
from game_events.plugins.governance.workers import EraseTask, PeopleToErase
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put
from game_events_tests.unit.pipeline.retention.world import World, events

MARK = "by12345678"


def marked(table: Table, rows: pa.Table) -> None:
    """Commit rows in a file whose name says something of them."""
    writer = StagedWriter(table, rows.schema, mark=MARK)
    writer.write(rows)
    put(table, rows, files=writer.close())


def renewed(table: Table) -> None:
    handle = table.open()
    renew(table, handle, [OutdatedFile(path, 1) for path in paths(handle)])


def erased(table: Table) -> None:
    handle = table.open()
    task = EraseTask({table.key: table}, PeopleToErase("gamer_id", "game_name", frozenset({"g0"})), rewrite=True)
    commit(without(table, handle, [task.scan(table.key, path) for path in paths(handle)], "run"))


def without_some(table: Table) -> None:
    """As removals by age write files again."""
    handle = table.open()
    files = Rewriting(table, handle).one_by_one(paths(handle), lambda rows: rows.filter(pc.not_equal(rows["gamer_id"], "g0")))
    commit(Commit(table, pa.schema([]), files, {}, {}, table_id(handle), handle.version(), rewritten=frozenset(paths(handle))))


WAYS = [renewed, erased, without_some]


def numbers_of(table: Table) -> dict[int, tuple[int, int]]:
    """Offset -> number and version of its row."""
    handle = table.open()
    ids = row_ids(table, handle)
    assert ids is not None
    found: dict[int, tuple[int, int]] = {}
    for path in paths(handle):
        rows = ids.kept(path, 0, pq.read_table(Path(table.uri, path), partitioning=None))
        numbers = zip(*(rows.column(name).to_pylist() for name in ids.columns), strict=True)
        found.update(zip(rows.column("_kafka_offset").to_pylist(), numbers, strict=True))
    return found


def assert_kept(table: Table, before: dict[int, tuple[int, int]], left: int) -> None:
    after = numbers_of(table)
    assert after.items() <= before.items()
    assert len(after) == left
    assert table.open().history(1)[0]["tags"] == {"delta.rowTracking.preserved": "true"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return without_spark(tmp_path).lakehouse.silver("uno")


@pytest.mark.parametrize("way", WAYS)
def test_a_file_in_place_of_one_other_keeps_what_the_name_of_that_says(table: Table, way: Callable[[Table], None]) -> None:
    marked(table, events([3, 2, 1], 1))
    before = set(paths(table.open()))
    way(table)
    after = set(paths(table.open()))
    assert not after & before
    assert [mark_of(path) for path in after] == [MARK]


def test_the_word_in_a_name_is_the_one_that_it_was_made_with() -> None:
    assert mark_of(f"game_name=uno/{new_name('zstd', 'odd')}") == "odd"
    assert mark_of(new_name("zstd")) == ""
    assert mark_of(f"0123456789abcdef-{new_name('snappy', MARK)}") == MARK
    assert mark_of("part-00000-of-another-engine.c000.snappy.parquet") == ""


@pytest.mark.parametrize("way", WAYS)
def test_rows_keep_their_numbers(table: Table, way: Callable[[Table], None]) -> None:
    put(table, events([3, 2, 1], 1))
    enable(replace(table, features=("rowTracking",)), table.open())
    put(table, events([3, 2, 1], 2))
    before = numbers_of(table)
    assert len(before) == 6
    way(table)
    assert_kept(table, before, 6 if way is renewed else 4)


@pytest.mark.parametrize(("days", "left"), [({"bronze": 30}, 3), ({"raw": 30}, 5)], ids=["rows by age", "raw values"])
def test_rows_keep_their_numbers_where_others_go_by_age(tmp_path: Path, days: dict[str, float], left: int) -> None:
    world = World(tmp_path, days)
    bronze = world.pipeline.bronze
    for ages in ([100, 2, 1], [90, 3]):
        world.load(ages)
        enable(replace(bronze, features=("rowTracking",)), bronze.open())
    before = numbers_of(bronze)
    done = world.maintained()["bronze_events"]
    assert done.expired + done.raw_values == 2
    assert_kept(bronze, before, left)


def joined(table: Table) -> None:
    join_groups(table, table.open(), [[path] for path in paths(table.open())])


@pytest.mark.parametrize("way", [*WAYS, joined])
def test_the_log_is_read_once_for_all_files(
    table: Table, way: Callable[[Table], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in range(1, 4):
        put(table, events([2, 1], batch))
    enable(replace(table, features=("rowTracking",)), table.open())
    reads: list[int] = []
    read_state = rewriting.read_state
    monkeypatch.setattr(rewriting, "read_state", lambda uri, version: reads.append(version) or read_state(uri, version))
    way(table)
    assert reads == [4 - 1]


def odd_name(table: Table, rows: pa.Table, name: str) -> None:
    """Commit rows in a file with a name that is another one where it is encoded for addresses."""
    (file,) = staged(table, rows)
    Path(table.uri, file.path).rename(Path(table.uri, name))
    put(table, rows, files=[replace(file, path=name)])


def compacted(table: Table) -> None:
    for group in small_files(table, table.open(), FULL_GOAL):
        join_files(table, table.open(), group)


def laid_out(table: Table) -> None:
    for group in not_laid_out(table, table.open(), few=True):
        lay_out(table, table.open(), group)


def with_more_statistics(table: Table) -> None:
    renew(table, table.open(), without_statistics(table, table.open()))


def outdated_ones(table: Table) -> None:
    renew(table, table.open(), outdated_files(table.open()))


@pytest.mark.parametrize("way", [compacted, laid_out, with_more_statistics, outdated_ones, *WAYS])
def test_files_with_names_that_addresses_encode_are_written_again_as_well(
    tmp_path: Path, way: Callable[[Table], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (laying_out, maintenance):
        monkeypatch.setattr(module, "SPREAD_BYTES", 1)
    pipeline = without_spark(tmp_path)
    plain = pipeline.lakehouse.silver("uno")
    table = plain if way is compacted else replace(plain, file_layout=FileLayout(day="event_timestamp", statistics=("x",)))
    rows = events([3, 2, 1], 1)
    rows = pa.table({f"c{n:02}": [n] * 3 for n in range(40)} | {n: rows[n] for n in rows.column_names} | {"x": [0.5] * 3})
    odd = {"part a.parquet", "part%20b.parquet", "pärt c#d.parquet"}
    for name in sorted(odd):
        odd_name(plain, rows, name)
    before = read_arrow(table, table.open()).num_rows
    way(table)
    assert not odd & set(paths(table.open()))
    assert read_arrow(table, table.open()).num_rows == before - (3 if way in (erased, without_some) else 0)


def test_texts_and_bytes_that_another_engine_has_written_as_views_can_be_filtered() -> None:
    text, data = pa.string_view(), pa.binary_view()
    header = pa.struct([pa.field("key", text), pa.field("value", data)])
    rows = pa.table(
        {
            "text": pa.array(["a", None], text),
            "headers": pa.array([[{"key": "k", "value": b"v"}], None], pa.list_(header)),
            "map": pa.array([[("k", "v")], None], pa.map_(text, text)),
            "n": [1, 2],
        }
    )
    plain = without_views(rows)
    assert plain.filter(pa.array([True, False])).to_pylist() == rows.to_pylist()[:1]
    assert plain.schema.field("text").type == pa.string()
    assert without_views(plain).schema == plain.schema
