"""`RETENTION_DAYS`: which limit a row has, in whatever form it is set."""

from __future__ import annotations

import pytest

from game_events.config.retention import RetentionDays
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError

DAYS = {"silver": 365, "silver:rummy": 30, "silver:*:a.B": 7, "silver:rummy:a.C": 0, "bronze": 0, "event_log": 10}


def test_the_limit_that_says_most_about_a_row_counts():
    days = RetentionDays(DAYS)
    assert days.of("silver", "uno", "a.A") == 365
    assert days.of("silver", "rummy", "a.A") == 30
    assert days.of("silver", "uno", "a.B") == 7
    assert days.of("silver", "rummy", "a.B") == 7
    assert days.of("silver", "rummy", "a.C") is None
    assert days.of("bronze") is None
    assert days.of("quarantine") is None


def test_a_layer_has_limits_if_any_of_its_rows_has_one():
    days = RetentionDays(DAYS)
    assert [layer for layer in ("bronze", "silver", "quarantine", "event_log") if days.has(layer)] == ["silver", "event_log"]
    assert (days.games("silver"), days.types("silver"), days.types("silver", "uno")) == ({"rummy"}, {"a.B", "a.C"}, {"a.B"})


def test_the_shortest_limit_of_a_layer_is_that_of_any_of_its_rows():
    assert RetentionDays(DAYS).shortest("silver") == 7
    assert RetentionDays({"silver": 30, "silver:rummy": 365, "silver:uno": 0}).shortest("silver") == 30
    assert RetentionDays({"bronze": 0, "bronze:uno": 90, "raw": 1}).shortest("bronze") == 90
    assert RetentionDays(DAYS).shortest("bronze") is None
    assert RetentionDays(DAYS).shortest("quarantine") is None


def test_it_is_read_from_the_environment_a_file_of_variables_and_yaml(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "game_events.yaml").write_text("tables:\n  retention_days:\n    bronze: 90\n    silver:rummy:a.B: 7\n")
    assert load_settings().retention_days == {"bronze": 90, "silver:rummy:a.B": 7}
    (tmp_path / ".env").write_text('GAME_EVENTS_RETENTION_DAYS={"bronze": 80}\n')
    assert load_settings().retention_days == {"bronze": 80, "silver:rummy:a.B": 7}
    monkeypatch.setenv("GAME_EVENTS_RETENTION_DAYS", '{"bronze": 70.5}')
    assert load_settings().retention_days["bronze"] == 70.5
    monkeypatch.setenv("GAME_EVENTS_RETENTION_DAYS", "{}")
    assert load_settings().row_retention is None


@pytest.mark.parametrize(
    ("name", "days", "what"),
    [
        ("gold", 3, "must be one of bronze, raw, silver, quarantine, event_log"),
        ("quarantine:uno", 3, "only bronze, raw, silver may have limits of games"),
        ("silver:Uno!", 3, "must be layer:game"),
        ("silver:*", 3, "must be layer:game"),
        ("silver:uno:", 3, "the name of the message type is missing"),
        ("silver", -1, "must be days from 0"),
        ("silver", 1e9, "must be days from 0"),
    ],
)
def test_what_is_no_limit_is_refused_with_its_name(name, days, what):
    with pytest.raises(ConfigurationError, match=what):
        load_settings(retention_days={name: days})
