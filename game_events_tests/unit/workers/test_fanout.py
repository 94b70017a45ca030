"""Rows of many games to files of one game each: none lost, none doubled, none in another's file."""

import pickle
from collections import Counter
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from game_events.config.file_layout import FileLayout
from game_events.config.type_names import TypeTables, of_type
from game_events.lakehouse.table_properties import Sizes
from game_events.lakehouse.tables import Lakehouse, is_game
from game_events.workers.fanout import INVALID, NOT_ALLOWED, ColumnChoice, FanOut, Routing
from game_events.workers.results import FanOutResult
from game_events_tests.support.jvm_arrow import NESTED, as_the_jvm_sends_it
from game_events_tests.support.worker_jobs import run

SCHEMA = pa.schema([("game", pa.string()), ("n", pa.int64())])
HOSTILE = ["", "unified", "../../etc", "UNO", "🎲", "a" * 300, "a\0b"]


@pytest.fixture
def lakehouse(tmp_path):
    return Lakehouse(str(tmp_path))


def batch(games, start=0):
    """Rows numbered from `start`; with a column that is not wanted, and the wanted ones in another order."""
    count = len(games)
    return pa.RecordBatch.from_pydict(
        {
            "n": pa.array(range(start, start + count), pa.int64()),
            "extra": pa.array(["x"] * count, pa.string()),
            "game": pa.array(games, pa.string()),
        }
    )


def fan(lakehouse, batches, bounds=None, **routing):
    """Game -> numbers in its files as they stand on disk, and what was refused."""
    task = FanOut(lakehouse, "silver", "game", SCHEMA, Routing(**routing), **(bounds or {}))
    result = run(task, batches)
    found, refused = {}, {why: dict(names) for why, names in result.refused.items()}
    assert result.failed == {}
    for file in chain(*result.files.values()):
        assert file.table == f"silver_{file.game}_events"
        rows = pq.read_table(Path(lakehouse.silver(file.game).uri) / file.path)
        assert rows.schema.equals(SCHEMA)
        assert rows.num_rows == file.rows
        assert set(rows.column("game").to_pylist()) == {file.game}
        found.setdefault(file.game, []).extend(rows.column("n").to_pylist())
    return found, refused


names = st.none() | st.sampled_from(["uno", "rummy", "chess", "go", *HOSTILE])


@settings(max_examples=40)
@given(
    batches=st.lists(st.lists(names, max_size=30), max_size=6),
    sorted_rows=st.sampled_from([1, 7, 1_000]),
    held_bytes=st.sampled_from([1, 200, 10**9]),
    allowed=st.sampled_from([frozenset(), frozenset({"uno", "go"})]),
)
def test_every_row_is_in_its_games_file_once_or_counted(batches, sorted_rows, held_bytes, allowed, tmp_path_factory):
    lakehouse = Lakehouse(str(tmp_path_factory.mktemp("fan")))
    flat = [name for games in batches for name in games]
    numbered, start = [], 0
    for games in batches:
        numbered.append(batch(games, start))
        start += len(games)
    lakehouse.sizes = Sizes(sorted_rows=sorted_rows)
    found, refused = fan(lakehouse, numbered, {"held_bytes": held_bytes}, allowed=allowed)
    expected = {}
    for number, name in enumerate(flat):
        if is_game(name) and (not allowed or name in allowed):
            expected.setdefault(name, []).append(number)
    assert found == expected  # in the order of the rows, too
    invalid = sum(not is_game(name) for name in flat)
    barred = Counter(name for name in flat if is_game(name) and allowed and name not in allowed)
    assert refused == ({INVALID: {"": invalid}} if invalid else {}) | ({NOT_ALLOWED: dict(barred)} if barred else {})


DAYS = st.none() | st.integers(-1, 3)


@settings(max_examples=40)
@given(
    rows=st.lists(st.tuples(names, DAYS), max_size=60),
    per_batch=st.integers(1, 30),
    sorted_rows=st.sampled_from([1, 7, 1_000]),
    held_bytes=st.sampled_from([1, 10**9]),
    day_rows=st.sampled_from([1, 4, 100]),
)
def test_with_files_by_day_every_row_is_in_its_games_files_once_and_at_most_one_of_a_game_has_several_days(
    rows, per_batch, sorted_rows, held_bytes, day_rows, tmp_path_factory
):
    lakehouse = Lakehouse(str(tmp_path_factory.mktemp("fan")))
    lakehouse.sizes = Sizes(sorted_rows=sorted_rows, day_rows=day_rows)
    lakehouse.file_layouts = {"silver": FileLayout("at")}
    schema = SCHEMA.append(pa.field("at", pa.timestamp("us", "UTC")))
    of_all = pa.Table.from_pylist(
        [{"game": game, "n": n, "at": None if day is None else day * 86_400_000_000 + n} for n, (game, day) in enumerate(rows)],
        schema=schema,
    )
    result = run(FanOut(lakehouse, "silver", "game", schema, Routing(), held_bytes=held_bytes), of_all.to_batches(per_batch))
    expected = Counter((game, n) for n, (game, _) in enumerate(rows) if is_game(game))
    found = Counter()
    for game, files in result.files.items():
        read = [pq.read_table(Path(lakehouse.silver(game).uri) / file.path) for file in files]
        found.update((game, n) for table in read for n in table.column("n").to_pylist())
        spread = [t for t in read if len({at and at.date() for at in t.column("at").to_pylist()}) > 1]
        assert len(spread) <= 1
        assert day_rows > 1 or not spread
    assert found == expected


