"""The Spark session of commands that use Spark themselves, without a Dagster run."""

from pyspark.sql import SparkSession


def spark_session() -> SparkSession:
    """The session of the settings, as Dagster's runs have it."""
    from game_events.orchestration.resources import SparkResource  # imports Dagster, which most calls do not need

    return SparkResource().spark_session
