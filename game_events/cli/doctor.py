"""`game-events doctor`: checks everything a run needs, and says what to do about what is missing."""

from __future__ import annotations

from game_events.assets.resources import SparkResource
from game_events.cli.checks import show_checks
from game_events.cli.options import Json
from game_events.cli.output import Output
from game_events.pipeline.check_rules import sql_checks
from game_events.pipeline.context import Pipeline
from game_events.pipeline.preflight import environment_checks, run_checks
from game_events.pipeline.state_checks import state_checks
from game_events.settings import load_settings


def doctor(as_json: Json = False) -> None:
    """Check Java, the Java parts, Kafka, the registry, the lakehouse; exit code 1 if one fails. Then how the tables stand."""
    output = Output(as_json=as_json)
    settings = load_settings()
    # Spark starts only if there is SQL to analyze.
    pipeline = Pipeline(settings, lambda: SparkResource().spark_session)
    checks = environment_checks(settings) | sql_checks(pipeline) | state_checks(pipeline)
    show_checks(output, "doctor", run_checks(checks, settings))
