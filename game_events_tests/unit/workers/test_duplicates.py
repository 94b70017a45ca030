"""Which of the rows with one key are left out: as if each were compared with every earlier row that is kept."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from game_events.lakehouse.data.reading import FilePart
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.tables import Lakehouse
from game_events.rules import Deduplicate
from game_events.workers import duplicates as module
from game_events.workers.duplicates import (
    ENTRY,
    KEY,
    OLD,
    SORTED_ROWS,
    TIME,
    FindDuplicates,
    FindKnown,
    Hashes,
    KeyReader,
    Keys,
    duplicates,
)
from game_events.workers.rules import FILE, ROW
from game_events_tests.support.worker_jobs import run, task_numbers

#: Far apart, as only damaged clocks are.
TIMES = st.one_of(st.integers(0, 30), st.sampled_from([-(2**63), 2**63 - 1]))
ROWS = st.lists(st.tuples(st.integers(0, 3), TIMES, st.booleans()), max_size=40)


def sorted_rows(rows):
    """By key, old ones first, the others in their order."""
    return sorted(rows, key=lambda row: (row[0], not row[2]))


def one_by_one(rows, windows):
    """As the setting's description says."""
    kept, left_out = [], []
    for key, time, is_old in rows:
        is_twice = not is_old and any(other == key and abs(at - time) <= windows[key] for other, at in kept)
        left_out.append(is_twice)
        kept += [] if is_twice else [(key, time)]
    return left_out


@given(rows=ROWS, windows=st.lists(st.integers(1, 12), min_size=4, max_size=4))
def test_rows_near_an_earlier_one_that_is_kept_are_left_out(rows, windows):
    rows = sorted_rows(rows)
    keys, times, old = (np.array([row[n] for row in rows], kind) for n, kind in enumerate((np.int64, np.int64, bool)))
    found = duplicates(keys, times, old, np.array(windows, np.int64)[keys] if len(rows) else keys)
    assert found.tolist() == one_by_one(rows, windows)


@given(rows=ROWS, window=st.integers(1, 12), at_once=st.integers(1, 9), cut=st.integers(1, 9))
def test_rows_that_come_in_parts_are_compared_across_them(rows, window, at_once, cut):
    rows = sorted_rows(rows)
    values = {
        KEY: [f"key {key}" for key, _, _ in rows],
        ENTRY: [0] * len(rows),
        TIME: [time for _, time, _ in rows],
        OLD: [is_old for _, _, is_old in rows],
        FILE: [None if is_old else "part" for _, _, is_old in rows],
        ROW: list(range(len(rows))),
    }
    table = pa.table({f.name: pa.array(values[f.name], f.type) for f in SORTED_ROWS})
    batches = [table.slice(n, cut).combine_chunks().to_batches()[0] for n in range(0, len(rows), cut)]
    found = [row for batch in FindDuplicates((window,), at_once)(iter(batches)) for row in batch.to_pylist()]
    left_out = one_by_one(rows, [window] * 4)
    assert found == [{FILE: "part", ROW: n} for n in range(len(rows)) if left_out[n]]


@pytest.mark.parametrize("count", [0, 1, 1_000])
def test_a_set_of_hashes_holds_its_own_and_no_other(count):
    random = np.random.default_rng(count)
    own, others = (random.integers(0, 2**64, count, np.uint64) for _ in range(2))
    others = np.append(others, own ^ np.uint64(1 << 32))  # whose first and last bits are in the table
    held = pickle.loads(pickle.dumps(Hashes.of(np.sort(own))))  # noqa: S301
    assert held.holds(own).all()
    assert not held.holds(np.setdiff1d(others, own)).any()


def keys(*entries):
    return Keys("game_name", "event_timestamp", entries)


def events(**columns):
    count = len(next(iter(columns.values())))
    return pa.table(columns | {"event_timestamp": pa.array(range(count), pa.timestamp("us", "UTC"))})


