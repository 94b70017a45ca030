"""Silver and gold in a table for each game, or in one table for all, partitioned by game: the same rows, by the same code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import PARTITIONED, SILVER, TABLES, UNIFIED, Lakehouse
from game_events.pipeline.checks.audits import audit_rules
from game_events.pipeline.context import Pipeline
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events.rules import Rule
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.integration.pipeline.test_erasure import forgotten
from game_events_tests.support.reconciliation import rows
from game_events_tests.support.worlds.own_module import HEAD
from game_events_tests.support.worlds.quality import Event, assert_checks_pass, assert_sound, in_quarantine, rule, send_events
from game_events_tests.support.worlds.waves import PowerCut, at_point, power_cut_at

LAYOUTS = (TABLES, PARTITIONED)
GAMES = ("chess", "go", "uno")
OWN = """
@gold_aggregate("sums", keys=["gamer_id"])
def sums():
    return {"events": count(), "amount": sum_of("amount")}

@gold_aggregate("total", games=["go"])
def total():
    return {"events": count()}
"""
RULES = [
    rule("not_too_much", "coalesce(amount, 0) < 1000", "quarantine"),
    rule("not_too_little", "coalesce(amount, 0) >= 0", "drop"),
    rule("few", "session_count < 2", "warn", layer="gold"),
]
Shown = dict[str, list[tuple[Any, ...]]]


@pytest.fixture
def both(make_settings: MakeSettings, tmp_path: Path) -> dict[str, Settings]:
    """Settings of the two layouts: the same topic, rules and aggregates, a lakehouse each."""
    own = tmp_path / "own.py"
    own.write_text(HEAD + OWN)
    more: dict[str, Any] = {"erasure_key": "a key of the tests, long enough", "rules": RULES, "extensions": (str(own),)}
    return {one: make_settings(silver_layout=one, lakehouse=str(tmp_path / one), **more) for one in LAYOUTS}


def shown(settings: Settings) -> Shown:
    """Rows of each game by layer, as DuckDB reads the files; what names files or batches of a lakehouse is left out."""
    columns = "_kafka_offset, game_name, gamer_id, event_timestamp, amount, note"
    found = {f"silver of {g}": sorted(rows(settings, f"silver_{g}_events", f"SELECT {columns} FROM t")) for g in GAMES}
    agg = "SELECT gamer_id, session_count, min_timestamp, max_timestamp FROM t"
    found |= {f"gold of {g}": sorted(rows(settings, f"gold_{g}_player_agg", agg)) for g in GAMES}
    found |= {f"sums of {g}": sorted(rows(settings, f"gold_{g}_sums", "SELECT gamer_id, events, amount FROM t")) for g in GAMES}
    found["total of go"] = rows(settings, "gold_go_total", "SELECT events FROM t")
    of_all = "SELECT game_name, gamer_id, session_count, min_timestamp, max_timestamp FROM t"
    found["unified"] = sorted(rows(settings, UNIFIED, of_all))
    found["kept out"] = in_quarantine(settings, "_kafka_offset, game, reason")
    return found


def assert_same(both: dict[str, Settings], make_pipeline: MakePipeline) -> Shown:
    """Both layouts have the same rows; the one table for all is sound, as every other test shows it of tables for each game."""
    tables, partitioned = (shown(settings) for settings in both.values())
    assert partitioned == tables
    assert_sound(make_pipeline(both[PARTITIONED]))
    return tables


def wave(settings: Settings, games: tuple[str, ...] = GAMES, gamers: tuple[str, ...] = ("ann", "bob")) -> None:
    send_events(settings, [Event(g, amount, gamer=gamer) for g in games for gamer in gamers for amount in (1, 20, 3000, -4)])


def run(make_pipeline: MakePipeline, settings: Settings, **options: Any) -> RunReport:
    pipeline = make_pipeline(settings)
    if options:
        options = {"selection": selection_of(pipeline, **options)}
    report = refresh(pipeline, **options)
    assert report.success, report.errors
    return report


@pytest.mark.scenario
def test_waves_full_refreshes_maintenance_and_an_erasure_give_the_same_rows_in_both_layouts(
    both: dict[str, Settings], make_pipeline: MakePipeline
) -> None:
    for games in (GAMES, ("go",), ("chess", "go")):
        wave(both[TABLES], games)
        for settings in both.values():
            run(make_pipeline, settings)
    found = assert_same(both, make_pipeline)
    assert {len(found[f"silver of {game}"]) for game in ("uno", "chess", "go")} == {4, 8, 12}
    assert found["total of go"] == [(12,)]

    for settings in both.values():
        before = rows(settings, "silver_go_events", "SELECT DISTINCT _batch FROM t ORDER BY ALL")
        report = run(make_pipeline, settings, games=["chess"], full_refresh=["silver"])
        assert {table.game for table in report.of("silver")} == {"chess"}
        assert rows(settings, "silver_go_events", "SELECT DISTINCT _batch FROM t ORDER BY ALL") == before
    assert_same(both, make_pipeline)

    for settings in both.values():
        report = RunReport()
        maintain(make_pipeline(settings), report)
        assert not [one for one in report.maintenance.values() if one.error or one.skipped]
        joined = {name: one.joined for name, one in report.maintenance.items()}
        assert joined.get(SILVER, 0) + joined.get("silver_go_events", 0) >= 3
    assert_same(both, make_pipeline)

    for settings in both.values():
        account = forgotten(make_pipeline(settings), "ann", vacuum=True)
        silver = sum(count for table, count in account.rows.items() if table.startswith("silver_"))
        assert silver == 12
    found = assert_same(both, make_pipeline)
    assert {row[1] for row in found["unified"]} == {"bob"}
    for settings in both.values():
        run(make_pipeline, settings, full_refresh=["silver"])
        assert refresh(make_pipeline(settings)).tables == []
    assert_same(both, make_pipeline)
    for settings in both.values():
        assert_checks_pass(make_pipeline(settings))
    audits = [audit_rules(make_pipeline(settings), make_pipeline(settings).rules) for settings in both.values()]
    assert audits[0] == audits[1]


POINTS = ("silver_staged", "game_committed", "silver_committed", "gold_staged", "gold_game_committed", "gold_committed")


@pytest.mark.parametrize("points", [POINTS[:2], pytest.param(POINTS[2:], marks=pytest.mark.scenario)], ids=", ".join)
def test_a_crash_at_any_point_leaves_nothing_that_the_next_run_does_not_finish(
    points: tuple[str, ...], both: dict[str, Settings], make_pipeline: MakePipeline
) -> None:
    settings = both[PARTITIONED]
    wave(settings)
    run(make_pipeline, settings)
    for point in points:
        wave(settings)
        with power_cut_at(point):
            refresh(make_pipeline(settings))
        run(make_pipeline, settings)
        assert_sound(make_pipeline(settings))
    run(make_pipeline, both[TABLES])
    assert_same(both, make_pipeline)
    assert_checks_pass(make_pipeline(settings))


def test_a_rival_that_commits_one_game_first_costs_nobody_a_row(
    both: dict[str, Settings], make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = both[PARTITIONED]
    wave(settings)
    run(make_pipeline, settings)
    for point in ("silver_staged", "gold_staged"):
        wave(settings)
        happened = at_point(monkeypatch, point, lambda: run(make_pipeline, settings, games=["go"], select=["silver", "gold"]))
        run(make_pipeline, settings)
        assert happened
        monkeypatch.undo()
        assert_sound(make_pipeline(settings))
    run(make_pipeline, both[TABLES])
    assert_same(both, make_pipeline)
    assert_checks_pass(make_pipeline(settings))


def delete(settings: Settings, name: str) -> None:
    shutil.rmtree(Path(settings.lakehouse) / name)


def restore(settings: Settings, name: str) -> None:
    DeltaTable(str(Path(settings.lakehouse) / name)).restore(0)


@pytest.mark.scenario
def test_a_table_that_was_restored_or_deleted_is_made_whole_for_every_game(
    both: dict[str, Settings], make_pipeline: MakePipeline
) -> None:
    settings = both[PARTITIONED]
    for _ in range(2):
        wave(settings)
        run(make_pipeline, settings)
    for what in (restore, delete):
        for name in (SILVER, UNIFIED):
            what(settings, name)
            wave(settings, ("go",))
            run(make_pipeline, settings)
            assert_sound(make_pipeline(settings))
    run(make_pipeline, both[TABLES])
    assert_same(both, make_pipeline)
    assert_checks_pass(make_pipeline(settings))


def test_a_game_that_fails_or_is_left_out_is_behind_alone(both: dict[str, Settings], make_pipeline: MakePipeline) -> None:
    settings = both[PARTITIONED]
    wave(settings)
    run(make_pipeline, settings)
    wave(settings)
    strict = settings.model_copy(
        update={"rules": (*settings.rules, Rule(name="no_go", sql="game_name <> 'go'", action="fail"))}
    )
    report = refresh(make_pipeline(strict))
    assert [(one.layer, one.game) for one in report.errors] == [("silver", "go")]
    run(make_pipeline, settings.model_copy(update={"games": ("uno",)}))
    run(make_pipeline, settings)
    run(make_pipeline, both[TABLES])
    assert_same(both, make_pipeline)


def test_other_readers_find_the_rows_of_each_game(
    both: dict[str, Settings], make_pipeline: MakePipeline, spark: SparkSession
) -> None:
    settings = both[PARTITIONED]
    for games in (GAMES, ("go",)):
        wave(settings, games)
        run(make_pipeline, settings)
    lakehouse = Lakehouse.of(settings)
    for key, wanted in ((SILVER, {"chess": 4, "go": 8, "uno": 4}), (UNIFIED, {"chess": 2, "go": 2, "uno": 2})):
        uri = lakehouse.table(key).uri
        files = DeltaTable(uri).file_uris()
        by_duckdb = duckdb.execute("SELECT game_name, count(*) FROM read_parquet(?) GROUP BY ALL", [files]).fetchall()
        by_polars = pl.scan_delta(uri).group_by("game_name").len().collect().rows()
        by_spark = spark.read.format("delta").load(uri).groupBy("game_name").count().collect()
        by_arrow = DeltaTable(uri).to_pyarrow_table(columns=["game_name"])["game_name"].value_counts().to_pylist()
        assert dict(by_duckdb) == dict(by_polars) == wanted
        assert {row[0]: row[1] for row in by_spark} == {row["values"]: row["counts"] for row in by_arrow} == wanted


def test_another_layout_is_refused_before_anything_is_written_and_the_way_that_is_named_changes_it(
    both: dict[str, Settings], make_pipeline: MakePipeline
) -> None:
    for layout in LAYOUTS:
        settings = both[layout]
        wave(settings)
        run(make_pipeline, settings)
        other = settings.model_copy(update={"silver_layout": LAYOUTS[layout == TABLES]})
        wave(settings)
        with pytest.raises(ConfigurationError, match="GAME_EVENTS_SILVER_LAYOUT"):
            refresh(make_pipeline(other))
        # Who only reads finds the layout that is there.
        reader = Pipeline(other, lambda: pytest.fail("Spark was started"), read_only=True)
        assert reader.lakehouse.games() == list(GAMES)
        run(make_pipeline, settings)
    settings = both[PARTITIONED]
    for pattern in ("silver_events", "gold_unified_*"):
        for folder in Path(settings.lakehouse).glob(pattern):
            shutil.rmtree(folder)
    changed = settings.model_copy(update={"silver_layout": TABLES})
    run(make_pipeline, changed)
    run(make_pipeline, both[TABLES])
    assert shown(changed) == shown(both[TABLES])
    for pattern in ("silver_*_events", "gold_*"):
        for folder in Path(settings.lakehouse).glob(pattern):
            shutil.rmtree(folder)
    run(make_pipeline, settings)
    assert_same(both, make_pipeline)


def test_a_cut_while_silver_is_made_again_leaves_no_game_out(
    both: dict[str, Settings], make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = both[PARTITIONED]
    wave(settings)
    run(make_pipeline, settings)
    delete(settings, SILVER)
    wave(settings, ("go",))
    # One game is made again alone; the others have no news.
    run(make_pipeline, settings, select=["bronze"])
    run(make_pipeline, settings, games=["go"], select=["silver"])
    assert Lakehouse.of(settings).games() == ["go"]

    def cut() -> None:
        raise PowerCut

    at_point(monkeypatch, "silver_replanned", cut)
    with pytest.raises(PowerCut):
        refresh(make_pipeline(settings))
    monkeypatch.undo()
    run(make_pipeline, settings)
    run(make_pipeline, both[TABLES])
    assert_same(both, make_pipeline)
