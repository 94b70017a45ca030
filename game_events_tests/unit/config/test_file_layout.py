"""`LAYOUT` and `STATISTICS_COLUMNS`: every way to write them, and what is refused by its name."""

from __future__ import annotations

import json

import pytest

from game_events.config.file_layout import ARRIVAL, FileLayout, file_layouts
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import Lakehouse

WANTED = {"silver": ("level", "country"), "bronze": "arrival_day"}
AS_TEXT = "silver = cluster(level, country), bronze=arrival_day"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "text", [AS_TEXT, json.dumps({"silver": ["level", "country"], "bronze": "arrival_day"}), AS_TEXT.replace(" ", "")]
)
def test_the_environment_and_a_settings_file_say_the_same_layout(text, folder, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_LAYOUT", text)
    assert load_settings().layout == WANTED
    monkeypatch.delenv("GAME_EVENTS_LAYOUT")
    (folder / ".env").write_text(f"GAME_EVENTS_LAYOUT='{text}'\n")
    assert load_settings().layout == WANTED
    (folder / ".env").unlink()
    for yaml in (f"layout: {json.dumps(text)}", "tables:\n  layout:\n    silver: [level, country]\n    bronze: arrival_day"):
        (folder / "game_events.yaml").write_text(yaml)
        assert load_settings().layout == WANTED


def test_the_environment_takes_the_place_of_the_settings_file_and_removes_its_layout(folder, monkeypatch):
    (folder / "game_events.yaml").write_text("layout: {silver: day}\nstatistics_columns: [level]")
    assert load_settings().layout == {"silver": "day"}
    for text, wanted in (("bronze=day", {"bronze": "day"}), ("{}", {}), ("", {})):
        monkeypatch.setenv("GAME_EVENTS_LAYOUT", text)
        assert load_settings().layout == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("level, country", {"all": ("level", "country")}),
        ('["level"]', {"all": ("level",)}),
        ('{"silver": ["level"], "all": ["country"]}', {"silver": ("level",), "all": ("country",)}),
    ],
)
def test_columns_with_statistics_are_those_of_both_layers_or_of_one(text, wanted, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_STATISTICS_COLUMNS", text)
    assert load_settings().statistics_columns == wanted


@pytest.mark.parametrize(
    ("setting", "text", "why"),
    [
        ("LAYOUT", "gold=day", "no layer gold"),
        ("LAYOUT", "silver=month", "'month' is no layout"),
        ("LAYOUT", "silver=day,silver=day", "each layer once"),
        ("LAYOUT", "silver", "must be layer=layout"),
        ("LAYOUT", "silver=cluster()", "one column or several"),
        ("LAYOUT", "silver=cluster(a, a)", "each once"),
        ("LAYOUT", "{", "no valid JSON|not valid JSON"),
        ("STATISTICS_COLUMNS", "a, a", "each once"),
        ("STATISTICS_COLUMNS", '{"quarantine": ["a"]}', "no layer quarantine"),
        ("STATISTICS_COLUMNS", "gamer_id", "gamer_id"),
    ],
)
def test_what_is_wrong_is_said_with_the_settings_name(setting, text, why, monkeypatch):
    monkeypatch.setenv(f"GAME_EVENTS_{setting}", text)
    with pytest.raises(ConfigurationError, match=f"GAME_EVENTS_{setting}(.|\n)*({why})"):
        load_settings()


def test_the_layout_of_a_table_follows_from_its_layer():
    settings = load_settings(layout="silver=day", statistics_columns={"bronze": ["a"], "all": ["b"]}, time_column="at")
    lakehouse = Lakehouse.of(settings)
    silver = FileLayout("at", (), ("b",))
    assert lakehouse.table("bronze_events").file_layout == FileLayout(None, (), ("a", "b"))
    for key in ("silver_uno_events", "silver_events", "silver_uno:paid_events"):
        assert lakehouse.table(key).file_layout == silver
    assert silver.with_statistics == ("at", "b")
    for key in ("quarantine_events", "gold_uno_player_agg", "gold_unified_player_agg", "progress", "event_log"):
        assert lakehouse.table(key).file_layout == FileLayout()
    assert file_layouts({"bronze": "arrival_day"}, {}, "at") == {"bronze": FileLayout(ARRIVAL)}
    assert file_layouts({}, {}, "at") == {}


def test_the_mark_of_clustered_files_is_that_of_their_columns_in_their_order():
    marks = {FileLayout(cluster=columns).mark for columns in (("a",), ("b",), ("a", "b"), ("b", "a"))}
    assert len(marks) == 4
    assert FileLayout(cluster=("a",)).mark == FileLayout(cluster=("a",), statistics=("b",)).mark
