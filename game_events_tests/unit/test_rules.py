"""Declaring rules: what may be declared, and what is refused with which reason."""

import json

import pytest

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.rules import Rule, all_rules, have_common_types, is_named


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_rules_come_from_yaml_with_their_defaults(folder):
    (folder / "game_events.yaml").write_text(
        "rules:\n"
        "  - name: has_player\n"
        "    sql: gamer_id IS NOT NULL AND gamer_id <> ''\n"
        "    description: an event without a player is no session\n"
        "    action: quarantine\n"
        "  - {name: short, sql: length(gamer_id) < 20, games: [uno]}\n"
    )
    first, second = load_settings().rules
    assert (first.name, first.action, first.layer, first.games) == ("has_player", "quarantine", "silver", ())
    assert (second.action, second.applies_to("uno"), second.applies_to("chess")) == ("warn", True, False)


def test_rules_come_from_the_environment_as_json(monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_RULES", json.dumps([{"name": "a", "sql": "true", "layer": "gold", "action": "fail"}]))
    (rule,) = load_settings().rules
    assert (rule.layer, rule.action) == ("gold", "fail")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([{"name": "a", "sql": "x", "layer": "bronze"}], "bronze holds every record that can be decoded"),
        ([{"name": "a", "sql": "x", "layer": "gold", "action": "drop"}], "gold would not equal its recompute"),
        ([{"name": "a", "sql": "x", "layer": "gold", "action": "quarantine"}], "can warn or fail, not quarantine"),
        ([{"name": "Big", "sql": "x"}], "RULES: 0.name"),
        ([{"name": "a", "sql": ""}], "RULES: 0.sql"),
        ([{"name": "a", "sql": "x", "action": "delete"}], "'warn', 'drop', 'quarantine' or 'fail'"),
        ([{"name": "a", "sql": "x", "severity": 1}], "RULES: 0.severity"),
        ([{"name": "a", "sql": "x"}, {"name": "a", "sql": "y"}], "same layer and name: silver.a"),
    ],
)
def test_what_cannot_be_a_rule_is_refused_with_the_reason(rules, message):
    with pytest.raises(ConfigurationError, match=r"bad settings") as refused:
        load_settings(rules=rules)
    assert message in str(refused.value)


def test_one_name_may_stand_in_each_layer():
    assert len(load_settings(rules=[{"name": "a", "sql": "x"}, {"name": "a", "sql": "x", "layer": "gold"}]).rules) == 2


def test_rules_of_modules_come_after_those_of_the_settings_and_must_be_rules_of_other_names():
    one, other = Rule(name="a", sql="x"), Rule(name="b", sql="x")
    assert all_rules([one], [other]) == (one, other)
    with pytest.raises(ConfigurationError, match=r"silver\.a .*GAME_EVENTS_EXTENSIONS"):
        all_rules([one], [one])


def test_what_is_sent_twice_comes_from_yaml_and_from_the_environment(folder, monkeypatch):
    (folder / "game_events.yaml").write_text("deduplicate:\n  - {key: [event_id], window_h: 48}\n")
    (entry,) = load_settings().deduplicate
    assert (entry.key, entry.window_us, entry.of, entry.applies_to("uno")) == (("event_id",), 172_800_000_000, "event", True)
    entries = [{"key": ["a", "b"], "window_h": 0.5, "of": "arrival", "games": ["uno"]}]
    monkeypatch.setenv("GAME_EVENTS_DEDUPLICATE", json.dumps(entries))
    (entry,) = load_settings().deduplicate
    assert (entry.key, entry.applies_to("go")) == (("a", "b"), False)
    assert str(entry) == "one a + b within 0.5 h of arrival of uno"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([{"key": []}], "key"),
        ([{"key": ["a", "a"]}], "each column once"),
        ([{"window_h": 0}], "greater than 0"),
        ([{"window_h": float("nan")}], "window_h"),
        ([{"of": "now"}], "'event' or 'arrival'"),
        ([{"window": 1}], "Extra inputs"),
        ([{}, {"games": ["uno"]}], "entries 1 and 2 are for the same rows"),
        ([{"games": ["uno"], "types": ["a.B"]}, {"games": ["go"]}, {"games": ["go", "uno"], "types": ["c.D"]}], "2 and 3"),
        ([{"types": ["a.B"]}, {"types": ["B"]}], "1 and 2"),
    ],
)
def test_entries_without_a_meaning_or_for_the_same_rows_are_refused(more, message):
    with pytest.raises(ConfigurationError, match=message):
        load_settings(deduplicate=[{"key": ["a"], "window_h": 1} | entry for entry in more])


def test_entries_for_other_games_or_types_stand_beside_each_other():
    apart = [{"games": ["uno"], "types": ["a.B"]}, {"games": ["uno"], "types": ["c.D"]}, {"games": ["go"]}]
    assert len(load_settings(deduplicate=[{"key": ["a"], "window_h": 1} | entry for entry in apart]).deduplicate) == 3


def test_a_message_type_is_named_in_full_or_without_its_first_parts():
    assert is_named("a.b.Paid", "Paid")
    assert is_named("a.b.Paid", "b.Paid")
    assert not is_named("a.b.Unpaid", "Paid")
    assert have_common_types(["b.Paid"], ["Paid", "x.Y"])
    assert have_common_types([], ["Paid"])
    assert not have_common_types(["a.Paid", "Quit"], ["b.Paid"])
