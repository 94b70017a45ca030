"""Games that are far behind, or very many: what maintenance throws away behind them was not theirs to need."""

from __future__ import annotations

import shutil
from pathlib import Path

from game_events.config.settings import Settings
from game_events.lakehouse.tables import BRONZE, game_of_silver, gold_name, silver_name
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.support.reconciliation import assert_books_balance
from game_events_tests.support.tables import grow_old
from game_events_tests.support.worlds.quality import Event, assert_sound, send_events
from game_events_tests.support.worlds.waves import send

#: Long enough for nobody: what is replaced may go at once, and so may entries of the log.
AT_ONCE = 1e-6


def log_versions(settings: Settings, table: str) -> list[int]:
    """Versions whose log entries are still there."""
    return sorted(int(path.stem) for path in Path(settings.lakehouse, table, "_delta_log").glob("*.json"))


def maintained_later(pipeline):
    """Of a maintenance long after the last commit, when logs have a checkpoint."""
    for name in pipeline.lakehouse.names():
        table = pipeline.lakehouse.table(name)
        table.open().create_checkpoint()  # as a longer log has it
        grow_old(table)
    report = RunReport()
    maintain(pipeline, report)
    return report


def test_files_vacuumed_and_logs_cleaned_behind_a_slow_game_cost_it_no_row(
    make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    settings = make_settings(every_version_h=AT_ONCE, replaced_files_h=AT_ONCE, derived_replaced_files_h=AT_ONCE)
    blocked = [Path(settings.lakehouse, name(game)) for name, game in ((silver_name, "uno"), (gold_name, "spades"))]
    sent = send(settings)
    refresh(make_pipeline(settings))
    # One game cannot be written in silver, another one not in gold, for a long time.
    for path in blocked:
        shutil.move(path, path.with_name(f"{path.name}.away"))
        path.write_text("not a folder")
    for version in (2, 3):
        sent = sent.merge(send(settings, version=version))
        report = refresh(make_pipeline(settings))
        assert {t.table for t in report.errors} == {path.name for path in blocked}, report.errors
        joined = maintained_later(make_pipeline(settings))
        assert joined.maintenance[BRONZE].joined, "no file of bronze was joined"
        # Files go with the entries of the log that name them: those that were joined just now a maintenance later.
        kept = maintained_later(make_pipeline(settings))
    # No version that the slow games have come to can be opened any more, nor is there a file of it.
    assert log_versions(settings, BRONZE)[0] > 2
    assert len(list(Path(settings.lakehouse, BRONZE).glob("*.parquet"))) == kept.maintenance[BRONZE].files
    for path in blocked:
        path.unlink()
        shutil.move(path.with_name(f"{path.name}.away"), path)
    report = refresh(make_pipeline(settings))
    assert report.success, report.errors
    assert_books_balance(settings, sent)
    assert refresh(make_pipeline(settings)).tables == []


def test_ten_thousand_names_make_no_table_once_there_is_no_room_and_a_real_game_still_comes_in(
    make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    settings = make_settings(max_games=2, new_game_min_rows=50)
    send_events(settings, [Event("chess"), Event("uno")])
    assert refresh(make_pipeline(settings)).success
    flood = [Event(f"name_{n}") for n in range(10_000)]
    send_events(settings, [*flood, *[Event("newcomer", n) for n in range(60)], Event("uno", gamer="bob")])
    report = refresh(make_pipeline(settings))
    assert report.success, report.errors
    assert (report.rows("bronze"), report.rows("silver"), report.unrouted) == (10_061, 61, {"over_limit": 10_000})
    names = map(game_of_silver, make_pipeline(settings).lakehouse.names())
    assert {name for name in names if name is not None} == {"chess", "newcomer", "uno"}
    assert len(str(report.to_dict())) < 20_000, "the account names everybody"
    assert_sound(make_pipeline(settings))