def test_null_and_hostile_names_are_counted_together_and_make_no_folder(lakehouse):
    found, refused = fan(lakehouse, [batch([None, *HOSTILE, "uno", None])])
    assert (found, refused) == ({"uno": [len(HOSTILE) + 1]}, {INVALID: {"": len(HOSTILE) + 2}})
    assert {f.name for f in Path(lakehouse.root).iterdir()} == {"silver_uno_events"}


def test_names_off_the_allow_list_are_counted_by_name(lakehouse):
    found, refused = fan(lakehouse, [batch(["uno", "go", "go", "chess"])], allowed=frozenset({"uno"}))
    assert (found, refused) == ({"uno": [0]}, {NOT_ALLOWED: {"go": 2, "chess": 1}})


def test_a_pass_for_some_games_neither_writes_nor_counts_the_others(lakehouse):
    found, refused = fan(lakehouse, [batch(["uno", "go", None, "🎲"])], only=frozenset({"uno"}))
    assert (found, refused) == ({"uno": [0]}, {})


def test_a_slice_of_a_batch_is_the_slice(lakehouse):
    assert fan(lakehouse, [batch(["uno", "go", "uno", "go"]).slice(1, 2)]) == ({"go": [1], "uno": [2]}, {})


@pytest.mark.parametrize("batches", [[], [batch([])], [batch([None, None])]])
def test_no_rows_make_no_files(lakehouse, batches):
    assert fan(lakehouse, batches)[0] == {}


def test_a_game_with_nearly_all_rows_is_like_any_other(lakehouse):
    games = (["hot"] * 999 + ["cold"]) * 20
    found, refused = fan(lakehouse, [batch(games[i : i + 1_000], i) for i in range(0, len(games), 1_000)])
    assert refused == {}
    assert found["cold"] == list(range(999, 20_000, 1_000))
    assert found["hot"] == [n for n in range(20_000) if n % 1_000 != 999]


def test_memory_is_bounded_by_the_buffers_whatever_share_a_game_has(lakehouse):
    before, peak = pa.total_allocated_bytes(), 0

    def batches():
        nonlocal peak
        for start in range(0, 200_000, 1_000):
            yield batch(["hot"] * 999 + ["cold"], start)
            peak = max(peak, pa.total_allocated_bytes() - before)

    lakehouse.sizes = Sizes(sorted_rows=1_000)
    found, _ = fan(lakehouse, batches(), {"held_bytes": 100_000})
    assert sum(map(len, found.values())) == 200_000
    assert peak < 2_000_000


def test_columns_are_cast_to_the_tables_own_types(lakehouse):
    rows = pa.RecordBatch.from_pydict({"game": pa.array(["uno"], pa.string()), "n": pa.array([7], pa.int32())})
    assert fan(lakehouse, [rows]) == ({"uno": [7]}, {})


def test_a_task_survives_the_way_to_a_worker(lakehouse):
    task = FanOut(lakehouse, "gold", "game", SCHEMA, Routing(frozenset({"uno"})))
    there = pickle.loads(pickle.dumps(task))  # noqa: S301 - our own bytes
    files = list(chain(*run(there, [batch(["uno", "go"])]).files.values()))
    assert [f.table for f in files] == ["gold_uno_player_agg"]
    assert sum(f.rows for f in files) == 1


def test_a_game_whose_folder_cannot_be_written_fails_alone(lakehouse, tmp_path):
    (tmp_path / "silver_uno_events").write_text("a file where the table should be")
    task = FanOut(lakehouse, "silver", "game", SCHEMA)
    result = run(task, [batch(["uno", "rummy", "uno", "chess"])])
    assert sorted(result.files) == ["chess", "rummy"]
    assert list(result.failed) == ["uno"]
    assert "silver_uno_events" in result.failed["uno"]


