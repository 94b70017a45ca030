"""Files of one day each (`LAYOUT`), beside the same rows without: every layer, check and reader has the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from game_events.config.settings import Settings
from game_events.lakehouse.data.layout import NO_DAY, days_of_files
from game_events.lakehouse.tables import BRONZE, PARTITIONED, SILVER, TABLES, Lakehouse, add_actions
from game_events.pipeline.context import Pipeline
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode
from game_events.pipeline.runs.file_layout import require_columns
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.integration.pipeline.test_erasure import forgotten
from game_events_tests.support.reconciliation import rows
from game_events_tests.support.worlds.quality import Event, assert_checks_pass, assert_sound, send_events

GAMES = ("chess", "go")
LAYOUT = "silver=day, bronze=arrival_day"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(params=[TABLES, PARTITIONED])
def both(request: pytest.FixtureRequest, make_settings: MakeSettings, tmp_path: Path) -> tuple[Settings, Settings]:
    """Settings without a layout of files and with one: the same topic, a lakehouse each."""
    more: dict[str, Any] = {"erasure_key": "a key of the tests, long enough", "silver_layout": request.param}
    plain = make_settings(lakehouse=str(tmp_path / "plain"), **more)
    return plain, make_settings(lakehouse=str(tmp_path / "laid_out"), layout=LAYOUT, **more)


def wave(settings: Settings, number: int) -> None:
    """Events of one day, late ones of nine days, and one without a time, for each game."""
    days = [10] * 12 + list(range(9)) + [None]
    send_events(
        settings,
        [Event(game, 100 * number + n, gamer=("ann", "bob")[n % 2], day=day) for game in GAMES for n, day in enumerate(days)],
    )


def opened(make_pipeline: MakePipeline, settings: Settings) -> Pipeline:
    """A pipeline for which three rows of a day are many."""
    pipeline = make_pipeline(settings)
    pipeline.lakehouse.sizes = dataclasses.replace(pipeline.lakehouse.sizes, day_rows=3)
    return pipeline


def run(make_pipeline: MakePipeline, settings: Settings, **options: Any) -> None:
    pipeline = opened(make_pipeline, settings)
    report = refresh(pipeline, **({"selection": selection_of(pipeline, **options)} if options else {}))
    assert report.success, report.errors


def shown(settings: Settings) -> dict[str, list[tuple[Any, ...]]]:
    """Rows of each layer, as DuckDB reads the files."""
    columns = "_kafka_offset, game_name, gamer_id, event_timestamp, amount"
    found = {name: sorted(rows(settings, name, f"SELECT {columns} FROM t"), key=str) for name in (BRONZE,)}
    found |= {g: sorted(rows(settings, f"silver_{g}_events", f"SELECT {columns} FROM t"), key=str) for g in GAMES}
    agg = "SELECT gamer_id, session_count, min_timestamp, max_timestamp FROM t"
    return found | {f"gold of {g}": sorted(rows(settings, f"gold_{g}_player_agg", agg)) for g in GAMES}


def silver_tables(settings: Settings) -> Iterator[DeltaTable]:
    lakehouse = Lakehouse.of(settings)
    for key in [SILVER] if settings.silver_layout == PARTITIONED else [f"silver_{game}_events" for game in GAMES]:
        handle = lakehouse.table(key).open()
        assert handle is not None
        yield handle


def days(settings: Settings) -> list[int | None]:
    """The day of each file of silver, by its bounds."""
    return [day for handle in silver_tables(settings) for day in days_of_files(add_actions(handle), "event_timestamp")]


def assert_same(both: tuple[Settings, Settings], make_pipeline: MakePipeline) -> None:
    plain, laid_out = both
    assert shown(laid_out) == shown(plain)
    assert_sound(make_pipeline(laid_out))


def assert_readers_find_the_rows_of_days(settings: Settings) -> None:
    """By the log's bounds, and by those of the files."""
    lakehouse = Lakehouse.of(settings)
    everything = [
        row for game in GAMES for row in rows(settings, f"silver_{game}_events", "SELECT event_timestamp, amount FROM t")
    ]
    for begin, end in ((0, 1), (3, 5), (10, 11), (11, 99)):
        low, high = EPOCH + timedelta(days=begin), EPOCH + timedelta(days=end)
        wanted = sorted(amount for at, amount in everything if at is not None and low <= at.astimezone(UTC) < high)
        column = pl.col("event_timestamp")
        by_polars: list[int] = []
        by_duckdb: list[int] = []
        for handle in silver_tables(settings):
            scanned = pl.scan_delta(handle.table_uri).filter((column >= low) & (column < high))
            by_polars += scanned.select("amount").collect().to_series().to_list()
            found = duckdb.execute(
                "SELECT amount FROM read_parquet(?) WHERE event_timestamp >= ? AND event_timestamp < ?",
                [handle.file_uris(), low, high],
            )
            by_duckdb += [amount for (amount,) in found.fetchall()]
        assert sorted(by_polars) == sorted(by_duckdb) == wanted
    assert lakehouse.file_layouts


@pytest.mark.scenario
def test_runs_maintenance_refreshes_redecoding_and_an_erasure_give_the_same_rows_as_without_a_layout(
    both: tuple[Settings, Settings], make_pipeline: MakePipeline
) -> None:
    laid_out = both[1]
    for number in range(3):
        wave(both[0], number)
        for settings in both:
            run(make_pipeline, settings)
    assert 10 in days(laid_out)
    assert None in days(laid_out)
    assert_same(both, make_pipeline)
    assert_readers_find_the_rows_of_days(laid_out)

    for settings in both:
        report = RunReport()
        maintain(make_pipeline(settings), report, layout=True)
        assert not [one for one in report.maintenance.values() if one.error or one.skipped]
        assert bool(sum(one.laid_out for one in report.maintenance.values())) is (settings is laid_out)
    assert set(days(laid_out)) == {*range(9), 10, NO_DAY}
    assert_same(both, make_pipeline)
    assert_readers_find_the_rows_of_days(laid_out)

    for settings in both:
        assert redecode(opened(make_pipeline, settings), RunReport()).rows == 3 * 2 * 22
        forgotten(make_pipeline(settings), "ann", vacuum=True)
    assert set(days(laid_out)) == {*range(1, 9, 2), 10, NO_DAY}
    assert_same(both, make_pipeline)

    for settings in both:
        run(make_pipeline, settings, full_refresh=["silver"])
    assert_same(both, make_pipeline)
    assert_checks_pass(make_pipeline(laid_out))
    assert require_columns(make_pipeline(laid_out)) == (
        "bronze: files by day of _kafka_timestamp; silver: files by day of event_timestamp"
    )
