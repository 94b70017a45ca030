"""The path of Spark's Python workers: without archives of modules that are installed."""

import zipfile
from pathlib import Path

import pyspark

from game_events.pipeline.worker_daemon import without_archives

HOME = Path(pyspark.__file__).parent
SITE = str(HOME.parent)
OWN = [str(HOME / "python/lib/pyspark.zip"), str(next((HOME / "python/lib").glob("py4j-*-src.zip")))]


def test_archives_of_the_installed_pyspark_leave_the_path():
    jar = str(next((HOME / "jars").glob("spark-core_*.jar")))
    assert without_archives(["", *OWN, jar, "/there/is/no/such/folder", SITE]) == ["", "/there/is/no/such/folder", SITE]


def test_other_archives_stay(tmp_path):
    mine = tmp_path / "mine.zip"
    zipfile.ZipFile(mine, "w").close()
    assert without_archives([str(mine), *OWN, SITE]) == [str(mine), SITE]


def test_where_pyspark_comes_from_the_archives_alone_they_stay(tmp_path):
    assert without_archives([*OWN, str(tmp_path)]) == [*OWN, str(tmp_path)]


def test_archives_of_another_spark_stay(tmp_path):
    other = tmp_path / "spark/python/lib/pyspark.zip"
    other.parent.mkdir(parents=True)
    zipfile.ZipFile(other, "w").close()
    assert without_archives([str(other), SITE]) == [str(other), SITE]
