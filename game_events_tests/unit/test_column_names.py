"""One rule for the whole project says when two names of columns are one."""

import pyarrow as pa
import pytest

from game_events.config.names import problem
from game_events.decoding.columns import ColumnMap, Field
from game_events.errors import folded

ALIKE = ["\u00b5s \u03bcs", "\u03c2 \u03c3", "\u017f s", "\u00df ss", "\u0131 i"]


@pytest.mark.parametrize("pair", ALIKE)
def test_names_that_only_look_alike_are_two_columns(pair):
    one, other = pair.split()
    assert folded(one) != folded(other)
    columns = ColumnMap().with_message("m", [Field(1, one, pa.int64()), Field(2, other, pa.string())])
    assert list(columns.columns) == [one, other]


@pytest.mark.parametrize(("one", "other"), [("A", "a"), ("\u212a", "k"), ("\u1e9e", "\u00df"), ("\u03a9", "\u03c9")])
def test_capital_letters_do_not_count(one, other):
    assert folded(one) == folded(other)
    columns = ColumnMap().with_message("m", [Field(1, one, pa.int64()), Field(2, other, pa.string())])
    assert list(columns.columns) == [one, f"{other}__string"]


def test_columns_of_gold_follow_it():
    assert problem({"Total": "count(*)", "total": "max(x)"}, ()) is not None
    assert problem({"total": "count(*)"}, ("TOTAL",)) is not None
