"""Gold aggregates of one's own on real parts: always what plain SQL makes of silver, whatever changes or crashes."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from random import Random

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from game_events.config.extensions import load_extensions
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.gold import refresh as gold_module
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.integration.pipeline.test_loop import looping
from game_events_tests.support.reconciliation import assert_books_balance, count, rows
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.own_module import (
    DEVICES,
    DEVICES_SQL,
    MEDIAN,
    MEDIAN_SQL,
    TOTAL,
    TOTAL_SQL,
    differences,
    extension,
)
from game_events_tests.support.worlds.waves import at_point, power_cut_at, versions

GAMES = ("rummy", "spades", "uno")
SELDOM = MEDIAN.replace('mode="recompute"', 'mode="recompute", interval_s=3600')


def wave(settings, seed, games=GAMES, records=10):
    return produce(settings, Simulation(games=games, seed=seed, records_per_game_and_version=records, gamers_per_game=4))


def columns(settings, table):
    return [f.name for f in DeltaTable(f"{settings.lakehouse}/{table}").schema().fields]


def own(path):
    return load_extensions([path]).aggregates


def test_both_kinds_equal_sql_over_silver_after_every_wave_and_cost_no_commit_when_nothing_changed(
    make_settings, make_pipeline, tmp_path
):
    settings = make_settings(extensions=(extension(tmp_path, DEVICES, MEDIAN, TOTAL),))
    random, sent = Random(5), None  # noqa: S311 - which games have rows
    for seed in range(3):
        games = tuple(random.sample(GAMES, 2)) if seed else GAMES
        more = wave(settings, seed, games, records=random.randint(1, 12))
        sent = more if sent is None else sent.merge(more)
        report = refresh(make_pipeline(settings))
        assert report.success, report.errors
        assert {t.game for t in report.of("gold:devices")} == {t.game for t in report.of("gold:median_hour")} == set(games)
        assert differences(settings, GAMES, "devices", DEVICES_SQL) == []
        assert differences(settings, GAMES, "median_hour", MEDIAN_SQL) == []
        assert differences(settings, GAMES, "total", TOTAL_SQL) == []
    assert_books_balance(settings, sent)
    assert report.to_dict()["rows"]["gold:devices"] == sum(t.table_rows for t in report.of("gold:devices")) > 0

    before = versions(settings)
    assert refresh(make_pipeline(settings)).tables == []
    assert versions(settings) == before

    # Silver whose rows were replaced: aggregates follow, also one that is not declared just then.
    without = make_settings(extensions=(extension(tmp_path, DEVICES),))
    report = RunReport()
    refresh_silver(make_pipeline(without), report, frozenset({"rummy"}), full=True)
    assert refresh(make_pipeline(without)).success
    report = refresh(make_pipeline(settings))
    assert {(t.layer, t.game) for t in report.tables} == {("gold:median_hour", "rummy"), ("gold:total", "rummy")}
    assert versions(settings)["gold_rummy_devices"] == before["gold_rummy_devices"] + 1
    assert differences(settings, GAMES, "devices", DEVICES_SQL) == []


@pytest.mark.scenario
def test_a_changed_declaration_is_computed_from_all_of_silver_by_itself(make_settings, make_pipeline, tmp_path):
    def run(*parts):
        return refresh(make_pipeline(make_settings(extensions=(extension(tmp_path, *parts),))))

    merge = '@gold_aggregate("n", keys=["gamer_id"])\ndef n():\n    return {measures}\n'
    one = merge.replace("{measures}", '{"events": count(), "first": min_of("event_timestamp")}')
    other = merge.replace("{measures}", '{"events": sum_of("2"), "last": max_of("event_timestamp")}')
    as_sql = "SELECT gamer_id, {} FROM t GROUP BY ALL"
    settings = make_settings()
    wave(settings, 0)
    assert run(one).success
    wave(settings, 1, games=("rummy",))
    # Nobody's rows are new but those of rummy; every game's table follows.
    report = run(other)
    assert {t.game for t in report.of("gold:n")} == set(GAMES)
    assert columns(settings, "gold_uno_n") == ["gamer_id", "events", "last"]
    assert differences(settings, GAMES, "n", as_sql.format("2 * count(*), max(event_timestamp)")) == []
    # And back: the old progress of the first declaration is not taken up again.
    assert {t.game for t in run(one).of("gold:n")} == set(GAMES)
    assert differences(settings, GAMES, "n", as_sql.format("count(*), min(event_timestamp)")) == []

    # More games than before: those that were left out have no new rows, and get their tables all the same.
    limited = one.replace('"n", keys', '"few", games=["rummy"], keys').replace("def n", "def few")
    assert {t.game for t in run(limited).of("gold:few")} == {"rummy"}
    assert "gold_uno_few" not in versions(settings)
    assert {t.game for t in run(limited.replace('games=["rummy"], ', "")).of("gold:few")} == {"spades", "uno"}

    # Another type of a column that is read elsewhere is no small thing: it is asked for by name.
    text = merge.replace("{measures}", '{"events": max_of("cast(5 as string)"), "first": min_of("event_timestamp")}')
    before = versions(settings)
    report = run(text)
    assert len(report.errors) == len(GAMES)
    assert "events is bigint in the table and string in the rows" in report.errors[0].error
    assert "refresh gold_n fully" in report.errors[0].error
    assert {name for name, v in versions(settings).items() if v != before[name]} == {"progress"}
    changed = extension(tmp_path, text)
    done = RunReport()
    pipeline = make_pipeline(make_settings(extensions=(changed,)))
    refresh_gold(pipeline, done, frozenset(GAMES), full=True, aggregate=own(changed)[0])
    assert done.success
    assert differences(settings, GAMES, "n", as_sql.format("'5', min(event_timestamp)")) == []
    assert refresh(pipeline).tables == []


BROKEN = """
@gold_aggregate("broken", mode="recompute")
def broken(silver):
    {body}
