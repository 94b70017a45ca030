"""Which names are one column's: the project's rule is Spark's, and names that only look alike keep their values apart."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from game_events.errors import folded
from game_events.extending import DECLARATION, silver_transformation
from game_events.pipeline.silver.transformations import transformed
from game_events.spark.schemas import quoted

PAIRS = {
    "capitals": ("A", "a"),
    "micro sign, mu": ("\u00b5", "\u03bc"),
    "final sigma": ("\u03c2", "\u03c3"),
    "long s": ("\u017f", "s"),
    "sharp s": ("\u00df", "ss"),
    "Kelvin sign": ("\u212a", "k"),
    "capital i with a dot": ("\u0130", "i"),
    "capital i with a dot, i and a dot": ("\u0130", "i\u0307"),
    "dotless i": ("\u0131", "i"),
    "capital sharp s": ("\u1e9e", "\u00df"),
    "capital sigma at the end": ("\u03a3", "\u03c2"),
    "capital sigma": ("\u03a3x", "\u03c3x"),
    "title case": ("\u01c5", "\u01c6"),
    "beyond 16 bits": ("\U00010400", "\U00010428"),
    "Ohm sign": ("\u2126", "\u03c9"),
}


def declared(function, **options):
    return getattr(silver_transformation(**options)(function), DECLARATION)


@pytest.mark.parametrize("what", PAIRS)
def test_two_names_are_one_for_the_project_if_they_are_for_spark(what, spark, tmp_path):
    one, other = (f"c{name}" for name in PAIRS[what])
    rows = spark.range(1).select(F.lit(1).alias(one), F.lit(2).alias(other))
    try:
        rows.write.parquet(str(tmp_path / "rows"))
    except AnalysisException as error:
        assert "COLUMN_ALREADY_EXISTS" in str(error)
        assert folded(one) == folded(other)
        return
    assert folded(one) != folded(other)
    assert tuple(rows.select(F.col(quoted(one)), F.col(quoted(other))).first()) == (1, 2)


@pytest.mark.parametrize("what", [what for what, names in PAIRS.items() if folded("c" + names[0]) != folded("c" + names[1])])
def test_a_transformation_over_names_that_look_alike_mixes_up_no_values(what, spark):
    one, other = (f"c{name}" for name in PAIRS[what])
    source = pa.schema([("game", pa.string()), (one, pa.int64()), (other, pa.int64()), ("_batch", pa.int64())])
    data = [("chess", 1, 2, 1), ("whist", 3, 4, 1)]
    rows = spark.createDataFrame(data, f"game string, {quoted(one)} bigint, {quoted(other)} bigint, _batch bigint")
    every = declared(lambda rows: rows.withColumn("hour", F.lit(7)))
    only = declared(lambda rows: rows.withColumn("extra", F.lit(8)), games=["whist"])
    for chosen in ([every], [every, only], [only]):
        found, schema = transformed(rows, source, "game", chosen)
        assert schema.names[:4] == source.names
        by_game = {row["game"]: tuple(row)[1:3] for row in found.collect()}
        assert by_game == {"chess": (1, 2), "whist": (3, 4)}


def test_a_column_that_looks_like_the_games_is_not_replaced_with_it(spark):
    entity, other = "\u03bcgame", "\u00b5game"
    source = pa.schema([(entity, pa.string()), (other, pa.int64()), ("_batch", pa.int64())])
    rows = spark.createDataFrame([("chess", 5, 1)], f"{quoted(entity)} string, {quoted(other)} bigint, _batch bigint")
    found, _ = transformed(rows, source, entity, [declared(lambda rows: rows.withColumn("hour", F.lit(7)))])
    assert [tuple(row) for row in found.collect()] == [("chess", 5, 1, 7)]
