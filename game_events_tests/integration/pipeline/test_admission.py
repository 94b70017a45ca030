"""A flood of names: whatever their number and their rows, only so many become tables, folders and files."""

from __future__ import annotations

from pathlib import Path

from game_events.config.settings import Settings
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.preflight import environment_checks
from game_events.pipeline.runs.refresh import refresh, refresh_downstream
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.support.reconciliation import count
from game_events_tests.support.worlds.quality import Event, assert_sound, send_events


def folders(settings: Settings) -> set[str]:
    found = {p.name for p in Path(settings.lakehouse).iterdir() if p.name.startswith(("silver_", "gold_"))}
    return {name for name in found if "unified" not in name}


def of_games(*games: str) -> set[str]:
    return {name for game in games for name in (f"silver_{game}_events", f"gold_{game}_player_agg")}


def test_a_new_lakehouse_has_no_folders_of_a_flood_and_what_had_no_room_comes_once_there_is(
    make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    """All names of a slice had a folder and a file while there was room; with enough rows each, a table for ever."""
    settings = make_settings(max_games=2, new_game_min_rows=5, max_games_ever=3)
    flood = [Event(f"name_{n}", m) for n in range(40) for m in range(6)]
    known = [Event(game, n) for game, rows in (("chess", 9), ("uno", 8)) for n in range(rows)]
    send_events(settings, [*flood, *known, Event("No!")])
    report = refresh(make_pipeline(settings))
    assert report.success, report.errors
    assert report.unrouted == {"over_limit": 39 * 6, "invalid": 1}
    assert any("GAME_EVENTS_MAX_GAMES_EVER" in notice for notice in report.notices)
    assert folders(settings) == of_games("chess", "uno", "name_0")
    assert_sound(make_pipeline(settings))
    assert "only those of GAME_EVENTS_GAMES come in" in str(environment_checks(settings)["tables"]())
    # A name more than there is room for, in one task: it is let in by nobody, and leaves no folder.
    send_events(settings, [Event("later", n) for n in range(50)])
    assert refresh(make_pipeline(settings)).unrouted == {"over_limit": 50}
    # Nothing is lost: with more room those with most rows have all they ever had, without a new one.
    more = settings.model_copy(update={"max_games": 4})
    report = refresh(make_pipeline(more))
    assert (report.unrouted, report.rows("silver")) == ({}, 50)
    assert folders(settings) == of_games("chess", "uno", "name_0", "later")
    assert_sound(make_pipeline(more))
    assert "MAX_GAMES" not in str(environment_checks(settings.model_copy(update={"max_games": 5}))["tables"]())
    # The owner can name others; and of those that he does not name nothing is searched again.
    named = settings.model_copy(update={"games": ("chess", "uno", "name_0", "later", "name_7")})
    assert refresh(make_pipeline(named)).rows("silver") == 6
    assert count(settings, "silver_name_7_events") == 6
    assert refresh(make_pipeline(named)).is_empty
    assert_sound(make_pipeline(named))


def test_a_full_refresh_of_silver_makes_tables_of_every_name_that_the_settings_let_in(
    make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    """Also of names of the allow list above the number of games, and of new ones with enough rows."""
    settings = make_settings(max_games=1, new_game_min_rows=5, max_games_ever=2, games=("chess",))
    send_events(settings, [Event(game, n) for game, rows in (("chess", 9), ("uno", 8), ("go", 2)) for n in range(rows)])
    assert refresh(make_pipeline(settings)).success
    named = settings.model_copy(update={"games": ("chess", "go")})
    refresh_downstream(make_pipeline(named), report := RunReport(), full=True)
    assert report.success, report.errors
    assert count(settings, "silver_go_events") == 2
    limited = settings.model_copy(update={"games": (), "max_games_ever": 3})
    refresh_downstream(make_pipeline(limited), report := RunReport(), full=True)
    assert report.success, report.errors
    assert count(settings, "silver_uno_events") == 8
