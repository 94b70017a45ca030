"""The settings that say which game, which player and when: their forms, and what is refused."""

import pickle
import subprocess
import sys

import pytest

from game_events.config.definitions.computed import EntityNames
from game_events.config.definitions.settings import definitions_of, marks_of
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError

BY_TYPE = {"a.Level": "ts", "*": "created"}


def test_without_them_there_are_none_and_duckdb_is_not_imported():
    assert definitions_of(load_settings()) is None
    assert marks_of(load_settings()) == {"entity": 0, "key": 0, "time": 0}
    code = (
        "import sys; from game_events.config.settings import load_settings; load_settings(); sys.exit('duckdb' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_expression_or_a_mapping_comes_from_the_environment_and_from_yaml(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "game_events.yaml").write_text("entity: lower(game)\ntime:\n  a.Level: ts\n  '*': created\n")
    settings = load_settings()
    assert (settings.entity, settings.time) == ("lower(game)", BY_TYPE)
    monkeypatch.setenv("GAME_EVENTS_TIME", "now_or_never")
    monkeypatch.setenv("GAME_EVENTS_KEY", '{"a.Level": "ts", "*": "created"}')
    monkeypatch.setenv("GAME_EVENTS_ENTITY", "")
    monkeypatch.setenv("GAME_EVENTS_ENTITY_ALIASES", '{"com.studio.rummy": "rummy"}')
    settings = load_settings()
    assert (settings.entity, settings.key, settings.time) == (None, BY_TYPE, "now_or_never")
    definitions = definitions_of(settings)
    assert definitions == pickle.loads(pickle.dumps(definitions))  # noqa: S301 - the test's own
    assert dict(definitions.described()) == {
        "gamer_id": "a.Level: ts; created",
        "event_timestamp": "now_or_never",
        "names in game_name": "com.studio.rummy = rummy",
    }


def test_a_message_type_is_named_in_full_or_by_its_last_parts_and_one_that_is_not_named_keeps_its_field():
    settings = load_settings(key={"a.b.Level": "whole", "Level": "short", "x.Level": "longer"})
    (key,) = definitions_of(settings).computed
    chosen = {name: key.of(name) and key.of(name).text for name in ("a.b.Level", "c.Level", "d.x.Level", "c.Other", None)}
    assert chosen == {"a.b.Level": "whole", "c.Level": "short", "d.x.Level": "longer", "c.Other": None, None: None}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"entity": "a, b"}, "GAME_EVENTS_ENTITY: .*must be one expression"),
        ({"time": {"a.Level": "now()"}}, "GAME_EVENTS_TIME: .*not the same each time"),
        ({"entity_aliases": {"Rummy": "Rummy!"}}, "'Rummy!' is no legal name"),
        ({"entity_aliases": {"Rummy": "unified"}}, "'unified' is no legal name"),
        ({"entity_aliases": {"a.b": "b", "b": "c"}}, "an alias must name a game, not another alias"),
        ({"entity_names": "lower", "entity_aliases": {"Uno": "a", "UNO": "b"}}, "'Uno' and 'UNO' are one name .* two games"),
        ({"entity_names": "replace", "entity_aliases": {"x.y": "a", "x-y": "b"}}, "'x.y' and 'x-y' are one name"),
        ({"entity_names": "upper"}, "GAME_EVENTS_ENTITY_NAMES"),
        ({"entity_column": "_kafka_topic", "entity_names": "lower"}, "set GAME_EVENTS_ENTITY=_kafka_topic"),
        ({"entity_column": "_kafka_topic", "entity": "x"}, "a column of bronze's own"),
        ({"key_column": "_kafka_key", "key": "x"}, "set GAME_EVENTS_KEY=_kafka_key"),
    ],
)
def test_what_is_wrong_is_refused_by_the_name_of_its_setting(wrong, why):
    with pytest.raises(ConfigurationError, match=why):
        load_settings(**wrong)


@pytest.mark.parametrize(
    ("fine", "names"),
    [
        ({"entity_aliases": {"rummy": "rummy", "Rummy": "rummy"}}, {"rummy": "rummy", "Rummy": "rummy", "RUMMY": None}),
        ({"entity_aliases": {"Uno": "a", "UNO": "b"}}, {"Uno": "a", "UNO": "b", "uno": None}),
        ({"entity_names": "lower", "entity_aliases": {"Uno": "a", "UNO": "a"}}, {"Uno": "a", "UNO": "a", "uno": "a"}),
    ],
)
def test_aliases_that_are_unambiguous_are_allowed_and_hold(fine, names):
    settings = load_settings(**fine)
    assert settings.entity_aliases == fine["entity_aliases"]
    made = definitions_of(settings).names
    assert {name: made.alias(name) for name in names} == names


def test_a_column_of_bronzes_own_is_allowed_where_nothing_is_put_into_it():
    settings = load_settings(entity_column="_kafka_topic")
    assert (settings.entity_column, settings.entity_aliases, definitions_of(settings)) == ("_kafka_topic", {}, None)


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        ("keep", {"Rummy": "Rummy", "rummy": "rummy", "com.x": "game"}),
        ("lower", {"Rummy": "rummy", "Go.Fish": "Go.Fish", "com.x": "game", "COM.X": "game", "Unified": "Unified", "": ""}),
        ("replace", {"Go.Fish!": "go_fish_", "-x": "-x", "ü": "ü", "com-x": "game", "a" * 64: "a" * 64, "İx": "i_x"}),
    ],
)
def test_names_that_no_game_may_have_are_as_the_rule_says_and_aliases_come_first(rule, names):
    made = EntityNames({"com.x": "game"}, rule)
    assert {name: made.alias(name) or made.by_rule(name) for name in names} == names


def test_each_change_of_a_definition_has_another_number_and_no_other_setting_has():
    base = {"entity": "a", "key": "b", "time": "c"}
    marks = marks_of(load_settings(**base))
    assert all(0 < mark < 2**63 for mark in marks.values())
    assert marks_of(load_settings(**base, replaced_files_h=5)) == marks
    for change, affected in [
        ({"entity": "a2"}, {"entity"}),
        ({"entity": {"x": "a"}}, {"entity"}),
        ({"entity_aliases": {"X": "y"}}, {"entity"}),
        ({"entity_names": "lower"}, {"entity"}),
        ({"entity_column": "game"}, {"entity"}),
        ({"key": None}, {"key"}),
        ({"naive_times_zone": "UTC"}, {"time"}),
    ]:
        now = marks_of(load_settings(**base | change))
        assert {name for name in marks if now[name] != marks[name]} == affected
