"""The Spark session of commands that use Spark themselves, without a Dagster run."""

from pyspark.sql import SparkSession

from game_events.config.settings import load_settings


def spark_session() -> SparkSession:
    """The session of the settings, as Dagster's runs have it."""
    from game_events.spark.session import new_session  # starts with what most calls do not need

    return new_session(load_settings())
