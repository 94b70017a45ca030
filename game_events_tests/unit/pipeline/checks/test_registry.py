"""The cheap checks at the end of a run fail no run, whatever keeps them from being made. No Spark, no broker."""

from types import SimpleNamespace

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from game_events.config.settings import Settings
from game_events.errors import TransientError
from game_events.pipeline.checks.registry import CONSERVED, TableCheck, check_after_run
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.tables import TableReport


class JobAbortedError(Py4JJavaError):
    """A failed job: pyspark has no class for most of them."""

    def __init__(self, text):
        Exception.__init__(self, text)

    def __str__(self):
        return f"An error occurred while calling o1.collectToPython.\n: {self.args[0]}"


def test_a_check_whose_spark_job_fails_is_noted_as_not_passed_and_fails_no_run():
    for error, why in (
        (PySparkException("gamer-0042"), "PySparkException: see the run's log"),
        (JobAbortedError("gamer-0042"), "JobAbortedError: see the run's log"),
        (TransientError("storage does not answer"), "storage does not answer"),
        (pa.ArrowInvalid("no Parquet file"), "no Parquet file"),
    ):

        def broken(*_, error=error):
            raise error

        report = RunReport(tables=[TableReport("silver", "silver_chess_events", "/x", "chess")])
        checks = [TableCheck(CONSERVED, "silver", broken, broken)]
        check_after_run(SimpleNamespace(settings=Settings.model_construct()), report, checks)
        (found,) = report.checks
        assert (found.passed, found.wrong_rows) == (False, False)
        assert found.summary == f"could not be made: {why}"
