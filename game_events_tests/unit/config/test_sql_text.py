"""What a search of users' SQL takes for a clock, and what it leaves out."""

import pytest

from game_events.config.names import (
    columns_in,
    foreign_call,
    holds_query,
    reads_clock,
    without_texts,
    without_texts_and_comments,
)


@pytest.mark.parametrize(
    "sql",
    [
        "at < current_timestamp",
        "at < NOW( )",
        "at < current_time()",
        "at < timestamp'now'",
        "at < CAST('now' AS TIMESTAMP)",
        "to_date(at) <= to_date( 'Today' )",
        "at < 'now'::timestamp",
    ],
)
def test_what_depends_on_the_time_of_evaluation_is_found(sql):
    assert reads_clock(sql)


@pytest.mark.parametrize(
    "sql", ["now > 0", "current_time > 0", "name = 'now'", "name = 'now()'", "`current_date` > 0", "x > 0 -- not now()"]
)
def test_columns_texts_and_comments_read_no_clock(sql):
    assert not reads_clock(sql)


def test_texts_names_and_comments_are_left_out():
    assert without_texts("a = 'it\\'s (' and `b)` > 0 -- c").split() == ["a", "=", "x", "and", "x", ">", "0", "--", "c"]
    assert without_texts_and_comments("a /* '( */ = '--' -- c").split() == ["a", "x", "=", "x", "x"]


@pytest.mark.parametrize(
    "sql",
    [
        "id IN (SELECT 1)",
        "EXISTS (FROM t)",
        "max((TABLE parquet.`/etc/x`))",
        "(WITH t AS (VALUES (1)) FROM t) > 0",
        "(VALUES (1)) > 0",
        "( ( from`x` |> aggregate max(a)) )",
        "id in(/* x */ select 1)",
    ],
)
def test_what_reads_other_tables_or_files_is_a_query(sql):
    assert holds_query(sql)


@pytest.mark.parametrize(
    "sql", ["name = 'select'", "`select` > 0", "(values) > 0", "max(`from`)", "selected > 0", "f(x) -- select"]
)
def test_columns_texts_and_comments_are_no_query(sql):
    assert not holds_query(sql)


@pytest.mark.parametrize(
    ("sql", "function"),
    [
        ("reflect('java.lang.System', 'getenv', 'X') = ''", "reflect"),
        ("max(`Java_Method` ('java.lang.System', 'getenv', 'X'))", "Java_Method"),
        ("system.builtin.try_reflect ('java.lang.Runtime', 'x')", "try_reflect"),
        ("IDENTIFIER('ref' || 'lect')('java.lang.System', 'getenv', 'X')", "IDENTIFIER"),
    ],
)
def test_what_runs_other_code_is_named(sql, function):
    assert foreign_call(sql) == function


@pytest.mark.parametrize("sql", ["reflect > 0", "`reflect` > 0", "name = 'reflect('", "sum(identifier)", "x > 0 -- reflect(x)"])
def test_columns_and_texts_of_such_names_run_nothing(sql):
    assert foreign_call(sql) is None


def test_a_quoted_name_that_is_called_is_the_function_of_that_name():
    assert reads_clock("at < `now`()")
    assert without_texts("`rand`() + `rand` + '`rand`('").split() == ["rand()", "+", "x", "+", "x"]


@pytest.mark.parametrize(
    ("sql", "used"),
    [
        ("Level > 0 AND nested.part = 'name'", {"level", "nested", "name"}),
        ("`STRASSE` = 1 -- weiß", {"weiß"}),
        ("levels > 0", set()),
        ("a_b = 1", {"a_b"}),
        ("count(*) > 0", {"level", "nested", "name", "weiß", "a_b", "a-b"}),
        ("`a-b` = 1", {"a-b"}),
    ],
)
def test_the_columns_that_an_expression_may_use_are_those_whose_names_are_in_it(sql, used):
    assert columns_in(sql, ["level", "nested", "name", "weiß", "a_b", "a-b"]) == used
