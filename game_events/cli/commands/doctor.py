"""`game-events doctor`: checks everything a run needs, and says what to do about what is missing."""

from __future__ import annotations

from game_events.cli.common.arguments import Json
from game_events.cli.common.output import Output, show_checks
from game_events.config.settings import load_settings
from game_events.orchestration.resources import SparkResource
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.preflight import environment_checks, run_checks
from game_events.pipeline.runs.state_checks import sql_checks, state_checks


def doctor(as_json: Json = False) -> None:
    """Check Java, the Java parts, Kafka, the registry, the lakehouse; exit code 1 if one fails. Then how the tables stand."""
    output = Output(as_json=as_json)
    settings = load_settings()
    # Spark starts only if there is SQL to analyze.
    pipeline = Pipeline(settings, lambda: SparkResource().spark_session)
    checks = environment_checks(settings) | sql_checks(pipeline) | state_checks(pipeline)
    show_checks(output, "doctor", run_checks(checks, settings))
