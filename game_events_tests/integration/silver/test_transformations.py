"""Silver transformations as a part of Spark's plan: what they may do, and what is refused by name."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import functions as F

from game_events.errors import ExtensionError
from game_events.extending import DECLARATION, silver_transformation
from game_events.pipeline.silver.transformations import transformed

SOURCE = pa.schema([("game", pa.string()), ("n", pa.int64()), ("_kafka_offset", pa.int64()), ("_batch", pa.int64())])
ROWS = [("chess", 1, 0, 1), ("uno", 2, 1, 1), ("poker", 3, 2, 1), (None, 4, 3, 1)]


@pytest.fixture(scope="module")
def rows(spark, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("rows") / "rows")
    spark.createDataFrame(ROWS, "game string, n bigint, _kafka_offset bigint, _batch bigint").write.parquet(folder)
    return spark.read.parquet(folder)


def declared(function, **options):
    return getattr(silver_transformation(**options)(function), DECLARATION)


def apply(rows, *transformations):
    return transformed(rows, SOURCE, "game", transformations)


def scans(rows):
    """How often the plan reads the files."""
    return sum("FileScan parquet" in line for line in rows._jdf.queryExecution().executedPlan().toString().splitlines())


def values(rows, *columns):
    return sorted((tuple(r[c] for c in ("game", *columns)) for r in rows.collect()), key=repr)


def test_without_transformations_the_plan_is_untouched(rows):
    assert apply(rows) == (rows, SOURCE)


def test_those_for_every_game_are_applied_in_order_without_another_pass(rows):
    doubled = declared(lambda rows: rows.withColumn("twice", F.col("n") * 2))
    added = declared(lambda rows: rows.withColumn("more", F.col("twice") + 1))
    found, schema = apply(rows, doubled, added)
    assert schema.names == [*SOURCE.names, "twice", "more"]
    assert schema.field("more").type == pa.int64()
    assert values(found, "more")[0] == ("chess", 3)
    assert scans(found) == scans(rows) == 1


def test_one_for_some_games_sees_their_rows_only_and_costs_a_read_for_each_group_of_games(rows):
    seven = declared(lambda rows: rows.withColumn("seven", F.lit(7)), games=["chess", "uno"])
    every = declared(lambda rows: rows.withColumn("n", F.col("n") + 1))
    twice = declared(lambda rows: rows.union(rows), games=["poker"], rows="any")
    found, schema = apply(rows, seven, every, twice)
    assert schema.names == [*SOURCE.names, "seven"]
    assert values(found, "n", "seven") == sorted(
        [("chess", 2, 7), ("uno", 3, 7), ("poker", 4, None), ("poker", 4, None), (None, 5, None)], key=repr
    )
    assert scans(apply(rows, seven, every)[0]) == 2


def test_explode_flatten_and_nested_columns(rows):
    struct = declared(lambda rows: rows.select("*", F.struct(F.lit(1).alias("a")).alias("s"), F.array("n", "n").alias("l")))
    flat = declared(lambda rows: rows.select("game", "_kafka_offset", "_batch", "s.a", F.explode("l").alias("n")), rows="any")
    found, schema = apply(rows, struct, flat)
    assert schema.names == ["game", "n", "_kafka_offset", "_batch", "a"]
    assert len(values(found)) == 2 * len(ROWS)


def raising(rows):
    return rows.select("no_such_column")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (raising, "no_such_column"),
        (lambda rows: 1 / 0, "ZeroDivisionError"),  # noqa: ARG005
        (lambda rows: None, "must give a DataFrame; it gave NoneType"),  # noqa: ARG005
        (lambda rows: rows.drop("_batch"), "lost or changed _batch"),
        (lambda rows: rows.drop("game"), "lost or changed game"),
        (lambda rows: rows.withColumn("_kafka_offset", F.lit("x")), "lost or changed _kafka_offset"),
        (lambda rows: rows.withColumn("_mine", F.lit(1)), "are the pipeline's: _mine"),
        (lambda rows: rows.withColumn("a b", F.lit(1)), "Delta takes no spaces"),
        (lambda rows: rows.withColumn("who.id", F.lit(1)), "gives a column 'who.id': Spark takes a dot"),
        (lambda rows: rows.withColumn("nothing", F.lit(None)), "nothing the type void"),
        (lambda rows: rows.select("*", F.lit(1).alias("N")), "twice"),
    ],
)
def test_what_cannot_be_is_refused_with_the_functions_name_and_file(function, says, rows):
    with pytest.raises(ExtensionError) as raised:
        apply(rows, declared(function))
    assert says in str(raised.value)
    assert f"silver transformation {function.__name__} ({__file__}:" in str(raised.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: rows.withColumn("game", F.upper("game")),
        lambda rows: rows.withColumn("game", F.coalesce("game", F.lit("unknown"))),
        lambda rows: rows.select(*(F.upper(name).alias(name) if kind == "string" else name for name, kind in rows.dtypes)),
    ],
)
def test_another_name_of_a_rows_game_is_refused_where_it_is_met(function, rows):
    found, schema = apply(rows, declared(lambda rows: rows.withColumn("x", F.lit(1))), declared(function))
    assert schema.names == [*SOURCE.names, "x"]
    with pytest.raises(SparkRuntimeException, match=r"silver transformation <lambda> \(.*changed the value of game"):
        found.collect()


def test_names_that_are_no_games_may_be_filled(rows):
    found, _ = apply(rows, declared(lambda rows: rows.na.fill("")))
    assert len(values(found)) == len(ROWS)


def test_a_column_of_two_types_is_refused_instead_of_becoming_text(rows):
    number = declared(lambda rows: rows.withColumn("x", F.lit(1)), games=["chess"])
    text = declared(lambda rows: rows.withColumn("x", F.lit("1")), games=["uno"])
    with pytest.raises(ExtensionError, match=r"the column x is .* for some games and .* for others"):
        apply(rows, number, text)