def test_a_worker_that_meets_more_new_names_than_there_is_room_for_leaves_nothing_behind(lakehouse):
    """Neither a file nor a folder: the driver counts the names first, and asks again."""
    (lakehouse_root := Path(lakehouse.root)).mkdir(exist_ok=True)
    held = lakehouse_root / "silver_uno_events"
    held.mkdir()
    batches = [batch(["uno"] * 20 + ["rummy"] * 20), *(batch([f"made_up_{n}"] * 20) for n in range(5)), batch(["uno"])]
    routing = Routing(known=frozenset({"uno"}), room=3)
    lakehouse.sizes = Sizes(sorted_rows=10)
    task = FanOut(lakehouse, "silver", "game", SCHEMA, routing, held_bytes=1)
    assert run(task, batches) == FanOutResult(crowded=True)
    assert list(lakehouse_root.iterdir()) == [held]
    assert list(held.iterdir()) == []
    found, _ = fan(lakehouse, batches[:3], known=frozenset({"uno"}), room=3)
    assert {name: len(rows) for name, rows in found.items()} == {"uno": 20, "rummy": 20, "made_up_0": 20, "made_up_1": 20}


@pytest.mark.parametrize("kind", NESTED, ids=str)
def test_nested_lists_that_the_jvm_sent_without_any_offset_are_sorted_and_written(lakehouse, kind):
    games = ["rummy", "uno", "rummy"]
    rows = pa.RecordBatch.from_pydict({"game": games, "nested": as_the_jvm_sends_it(kind, 3)})
    found = run(FanOut(lakehouse, "silver", "game", rows.schema), [rows, rows]).files
    written = {game: pq.read_table(Path(lakehouse.silver(game).uri) / file.path) for game, (file,) in found.items()}
    assert {game: table.column("nested").to_pylist() for game, table in written.items()} == {"rummy": [[]] * 4, "uno": [[]] * 2}


TYPED = pa.schema(
    [*SCHEMA, ("_message_type", pa.string()), ("_batch", pa.int64()), ("level", pa.int64()), ("amount", pa.int64())]
)
OF_TYPE = {None: None, "t.Start": "start", "x.Start": "start", "t.Paid": "paid", "t.Quit": "quit"}
type_names = st.sampled_from(list(OF_TYPE))


typed_rows = st.lists(st.tuples(names, type_names, st.integers(1, 3)), max_size=60)


@given(rows=typed_rows, size=st.integers(1, 20), limit=st.integers(1, 30))
@settings(deadline=None, max_examples=40)
def test_each_row_is_in_the_table_of_its_type_with_the_columns_of_that_type_alone(tmp_path_factory, rows, size, limit):
    lakehouse = Lakehouse(str(tmp_path_factory.mktemp("typed")))
    lakehouse.per_type = True
    lakehouse.sizes = Sizes(sorted_rows=limit)
    every = pa.table(
        {
            "game": pa.array([game for game, *_ in rows], pa.string()),
            "n": pa.array(range(len(rows)), pa.int64()),
            "_message_type": pa.array([kind for _, kind, _ in rows], pa.string()),
            "_batch": pa.array([number for *_, number in rows], pa.int64()),
            "level": pa.array([5 if kind == "t.Start" else None for _, kind, _ in rows], pa.int64()),
            "amount": pa.array([7 if kind == "t.Paid" else None for _, kind, _ in rows], pa.int64()),
        }
    )
    choice = ColumnChoice({"level": frozenset({"level"}), "amount": frozenset({"amount"})})
    above = {"uno:paid": 2}
    task = FanOut(lakehouse, "silver", "game", TYPED, Routing(reserved="__"), choice=choice, types=TypeTables(), above=above)
    result = run(task, every.to_batches(max_chunksize=size) if rows else [])
    assert result.failed == {}
    wanted: dict[str, list[int]] = {}
    for n, (game, kind, number) in enumerate(rows):
        called = of_type(game, OF_TYPE[kind]) if is_game(game) else None
        if called is not None and number > above.get(called, 0):
            wanted.setdefault(called, []).append(n)
    found = {}
    for called, files in result.files.items():
        for file in files:
            table = pq.read_table(Path(lakehouse.silver(called).uri) / file.path)
            found.setdefault(called, []).extend(table.column("n").to_pylist())
            own = {"start": {"level"}, "paid": {"amount"}}.get(called.partition(":")[2], set())
            assert set(table.column_names) - set(SCHEMA.names) - {"_message_type", "_batch"} <= own
    assert {called: sorted(numbers) for called, numbers in found.items()} == wanted
    assert {name for names in result.types.values() for name in names} >= {called for called in wanted if ":" in called}
    assert sum(map(sum, (names.values() for names in result.refused.values()))) == sum(not is_game(game) for game, *_ in rows)
