"""What a search of users' SQL takes for a clock, and what it leaves out."""

import pytest

from game_events.config.sql_text import reads_clock, without_texts, without_texts_and_comments


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
