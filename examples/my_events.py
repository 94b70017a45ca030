"""Extensions of this pipeline: docs/extending.md explains them."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from game_events.extending import Measure, count, gold_aggregate, max_of, min_of, silver_transformation
from game_events.rules import Rule


@silver_transformation
def with_hour(rows: DataFrame) -> DataFrame:
    """The hour of the day, in UTC, at which an event happened."""
    return rows.withColumn("hour", F.hour("event_timestamp"))


RULES = [
    Rule(name="has_device", sql="device_id <> ''", action="quarantine", description="Every event says what it was played on."),
    Rule(name="by_day", sql="hour(event_timestamp) >= 6", description="No play at night. Only counted."),
]


@gold_aggregate("devices", keys=["device_id"])
def devices() -> dict[str, Measure]:
    """Use of each device: events, those at night, first and last."""
    return {
        "events": count(),
        "night_events": count("CASE WHEN hour < 6 THEN 1 END"),
        "first_seen": min_of("event_timestamp"),
        "last_seen": max_of("event_timestamp"),
    }


@gold_aggregate("session_length", mode="recompute", keys=["gamer_id"], interval_s=300)
def session_length(silver: DataFrame) -> DataFrame:
    """Sessions of each player, and their median length in seconds; half an hour without an event ends a session."""
    player = Window.partitionBy("_game", "gamer_id").orderBy("event_timestamp")
    seconds = F.col("event_timestamp").cast("double")
    begins = F.coalesce(seconds - F.lag(seconds).over(player) > 30 * 60, F.lit(True))
    sessions = (
        silver.withColumn("session", F.sum(begins.cast("int")).over(player))
        .groupBy("_game", "gamer_id", "session")
        .agg((F.max(seconds) - F.min(seconds)).alias("length_s"))
    )
    return sessions.groupBy("_game", "gamer_id").agg(
        F.count(F.lit(1)).alias("sessions"), F.median("length_s").alias("median_length_s")
    )
