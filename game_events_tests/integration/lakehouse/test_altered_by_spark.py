"""Real ALTER TABLE statements of Spark: what the refusal names takes them back, and commits go on."""

import re

import pytest

from game_events.errors import DataError
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.tables import Lakehouse
from game_events_tests.support.altered_tables import altered, not_null
from game_events_tests.support.tables import numbers, plan


@pytest.mark.parametrize(
    "alter",
    [
        "",
        "ADD CONSTRAINT few CHECK (n < 10)",
        "SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
        "SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')",
        "SET TBLPROPERTIES ('delta.appendOnly' = 'true')",
    ],
    ids=["NOT NULL", "CHECK", "row tracking", "times in commits", "append only"],
)
def test_the_statement_of_the_refusal_takes_back_what_spark_has_altered(tmp_path, spark, alter):
    table = Lakehouse(str(tmp_path)).gold("uno")
    commit(plan(table, [0], None, 1))
    if alter:
        spark.sql(f"ALTER TABLE delta.`{table.uri}` {alter}")
    else:  # by an engine that can
        altered(table, change=not_null("n"))
    with pytest.raises(DataError, match="was altered") as refused:
        table.open()
    (undo,) = re.findall(r"take it back by (ALTER TABLE .*?), or delete", str(refused.value))
    for statement in undo.split("; "):
        spark.sql(statement)
    commit(plan(table, [1], 1, 2))
    assert numbers(table) == [0, 1]
