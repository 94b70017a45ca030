"""Partial rows add up to the aggregate of all rows, whatever batches and tasks they come in, or are dropped as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from game_events.lakehouse.data.columns import TIME
from game_events.workers import rows as module
from game_events.workers.rows import COUNT, FIRST, GAME, KEY, LAST, PartialAggregate, PartialRows, merged_partials

OF = PartialAggregate("game_name", "gamer_id", "at")
Event = tuple[str | None, str | None, int | None]


def table(events: Sequence[Event]) -> pa.Table:
    names, keys, times = zip(*events, strict=True) if events else ((), (), ())
    arrays = [pa.array(names, pa.string()), pa.array(keys, pa.string()), pa.array(times, pa.int64())]
    return pa.Table.from_arrays(arrays, ["game_name", "gamer_id", "at"])


def by_hand(events: Sequence[Event]) -> dict[tuple[str | None, str | None], tuple[int, int | None, int | None]]:
    found = {}
    for pair in {event[:2] for event in events}:
        times = [at for *own, at in events if tuple(own) == pair]
        known = [at for at in times if at is not None]
        found[pair] = (len(times), min(known, default=None), max(known, default=None))
    return found


def said(parts: Sequence[pa.Table]) -> dict[tuple[str | None, str | None], tuple[int, int | None, int | None]]:
    rows = merged_partials(parts, (GAME, KEY)).to_pylist() if parts else []
    assert len({(row[GAME], row[KEY]) for row in rows}) == len(rows)
    return {(row[GAME], row[KEY]): (row[COUNT], row[FIRST], row[LAST]) for row in rows}


EVENTS = st.lists(
    st.tuples(
        st.none() | st.sampled_from(("uno", "go", "")),
        st.none() | st.sampled_from(("a", "A", "", "\u00e4")),
        st.none() | st.integers(-(2**63), 2**63 - 1),
    ),
    max_size=20,
)


@given(tasks=st.lists(st.lists(EVENTS, max_size=4), max_size=3))
def test_partial_rows_of_any_batches_and_tasks_are_merged_to_the_aggregate_of_all_rows(tasks: list[list[list[Event]]]) -> None:
    found: list[pa.Table] = []
    for batches in tasks:
        task = PartialRows(OF)
        for batch in batches:
            task.add(table(batch))
        found += task.tables()
    assert said(found) == by_hand([event for batches in tasks for batch in batches for event in batch])


def test_more_partial_rows_than_the_bound_are_dropped_and_repeated_keys_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 3)
    task = PartialRows(OF)
    for _ in range(4):
        task.add(table([("uno", "a", 1), ("uno", "b", 2)]))
    assert said(task.tables()) == {("uno", "a"): (4, 1, 1), ("uno", "b"): (4, 2, 2)}
    task.add(table([("uno", "c", 1), ("uno", "d", 2)]))
    task.add(table([("uno", "a", 1)]))
    assert task.tables() == []


def test_keys_of_which_hardly_one_repeats_are_dropped_at_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MANY_ROWS", 4)
    few, many = PartialRows(OF), PartialRows(OF)
    few.add(table([("uno", key, 1) for key in "abc"]))
    many.add(table([("uno", key, 1) for key in "abcc"]))
    assert (len(few.tables()), many.tables()) == (1, [])


def test_only_types_that_arrow_and_spark_treat_alike_are_taken() -> None:
    text = pa.string()

    def fits(key: pa.DataType, time: pa.DataType, game: pa.DataType = text) -> bool:
        return OF.fits(pa.schema([("game_name", game), ("gamer_id", key), ("at", time)]))

    assert all(fits(key, time) for key in (pa.string(), pa.int64(), pa.bool_(), TIME) for time in (pa.int64(), TIME))
    assert not fits(pa.float64(), TIME)
    assert not fits(pa.struct([("a", pa.string())]), TIME)
    assert not fits(pa.string(), pa.string())
    assert not fits(pa.string(), TIME, pa.int64())
    assert not OF.fits(pa.schema([("game_name", pa.string()), ("gamer_id", pa.string())]))
