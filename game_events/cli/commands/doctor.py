"""`game-events doctor`: checks everything a run needs, and says what to do about what is missing."""

from game_events.cli.common.arguments import Json
from game_events.cli.common.checks import show_checks
from game_events.cli.common.output import Output
from game_events.cli.common.spark import spark_session
from game_events.config.settings import load_settings
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.state_checks import state_checks, validation


def doctor(as_json: Json = False) -> None:
    """Check Java, the Java parts, Kafka, the registry, the lakehouse; exit code 1 if one fails. Then how the tables stand."""
    output = Output(as_json=as_json)
    pipeline = Pipeline(load_settings(), spark_session)
    show_checks(output, "doctor", validation(pipeline, state_checks(pipeline)))
