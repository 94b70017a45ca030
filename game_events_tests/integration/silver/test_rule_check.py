"""Which conditions are rules: analyzed by the real Spark, before a row is read."""

from __future__ import annotations

import logging

import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql.types import StructType

from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import BRONZE
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.quality import problems, require_valid
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.preflight import check_rules
from game_events.rules import Rule
from game_events_tests.support.reconciliation import count
from game_events_tests.support.worlds.quality import Event, rule, send_events

COLUMNS = StructType.fromJson(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (
                ("id", "long"),
                ("text", "string"),
                ("at", "timestamp"),
                ("many", {"type": "array", "elementType": "long", "containsNull": True}),
            )
        ],
    }
)


def problem(spark, sql, columns=COLUMNS):
    return problems(spark, [Rule(name="r", sql=sql)], columns).get("silver.r")


@pytest.mark.parametrize(
    "sql",
    [
        "id > 0",
        "true",
        "text = 'now' OR text LIKE 'today%'",
        "text = 'select' OR `text` LIKE '%now()%' -- select now()",
        "exists(many, x -> x > 1) AND aggregate(many, 0L, (a, x) -> a + x) < 10",
        "CAST(text AS INT) IS NULL AND at < timestamp'2030-01-01' AND to_date(text) IS NULL",
        "IF(id = 1, raise_error('no'), true)",
    ],
)
def test_conditions_over_one_row_are_rules(spark, sql):
    assert problem(spark, sql) is None


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("id >", "cannot be evaluated: [PARSE_SYNTAX_ERROR]"),
        ("true; DROP TABLE x", "[PARSE_SYNTAX_ERROR]"),
        ("nope > 1", "`nope` cannot be resolved. Did you mean one of the following"),
        ("nosuch(id)", "Cannot resolve routine `nosuch`"),
        ("id + 1", "is no condition: it gives bigint"),
        ("NULL", "is no condition"),
        ("*", "is no condition"),
        ("count(*) > 1", "not about one row"),
        ("max(id) > 1", "not about one row"),
        ("row_number() OVER (ORDER BY id) = 1", "not about one row"),
        ("explode(array(true))", "not about one row"),
        ("rand() > 0.5", "not about one row"),
        ("uuid() = text", "not about one row"),
        ("input_file_name() = text", "not about one row"),
        ("id IN (SELECT 1)", "holds a query"),
        ("EXISTS (FROM t)", "holds a query"),
        ("text = (TABLE parquet.`/x`)", "holds a query"),
        ("text = reflect('java.lang.System', 'getenv', 'HOME')", "runs other code by reflect"),
        ("text = `java_method`('java.lang.System', 'getenv', 'HOME')", "runs other code by java_method"),
        ("text = try_reflect/**/('java.lang.System', 'getenv', 'HOME')", "not about one row"),
        ("text = IDENTIFIER('ref' || 'lect')('java.lang.System', 'getenv', 'HOME')", "runs other code by IDENTIFIER"),
        ("at < current_timestamp()", "reads the clock"),
        ("at < now()", "reads the clock"),
        ("at < timestamp'now'", "reads the clock"),
        ("at < CAST('now' AS TIMESTAMP)", "reads the clock"),
        ("to_date(at) <= to_date( 'Today' )", "reads the clock"),
        ("at < try_to_timestamp('tomorrow')", "reads the clock"),
        ("at < 'now'::timestamp", "reads the clock"),
    ],
)
def test_whatever_else_spark_would_compute_is_refused_with_the_reason(spark, sql, why):
    assert why in (problem(spark, sql) or "")


def test_the_error_names_rule_problem_and_columns_in_one_line_and_spark_writes_no_stack(spark, capfd):
    with pytest.raises(ConfigurationError) as refused:
        require_valid(spark, [Rule(name="fine", sql="id > 0"), Rule(name="typo", sql="ids > 0")], COLUMNS)
    text = str(refused.value)
    assert text.startswith("change the rule (`rules` in game_events.yaml, GAME_EVENTS_RULES): rule silver.typo: 'ids > 0' ")
    assert text.endswith(". The rows have the columns id, text, at, many")
    assert "\n" not in text
    assert "fine" not in text
    assert "JVM" not in capfd.readouterr().err
    assert not logging.getLogger("SQLQueryContextLogger").disabled


def test_rules_are_checked_before_there_are_rows_and_against_the_columns_there_are(make_settings, make_pipeline):
    rules = [rule("silver_rule", "amount > 0"), rule("gold_rule", "session_count > 0", layer="gold")]
    assert check_rules(make_pipeline(make_settings())) == "no rules"
    assert check_rules(make_pipeline(make_settings(rules=rules))) == "2 rules: they parse (there are no rows yet)"
    with pytest.raises(ConfigurationError, match=r"rule silver\.broken: .*PARSE_SYNTAX_ERROR"):
        check_rules(make_pipeline(make_settings(rules=[rule("broken", "amount >")])))

    settings = make_settings(rules=rules)
    send_events(settings, [Event("uno", 1)])
    load_bronze(make_pipeline(settings), RunReport())
    assert check_rules(make_pipeline(settings)) == "2 rules: they fit the columns of bronze_events"
    wrong = [rule("silver_rule", "session_count > 0"), rule("gold_rule", "amount > 0", layer="gold")]
    with pytest.raises(ConfigurationError, match=r"rule silver\.silver_rule: .*rule gold\.gold_rule: "):
        check_rules(make_pipeline(make_settings(rules=wrong)))
    assert count(settings, BRONZE) == 1


def test_an_error_of_spark_after_a_refused_rule_is_still_sparks_error(spark):
    # PySpark logs it with a logger of its own kind, which must not have been made as an ordinary one before.
    assert problem(spark, "no_such_column > 1")
    logging.getLogger("SQLQueryContextLogger").disabled = False
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):
        spark.range(1).selectExpr("1 / (id - id) AS x").collect()
