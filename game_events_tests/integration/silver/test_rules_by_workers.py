"""Rules do the same to every row whether Spark sends the rows or finds those that violate rules and workers read the files."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random

import pyarrow as pa
import pytest

from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.columns import OWN_COLUMNS
from game_events.lakehouse.table_properties import Sizes
from game_events.lakehouse.tables import Lakehouse, paths
from game_events.pipeline import fanout
from game_events.pipeline import quality as module
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver import stage
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.pipeline.silver.stage import Staging
from game_events_tests.support.tables import put, rows
from game_events_tests.support.worlds.quality import rule

GAMES = ("uno", "go", "chess")
INNER = pa.struct([("s", pa.string()), ("l", pa.list_(pa.struct([("n", pa.int32())])))])
NAN, INFINITY = float("nan"), float("inf")
#: Type and values of each column; each is NULL, too.
COLUMNS = {
    "flag": (pa.bool_(), [True, False]),
    "small": (pa.int32(), [0, 1, -7, 2**31 - 1]),
    "long": (pa.int64(), [0, 1, 2**63 - 1, -(2**63)]),
    "real": (pa.float32(), [0.0, 0.1, NAN, -INFINITY]),
    "double": (pa.float64(), [-0.0, 1e308, NAN, INFINITY]),
    "money": (pa.decimal128(38, 2), [Decimal("0.00"), Decimal("12.34"), Decimal("9" * 36)]),
    "text": (pa.string(), ["", "Zoë", "7", "%zz", "2026-02-30"]),
    "bytes": (pa.binary(), [b"", b"\x00\xff"]),
    "day": (pa.date32(), [date(1969, 12, 31), date(9999, 12, 31)]),
    "at": (pa.timestamp("us", tz="UTC"), [datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC), datetime(1, 1, 1, tzinfo=UTC)]),
    "local": (pa.timestamp("us"), [datetime(2026, 1, 2, 3, 4, 5), datetime(2300, 1, 1)]),
    "list": (pa.list_(pa.int64()), [[], [1, None], [-1]]),
    "map": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1), ("b", None)]]),
    "nested": (INNER, [{"s": "x", "l": [{"n": 1}, None]}, {"s": None, "l": None}, {"s": "X", "l": []}]),
    "Mixed_Case": (pa.int64(), [1, 2]),
}
CONDITIONS = (
    "flag",
    "NOT flag OR small = 1",
    "small * 2 > small",
    "small + 2147483647 > 0",
    "long + 1 > long",
    "CAST(long AS INT) = long",
    "abs(long) >= 0",
    "real <> 0.1",
    "real = real",
    "double > 1",
    "CAST(double AS BIGINT) > 0",
    "isnan(double) OR double * 10 < 1e308",
    "money * money > 0",
    "money / small > 1",
    "CAST(text AS INT) > 0",
    "CAST(text AS DATE) IS NOT NULL",
    "text RLIKE '^[A-Z]'",
    "url_decode(text) <> 'x'",
    "text IN ('7', 'Zoë', NULL)",
    "length(bytes) = 2",
    "day + INTERVAL 1 DAY > day",
    "at <= _kafka_timestamp + INTERVAL 1 HOUR",
    "year(local) = 2026",
    "list[0] > 0",
    "element_at(list, 0) = 1",
    "map['a'] = 1",
    "exists(list, x -> x < 0)",
    "nested.s = 'x'",
    "nested.l[0].n > 0",
    "Nested.S IS NOT NULL",
    "mixed_case = 1",
    "`MIXED_CASE` * 4611686018427387904 > 0",
    "IF(small = 1, raise_error('no'), true)",
    "struct(small, nested) IS NOT NULL AND small IS NOT NULL",
    "_kafka_offset % 5 <> 0",
    "game_name <> 'uno'",
    "true",
    "NULL = 1",
)


def random_rules(random, *actions):
    """Rules of all conditions, some of them for some games only; those that fail for one game, so that the others go on."""
    found = []
    for number, sql in enumerate(random.sample(CONDITIONS, len(CONDITIONS))):
        action, games = random.choice(actions), random.choice([(), (), (), ("uno", "go")])
        found.append(rule(f"r{number}", sql, action, games=("uno",) if action == "fail" else games))
    return found + [rule(f"again{number}", sql) for number, sql in enumerate(CONDITIONS)]


def some_rules(random, *actions):
    """Five of them."""
    return random.sample(random_rules(random, *actions), 5)


def batch(random, number, count):
    """Random rows of a batch."""
    made = {
        name: pa.array([None if random.random() < 0.1 else random.choice(values) for _ in range(count)], kind)
        for name, (kind, values) in COLUMNS.items()
    }
    given = {
        "game_name": [random.choice((*GAMES, "no/game", None)) for _ in range(count)],
        "_kafka_topic": ["events"] * count,
        "_kafka_topic_id": ["id"] * count,
        "_kafka_partition": [n % 2 for n in range(count)],
        "_kafka_offset": range(number * count, (number + 1) * count),
        "_kafka_timestamp": [datetime(2026, 1, 2, 3, tzinfo=UTC)] * count,
        "_kafka_key": [random.choice([None, b"", b"key"]) for _ in range(count)],
        "_kafka_headers": [
            random.choice([None, [{"key": "k", "value": None}], [{"key": "", "value": b"v"}] * 2]) for _ in range(count)
        ],
        "_raw_value": [b"%d of %d" % (n, number) for n in range(count)],
        "_batch": [number] * count,
    }
    own = {f.name: pa.array(given[f.name], f.type) for f in OWN_COLUMNS if f.name in given}
    return pa.table({"game_name": given["game_name"], **own, **made})


def found_in(pipeline, report):
    """Rows of all tables as DuckDB reads them, and what the run said."""
    lakehouse = Lakehouse.of(pipeline.settings)
    silver = {game: rows(lakehouse.silver(game), "COLUMNS(*)::VARCHAR") for game in GAMES if lakehouse.silver(game).exists()}
    rejected = "* EXCLUDE (quarantined_at, run_id)"
    quarantine = rows(lakehouse.table("quarantine_events"), rejected) if lakehouse.table("quarantine_events").exists() else []
    tables = {t.game: (t.rows, t.dropped, t.quarantined, t.error) for t in report.of("silver")}
    counted = {key: (r.rows, r.violated) for key, r in report.rules.items()}
    return silver, quarantine, tables, counted, dict(report.rejected)


@pytest.mark.parametrize("tasks", ["one task", "several tasks of a file", "tasks that share the games"])
@pytest.mark.parametrize(
    ("choose", "actions"),
    [
        (random_rules, ["warn"]),
        (some_rules, ["warn", "drop"]),
        (some_rules, ["drop", "quarantine", "warn"]),
        (random_rules, ["quarantine", "warn"]),
        (some_rules, ["fail", "quarantine", "drop"]),
    ],
    ids=["all that warn", "some that drop", "some that reject", "all that reject", "some that fail"],
)
def test_random_rows_of_every_type_are_judged_alike(
    make_settings, make_pipeline, monkeypatch, tmp_path, tasks, choose, actions
):
    random = Random(f"{tasks} {actions}")  # noqa: S311 - a test's choices
    first, second, rules = batch(random, 1, 200), batch(random, 2, 300), choose(random, *actions)
    if tasks != "one task":
        for part in (fanout, stage):
            monkeypatch.setattr(part, "TASK_ROWS", 100)
        monkeypatch.setattr(fanout, "MIN_ROWS_UNSHUFFLED", 1)
        monkeypatch.setattr(fanout, "FILE_ROWS", 1)
    if tasks == "tasks that share the games":
        monkeypatch.setattr(fanout, "MOST_OF_ONE_GAME", 100)
    used, find = [], stage.find_violations
    monkeypatch.setattr(stage, "find_violations", lambda *given: used.append(find(*given)) or used[-1])
    found = {}
    for how in ("workers", "Spark"):
        if how == "Spark":
            monkeypatch.setattr(Staging, "_is_plain", False)
        pipeline = make_pipeline(make_settings(lakehouse=str(tmp_path / how), rules=rules))
        pipeline.lakehouse.sizes = Sizes(row_group_rows=32)
        report = RunReport()
        put(pipeline.bronze, first, {Txn.BATCH: 1})
        refresh_silver(pipeline, report)
        # The second batch comes in one file with the first: its rows alone are new.
        both = pa.concat_tables([first, second])
        put(pipeline.bronze, both, {Txn.BATCH: 2}, rewritten=frozenset(paths(pipeline.bronze.open())))
        refresh_silver(pipeline, report)
        found[how] = found_in(pipeline, report)
    # A game that failed is left out of later passes over all games, and then Spark chooses the rows.
    assert len(used) in ([1, 2] if "fail" in actions else [2])
    assert None not in used
    assert found["workers"] == found["Spark"], rules
    silver, quarantine, tables, counted, _ = found["workers"]
    assert sum(violated for _, violated in counted.values()), "no rule was violated: this test shows nothing"
    assert bool(quarantine) == ("quarantine" in {r["action"] for r in rules})
    assert silver or any(error for *_, error in tables.values())


def test_where_too_many_rows_violate_rules_spark_sends_all_rows_as_if_there_were_no_other_way(
    make_settings, make_pipeline, monkeypatch
):
    monkeypatch.setattr(module, "MOST_VIOLATIONS", 9)
    found, find = [], stage.find_violations
    monkeypatch.setattr(stage, "find_violations", lambda *given: found.append(find(*given)) or found[-1])
    for count in (9, 10):
        rules = [rule("old", "_kafka_offset >= 1000", "drop")]
        pipeline = make_pipeline(make_settings(rules=rules, lakehouse=f"{make_settings().lakehouse}/{count}"))
        rows_of_one = {"game_name": ["uno"] * 30, "_kafka_offset": range(1000 - count, 1030 - count), "_batch": [1] * 30}
        put(pipeline.bronze, rows_of_one, {Txn.BATCH: 1})
        refresh_silver(pipeline, report := RunReport())
        assert [(t.rows, t.dropped) for t in report.of("silver")] == [(30 - count, count)]
    assert [one is None for one in found] == [False, True]
