"""Gold's columns by settings: what is refused, what merges, what `first` and `last` mean."""

import pytest

from game_events.config.names import expression, measures, simple_call
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.extending import count, max_of, min_of, sum_of


@pytest.mark.parametrize(
    ("sql", "measure"),
    [
        ("count(*)", count()),
        ("COUNT( 1 )", count()),
        ("sum(amount * 2)", sum_of("amount * 2")),
        ("min(`odd name`)", min_of("`odd name`")),
        ("max(coalesce(a, b))", max_of("coalesce(a, b)")),
        ("count(CASE WHEN kind = ')' THEN 1 END)", count("CASE WHEN kind = ')' THEN 1 END")),
    ],
)
def test_counts_sums_and_extremes_of_one_expression_merge(sql, measure):
    assert measures({"x": sql}) == {"x": measure}


@pytest.mark.parametrize(
    "sql",
    [
        "avg(amount)",
        "count(DISTINCT device)",
        "count(a, b)",
        "max(a) - min(a)",
        "sum(a) / (count(b))",
        "first(a)",
        "last(a)",
        "percentile(a, 0.5)",
        "max(a) FILTER (WHERE b)",
    ],
)
def test_everything_else_is_computed_anew(sql):
    assert measures({"x": sql}) is None
    assert measures({"x": sql, "y": "count(*)"}) is None


def test_first_and_last_are_those_by_time_and_of_one_time_by_the_records_place():
    place = "struct(`at`, _kafka_topic, _kafka_partition, _kafka_offset)) FILTER (WHERE `at` IS NOT NULL)"
    assert expression("first(battery)", "at") == f"min_by(battery, {place}"
    assert expression("LAST(battery + 1)", "at") == f"max_by(battery + 1, {place}"
    assert expression("max(battery)", "at") == "max(battery)"


def test_a_text_and_a_quoted_name_are_no_calls():
    assert load_settings(gold_columns={"a": "max(`current_date`)", "b": "count(CASE WHEN t = 'last(' THEN 1 END)"})
    assert load_settings(gold_columns={"a": "max(over)"})


def test_calls_of_one_plain_column_are_known():
    assert simple_call(" Max( `t` ) ") == ("max", "t")
    assert simple_call("count(*)") == ("count", "*")
    assert simple_call("max(a + b)") is None
    assert simple_call("max(a) + 1") is None


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"a": "temperature"}, "is no aggregate"),
        ({"a": "max(temperature"}, "is no aggregate"),
        ({"a": "max(')')', 1"}, "is no aggregate"),
        ({"a": "max(t); DROP TABLE x"}, "a query or a comment"),
        ({"a": "max((SELECT 1))"}, "a query or a comment"),
        ({"a": "max((TABLE parquet.`/x`))"}, "a query or a comment"),
        ({"a": "concat(max(t), reflect('java.lang.System', 'getenv', 'X'))"}, "reflect in"),
        ({"a": "max(`java_method`('java.lang.System', 'getenv', 'X'))"}, "java_method in"),
        ({"a": "max(IDENTIFIER('ref' || 'lect')('java.lang.System', 'getenv', 'X'))"}, "IDENTIFIER in"),
        ({"a": "max(`rand`())"}, "is not deterministic"),
        ({"a": "max(t) -- why"}, "a query or a comment"),
        ({"a": "max(now())"}, "is not deterministic"),
        ({"a": "sum(rand())"}, "is not deterministic"),
        ({"a": "first(t, true)"}, "must be the whole expression"),
        ({"a": "last(t) - first(t)"}, "must be the whole expression"),
        ({"a": "Last(t) FILTER (WHERE t > 0)"}, "must be the whole expression"),
        ({"a": "first_value(t)"}, "must be the whole expression"),
        ({"a": "max(current_date - t)"}, "is not deterministic"),
        ({"a": "max(random())"}, "is not deterministic"),
        ({"a": "count_if(t > curdate())"}, "the clock in"),
        ({"a": "max(t > timestamp'now')"}, "the clock in"),
        ({"a": "rank() OVER (ORDER BY sum(t) DESC)"}, "a window (OVER)"),
        ({"a": "count(*) / sum(count(*)) over()"}, "a window (OVER)"),
        ({"a": "explode(collect_set(t))"}, "one value of a key"),
        ({"a b": "max(t)"}, "cannot name a column"),
        ({"_a": "max(t)"}, "cannot name a column"),
        ({"gamer_id": "max(t)"}, "the key's"),
        ({"Game_Name": "max(t)"}, "the entity's"),
        ({"a": "max(t)", "A": "min(t)"}, "twice"),
    ],
)
def test_what_cannot_be_a_column_is_refused_when_the_settings_are_read(columns, says):
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_GOLD_COLUMNS") as refused:
        load_settings(gold_columns=columns)
    assert says in str(refused.value)