"""


@pytest.fixture
def filled(make_settings, make_pipeline):
    """Settings of a lakehouse with rows and no extension."""
    settings = make_settings()
    wave(settings, 0)
    assert refresh(make_pipeline(settings)).success
    return settings


@pytest.mark.scenario
def test_an_aggregate_that_fails_fails_alone_with_its_name_and_place(filled, make_settings, make_pipeline, tmp_path):
    for body, says in (
        ("return silver.select('nothing')", "nothing"),
        ("return silver.groupBy('gamer_id').count()", "gives no column _game"),
        ("return None", "it gave NoneType"),
        ("return silver.selectExpr('_game', '1 / (hour(event_timestamp) - hour(event_timestamp)) as x')", "zero"),
        ("return silver.select('_game', F.udf(lambda g: int(g))('gamer_id').alias('x'))", "ValueError"),
        ("return silver.selectExpr('concat(_game, \"_\") as _game', 'gamer_id')", "other values of `_game`"),
        ("return silver.selectExpr('_game', 'null as x')", "type void"),
    ):
        path = extension(tmp_path, BROKEN.replace("{body}", body), DEVICES)
        report = refresh(make_pipeline(make_settings(extensions=(path,))))
        assert [t.layer for t in report.errors] == ["gold:broken"] * len(GAMES), body
        assert all(says in t.error for t in report.errors), (says, report.errors[0].error)
        assert f"gold aggregate broken ({path}:" in report.errors[0].error
        assert not any("broken" in name for name in versions(filled))
    assert differences(filled, GAMES, "devices", DEVICES_SQL) == []
    # Once it is right, the next run makes it; a row count as small as none is an answer as well.
    right = BROKEN.replace("{body}", "return silver.where(\"_game = 'uno'\").select('_game', 'gamer_id')")
    report = refresh(make_pipeline(make_settings(extensions=(extension(tmp_path, right),))))
    assert report.success
    assert {t.game: t.table_rows for t in report.of("gold:broken")} == {"rummy": 0, "spades": 0, "uno": 20}


def test_a_table_that_somebody_else_made_is_left_alone(filled, make_settings, make_pipeline, tmp_path):
    refresh(make_pipeline(make_settings(extensions=(extension(tmp_path, DEVICES.replace('"devices"', '"c"')),))))
    foreign = Lakehouse(filled.lakehouse).table("gold_rummy_b_c")
    Lakehouse(filled.lakehouse).gold("rummy", "c").local_path.rename(foreign.local_path)
    before = rows(filled, "gold_rummy_b_c")
    settings = make_settings(extensions=(extension(tmp_path, DEVICES.replace('"devices"', '"b_c"')),))
    report = refresh(make_pipeline(settings))
    assert [t.table for t in report.errors] == ["gold_rummy_b_c"]
    assert "did not make it" in report.errors[0].error
    assert rows(filled, "gold_rummy_b_c") == before
    assert count(filled, "gold_uno_b_c") > 0


@pytest.mark.scenario
@pytest.mark.usefixtures("filled")
def test_an_interval_is_kept_unless_asked_otherwise(make_settings, make_pipeline, tmp_path):
    settings = make_settings(extensions=(extension(tmp_path, SELDOM),))
    assert len(refresh(make_pipeline(settings)).of("gold:median_hour")) == len(GAMES)
    wave(settings, 1)
    report = refresh(make_pipeline(settings))
    assert len(report.of("gold")) == len(GAMES)
    assert report.of("gold:median_hour") == []
    assert report.postponed == ["gold_median_hour"]
    assert refresh(make_pipeline(settings)).tables == []
    assert len(refresh(make_pipeline(settings), ignore_intervals=True).of("gold:median_hour")) == len(GAMES)
    assert differences(settings, GAMES, "median_hour", MEDIAN_SQL) == []
    assert refresh(make_pipeline(settings)).postponed == []


@pytest.mark.scenario
def test_of_two_runs_with_different_declarations_neither_merges_into_what_the_other_made(
    filled, make_settings, make_pipeline, tmp_path, monkeypatch
):
    text = '@gold_aggregate("n", keys=["gamer_id"])\ndef n():\n    return {"events": sum_of("{}")}\n'
    one, other = (make_settings(extensions=(extension(tmp_path, text.replace("{}", weight)),)) for weight in "12")
    assert refresh(make_pipeline(one)).success
    wave(filled, 1)
    at_point(monkeypatch, "gold_staged:n", lambda: refresh(make_pipeline(other)))
    assert refresh(make_pipeline(one)).success
    assert differences(filled, GAMES, "n", "SELECT gamer_id, count(*) FROM t GROUP BY 1") == []
    # Nobody trusts the floor that the two have left behind, nor does who comes back to the old declaration after a crash.
    with power_cut_at("gold_game_committed:n:1"):
        refresh(make_pipeline(other))
    assert refresh(make_pipeline(one)).of("gold:n")
    assert differences(filled, GAMES, "n", "SELECT gamer_id, count(*) FROM t GROUP BY 1") == []
    assert {t.game for t in refresh(make_pipeline(other)).of("gold:n")} == set(GAMES)
    assert differences(filled, GAMES, "n", "SELECT gamer_id, 2 * count(*) FROM t GROUP BY 1") == []


@pytest.mark.scenario
@pytest.mark.usefixtures("filled")
def test_a_crash_at_any_point_of_an_own_aggregate_is_finished_by_the_next_run(make_settings, make_pipeline, tmp_path, crash):
    path = extension(tmp_path, DEVICES, MEDIAN)
    settings = make_settings(extensions=(path,))
    crash("gold_game_committed:devices:1", extensions=path)
    made = versions(settings)
    assert any("devices" in name for name in made)
    assert not any("median_hour" in name for name in made)
    for seed, point in enumerate(("gold_staged:devices", "gold_game_committed:devices:2", "gold_committed:median_hour"), 1):
        report = refresh(make_pipeline(settings))
        assert report.success
        assert differences(settings, GAMES, "devices", DEVICES_SQL) == []
        assert differences(settings, GAMES, "median_hour", MEDIAN_SQL) == []
        wave(settings, seed)
        with power_cut_at(point):
            refresh(make_pipeline(settings))
    assert refresh(make_pipeline(settings)).success
    assert differences(settings, GAMES, "devices", DEVICES_SQL) == []
    assert differences(settings, GAMES, "median_hour", MEDIAN_SQL) == []


#: A median that differs from wave to wave.
MIDDLE = '''
@gold_aggregate("middle", mode="recompute", keys=["gamer_id"])
def middle(silver):
    """When the event in the middle was."""
    seconds = F.floor(F.col("event_timestamp").cast("double"))
    return silver.groupBy("_game", "gamer_id").agg(F.median(seconds).alias("seconds"), F.count(F.lit(1)).alias("events"))
'''
MIDDLE_SQL = "SELECT gamer_id, median(floor(epoch(event_timestamp))), count(*) FROM t GROUP BY ALL"


def seen_by_readers(settings, table, first):
    """Numbers of groups and of events in each version of a table since one: what any reader could have seen."""
    for number in range(first, DeltaTable(f"{settings.lakehouse}/{table}").version() + 1):
        files = DeltaTable(f"{settings.lakehouse}/{table}", version=number).file_uris()
        events = [n for file in files for n in pq.read_table(file, columns=["events"])["events"].to_pylist()]
        yield len(events), sum(events)


def rows_of_versions(settings, table, first):
    """Rows of each version of a table since one."""
    for number in range(first, DeltaTable(f"{settings.lakehouse}/{table}").version() + 1):
        files = DeltaTable(f"{settings.lakehouse}/{table}", version=number).file_uris()
        yield [row.values() for file in files for row in pq.read_table(file).to_pylist()]


@pytest.mark.scenario
@pytest.mark.usefixtures("filled")
def test_a_reader_sees_the_table_before_or_after_and_rivals_double_nothing(make_settings, make_pipeline, tmp_path):
    path = extension(tmp_path, DEVICES, MIDDLE)
    settings = make_settings(extensions=(path,))
    refresh(make_pipeline(settings))
    first = versions(settings)["gold_rummy_devices"]

    def state():
        return rows(settings, "silver_rummy_events", "SELECT count(DISTINCT (gamer_id, device_id)), count(*) FROM t")[0]

    def middles():
        return sorted(rows(settings, "silver_rummy_events", MIDDLE_SQL))

    first_middle = versions(settings)["gold_rummy_middle"]
    allowed, allowed_middles = [state()], [middles()]
    for seed in range(1, 3):
        wave(settings, seed)
        refresh_without_own = make_settings()
        refresh(make_pipeline(refresh_without_own))
        allowed.append(state())
        allowed_middles.append(middles())
        runs = [threading.Thread(target=partial(refresh, make_pipeline(settings))) for _ in range(2)]
        for run in runs:
            run.start()
        for run in runs:
            run.join()
    assert refresh(make_pipeline(settings)).success
    # One commit for each wave, whoever made it.
    assert list(seen_by_readers(settings, "gold_rummy_devices", first)) == allowed
    # A median does not merge: each version is the whole of it anew, of one state of silver and never of a part.
    seen = [sorted(map(tuple, version)) for version in rows_of_versions(settings, "gold_rummy_middle", first_middle)]
    assert [version for version, _ in itertools.groupby(seen)] == allowed_middles
    assert differences(settings, GAMES, "devices", DEVICES_SQL) == []
    assert differences(settings, GAMES, "middle", MIDDLE_SQL) == []


@pytest.mark.scenario
def test_continuous_mode_refreshes_what_waits_for_its_interval_when_no_event_comes_any_more(
    filled, make_settings, make_pipeline, tmp_path, monkeypatch
):
    passed = threading.Event()
    monkeypatch.setattr(gold_module, "due", lambda *_: passed.is_set())
    path = extension(tmp_path, SELDOM)
    settings = make_settings(extensions=(path,), poll_interval_s=0.1, gold_interval_s=0)
    wave(settings, 1)
    with looping(make_pipeline(settings)) as loop:
        until(lambda: loop.report.total.rows("unified") and loop.report.total.postponed, what="gold, without the median")
        assert loop.report.total.postponed == ["gold_median_hour"]
        assert loop.report.total.of("gold:median_hour") == []
        passed.set()
        until(lambda: len(loop.report.total.of("gold:median_hour")) == len(GAMES), what="the median of every game")
        until(lambda: loop.report.state == "idle", what="an idle loop")
    assert loop.report.total.postponed == []
    assert differences(filled, GAMES, "median_hour", MEDIAN_SQL) == []
