"""Errors of Spark's jobs at files that are gone or damaged, as sentences; outages and the right to read stay what they are."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from game_events.errors import ConfigurationError, LostFileError
from game_events.spark.failures import lost_file, storage_named

WORKER = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/app/game_events/lakehouse/data/snapshot.py", line 132, in read_parts
game_events.errors.LostFileError: /lake/bronze_events/a.parquet cannot be read: it is 4 bytes long
"""
JAVA = """An error occurred while calling o48.collectToPython.
: org.apache.spark.SparkException: [FAILED_READ_FILE.{kind}] Encountered error while reading file {uri}.{words}  SQLSTATE: KD001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:849)
Caused by: {cause}
\tat org.apache.parquet.hadoop.ParquetFileReader.readFooter(ParquetFileReader.java:574)
"""
NOT_PARQUET = "java.lang.RuntimeException: file:/lake/a.parquet is not a Parquet file"


def java(kind="NO_HINT", uri="file:///lake/silver/a%20b.parquet", words="", cause=NOT_PARQUET):
    return JAVA.format(kind=kind, uri=uri, words=words, cause=cause)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WORKER, "/lake/bronze_events/a.parquet cannot be read: it is 4 bytes long"),
        (java(), "/lake/silver/a b.parquet cannot be read: file:/lake/a.parquet is not a Parquet file"),
        (
            java("FILE_NOT_EXIST", words=" File does not exist. It is possible"),
            "/lake/silver/a b.parquet is gone, though the table's log lists it",
        ),
        (java("OTHER_TYPES", words=" Column [a] is BINARY."), "/lake/silver/a b.parquet cannot be read: Column [a] is BINARY."),
        (java(uri="s3a://lake/a.parquet"), "s3a://lake/a.parquet cannot be read: file:/lake/a.parquet is not a Parquet file"),
        ("[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/a.parquet.", "/a.parquet cannot be read"),
    ],
)
def test_a_file_that_a_job_cannot_read_is_named_in_one_sentence(text, said):
    assert str(lost_file(PySparkException(text), "/lake")) == said
    with pytest.raises(LostFileError), storage_named("/lake"):
        raise PySparkException(text)


def test_a_file_that_may_not_be_read_is_a_matter_of_rights_and_not_lost():
    error = PySparkException(java(cause="java.io.FileNotFoundException: /lake/a.parquet (Permission denied)"))
    assert lost_file(error, "/lake") is None
    with pytest.raises(ConfigurationError, match="Permission denied"), storage_named("/lake"):
        raise error


def test_other_errors_stay_what_they_are():
    error = PySparkException("[DIVIDE_BY_ZERO] Division by zero.")
    assert lost_file(error, "/lake") is None
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"), storage_named("/lake"):
        raise error
