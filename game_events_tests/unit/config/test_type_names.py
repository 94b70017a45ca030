"""Names of message types in the names of tables: legal, bounded, and the same whatever came before."""

import re
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from game_events.config.settings import load_settings
from game_events.config.type_names import LONGEST, TypeTables, game_of, of_type, type_name, type_of
from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import Lakehouse, silver_name
from game_events.workers.fanout import INVALID, Routing


@pytest.mark.parametrize(
    ("full", "name"),
    [
        ("studio.v1.LevelStart", "level_start"),
        ("LevelStart", "level_start"),
        ("a.HTTPCall2Done", "http_call2_done"),
        ("a.level_start", "level_start"),
        ("Level Start!", "level_start"),
        ("topic-value", "topic_value"),
        ("v1.2 of it", "v1_2_of_it"),
    ],
)
def test_a_type_is_called_by_the_last_part_of_its_name(full, name):
    assert type_name(full) == name


@given(st.text(min_size=1, max_size=200))
def test_every_name_is_legal_everywhere_and_short(full):
    name = type_name(full)
    assert re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", name)
    assert len(name) <= LONGEST


def test_long_names_and_those_without_a_legal_character_are_told_apart_by_a_digest():
    assert len({type_name("A" * 50 + "b"), type_name("A" * 50 + "c"), type_name("Уровень"), type_name("Старт")}) == 4


def test_listed_types_with_the_same_last_part_get_more_parts_in_whatever_order_they_are_listed():
    listed = ("a.v1.Start", "b.v1.Start", "b.v2.Start", "Paid")
    names = {"a.v1.Start": "a_v1_start", "b.v1.Start": "b_v1_start", "b.v2.Start": "v2_start", "Paid": "paid"}
    for some in permutations(listed):
        assert TypeTables(some).names == names
    assert TypeTables(listed).name("other.Paid") is None
    assert TypeTables().name("other.Paid") == "paid"
    assert TypeTables().name(None) is None
    assert len({TypeTables(some).definition for some in permutations(listed)}) == 1
    assert len({TypeTables(some).definition for some in ((), ("Paid",), listed)}) == 3


def test_types_that_no_part_tells_apart_and_settings_that_contradict_each_other_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="would have the same table"):
        _ = TypeTables(("a.LevelStart", "a.Level_Start")).names
    for wrong, why in (
        ({"silver_types": ("Paid",)}, "SILVER_TYPES needs"),
        ({"silver_per": "entity_and_type", "silver_layout": "partitioned"}, "needs GAME_EVENTS_SILVER_LAYOUT=tables"),
        ({"silver_per": "entity_and_type", "games": ("a__b",)}, "two underscores"),
        ({"silver_per": "entity_and_type", "silver_types": ("a.B", "a.b")}, "would have the same table"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            load_settings(lakehouse=str(tmp_path), **wrong)


def test_settings_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_SILVER_PER", "entity_and_type")
    monkeypatch.setenv("GAME_EVENTS_SILVER_TYPES", "a.Paid, a.Start")
    assert load_settings(lakehouse=str(tmp_path)).type_tables == TypeTables(("a.Paid", "a.Start"))


@pytest.mark.parametrize("names", [{}, {"prefix": "dev_", "events": "readings"}])
def test_game_and_type_of_a_table_are_known_by_its_folder(tmp_path, names):
    settings = load_settings(lakehouse=str(tmp_path), silver_per="entity_and_type", names=names)
    lakehouse = Lakehouse.of(settings)
    for called in ("rummy", "rummy:level_start", "a_b:c", "a:b_c", "a_b_c"):
        table = lakehouse.silver(called)
        (tmp_path / table.name / "_delta_log").mkdir(parents=True)
        assert lakehouse.key(table.name) == silver_name(called)
        assert re.search(lakehouse.silver_path(), f"{table.uri}/x.parquet")[1] == game_of(called)
    assert sorted(lakehouse.games()) == ["a_b_c", "rummy"]
    assert lakehouse.type_tables() == {"rummy": ["rummy:level_start"], "a_b": ["a_b:c"], "a": ["a:b_c"]}
    # By other settings the same folders are those of games.
    other = Lakehouse.of(load_settings(lakehouse=str(tmp_path), names=names))
    assert "rummy__level_start" in other.games()
    assert other.type_tables() == {}
    assert other.type_tables(always=True) == lakehouse.type_tables()


def test_a_name_that_could_be_a_game_and_a_type_is_no_game_while_types_have_tables(tmp_path):
    typed = load_settings(lakehouse=str(tmp_path), silver_per="entity_and_type")
    assert Routing.of(typed).refusal("a__b") == INVALID
    assert Routing.of(typed).refusal("a_b") is None
    assert Routing.of(load_settings(lakehouse=str(tmp_path))).refusal("a__b") is None


def test_what_tables_are_called_says_game_and_type():
    assert (game_of("rummy:paid"), type_of("rummy:paid"), type_of("rummy")) == ("rummy", "paid", None)
    assert (of_type("rummy", "paid"), of_type("rummy", None)) == ("rummy:paid", "rummy")
