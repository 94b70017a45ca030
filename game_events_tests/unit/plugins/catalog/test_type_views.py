"""Views of message types in a catalog: of which types, made of what, and how seldom."""

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import SILVER, Lakehouse, names_of, silver_name
from game_events.plugins.catalog.catalogs import views
from game_events.plugins.catalog.catalogs.places import literal, quoted
from game_events.plugins.catalog.catalogs.views import TypeViews
from game_events.plugins.catalog.sql import TablesSql
from game_events_tests.support.typed_tables import add_types

BOTH = {"t.Start": {"level": "3"}, "t.Paid": {"amount": "7"}}


class Catalog:
    """One that has views, and says which queries came."""

    def __init__(self):
        self.queries = {}

    def make_view(self, name, query):
        is_new = self.queries.get(name) != query
        self.queries[name] = query
        return is_new

    def of_table(self, name):
        return f"`games`.`{name}`"


@pytest.fixture
def lakehouse(tmp_path):
    return Lakehouse(str(tmp_path))


@pytest.fixture
def read(monkeypatch):
    """Files that were opened to look for types."""
    opened = []
    whole = pq.ParquetFile
    monkeypatch.setattr(views.pq, "ParquetFile", lambda path, **more: opened.append(path) or whole(path, **more))
    return opened


def test_each_type_is_a_view_with_its_own_columns(lakehouse):
    add_types(lakehouse, BOTH)
    catalog = Catalog()
    assert TypeViews(lakehouse).renew(catalog, ["a"]).names == ["silver_a__paid_events", "silver_a__start_events"]
    assert catalog.queries["silver_a__start_events"] == (
        "SELECT `_message_type`, `_batch`, `game_name`, `level` FROM `games`.`silver_a_events` "
        "WHERE _message_type IN ('t.Start')"
    )


def test_a_view_is_made_again_if_its_type_has_a_new_column_and_no_other_one(lakehouse):
    add_types(lakehouse, BOTH)
    catalog, made = Catalog(), TypeViews(lakehouse)
    made.renew(catalog, ["a"])
    assert made.renew(catalog, ["a"]).names == []
    add_types(lakehouse, {"t.Start": {"level": "4", "mode": "hard"}})
    assert made.renew(catalog, ["a"]).names == ["silver_a__start_events"]
    assert "`mode`" in catalog.queries["silver_a__start_events"]


def test_a_file_is_opened_once_and_only_if_the_log_does_not_know_its_type(lakehouse, read):
    add_types(lakehouse, {"t.Start": {"level": "3"}})
    made = TypeViews(lakehouse)
    assert made.renew(Catalog(), ["a"]).names == ["silver_a__start_events"]
    assert read == []
    add_types(lakehouse, {"t.Won": {"score": "1"}, "t.Paid": {"amount": "7"}, "t.Start": {"level": "1"}})
    assert made.renew(Catalog(), ["a"]).names == ["silver_a__paid_events", "silver_a__won_events"]
    made.renew(Catalog(), ["a"])
    assert len(read) == 1


def test_a_type_with_a_table_of_its_own_and_a_game_without_types_get_no_view(lakehouse):
    add_types(lakehouse, BOTH)
    add_types(lakehouse, {"t.Paid": {"amount": "7"}}, "a__paid")
    catalog = Catalog()
    assert TypeViews(lakehouse).renew(catalog, ["a", "b"]).names == ["silver_a__start_events"]


@pytest.mark.parametrize("error", [ConfigurationError("no views"), PySparkException("no views"), OSError("no views")])
def test_a_game_whose_view_is_refused_is_named_and_the_others_get_theirs(lakehouse, error):
    for game in ("a", "b", "c"):
        add_types(lakehouse, {"t.Paid": {"amount": "7"}}, game)

    class RefusingOne(Catalog):
        def make_view(self, name, query):
            if name.startswith("silver_b_"):
                raise error
            return super().make_view(name, query)

    renewed = TypeViews(lakehouse).renew(RefusingOne(), ["a", "b", "c"])
    assert renewed.names == ["silver_a__paid_events", "silver_c__paid_events"]
    assert renewed.failed == {"b": error}


def test_names_and_texts_are_quoted():
    assert quoted("a`b") == "`a``b`"
    assert literal("it's\\") == "'it\\'s\\\\'"


def test_with_one_table_for_all_games_a_view_has_the_rows_of_its_game(tmp_path):
    settings = load_settings(lakehouse=str(tmp_path), silver_layout="partitioned")
    lakehouse = Lakehouse.of(settings)
    for game in ("a", "b"):
        add_types(lakehouse, BOTH, game)
    table = lakehouse.table(silver_name("a"))
    assert (table.name, table.part) == (SILVER, "a")
    assert "_message_type" in names_of(table.open_to_read())
    with TablesSql(lakehouse) as tables:
        _, found = tables.query("SELECT game_name, level FROM silver_a__start_events")
        assert list(found) == [("a", "3")]
    catalog = Catalog()
    assert TypeViews(lakehouse).renew(catalog, ["a"]).names == ["silver_a__paid_events", "silver_a__start_events"]
    assert catalog.queries["silver_a__start_events"].endswith("WHERE _message_type IN ('t.Start') AND `game_name` = 'a'")