def test_keys_are_the_same_only_if_game_entry_and_every_value_are():
    rows = events(a=["x", "x", "x:1:y", "x", "x", None], b=["1:y", "1:y", "", "1:y", None, "1:y"])
    games = pa.array(["uno", "uno", "uno", "go", "uno", "uno"]).dictionary_encode()
    with KeyReader(keys(Deduplicate(key=("a", "b"), window_h=1))) as reader:
        keyed = reader.of(rows, games)
        texts = reader.texts(rows, keyed.entries).to_pylist()
        of_one_game = reader.of(rows, "uno")
    assert keyed.entries.tolist() == [0, 0, 0, 0, -1, -1]
    assert keyed.hashes[0] == keyed.hashes[1] == of_one_game.hashes[3]
    assert len(set(keyed.hashes[1:4].tolist())) == 3
    assert texts[0] == texts[1] == texts[3]
    assert texts[2] != texts[0]


def test_a_row_belongs_to_the_entry_of_its_game_and_type_and_has_its_time():
    entries = [
        Deduplicate(key=("a",), window_h=1, games=("uno",), types=("studio.Start",)),
        Deduplicate(key=("b",), window_h=1, games=("uno",), types=("Fail",), of="arrival"),
    ]
    rows = events(a=["x"] * 4, b=["y"] * 4, _message_type=["studio.Start", "studio.Fail", "studio.End", None])
    rows = rows.append_column("_kafka_timestamp", pa.array([7, 8, 9, 10], pa.timestamp("us", "UTC")))
    with KeyReader(keys(*entries)) as reader:
        keyed = reader.of(rows, "uno")
        assert keyed.entries.tolist() == [0, 1, -1, -1]
        assert keyed.times[:2].tolist() == [0, 8]
        assert reader.of(rows, "go").entries.tolist() == [-1] * 4


@pytest.mark.parametrize(
    "values",
    [["x", "y"], [1, 2], [True, False], pa.array([1, 2], pa.date32()), pa.array(["1.50", "2"]).cast(pa.decimal128(9, 2))],
    ids=str,
)
def test_keys_of_every_type_are_told_apart(values):
    rows = events(k=pa.concat_arrays([pa.array(values), pa.array(values)]))
    with KeyReader(keys(Deduplicate(key=("k",), window_h=1))) as reader:
        keyed = reader.of(rows, "uno")
        texts = reader.texts(rows, keyed.entries).to_pylist()
    assert keyed.hashes[:2].tolist() == keyed.hashes[2:].tolist()
    assert keyed.hashes[0] != keyed.hashes[1]
    assert texts[:2] == texts[2:]
    assert len(set(texts)) == 2


def test_of_too_many_known_rows_none_are_returned(tmp_path, monkeypatch):
    lakehouse = Lakehouse(str(tmp_path))
    rows = events(k=["a", "b", "a"])
    (file,) = staged(lakehouse.silver("uno"), rows)
    only = keys(Deduplicate(key=("k",), window_h=1))
    with KeyReader(only) as reader:
        hashes = Hashes.of(np.unique(reader.of(rows.slice(0, 1), "uno").hashes))
    job = FindKnown(lakehouse, only, rows.schema, hashes, [[FilePart("silver_uno_events", file.path)]])
    (known,) = run(job, task_numbers(0)).rows
    assert known.column(TIME).to_pylist() == [0, 2]
    monkeypatch.setattr(module, "MOST_KNOWN", 1)
    assert run(job, task_numbers(0)) == module.KnownRows([], crowded=True)


def test_any_number_of_entries_is_looked_for_and_each_distinct_key_is_hashed_once(monkeypatch):
    asked = []
    made = KeyReader._result
    monkeypatch.setattr(
        KeyReader, "_result", lambda self, view, rows, columns: asked.append(columns) or made(self, view, rows, columns)
    )
    names = [f"T{number}" for number in range(200)]
    entries = [Deduplicate(key=("a", "b") if n % 2 else ("a",), window_h=1, types=(name,)) for n, name in enumerate(names)]
    rows = events(a=["x"] * 201, b=["y"] * 201, _message_type=[*names, "T0"])
    with KeyReader(keys(*entries)) as reader:
        keyed = reader.of(rows, "uno")
    assert keyed.entries.tolist() == [*range(200), 0]
    assert len(set(keyed.hashes.tolist())) == 200
    assert keyed.hashes[0] == keyed.hashes[200], "the same key of the same entry"
    assert [len(columns) for columns in asked] == [2]
