"""Settings that put rows into other tables than those that silver has: each is refused with words of its own."""

import pytest

from game_events.config.settings import load_settings
from game_events.lakehouse.system_tables import Mark, Progress
from game_events.lakehouse.tables import Layer
from game_events.pipeline.definitions import made_by
from game_events.pipeline.silver.made_by import BY_TYPES, other_settings

TYPED = {"silver_per": "entity_and_type"}
COMPUTED = {"entity": "lower(a)"}


def why(before, now):
    """Why settings cannot add to the tables of others; None: they can."""
    made = load_settings(**before)
    types = f"{BY_TYPES}{made.type_tables.definition}" if made.type_tables is not None else ""
    return other_settings(load_settings(**now), Progress("id").marked(Layer.SILVER, Mark(made_by(made) + types)))


@pytest.mark.parametrize("settings", [{}, TYPED, COMPUTED, TYPED | COMPUTED, TYPED | {"silver_types": ["a.B"]}], ids=str)
def test_the_same_settings_are_not_refused(settings):
    assert why(settings, settings) is None


@pytest.mark.parametrize("types", [{}, TYPED], ids=["one table", "tables of types"])
def test_another_column_and_another_definition_are_refused_with_tables_of_types_and_without(types):
    assert "ENTITY_COLUMN is 'region', and silver's tables were made by 'game_name'" in why(
        types, types | {"entity_column": "region"}
    )
    assert "before bronze_events got other games, players or times" in why(types, types | COMPUTED)
    assert "before bronze_events got other games, players or times" in why(types | COMPUTED, types)


@pytest.mark.parametrize("definitions", [{}, COMPUTED], ids=["decoded", "computed"])
def test_other_types_with_tables_are_refused_with_definitions_and_without(definitions):
    assert "SILVER_TYPES ask for tables for games and all types, and silver has tables for games alone" in why(
        definitions, definitions | TYPED
    )
    assert "ask for tables for games alone, and silver has tables for games and all types" in why(
        definitions | TYPED, definitions
    )


def test_where_both_differ_the_definition_is_named_as_it_comes_first():
    assert "other games, players or times" in why(COMPUTED, TYPED)
