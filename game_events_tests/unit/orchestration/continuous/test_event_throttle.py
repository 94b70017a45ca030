"""At most one event a minute for each table, every row told once."""

from collections import Counter

import pyarrow as pa

from game_events.lakehouse.commits.commit import Landed
from game_events.lakehouse.tables import Table
from game_events.orchestration.continuous import EVENT_S, EventThrottle
from game_events.pipeline.reporting.report import RunReport


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def cycle(version, *tables, **more):
    report = RunReport(**more)
    for layer, name, rows in tables:
        game = name if layer in ("silver", "gold") else None
        table = name if game is None else f"{layer}_{name}"
        report.add_landed(
            layer, Table(table, "/x"), Landed(table, version, "id", rows, 1, rows, 1), pa.schema([]), version, game
        )
    return report


def test_the_first_events_come_at_once_and_then_one_a_minute_with_all_rows_since():
    clock = Clock()
    throttle = EventThrottle(clock)
    told = Counter()
    events = Counter()
    for second in range(200):
        clock.now = 1000.0 + second
        games = ("uno",) if second % 2 else ("uno", "rummy")
        throttle.add(
            cycle(
                second, ("bronze", "bronze_events", 10), *(("silver", g, 5) for g in games), offsets={0: (second, second + 1)}
            )
        )
        report = throttle.due()
        if second == 0:
            assert {t.table for t in report.tables} == {"bronze_events", "silver_uno", "silver_rummy"}
        for entry in report.tables if report else ():
            told[entry.table] += entry.rows
            events[entry.table] += 1
    assert events == {"bronze_events": 4, "silver_uno": 4, "silver_rummy": 4}
    rest = throttle.due(everything=True)
    for entry in rest.tables:
        told[entry.table] += entry.rows
    assert told == {"bronze_events": 2000, "silver_uno": 1000, "silver_rummy": 500}
    assert rest.offsets == {0: (181, 200)}
    assert throttle.due(everything=True) is None


def test_what_belongs_to_no_single_table_waits_for_bronzes_event():
    clock = Clock()
    throttle = EventThrottle(clock)
    throttle.add(cycle(1, ("bronze", "bronze_events", 1), offsets={0: (0, 1)}, rejected=Counter(a=1)))
    assert throttle.due().offsets == {0: (0, 1)}
    clock.now += EVENT_S / 2
    throttle.add(
        cycle(2, ("bronze", "bronze_events", 1), ("quarantine", "quarantine_events", 2), ("silver", "uno", 1),
              offsets={0: (1, 2)}, rejected=Counter(a=2))
    )  # fmt: skip
    silver = throttle.due()
    assert [t.table for t in silver.tables] == ["silver_uno"]
    assert (silver.offsets, silver.rejected) == ({}, Counter())
    clock.now += EVENT_S
    bronze = throttle.due()
    assert {t.table for t in bronze.tables} == {"bronze_events", "quarantine_events"}
    assert (bronze.offsets, bronze.rejected) == ({0: (1, 2)}, Counter(a=2))


def test_very_many_games_are_told_in_turns():
    throttle = EventThrottle(Clock(), at_once=10)
    throttle.add(cycle(1, *(("silver", f"g{n}", 1) for n in range(25))))
    turns = []
    while (report := throttle.due()) is not None:
        turns.append([t.table for t in report.tables])
    assert [len(turn) for turn in turns] == [10, 10, 5]
    assert len({table for turn in turns for table in turn}) == 25


def test_what_could_not_be_told_is_owed_again_with_what_came_since():
    throttle = EventThrottle(Clock())
    throttle.add(cycle(1, ("bronze", "bronze_events", 3), offsets={0: (0, 3)}))
    taken = throttle.due()
    throttle.add(cycle(2, ("bronze", "bronze_events", 4), offsets={0: (3, 7)}))
    throttle.give_back(taken)
    assert throttle.due() is None
    owed = throttle.due(everything=True)
    assert [(t.rows, t.version) for t in owed.tables] == [(7, 2)]
    assert owed.offsets == {0: (0, 7)}
